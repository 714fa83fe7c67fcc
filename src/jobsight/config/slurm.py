"""The name of the cluster in Slurm's own configuration.

The file is read instead of a command, because every command needs the name, also while no
controller answers. Where there is no such file, a scraper asks Slurm
(:mod:`jobsight.scheduler.cluster_name`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

#: Where Slurm looks for its configuration if SLURM_CONF is not set, and where slurmd and sackd put
#: it if they get it from the controller.
PLACES: Final = (Path("/etc/slurm/slurm.conf"), Path("/run/slurm/conf/slurm.conf"))
#: Bytes of one file, and files that include each other.
_MAX_SIZE: Final = 16 * 2**20
_MAX_DEPTH: Final = 8
_CLUSTER_NAME: Final = re.compile(r"(?:^|\s)clustername\s*=\s*\"?([^\s\"#]+)", re.IGNORECASE)
_INCLUDE: Final = re.compile(r"\s*include\s+(\S+)\s*", re.IGNORECASE)


def slurm_cluster_name(
    environment: Mapping[str, str], places: Sequence[Path] = PLACES
) -> str | None:
    """ClusterName of slurm.conf; None without such a file on this machine."""
    variable = environment.get("SLURM_CONF")
    for file in [Path(variable)] if variable else places:
        name = next(_names(file, _MAX_DEPTH), None)
        if name is not None:
            # As Slurm does: accounting has the name in lower case.
            return name.lower()
    return None


def slurm_conf_file(environment: Mapping[str, str], places: Sequence[Path] = PLACES) -> Path | None:
    """The slurm.conf of this machine, if there is one."""
    variable = environment.get("SLURM_CONF")
    files = [Path(variable)] if variable else places
    return next((file for file in files if file.is_file()), None)


def _names(file: Path, depth: int) -> Iterator[str]:
    try:
        with file.open("rb") as stream:
            text = stream.read(_MAX_SIZE).decode("utf-8", "replace")
    except (OSError, ValueError):
        # ValueError: a name with a zero byte.
        return
    for line in text.replace("\\\n", " ").splitlines():
        if match := _CLUSTER_NAME.search(line.partition("#")[0]):
            yield match[1]
        elif depth and (match := _INCLUDE.fullmatch(line.partition("#")[0])):
            yield from _names(file.parent / match[1], depth - 1)
