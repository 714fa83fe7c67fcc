"""Starts the log of every command, by its options and the settings table ``log``."""

from __future__ import annotations

import sys

from jobsight.config.load import load_log_settings
from jobsight.util.logging import Stream, configure_logging


def start_logging(
    level: str | None,
    config: str | None,
    *,
    service: bool = False,
    file: str | None = None,
    stream: Stream = "stderr",
) -> None:
    """Log from ``level`` on, or from the level of the settings for commands or for services.

    On a terminal the messages of a command that ends by itself look like its errors.
    """
    settings = load_log_settings(config)
    brief = not service and file is None and stream == "stderr" and sys.stderr.isatty()
    configure_logging(
        level or (settings.level if service else settings.commands),
        "text" if brief else settings.format,
        file=file,
        stream=stream,
        brief=brief,
    )
