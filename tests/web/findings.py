"""Findings of the sample runs, for tests of the pages and for looking at them."""

from __future__ import annotations

from jobsight.findings.finding import Cost, Evidence, Finding
from jobsight.findings.stored import to_row
from jobsight.store.findings.write import set_reply, store_judged
from jobsight.store.read.queries import StoredRun
from jobsight.store.store import Store
from tests.store.findings.sample import judged
from tests.web.sample import HOSTILE, NOW


def findings(run: StoredRun) -> list[Finding]:
    """One of each severity, one with hostile text, and one that somebody has replied to."""
    end = run.info.end or NOW
    length = end - run.start
    idle = run.start + round(length * 0.62)
    return [
        Finding(
            kind="idle-after-work",
            severity="critical",
            title="The job held its CPUs after the work had ended",
            text="Since 03:12 UTC only sleep was alive: 4 CPUs were held for 2 h 10 min, 38 % of "
            "the run, without use.",
            change="scancel $SLURM_JOB_ID   # as the last line of the script",
            cost=Cost(core_hours=1240.0, gpu_hours=38.0),
            evidence=Evidence(
                series=("cpu.time", "gpu.*.utilization"),
                since=idle,
                until=end,
                programs=("/usr/bin/sleep",),
            ),
            figures={"idle.duration": "2 h 10 min", "idle.share": "38 %", "limit": "10 %"},
            explains=("cpu-idle",),
        ),
        Finding(
            kind="memory-request-unused",
            severity="warning",
            title="Most of the requested memory was not used",
            text="1.10 GiB of 16.0 GiB was used (6.9 %); Slurm's own figure is 1.02 GiB. A request "
            "of 2G would have held 39 of your last 40 runs.",
            change="#SBATCH --mem=2G",
            cost=Cost(memory_gb_hours=412.0),
            evidence=Evidence(
                series=("memory.used",),
                since=run.start + length // 5,
                until=run.start + length // 2,
            ),
            figures={"memory.share": "6.9 %", "memory.unused_time": "412 GB h", "low": "50 %"},
        ),
        Finding(
            kind="fork-storm",
            severity="info",
            title=f"Many short programs {HOSTILE[:25]}",
            text=f"1,200,000 executions of awk took 38 % of the CPU time. {HOSTILE}",
            cost=Cost(core_hours=2.5),
            evidence=Evidence(programs=(HOSTILE[:40], "/usr/bin/awk", "/bin/sh", "/bin/cat")),
        ),
        Finding(
            kind="time-limit-far",
            severity="info",
            title="The time limit was far above the elapsed time",
            text="The run took 12 % of its limit.",
            change="#SBATCH --time=02:00:00",
        ),
    ]


def add(store: Store, run: StoredRun, count: int = 4) -> None:
    """Store them; the last one gets a reply."""
    rows = [to_row(each) for each in findings(run)[:count]]
    store_judged(store.database, [judged(run, *rows)], NOW)
    if count == 4:
        set_reply(store.database, run.id, "time-limit-far", "acknowledged", "anna", NOW)
