"""Slurm: what it reports of jobs, nodes and partitions, scraped into the store.

Read ``scraper`` first, then ``records`` (the form of all records). ``sources`` are the ways to
query Slurm, ``adapters`` convert replies to records (see ``adapters.tables``), ``fields`` and
``hostlist`` convert single values, ``sinks`` receive copies of runs and nodes, ``cluster_metrics``
are exposed to Prometheus, and ``state`` is the position and health of a scrape.
"""
