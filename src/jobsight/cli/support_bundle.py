"""``jobsight support-bundle``: a tar file for a report of a problem, without secrets and names.

Everything that goes into the file passes :class:`Scrubber`: contents of files with secrets,
passwords in URLs and tokens are masked, names of users become ``user-N``. Settings are written by
an allow list: a text that is neither a URL, a path nor one of a few fixed words is masked.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import pwd
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

import jobsight
from jobsight.cli.arguments import CommandParser, add_config_option, bounded_int
from jobsight.config.load import load_settings
from jobsight.config.settings import Settings
from jobsight.errors import JobsightError
from jobsight.util.urls import without_credentials

#: Largest part of the bundle, in characters; of a log its end.
_LARGEST: Final = 4 * 2**20
#: The first user id of people.
_FIRST_UID: Final = 1000
_MOST_NAMES: Final = 200_000
MASKED: Final = "(masked)"
#: Lines of slurm.conf that matter here; the rest of the file is not read into the bundle.
_SLURM_KEYS: Final = (
    "AccountingStorageType", "ClusterName", "Epilog", "JobAcctGatherFrequency",
    "JobAcctGatherType", "PrivateData", "ProctrackType", "Prolog", "PrologFlags", "TaskPlugin",
)  # fmt: skip
#: Settings whose text may be shown though it is no URL or path: they have a fixed set of values.
_PLAIN: Final = frozenset({"cluster", "node", "listen", "host", "source", "level", "tls", "names"})
_SECRET: Final = re.compile(r"password|secret|token(?!_file)|credential|headers|hash|users?\b|salt")


class Scrubber:
    """Removes secrets and names of users from text."""

    def __init__(self, secrets: Iterable[str], names: Iterable[str]) -> None:
        self._secrets = sorted({s for s in secrets if len(s) >= 6}, key=len, reverse=True)
        self._aliases = {
            name: f"user-{number}"
            for number, name in enumerate(sorted({n for n in names if len(n) >= 2}), 1)
        }

    def clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASKED)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return _WORD.sub(lambda found: self._aliases.get(found[0], found[0]), text)


#: A name as a word; the dot and the hyphen are parts of names.
_WORD: Final = re.compile(r"[A-Za-z_][\w.-]*\w|[A-Za-z_]\w*")
_PATTERNS: Final = (
    # user:password@ in a URL, whatever the scheme.
    (re.compile(r"(?<=://)[^/@\s\"']+@"), f"{MASKED}@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]+"), rf"\1 {MASKED}"),
    (
        re.compile(r"(?i)\b([\w-]*(?:password|passwd|secret|token|api[_-]?key))(\s*[=:]\s*)"
                   r"(?!\s*[\[{(]|/)[^\s,;}\]]+"),
        rf"\1\2{MASKED}",
    ),
    (re.compile(r"-----BEGIN [A-Z ]*KEY-----.*?(-----END [A-Z ]*KEY-----|$)", re.S), MASKED),
    # Mail addresses.
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "(address)"),
    # Directories of users, also of those that no database knows.
    (re.compile(r"(/home/|/users/|/scratch/|/Users/)[^/\s:\"',;)]+"), r"\1(user)"),
    # What looks like a token: 32 or more characters of base64 with a digit and a letter.
    (re.compile(r"\b(?=[A-Za-z0-9_-]*[0-9])(?=[A-Za-z0-9_-]*[A-Z])[A-Za-z0-9_-]{32,}\b"), MASKED),
)  # fmt: skip


def support_bundle(*, output: Path | None, log: list[Path], lines: int, config: str | None) -> None:
    """Write a tar file with what a report of a problem needs.

    It has the version, the settings, the results of `jobsight doctor`, the health and the counters
    of a running server, sizes of store and spool, and the end of the logs. Passwords, tokens and
    keys are masked, and names of users are replaced. Nothing is sent anywhere; look into the file
    before you send it.
    """
    settings = load_settings(config)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    file = output or Path(f"jobsight-support-{stamp}.tar.gz")
    scrubber = Scrubber(_secrets(settings), _names(settings))
    directory = f"jobsight-support-{stamp}"
    contents: dict[str, str] = {}
    for name, produce in _parts(settings, log, lines):
        try:
            text = produce()
        except Exception as error:
            # One part that fails must not cost the others; that it failed belongs into the bundle.
            text = f"could not be collected: {type(error).__name__}: {error}\n"
        if text:
            contents[name] = scrubber.clean(text[-_LARGEST:])
    _write(file, directory, contents)
    print(f"{file}: {len(contents)} files, {file.stat().st_size:,} bytes")
    print("Passwords, tokens and keys are masked, names of users replaced. Look into it before you")
    print(f"send it: tar -xzOf {file} | less")


def _write(file: Path, directory: str, contents: dict[str, str]) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise JobsightError(f"{file} exists and is kept; choose another with --output") from None
    except OSError as error:
        raise JobsightError(f"{file} cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as opened, tarfile.open(fileobj=opened, mode="w:gz") as tar:
        for name, text in contents.items():
            data = text.encode("utf-8", "backslashreplace")
            entry = tarfile.TarInfo(f"{directory}/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o644, int(time.time())
            tar.addfile(entry, io.BytesIO(data))


def _parts(
    settings: Settings, logs: Sequence[Path], lines: int
) -> Iterator[tuple[str, Callable[[], str]]]:
    yield "about.json", _about
    yield "settings.json", lambda: _json(shown_settings(settings))
    yield "doctor.json", lambda: _doctor(settings)
    yield "spool.json", lambda: _spool(Path(settings.agent.spool))
    yield "store.json", lambda: _store(settings)
    yield "health.json", lambda: _from_server(settings, "/api/v1/health")
    yield "metrics.txt", lambda: _own_lines(_from_server(settings, "/metrics"))
    yield "slurm.txt", _slurm
    for unit in ("jobsight-agent", "jobsight-server"):
        yield f"{unit}.log", lambda unit=unit: _journal(unit, lines)  # type: ignore[misc]
    for number, file in enumerate(logs, 1):
        yield f"log-{number}.txt", lambda file=file: _tail(file, lines)  # type: ignore[misc]


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, default=str) + "\n"


def _about() -> str:
    from importlib import metadata

    release = {}
    with contextlib.suppress(OSError):
        for line in Path("/etc/os-release").read_text().splitlines():
            key, _, value = line.partition("=")
            if key in ("ID", "VERSION_ID", "PRETTY_NAME"):
                release[key] = value.strip('"')
    packages = {
        each.metadata["Name"]: each.version
        for each in metadata.distributions()
        if each.metadata["Name"]
    }
    return _json(
        {
            "jobsight": jobsight.__version__,
            "python": sys.version,
            "system": release,
            "kernel": platform.release(),
            "machine": platform.machine(),
            "root": os.geteuid() == 0,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "packages": dict(sorted(packages.items())),
        }
    )


def shown_settings(settings: Settings) -> dict[str, Any]:
    """The settings with everything masked that could be a secret or a name."""
    defaults = msgspec.to_builtins(Settings())
    shown: dict[str, Any] = _shown(msgspec.to_builtins(settings), defaults, "")
    return shown


def _shown(value: Any, default: Any, key: str) -> Any:
    if isinstance(value, dict):
        if _SECRET.search(key):
            return dict.fromkeys(value, MASKED)
        known = default if isinstance(default, dict) else {}
        return {name: _shown(each, known.get(name), name) for name, each in value.items()}
    if value is None or isinstance(value, bool | int | float) or value == default:
        return value
    if isinstance(value, list):
        return [_shown(each, None, key) for each in value]
    text = str(value)
    if key.endswith(("_file", "_key")):
        return text
    if _SECRET.search(key):
        return MASKED
    if "://" in text:
        return without_credentials(text)
    return text if key in _PLAIN or text.startswith(("/", "~")) else MASKED


def _doctor(settings: Settings) -> str:
    from jobsight.cli.doctor import examine, installation

    checks = [*examine(settings), *installation(settings)]
    return _json([msgspec.to_builtins(check) for check in checks])


def _spool(directory: Path) -> str:
    return _json(_directory_sizes(directory)) if directory.exists() else ""


def _directory_sizes(directory: Path) -> dict[str, Any]:
    """Files and bytes by the ending of the name: names of batches say nothing here."""
    counts: dict[str, list[int]] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            kind = "directory" if entry.is_dir(follow_symlinks=False) else Path(entry.name).suffix
            found = counts.setdefault(kind or "(none)", [0, 0])
            found[0] += 1
            found[1] += entry.stat(follow_symlinks=False).st_size
    return {kind: {"files": n, "bytes": size} for kind, (n, size) in sorted(counts.items())}


def _store(settings: Settings) -> str:
    location = settings.store.location
    if "://" not in location and not Path(location).exists():
        return ""
    from jobsight.store.maintenance.inventory import take_inventory
    from jobsight.store.store import Store

    with Store.open(location) as store:
        inventory = msgspec.to_builtins(take_inventory(store.database))
    inventory["location"] = without_credentials(str(inventory["location"]))
    return _json(inventory)


def _from_server(settings: Settings, path: str) -> str:
    from jobsight.cli.server_checks import fetch
    from jobsight.config import paths
    from jobsight.transport.running_server import read_running_server

    record = read_running_server(paths.server_file(settings.store.location))
    return "" if record is None else fetch(record, path).decode(errors="replace")


def _own_lines(text: str) -> str:
    """jobsight's own families; those of Slurm have a series for each node."""
    lines = [line for line in text.splitlines() if re.match(r"jobsight_(?!findings)", line)]
    return "\n".join([*lines, ""]) if lines else ""


