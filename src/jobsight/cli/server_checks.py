"""Checks of ``jobsight doctor`` on the server's host: store, health, Slurm, sinks, mail, archive.

They use the server's settings and packages. A running server reports its health; what it
reports as unhealthy is a fault with the reason and what to do.
"""

from __future__ import annotations

import os
import pwd
import smtplib
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from jobsight.cli.checks import Check, Verdict
from jobsight.config import paths
from jobsight.config.settings import Settings
from jobsight.errors import JobsightError
from jobsight.transport.http import Peer, request
from jobsight.transport.running_server import RunningServer, read_running_server, read_token
from jobsight.transport.tls import ClientTls, certificate_end
from jobsight.util.decoding import decode_json_as
from jobsight.util.urls import without_credentials

_TIMEOUT: Final = 10.0
_DAYS_BEFORE: Final = 14


def server_checks(settings: Settings) -> list[Check]:
    """Everything that the settings of this server name."""
    checks: list[Check] = []
    for check in (_store, _certificate, _running, _sources, _sinks, _mail, _archive):
        try:
            checks += check(settings)
        except ModuleNotFoundError as error:
            checks.append(
                Check(
                    check.__name__.strip("_"),
                    "missing",
                    f"needs the package {error.name}",
                    "this host has the agent's packages only",
                    "install jobsight[server] here, or run this on the server's host",
                )
            )
        except JobsightError as error:
            checks.append(Check(check.__name__.strip("_"), "fault", str(error), ""))
    return checks


def _store(settings: Settings) -> list[Check]:
    location = settings.store.location
    if "://" not in location and not Path(location).exists():
        return [
            Check(
                "store",
                "missing",
                f"{location} does not exist",
                "the server creates it at its first start",
                "systemctl start jobsight-server",
            )
        ]
    from jobsight.store.store import Store

    try:
        with Store.open(location) as store:
            where = store.database.where
            with store.database.query() as transaction:
                transaction.execute("SELECT 1").fetchone()
    except JobsightError as error:
        todo = "journalctl -u jobsight-server; `jobsight store check` names what is damaged"
        if os.geteuid() != 0 and isinstance(error.__context__, PermissionError):
            todo = "run `jobsight doctor` as root or as the user jobsight"
        return [Check("store", "fault", str(error), "nothing can be stored or shown", todo)]
    return [Check("store", "good", f"{where} can be read", "")]


def _certificate(settings: Settings) -> list[Check]:
    name = settings.server.tls_certificate
    if name is None:
        return []
    end = certificate_end(Path(name).expanduser())
    command = "`jobsight ca renew NAME`, or renew it as your site does; the server reloads it"
    if end is None:
        found = f"server.tls_certificate: {name} is no certificate (PEM) that can be read"
        return [Check("certificate", "fault", found, "agents cannot connect", command)]
    days = (end - time.time()) / 86400
    day = time.strftime("%Y-%m-%d", time.gmtime(end))
    if days < _DAYS_BEFORE:
        verdict: Verdict = "fault" if days < 0 else "partly"
        return [
            Check("certificate", verdict, f"{name} ends on {day}", "agents refuse it then", command)
        ]
    return [Check("certificate", "good", f"{name} is valid until {day}", "")]


def _running(settings: Settings) -> list[Check]:
    record = read_running_server(paths.server_file(settings.store.location))
    if record is None:
        return [
            Check(
                "server",
                "missing",
                "no server of this store runs here",
                "agents keep their batches",
                "systemctl start jobsight-server; journalctl -u jobsight-server",
            )
        ]
    try:
        health = decode_json_as(dict[str, Any], fetch(record, "/api/v1/health"))
    except (OSError, JobsightError, msgspec.DecodeError) as error:
        return [
            Check(
                "server",
                "fault",
                f"{record.url} does not tell its health: {error}",
                "",
                "journalctl -u jobsight-server",
            )
        ]
    if health.get("healthy"):
        return [Check("server", "good", f"{record.url} runs and every part of it is healthy", "")]
    checks = [Check("server", "partly", f"{record.url} runs, not every part of it is healthy", "")]
    return checks + [_unhealthy(*part) for part in _parts(health)]


def fetch(record: RunningServer, path: str) -> bytes:
    """What a running server of this host answers at a path."""
    token = read_token(Path(record.token_file))
    parts = urlsplit(record.url)
    wrap = None
    if record.certificate is not None:
        wrap = ClientTls(record.certificate, pinned=True).wrapping(parts.hostname or "")
    reply = request(
        Peer(parts.hostname or "", parts.port or 80, wrap),
        "GET",
        path,
        {"Authorization": f"Bearer {token}"},
        b"",
        timeout=_TIMEOUT,
    )
    if reply.status != 200:
        raise JobsightError(f"it answered {reply.status}")
    return reply.body


