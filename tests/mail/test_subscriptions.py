"""Unsubscribing by signed link and one click, pauses by cause, the log, and digests of accounts."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from jobsight.cli.main import main
from jobsight.config.settings import MailSettings
from jobsight.errors import ConfigError
from jobsight.findings.finding import Cost, Finding
from jobsight.findings.stored import to_row
from jobsight.mail.digest import DigestSchedule, last_period
from jobsight.mail.message import About, Links, build_message
from jobsight.mail.queue import MailQueue
from jobsight.mail.request import MailRequest
from jobsight.mail.subscriptions import Subscriptions, read_key
from jobsight.mail.worker import MailWorker
from jobsight.mail.working_days import next_working_day
from jobsight.model import SECOND
from jobsight.server.app import create_app
from jobsight.software.rules import RuleSet
from jobsight.software.worker import update
from jobsight.store.accounts.coordinators import record_coordinators
from jobsight.store.findings.shown import Shown, record_shown, was_shown
from jobsight.store.findings.write import store_judged
from jobsight.store.mail import (
    Pause,
    list_pauses,
    pause_mail,
    paused_causes,
    read_mail_log,
)
from jobsight.store.rollups.usage import date_of, day_of
from jobsight.store.store import Store
from tests.mail.test_mail import mailbox, port_of, smtp  # noqa: F401 -- fixtures
from tests.store.findings.sample import judged
from tests.web import sample

DAY = 86_400 * SECOND
NOW = sample.NOW
URL = "https://jobs.example.org"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        sample.fill(opened)
        update(opened, RuleSet([]))
        yield opened


@pytest.fixture
def settings(tmp_path: Path) -> MailSettings:
    (tmp_path / "queue").mkdir()
    return MailSettings(queue=str(tmp_path / "queue"), domain="example.org", url=URL)


@pytest.fixture
def client(store: Store, settings: MailSettings) -> TestClient:
    app = create_app(store, "t" * 32, subscriptions=Subscriptions.of(settings), delay=0)
    return TestClient(app, base_url="http://127.0.0.1:8080")


def query_of(links: Links | None, everything: bool = False) -> str:
    assert links is not None
    address = links.everything if everything else links.kind
    assert address.startswith(f"{URL}/unsubscribe?")
    return urlsplit(address).query


def test_a_link_needs_no_sign_in_and_a_button(
    client: TestClient, store: Store, settings: MailSettings
) -> None:
    query = query_of(Subscriptions.of(settings).links("ada@example.org", "digest"))
    shown = client.get(f"/unsubscribe?{query}")
    assert shown.status_code == 200
    assert "ada@example.org" in shown.text
    assert "gets digests of your jobs" in " ".join(shown.text.split())
    # A program that opens links changes nothing.
    assert paused_causes(store.database, "ada@example.org", NOW) == frozenset()
    done = client.post(f"/unsubscribe?{query}", data={"List-Unsubscribe": "One-Click"})
    assert done.status_code == 200
    assert "You are unsubscribed" in done.text
    assert paused_causes(store.database, "ada@example.org", NOW) == {"digest"}
    again = client.post(f"/unsubscribe?{query}", data={"action": "resume"})
    assert "subscribed again" in again.text
    assert paused_causes(store.database, "ada@example.org", NOW) == frozenset()


@pytest.mark.parametrize(
    ("name", "value"),
    [("s", "x"), ("s", ""), ("a", "bob@example.org"), ("k", "all"), ("k", "jobs"), ("k", "x" * 99)],
)
def test_a_forged_link_is_not_found(
    client: TestClient, store: Store, settings: MailSettings, name: str, value: str
) -> None:
    query = parse_qs(query_of(Subscriptions.of(settings).links("ada@example.org", "digest")))
    forged = {**{key: values[0] for key, values in query.items()}, name: value}
    for reply in (
        client.get("/unsubscribe", params=forged),
        client.post("/unsubscribe", params=forged),
    ):
        assert reply.status_code == 404
        assert "not valid" in reply.text
    assert list_pauses(store.database, NOW) == []


def test_requests_are_limited(client: TestClient) -> None:
    codes = [client.get("/unsubscribe?a=a&k=all&s=x").status_code for _ in range(40)]
    assert codes[0] == 404
    assert codes[-1] == 429


def test_without_mail_there_is_no_page(store: Store) -> None:
    client = TestClient(create_app(store, "t" * 32, delay=0), base_url="http://127.0.0.1:8080")
    assert client.get("/unsubscribe").status_code == 404


def test_the_key_is_created_once_and_is_secret(settings: MailSettings, tmp_path: Path) -> None:
    first = read_key(settings)
    file = tmp_path / "queue" / "unsubscribe.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_key(settings) == first
    file.write_text("short")
    with pytest.raises(ConfigError, match="at least 32"):
        read_key(settings)


@given(st.text(max_size=60), st.sampled_from(["jobs", "digest", "all"]), st.text(max_size=60))
def test_only_its_own_signature_is_accepted(recipient: str, kind: str, signature: str) -> None:
    links = Subscriptions(MailSettings(), b"k" * 32)
    recipient = recipient.encode("utf-8", "replace").decode()
    expected = links.sign(recipient, kind)
    assert links.is_signed(recipient, kind, expected)
    assert links.is_signed(recipient, kind, signature) == (signature == expected)
    assert not links.is_signed(recipient + "x", kind, expected)


def test_a_mail_has_the_headers_of_one_click(settings: MailSettings) -> None:
    request = MailRequest(to="ada", subject="Slurm Job_id=1 Name=x Ended", created=1)
    links = Subscriptions.of(settings).links("ada@example.org", "jobs")
    message = build_message(settings, "n", [request], About(), links)
    assert links is not None
    assert message["List-Unsubscribe"] == f"<{links.kind}>"
    assert message["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    assert links.everything in message.get_content()
    plain = build_message(settings, "n", [request], About())
    assert plain["List-Unsubscribe"] is None


def schedule(store: Store, settings: MailSettings, now: int) -> int:
    queue = MailQueue(Path(settings.queue))
    return DigestSchedule(store, queue, settings, lambda: now).once()


def monday(now: int) -> int:
    """The Monday after a time, so that the week of the time is complete."""
    return now + (7 - date_of(day_of(now)).weekday()) * DAY


def test_digests_wait_for_a_working_day_and_skip_who_paused(
    store: Store, settings: MailSettings
) -> None:
    settings.digest, settings.digest_dry_run = "weekly", False
    assert schedule(store, settings, NOW) == 0
    day = monday(NOW)
    settings.holidays = [date_of(day_of(day)).isoformat()]
    assert schedule(store, settings, day) == 0
    pause_mail(store.database, Pause("ada@example.org", "all", None, "test", NOW))
    pause_mail(store.database, Pause("emmy@example.org", "digest", day, "it has ended", NOW))
    assert schedule(store, settings, day + DAY) == 2
    assert schedule(store, settings, day + DAY) == 0
    queued = MailQueue(Path(settings.queue)).requests()
    assert {mail.request.to for mail in queued} == {"emmy", "grace"}
    logged = read_mail_log(store.database, 0)
    skipped = {each.recipient: each.reason for each in logged if each.outcome == "skipped"}
    assert skipped["ada@example.org"] == "paused"
    assert any("not an address" in reason for reason in skipped.values())


def test_a_dry_run_records_what_would_be_sent(store: Store, settings: MailSettings) -> None:
    settings.digest = "weekly"
    schedule(store, settings, NOW)
    assert schedule(store, settings, monday(NOW)) == 0
    assert MailQueue(Path(settings.queue)).requests() == []
    logged = {each.recipient for each in read_mail_log(store.database, 0)
              if each.outcome == "would be sent"}  # fmt: skip
    assert logged == {"ada@example.org", "emmy@example.org", "grace@example.org"}


def test_a_paused_mail_about_a_job_is_not_sent(
    store: Store,
    settings: MailSettings,
    smtp: object,  # noqa: F811
    mailbox: object,  # noqa: F811
) -> None:
    settings.port = port_of(smtp)  # type: ignore[arg-type]
    pause_mail(store.database, Pause("ada@example.org", "jobs", None, "test", NOW))
    queue = MailQueue(Path(settings.queue))
    for to in ("ada", "Bob"):
        queue.put(MailRequest(to=to, subject="Slurm Job_id=7 Name=x Began", created=NOW))
    worker = MailWorker(store, settings, clock=lambda: NOW + DAY)
    assert worker.once().sent == 1
    assert queue.requests() == []
    (message,) = mailbox.received  # type: ignore[attr-defined]
    assert message["To"] == "Bob@example.org"
    assert message["List-Unsubscribe"].startswith(f"<{URL}/unsubscribe?")
    counted = {each.outcome: each.mails for each in read_mail_log(store.database, 0)}
    assert counted == {"sent": 1, "skipped": 1}
    assert all(each.recipient == "" for each in read_mail_log(store.database, 0))


def add_finding(store: Store, user: str) -> tuple[int, str]:
    """A finding of a run of a user, in physics."""
    run = next(run for run in store.runs(limit=100, user=user) if run.info.account)
    found = Finding(
        kind="memory-request-unused",
        severity="warning",
        title="Memory is not used",
        text=f"4 GiB of 64 GiB of /home/{user} was used.",
        change="#SBATCH --mem=5G",
        cost=Cost(memory_gb_hours=50.0),
    )
    store_judged(store.database, [judged(run, to_row(found))], run.start)
    return run.id, str(run.run)


def test_coordinators_see_members_only_with_what_they_have_seen(
    store: Store,
    settings: MailSettings,
    smtp: object,  # noqa: F811
    mailbox: object,  # noqa: F811
) -> None:
    settings.port = port_of(smtp)  # type: ignore[arg-type]
    run_id, run = add_finding(store, "ada")
    account = store.run_by_id(run_id).info.account or ""  # type: ignore[union-attr]
    settings.account_digest, settings.digest_dry_run = "weekly", False
    record_coordinators(store.database, "c", [(account, "grace"), (account, "gone")], NOW - DAY)
    record_coordinators(store.database, "c", [(account, "grace")], NOW)
    settings.account_recipients = {account: ["grace"], "other": ["bob"]}
    schedule(store, settings, NOW)
    assert schedule(store, settings, monday(NOW)) == 1
    queue = MailQueue(Path(settings.queue))
    (queued,) = queue.requests()
    worker = MailWorker(store, settings, clock=lambda: monday(NOW))
    assert worker.once().sent == 1
    first = mailbox.received[0].get_body(("plain",)).get_content()  # type: ignore[attr-defined]
    assert f"Account {account}" in first
    assert "Memory is not used" in first
    assert "has not been shown it yet" in first
    assert "/home/ada" not in first
    assert not was_shown(store.database, run, "memory-request-unused", "ada")
    shown = {Shown(run_id, "memory-request-unused", "ada", "page"): 1}
    record_shown(store.database, shown, NOW)
    queue.put(queued.request)
    assert worker.once().sent == 1
    second = mailbox.received[1].get_body(("plain",)).get_content()  # type: ignore[attr-defined]
    assert "of ada: 4 GiB of 64 GiB of /home/ada" in " ".join(second.split())


def test_a_paused_cause_is_not_in_the_digest_and_what_was_mailed_is_shown(
    store: Store,
    settings: MailSettings,
    smtp: object,  # noqa: F811
    mailbox: object,  # noqa: F811
) -> None:
    settings.port = port_of(smtp)  # type: ignore[arg-type]
    _, run = add_finding(store, "ada")
    period = last_period("weekly", monday(NOW))
    request = MailRequest(
        to="ada", subject="x", created=NOW, digest=("ada", period.since, period.until)
    )
    queue = MailQueue(Path(settings.queue))
    worker = MailWorker(store, settings, clock=lambda: NOW)
    cause = "memory-request-unused"
    for recipient in ("", "ada@example.org"):
        pause_mail(store.database, Pause(recipient, cause, NOW + DAY, "test", NOW))
        queue.put(request)
        assert worker.once().sent == 1
        pause_mail(store.database, Pause(recipient, cause, NOW, "over", NOW))
    assert not was_shown(store.database, run, cause, "ada")
    queue.put(request)
    assert worker.once().sent == 1
    texts = [
        message.get_body(("plain",)).get_content()
        for message in mailbox.received  # type: ignore[attr-defined]
    ]
    assert ["#SBATCH --mem=5G" in text for text in texts] == [False, False, True]
    assert was_shown(store.database, run, cause, "ada")


def test_the_commands(
    store: Store, settings: MailSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "settings.toml"
    config.write_text('[mail]\ndomain = "example.org"\ndigest = "weekly"\n')
    place = ["--store", str(tmp_path / "store.db"), "--config", str(config)]
    assert main(["mail", "pauses", *place]) == 0
    assert "Nothing is paused." in capsys.readouterr().out
    assert main(["mail", "pause", "Ada", "digest", "--until", "30d", *place]) == 0
    assert main(["mail", "pause", "everybody", "fork-storm", "--reason", "known", *place]) == 0
    capsys.readouterr()
    assert main(["mail", "pauses", *place]) == 0
    listed = capsys.readouterr().out
    assert "ada@example.org" in listed
    assert "everybody" in listed
    assert "known" in listed
    assert main(["mail", "pauses", "--json", *place]) == 0
    assert len(msgspec.json.decode(capsys.readouterr().out)) == 2
    assert main(["mail", "resume", "ada", "digest", *place]) == 0
    assert main(["mail", "resume", "ada", "digest", *place]) == 1
    assert "not paused" in capsys.readouterr().err
    schedule(store, MailSettings(queue=settings.queue, digest="weekly", domain="x.org"), NOW)
    schedule(
        store, MailSettings(queue=settings.queue, digest="weekly", domain="x.org"), monday(NOW)
    )
    assert main(["mail", "calendar", "--since", "2020-01-01", *place]) == 0
    shown = capsys.readouterr().out
    assert "would be sent" in shown
    assert "Next: weekly digest of" in shown
    assert main(["mail", "calendar", "--json", *place]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["next"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["pause", "a b", "digest"], "not a user name"),
        (["pause", "ada", "what ever"], "not a cause"),
        (["pause", "ada", "digest", "--until", "soon"], "expected a number of days"),
        (["resume", "ada"], "CAUSE"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    store: Store, tmp_path: Path, arguments: list[str], text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert main(["mail", *arguments, "--store", str(tmp_path / "store.db")]) == 2
    assert text in capsys.readouterr().err


def test_there_may_be_no_working_day() -> None:
    assert next_working_day(MailSettings(working_days=[]), date_of(20_000)) is None
    with pytest.raises(ConfigError, match="not a date"):
        next_working_day(MailSettings(holidays=["soon"]), date_of(20_000))
