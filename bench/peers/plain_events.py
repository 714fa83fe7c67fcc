"""Process events the plain way: every event of the node wakes this loop, which takes in one
message, and the executable's link is read at each exec. Exit records likewise."""

import os
import select
import socket
import struct

connector = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 11)
connector.bind((0, 1))
body = struct.pack("=IIIIHHI", 1, 1, 0, 0, 4, 0, 1)
connector.send(struct.pack("=IHHII", 16 + len(body), 3, 0, 0, 0) + body)
poll = select.poll()
poll.register(connector, select.POLLIN)
running = {}
counts = {}
while True:
    poll.poll()
    message = connector.recv(16384)
    if len(message) < 68:
        continue
    what, _, _, pid, tgid = struct.unpack_from("=IIQII", message, 36)
    if what == 2:
        try:
            running[tgid] = os.readlink(f"/proc/{tgid}/exe")
        except OSError:
            running[tgid] = "?"
        counts[running[tgid]] = counts.get(running[tgid], 0) + 1
    elif what == 0x80000000:
        running.pop(tgid, None)
