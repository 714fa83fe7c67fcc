"""``jobsight setup``: writes the settings of a server or a node, with token and certificates.

Each command builds a list of :class:`Step` and then takes them. A file that exists is kept: with
the same content nothing is done, with another the command refuses unless ``--force`` is given. So a
command can be repeated, and ``--dry-run`` shows what it would do. Settings in which every line is a
comment, as the packages bring them, are replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pwd
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from jobsight.cli.arguments import CommandParser, Subcommand, UsageError, bounded_int, run_group
from jobsight.config.load import load_settings
from jobsight.config.slurm import slurm_cluster_name
from jobsight.errors import ConfigError, JobsightError
from jobsight.transport.running_server import check_token
from jobsight.transport.tls import ClientTls
from jobsight.util.durable import write_atomically

DIRECTORY: Final = Path("/etc/jobsight")
#: Where packages put units, and where a site changes them.
UNITS: Final = Path("/usr/lib/systemd/system")
SITE_UNITS: Final = Path("/etc/systemd/system")
_SOCKET: Final = "jobsight-server.socket"
#: The user in deploy/systemd/jobsight-server.service.
_SERVER_USER: Final = "jobsight"
_LISTEN: Final = """# Written by `jobsight setup server`. systemd opens the socket of the server:
# this address counts, not server.host and server.port of the settings.
[Socket]
"""


class Step(NamedTuple):
    """One file to write."""

    file: Path
    content: bytes
    mode: int
    #: The file is made once and then belongs to the site: another content is no conflict.
    keep: bool = False
    #: It must be readable by the server, which is not root.
    for_server: bool = False


class Writer:
    """Takes steps, or says what they would do."""

    def __init__(self, *, dry_run: bool, force: bool) -> None:
        self.dry_run = dry_run
        self._force = force

    def check(self, steps: Sequence[Step]) -> None:
        """Refuse before anything is written."""
        conflicts = [
            str(step.file)
            for step in steps
            if not step.keep and not self._force and _state(step) == "differs"
        ]
        if conflicts:
            raise ConfigError(
                f"{', '.join(conflicts)} exists with another content and is kept; --force replaces "
                "it, and --dry-run shows what would be written"
            )

    def take(self, step: Step) -> None:
        state = _state(step)
        if state == "same" or (state == "differs" and step.keep):
            self.say("kept", step.file)
            return
        word = "write" if state == "missing" else "replace"
        if self.dry_run:
            self.say(f"would {word}", step.file)
            if step.mode & 0o044:
                for line in step.content.decode().splitlines():
                    print(f"    {line}".rstrip())
            return
        try:
            step.file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_atomically(step.file, step.content, mode=step.mode)
            if step.for_server:
                _give_to_server(step.file)
        except OSError as error:
            raise JobsightError(f"{step.file} cannot be written: {error.strerror}") from None
        self.say("wrote" if state == "missing" else "replaced", step.file)

    def say(self, what: str, file: Path) -> None:
        print(f"{what:<13} {file}")


def _state(step: Step) -> str:
    try:
        found = step.file.read_bytes()
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        raise JobsightError(f"{step.file} cannot be read: {error.strerror}") from None
    if found == step.content:
        return "same"
    return "comments" if _only_comments(step.file, found) else "differs"


def _only_comments(file: Path, content: bytes) -> bool:
    """Settings that set nothing: those that the packages bring, with every line commented."""
    lines = [line.strip() for line in content.splitlines()]
    return file.suffix == ".toml" and all(not line or line.startswith(b"#") for line in lines)


def _give_to_server(file: Path) -> None:
    if os.geteuid() != 0:
        return
    try:
        entry = pwd.getpwnam(_SERVER_USER)
    except KeyError:
        print(
            f"there is no user {_SERVER_USER} yet; give {file} to the user of the server",
            file=sys.stderr,
        )
        return
    os.chown(file, entry.pw_uid, entry.pw_gid)


class Questions:
    """Prompts for what no option gives, if there is a terminal."""

    def __init__(self, *, interactive: bool, ask: Callable[[str], str] = input) -> None:
        self._interactive = interactive
        self._ask = ask

    def value(self, given: str | None, option: str, text: str, default: str | None) -> str:
        if given:
            return given
        if self._interactive:
            shown = f" [{default}]" if default else ""
            try:
                answer = self._ask(f"{text}{shown}: ").strip()
            except EOFError:
                answer = ""
            if answer:
                return answer
        if default:
            return default
        raise UsageError(f"{option} is required: {text}")


def server(  # noqa: PLR0913 -- a command's parameters are its options
    *,
    cluster: str | None,
    host: str | None,
    port: int,
    store: str,
    interval: int,
    behind_proxy: bool,
    certificate: Path | None,
    key: Path | None,
    directory: Path,
    yes: bool,
    dry_run: bool,
    force: bool,
) -> None:
    """Write the settings of a server, with a token for its agents and certificates.

    Without --certificate and without --behind-proxy an own authority is created in
    DIRECTORY/ca, which issues the certificate of the server. Nothing is overwritten without
    --force. At the end the command prints what to do on the nodes, in slurm.conf and in the
    firewall.
    """
    if (certificate is None) != (key is None):
        raise UsageError("--certificate and --key belong together")
    if behind_proxy and certificate is not None:
        raise UsageError("--behind-proxy: the proxy has the certificate, not the server")
    # Services run in another directory than this command.
    directory = directory.absolute()
    if "://" not in store:
        store = str(Path(store).absolute())
    questions = Questions(interactive=sys.stdin.isatty() and not yes)
    cluster = questions.value(
        cluster, "--cluster", "Name of the cluster (ClusterName)", slurm_cluster_name(os.environ)
    )
    host = questions.value(host, "--host", "Name of this server for nodes", socket.getfqdn())
    _check_word("--cluster", cluster)
    _check_word("--host", host)
    if certificate is not None and key is not None:
        _check_pair(certificate, key)
    writer = Writer(dry_run=dry_run, force=force)
    own_authority = not behind_proxy and certificate is None
    tls = (directory / "server.pem", directory / "server.key")
    if certificate is not None and key is not None:
        tls = (certificate.absolute(), key.absolute())
    text = _server_settings(
        cluster, host, port, store=store, interval=interval,
        tls=None if behind_proxy else tls,
        authority=directory / "ca" if own_authority else None,
    )  # fmt: skip
    config = directory / "jobsight.toml"
    steps = [Step(config, text.encode(), 0o644)]
    if not behind_proxy and directory == DIRECTORY and (UNITS / _SOCKET).exists():
        listen = f"{_LISTEN}ListenStream=\nListenStream=0.0.0.0:{port}\n"
        steps.append(Step(SITE_UNITS / f"{_SOCKET}.d/jobsight-setup.conf", listen.encode(), 0o644))
    writer.check(steps)
    _check_settings(text)
    if own_authority:
        _make_certificate(writer, directory, host)
    for step in steps:
        writer.take(step)
    token_file = directory / f"{cluster}.token"
    _make_token(writer, config, cluster, token_file)
    url = f"https://{host}" if behind_proxy else f"https://{host}:{port}"
    ca = directory / "ca" / "ca.pem" if own_authority else None
    print(_after_server(directory, cluster, url, 443 if behind_proxy else port, ca))


def _make_certificate(writer: Writer, directory: Path, host: str) -> None:
    from jobsight.server.authority import Authority, CaError

    authority = Authority(directory / "ca")
    certificate, key = directory / "server.pem", directory / "server.key"
    if writer.dry_run:
        for file in (authority.certificate_file, certificate, key):
            writer.say("kept" if file.exists() else "would write", file)
        return
    if not authority.exists:
        authority.create(f"jobsight authority of {host}")
        writer.say("wrote", authority.certificate_file)
    if certificate.exists() and key.exists():
        writer.say("kept", certificate)
        return
    try:
        authority.issue(host, "server", _names_of(host))
    except CaError:
        # It was issued before, and its files are no longer here.
        authority.renew(host)
    issued = authority.files(host)
    writer.take(Step(certificate, issued[0].read_bytes(), 0o644, keep=True))
    writer.take(Step(key, issued[1].read_bytes(), 0o600, keep=True, for_server=True))


def _names_of(host: str) -> list[str]:
    """The name, its short form and loopback: commands on the server's host use these."""
    names = [host, "localhost", "127.0.0.1", "::1"]
    short = host.partition(".")[0]
    if short != host and not host.replace(".", "").isdigit():
        names.insert(1, short)
    return list(dict.fromkeys(names))


