"""Takes five MiB of memory at a time, up to 220."""

import time

held = []
for _ in range(44):
    held.append(bytearray(b"x" * (5 * 2**20)))
    time.sleep(0.22)
time.sleep(1)