def _slurm() -> str:
    from jobsight.config.slurm import slurm_conf_file

    found = []
    file = slurm_conf_file(os.environ)
    if file is not None:
        with contextlib.suppress(OSError):
            for line in file.read_text(errors="replace").splitlines():
                if line.strip().partition("=")[0].strip().lower() in _LOWER_KEYS:
                    found.append(line.strip())
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        version = subprocess.run(
            ["sinfo", "--version"], capture_output=True, text=True, timeout=10, check=False
        )
        found.append(version.stdout.strip())
    return "\n".join([*found, ""]) if any(found) else ""


_LOWER_KEYS: Final = frozenset(key.lower() for key in _SLURM_KEYS)


def _journal(unit: str, lines: int) -> str:
    command = ["journalctl", "-u", unit, "-n", str(lines), "--no-pager", "-o", "short-iso"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        return ""
    return shown.stdout if shown.returncode == 0 else ""


def _tail(file: Path, lines: int) -> str:
    text = file.read_bytes()[-_LARGEST:].decode(errors="backslashreplace")
    return "\n".join([*text.splitlines()[-lines:], ""])


def _secrets(settings: Settings) -> Iterator[str]:
    """The contents of every file that the settings name as a secret, and passwords in URLs."""
    # What everybody has is no secret: the default of a name such as "jobsight" masks too much.
    defaults = {value for _, value in _leaves(msgspec.to_builtins(Settings()), "")}
    for key, value in _leaves(msgspec.to_builtins(settings), ""):
        if not isinstance(value, str) or not value or value in defaults:
            continue
        if re.search(r"(password|token|secret|key)[a-z_]*_file$|(^|_)key$|key_file$", key):
            with contextlib.suppress(OSError):
                path = Path(value).expanduser()
                if path.is_file() and path.stat().st_size < 65536:
                    yield from path.read_text(errors="replace").split()
        elif _SECRET.search(key):
            yield value
        found = re.search(r"://([^/@\s]+)@", value)
        if found:
            yield found[1]
            yield from found[1].split(":", 1)[1:]
    from jobsight.config import paths

    with contextlib.suppress(OSError):
        yield paths.token_file(settings.store.location).read_text().strip()


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, each in value.items():
            # Values of a table such as headers are known by the name of the table.
            yield from _leaves(each, key if _SECRET.search(key) else str(name))
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each, key)
    else:
        yield key, value


def _names(settings: Settings) -> Iterator[str]:
    """Names of people: of this machine's database, and of the runs in the store."""
    for entry in pwd.getpwall():
        if entry.pw_uid >= _FIRST_UID and entry.pw_name != "nobody":
            yield entry.pw_name
    location = settings.store.location
    if "://" in location or Path(location).exists():
        with contextlib.suppress(ImportError, JobsightError):
            from jobsight.store.maintenance.inventory import list_users
            from jobsight.store.store import Store

            with Store.open(location) as store:
                yield from list_users(store.database, _MOST_NAMES)


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("support-bundle", support_bundle.__doc__)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="File to write (default: jobsight-support-TIME.tar.gz here)",
    )
    parser.add_argument(
        "--log",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="Add the end of this log, too (repeatable)",
    )
    parser.add_argument(
        "--lines",
        type=bounded_int(1, 1_000_000),
        default=2000,
        metavar="N",
        help="Lines of each log (default: 2000)",
    )
    add_config_option(parser)
    return parser.run(support_bundle, arguments)
