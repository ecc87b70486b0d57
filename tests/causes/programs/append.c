// SPDX-License-Identifier: Apache-2.0
// A thread that appends a record to a file every millisecond, for so many seconds.
//
// usage: append FILE SECONDS
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

__attribute__((noinline)) static int append_record(int file)
{
	char record[512];

	memset(record, 'x', sizeof record);
	return write(file, record, sizeof record) == sizeof record;
}

int main(int count, char **arguments)
{
	if (count != 3)
		return 2;
	double ends = now() + atof(arguments[2]);
	int file = open(arguments[1], O_WRONLY | O_CREAT | O_APPEND, 0600);

	if (file < 0)
		return 1;
	while (now() < ends) {
		if (!append_record(file))
			return 1;
		usleep(1000);
	}
	return 0;
}
