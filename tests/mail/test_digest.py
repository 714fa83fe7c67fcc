"""Digests: who gets one, once, and only if they are turned on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from jobsight.cli.main import main
from jobsight.config.settings import MailSettings
from jobsight.mail.digest import DigestSchedule, last_period
from jobsight.mail.queue import MailQueue
from jobsight.mail.worker import MailWorker
from jobsight.model import SECOND
from jobsight.software.rules import RuleSet
from jobsight.software.worker import update
from jobsight.store.rollups.usage import number_of
from jobsight.store.store import Store
from tests.web import sample

WEEK = 7 * 86_400 * SECOND


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        sample.fill(opened)
        update(opened, RuleSet([]))
        yield opened


@pytest.mark.parametrize(
    ("day", "weekly", "monthly"),
    [
        ("2026-11-18", ("2026-11-09", "2026-11-16"), ("2026-10-01", "2026-11-01")),
        ("2026-11-16", ("2026-11-09", "2026-11-16"), ("2026-10-01", "2026-11-01")),
        ("2027-01-01", ("2026-12-21", "2026-12-28"), ("2026-12-01", "2027-01-01")),
    ],
)
def test_the_last_complete_period(
    day: str, weekly: tuple[str, str], monthly: tuple[str, str]
) -> None:
    now = number_of(date.fromisoformat(day)) * 86_400 * SECOND + 5
    for frequency, days in (("weekly", weekly), ("monthly", monthly)):
        found = last_period(frequency, now)  # type: ignore[arg-type]
        assert found == tuple(number_of(date.fromisoformat(each)) for each in days)


def test_digests_are_queued_once_and_only_if_turned_on(store: Store, tmp_path: Path) -> None:
    queue = MailQueue(tmp_path / "queue")
    queue.directory.mkdir()
    settings = MailSettings(
        queue=str(queue.directory),
        domain="example.org",
        working_days=["mon", "tue", "wed", "thu", "fri", "sat", "sun"],
    )
    now = sample.NOW

    def once() -> int:
        return DigestSchedule(store, queue, settings, lambda: now).once()

    assert once() == 0
    settings.digest = "weekly"
    # The period in which they were turned on is the first.
    assert once() == 0
    now += WEEK
    assert once() == 0
    assert queue.requests() == []
    settings.digest_dry_run = False
    assert once() == 0
    settings.digest = "monthly"
    assert once() == 0
    now += 5 * WEEK
    # `<b>mallory</b>` is not an address.
    assert once() == 3
    assert once() == 0
    assert {mail.request.to for mail in queue.requests()} == {"ada", "emmy", "grace"}
    sent = []

    class Recorder:
        def __init__(self, _: MailSettings) -> None:
            pass

        def __enter__(self) -> Recorder:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def send(self, message: object, to: str) -> None:
            sent.append((to, str(message)))

    worker = MailWorker(store, settings, clock=lambda: now, sender=Recorder)  # type: ignore[arg-type]
    assert worker.once().sent == 3
    to, text = min(sent)
    assert to == "ada@example.org"
    assert "Subject: Your jobs, 2026-11-01 to 2026-11-30" in text
    assert "User ada" in text


def test_the_command_sends_nothing(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--store", str(tmp_path / "store.db")]
    assert main(["mail", "digest", *place]) == 2
    assert main(["mail", "digest", "--dry-run", *place]) == 0
    assert "would be sent" in capsys.readouterr().out
    assert (
        main(["mail", "digest", "--dry-run", "--user", "ada", "--period", "monthly", *place]) == 0
    )
    shown = capsys.readouterr().out
    assert "To: ada" in shown
    assert "Subject: Your jobs, " in shown
