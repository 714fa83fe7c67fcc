"""Takes five MiB of memory at a time, up to 230."""

import time

held = []
for _ in range(46):
    held.append(bytearray(b"x" * (5 * 2**20)))
    time.sleep(0.21)
time.sleep(1)
