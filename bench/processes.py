"""Many processes that sleep, with one thread or several, in a cgroup of their own."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobsight.agent.ownership import OwnCgroup, make_cgroup

HERE = Path(__file__).parent

_SLEEPERS = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/prctl.h>
#include <signal.h>
static void *wait_for_ever(void *unused) { for (;;) pause(); return unused; }
int main(int argc, char **argv)
{
	int count = atoi(argv[1]), threads = atoi(argv[2]);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int index = 0; index < count; index++) {
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (int other = 1; other < threads; other++) {
				pthread_t thread;
				pthread_attr_t small;
				pthread_attr_init(&small);
				pthread_attr_setstacksize(&small, 65536);
				pthread_create(&thread, &small, wait_for_ever, 0);
			}
			wait_for_ever(0);
		}
	}
	puts("ready");
	fflush(stdout);
	wait_for_ever(0);
}
"""


def compile_program(source: str, name: str, folder: Path, *options: str) -> Path:
    """Compile a C program of the benchmarks."""
    file = folder / f"{name}.c"
    file.write_text(source)
    program = folder / name
    subprocess.run(["cc", "-O2", "-o", program, file, *options], check=True)
    return program


@contextmanager
def sleepers(count: int, threads: int = 1) -> Iterator[OwnCgroup]:
    """So many processes that sleep in a job's cgroup, ended and removed afterwards."""
    own = make_cgroup(f"jobsight-bench-{os.getpid()}")
    if own is None:
        raise SystemExit("this benchmark needs a cgroup of its own: run it as root")
    with tempfile.TemporaryDirectory() as folder:
        program = compile_program(_SLEEPERS, "sleepers", Path(folder), "-pthread")
        mother = subprocess.Popen(
            [program, str(count), str(threads)], stdout=subprocess.PIPE, preexec_fn=own.enter
        )
        try:
            assert mother.stdout is not None
            mother.stdout.readline()
            yield own
        finally:
            mother.kill()
            mother.wait()
            own.end_left_overs(0)
            own.remove()
