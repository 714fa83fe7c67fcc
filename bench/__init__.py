"""Programs that measure jobsight alongside its peers."""
