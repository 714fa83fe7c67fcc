"""Builds what a site installs: wheel, sdist, archive, Debian packages and RPMs, into ``dist/``.

``make packages`` calls it after the interpreter is built. The steps are in :func:`main`, in their
order. Everything follows from the sources and ``SOURCE_DATE_EPOCH`` (by default the time of the
last commit): the same input gives the same bytes.

Four packages share one directory, ``/opt/jobsight``:

- ``jobsight``: the interpreter, the packages of the agent, the commands, man pages and settings
- ``jobsight-agent``: the unit of a node and the scripts for Slurm
- ``jobsight-server``: the packages of the server and its units
- ``jobsight-slurm-plugin``: the profile plugin for one version of Slurm
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterable
from email.parser import Parser
from pathlib import Path
from typing import Any, Final

from deploy.packages.manual import sample_settings, write_man_pages

PROJECT: Final = Path(__file__).parents[2]
HERE: Final = PROJECT / "deploy" / "packages"
PREFIX: Final = "opt/jobsight"
#: The glibc of RHEL 8; that of the interpreter and of every wheel is at most this.
GLIBC: Final = (2, 28)
LIBRARY: Final = "lib/python3.13"
#: Of the standard library, what a service never imports, and what would need Tk or a compiler.
UNUSED: Final = ("ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter", "turtledemo",
                 "config-3.13-x86_64-linux-gnu", "__phello__")  # fmt: skip

COMMAND: Final = """#!/bin/sh
# Finds its interpreter next to itself, wherever the directory was moved to. -I: nothing of the
# system's Python is used.
here=$(dirname "$(readlink -f "$0")")
if [ -z "${{SSL_CERT_FILE:-}}" ] && [ -r /etc/pki/tls/certs/ca-bundle.crt ]; then
    # Not where Debian has it, which is where OpenSSL looks.
    export SSL_CERT_FILE=/etc/pki/tls/certs/ca-bundle.crt
fi
exec "$here/python3" -I -c 'import sys; from {module} import main; sys.exit(main())' "$@"
"""


class BuildError(Exception):
    """A step failed; the message says what to do."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make packages", description=__doc__.split("\n")[0])
    parser.add_argument("--interpreter", type=Path, required=True, help="directory of its build")
    parser.add_argument("--nfpm", type=Path, required=True, help="the program that packs")
    parser.add_argument("--plugin", type=Path, help="the built plugin for Slurm")
    parser.add_argument("--plugin-version", help="the version of Slurm that it is built for")
    parser.add_argument("--work", type=Path, default=PROJECT / "build" / "packages")
    parser.add_argument("--wheels", type=Path, default=PROJECT / "build" / "wheels")
    parser.add_argument("--kind", action="append", choices=["deb", "rpm"], help="default: both")
    parser.add_argument("--dist", type=Path, default=PROJECT / "dist")
    options = parser.parse_args()
    interpreter = options.interpreter.resolve()
    epoch = source_date()
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    version = project_version()
    work, dist = options.work.resolve(), options.dist.resolve()
    for directory in (work, dist):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)

    say("wheel and sdist")
    wheel = build_wheel(dist)
    say("interpreter")
    base = work / "jobsight" / PREFIX
    copy_interpreter(interpreter / "stage" / "jobsight", base)
    say("Python packages")
    store = options.wheels.resolve()
    agent = download(base, PROJECT / "requirements" / "agent.txt", store / "agent")
    server = download(base, PROJECT / "requirements" / "server.txt", store / "server")
    target = base / LIBRARY / "site-packages"
    install_wheels(base, [*agent, wheel], target)
    extra = [file for file in server if file.name not in {each.name for each in agent}]
    install_wheels(base, extra, work / "jobsight-server" / PREFIX / LIBRARY / "site-packages")
    write_commands(base, wheel)
    compile_all(base, base / LIBRARY)
    compile_all(base, work / "jobsight-server" / PREFIX / LIBRARY)
    say("documents")
    write_documents(work, version, epoch)
    for name, members in (("agent", agent), ("server", [*agent, *extra])):
        parts = interpreter_parts(interpreter / "done")
        text = json.dumps(sbom(f"jobsight-{name}", version, [*members, wheel], parts), indent=1)
        (dist / f"jobsight-{name}-{version}.cdx.json").write_text(text + "\n")
    say("archive")
    write_archive(work, dist / f"jobsight-agent-{version}-linux-x86_64.tar.gz", version, epoch)
    names = ["jobsight", "jobsight-agent", "jobsight-server"]
    if options.plugin is not None:
        place_plugin(work, options.plugin)
        names.append("jobsight-slurm-plugin")
    for name in names:
        for kind in options.kind or ("deb", "rpm"):
            say(f"{name} as {kind}")
            pack(options.nfpm, name, kind, work, dist, (version, options.plugin_version or ""))
    checksums(dist)
    return 0


