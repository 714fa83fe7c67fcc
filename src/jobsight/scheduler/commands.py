"""Slurm's commands: run without a shell, with a time limit, and with text that cannot lie."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from jobsight.model import SECOND
from jobsight.scheduler.errors import AdaptError, SourceError

#: Times mean the same whatever zone the cluster is in; messages can be read.
_ENVIRONMENT = {"TZ": "UTC", "LC_ALL": "C.UTF-8"}
#: Users set these for themselves; here they would change which columns and rows come.
_FOREIGN = ("SACCT_", "SQUEUE_", "SINFO_", "SLURM_BITSTR_LEN", "SLURM_CLUSTERS")


class Runner(Protocol):
    """Runs a command and gives what it wrote; :class:`SourceError` where it did not answer."""

    def __call__(self, command: Sequence[str], timeout: float) -> bytes: ...


def run_command(
    command: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None
) -> bytes:
    """Run a command on this machine."""
    given = os.environ if environment is None else environment
    variables = {name: value for name, value in given.items() if not name.startswith(_FOREIGN)}
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables | _ENVIRONMENT | _times(command),
            # Whatever it starts ends with it.
            start_new_session=True,
        )
    except OSError as error:
        raise SourceError(f"{command[0]} cannot be run: {error.strerror}") from None
    with process:
        try:
            output, complaint = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise SourceError(f"{command[0]} gave no answer within {timeout:g} s") from None
        except BaseException:
            _kill(process)
            raise
    if process.returncode != 0:
        said = " ".join(complaint.decode("utf-8", "backslashreplace").split())[-300:]
        raise SourceError(f"{command[0]} failed with {process.returncode}: {said or 'no word why'}")
    return output


def _times(command: Sequence[str]) -> dict[str, str]:
    """Seconds since 1970 in text. In JSON they are that anyway, and 22.05's sacct --json hands
    its own options on in this format and cannot read seconds then."""
    return {"SLURM_TIME_FORMAT": "standard" if "--json" in command else "%s"}


def _kill(process: subprocess.Popen[bytes]) -> None:
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


def new_mark() -> str:
    """A separator that nobody can put into a name, because nobody can guess it."""
    return f"~{os.urandom(12).hex()}~"


def split_records(output: bytes, mark: str, width: int, what: str) -> list[list[str]]:
    r"""Rows of ``width`` fields, each field closed by the mark; a newline stands between rows.

    Rows are counted fields, not lines: names may hold newlines. Bytes that are no UTF-8 become
    ``\xNN``.
    """
    text = output.decode("utf-8", "backslashreplace")
    fields = text.split(mark)
    rest = fields.pop()
    if rest.strip() or len(fields) % width:
        raise AdaptError(
            f"{what} gave {len(fields)} fields and {len(rest)} characters more, which are not "
            f"rows of {width}; its columns have changed"
        )
    rows = [fields[place : place + width] for place in range(0, len(fields), width)]
    for row in rows[1:]:
        if not row[0].startswith("\n"):
            raise AdaptError(f"{what} gave rows that do not end where they should")
        row[0] = row[0][1:]
    return rows
