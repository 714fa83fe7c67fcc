"""GPUs of the job.

Start with ``sampler.py``: it assigns GPUs to the job and reports them. ``devices.py`` has the
GPUs of the node, and ``meter.py`` adds their readings up, for the node and for each job.
``source.py`` is the contract of a source of readings. There are three: NVML (``nvml.py``), the
``nvidia-smi`` command where the library cannot be loaded (``nvidia_smi.py``), and the files of the
kernel drivers of AMD and Intel (``drm.py``). ``choose.py`` picks free GPUs for ``jobsight run``.
``nvml_replay.py`` records the results of NVML on a machine with a GPU and replays them in tests.
"""
