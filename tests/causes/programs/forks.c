// SPDX-License-Identifier: Apache-2.0
// A process with much memory forks again and again, while another thread maps and unmaps buffers.
//
// usage: forks copied|left SECONDS. With copied, the kernel copies the page tables of the memory for each child; else children
// have none of it.
// At its end it prints by how much the turns of the other thread were late, by its own clock.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MEMORY = 512 << 20, BUFFER = 64 << 10, PAGE = 4096 };

// A turn of the thread takes less than this.
static const double TURN = 0.001;
static double until;
static volatile long used;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

static char *map(size_t bytes)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return memory;
}

__attribute__((noinline)) static void use_buffer(void)
{
	used += munmap(map(BUFFER), BUFFER) == 0;
}

static void *serve(void *unused)
{
	double first = now(), late = 0, longest = 0;

	(void)unused;
	prctl(PR_SET_NAME, "engine");
	while (now() < until) {
		double start = now(), turn;

		use_buffer();
		usleep(500);
		turn = now() - start;
		late += turn > TURN ? turn - TURN : 0;
		longest = turn > longest ? turn : longest;
	}
	printf("late by %.0f of %.0f ms, the longest turn %.1f ms\n", late * 1e3, (now() - first) * 1e3, longest * 1e3);
	return NULL;
}

__attribute__((noinline)) static void save_all(void)
{
	pid_t child = fork();

	if (child == 0)
		_exit(0);
	waitpid(child, NULL, 0);
}

int main(int count, char **arguments)
{
	int copies = count > 1 && !strcmp(arguments[1], "copied");
	char *memory = map(MEMORY);
	pthread_t thread;

	until = now() + (count > 2 ? atof(arguments[2]) : 3);
	madvise(memory, MEMORY, MADV_NOHUGEPAGE);
	if (!copies)
		madvise(memory, MEMORY, MADV_DONTFORK);
	for (size_t at = 0; at < MEMORY; at += PAGE)
		memory[at] = 1;
	pthread_create(&thread, NULL, serve, NULL);
	while (now() < until) {
		save_all();
		usleep(20000);
	}
	pthread_join(thread, NULL);
	return 0;
}