def _make_token(writer: Writer, config: Path, cluster: str, file: Path) -> None:
    if file.exists():
        writer.say("kept", file)
        return
    if writer.dry_run:
        writer.say("would write", file)
        return
    from jobsight.cli import token

    arguments = ["add", "--cluster", cluster, "--label", "jobsight setup", "--file", str(file)]
    # What it says about the store is not about the setup.
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            token.main([*arguments, "--config", str(config)])
        except JobsightError:
            sys.stderr.write(said.getvalue())
            raise
    writer.say("wrote", file)


def _server_settings(
    cluster: str,
    host: str,
    port: int,
    *,
    store: str,
    interval: int,
    tls: tuple[Path, Path] | None,
    authority: Path | None,
) -> str:
    lines = [
        "# Settings of the jobsight server; all others are in docs/settings.md.",
        "# Written by `jobsight setup server`. Restart jobsight-server after a change.",
        "",
        "# ClusterName of slurm.conf.",
        f"cluster = {json.dumps(cluster)}",
        "",
        "[store]",
        "# An SQLite file, or postgresql://USER@HOST/DATABASE for many nodes.",
        f"location = {json.dumps(store)}",
        "",
        "[store.retention]",
        "# Downsample and delete once a day what is older than the retention settings.",
        "daily = true",
        "",
        "[scheduler]",
        "# Seconds between two queries of Slurm; 0 never queries it.",
        f"interval = {interval}",
        "",
        "[server]",
    ]
    if tls is None:
        lines += [
            "# On loopback, behind a proxy with TLS: deploy/nginx/jobsight.conf.",
            'host = "127.0.0.1"',
            "port = 8080",
            "# Names under which the proxy is reached, and its address.",
            f"allowed_hosts = [{json.dumps(host)}]",
            'trusted_proxies = ["127.0.0.1"]',
        ]
    else:
        short = host.partition(".")[0]
        names = [host] if short == host else [host, short]
        lines += [
            "# All addresses of this host; TLS is required for that.",
            'host = "0.0.0.0"',
            f"port = {port}",
            "# Names under which nodes and browsers reach it.",
            f"allowed_hosts = {json.dumps(names)}",
            "# Reloaded when they change.",
            f"tls_certificate = {json.dumps(str(tls[0]))}",
            f"tls_key = {json.dumps(str(tls[1]))}",
        ]
    if authority is not None:
        lines += [
            "# To accept batches only from nodes with a certificate of this authority, issue one",
            "# for each node (`jobsight ca issue NODE`) and remove the # of these lines:",
            f"# tls_client_ca = {json.dumps(str(authority / 'ca.pem'))}",
            f"# tls_client_crl = {json.dumps(str(authority / 'crl.pem'))}",
        ]
    return "\n".join(lines) + "\n"


