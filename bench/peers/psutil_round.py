"""One sampling round with psutil over the process ids on standard input: CPU, memory, I/O,
threads and executable of each, the objects kept from round to round.

Runs in the peers' environment. Prints the CPU nanoseconds of the cheapest of ROUNDS rounds.
"""

import sys
import time

import psutil

processes = [psutil.Process(int(line)) for line in sys.stdin]
best = None
for _ in range(int(sys.argv[1])):
    start = time.process_time_ns()
    for process in processes:
        with process.oneshot():
            process.cpu_times()
            process.memory_info()
            process.io_counters()
            process.num_threads()
            process.exe()
    used = time.process_time_ns() - start
    best = used if best is None else min(best, used)
print(best)
