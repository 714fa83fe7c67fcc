"""The built packages, installed in fresh roots without Python: `make test-packages`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.packages.build import GLIBC, PROJECT, project_version
from tests.agent.slurm_trees import SlurmNode, available
from tests.bed import Cluster
from tests.deploy.roots import Root, make_root, network
from tests.slurm.site import Site
from tests.waiting import wait_until

pytestmark = [pytest.mark.packages, pytest.mark.root]

DIST = PROJECT / "dist"
VERSION = project_version()
#: Release of Debian and its glibc. The oldest that can be had is newer than RHEL 8.
SUITES = {"bookworm": "2.36", "bullseye": "2.31"}
SETTINGS = Path("etc/jobsight/jobsight.toml")


def package(name: str, kind: str = "deb", dist: Path = DIST) -> Path:
    pattern = f"{name}_[0-9]*.deb" if kind == "deb" else f"{name}-[0-9]*.rpm"
    found = list(dist.glob(pattern))
    assert len(found) == 1, f"{pattern} in {dist}: {found}; run `make packages`"
    return found[0]


def install(root: Root, *names: str, dist: Path = DIST) -> None:
    """As `apt-get` without questions: settings that the site changed are kept."""
    files = root.put(*[package(name, dist=dist) for name in names])
    root.run("dpkg", "--force-confold", "--install", *files)


@pytest.fixture(scope="module", params=SUITES)
def fresh(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root as an archive, made once and kept in build/."""
    kept = PROJECT / "build" / "roots" / f"{request.param}.tar"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        try:
            root = make_root(request.param, tmp_path_factory.mktemp("root") / request.param)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"{request.param} cannot be had here: {error.stderr[-300:]}")
        subprocess.run(["tar", "-C", root.path, "-cf", kept, "."], check=True, timeout=300)
        shutil.rmtree(root.path)
    return kept


@pytest.fixture
def root(fresh: Path, tmp_path: Path) -> Iterator[Root]:
    path = tmp_path / "root"
    path.mkdir()
    subprocess.run(["tar", "-C", path, "-xf", fresh], check=True, timeout=300)
    yield Root(path)
    shutil.rmtree(path)


