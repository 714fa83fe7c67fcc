"""Checks of ``jobsight doctor`` on a node: from here to the server.

Address, certificate, clock, token and version are tried one after the other as the agent would use
them; what depends on a failed step is not tried. Only the agent's packages are needed.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import jobsight
from jobsight.cli.checks import Check
from jobsight.config import paths
from jobsight.config.settings import Settings
from jobsight.errors import ConfigError
from jobsight.transport.delivery import BATCHES_PATH
from jobsight.transport.http import Peer, Reply, request
from jobsight.transport.running_server import TokenError, read_token
from jobsight.transport.tls import ClientTls, certificate_end
from jobsight.util.urls import without_credentials

#: Seconds for each exchange.
_TIMEOUT: Final = 10.0
#: Seconds by which clocks may differ. The Date header has whole seconds.
MAX_SKEW: Final = 5.0
#: Days before its end at which a certificate is reported.
_DAYS_BEFORE: Final = 14
_DAY: Final = 86400.0
#: Header with the version of the server, in replies to an empty batch.
VERSION_HEADER: Final = "jobsight-version"
#: Header with the cluster of the token, percent-encoded.
CLUSTER_HEADER: Final = "jobsight-cluster"


def connection_checks(settings: Settings) -> list[Check]:
    """The node's token, then the way to its server, up to the first step that fails."""
    url = settings.server.url
    if url is None:
        return []
    token = _read_token(settings)
    if isinstance(token, Check):
        # The way is tried nevertheless: it may be the next thing to mend.
        return [token, *_way(settings, url, None)]
    return _way(settings, url, token)


def _way(settings: Settings, url: str, token: str | None) -> list[Check]:
    shown = without_credentials(url)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        valid = bool(host) and parts.scheme in ("http", "https")
    except ValueError:
        host, port, valid = None, 0, False
    if host is None or not valid:
        return [
            Check(
                "address",
                "fault",
                f"server.url is {shown}",
                "batches wait in the spool",
                'set server.url = "https://HOST:PORT" in /etc/jobsight/jobsight.toml',
            )
        ]
    address = _address(host, port, shown)
    if address.verdict == "fault":
        return [address]
    checks = [address]
    wrap = None
    if parts.scheme == "https":
        try:
            own = settings.agent
            tls = ClientTls(own.tls_ca, own.tls_certificate, own.tls_key)
            checks.append(_certificate(host, port, tls))
            if own.tls_certificate is not None:
                checks.append(_own_certificate(Path(own.tls_certificate)))
        except ConfigError as error:
            checks.append(
                Check(
                    "certificate",
                    "fault",
                    str(error),
                    "batches wait in the spool",
                    "mend agent.tls_ca, agent.tls_certificate and agent.tls_key; "
                    "`jobsight ca issue NODE` on the server's host makes a pair",
                )
            )
        if checks[-1].verdict == "fault" or checks[1].verdict == "fault":
            return checks
        wrap = tls.wrapping(host)
    else:
        checks.append(_plain(host))
    peer = Peer(host, port, wrap)
    try:
        alive = request(peer, "GET", f"{parts.path.rstrip('/')}/healthz", {}, b"", timeout=_TIMEOUT)
    except OSError as error:
        return [*checks, _no_answer(shown, str(error))]
    if alive.status == 400:
        return [*checks, _foreign_name(host)]
    if alive.status != 200 or alive.body.strip() != b"ok":
        return [*checks, _no_answer(shown, f"it answered {alive.status} and not as jobsight does")]
    checks.append(_clock(alive))
    if token is not None:
        checks += _token(settings, token, peer, parts.path.rstrip("/"))
    return checks


