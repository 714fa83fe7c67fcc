"""The server side of SAMS: records over HTTP, records and whole databases into the store."""
