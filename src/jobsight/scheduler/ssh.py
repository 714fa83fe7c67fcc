"""Slurm's commands on another host, over OpenSSH, whose key must be known beforehand."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from jobsight.config.settings import SshSettings
from jobsight.scheduler.commands import question_environment, stream_command
from jobsight.scheduler.errors import SourceError

#: What ssh itself exits with, whatever the command there would.
_SSH_FAILED = "failed with 255"


class SshRunner:
    """Runs commands there as :func:`stream_command` does here."""

    def __init__(self, settings: SshSettings) -> None:
        assert settings.host is not None
        self._settings = settings
        self._host = settings.host

    def __call__(
        self, command: Sequence[str], timeout: float, given: bytes = b""
    ) -> Iterator[bytes]:
        try:
            yield from stream_command(self._command(command, timeout), timeout, given=given)
        except SourceError as error:
            raise self._explained(error, command[0]) from None

    def _command(self, command: Sequence[str], timeout: float) -> list[str]:
        settings = self._settings
        options = {
            # Nobody is there to type a password or to look at a fingerprint.
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "ConnectTimeout": str(max(1, round(timeout))),
            "ServerAliveInterval": "15",
            "ClearAllForwardings": "yes",
        }
        if settings.known_hosts:
            options["UserKnownHostsFile"] = settings.known_hosts
            options["GlobalKnownHostsFile"] = "/dev/null"
        if settings.key_file:
            options["IdentitiesOnly"] = "yes"
        words = ["ssh", "-T", "-p", str(settings.port)]
        words += [f"-o{name}={value}" for name, value in options.items()]
        if settings.key_file:
            words += ["-i", settings.key_file]
        if settings.user:
            words += ["-l", settings.user]
        return [*words, "--", self._host, _remote(command)]

    def _explained(self, error: SourceError, name: str) -> SourceError:
        text = str(error)
        if _SSH_FAILED not in text:
            # The command there was run; its own words say what was wrong.
            return SourceError(f"{name} on {self._host}: {text.removeprefix('ssh ')}")
        if "Host key verification failed" in text or "host key is known" in text:
            where = self._settings.known_hosts or "the known_hosts file of this user"
            return SourceError(
                f"the key of {self._host} is not the one in {where}, or none stands there; "
                "unknown hosts are refused: put the host's key into it"
            )
        return SourceError(f"{self._host} cannot be reached: {text}")


def _remote(command: Sequence[str]) -> str:
    """One line for the shell there. Variables that change Slurm's answers are left behind."""
    kept = 'env -i PATH="$PATH" HOME="$HOME" ${SLURM_CONF:+SLURM_CONF="$SLURM_CONF"}'
    set_there = " ".join(
        f"{name}={shlex.quote(value)}" for name, value in question_environment(command).items()
    )
    return f"{kept} {set_there} {shlex.join(command)}"