def _parts(health: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Kind, name and state of the parts that are not healthy."""
    for kind, key in (("clusters", "cluster"), ("sinks", "sink"), ("workers", "worker")):
        for part in health.get(kind, []):
            if not part.get("healthy"):
                yield key, str(part.get(key, "")), part
    ingest = health.get("ingest")
    if ingest and not ingest.get("healthy"):
        yield "ingest", "", ingest


def _unhealthy(kind: str, name: str, part: dict[str, Any]) -> Check:
    todo = {
        "cluster": "jobsight scrape --once; jobsight store dead-letters",
        "sink": "mend its address or password in the settings (sinks)",
        "ingest": "df -h; journalctl -u jobsight-server",
    }.get(kind, "journalctl -u jobsight-server")
    if part.get("state") == "ended":
        todo = "systemctl restart jobsight-server"
    return Check(f"{kind} {name}".strip(), "fault", str(part.get("reason", "")), "", todo)


def _sources(settings: Settings) -> list[Check]:
    """Whether Slurm answers as the scraper asks it."""
    scraped = [each for each in settings.each_cluster() if each.scheduler.interval]
    if not scraped:
        return [
            Check(
                "scrape",
                "missing",
                "scheduler.interval is 0: Slurm is not queried",
                "jobs have no user, limits or state of Slurm",
                "set scheduler.interval = 60",
            )
        ]
    from jobsight.scheduler.sources.base import open_source

    checks = []
    for each in scraped:
        name = f"scrape {each.cluster}".strip()
        try:
            choice = open_source(each)
            checks.append(Check(name, "good", choice.reason, ""))
            checks += _private_data(each)
        except JobsightError as error:
            checks.append(
                Check(name, "fault", str(error), "jobs of it stay as the nodes know them",
                      "jobsight scrape --once shows every step")
            )  # fmt: skip
    return checks


def _private_data(settings: Settings) -> list[Check]:
    """Whether the user of a server on a host with Slurm's commands sees the jobs of others."""
    from jobsight.scheduler.private_data import hidden_from
    from jobsight.scheduler.records import SchedulerError
    from jobsight.scheduler.sources.commands import local_runner

    scheduler = settings.scheduler
    if scheduler.ssh.host or scheduler.source not in ("auto", "json", "text"):
        return []
    user = _user_of(settings)
    try:
        hidden = hidden_from(user, local_runner(scheduler.slurm_directory), scheduler.timeout)
    except SchedulerError:
        # Slurm answers through another way, such as slurmrestd.
        return []
    if not hidden:
        return []
    return [
        Check(
            "PrivateData",
            "fault",
            f"{','.join(hidden)} of others is hidden from {user}, who runs the server",
            "Slurm shows no job to the server",
            f"sacctmgr --immediate add user {user} account=root adminlevel=Operator",
        )
    ]


def _user_of(settings: Settings) -> str:
    """Who runs the server: the owner of its store, else the user of its unit."""
    location = settings.store.location
    try:
        if "://" not in location:
            return pwd.getpwuid(Path(location).stat().st_uid).pw_name
    except (OSError, KeyError):
        pass
    return "jobsight"


def _sinks(settings: Settings) -> list[Check]:
    from jobsight.scheduler.sinks.feeder import open_sinks

    checks = []
    for sink in open_sinks(settings.sinks):
        try:
            sink.prepare()
            checks.append(Check(f"sink {sink.name}", "good", "accepts documents", ""))
        except JobsightError as error:
            checks.append(
                Check(f"sink {sink.name}", "fault", str(error), "it resumes at its checkpoint",
                      f"mend sinks.{sink.name} in the settings")
            )  # fmt: skip
        finally:
            sink.close()
    return checks


def _mail(settings: Settings) -> list[Check]:
    mail = settings.mail
    if not mail.interval:
        return []
    where = f"{mail.host}:{mail.port}"
    try:
        if mail.tls == "tls":
            context = ssl.create_default_context(cafile=mail.certificates)
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                mail.host, mail.port, timeout=_TIMEOUT, context=context
            )
        else:
            server = smtplib.SMTP(mail.host, mail.port, timeout=_TIMEOUT)
        with server:
            server.ehlo_or_helo_if_needed()
            if mail.tls == "starttls":
                server.starttls(context=ssl.create_default_context(cafile=mail.certificates))
            server.noop()
    except (OSError, smtplib.SMTPException) as error:
        return [
            Check("mail", "fault", f"{where}: {error}", "mails wait in the queue",
                  "mend mail.host, mail.port and mail.tls")
        ]  # fmt: skip
    checks = [Check("mail", "good", f"{where} answers", "")]
    queue = Path(mail.queue)
    if not os.access(queue, os.W_OK | os.X_OK):
        checks.append(
            Check("mail queue", "fault", f"{queue} cannot be written", "mails are not queued",
                  f"install -d -m 0770 -o jobsight -g slurm {queue}")
        )  # fmt: skip
    return checks


def _archive(settings: Settings) -> list[Check]:
    archive = settings.archive
    if archive.location is None:
        return []
    from jobsight.archive.storage import open_storage

    try:
        open_storage(archive).prepare()
    except JobsightError as error:
        return [
            Check("archive", "fault", str(error), "runs are not archived",
                  "mend archive.location and archive.s3")
        ]  # fmt: skip
    return [Check("archive", "good", without_credentials(archive.location), "")]
