"""Daily rollups of usage by cluster, user, account, partition and software.

Start with ``rollups.py``, which keeps the tables up to date; ``shares.py`` computes what one run
contributes. ``usage.py`` queries the rollups, ``catalogue.py`` software names and their paths.
"""
