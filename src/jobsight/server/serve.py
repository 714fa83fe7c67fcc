"""Runs the server: until a signal (:func:`run_server`), or in a thread (:class:`BackgroundServer`).

The socket is opened here or inherited from systemd (:func:`open_listener`); with the latter,
connections wait in the kernel while the server restarts.

:func:`_prepared` opens socket, store and background work in their order. :class:`ServerTls` has the
TLS context and reloads a renewed certificate.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import ipaddress
import logging
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp

from jobsight.archive.reader import attach
from jobsight.config import paths
from jobsight.config.settings import ServerSettings, Settings
from jobsight.errors import ConfigError, JobsightError
from jobsight.findings.service import FindingsService
from jobsight.mail.queue import MailCounts
from jobsight.mail.subscriptions import Subscriptions
from jobsight.prometheus.remote_write import RemoteWriter, best_snappy
from jobsight.server.app import create_app
from jobsight.server.auth import SignInCodes, TokenCache
from jobsight.server.connections import (
    ConnectionLimits,
    ConnectionTable,
    Listener,
    fit_descriptors,
    limited_log,
    uvicorn_config,
)
from jobsight.server.promql import attach_promql
from jobsight.store.store import Store
from jobsight.transport.running_server import RunningServer, announced, load_token
from jobsight.util.memory import collect_rarely, return_free_memory
from jobsight.util.ownership import check_file
from jobsight.util.systemd import inherited_descriptors, notify, watchdog_interval

logger = logging.getLogger(__name__)

_START_TIMEOUT = 30.0
#: Garbage collection threshold: the objects of about ten batches.
_GC_THRESHOLD = 20_000
#: Seconds that TLS handshakes may take when the server stops.
_HANDSHAKES_TIMEOUT = 1.0
#: Ticks of uvicorn between two checks of the certificate: ten seconds.
_RENEWAL_TICKS = 100


class BackgroundServer:
    """A server in a thread of this process, for the duration of the ``with`` block."""

    def __init__(self, settings: Settings, store: Store | None = None) -> None:
        self.settings = settings
        self._store = store
        self._stack = ExitStack()
        self._thread: threading.Thread | None = None
        self._server: uvicorn.Server | None = None
        self._codes = SignInCodes()
        self.url = ""
        self.token = ""
        self.token_file = token_file(settings)

    def sign_in_url(self) -> str:
        """A new URL that signs one browser in, once and within ten minutes."""
        return _sign_in_url(self.url, self._codes)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            prepared = stack.enter_context(_prepared(self.settings, self._store, self._codes))
            self.url, self.token = prepared.url, prepared.token
            self._server = prepared.server
            self._thread = threading.Thread(
                target=prepared.run, name="jobsight-server", daemon=True
            )
            self._thread.start()
            stack.callback(self._stop)
            self._wait()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _wait(self) -> None:
        assert self._server is not None
        assert self._thread is not None
        ended = threading.Event()
        for _ in range(int(_START_TIMEOUT / 0.01)):
            if self._server.started:
                return
            if not self._thread.is_alive():
                break
            ended.wait(0.01)
        raise JobsightError(f"the server on {self.url} did not start")

    def _stop(self) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.should_exit = True
        self._thread.join()


class _Server(uvicorn.Server):
    """uvicorn's server, which also checks for a renewed certificate, reports to the service manager
    and answers on all accepted connections before it stops."""

    tls: ServerTls | None = None
    table: ConnectionTable
    _ready = False
    _next_alive = 0.0

    async def on_tick(self, counter: int) -> bool:
        if self.tls is not None and counter % _RENEWAL_TICKS == 0:
            self.tls.renew()
        self._report()
        return await super().on_tick(counter)

    def _report(self) -> None:
        """Tell the service manager that the event loop runs: a hung server is restarted."""
        if not self._ready:
            self._ready = True
            self._watchdog = watchdog_interval()
            notify("READY=1")
        now = time.monotonic()
        if self._watchdog is not None and now >= self._next_alive:
            self._next_alive = now + self._watchdog
            notify("WATCHDOG=1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        notify("STOPPING=1")
        self.table.draining = True
        for server in self.servers:
            server.close()
        # uvicorn waits for the connections that have a protocol, not for pending handshakes.
        deadline = time.monotonic() + _HANDSHAKES_TIMEOUT
        while self.table.handshakes and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)


class _Prepared(NamedTuple):
    """A server with an open socket that is not running yet."""

    server: uvicorn.Server
    listener: Listener
    url: str
    token: str
    #: The location of the store, without a password.
    store: str

    def run(self) -> None:
        logger.info("listening on %s, store %s", self.url, self.store)
        self.server.run(sockets=[self.listener])
        logger.info("stopped listening on %s", self.url)


def run_server(
    settings: Settings,
    show: Callable[[str], None] = print,
    *,
    show_token: bool = False,
    to_terminal: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM; ``show`` prints the address.

    The token is printed only with ``show_token``: what a service prints is in the journal. A
    sign-in URL is printed only to a terminal, for the same reason.
    """
    # With one heap per thread, each would keep the memory of its largest batches.
    return_free_memory(heaps=2, large=4 * 2**20)
    codes = SignInCodes()
    with _prepared(settings, None, codes) as prepared, _quiet_signals(prepared.server):
        gc.collect()
        collect_rarely(_GC_THRESHOLD)
        show(f"jobsight serves {prepared.store}")
        if to_terminal:
            show(f"  open   {_sign_in_url(_reachable_url(settings, prepared.url), codes)}")
            show("         (signs one browser in, within ten minutes; after that use the token)")
        else:
            show(f"  open   {_reachable_url(settings, prepared.url)}/")
        show(f"  token  {prepared.token if show_token else token_file(settings)}")
        show("  end    Ctrl-C")
        prepared.run()


