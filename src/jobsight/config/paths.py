"""Default paths: system directories for root, the XDG directories for a user."""

from __future__ import annotations

import os
from pathlib import Path

from jobsight.errors import JobsightError
from jobsight.util.durable import make_private_directory
from jobsight.util.ownership import check_directory


def _home(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    # The XDG specification: a relative path is to be ignored.
    return Path(value) if os.path.isabs(value) else Path.home() / default


def is_root() -> bool:
    return os.geteuid() == 0


def data_directory() -> Path:
    """The directory of the store, the token and the record of the running server."""
    if is_root():
        return Path("/var/lib/jobsight")
    return _home("XDG_DATA_HOME", ".local/share") / "jobsight"


def store_file() -> Path:
    return data_directory() / "store.db"


def spool_directory() -> Path:
    return Path("/var/spool/jobsight") if is_root() else data_directory() / "spool"


def run_directory() -> Path:
    """The directory of state that need not survive a reboot."""
    if is_root():
        return Path("/run/jobsight")
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(runtime) / "jobsight" if os.path.isabs(runtime) else data_directory() / "run"


def config_directories() -> list[Path]:
    """The directories of settings files; a later one overrides an earlier one."""
    return [Path("/etc/jobsight"), _home("XDG_CONFIG_HOME", ".config") / "jobsight"]


def store_directory(location: str) -> Path:
    """The directory of a store, which also holds its token and the record of its server."""
    return data_directory() if "://" in location else Path(location).absolute().parent


def token_file(location: str) -> Path:
    return store_directory(location) / "token"


def server_file(location: str) -> Path:
    return store_directory(location) / "server.json"


def private_directory(directory: Path, what: str = "the directory", *, own: bool = True) -> Path:
    """Create a directory that only its owner can enter. An existing one is not changed, and refused
    if others can replace what is in it; see :func:`jobsight.util.ownership.check_directory`."""
    try:
        make_private_directory(directory)
    except OSError as error:
        raise JobsightError(
            f"the directory {directory} cannot be created: {error.strerror}; "
            "choose another with --store or the setting store.location"
        ) from None
    check_directory(directory, what, own=own)
    return directory
