"""One sampling round of SAMS's Software sampler over the process ids on standard input.

Runs in the peers' environment. Prints the CPU nanoseconds of the cheapest of ROUNDS rounds.
"""

import sys
import time

from sams.sampler.Software import Process

processes = [Process(int(line), 1) for line in sys.stdin]
best = None
for _ in range(int(sys.argv[1])):
    start = time.process_time_ns()
    for process in processes:
        process.update(0.0)
        process.aggregate()
    used = time.process_time_ns() - start
    best = used if best is None else min(best, used)
print(best)
