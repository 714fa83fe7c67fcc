"""The agent of a compute node: finds jobs, measures them, and sends batches through the spool.

Read ``agent.py`` first, then ``collector.py`` (the loop) and ``processes/tracker.py`` (process
events). ``job.py`` has the contracts of probes, samplers and outputs. ``jobs/`` finds and
identifies jobs, ``probes/`` measure them, ``samplers/`` and ``outputs/`` are the parts that a site
can add to, ``exporter/`` serves Prometheus, ``launch/`` is the engine of ``jobsight run``.

Imports stay small here (no typer, rich, numpy or HTTP framework): memory counts on every node.
"""
