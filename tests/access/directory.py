"""Debian's slapd with some users and groups, on loopback, with TLS."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.ports import free_port
from tests.server.certificates import Papers
from tests.waiting import wait_until

SUFFIX = "dc=example,dc=org"
PASSWORD = "the password of the directory"
SERVICE = f"cn=service,{SUFFIX}"

_CONFIGURATION = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/nis.schema
include /etc/ldap/schema/inetorgperson.schema
pidfile {folder}/slapd.pid
modulepath /usr/lib/ldap
moduleload back_mdb
TLSCACertificateFile {authority}
TLSCertificateFile {certificate}
TLSCertificateKeyFile {key}
database mdb
suffix "dc=example,dc=org"
rootdn "cn=admin,dc=example,dc=org"
rootpw admin
directory {folder}/data
access to attrs=userPassword by anonymous auth by * none
access to * by users read by anonymous none
"""

_USERS = """dn: dc=example,dc=org
objectClass: domain
dc: example

dn: ou=people,dc=example,dc=org
objectClass: organizationalUnit
ou: people

dn: ou=groups,dc=example,dc=org
objectClass: organizationalUnit
ou: groups

dn: cn=service,dc=example,dc=org
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: service
userPassword: service password

dn: uid=alice,ou=people,dc=example,dc=org
objectClass: inetOrgPerson
uid: alice
cn: Alice
sn: A
userPassword: the password of the directory

dn: uid=carol,ou=people,dc=example,dc=org
objectClass: inetOrgPerson
uid: carol
cn: Carol
sn: C
userPassword: the password of the directory

dn: cn=hpc-staff,ou=groups,dc=example,dc=org
objectClass: posixGroup
cn: hpc-staff
gidNumber: 5000
memberUid: carol

dn: cn=hpc-audit,ou=groups,dc=example,dc=org
objectClass: groupOfNames
cn: hpc-audit
member: uid=carol,ou=people,dc=example,dc=org
"""


class Running(NamedTuple):
    """A directory that answers."""

    plain: str
    tls: str
    authority: str


@contextmanager
def running(folder: Path) -> Iterator[Running]:
    """Start slapd; skipped by the caller without it."""
    papers = Papers(folder)
    (folder / "data").mkdir()
    certificate, key = papers.pair("server")
    settings = folder / "slapd.conf"
    settings.write_text(
        _CONFIGURATION.format(
            folder=folder, authority=papers.authority, certificate=certificate, key=key
        )
    )
    (folder / "users.ldif").write_text(_USERS)
    add = ["/usr/sbin/slapadd", "-f", str(settings), "-l", str(folder / "users.ldif")]
    subprocess.run(add, check=True, capture_output=True, timeout=60)
    ports = free_port(), free_port()
    urls = f"ldap://127.0.0.1:{ports[0]}", f"ldaps://127.0.0.1:{ports[1]}"
    command = ["/usr/sbin/slapd", "-f", str(settings), "-h", " ".join(urls), "-d", "0"]
    with (folder / "slapd.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: all(_answers(port) for port in ports))
        yield Running(*urls, papers.authority)
    finally:
        process.terminate()
        process.wait(60)


def is_installed() -> bool:
    return shutil.which("slapd", path="/usr/sbin:/usr/local/sbin") is not None


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
