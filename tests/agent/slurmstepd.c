/* Does with cgroups what slurmstepd does: makes a step's folders and enters them, moves each task
 * into a folder of its own before it executes the command, waits, and removes what it made.
 *
 * slurmstepd DAEMON_FOLDERS TASK_FOLDERS TASKS KEEP COMMAND...
 *
 * Folders are lists with ':' between; tasks get "task_N" in each of TASK_FOLDERS. With KEEP the
 * folders stay. The job's own folder goes with its last step. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void make(const char *folder)
{
	char path[4096];
	snprintf(path, sizeof path, "%s", folder);
	for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = 0;
		mkdir(path, 0755);
		*slash = '/';
	}
	if (mkdir(path, 0755) && errno != EEXIST) {
		perror(path);
		exit(99);
	}
}

static void enter(const char *folder)
{
	char path[4200];
	snprintf(path, sizeof path, "%s/cgroup.procs", folder);
	int file = open(path, O_WRONLY | O_CLOEXEC);
	if (file < 0 || write(file, "0", 1) != 1) {
		perror(path);
		exit(98);
	}
	close(file);
}

static void discard(const char *folder)
{
	for (int patience = 0; patience < 500; patience++) {
		if (!rmdir(folder) || errno == ENOENT || errno == ENOTEMPTY)
			return;
		usleep(2000);
	}
}

static void leave(const char *folder)
{
	/* Up to the root of the hierarchy, which is the folder that holds the root of Slurm's. */
	char path[4096], *mark;
	snprintf(path, sizeof path, "%s", folder);
	if ((mark = strstr(path, "/slurm")))
		*mark = 0;
	enter(path);
}

int main(int count, char **words)
{
	char *daemon_list = words[1], *task_list = words[2], *folder, *rest;
	int tasks = atoi(words[3]), keep = atoi(words[4]);
	prctl(PR_SET_NAME, "slurmstepd");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (folder = strtok_r(strdup(daemon_list), ":", &rest); folder; folder = strtok_r(0, ":", &rest)) {
		make(folder);
		enter(folder);
	}
	for (int task = 0; task < tasks; task++) {
		for (folder = strtok_r(strdup(task_list), ":", &rest); folder;
		     folder = strtok_r(0, ":", &rest)) {
			char path[4200];
			snprintf(path, sizeof path, "%s/task_%d", folder, task);
			make(path);
		}
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (folder = strtok_r(strdup(task_list), ":", &rest); folder;
			     folder = strtok_r(0, ":", &rest)) {
				char path[4200];
				snprintf(path, sizeof path, "%s/task_%d", folder, task);
				enter(path);
			}
			execvp(words[5], words + 5);
			perror(words[5]);
			_exit(127);
		}
	}
	int status, worst = 0;
	while (wait(&status) > 0)
		worst = status ? 1 : worst;
	if (keep)
		return worst;
	for (folder = strtok_r(strdup(daemon_list), ":", &rest); folder; folder = strtok_r(0, ":", &rest))
		leave(folder);
	for (folder = strtok_r(strdup(task_list), ":", &rest); folder; folder = strtok_r(0, ":", &rest)) {
		for (int task = 0; task < tasks; task++) {
			char path[4200];
			snprintf(path, sizeof path, "%s/task_%d", folder, task);
			discard(path);
		}
		discard(folder);
		discard(dirname(strdup(folder)));
	}
	for (folder = strtok_r(strdup(daemon_list), ":", &rest); folder; folder = strtok_r(0, ":", &rest)) {
		discard(folder);
		discard(dirname(strdup(folder)));
	}
	return worst;
}