def token_file(settings: Settings) -> Path:
    if settings.server.token_file:
        return Path(settings.server.token_file).expanduser()
    return paths.token_file(settings.store.location)


def _sign_in_url(url: str, codes: SignInCodes) -> str:
    return f"{url}/?code={codes.create()}"


@contextmanager
def _prepared(settings: Settings, store: Store | None, codes: SignInCodes) -> Iterator[_Prepared]:
    with ExitStack() as stack:
        tls = ServerTls.of(settings.server)
        listener = stack.enter_context(open_listener(settings))
        url = _url(settings.server.host, listener.getsockname()[1], secure=tls is not None)
        location = settings.store.location
        if "://" not in location:
            paths.private_directory(paths.store_directory(location), "the directory of the store")
            check_file(Path(location).absolute(), "the store")
        file = token_file(settings)
        paths.private_directory(file.absolute().parent, "the directory of the token file")
        check_file(file, "the token file")
        token = load_token(file)
        record = RunningServer(
            url=url,
            token_file=str(file.absolute()),
            pid=os.getpid(),
            certificate=str(tls.certificate.absolute()) if tls else None,
        )
        stack.enter_context(announced(paths.server_file(location), record))
        if store is None:
            store = Store.open(location)
            stack.callback(store.close)
        attach(store, settings.archive)
        attach_promql(store, settings.server)
        tokens = TokenCache(store)
        stack.callback(tokens.write_uses)
        findings = FindingsService(store, settings.findings)
        mails = MailCounts()
        app = create_app(
            store,
            token,
            allowed_hosts=[settings.server.host, *settings.server.allowed_hosts],
            settings=settings.server,
            access=settings.access,
            tokens=tokens,
            codes=codes,
            remote=_remote(settings, stack),
            findings=findings,
            subscriptions=_subscriptions(settings),
            mails=mails if settings.mail.interval else None,
        )
        # After the app: see `updating`.
        if settings.archive.interval:
            from jobsight.archive.writer import archiving

            stack.enter_context(archiving(store, settings.archive))
        if settings.scrapes():
            from jobsight.scheduler.scraper import scraping

            stack.enter_context(scraping(settings, store))
        if not store.database.postgresql:
            from jobsight.store.maintenance.statistics import statistics_worker

            stack.enter_context(statistics_worker(store))
        from jobsight.store.maintenance.node_days import node_days_worker

        stack.enter_context(node_days_worker(store))
        if settings.store.retention.daily:
            from jobsight.store.maintenance.retention import retention_worker

            stack.enter_context(retention_worker(store, settings.store.retention))
        if settings.software.interval:
            from jobsight.software.worker import updating

            stack.enter_context(updating(store, settings.software))
        if settings.findings.interval:
            stack.enter_context(findings.judging())
        if settings.mail.interval:
            from jobsight.mail.worker import mailing

            stack.enter_context(mailing(store, settings.mail, settings.findings, mails))
        if settings.mail.webhook.url:
            from jobsight.mail.webhook import alerting

            stack.enter_context(alerting(store, settings.mail))
        limits = fit_descriptors(connection_limits(settings.server))
        listener.table = ConnectionTable(limits, settings.server.trusted_proxies)
        stack.enter_context(limited_log())
        server = _server(app, settings.server, listener.table, tls)
        yield _Prepared(server, listener, url, token, store.database.where)