def say(what: str) -> None:
    print(f"Packaging: {what}", flush=True)


def run(*argv: str | Path, **named: Any) -> str:
    answer = subprocess.run(
        [str(each) for each in argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **named,
    )
    if answer.returncode != 0:
        tail = "\n".join(answer.stdout.splitlines()[-15:])
        raise BuildError(f"{Path(argv[0]).name} ended with {answer.returncode}\n{tail}")
    return answer.stdout


def source_date() -> int:
    """The time that all files of the packages carry."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    try:
        return int(run("git", "log", "-1", "--format=%ct", cwd=PROJECT))
    except (BuildError, OSError, ValueError):
        return int((PROJECT / "CHANGELOG.md").stat().st_mtime)


def project_version() -> str:
    text = (PROJECT / "src/jobsight/__init__.py").read_text()
    found = re.search(r'__version__ = "([^"]+)"', text)
    assert found is not None
    return found[1]


def build_wheel(dist: Path) -> Path:
    """Wheel and sdist; hatchling is in the lock and needs no network."""
    run(sys.executable, "-m", "hatchling", "build", "--directory", dist, cwd=PROJECT)
    (wheel,) = dist.glob("*.whl")
    return wheel


# The directory.


def copy_interpreter(stage: Path, base: Path) -> None:
    """The interpreter without what is not used, and without what its build wrote for itself."""
    libraries = stage.parents[1] / "libraries" / "lib"
    (base / "bin").mkdir(parents=True)
    shutil.copy2(stage / "bin" / "python3.13", base / "bin" / "python3.13")
    (base / "bin" / "python3").symlink_to("python3.13")
    unused = shutil.ignore_patterns("__pycache__", "*.a", "*.pyc", *UNUSED)
    shutil.copytree(stage / LIBRARY, base / LIBRARY, ignore=unused)
    # Where it was built is a record only.
    for file in (base / LIBRARY).glob("_sysconfigdata_*.py"):
        file.write_text(file.read_text().replace(str(stage.parents[1]), "/jobsight"))
    for name in ("libssl.so.3", "libcrypto.so.3"):
        shutil.copy2(libraries / name, base / "lib" / name)
    # Where the dynamic linker looks for OpenSSL: relative to the file, so that all can be moved.
    search = {"_ssl": "$ORIGIN/../..", "_hashlib": "$ORIGIN/../..", "libssl": "$ORIGIN"}
    for file in [base / "bin" / "python3.13", *base.rglob("*.so*")]:
        file.chmod(0o755)
        run("strip", "--strip-unneeded", file)
        place = search.get(file.name.partition(".")[0])
        run("patchelf", *(["--set-rpath", place] if place else ["--remove-rpath"]), file)


def download(base: Path, requirements: Path, store: Path) -> list[Path]:
    """The wheels of a lock for this interpreter and glibc. The built interpreter runs pip, so that
    markers of the lock are those of its version."""
    store.mkdir(parents=True, exist_ok=True)
    stamp = store / "stamp"
    key = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != key:
        for old in store.glob("*.whl"):
            old.unlink()
        platforms = ["manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64"]
        platforms += [f"manylinux_2_{minor}_x86_64" for minor in range(5, GLIBC[1] + 1)]
        run_pip(
            base, "download", "--no-deps", "--require-hashes", "--only-binary=:all:",
            "--implementation=cp", "--python-version=3.13", "--abi=cp313", "--abi=abi3",
            "--abi=none", *[f"--platform={each}" for each in platforms], "--dest", store,
            "--requirement", requirements)  # fmt: skip
        stamp.write_text(key)
    return sorted(store.glob("*.whl"))


def run_pip(base: Path, command: str, *arguments: str | Path) -> None:
    """pip of this environment, in the interpreter of the packages."""
    import pip

    run(base / "bin" / "python3", "-B", Path(pip.__file__).parent, "--disable-pip-version-check",
        command, "--quiet", *arguments)  # fmt: skip


def install_wheels(base: Path, wheels: Iterable[Path], target: Path) -> None:
    run_pip(base, "install", "--no-deps", "--no-index", "--no-compile", "--target", target, *wheels)
    # Commands of libraries, with the path of this machine's Python; and where pip found a wheel.
    shutil.rmtree(target / "bin", ignore_errors=True)
    for file in [*target.glob("*.dist-info/direct_url.json"), *target.glob("*.dist-info/RECORD")]:
        file.unlink()


def write_commands(base: Path, wheel: Path) -> None:
    """One command for each entry point of the wheel."""
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/entry_points.txt")]
        text = archive.read(name).decode()
    for command, module in re.findall(r"^(\S+) = ([\w.]+):main$", text, re.MULTILINE):
        file = base / "bin" / command
        file.write_text(COMMAND.format(module=module))
        file.chmod(0o755)


def compile_all(base: Path, directory: Path) -> None:
    """Byte code next to the sources. Nobody may write there later, and checking the time of each
    source at every start would be in vain. All is compiled again: what an import left there has the
    path of this machine."""
    run(base / "bin" / "python3", "-I", "-B", "-m", "compileall", "-q", "-f", "--invalidation-mode",
        "unchecked-hash", "-s", directory, "-p", f"/{PREFIX}/{LIBRARY}", directory,
        env={"PYTHONHASHSEED": "0", "PATH": os.environ["PATH"]})  # fmt: skip


# What else a package holds.


def write_documents(work: Path, version: str, epoch: int) -> None:
    base = work / "jobsight"
    (base / PREFIX / "VERSION").write_text(f"{version}\n")
    for page in write_man_pages(base / "usr/share/man/man1", epoch):
        with gzip.GzipFile(f"{page}.gz", "wb", mtime=0) as packed:
            packed.write(page.read_bytes())
        page.unlink()
    write(base / "etc/jobsight/jobsight.toml", sample_settings())
    completion(base)
    for name in ("LICENSE", "README.md", "CHANGELOG.md"):
        write(base / "usr/share/doc/jobsight" / name, (PROJECT / name).read_text())
    agent, server = work / "jobsight-agent", work / "jobsight-server"
    units = PROJECT / "deploy" / "systemd"
    for name in ("jobsight-agent.service", "jobs_exporter.service", "softwareaccounting@.service"):
        write(agent / "usr/lib/systemd/system" / name, (units / name).read_text())
    for name in ("jobsight-server.service", "jobsight-server.socket"):
        write(server / "usr/lib/systemd/system" / name, (units / name).read_text())
    write(agent / "usr/lib/tmpfiles.d/jobsight-agent.conf", (HERE / "tmpfiles.conf").read_text())
    write(server / "usr/lib/tmpfiles.d/jobsight-server.conf",
          (HERE / "tmpfiles-server.conf").read_text())  # fmt: skip
    write(server / "usr/lib/sysusers.d/jobsight.conf", (HERE / "sysusers.conf").read_text())
    for file in sorted((PROJECT / "deploy" / "slurm").iterdir()):
        write(agent / "usr/share/jobsight/slurm" / file.name, file.read_text(), 0o755)
    for part in ("grafana", "nginx", "opensearch", "prometheus"):
        for file in sorted((PROJECT / "deploy" / part).iterdir()):
            if file.suffix in (".json", ".ndjson", ".conf", ".yml"):
                write(server / "usr/share/jobsight" / part / file.name, file.read_text())
    write(server / "usr/share/jobsight/Containerfile", (HERE / "Containerfile").read_text())


def completion(base: Path) -> None:
    """Of the shells; without one of them the packages are not built."""
    places = {
        "bash": "usr/share/bash-completion/completions/jobsight",
        "zsh": "usr/share/zsh/site-functions/_jobsight",
        "fish": "usr/share/fish/vendor_completions.d/jobsight.fish",
    }
    for shell, place in places.items():
        answer = subprocess.run(
            [sys.executable, "-m", "jobsight.cli.main", "completion", shell],
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode != 0 or not answer.stdout:
            reason = "\n".join(answer.stderr.splitlines()[-15:])
            raise BuildError(
                f"jobsight completion {shell} ended with {answer.returncode}\n{reason}"
            )
        write(base / place, answer.stdout)


def place_plugin(work: Path, plugin: Path) -> None:
    target = work / "jobsight-slurm-plugin"
    target.mkdir(parents=True)
    shutil.copy2(plugin, target / plugin.name)
    run("strip", "--strip-unneeded", target / plugin.name)


def write(file: Path, text: str, mode: int = 0o644) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


# Inventories.


def interpreter_parts(done: Path) -> list[dict[str, Any]]:
    """The source packages of Debian that the interpreter was built from."""
    parts = []
    for file in sorted(done.glob("fetch-*")):
        name, version = file.read_text().split()
        parts.append(
            {
                "type": "library",
                "bom-ref": f"source:{name}@{version}",
                "name": name,
                "version": version,
                "purl": f"pkg:deb/debian/{name}@{version.replace(':', '%3A')}?arch=source",
            }
        )
    return parts


def sbom(
    name: str, version: str, wheels: Iterable[Path], parts: list[dict[str, Any]]
) -> dict[str, Any]:
    """The bill of materials of a package: CycloneDX 1.6."""
    components = list(parts)
    for wheel in sorted(wheels, key=lambda each: each.name.lower()):
        if wheel.name.startswith("jobsight-"):
            continue
        about = wheel_metadata(wheel)
        title = re.sub(r"[-_.]+", "-", about["Name"]).lower()
        component: dict[str, Any] = {
            "type": "library",
            "bom-ref": f"pypi:{title}@{about['Version']}",
            "name": title,
            "version": about["Version"],
            "purl": f"pkg:pypi/{title}@{about['Version']}",
            "hashes": [
                {"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}
            ],
        }
        if about["License-Expression"]:
            component["licenses"] = [{"expression": about["License-Expression"]}]
        components.append(component)
    text = json.dumps([name, version, components], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": f"{name}@{version}",
                "name": name,
                "version": version,
                "licenses": [{"expression": "Apache-2.0"}],
            }
        },
        "components": components,
        "dependencies": [
            {
                "ref": f"{name}@{version}",
                "dependsOn": [component["bom-ref"] for component in components],
            }
        ],
    }


def wheel_metadata(wheel: Path) -> Any:
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        (name,) = [
            each for each in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", each)
        ]
        return Parser().parsestr(archive.read(name).decode())


# Packages.


def write_archive(work: Path, file: Path, version: str, epoch: int) -> None:
    """The directory of the agent as one archive, for a shared software tree."""
    top = f"jobsight-{version}"
    trees = [(work / "jobsight" / PREFIX, top)]
    trees += [(work / "jobsight" / "usr/share/man", f"{top}/share/man")]
    trees += [(work / "jobsight" / "etc/jobsight", f"{top}/etc")]
    trees += [(work / "jobsight-agent" / "usr/share/jobsight", f"{top}/share")]
    trees += [(work / "jobsight-agent" / "usr/lib/systemd/system", f"{top}/share/systemd")]

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = epoch
        entry.mode = 0o755 if entry.mode & 0o100 or entry.isdir() else 0o644
        return entry

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for source, name in trees:
            for path in [source, *sorted(source.rglob("*"))]:
                inside = f"{name}/{path.relative_to(source)}".removesuffix("/.")
                archive.add(path, inside, recursive=False, filter=plain)
    with file.open("wb") as output, gzip.GzipFile("", "wb", 6, output, mtime=0) as compressed:
        compressed.write(packed.getbuffer())


def pack(
    nfpm: Path, name: str, kind: str, work: Path, dist: Path, versions: tuple[str, str]
) -> None:
    version, slurm = versions
    template = (HERE / f"{name}.yaml").read_text()
    scripts = work / "scripts" / name
    scripts.mkdir(parents=True, exist_ok=True)
    for script in ("preinstall", "postinstall", "preremove", "postremove"):
        text = (HERE / "scripts" / f"{script}.sh").read_text()
        write(scripts / script, text.replace("@NAME@", name).replace("@VERSION@", version), 0o755)
    newer = f"{slurm.rsplit('.', 1)[0]}.{int(slurm.rsplit('.', 1)[1]) + 1}" if slurm else ""
    values = {
        "@VERSION@": version,
        "@TREE@": str(work / name),
        "@SCRIPTS@": str(scripts),
        "@SLURM@": slurm,
        "@SLURM_NEXT@": newer,
    }
    for key, value in values.items():
        template = template.replace(key, value)
    configuration = work / f"{name}.yaml"
    configuration.write_text(template)
    set_times(work / name)
    run(nfpm, "package", "--config", configuration, "--packager", kind, "--target", dist)


def set_times(tree: Path) -> None:
    """The times and modes of all files: nfpm copies them into the packages."""
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if executable else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def checksums(dist: Path) -> None:
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in sorted(dist.iterdir())
    ]
    (dist / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BuildError as error:
        sys.exit(f"jobsight: {error}")
