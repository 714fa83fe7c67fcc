"""Ways to ask a Slurm. All give the same records."""
