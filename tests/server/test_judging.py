"""A real server judges ended runs by itself, and says so in its health."""

from pathlib import Path

import httpx2
import pytest

from jobsight.config.settings import FindingsSettings, Settings, StoreSettings
from jobsight.server.serve import BackgroundServer
from jobsight.store.store import Store
from tests.cli.test_findings import HOUR, RULES
from tests.store.sample import START, info
from tests.waiting import wait_until

pytestmark = pytest.mark.server


def test_an_ended_run_gets_its_findings_and_a_changed_rule_is_applied(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    settings = Settings(
        store=StoreSettings(location=str(tmp_path / "store.db")),
        findings=FindingsSettings(rules=[str(rules)], shipped_rules=False, interval=0.1),
    )
    settings.server.port = 0
    with (
        Store.open(settings.store.location) as store,
        BackgroundServer(settings, store) as server,
        httpx2.Client(
            base_url=server.url, headers={"Authorization": f"Bearer {server.token}"}
        ) as client,
    ):

        def kinds() -> list[str]:
            found = client.get("/api/v1/jobs/1").json()["findings"]
            return [each["kind"] for each in found]

        def workers() -> dict[str, str]:
            found = client.get("/api/v1/health").json()["workers"]
            return {each["worker"]: each["reason"] for each in found}

        store.record_jobs([info(1, end=START + HOUR, state="COMPLETED", cpus=4)])
        wait_until(lambda: kinds() == ["site-short"])
        assert workers()["findings"] == ""
        rules.write_text("rules: [{nme: x}]\n")
        wait_until(lambda: "not loaded" in workers()["findings"])
        assert kinds() == ["site-short"]
        rules.write_text(RULES.replace("least: 2 h", "least: 1 min"))
        wait_until(lambda: kinds() == [])
        wait_until(lambda: workers()["findings"] == "")
