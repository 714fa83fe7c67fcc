"""On a compute node: finds jobs, measures them, and hands batches to the spool.

Imports stay small here (no typer, rich, numpy or HTTP framework): memory counts on every node.
"""
