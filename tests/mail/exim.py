"""A private exim on loopback, with TLS and authentication, that delivers to a file."""

from __future__ import annotations

import email
import email.policy
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.server.certificates import Papers
from tests.waiting import wait_until

_CONFIGURATION = """\
primary_hostname = localhost
exim_user = {user}
exim_group = {group}
daemon_smtp_ports = {port}
local_interfaces = 127.0.0.1
spool_directory = {directory}/spool
log_file_path = {directory}/log/%s
pid_file_path = {directory}/exim.pid
keep_environment =
add_environment = PATH=/usr/bin:/bin
tls_advertise_hosts = *
tls_certificate = {certificate}
tls_privatekey = {key}
domainlist local_domains = example.org
acl_smtp_rcpt = check_recipient
acl_smtp_data = accept
# Delivered at once, not by a queue runner.
queue_only = false

begin acl

check_recipient:
  deny  message = no such user
        local_parts = nobody
  deny  message = not authenticated
        !authenticated = *
  accept

begin routers

# Accepted at first, and known to be wrong only afterwards.
gone:
  driver = redirect
  domains = +local_domains
  local_parts = gone
  allow_fail
  data = :fail: the mailbox is gone

bounces:
  driver = accept
  domains = +local_domains
  local_parts = bounces
  condition = ${{if exists{{{directory}/bounce}}}}
  transport = bounce

local:
  driver = accept
  domains = +local_domains
  transport = box

begin transports

bounce:
  driver = pipe
  command = {directory}/bounce
  user = {user}
  group = {group}

box:
  driver = appendfile
  file = {directory}/box/inbox
  user = {user}
  group = {group}
  delivery_date_add
  envelope_to_add
  return_path_add

begin retry

* * F,2h,1s

begin authenticators

plain:
  driver = plaintext
  public_name = PLAIN
  server_prompts = :
  server_condition = ${{if and{{{{eq{{$auth2}}{{jobs}}}}{{eq{{$auth3}}{{secret}}}}}}}}
  server_set_id = $auth2
  server_advertise_condition = ${{if def:tls_in_cipher}}
"""


class Exim:
    """A running exim."""

    def __init__(self, directory: Path, port: int, papers: Papers) -> None:
        self.directory = directory
        self.port = port
        self.papers = papers

    def delivered(self) -> list[EmailMessage]:
        """What is in the file, each with the envelope's addresses as headers."""
        file = self.directory / "box" / "inbox"
        if not file.exists():
            return []
        parts = ("\n" + file.read_text()).split("\nFrom ")[1:]
        found = []
        for part in parts:
            message = email.message_from_string(
                part.partition("\n")[2], policy=email.policy.default
            )
            assert isinstance(message, EmailMessage)
            found.append(message)
        return found


@contextmanager
def running(directory: Path) -> Iterator[Exim]:
    """An exim until the end of the block; skips if there is none, or without root."""
    program = shutil.which("exim4", path="/usr/sbin:/usr/bin")
    if program is None or os.geteuid() != 0:
        pytest.skip("needs root and exim (exim4-daemon-light)")
    account = pwd.getpwnam("Debian-exim")
    # The directories above belong to root.
    for above in [directory, *list(directory.parents)[:4]]:
        if str(above).startswith("/tmp/"):
            above.chmod(above.stat().st_mode | 0o011)
    for name in ("spool", "log", "box", "papers"):
        made = directory / name
        made.mkdir()
        os.chown(made, account.pw_uid, account.pw_gid)
    papers = Papers(directory / "papers")
    certificate, key = papers.pair("server")
    for file in (certificate, key):
        os.chown(file, account.pw_uid, account.pw_gid)
    port = free_port()
    configuration = directory / "exim.conf"
    configuration.write_text(
        _CONFIGURATION.format(
            user="Debian-exim", group="Debian-exim", port=port, directory=directory,
            certificate=certificate, key=key,
        )
    )  # fmt: skip
    configuration.chmod(0o644)
    output = (directory / "output").open("wb")
    with subprocess.Popen(
        [program, "-C", str(configuration), "-bdf"], stdout=output, stderr=output
    ) as process:
        try:
            wait_until(lambda: process.poll() is not None or _answers(port))
            said = (directory / "output").read_text()
            assert process.poll() is None, said
            yield Exim(directory, port, papers)
        finally:
            process.terminate()
            output.close()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return connection.recv(3) == b"220"
    except OSError:
        return False
