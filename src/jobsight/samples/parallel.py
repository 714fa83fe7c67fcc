"""Keeps a number of CPUs busy for twelve seconds: parallel.py WORKERS."""

import os
import sys
import time

workers = int(sys.argv[1])
for _ in range(workers):
    if os.fork() == 0:
        end = time.monotonic() + 12
        while time.monotonic() < end:
            sum(number * number for number in range(20_000))
        os._exit(0)
for _ in range(workers):
    os.wait()
