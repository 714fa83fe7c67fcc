"""Where a request comes from: the address of the TCP peer, and on loopback its user.

Cookies do not distinguish ports: a browser sends the cookie of 127.0.0.1:8080 also to the server
that another user of the machine runs on 127.0.0.1:9090. On loopback a session is therefore bound
to the user whose process opened the connection, as the kernel reports it. The other user has the
cookie then, and cannot use it.
"""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import Final, NamedTuple

from starlette.types import Scope

from jobsight.server.connections import connection_of

#: The tables of TCP sockets of this network namespace.
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
#: Columns of these tables.
_LOCAL, _REMOTE, _UID = 1, 2, 7


class Peer(NamedTuple):
    """The other end of a TCP connection."""

    #: Not that of a header of a proxy.
    address: str
    #: Of a process on this machine; None if the peer is another machine, or is not known.
    uid: int | None


def peer_of(scope: Scope) -> Peer:
    """The peer of a request's connection."""
    connection = connection_of(scope)
    if connection is None:
        client = scope.get("client")
        return Peer(client[0] if client else "", None)
    if connection.peer is None:
        connection.peer = _look_up(connection.socket)
    return Peer(*connection.peer)


def client_address(scope: Scope) -> str:
    """The address of the client, by the header of a trusted proxy if there is one."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def _look_up(sock: socket.socket) -> Peer:
    try:
        remote, local = sock.getpeername(), sock.getsockname()
    except OSError:
        return Peer("", None)
    address = str(remote[0]).partition("%")[0]
    if not _is_local(address, str(local[0])):
        return Peer(address, None)
    return Peer(address, _uid_of((remote[0], remote[1]), (local[0], local[1])))


def _is_local(remote: str, local: str) -> bool:
    try:
        return ipaddress.ip_address(remote).is_loopback or remote == local
    except ValueError:
        return False


def _uid_of(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """The user of the socket whose local end is ``peer`` and whose remote end is ``own``."""
    wanted = {(_encoded(*peer, family), _encoded(*own, family)) for family in (4, 6)}
    for table in _TABLES:
        try:
            lines = table.read_text("ascii").splitlines()
        except OSError:
            continue
        for line in lines[1:]:
            columns = line.split()
            if len(columns) > _UID and (columns[_LOCAL], columns[_REMOTE]) in wanted:
                return int(columns[_UID])
    return None


def _encoded(address: str, port: int, version: int) -> str:
    """As the kernel writes it: words of 32 bits in the order of the machine, in hexadecimal."""
    parsed = ipaddress.ip_address(address)
    packed = parsed.packed
    if version == 6 and len(packed) == 4:
        packed = bytes(10) + b"\xff\xff" + packed
    words = [packed[index : index + 4] for index in range(0, len(packed), 4)]
    return "".join(f"{int.from_bytes(word, 'little'):08X}" for word in words) + f":{port:04X}"