def _address(host: str, port: int, shown: str) -> Check:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return Check(
            "address",
            "fault",
            f"{shown}: the name {host} is not known",
            "batches wait in the spool",
            f"`getent hosts {host}` has to answer: mend server.url, DNS or /etc/hosts",
        )
    try:
        socket.create_connection((host, port), _TIMEOUT).close()
    except OSError as error:
        return Check(
            "address",
            "fault",
            f"{shown}: no connection to port {port}: {error.strerror or error}",
            "batches wait in the spool",
            f"on the server: `systemctl status jobsight-server`, `ss -ltn`, and open port {port} "
            "in the firewall for this node",
        )
    return Check("address", "good", f"{shown} ({found[0][4][0]}) answers on port {port}", "")


def _plain(host: str) -> Check:
    if host in ("localhost", "127.0.0.1", "::1"):
        return Check("certificate", "good", "not needed on loopback", "")
    return Check(
        "certificate",
        "partly",
        "none: http is not encrypted",
        "everyone on the network can read the token and the batches",
        "on the server's host: `jobsight setup server` makes certificates; then use https",
    )


def _certificate(host: str, port: int, tls: ClientTls) -> Check:
    """The server's certificate, as the agent would accept it."""
    try:
        with socket.create_connection((host, port), _TIMEOUT) as plain:
            plain.settimeout(_TIMEOUT)
            with tls.context.wrap_socket(plain, server_hostname=host) as secure:
                certificate = secure.getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        return Check(
            "certificate",
            "fault",
            f"the server's certificate is not accepted: {error.verify_message}",
            "batches wait in the spool",
            _advice(error.verify_message, host),
        )
    except OSError as error:
        return Check(
            "certificate",
            "fault",
            f"TLS fails: {error}",
            "batches wait in the spool",
            f"`openssl s_client -connect {host}:{port}` shows what the server sends",
        )
    end = certificate.get("notAfter")
    if not isinstance(end, str):
        return Check("certificate", "good", "the server's certificate is accepted", "")
    return _end("certificate", "the server's certificate", ssl.cert_time_to_seconds(end), "renew")


def _advice(message: str, host: str) -> str:
    if "expired" in message:
        return "on the server's host: `jobsight ca renew NAME`, or renew it as your site does"
    if "mismatch" in message.lower() or "not valid for" in message.lower():
        return (
            f"server.url must name the server as its certificate does; this one is not for {host}"
        )
    return (
        "copy the authority's certificate (`jobsight ca show` on the server's host) to "
        "/etc/jobsight/ca.pem and set agent.tls_ca to it"
    )


def _own_certificate(file: Path) -> Check:
    end = certificate_end(file)
    if end is None:
        return Check("node's certificate", "partly", f"{file}: its end cannot be read", "")
    return _end("node's certificate", str(file), end, "issue")


def _end(name: str, what: str, end: float, action: str) -> Check:
    days = (end - time.time()) / _DAY
    day = time.strftime("%Y-%m-%d", time.gmtime(end))
    command = f"`jobsight ca {action} NAME` on the server's host"
    if days < 0:
        return Check(name, "fault", f"{what} ended on {day}", "batches wait in the spool", command)
    if days < _DAYS_BEFORE:
        return Check(
            name,
            "partly",
            f"{what} ends on {day}, in {days:.0f} days",
            "batches wait in the spool after that",
            command,
        )
    return Check(name, "good", f"{what} is accepted until {day}", "")


def _no_answer(shown: str, reason: str) -> Check:
    return Check(
        "server",
        "fault",
        f"{shown} does not answer as a server of jobsight: {reason}",
        "batches wait in the spool",
        "on the server: `journalctl -u jobsight-server`; a proxy must pass /healthz and "
        "/api/v1/batches",
    )


def _foreign_name(host: str) -> Check:
    return Check(
        "server",
        "fault",
        f"the server does not take {host} for its own name",
        "batches wait in the spool",
        f'on the server: server.allowed_hosts = ["{host}"]',
    )


