"""Sources are the ways to query Slurm; all of them return the same records.

Read ``base`` first: the contract, and how a source is chosen. ``rest``, ``json``, ``text``,
``pyslurm``, ``onsite`` and ``recorded`` are the sources; ``commands`` runs Slurm's commands, here
or over SSH, and ``replies`` keeps replies for later inspection. ``onsite_script`` and
``pyslurm_child`` run on other machines and import nothing of jobsight.
"""
