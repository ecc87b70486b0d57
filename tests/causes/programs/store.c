// SPDX-License-Identifier: Apache-2.0
// A thread that counts in a page of a mapped file every five milliseconds, for so many seconds.
//
// usage: store FILE SECONDS
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

__attribute__((noinline)) static void count_event(volatile unsigned *page)
{
	(*page)++;
}

int main(int count, char **arguments)
{
	if (count != 3)
		return 2;
	double ends = now() + atof(arguments[2]);
	int file = open(arguments[1], O_RDWR | O_CREAT, 0600);

	if (file < 0 || ftruncate(file, 4096) != 0)
		return 1;
	volatile unsigned *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	if (page == MAP_FAILED)
		return 1;
	while (now() < ends) {
		count_event(page);
		usleep(5000);
	}
	return 0;
}
