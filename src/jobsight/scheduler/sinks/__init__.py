"""Where the scheduler's data goes besides the store: MongoDB, OpenSearch, Prometheus."""