def _clock(reply: Reply) -> Check:
    try:
        theirs = parsedate_to_datetime(reply.headers.get("date", "")).timestamp()
    except (ValueError, TypeError):
        return Check("clock", "partly", "the server sends no date", "the clock is not compared")
    # The header was cut to whole seconds.
    skew = time.time() - (theirs + 0.5)
    if abs(skew) <= MAX_SKEW:
        return Check("clock", "good", f"within {MAX_SKEW:.0f} s of the server's", "")
    return Check(
        "clock",
        "fault",
        f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's",
        "times of samples are wrong by that much",
        "`chronyc tracking` here and on the server; one of them has no time service",
    )


def _token_file(settings: Settings) -> Path:
    name = settings.server.token_file or str(paths.token_file(settings.store.location))
    return Path(name).expanduser()


def _read_token(settings: Settings) -> str | Check:
    file = _token_file(settings)
    try:
        return read_token(file)
    except TokenError as error:
        cluster = settings.cluster or "NAME"
        todo = (
            f"on the server: `jobsight token add --cluster {cluster}`, then put what it prints "
            f"into {file} (mode 0600)"
        )
        if "chmod" in str(error):
            todo = f"chmod 600 {file}"
        elif os.geteuid() != 0 and isinstance(error.__context__, PermissionError):
            todo = "run `jobsight doctor` as root, as the agent does"
        return Check("token", "fault", str(error), "batches wait in the spool", todo)


def _token(settings: Settings, token: str, peer: Peer, prefix: str) -> list[Check]:
    """Send an empty batch, which nothing stores: the reply tells what is thought of the token."""
    headers = {"Authorization": f"Bearer {token}"}
    try:
        reply = request(peer, "POST", f"{prefix}{BATCHES_PATH}", headers, b"", timeout=_TIMEOUT)
    except OSError as error:
        return [_no_answer(peer.host, str(error))]
    said = reply.body.decode(errors="replace")[:300]
    if reply.status in (401, 403):
        certificate = "certificate" in said
        return [
            Check(
                "node's certificate" if certificate else "token",
                "fault",
                f"the server refuses it with {reply.status}: {said}",
                "batches wait in the spool",
                "`jobsight ca issue NODE` on the server's host, then set agent.tls_certificate "
                "and agent.tls_key"
                if certificate
                else "on the server: `jobsight token list`, and `jobsight token add` for a new one",
            )
        ]
    if reply.status not in (400, 429):
        return [_no_answer(peer.host, f"it answered {reply.status}: {said}")]
    theirs = unquote(reply.headers.get(CLUSTER_HEADER, ""))
    if theirs and settings.cluster and theirs != settings.cluster:
        return [_foreign_token(settings, theirs)]
    checks = [Check("token", "good", f"{_token_file(settings)}: the server accepts it", "")]
    version = reply.headers.get(VERSION_HEADER)
    if version is not None:
        checks.append(_version(version))
    return checks


def _foreign_token(settings: Settings, theirs: str) -> Check:
    return Check(
        "token",
        "fault",
        f"{_token_file(settings)} is of the cluster {theirs}, the settings are for "
        f"{settings.cluster}",
        "the server refuses every batch",
        f"set cluster = {json.dumps(theirs)}, or use a token of `jobsight token add --cluster "
        f"{settings.cluster}` on the server",
    )


def _version(theirs: str) -> Check:
    """Agents one minor version older or newer than the server work."""
    ours = jobsight.__version__
    try:
        mine, other = (tuple(int(part) for part in v.split(".")[:2]) for v in (ours, theirs))
    except ValueError:
        return Check("version", "partly", f"{ours} here, {theirs} on the server", "")
    if mine[0] == other[0] and abs(mine[1] - other[1]) <= 1:
        return Check("version", "good", f"{ours} here, {theirs} on the server", "")
    return Check(
        "version",
        "fault",
        f"{ours} here, {theirs} on the server",
        "batches may be refused: at most one minor version apart works",
        "upgrade the older one",
    )
