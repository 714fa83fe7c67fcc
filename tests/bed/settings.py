"""What a bed is made of: the choices of the caller, and where everything lies in its directory."""

import dataclasses
import json
import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.bed.errors import BedError

# The prefix keeps node names, and with them the names of cgroups, apart from a real cluster's.
NAME = re.compile(r"js[a-z0-9]{1,10}")
# A unix socket's path ends at 107 characters, and slurmstepd puts a long name into the spool.
LONGEST_FOLDER = 60


@dataclass(frozen=True)
class Settings:
    """Everything that makes one bed differ from another; kept in the directory as `bed.json`."""

    name: str = "js1"
    folder: str = ""
    nodes: int = 3
    cpus_per_node: int = 0
    memory_per_node: int = 4096
    gpus_per_node: int = 2
    cgroup: str = "auto"
    systemd: bool = False  # with v2: let systemd make the scopes of the nodes
    gather: str = "jobacct_gather/cgroup"
    gather_seconds: int = 2
    prolog: str = ""
    epilog: str = ""
    task_prolog: str = ""
    task_epilog: str = ""
    rest: bool = False
    # Lines for slurm.conf; one that names a setting the bed writes itself takes its place.
    extra: tuple[str, ...] = ()
    # More files alongside slurm.conf (acct_gather.conf, plugstack.conf ...): name and text.
    files: dict[str, str] = field(default_factory=dict)
    port_base: int = 17000
    ready_seconds: int = 120

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise BedError(f"the cluster's name must look like js1, not {self.name!r}")
        if self.cgroup not in ("auto", "v1", "v2"):
            raise BedError(f"cgroup must be auto, v1 or v2, not {self.cgroup!r}")
        if not 1 <= self.nodes <= 64:
            raise BedError(f"a bed has 1 to 64 nodes, not {self.nodes}")
        folder = os.path.realpath(self.folder or default_folder(self.name))
        if len(folder) > LONGEST_FOLDER or re.search(r"[^\w./-]", folder):
            raise BedError(
                f"the directory's path must be shorter than {LONGEST_FOLDER} plain characters, "
                f"because sockets live in it: {folder}"
            )
        object.__setattr__(self, "folder", folder)
        # A step with more tasks than the machine has cores cannot be laid out by task/affinity.
        object.__setattr__(self, "cpus_per_node", self.cpus_per_node or min(os.cpu_count() or 1, 2))
        object.__setattr__(self, "extra", tuple(self.extra))

    @property
    def node_names(self) -> list[str]:
        return [f"{self.name}-{number}" for number in range(1, self.nodes + 1)]

    def node_pattern(self) -> re.Pattern[str]:
        """Every node this name could ever have had: an earlier bed may have had more nodes."""
        return re.compile(rf"{self.name}-\d+")

    def path(self, *parts: str) -> Path:
        return Path(self.folder, *parts)

    @property
    def slurm_conf(self) -> Path:
        return self.path("etc", "slurm.conf")

    @property
    def munge_socket(self) -> Path:
        return self.path("munge", "socket")

    @property
    def rest_socket(self) -> Path:
        return self.path("rest", "slurmrestd.socket")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> "Settings":
        known = {entry.name for entry in dataclasses.fields(cls)}
        # A directory left by another version of the bed must still be one that can be taken down.
        return cls(**{key: value for key, value in json.loads(text).items() if key in known})


def default_folder(name: str) -> str:
    return os.path.join(tempfile.gettempdir(), f"jobsight-{name}")


def write_file(path: Path, text: str, mode: int = 0o644, owner: int = 0, group: int = 0) -> None:
    """Write whole or not at all, with its mode from the first moment on."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        os.fchown(descriptor, owner, group)
        os.fchmod(descriptor, mode)
    os.replace(partial, path)
