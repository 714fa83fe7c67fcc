"""What psutil knows of a node as a whole.

Runs in the peers' environment. Prints the CPU nanoseconds of the cheapest of some readings.
"""

import sys
import time

import psutil


def read() -> None:
    psutil.getloadavg()
    psutil.cpu_times()
    psutil.virtual_memory()
    psutil.swap_memory()
    psutil.net_io_counters(pernic=True)
    psutil.disk_io_counters(perdisk=True)


costs = []
for _ in range(int(sys.argv[1])):
    start = time.process_time_ns()
    read()
    costs.append(time.process_time_ns() - start)
print(min(costs))
