/* One sampling round as a plain C program does it: for each process id on standard input, open
 * and read stat and io, read the link of the executable, and count the open files. Prints the
 * CPU nanoseconds of the cheapest of ROUNDS rounds. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static unsigned long long checksum;

static void read_file(const char *path)
{
	char data[2048];
	int file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return;
	ssize_t size = read(file, data, sizeof data - 1);
	close(file);
	if (size <= 0)
		return;
	data[size] = 0;
	char *mark = strrchr(data, ')');
	if (!mark) {
		unsigned long long number;
		for (char *line = data; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : 0)
			if (sscanf(line, "%*[^:]: %llu", &number) == 1)
				checksum += number;
		return;
	}
	unsigned long long user, system;
	long threads, resident;
	if (sscanf(mark + 2,
		   "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %ld %*d %*u "
		   "%*u %ld",
		   &user, &system, &threads, &resident) == 4)
		checksum += user + system + threads + resident;
}

static void one_process(int pid)
{
	char path[64], link[4096];
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	read_file(path);
	snprintf(path, sizeof path, "/proc/%d/io", pid);
	read_file(path);
	snprintf(path, sizeof path, "/proc/%d/exe", pid);
	ssize_t length = readlink(path, link, sizeof link);
	checksum += length > 0 ? length : 0;
	snprintf(path, sizeof path, "/proc/%d/fd", pid);
	DIR *folder = opendir(path);
	if (!folder)
		return;
	while (readdir(folder))
		checksum++;
	closedir(folder);
}

static long long cpu_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 5, count = 0, pid;
	static int pids[100000];
	while (count < 100000 && scanf("%d", &pid) == 1)
		pids[count++] = pid;
	long long best = -1;
	for (int round = 0; round < rounds; round++) {
		long long start = cpu_now();
		for (int index = 0; index < count; index++)
			one_process(pids[index]);
		long long used = cpu_now() - start;
		if (best < 0 || used < best)
			best = used;
	}
	fprintf(stderr, "checksum %llu\n", checksum);
	printf("%lld\n", best);
	return 0;
}
