"""Time series in a store.

Start with ``codec.py``, the format of a chunk; ``packing.py`` has the transforms of its columns.
``blocks.py`` joins, summarises and downsamples decoded chunks.
"""
