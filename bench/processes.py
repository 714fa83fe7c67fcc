"""Many processes that sleep, with one thread or several, in a cgroup of their own."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobsight.agent.launch.cgroup import OwnCgroup, create_cgroup

HERE = Path(__file__).parent

_SLEEPERS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
static int *awake;
static void *wait_for_ever(void *unused) { for (;;) pause(); return unused; }
/* A little of everything that a sampling round looks at: CPU time, memory and input. */
static void work(int unused)
{
	char data[512];
	for (volatile int turn = 0; turn < 20000; turn++)
		;
	*(volatile char *)mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) = 1;
	int file = open("/proc/self/stat", O_RDONLY);
	if (read(file, data, sizeof data) < 0)
		_exit(1);
	close(file);
	__sync_fetch_and_add(awake, 1);
}
int main(int argc, char **argv)
{
	int count = atoi(argv[1]), threads = atoi(argv[2]);
	pid_t *children = calloc(count, sizeof *children);
	awake = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGUSR1, work);
	for (int index = 0; index < count; index++) {
		if ((children[index] = fork()) == 0) {
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
	while (getchar() != EOF) {
		*awake = 0;
		for (int index = 0; index < count; index++)
			kill(children[index], SIGUSR1);
		while (*(volatile int *)awake < count)
			usleep(1000);
		puts("worked");
		fflush(stdout);
	}
}
"""


def compile_program(source: str, name: str, folder: Path, *options: str) -> Path:
    """Compile a C program of the benchmarks."""
    file = folder / f"{name}.c"
    file.write_text(source)
    program = folder / name
    subprocess.run(["cc", "-O2", "-o", program, file, *options], check=True)
    return program


def sleepers_program(folder: Path) -> Path:
    """Its arguments are the number of processes and of threads; it ends with its input."""
    return compile_program(_SLEEPERS, "sleepers", folder, "-pthread")


class Sleepers:
    """Processes in a job's cgroup that do nothing unless they are told to."""

    def __init__(self, own: OwnCgroup, mother: subprocess.Popen[bytes]) -> None:
        self.cgroup = own.cgroup
        self._mother = mother

    def work(self) -> None:
        """Let each of them use a little CPU, memory and input."""
        assert self._mother.stdin is not None
        assert self._mother.stdout is not None
        self._mother.stdin.write(b"!")
        self._mother.stdin.flush()
        self._mother.stdout.readline()


@contextmanager
def sleepers(count: int, threads: int = 1) -> Iterator[Sleepers]:
    """So many processes that sleep in a job's cgroup, ended and removed afterwards."""
    own = create_cgroup(f"jobsight-bench-{os.getpid()}")
    if own is None:
        raise SystemExit("this benchmark needs a cgroup of its own: run it as root")
    with tempfile.TemporaryDirectory() as folder:
        mother = subprocess.Popen(
            [sleepers_program(Path(folder)), str(count), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=own.enter,
        )
        try:
            assert mother.stdout is not None
            mother.stdout.readline()
            yield Sleepers(own, mother)
        finally:
            mother.kill()
            mother.communicate()
            own.kill_leftovers(0)
            own.remove()
