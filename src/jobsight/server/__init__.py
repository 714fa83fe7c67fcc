"""The server: receives batches, answers the API, shows the pages."""
