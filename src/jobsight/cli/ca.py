"""``jobsight ca``: an own small certificate authority."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from jobsight.cli.arguments import CommandParser, Subcommand, bounded_int, run_group
from jobsight.cli.output import Table, print_table, write_json

#: Where the authority is, unless an option says otherwise.
DEFAULT_DIRECTORY = Path("/etc/jobsight/ca")
_MOST_DAYS = 36500


def create(*, directory: Path, name: str, days: int) -> None:
    """Create the key and the certificate of an authority.

    An existing authority is never replaced. Keep the directory in your backups, and readable by
    root alone: who has its key can pass for your server and your nodes.
    """
    from jobsight.server.authority import Authority, fingerprint

    authority = Authority(directory)
    authority.create(name, days)
    print(f"authority   {authority.certificate_file}")
    print(f"fingerprint {fingerprint(authority.certificate_file)}")
    print(f"next        jobsight ca issue HOST --server --directory {directory}")


def issue(
    *,
    name: str,
    directory: Path,
    server: bool,
    host: list[str],
    days: int,
    output: Path | None,
) -> None:
    """Issue a certificate for a node, or with --server for the server.

    The certificate is for the given name and for every --host. Both files are in `issued` of the
    directory of the authority, and with --output also there.
    """
    from jobsight.server.authority import Authority

    authority = Authority(directory)
    authority.issue(
        name,
        "server" if server else "node",
        tuple(dict.fromkeys([name, *host])) if host else (),
        days,
    )
    _hand_out(authority.files(name), output)
    if server:
        print("settings    server.tls_certificate and server.tls_key; to require certificates of")
        print(f'            nodes: server.tls_client_ca = "{authority.certificate_file}"')
        print(f'            and server.tls_client_crl = "{authority.crl_file}"')
    else:
        print("settings    agent.tls_ca, agent.tls_certificate, agent.tls_key on the node")


def renew(*, name: str, directory: Path, days: int, output: Path | None) -> None:
    """Issue a new key and certificate with the names of the last one.

    The last one stays valid until its end, so that nothing is interrupted. Server and agents reload
    changed files.
    """
    from jobsight.server.authority import Authority

    authority = Authority(directory)
    authority.renew(name, days)
    _hand_out(authority.files(name), output)


def revoke(*, name: str, directory: Path) -> None:
    """Revoke all certificates of a name, or one by its serial.

    The revocation list is written again. A server whose server.tls_client_crl names it refuses the
    certificate within ten seconds.
    """
    from jobsight.server.authority import Authority

    authority = Authority(directory)
    for each in authority.revoke(name):
        print(f"revoked     {each.name} {each.serial}")
    print(f"list        {authority.crl_file}")


def list_issued(*, directory: Path, json: bool) -> None:
    """List the certificates that were issued, with their state and end."""
    from jobsight.server.authority import Authority

    issued = Authority(directory).issued()
    if json:
        write_json(issued)
        return
    if not issued:
        print("no certificates were issued", file=sys.stderr)
        return
    table = Table("NAME", "KIND", "STATE", "ENDS", "HOSTS", "SERIAL", cut=("HOSTS",))
    now = time.time()
    for each in issued:
        day = time.strftime("%Y-%m-%d", time.gmtime(each.ends))
        table.add(each.name, each.kind, each.state(now), day, ", ".join(each.hosts), each.serial)
    print_table(table)


def show(*, directory: Path) -> None:
    """Print the certificate of the authority, which every node needs."""
    from jobsight.server.authority import Authority, fingerprint

    authority = Authority(directory)
    authority.issued()
    print(
        f"{authority.certificate_file} {fingerprint(authority.certificate_file)}", file=sys.stderr
    )
    print(authority.certificate_file.read_text(), end="")


def _hand_out(files: tuple[Path, Path], output: Path | None) -> None:
    from jobsight.server.authority import CaError
    from jobsight.util.durable import write_atomically

    for title, file, mode in zip(("certificate", "key"), files, (0o644, 0o600), strict=True):
        if output is not None:
            copy = output / file.name
            try:
                write_atomically(copy, file.read_bytes(), mode=mode)
            except OSError as error:
                raise CaError(f"{copy} cannot be written: {error.strerror}") from None
            file = copy
        print(f"{title:<11} {file}")


def _directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory",
        type=Path,
        default=DEFAULT_DIRECTORY,
        metavar="DIRECTORY",
        help=f"Directory of the authority (default: {DEFAULT_DIRECTORY})",
    )


def _days(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--days",
        type=bounded_int(1, _MOST_DAYS),
        default=default,
        metavar="N",
        help=f"Days until the certificate ends (default: {default})",
    )


def _create_options(parser: CommandParser) -> None:
    _directory(parser)
    parser.add_argument(
        "--name",
        default="jobsight authority",
        metavar="TEXT",
        help="Name in the certificate (default: jobsight authority)",
    )
    _days(parser, 3650)


def _output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", type=Path, metavar="DIRECTORY", help="Copy the certificate and key there"
    )


def _issue_options(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Host name of the node or server")
    _directory(parser)
    parser.add_argument("--server", action="store_true", help="For the server, not for a node")
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="HOST",
        help="Another host name or address that it is valid for (repeatable)",
    )
    _days(parser, 825)
    _output(parser)


def _renew_options(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name that was issued")
    _directory(parser)
    _days(parser, 825)
    _output(parser)


def _revoke_options(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name or serial that was issued")
    _directory(parser)


def _list_options(parser: CommandParser) -> None:
    _directory(parser)
    parser.add_argument("--json", action="store_true", help="Print JSON")


_COMMANDS = {
    "create": Subcommand(create, _create_options),
    "issue": Subcommand(issue, _issue_options),
    "list": Subcommand(list_issued, _list_options),
    "renew": Subcommand(renew, _renew_options),
    "revoke": Subcommand(revoke, _revoke_options),
    "show": Subcommand(show, _directory),
}


def main(arguments: Sequence[str]) -> int:
    return run_group(
        _COMMANDS, "ca", "A small certificate authority for sites that have none.", arguments
    )
