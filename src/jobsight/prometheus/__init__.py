"""What agent and server share of Prometheus: names, text, remote write. No server's library."""
