"""Adapters convert the replies of all releases and formats of Slurm to records.

Read ``tables`` first: one table per kind of record, with all formats side by side. The other
modules handle one format each: ``json`` with ``json_stream``, the columns of ``sacct``,
``squeue`` and ``sinfo``, ``pyslurm``; ``policy`` is reservations, QOS and associations.
"""
