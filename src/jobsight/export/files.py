"""Files that come to be whole: written under a hidden name, and shown by giving them their own."""

from __future__ import annotations

import os
from pathlib import Path

from jobsight.errors import JobsightError


class ExportError(JobsightError):
    """A file of the export cannot be written."""


def hidden(file: Path) -> Path:
    """The name of a file until it is complete."""
    return file.with_name(f".{file.name}.new")


def prepare(file: Path, data: bytes) -> None:
    """Write a file durably under its hidden name."""
    if file.exists():
        raise ExportError(
            f"{file} is there already, but not from this store; right: another output_path"
        )
    try:
        with open(hidden(file), "wb") as new:
            new.write(data)
            new.flush()
            os.fsync(new.fileno())
        _sync(file.parent)
    except OSError as error:
        hidden(file).unlink(missing_ok=True)
        raise ExportError(f"{file} cannot be written: {error.strerror}") from None


def publish(file: Path) -> None:
    """Show a file. One that has no hidden name any more was shown before."""
    try:
        os.rename(hidden(file), file)
        _sync(file.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror}") from None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