def _subscriptions(settings: Settings) -> Subscriptions | None:
    """The page to unsubscribe from mails, if this server sends mails with links to it."""
    if not (settings.mail.interval and settings.mail.url):
        return None
    return Subscriptions.of(settings.mail)


def _remote(settings: Settings, stack: ExitStack) -> RemoteWriter | None:
    """Remote write of all stored batches, while the server runs."""
    wanted = settings.server.remote_write
    if wanted.url is None:
        return None
    directory = paths.store_directory(settings.store.location) / "remote-write"
    remote = RemoteWriter("server.remote_write", wanted, directory, compress=best_snappy())
    stack.callback(remote.close)
    remote.start()
    return remote


def connection_limits(settings: ServerSettings) -> ConnectionLimits:
    return ConnectionLimits(
        connections=settings.connections.max,
        connections_per_address=settings.connections.max_per_address,
        header_timeout=settings.connections.header_timeout,
        # The routes have shorter timeouts, and answer with a reason.
        body_timeout=settings.ingest.body_timeout + 30,
        response_timeout=settings.connections.response_timeout,
    )


def _server(
    app: ASGIApp, settings: ServerSettings, table: ConnectionTable, tls: ServerTls | None
) -> uvicorn.Server:
    proxies = settings.trusted_proxies
    server = _Server(
        uvicorn_config(
            app,
            table,
            timeout_graceful_shutdown=3,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=proxies,
            ssl_context_factory=(lambda *_: tls.context) if tls else None,
        )
    )
    server.tls = tls
    server.table = table
    return server


def open_listener(settings: Settings) -> Listener:
    """Take the socket of systemd, or open one. This comes first, so that a port in use has no side
    effects."""
    inherited = inherited_descriptors()
    if inherited:
        return _inherited_listener(inherited, settings)
    host, port = settings.server.host, settings.server.port
    address = _address(host, port)
    _check_exposure(address, settings)
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets with an explicit protocol. Without it, a reply, which
    # is written in two parts, waits 40 ms for the acknowledgement of the first.
    listener = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), port))
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise JobsightError(
                f"port {port} of {host} is in use; choose another with --port N or make run PORT=N "
                "(0 for any free port), or stop the program that uses it"
            ) from None
        raise JobsightError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return listener


def _inherited_listener(descriptors: list[int], settings: Settings) -> Listener:
    """The socket that systemd opened: its address counts, not server.host and server.port."""
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    try:
        if len(sockets) != 1:
            raise ConfigError(
                f"systemd passed {len(sockets)} sockets; expected one ListenStream= in "
                "jobsight-server.socket"
            )
        (found,) = sockets
        if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != (
            socket.SOCK_STREAM
        ):
            raise ConfigError(
                "the socket of systemd is not a TCP socket; expected an address and a port as "
                "ListenStream= in jobsight-server.socket, such as 127.0.0.1:8080"
            )
        _check_exposure(ipaddress.ip_address(found.getsockname()[0].partition("%")[0]), settings)
        return Listener(found.family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=found.detach())
    finally:
        for each in sockets:
            each.close()


def _check_exposure(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, settings: Settings
) -> None:
    secure = settings.server.tls_certificate is not None
    if not (address.is_loopback or secure or settings.server.allow_network):
        raise ConfigError(
            f"{address} is not a loopback address and TLS is not configured: set "
            "server.tls_certificate and server.tls_key, or use a proxy with TLS and 127.0.0.1, or "
            "set server.allow_network to true"
        )


