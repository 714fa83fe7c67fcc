"""Settings of an exporter whose jobs are shaped like Slurm's."""

SETTINGS = """
cluster = "c"
[agent]
node = "n1"
run_directory = "{folder}/run"
cgroup_roots = ['{root}']
query_slurm = false
samplers = []
[agent.metrics]
keep_ended = 5.0
"""