def _after_server(directory: Path, cluster: str, url: str, port: int, ca: Path | None) -> str:
    token = directory / f"{cluster}.token"
    copies = " and ".join(str(each) for each in (token, ca) if each is not None)
    config = directory / "jobsight.toml"
    node = [f"jobsight setup node --cluster {cluster} --server {url}", f"--token {token.name}"]
    if ca is not None:
        node.append("--ca ca.pem")
    return f"""
Next, on this host:
{_start("server", config)}
  jobsight doctor --config {config}

Firewall: nodes and browsers connect to TCP port {port} of this host:
  firewall-cmd --permanent --add-port={port}/tcp && firewall-cmd --reload   # RHEL
  ufw allow {port}/tcp   # Ubuntu
  nft add rule inet filter input tcp dport {port} accept   # nftables

On each node, with copies of {copies}:
  {" ".join(node)}

{_slurm_lines()}"""


def _start(what: str, config: Path) -> str:
    """How to start a service; its unit reads the settings of the default directory."""
    if config.parent == DIRECTORY:
        return f"  systemctl daemon-reload\n  systemctl enable --now jobsight-{what}"
    command = {"server": "serve", "agent": "agent"}[what]
    return f"  jobsight {command} --config {config}   # the unit reads {DIRECTORY}"


