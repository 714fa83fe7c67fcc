"""``sams-post-receiver.py``: takes the records of SAMS collectors, and of ours, over HTTP."""

from __future__ import annotations

import argparse
import ipaddress
import logging
import socket
import sys
from collections.abc import Sequence
from typing import Final

from jobsight import __version__
from jobsight.agent.seeds import parse_level
from jobsight.agent.service import start_logging
from jobsight.errors import JobsightError
from jobsight.sams.settings import ReceiverSettings, load_receiver

logger = logging.getLogger("jobsight.sams")

PROGRAM: Final = "sams-post-receiver"
DEFAULT_CONFIG: Final = "/etc/sams/sams-post-receiver.yaml"


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Take SAMS records over HTTP, behind nginx.", allow_abbrev=False
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=DEFAULT_CONFIG,
        help=f"settings as SAMS has them (default: {DEFAULT_CONFIG})",
    )
    parser.add_argument("--logfile", metavar="FILE", help="log into FILE")
    parser.add_argument("--loglevel", metavar="LEVEL", help="CRITICAL to DEBUG (default: ERROR)")
    parser.add_argument("--version", action="version", version=f"jobsight {__version__}")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command's entry; errors are one line."""
    options = parser().parse_args(arguments)
    try:
        settings = load_receiver(options.config)
        level = parse_level("--loglevel", options.loglevel) if options.loglevel else None
        start_logging(
            options.logfile or settings.log.file,
            level or settings.log.level,
            settings.log.format,
            stderr=True,
        )
        warnings = list(settings.warnings)
        if not _is_loopback(settings.bind):
            warnings.append(
                f"bind: {settings.bind} can be reached from the network, and this program asks "
                "nobody who he is; right: 127.0.0.1 with nginx in front"
            )
        for sentence in warnings:
            print(f"{PROGRAM}: warning: {sentence}", file=sys.stderr)
        return serve(settings)
    except JobsightError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return error.exit_code


def serve(settings: ReceiverSettings) -> int:
    """Answer until a signal comes."""
    try:
        import uvicorn

        from jobsight.sams.deposit import Deposit
        from jobsight.sams.receiver import PostReceiver
    except ModuleNotFoundError as error:
        raise JobsightError(
            f"{PROGRAM} needs the package {error.name}: "
            "install jobsight with its server parts, jobsight[server]"
        ) from None
    if not settings.base_path.is_dir():
        raise JobsightError(f"base_path: the folder {settings.base_path} is not there")
    application = PostReceiver(
        Deposit(settings.base_path, settings.jobid_hash_size), max_size=settings.max_size
    )
    listener = _listener(settings.bind, settings.port)
    host, port = listener.getsockname()[:2]
    print(f"{PROGRAM}: listens on {host} port {port}", flush=True)
    server = uvicorn.Server(
        uvicorn.Config(
            application,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_keep_alive=75,
        )
    )
    server.run(sockets=[listener])
    return 0


def _listener(bind: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        raise JobsightError(f"{bind} port {port} cannot be used: {error.strerror}") from None
    return listener


def _is_loopback(bind: str) -> bool:
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:
        return bind == "localhost"


if __name__ == "__main__":
    sys.exit(main())
