"""``sams-post-receiver.py``: receives the records of SAMS's and jobsight's collectors over HTTP."""

from __future__ import annotations

import argparse
import ipaddress
import logging
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jobsight.cli.compat.common import common_parser, default_config, run_command
from jobsight.errors import JobsightError
from jobsight.sams.settings import ReceiverSettings, load_receiver

if TYPE_CHECKING:
    from jobsight.server.connections import Listener

logger = logging.getLogger(__name__)

PROGRAM: Final = "sams-post-receiver"


def parser() -> argparse.ArgumentParser:
    return common_parser(
        PROGRAM, "Receive SAMS records over HTTP, behind nginx.", store=False, needs_config=True
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; an error is printed as one line."""
    options = parser().parse_args(arguments)
    return run_command(PROGRAM, options, _load, lambda options, settings: serve(settings))


def _load(file: Path | None) -> ReceiverSettings:
    settings = load_receiver(file or default_config(PROGRAM))
    if not _is_loopback(settings.bind):
        settings.warnings.append(
            f"bind: {settings.bind} is reachable from the network, and the receiver does not "
            "authenticate clients; bind to 127.0.0.1 behind nginx"
        )
    return settings


def serve(settings: ReceiverSettings) -> int:
    """Serve until a signal arrives."""
    try:
        import uvicorn

        from jobsight.sams.receiver import LIMITS, IncomingDirectory, PostReceiver
        from jobsight.server.connections import (
            ConnectionTable,
            fit_descriptors,
            limited_log,
            uvicorn_config,
        )
    except ModuleNotFoundError as error:
        raise JobsightError(
            f"{PROGRAM} needs the package {error.name}: install jobsight[server]"
        ) from None
    try:
        # As SAMS does. A start with an unusable directory fails, not the first post.
        settings.base_path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JobsightError(
            f"base_path: the directory {settings.base_path} cannot be created: {error.strerror}"
        ) from None
    application = PostReceiver(
        IncomingDirectory(settings.base_path, settings.jobid_hash_size), max_size=settings.max_size
    )
    table = ConnectionTable(fit_descriptors(LIMITS))
    listener = _listener(settings.bind, settings.port)
    listener.table = table
    host, port = listener.getsockname()[:2]
    print(f"{PROGRAM}: listens on {host} port {port}", flush=True)
    keep_alive = int(LIMITS.header_timeout)
    server = uvicorn.Server(uvicorn_config(application, table, timeout_keep_alive=keep_alive))
    with limited_log():
        server.run(sockets=[listener])
    return 0


def _listener(bind: str, port: int) -> Listener:
    from jobsight.server.connections import Listener

    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = Listener(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        raise JobsightError(f"{bind} port {port} cannot be bound: {error.strerror}") from None
    return listener


def _is_loopback(bind: str) -> bool:
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:
        return bind == "localhost"


if __name__ == "__main__":
    sys.exit(main())
