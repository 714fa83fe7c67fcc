"""What agent and server share of Prometheus.

Start with ``names.py``, the table of all metric families; ``exposition.py`` renders them as text.
``remote_write.py`` converts batches to remote-write requests and delivers them. None of the
modules imports a library beyond those of the agent.
"""
