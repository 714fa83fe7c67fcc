"""The agent's Prometheus exporter: series of the jobs on this node, and of the agent itself.

Start with ``exporter.py``, which joins each job as one more sampler, and ``job_series.py``, which
renders the series of one job. ``service.py`` connects the exporter to the settings and the agent.
The series leave by ``http.py`` (``/metrics``) and ``push.py`` (Pushgateway); ``profile_plugin.py``
adds what the profile plugin sends.
"""
