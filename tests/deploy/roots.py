"""Fresh roots to install packages in, and networks between them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: In a mount namespace of its own, which ends with the command: nothing stays mounted.
_ENTER = """
mount --bind {root} {root} && mount -t proc proc {root}/proc && mount --rbind /sys {root}/sys \
    && mount --rbind /dev {root}/dev && exec {wrapper} chroot {root} "$@"
"""


def debian_sources(suite: str) -> list[str]:
    """The lines of this machine's own Debian mirror, for another release."""
    lines = []
    for file in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        fields: dict[str, str] = {}
        for line in [*file.read_text().splitlines(), ""]:
            if line.strip():
                key, _, value = line.partition(":")
                fields[key.strip()] = value.strip()
            elif fields:
                if (
                    "debian-archive" in fields.get("Signed-By", "")
                    and "security" not in (fields["Suites"])
                ):
                    lines.append(f"deb {fields['URIs']} {suite} main")
                fields = {}
    return lines


class Root:
    """A directory with a freshly installed system, without Python."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def argv(self, *command: str, namespace: str | None = None) -> list[str]:
        wrapper = "" if namespace is None else f"ip netns exec {namespace}"
        if namespace is not None:
            # ip mounts /sys again, of its network; chroot comes after it.
            wrapper = f"nsenter --net=/run/netns/{namespace}"
        script = _ENTER.format(root=self.path, wrapper=wrapper)
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh",
                *command]  # fmt: skip

    def run(
        self, *command: str, check: bool = True, **named: Any
    ) -> subprocess.CompletedProcess[str]:
        answer = subprocess.run(
            self.argv(*command),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "LC_ALL": "C.UTF-8",
                "DEBIAN_FRONTEND": "noninteractive",
                "HOME": "/root",
                **named,
            },
        )
        if check:
            assert answer.returncode == 0, f"{command}\n{answer.stdout}{answer.stderr}"
        return answer

    def put(self, *files: Path) -> list[str]:
        """Copy files into the root; returns their paths inside."""
        (self.path / "srv").mkdir(exist_ok=True)
        for file in files:
            shutil.copy(file, self.path / "srv")
        return [f"/srv/{file.name}" for file in files]

    def files(self) -> set[str]:
        """All paths of the root, without what belongs to dpkg, rpm and the caches of both."""
        found = set()
        for directory, names, files in os.walk(self.path):
            relative = os.path.relpath(directory, self.path)
            if relative in ("proc", "sys", "dev", "srv", "tmp", "run", "var/lib/dpkg", "var/log",
                            "var/cache", "var/lib/rpm"):  # fmt: skip
                names.clear()
                continue
            found.update(os.path.join(relative, name) for name in [*names, *files])
        return found


def make_root(suite: str, path: Path, *more: str) -> Root:
    """A minimal Debian of that release, with more packages of it; raises CalledProcessError where
    the mirror has it not."""
    subprocess.run(
        ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase",
         f"--include={','.join(['adduser', *more])}",
         "--aptopt=Acquire::Languages \"none\"", "--dpkgopt=path-exclude=/usr/share/locale/*",
         suite, str(path), *debian_sources(suite)],
        check=True, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    return Root(path)


@contextmanager
def network(name: str) -> Iterator[tuple[str, str]]:
    """A network namespace joined to this one; yields the addresses here and there."""
    here, there = "198.51.100.1", "198.51.100.2"
    outer, inner = f"{name}o"[:15], f"{name}i"[:15]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, timeout=60)

    ip("netns", "add", name)
    try:
        ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
        ip("address", "add", f"{here}/30", "dev", outer)
        ip("link", "set", outer, "up")
        ip("-n", name, "address", "add", f"{there}/30", "dev", inner)
        ip("-n", name, "link", "set", inner, "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield here, there
    finally:
        subprocess.run(["ip", "link", "delete", outer], check=False, capture_output=True)
        ip("netns", "delete", name)
