"""Writes a file of 64 MiB to disk and reads it back, again and again for eleven seconds."""

import os
import tempfile
import time

block = os.urandom(2**20)
end = time.monotonic() + 11
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "scratch")
    while time.monotonic() < end:
        with open(path, "wb") as file:
            for _ in range(64):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        with open(path, "rb") as file:
            while file.read(2**20):
                pass
        time.sleep(0.2)