def _slurm_lines() -> str:
    return """slurm.conf, on all hosts. After the first two `scontrol reconfigure` suffices:
  Prolog=/etc/slurm/jobsight/prolog
  Epilog=/etc/slurm/jobsight/epilog
These have to be there, too. Where one is not, drain the nodes, set it, and restart slurmctld and
every slurmd:
  PrologFlags=Alloc,Contain
  JobAcctGatherType=jobacct_gather/cgroup
  ProctrackType=proctrack/cgroup"""


def node(  # noqa: PLR0913 -- a command's parameters are its options
    *,
    cluster: str | None,
    server: str | None,
    token: Path | None,
    ca: Path | None,
    certificate: Path | None,
    key: Path | None,
    directory: Path,
    check: bool,
    yes: bool,
    dry_run: bool,
    force: bool,
) -> int:
    """Write the settings of a compute node, and try whether it reaches its server.

    The token and the certificates are copied into DIRECTORY. Nothing is overwritten without
    --force. The exit code is 1 if the node does not reach its server.
    """
    if (certificate is None) != (key is None):
        raise UsageError("--certificate and --key belong together")
    questions = Questions(interactive=sys.stdin.isatty() and not yes)
    cluster = questions.value(
        cluster, "--cluster", "Name of the cluster (ClusterName)", slurm_cluster_name(os.environ)
    )
    server = questions.value(
        server, "--server", "URL of the server, such as https://jobsight.example.org:8443", None
    )
    _check_word("--cluster", cluster)
    _check_url(server)
    directory = directory.absolute()
    token_file = directory / "token"
    source = token or (None if token_file.exists() else _asked_token(questions))
    if source is not None:
        check_token(_read(source), source)
    if ca is not None:
        _check_authority(ca)
    if certificate is not None and key is not None:
        _check_pair(certificate, key)
    steps = []
    names: dict[str, Path] = {}
    for name, file, mode in (
        ("token", source, 0o600),
        ("ca.pem", ca, 0o644),
        ("node.pem", certificate, 0o644),
        ("node.key", key, 0o600),
    ):
        if file is not None:
            steps.append(Step(directory / name, _read(file), mode))
        if file is not None or (directory / name).exists():
            names[name] = directory / name
    text = _node_settings(cluster, server, token_file, names)
    steps.append(Step(directory / "jobsight.toml", text.encode(), 0o644))
    writer = Writer(dry_run=dry_run, force=force)
    writer.check(steps)
    _check_settings(text)
    for step in steps:
        writer.take(step)
    print(_after_node(directory))
    if dry_run or not check:
        return 0
    return _try_connection(directory / "jobsight.toml")


def _asked_token(questions: Questions) -> Path:
    return Path(questions.value(None, "--token", "File with the token of the cluster", None))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None


def _node_settings(cluster: str, url: str, token: Path, names: dict[str, Path]) -> str:
    lines = [
        "# Settings of the jobsight agent; all others are in docs/settings.md.",
        "# Written by `jobsight setup node`. Restart jobsight-agent after a change.",
        "",
        "# ClusterName of slurm.conf.",
        f"cluster = {json.dumps(cluster)}",
        "",
        "[server]",
        "# Where batches are sent, and the file with the cluster's token (mode 0600).",
        f"url = {json.dumps(url)}",
        f"token_file = {json.dumps(str(token))}",
        "",
        "[agent]",
        "# Jobs of these users are not measured.",
        "ignore_uids = [0]",
    ]
    if "ca.pem" in names:
        lines += [
            "# The authority of the server's certificate; by default those of the system.",
            f"tls_ca = {json.dumps(str(names['ca.pem']))}",
        ]
    if "node.pem" in names and "node.key" in names:
        lines += [
            "# This node's own certificate, where the server requires one. Reloaded on change.",
            f"tls_certificate = {json.dumps(str(names['node.pem']))}",
            f"tls_key = {json.dumps(str(names['node.key']))}",
        ]
    return "\n".join(lines) + "\n"


def _after_node(directory: Path) -> str:
    here = Path(__file__).parents[3] / "deploy" / "slurm"
    scripts = here if here.is_dir() else Path("/usr/share/jobsight/slurm")
    return f"""
Next, on this node:
  install -d /etc/slurm/jobsight
  install -m 0755 {scripts}/{{prolog,epilog,tell-agent}} /etc/slurm/jobsight/
{_start("agent", directory / "jobsight.toml")}
  jobsight doctor --config {directory / "jobsight.toml"}

{_slurm_lines()}

Firewall: nothing has to be opened on a node. For a Prometheus that scrapes it, TCP port 9306
(agent.metrics.listen).
"""


