"""A site whose slurmctld sends mails by `jobsight mail`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from jobsight.mail.queue import MailQueue
from tests.bed import Cluster
from tests.ports import free_port
from tests.slurm.conftest import write_hook
from tests.slurm.site import REPOSITORY, Site


class MailSite(Site):
    """A site whose slurmctld sends mails by `jobsight mail`."""

    queue: MailQueue
    smtp_port: int
    #: The CPU times of the calls of the command, each in a file.
    times: Path

    def calls(self) -> list[float]:
        """Seconds of CPU time of each call of the command that has ended."""
        found = []
        for file in self.times.glob("*.times"):
            # The shell's line and that of its children, each with user and system time.
            minutes = re.findall(r"(\d+)m([\d.]+)s", file.read_text())
            if len(minutes) == 4:
                found.append(sum(60 * int(each[0]) + float(each[1]) for each in minutes))
        return found

    def forget_calls(self) -> None:
        for file in self.times.glob("*.times"):
            file.unlink()

    def errors(self) -> str:
        """What the calls have said."""
        return (self.times / "errors").read_text()

    def mail_reason(self) -> str:
        """Why the server sends no mails."""
        workers = self.get("/api/v1/health")["workers"]
        return str(next(each["reason"] for each in workers if each["worker"] == "mail"))

    def drained(self) -> bool:
        """Whether the controller has no job that has not ended."""
        return not self.cluster.run(["squeue", "--noheader"]).stdout.strip()


@contextmanager
def mail_site(
    folder: Path, prefix: str, mail: str = "", extra: tuple[str, ...] = (), **choices: Any
) -> Iterator[MailSite]:
    """A site in a directory. ``mail`` are more settings of its mails, as TOML; ``extra`` and
    ``choices`` those of its Slurm."""
    # slurmctld's user enters it, which it may not with pytest's directories.
    place = Path(tempfile.mkdtemp(prefix="jobsight-mail-"))
    try:
        place.chmod(0o755)
        for name in ("queue", "times"):
            (place / name).mkdir()
            shutil.chown(place / name, "slurm", "slurm")
        program = place / "mail"
        program.write_text(
            "#!/bin/sh\n"
            f'{sys.executable} -m jobsight.cli.main mail --queue {place}/queue "$@" '
            f"2>>{place}/times/errors\n"
            f"times >{place}/times/$$.new; mv {place}/times/$$.new {place}/times/$$.times\n"
        )
        program.chmod(0o755)
        check = [sys.executable, "-c", "import jobsight.cli.mail"]
        if subprocess.run(check, user="slurm", cwd="/", env={}, check=False).returncode:
            pytest.skip(f"the user slurm may not read {REPOSITORY}")
        folder.chmod(0o755)
        hooks = {name: str(write_hook(folder, name)) for name in ("prolog", "epilog")}
        (folder / "site").mkdir()
        extra = (f"MailProg={program}", *extra)
        with Cluster.unused(prefix, extra=extra, **hooks, **choices) as cluster:
            made = MailSite(cluster, folder / "site")
            made.queue, made.smtp_port = MailQueue(place / "queue"), free_port()
            made.times = place / "times"
            made.server_more = (
                f'[mail]\nqueue = "{place}/queue"\ninterval = 0.5\nport = {made.smtp_port}\n'
                f'domain = "example.org"\nsender = "jobs@example.org"\n{mail}'
            )
            with made:
                yield made
    finally:
        shutil.rmtree(place)


def plain_of(message: EmailMessage) -> str:
    body = message.get_body(("plain",))
    assert body is not None
    return " ".join(body.get_content().split())


def subject_of(message: EmailMessage) -> str:
    return " ".join(message["Subject"].split())
