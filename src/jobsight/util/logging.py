"""Logging, configured once by each command.

Modules log to ``logging.getLogger(__name__)``, below "jobsight". :func:`configure_logging` sets the
level of that hierarchy and one handler for all loggers, those of libraries (from WARNING on) and
Python's warnings included. Below systemd the lines carry syslog priorities and no times, which
journald adds.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from jobsight.errors import ConfigError, JobsightError

Stream: TypeAlias = Literal["stderr", "stdout", "none"]

_LEVELS: Final = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")
TEXT_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: For commands that a person runs: their messages look like their errors.
BRIEF_FORMAT: Final = "jobsight: %(message)s"
#: Control characters, by which a job's name could forge a line or colour a terminal.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
#: The name of the handler, which a second configuration replaces.
_HANDLER: Final = "jobsight"
_SYSLOG_PRIORITIES: Final = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
)


def configure_logging(
    level: str,
    format: str = "auto",
    *,
    file: str | None = None,
    stream: Stream = "stderr",
    brief: bool = False,
    pattern: str | None = None,
) -> None:
    """Log to a file, else to a stream, from ``level`` ("debug" to "critical") on.

    ``format`` is "auto", "text", "journald" or "json". "auto" is "journald" if standard error is
    connected to the journal, else "text". ``brief`` omits time, level and logger from text.
    ``pattern`` is a format string of the ``logging`` module, such as SAMS's settings contain, and
    replaces ``format``.
    """
    handler = _handler(file, stream)
    if pattern is not None:
        _install(handler, SafeFormatter(pattern), level.upper())
        return
    if format == "auto":
        format = "journald" if file is None and _is_journal(os.environ) else "text"
    formatter: logging.Formatter
    if format == "json":
        formatter = JsonFormatter()
    elif format == "journald":
        formatter = JournaldFormatter()
    else:
        formatter = SafeFormatter(BRIEF_FORMAT if brief and file is None else TEXT_FORMAT)
    _install(handler, formatter, level.upper())


class SafeFormatter(logging.Formatter):
    """Escapes control characters in messages; a traceback keeps its lines."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if _CONTROL.search(message):
            # A copy: other handlers get the record as it is.
            record = logging.makeLogRecord(record.__dict__)
            record.msg, record.args = _CONTROL.sub(_escape, message), None
        return super().format(record)


class JournaldFormatter(SafeFormatter):
    """Prefixes each line with its syslog priority (sd-daemon(3)); journald adds the time."""

    def __init__(self) -> None:
        super().__init__("%(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        priority = next((p for level, p in _SYSLOG_PRIORITIES if record.levelno >= level), 7)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).split("\n"))


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        document = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        # Imported here: the agent rarely logs JSON.
        import json

        # The names of files may hold surrogates, which no JSON may.
        texts = {k: v.encode("utf-8", "backslashreplace").decode() for k, v in document.items()}
        return json.dumps(texts)


def _handler(file: str | None, stream: Stream) -> logging.Handler:
    if file is None and stream == "none":
        return logging.NullHandler()
    if file is None:
        return logging.StreamHandler(sys.stdout if stream == "stdout" else sys.stderr)
    try:
        return logging.FileHandler(file, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise JobsightError(f"the log {file} cannot be written: {error.strerror}") from None


def _install(handler: logging.Handler, formatter: logging.Formatter, level: str) -> None:
    handler.setFormatter(formatter)
    handler.set_name(_HANDLER)
    root = logging.getLogger()
    for old in [each for each in root.handlers if each.get_name() == _HANDLER]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    logging.getLogger("jobsight").setLevel(level)
    # Libraries are silent below WARNING, unless everything is to be seen.
    root.setLevel(level if level == "DEBUG" else max(logging.WARNING, logging.getLevelName(level)))
    logging.captureWarnings(True)


def _is_journal(environment: Mapping[str, str]) -> bool:
    """Whether standard error is the stream that systemd connected to the journal."""
    device, _, inode = environment.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(sys.stderr.fileno())
        return (status.st_dev, status.st_ino) == (int(device), int(inode))
    except (OSError, ValueError, AttributeError):
        return False


def _escape(match: re.Match[str]) -> str:
    return f"\\x{ord(match[0]):02x}"


def parse_level(where: str, given: str) -> str:
    """The name of a log level in upper case; ``where`` names the setting."""
    if given.upper() not in _LEVELS:
        raise ConfigError(
            f"{where}: there is no log level {given!r}; expected {', '.join(_LEVELS)}"
        )
    return given.upper()
