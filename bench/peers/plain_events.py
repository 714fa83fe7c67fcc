"""Process events the plain way: no filter in the kernel, and every message wakes this loop, which
takes it in, reads the executable's link at each exec and records the record of each exit."""

import os
import select
import socket
import struct

from jobsight.agent.processes.netlink import Taskstats, parse_record

connector = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 11)
connector.bind((0, 1))
body = struct.pack("=IIIIHHI", 1, 1, 0, 0, 4, 0, 1)
connector.send(struct.pack("=IHHII", 16 + len(body), 3, 0, 0, 0) + body)
# Opened by our code, to be read the plain way.
taskstats = Taskstats()
poll = select.poll()
poll.register(connector, select.POLLIN)
poll.register(taskstats, select.POLLIN)
running = {}
counts = {}
used = {}


def take_event(message: bytes) -> None:
    what, _, _, _, tgid = struct.unpack_from("=IIQII", message, 36)
    if what == 2:
        try:
            running[tgid] = os.readlink(f"/proc/{tgid}/exe")
        except OSError:
            running[tgid] = "?"
        counts[running[tgid]] = counts.get(running[tgid], 0) + 1


def take_record(message: bytes) -> None:
    _, kind = struct.unpack_from("=HH", message, 20)
    length, _ = struct.unpack_from("=HH", message, 32)
    record = parse_record(message[36 : 32 + length]) if kind == 4 else None
    if record is not None:
        name = running.pop(record.pid, "?")
        used[name] = used.get(name, 0) + record.cpu_time


while True:
    for descriptor, _ in poll.poll():
        if descriptor == connector.fileno():
            take_event(connector.recv(16384))
        else:
            take_record(taskstats.connection.recv(16384))