def _try_connection(config: Path) -> int:
    from jobsight.cli.connection_checks import connection_checks

    faults = 0
    for each in connection_checks(load_settings(config)):
        word = {"good": "yes", "partly": "part", "missing": "no", "fault": "FAIL"}[each.verdict]
        print(f"{each.name:<13} {word:<5} {each.found}")
        if each.todo:
            print(f"{'':<20}-> {each.todo}")
        faults += each.verdict == "fault"
    return 1 if faults else 0


def _check_settings(text: str) -> None:
    """What is written must be read by the program that it is for."""
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        load_settings(file.name, {})


def _check_authority(file: Path) -> None:
    """Before anything is written: a wrong file would show only when the node connects."""
    try:
        ClientTls(str(file))
    except ConfigError as error:
        raise UsageError(f"--ca: {error}") from None


def _check_pair(certificate: Path, key: Path) -> None:
    try:
        ClientTls(None, str(certificate), str(key), settings=("--certificate", "--key"))
    except ConfigError as error:
        raise UsageError(str(error)) from None


def _check_word(option: str, value: str) -> None:
    if not value.isprintable() or any(each in value for each in " \"'\\/"):
        raise UsageError(f"{option}: {value!r} is not a name")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise UsageError("--server: expected a URL such as https://jobsight.example.org:8443")


def _common(parser: CommandParser) -> None:
    parser.add_argument(
        "--directory",
        type=Path,
        default=DIRECTORY,
        metavar="DIRECTORY",
        help=f"Directory of settings, token and certificates (default: {DIRECTORY})",
    )
    parser.add_argument("--yes", "-y", action="store_true", help="Take the defaults, ask nothing")
    parser.add_argument("--dry-run", action="store_true", help="Show what would be written")
    parser.add_argument("--force", action="store_true", help="Replace files that exist")


def _pair(parser: argparse.ArgumentParser, whose: str) -> None:
    parser.add_argument(
        "--certificate", type=Path, metavar="FILE", help=f"Certificate of {whose} (PEM)"
    )
    parser.add_argument("--key", type=Path, metavar="FILE", help="Private key of --certificate")


def _server_options(parser: CommandParser) -> None:
    parser.add_argument("--cluster", metavar="NAME", help="Name of the cluster (ClusterName)")
    parser.add_argument("--host", metavar="NAME", help="Name of this server for nodes and browsers")
    parser.add_argument(
        "--port", type=bounded_int(1, 65535), default=8443, metavar="N", help="Port (default: 8443)"
    )
    parser.add_argument(
        "--store",
        default="/var/lib/jobsight/store.db",
        metavar="PATH",
        help="SQLite file or URL of the store (default: /var/lib/jobsight/store.db)",
    )
    parser.add_argument(
        "--interval",
        type=bounded_int(0, 86400),
        default=60,
        metavar="SECONDS",
        help="Seconds between two queries of Slurm, 0 for never (default: 60)",
    )
    parser.add_argument(
        "--behind-proxy", action="store_true", help="Listen on loopback; a proxy has the TLS"
    )
    _pair(parser, "the server, instead of an own authority")
    _common(parser)


def _node_options(parser: CommandParser) -> None:
    parser.add_argument("--cluster", metavar="NAME", help="Name of the cluster (ClusterName)")
    parser.add_argument("--server", metavar="URL", help="URL of the server")
    parser.add_argument("--token", type=Path, metavar="FILE", help="File with the cluster's token")
    parser.add_argument(
        "--ca", type=Path, metavar="FILE", help="Certificate of the server's authority (PEM)"
    )
    _pair(parser, "this node")
    parser.add_argument(
        "--no-check", dest="check", action="store_false", help="Do not try the connection"
    )
    _common(parser)


_COMMANDS = {
    "server": Subcommand(server, _server_options),
    "node": Subcommand(node, _node_options),
}


def main(arguments: Sequence[str]) -> int:
    return run_group(
        _COMMANDS, "setup", "Write the settings of a server or of a compute node.", arguments
    )