def _address(host: str, port: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ConfigError(f"{host!r} is not an address of this machine") from None
    return ipaddress.ip_address(str(addresses[0][4][0]).partition("%")[0])


def _url(host: str, port: int, *, secure: bool) -> str:
    name = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{'https' if secure else 'http'}://{name}:{port}"


def _reachable_url(settings: Settings, url: str) -> str:
    """The address for people: "all addresses" is none that a browser or a certificate knows."""
    host = settings.server.host.strip("[]")
    if host not in ("0.0.0.0", "::"):
        return url
    parts = urlsplit(url)
    name = next(iter(settings.server.allowed_hosts), "localhost")
    return f"{parts.scheme}://{name}:{parts.port}"


@contextmanager
def _quiet_signals(server: uvicorn.Server) -> Iterator[None]:
    # uvicorn stops on these signals and then raises them again for the previous handlers; SIGTERM
    # would then kill the process before its server file is removed. A signal that arrives before
    # uvicorn has its own handlers must not be lost.
    def stop(number: int, frame: object) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _RenewedContext(ssl.SSLContext):
    """Wraps each connection by the present context. A new context has new keys for its sessions: a
    session that was begun before is not resumed, so that its certificate is verified again."""

    present: ssl.SSLContext

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return self.present.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


class ServerTls:
    """The TLS context of the server; renewed files are reloaded without a restart."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        client_ca: Path | None,
        client_crl: Path | None = None,
    ) -> None:
        self.certificate = certificate
        self.key = key
        self._client_ca = client_ca
        self._client_crl = client_crl
        self._seen = self._state()
        self.context = _RenewedContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.present = self._load()

    @classmethod
    def of(cls, settings: ServerSettings) -> ServerTls | None:
        """From the settings; None without TLS."""
        named = {
            name: Path(value).expanduser()
            for name in ("tls_certificate", "tls_key", "tls_client_ca", "tls_client_crl")
            if (value := getattr(settings, name)) is not None
        }
        if not named:
            return None
        for name in ("tls_certificate", "tls_key"):
            if name not in named:
                raise ConfigError(f"server.{name}: is required with server.{min(named)}")
        for name, file in named.items():
            try:
                file.open("rb").close()
            except OSError as error:
                raise ConfigError(
                    f"server.{name}: {file} cannot be read: {error.strerror}"
                ) from None
        if "tls_client_crl" in named and "tls_client_ca" not in named:
            raise ConfigError("server.tls_client_ca: is required with server.tls_client_crl")
        return cls(
            named["tls_certificate"],
            named["tls_key"],
            named.get("tls_client_ca"),
            named.get("tls_client_crl"),
        )

    def renew(self) -> None:
        """Reload the files if they have changed; an invalid pair changes nothing."""
        try:
            state = self._state()
            if state == self._seen:
                return
            self.context.present = self._load()
        except (OSError, ConfigError) as error:
            logger.warning("the renewed certificate cannot be loaded yet: %s", error)
            return
        self._seen = state
        logger.info("reloaded the certificate %s", self.certificate)

    def _state(self) -> list[tuple[int, int]]:
        files = [self.certificate, self.key, self._client_ca, self._client_crl]
        return [(status.st_mtime_ns, status.st_ino) for status in map(os.stat, filter(None, files))]

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, _no_passphrase)
        except OSError as error:
            raise ConfigError(
                f"server.tls_certificate {self.certificate} and server.tls_key {self.key} cannot "
                f"be used together: {_reason(error)}; expected a PEM certificate and its key"
            ) from None
        if self._client_ca is not None:
            # Optional: required for batches only; browsers have no certificate.
            context.verify_mode = ssl.CERT_OPTIONAL
            try:
                context.load_verify_locations(self._client_ca)
            except OSError as error:
                raise ConfigError(
                    f"server.tls_client_ca: {self._client_ca} holds no certificate (PEM): "
                    f"{_reason(error)}"
                ) from None
        if self._client_crl is not None:
            try:
                context.load_verify_locations(self._client_crl)
            except OSError as error:
                raise ConfigError(
                    f"server.tls_client_crl: {self._client_crl} holds no revocation list (PEM): "
                    f"{_reason(error)}"
                ) from None
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        return context


def _no_passphrase() -> bytes:
    raise ConfigError("server.tls_key: has a passphrase; expected a key without one")


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)
