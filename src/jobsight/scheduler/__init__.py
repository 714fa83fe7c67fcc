"""What the scheduler knows: Slurm of any release, read into one shape."""