# The files.


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("unpacked")
    for file in DIST.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", file, directory], check=True, timeout=300)
    yield directory
    shutil.rmtree(directory)


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def test_no_file_needs_a_newer_glibc(unpacked: Path) -> None:
    files = [path for path in unpacked.rglob("*") if path.is_file() and not path.is_symlink()]
    programs = [path for path in files if is_elf(path)]
    assert len(programs) > 150
    highest: dict[tuple[int, ...], Path] = {}
    for program in programs:
        listed = subprocess.run(
            ["readelf", "--version-info", "--wide", program],
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout  # fmt: skip
        for text in re.findall(r"Name: GLIBC_(\d+(?:\.\d+)*)\b", listed):
            highest[tuple(map(int, text.split(".")))] = program
    print(f"{len(programs)} ELF files, highest GLIBC {max(highest)} in {highest[max(highest)]}")
    assert max(highest) <= GLIBC, highest[max(highest)]


def test_no_file_names_the_machine_that_built_it(unpacked: Path) -> None:
    needle = str(PROJECT).encode()
    for path in unpacked.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert needle not in path.read_bytes(), path


def test_the_sums_are_those_of_the_files() -> None:
    lines = (DIST / "SHA256SUMS").read_text().splitlines()
    for line in lines:
        digest, name = line.split()
        assert hashlib.sha256((DIST / name).read_bytes()).hexdigest() == digest
    assert {line.split()[1] for line in lines} == {
        file.name for file in DIST.iterdir() if file.name != "SHA256SUMS"
    }


def test_every_locked_package_is_in_the_bill_of_materials() -> None:
    bill = json.loads((DIST / f"jobsight-server-{VERSION}.cdx.json").read_text())
    names = {component["name"] for component in bill["components"]}
    locked = set()
    for line in (PROJECT / "requirements/server.txt").read_text().splitlines():
        found = re.match(r"([a-z0-9-]+)==\S+( ; .*)?", line)
        if found and "emscripten'" not in (found[2] or "") and "win32" not in (found[2] or ""):
            locked.add(found[1])
    assert locked <= names
    assert {"python3.13", "openssl", "sqlite3"} <= names


@pytest.mark.parametrize("interpreter", ["kept", "built again"])
def test_built_again_they_are_the_same_bytes(interpreter: str, tmp_path: Path) -> None:
    """In other directories, at the time that the files of dist/ carry; dist/ must be of this tree.
    The interpreter takes minutes, so that `make packages` keeps it; here it is built again, too,
    from the same sources."""
    kept = PROJECT / "build" / "interpreter"
    tools = PROJECT / "build" / "tools" / "bin"
    plugin = PROJECT / "slurm-plugin" / "acct_gather_profile_prometheus.so"
    options = []
    if list(DIST.glob("jobsight-slurm-plugin*")):
        slurm = plugin.with_name(f"{plugin.name}.version").read_text().strip()
        options = ["--plugin", str(plugin), "--plugin-version", slurm]
    used = kept
    if interpreter == "built again":
        used = tmp_path / "interpreter"
        for part in ("source", "apt"):
            shutil.copytree(kept / part, used / part)
        (used / "done").mkdir()
        for fetched in (kept / "done").glob("fetch-*"):
            shutil.copy(fetched, used / "done")
        zig = next((tools.parent / "lib").glob("python3*/site-packages/ziglang/zig"))
        built = subprocess.run(
            [PROJECT / "deploy/packages/interpreter", zig, used],
            capture_output=True, text=True, timeout=1400, check=False,
        )  # fmt: skip
        assert built.returncode == 0, built.stdout + built.stderr
    (archive,) = DIST.glob("jobsight-agent-*-linux-x86_64.tar.gz")
    with tarfile.open(archive) as members:
        first = members.next()
    assert first is not None
    built = subprocess.run(
        [sys.executable, "-m", "deploy.packages.build", "--interpreter", used,
         "--nfpm", tools / "nfpm", "--work", tmp_path / "work", "--dist", tmp_path / "dist",
         *options],
        cwd=PROJECT, check=False, timeout=1400, capture_output=True, text=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(int(first.mtime))},
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    assert sums(tmp_path / "dist") == sums(DIST)


def sums(dist: Path) -> dict[str, str]:
    lines = (dist / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


# Installation.


def test_installed_upgraded_and_purged(root: Root, previous: Path) -> None:
    """From the packages of the previous version, with data, to these; then removed and purged."""
    assert not list(root.path.glob("usr/bin/python*"))
    before = root.files()
    everything = ("jobsight", "jobsight-agent", "jobsight-server")
    install(root, *everything, dist=previous)
    older = root.run("jobsight", "--version").stdout.split()[1]
    (root.path / "etc/jobsight/jobsight.toml").write_text('cluster = "upgraded"\n')
    root.run(
        "jobsight", "run", "--store", "/var/lib/jobsight/store.db", "--", "sh", "-c", "echo hi"
    )

    install(root, *everything)
    assert root.run("jobsight", "--version").stdout == f"jobsight {VERSION}\n"
    # The conffile was changed by the site, and stays as it is.
    assert (root.path / SETTINGS).read_text() == 'cluster = "upgraded"\n'
    report = json.loads(
        root.run("jobsight", "report", "--store", "/var/lib/jobsight/store.db", "--json").stdout
    )
    assert report["cluster"] == "upgraded"
    assert older != VERSION
    # The refusal is one sentence, and the newer version stays.
    answer = root.run("dpkg", "--install", "/srv/" + package("jobsight", dist=previous).name,
                      check=False)  # fmt: skip
    assert answer.returncode != 0
    assert f"a downgrade to {older} is refused" in answer.stderr
    assert root.run("jobsight", "--version").stdout == f"jobsight {VERSION}\n"

    root.run("dpkg", "--remove", *reversed(everything))
    left = root.files() - before
    assert "etc/jobsight/jobsight.toml" in left
    assert "var/lib/jobsight/store.db" in left
    assert not any(path.startswith(("opt/", "usr/")) for path in left), left
    # As an agent leaves it, whose run directory is kept over a restart.
    (root.path / "run/jobsight").mkdir()
    (root.path / "run/jobsight/first-seen.json").write_text("{}")
    root.run("dpkg", "--purge", *reversed(everything))
    assert list((root.path / "run").rglob("*jobsight*")) == []
    # What useradd wrote for itself is the system's: its locks and copies.
    assert {path for path in root.files() - before if not path.startswith("etc/.pwd")} <= {
        "etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-",
    }  # fmt: skip
    assert root.run("getent", "passwd", "jobsight", check=False).returncode == 2


def test_every_part_of_the_interpreter_works(root: Root) -> None:
    install(root, "jobsight", "jobsight-server")
    code = (
        "import ssl, sqlite3, hashlib, ctypes, zlib, lzma, bz2, sys, zoneinfo\n"
        "import numpy, pyarrow, psycopg, typst, cryptography, re2, cramjam, matplotlib\n"
        "from cel_expr_python import cel\n"
        "hashlib.new('sha256', b'x', usedforsecurity=True); ssl.create_default_context()\n"
        "sqlite3.connect(':memory:').execute('SELECT 1 RETURNING' if False else 'SELECT 1')\n"
        "ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 7)()\n"
        "psycopg.pq.version()\n"
        "foreign = [p for p in sys.path if not p.startswith('/opt/jobsight')]\n"
        "assert not foreign, foreign\n"
        "print(sys.version_info[:2], ssl.OPENSSL_VERSION_INFO[0])\n"
    )
    answer = root.run("/opt/jobsight/bin/python3", "-I", "-c", code)
    assert answer.stdout == "(3, 13) 3\n"
    doctor = root.run("jobsight", "doctor", check=False)
    assert "Traceback" not in doctor.stdout + doctor.stderr


def test_what_the_packages_bring(root: Root) -> None:
    install(root, "jobsight", "jobsight-agent", "jobsight-server")
    for path in (
        "usr/bin/jobsight",
        "usr/share/man/man1/jobsight-report.1.gz",
        "usr/lib/systemd/system/jobsight-agent.service",
        "usr/lib/systemd/system/jobsight-server.socket",
        "usr/share/jobsight/slurm/prolog",
        "usr/share/bash-completion/completions/jobsight",
        "usr/share/zsh/site-functions/_jobsight",
        "usr/share/fish/vendor_completions.d/jobsight.fish",
        "usr/share/jobsight/opensearch/jobsight.ndjson",
        "usr/share/jobsight/Containerfile",
    ):
        assert os.path.lexists(root.path / path), path
    assert root.run("getent", "passwd", "jobsight").stdout.startswith("jobsight:")
    state = (root.path / "var/lib/jobsight").stat()
    assert state.st_mode & 0o777 == 0o700
    assert state.st_uid != 0
    assert (root.path / "var/spool/jobsight/mail").stat().st_mode & 0o7777 == 0o2770


def test_rpm_upgrades_refuses_a_downgrade_and_leaves_nothing(root: Root, previous: Path) -> None:
    """Debian's rpm on a root without Python; packages of RHEL itself cannot be had here."""
    before = root.files()
    names = ("jobsight", "jobsight-agent", "jobsight-server")
    store = "/var/lib/jobsight/store.db"

    def rpm(*words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        answer = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "rpm", "--root", str(root.path),
             "--nodeps", *map(str, words)],
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        if check:
            assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer

    older = [package(name, "rpm", previous) for name in names]
    rpm("--install", *older)
    version = root.run("jobsight", "--version").stdout.split()[1]
    (root.path / SETTINGS).write_text('cluster = "upgraded"\n')
    root.run("jobsight", "run", "--store", store, "--", "sh", "-c", "echo hi")

    rpm("--upgrade", *[package(name, "rpm") for name in names])
    assert root.run("jobsight", "--version").stdout == f"jobsight {VERSION}\n"
    assert (root.path / SETTINGS).read_text() == 'cluster = "upgraded"\n'
    report = json.loads(root.run("jobsight", "report", "--store", store, "--json").stdout)
    assert report["cluster"] == "upgraded"
    assert version != VERSION
    # rpm itself refuses; told to go on, it is the scriptlet that does.
    assert rpm("--upgrade", *older, check=False).returncode != 0
    answer = rpm("--upgrade", "--oldpackage", *older, check=False)
    assert answer.returncode != 0
    assert f"a downgrade to {version} is refused" in answer.stderr
    assert root.run("jobsight", "--version").stdout == f"jobsight {VERSION}\n"

    rpm("--erase", *reversed(names))
    left = root.files() - before
    # The changed settings are kept under another name, data where they were. Directories of the
    # system, such as /usr/lib/sysusers.d, belong to its own packages.
    assert "etc/jobsight/jobsight.toml.rpmsave" in left
    assert "var/lib/jobsight/store.db" in left
    own = {path for path in left if path.startswith(("opt/", "usr/"))}
    assert not any((root.path / path).is_file() for path in own), own
    assert not any("jobsight" in path for path in own), own


def test_the_archive_runs_from_any_directory(root: Root) -> None:
    (archive,) = DIST.glob("jobsight-agent-*-linux-x86_64.tar.gz")
    target = root.path / "software/jobsight with a space"
    target.mkdir(parents=True)
    subprocess.run(["tar", "-C", target, "-xf", archive], check=True, timeout=300)
    command = f"/software/jobsight with a space/jobsight-{VERSION}/bin/jobsight"
    assert root.run(command, "--version").stdout == f"jobsight {VERSION}\n"
    assert "Traceback" not in root.run(command, "doctor", check=False).stderr


# A job.


def test_agent_and_server_in_separate_networks_measure_a_job(root: Root, tmp_path: Path) -> None:
    """The server in a network of its own; the agent in the first one, where the kernel sends its
    events. Both in the fresh root, from the packages; between them a pair of virtual interfaces,
    and TLS in both directions with certificates of `jobsight ca`."""
    if not available():
        pytest.skip("needs the hierarchies of cgroup v1")
    install(root, "jobsight", "jobsight-agent", "jobsight-server")
    node = SlurmNode()
    processes: list[subprocess.Popen[bytes]] = []

    def start(*command: str, log: str, namespace: str | None = None) -> None:
        with (tmp_path / log).open("wb") as file:
            processes.append(
                subprocess.Popen(
                    root.argv(*command, namespace=namespace),
                    stdout=file,
                    stderr=file,
                    env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                )
            )

    with network(f"jsp{os.getpid()}") as (_, server):
        try:
            make_certificates(root, server)
            certificates = [
                'tls_certificate = "/etc/jobsight/server.pem"',
                'tls_key = "/etc/jobsight/server.key"',
                'tls_client_ca = "/etc/jobsight/ca/ca.pem"',
                'tls_client_crl = "/etc/jobsight/ca/crl.pem"',
            ]
            token_file = "/var/lib/jobsight/token"
            write_settings(root, "server.toml", server, token_file, *certificates)
            root.run("jobsight", "token", "add", "--cluster", "net", "--config",
                     "/etc/jobsight/server.toml", "--file", "/etc/jobsight/token")  # fmt: skip
            own = [
                '[agent]\nnode = "n1"\nsend_interval = 1.0\nquery_slurm = false',
                f"cgroup_roots = ['slurm_(?P<node>{node.name})']",
                'tls_ca = "/etc/jobsight/ca/ca.pem"',
                'tls_certificate = "/etc/jobsight/n1.pem"',
                'tls_key = "/etc/jobsight/n1.key"',
            ]
            write_settings(root, "agent.toml", server, "/etc/jobsight/token", *own)
            start("setpriv", "--reuid=jobsight", "--regid=jobsight", "--clear-groups",
                  "/opt/jobsight/bin/jobsight", "serve", "--config", "/etc/jobsight/server.toml",
                  log="server.log", namespace=f"jsp{os.getpid()}")  # fmt: skip
            url = f"https://{server}:8443"
            authority = ssl.create_default_context(cafile=root.path / "etc/jobsight/ca/ca.pem")
            wait_until(lambda: healthy(url, authority), 120)
            # Only over the pair of interfaces, and no batch without a certificate of the node.
            assert not healthy("https://127.0.0.1:8443", authority)
            doctor = root.run("jobsight", "doctor", "--config", "/etc/jobsight/agent.toml")
            assert "the server accepts it" in doctor.stdout
            write_settings(root, "other.toml", server, "/etc/jobsight/token", *own[:3])
            shown = json.loads(
                root.run("jobsight", "doctor", "--json", "--config", "/etc/jobsight/other.toml",
                         check=False).stdout
            )  # fmt: skip
            refused = [check for check in shown["checks"] if check["verdict"] == "fault"]
            assert [check["name"] for check in refused] == ["node's certificate"], refused
            start("/opt/jobsight/bin/jobsight", "agent", "--config", "/etc/jobsight/agent.toml",
                  log="agent.log")  # fmt: skip
            wait_until((root.path / "run/jobsight/agent.sock").exists, 120)
            # The prolog of the packages, on a node without any Python but theirs.
            root.run("/usr/share/jobsight/slurm/prolog", SLURM_CLUSTER_NAME="net",
                     SLURM_JOB_ID="4711", SLURM_JOB_UID="1000", SLURM_JOB_USER="alice",
                     SLURM_JOB_ACCOUNT="physics")  # fmt: skip
            job = node.job(4711)
            step = job.step(
                "/usr/bin/python3", "-c", "import time\nwhile time.process_time()<1:pass"
            )
            step.wait(120)
            used = job.cpu_time()
            token = (root.path / "var/lib/jobsight/token").read_text().strip()

            def measured() -> dict[str, Any] | None:
                report = fetch(f"{url}/api/v1/jobs/net:4711", token, authority)
                return report if report and report["executables"] else None

            report = wait_until(measured, 120)
            assert report["coverage"]["cpu"]["quality"] == "exact"
            job.end()
            report = wait_until(
                lambda: (seen := measured()) and all(r["final"] for r in seen["node_rows"]) and seen
            )
            assert report["cpu"]["cpu_seconds"] >= 1
            assert report["cpu"]["cpu_seconds"] <= used / 1e9 * 1.5 + 1
            assert any("python" in row["path"] for row in report["executables"])
            assert report["account"] == "physics"
        except AssertionError:
            for log in tmp_path.glob("*.log"):
                print(log.name, log.read_text()[-3000:])
            raise
        finally:
            node.close()
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait(60)


def make_certificates(root: Root, server: str) -> None:
    """Those of a server with that address and of a node, from an authority of their own."""
    root.run("jobsight", "ca", "create")
    root.run("jobsight", "ca", "issue", "server", "--server", "--host", server,
             "--output", "/etc/jobsight")  # fmt: skip
    root.run("jobsight", "ca", "issue", "n1", "--output", "/etc/jobsight")
    root.run("chown", "jobsight", "/etc/jobsight/server.key")


def write_settings(root: Root, name: str, host: str, token: str, *more: str) -> None:
    """``more`` begins in the table of the server."""
    (root.path / "etc/jobsight" / name).write_text(
        f'cluster = "net"\n[store]\nlocation = "/var/lib/jobsight/store.db"\n'
        f'[server]\nhost = "{host}"\nport = 8443\nurl = "https://{host}:8443"\n'
        f'token_file = "{token}"\n' + "\n".join([*more, ""])
    )


def healthy(url: str, authority: ssl.SSLContext) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=10, context=authority):
            return True
    except OSError:
        return False


def fetch(url: str, token: str, authority: ssl.SSLContext) -> dict[str, Any] | None:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=60, context=authority) as reply:
            found: dict[str, Any] = json.load(reply)
            return found
    except OSError:
        return None


class PackagedSite(Site):
    """A site whose agents and server are the commands of the packages."""

    command = ""

    def _start(self, *arguments: str, log: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{log}.log").open("ab") as file:
            return subprocess.Popen(
                [self.command, *arguments],
                cwd="/",
                env={**self.cluster.environment(), "PATH": os.environ["PATH"]},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )


def test_a_job_of_a_real_slurm_is_measured_by_the_packages(unpacked: Path, tmp_path: Path) -> None:
    """The files of the packages, moved to another directory, on the project's test bed."""
    tmp_path.chmod(0o755)
    PackagedSite.command = str(unpacked / "opt/jobsight/bin/jobsight")
    with Cluster.unused("k") as cluster, PackagedSite(cluster, tmp_path) as site:
        script = "#!/bin/sh\nsrun python3 -c 'import time\nwhile time.process_time()<2:pass'\n"
        job = cluster.submit("jobsight-alice", script, "--mem=100")
        cluster.wait(job, "COMPLETED", timeout=240)
        report = site.ended(job)
        assert report["user"] == "jobsight-alice"
        assert report["state"] == "COMPLETED"
        assert report["coverage"]["cpu"]["quality"] == "exact"
        assert report["cpu"]["cpu_seconds"] >= 2
