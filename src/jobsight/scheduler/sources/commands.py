"""Slurm's commands: run without a shell, with a time limit, and with text that cannot lie.

Slurm's commands on another host, over OpenSSH, whose key must be known beforehand.
"""

from __future__ import annotations

import codecs
import itertools
import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, Protocol

from jobsight.config.settings import SshSettings
from jobsight.model import SECOND
from jobsight.scheduler.records import AdaptError, SourceError

#: Times mean the same whatever zone the cluster is in; messages can be read.
_ENVIRONMENT = {"TZ": "UTC", "LC_ALL": "C.UTF-8"}
_CHUNK = 1 << 18
#: Users set these for themselves; here they would change which columns and rows come.
_FOREIGN = ("SACCT_", "SQUEUE_", "SINFO_", "SLURM_BITSTR_LEN", "SLURM_CLUSTERS")


class Runner(Protocol):
    """Runs a command and gives what it wrote; :class:`SourceError` where it did not answer."""

    def __call__(self, command: Sequence[str], timeout: float) -> bytes: ...


class StreamRunner(Protocol):
    """The same, piece by piece while it comes; the time limit is one for the command's silence.

    What is given stands on the command's standard input.
    """

    def __call__(
        self, command: Sequence[str], timeout: float, *, given: bytes = b""
    ) -> Iterable[bytes]: ...


def run_command(
    command: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None
) -> bytes:
    """Run a command on this machine."""
    return b"".join(stream_command(command, timeout, environment))


def stream_command(
    command: Sequence[str],
    timeout: float,
    environment: Mapping[str, str] | None = None,
    given: bytes = b"",
) -> Iterator[bytes]:
    """Run a command on this machine, and end it when nobody reads on."""
    found = os.environ if environment is None else environment
    variables = {name: value for name, value in found.items() if not name.startswith(_FOREIGN)}
    with _file("complaint") as complaint, _file("given", given) as standard_input:
        try:
            process = subprocess.Popen(
                list(command),
                stdin=standard_input,
                stdout=subprocess.PIPE,
                # A file: a pipe that nobody empties would stop the command.
                stderr=complaint,
                env=variables | command_environment(command),
                # Whatever it starts ends with it.
                start_new_session=True,
            )
        except OSError as error:
            raise SourceError(f"{command[0]} cannot be run: {error.strerror}") from None
        with process:
            try:
                yield from _output(process, command[0], timeout)
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                raise _silent(command[0], timeout) from None
            finally:
                _kill(process)
        if process.returncode != 0:
            complaint.seek(0)
            said = " ".join(complaint.read().decode("utf-8", "backslashreplace").split())[-300:]
            raise SourceError(
                f"{command[0]} failed with {process.returncode}: {said or 'no word why'}"
            )


def _output(process: subprocess.Popen[bytes], name: str, timeout: float) -> Iterator[bytes]:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(timeout):
            chunk = os.read(process.stdout.fileno(), _CHUNK)
            if not chunk:
                return
            yield chunk
    raise _silent(name, timeout)


def _silent(name: str, timeout: float) -> SourceError:
    return SourceError(f"{name} gave no answer within {timeout:g} s")


def _file(name: str, content: bytes = b"") -> BinaryIO:
    """A file without a name, at its beginning."""
    opened = os.fdopen(os.memfd_create(name), "r+b")
    opened.write(content)
    opened.seek(0)
    return opened


def command_environment(command: Sequence[str]) -> dict[str, str]:
    """What a command of Slurm needs to answer so that it can be read.

    Times are seconds since 1970 in text. In JSON they are that anyway, and 22.05's sacct --json
    hands its own options on in this format and cannot read seconds then.
    """
    return _ENVIRONMENT | {"SLURM_TIME_FORMAT": "standard" if "--json" in command else "%s"}


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is not None:
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def window_options(since: int, until: int) -> list[str]:
    """sacct's options for what lay between two times; it runs with the zone UTC."""
    return [f"--starttime={_iso(since // SECOND)}", f"--endtime={_iso(-(-until // SECOND))}"]


def _iso(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def new_delimiter() -> str:
    """A separator that nobody can put into a name, because nobody can guess it."""
    return f"~{os.urandom(12).hex()}~"


def split_records(output: bytes, mark: str, width: int, what: str) -> list[list[str]]:
    """The rows of a short output."""
    return list(iterate_records([output], mark, width, what))


def iterate_records(
    chunks: Iterable[bytes], mark: str, width: int, what: str
) -> Iterator[list[str]]:
    r"""Rows of ``width`` fields, each field closed by the mark; a newline stands between rows.

    Rows are counted fields, not lines: names may hold newlines. Bytes that are no UTF-8 become
    ``\xNN``.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    fields: list[str] = []
    rest, first = "", True
    for chunk in itertools.chain(chunks, [None]):
        text = rest + decoder.decode(chunk or b"", final=chunk is None)
        *found, rest = text.split(mark)
        fields += found
        whole = len(fields) - len(fields) % width
        for place in range(0, whole, width):
            row = fields[place : place + width]
            if not first:
                if not row[0].startswith("\n"):
                    raise AdaptError(f"{what} gave rows that do not end where they should")
                row[0] = row[0][1:]
            first = False
            yield row
        del fields[:whole]
    if rest.strip() or fields:
        raise AdaptError(
            f"{what} ended with {len(fields)} fields and {len(rest)} characters, which are not a "
            f"row of {width}; its columns have changed"
        )


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
        f"{name}={shlex.quote(value)}" for name, value in command_environment(command).items()
    )
    return f"{kept} {set_there} {shlex.join(command)}"
