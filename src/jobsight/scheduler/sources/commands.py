"""Runs Slurm's commands, on this machine or on another by OpenSSH, and splits their output.

Commands run without a shell and with a timeout. The fields of their output end with a random
delimiter, so that no job name can pass for another field. Host keys of SSH must be known.
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
from functools import partial
from typing import BinaryIO, Protocol

from jobsight.config.settings import SshSettings
from jobsight.model import SECOND
from jobsight.scheduler.records import AdaptError, SourceError

#: Times in UTC whatever the zone of the cluster; messages in English; lists of pending array tasks
#: in full length.
_ENVIRONMENT = {"TZ": "UTC", "LC_ALL": "C.UTF-8", "SLURM_BITSTR_LEN": "0"}
_CHUNK = 1 << 18
#: Variables of users that would change the columns and rows of the output.
_IGNORED_VARIABLES = ("SACCT_", "SQUEUE_", "SINFO_", "SLURM_BITSTR_LEN", "SLURM_CLUSTERS")


class Runner(Protocol):
    """Runs a command and returns its output; raises :class:`SourceError` if it fails."""

    def __call__(self, command: Sequence[str], timeout: float) -> bytes: ...


class StreamRunner(Protocol):
    """The same while the output arrives; the timeout limits the time without output.

    ``given`` is the standard input of the command.
    """

    def __call__(
        self, command: Sequence[str], timeout: float, *, given: bytes = b""
    ) -> Iterable[bytes]: ...


def run_command(
    command: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None
) -> bytes:
    """Run a command on this machine."""
    return b"".join(stream_command(command, timeout, environment))


def path_environment(directory: str | None) -> Mapping[str, str] | None:
    """The environment in which the commands of a directory are found first; None without one."""
    if directory is None:
        return None
    return os.environ | {"PATH": f"{directory}:{os.environ.get('PATH', os.defpath)}"}


def local_runner(directory: str | None) -> StreamRunner:
    """Runs commands on this machine, Slurm's from that directory."""
    return partial(stream_command, environment=path_environment(directory))


