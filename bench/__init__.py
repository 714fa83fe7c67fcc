"""Programs that measure jobsight beside its peers."""
