"""What national accounting gets: the share of each software in each run."""
