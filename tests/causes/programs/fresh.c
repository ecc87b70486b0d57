// SPDX-License-Identifier: Apache-2.0
// Memory that is given back after each piece of work, so that the next piece touches it for the first time.
//
// usage: fresh given|kept SECONDS. With given, each piece maps 16 MiB and unmaps them; else all use the same memory.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 16 << 20, PAGE = 4096 };

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

static char *map(void)
{
	char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	madvise(memory, BYTES, MADV_NOHUGEPAGE);
	return memory;
}

__attribute__((noinline)) static void fill_block(volatile char *memory)
{
	for (size_t at = 0; at < BYTES; at += PAGE)
		memory[at] = (char)at;
}

int main(int count, char **arguments)
{
	int given = count > 1 && !strcmp(arguments[1], "given");
	double until = now() + (count > 2 ? atof(arguments[2]) : 3);
	char *kept = map();

	while (now() < until) {
		char *memory = given ? map() : kept;

		fill_block(memory);
		if (given)
			munmap(memory, BYTES);
		usleep(1000);
	}
	return 0;
}
