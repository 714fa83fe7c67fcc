"""Sinks receive copies of runs, pending jobs and nodes.

Read ``base`` first: the contract. ``feeder`` sends each sink what changed; ``mongodb`` and
``opensearch`` are the sinks.
"""
