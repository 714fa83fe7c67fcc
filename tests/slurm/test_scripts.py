"""Batch scripts of a real Slurm: of a running job by scontrol, of one that is gone by sacct."""

import functools
from pathlib import Path

from jobsight.config.settings import SchedulerSettings, Settings, StoreSettings
from jobsight.scheduler.scraper import Scraper
from jobsight.scheduler.sources.base import open_source
from jobsight.scheduler.sources.commands import stream_command
from jobsight.scheduler.sources.scripts import ScriptReader
from jobsight.store.findings.works import find_script
from jobsight.store.history import script_of_run
from jobsight.store.store import Store
from jobsight.util.script_key import script_key
from tests.bed import Cluster
from tests.slurm.jobs import Gate
from tests.store.sample import find

ALICE = "jobsight-alice"


def test_the_script_of_a_job_is_stored(cluster: Cluster, tmp_path: Path) -> None:
    run = functools.partial(stream_command, environment=cluster.environment())
    location = str(tmp_path / "store.db")
    settings = Settings(
        cluster=cluster.settings.name,
        store=StoreSettings(location=location),
        scheduler=SchedulerSettings(source="text", scripts=True, keep_replies=0),
    )
    with Gate(cluster.settings.path()) as gate, Store.open(location) as store:
        job = cluster.submit(ALICE, gate.line, "--mem=50", "--output=/dev/null")
        cluster.wait(job, "RUNNING")
        scraper = Scraper(store, settings, choose=lambda each: open_source(each, run))
        assert scraper.once().reason == ""
        text = ScriptReader(run, 30)(job)
        assert text is not None
        assert gate.line in text
        key = script_of_run(store.database, find(store, str(job)).id)
        assert key == script_key(text)
        assert find_script(store.database, key) == text
    cluster.wait(job, "COMPLETED")

    def accounting_only(command, timeout, *, given=b""):  # type: ignore[no-untyped-def]
        if command[0] == "scontrol":
            command = ["false"]
        return run(command, timeout)

    from_accounting = ScriptReader(accounting_only, 30)(job)
    assert from_accounting is not None
    assert script_key(from_accounting) == key
