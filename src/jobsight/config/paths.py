"""Where things lie when nobody says otherwise: for root in the system, for a user at home."""

from __future__ import annotations

import os
from pathlib import Path

from jobsight.errors import JobsightError


def _home(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    # The specification of these folders: a path that is not absolute is to be ignored.
    return Path(value) if os.path.isabs(value) else Path.home() / default


def is_root() -> bool:
    return os.geteuid() == 0


def data_directory() -> Path:
    """The folder of the store, the token and what a running server says of itself."""
    if is_root():
        return Path("/var/lib/jobsight")
    return _home("XDG_DATA_HOME", ".local/share") / "jobsight"


def store_file() -> Path:
    return data_directory() / "store.db"


def spool_directory() -> Path:
    return Path("/var/spool/jobsight") if is_root() else data_directory() / "spool"


def run_directory() -> Path:
    """What need not survive a reboot."""
    if is_root():
        return Path("/run/jobsight")
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(runtime) / "jobsight" if os.path.isabs(runtime) else data_directory() / "run"


def config_directories() -> list[Path]:
    """Where settings are looked for; a later folder wins over an earlier."""
    return [Path("/etc/jobsight"), _home("XDG_CONFIG_HOME", ".config") / "jobsight"]


def store_directory(location: str) -> Path:
    """The folder beside a store: its token and the file of its server lie there."""
    return data_directory() if "://" in location else Path(location).absolute().parent


def token_file(location: str) -> Path:
    return store_directory(location) / "token"


def server_file(location: str) -> Path:
    return store_directory(location) / "server.json"


def private_directory(folder: Path) -> Path:
    """Make a folder that only its owner can enter; one that is there stays as it is."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise JobsightError(
            f"the folder {folder} cannot be made: {error.strerror}; "
            "choose another place with --store or the setting store.location"
        ) from None
    return folder