def stream_command(
    command: Sequence[str],
    timeout: float,
    environment: Mapping[str, str] | None = None,
    given: bytes = b"",
) -> Iterator[bytes]:
    """Run a command on this machine, and kill it when the iteration is abandoned."""
    given_variables = os.environ if environment is None else environment
    variables = {
        name: value
        for name, value in given_variables.items()
        if not name.startswith(_IGNORED_VARIABLES)
    }
    with _file("stderr") as errors, _file("given", given) as standard_input:
        try:
            process = subprocess.Popen(
                list(command),
                stdin=standard_input,
                stdout=subprocess.PIPE,
                # A file: a pipe that is not read would block the command.
                stderr=errors,
                env=variables | command_environment(command),
                # The session is killed with the command, and so are its children.
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
            errors.seek(0)
            text = " ".join(errors.read().decode("utf-8", "backslashreplace").split())[-300:]
            raise SourceError(
                f"{command[0]} failed with {process.returncode}: {text or 'without a message'}"
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
    """An anonymous file, positioned at its beginning."""
    opened = os.fdopen(os.memfd_create(name), "r+b")
    opened.write(content)
    opened.seek(0)
    return opened


def command_environment(command: Sequence[str]) -> dict[str, str]:
    """The variables with which the output of a command can be parsed.

    Times in text are seconds since 1970. In JSON they always are, and sacct --json of 22.05 parses
    its own options in this format and fails with seconds.
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
    """sacct's options for the time between two times; it runs in UTC."""
    return [f"--starttime={_iso(since // SECOND)}", f"--endtime={_iso(-(-until // SECOND))}"]


def _iso(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def new_delimiter() -> str:
    """A random delimiter, which no user can put into a name."""
    return f"~{os.urandom(12).hex()}~"


def split_records(output: bytes, delimiter: str, width: int, what: str) -> list[list[str]]:
    """The rows of a short output."""
    return list(iterate_records([output], delimiter, width, what))


def iterate_records(
    chunks: Iterable[bytes], delimiter: str, width: int, what: str
) -> Iterator[list[str]]:
    r"""Rows of ``width`` fields. Each field ends with the delimiter, each row with a newline.

    Fields are counted, not lines, because names may contain newlines. Invalid UTF-8 becomes
    ``\xNN``.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    fields: list[str] = []
    rest, first = "", True
    for chunk in itertools.chain(chunks, [None]):
        text = rest + decoder.decode(chunk or b"", final=chunk is None)
        *complete, rest = text.split(delimiter)
        fields += complete
        end = len(fields) - len(fields) % width
        for index in range(0, end, width):
            row = fields[index : index + width]
            if not first:
                if not row[0].startswith("\n"):
                    raise AdaptError(f"{what} gave rows that do not end with a newline")
                row[0] = row[0][1:]
            else:
                # A login script may have written lines before; no first column has a newline.
                row[0] = row[0].rpartition("\n")[2]
            first = False
            yield row
        del fields[:end]
    if rest.strip() or fields:
        raise AdaptError(
            f"{what} ended with {len(fields)} fields and {len(rest)} characters, which are not a "
            f"row of {width}; its columns have changed"
        )


#: Bytes that login scripts may print.
_MAX_BANNER = 1 << 20
#: The exit status of ssh itself, as opposed to that of the remote command.
_SSH_FAILED = "failed with 255"


class SshRunner:
    """Runs commands on another host as :func:`stream_command` does on this machine."""

    def __init__(self, settings: SshSettings, directory: str | None = None) -> None:
        assert settings.host is not None
        self._directory = directory
        self._settings = settings
        self._host = settings.host

    def __call__(
        self, command: Sequence[str], timeout: float, given: bytes = b""
    ) -> Iterator[bytes]:
        mark = new_delimiter()
        try:
            chunks = stream_command(self._command(command, timeout, mark), timeout, given=given)
            yield from _after(mark.encode() + b"\n", chunks, self._host)
        except SourceError as error:
            raise self._explained(error, command[0]) from None

    def _command(self, command: Sequence[str], timeout: float, mark: str) -> list[str]:
        settings = self._settings
        options = {
            # Fail instead of prompting for a password or a host key.
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
        return [*words, "--", self._host, _remote(command, mark, self._directory)]

    def _explained(self, error: SourceError, name: str) -> SourceError:
        text = str(error)
        if _SSH_FAILED not in text:
            # The remote command ran; its message gives the reason.
            return SourceError(f"{name} on {self._host}: {text.removeprefix('ssh ')}")
        if "Host key verification failed" in text or "host key is known" in text:
            where = self._settings.known_hosts or "the known_hosts file of this user"
            return SourceError(
                f"the key of {self._host} is missing in {where} or differs from it; "
                "expected the host's key in that file"
            )
        return SourceError(f"{self._host} cannot be reached: {text}")


def _after(mark: bytes, chunks: Iterable[bytes], host: str) -> Iterator[bytes]:
    """The output after the mark; before it is what the login scripts of the host print."""
    before, marked = b"", False
    for chunk in chunks:
        if marked:
            yield chunk
            continue
        before += chunk
        _, found, after = before.partition(mark)
        if found:
            marked = True
            if after:
                yield after
        elif len(before) > _MAX_BANNER:
            break
    if not marked:
        begin = " ".join(before[:60].decode("utf-8", "replace").split())
        raise SourceError(f"{host} did not run the command; its output begins with {begin!r}")


def _remote(command: Sequence[str], mark: str, directory: str | None = None) -> str:
    """The command line for the remote shell, without variables that change Slurm's output.

    It prints the mark first, so that the output of login scripts can be left out.
    """
    path = f'PATH={shlex.quote(directory)}:"$PATH"' if directory else 'PATH="$PATH"'
    environment = f"env -i {path} " + 'HOME="$HOME" ${SLURM_CONF:+SLURM_CONF="$SLURM_CONF"}'
    variables = " ".join(
        f"{name}={shlex.quote(value)}" for name, value in command_environment(command).items()
    )
    return f"echo '{mark}' && exec {environment} {variables} {shlex.join(command)}"
