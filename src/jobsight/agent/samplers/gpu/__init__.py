"""GPUs of the job.

Start with ``sampler.py``: it assigns GPUs to the job and reports them. ``devices.py`` has the
GPUs of the node, read by NVML (``nvml.py``) or, without the library, by the ``nvidia-smi``
command (``nvidia_smi.py``). ``nvml_replay.py`` records the results of NVML on a machine with a
GPU and replays them in tests.
"""
