"""The default command inside the guest: the bed comes up on cgroup v2, runs jobs, and goes."""

import os
import sys
import time
from pathlib import Path

from tests.bed import Cluster
from tests.bed.steps import Steps
from tests.slurm import leftovers

OUT = Path(os.environ.get("OUT", "/out"))
EAT = "b = bytearray({} << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\n"


def main() -> int:
    # qemu without KVM takes some ten times as long for everything.
    systemd = Path("/run/systemd/system").exists()
    choices = {"name": "jsg", "cgroup": "v2", "systemd": systemd, "ready_seconds": 300}
    with Cluster(Steps(sys.stdout), **choices) as cluster:
        job = cluster.submit("jobsight-alice", "srun sleep 20", "--nodes=2", "--mem=64")
        cluster.wait(job, "RUNNING", timeout=120)
        folder = cluster.cgroup_of(job, cluster.nodes[0])
        task = folder / "step_0" / "user" / "task_0"
        deadline = time.monotonic() + 60
        while not task.exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        limit = (folder / "memory.max").read_text().strip()  # set a moment after the directory
        tree = sorted(str(path) for path in folder.rglob("*") if path.is_dir())
        (OUT / "tree.txt").write_text("\n".join([str(folder), *tree, ""]))
        cluster.wait(job, "COMPLETED", timeout=240)
        command = f"python3 -c '{EAT.format(300)}'"
        greedy = cluster.submit("jobsight-bob", command, "--mem=64")
        cluster.wait(greedy, "OUT_OF_MEMORY", timeout=240)
        fields = ["JobID", "State", "ExitCode", "Elapsed", "MaxRSS"]
        report = [str(row) for row in cluster.sacct(f"{job},{greedy}", fields)]
        (OUT / "sacct.txt").write_text("\n".join([*report, ""]))
        (OUT / "logs.txt").write_text(cluster.logs(200))
    left = leftovers.of(cluster.settings)
    print("\n".join([f"memory.max {limit}", *tree, *report, *[f"left: {one}" for one in left]]))
    return 0 if limit == str(64 << 20) and str(task) in tree and not left else 1


if __name__ == "__main__":
    sys.exit(main())
