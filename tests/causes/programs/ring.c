// SPDX-License-Identifier: Apache-2.0
// A thread that reads blocks of a file through io_uring, and waits for each: past the page cache, or out of it.
// With `sync` it writes a block and waits for fsync, which a worker of io_uring carries out; with `write` it only
// writes.
//
// usage: ring FILE SECONDS direct|cached|sync|write
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 4096

static struct io_uring_params ring;
static unsigned char *submissions, *completions;
static struct io_uring_sqe *entries;
static int ring_file;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

static void *map(uint64_t offset, size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring_file, offset);

	if (at == MAP_FAILED)
		exit(1);
	return at;
}

static void set_up(void)
{
	ring_file = syscall(SYS_io_uring_setup, 4, &ring);
	if (ring_file < 0)
		exit(1);
	submissions = map(IORING_OFF_SQ_RING, ring.sq_off.array + ring.sq_entries * sizeof(unsigned));
	completions = map(IORING_OFF_CQ_RING, ring.cq_off.cqes + ring.cq_entries * sizeof(struct io_uring_cqe));
	entries = map(IORING_OFF_SQES, ring.sq_entries * sizeof(struct io_uring_sqe));
}

// One operation, and its end.
static int carry_out(struct io_uring_sqe operation)
{
	unsigned *tail = (unsigned *)(submissions + ring.sq_off.tail);
	unsigned mask = *(unsigned *)(submissions + ring.sq_off.ring_mask);
	unsigned *head = (unsigned *)(completions + ring.cq_off.head);
	unsigned completed_mask = *(unsigned *)(completions + ring.cq_off.ring_mask);
	struct io_uring_cqe *done = (struct io_uring_cqe *)(completions + ring.cq_off.cqes);
	unsigned at = *tail & mask;
	int result;

	entries[at] = operation;
	((unsigned *)(submissions + ring.sq_off.array))[at] = at;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring_file, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		return -1;
	result = done[*head & completed_mask].res;
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	return result;
}

__attribute__((noinline)) static int read_block(int file, void *block, uint64_t offset)
{
	return carry_out((struct io_uring_sqe){
		.opcode = IORING_OP_READ, .fd = file, .addr = (uintptr_t)block, .len = BLOCK, .off = offset});
}

static int write_block(int file, void *block, uint64_t offset)
{
	return carry_out((struct io_uring_sqe){
		.opcode = IORING_OP_WRITE, .fd = file, .addr = (uintptr_t)block, .len = BLOCK, .off = offset});
}

__attribute__((noinline)) static int sync_blocks(int file)
{
	return carry_out((struct io_uring_sqe){.opcode = IORING_OP_FSYNC, .fd = file});
}

int main(int count, char **arguments)
{
	struct stat status;
	void *block;

	if (count != 4)
		return 2;
	double ends = now() + atof(arguments[2]);
	const char *way = arguments[3];
	bool syncs = !strcmp(way, "sync"), writes = syncs || !strcmp(way, "write");
	int file = open(arguments[1], (writes ? O_RDWR : O_RDONLY) | (strcmp(way, "direct") ? 0 : O_DIRECT));

	if (file < 0 || fstat(file, &status) || posix_memalign(&block, BLOCK, BLOCK))
		return 1;
	set_up();
	for (uint64_t number = 1; now() < ends; number++) {
		uint64_t blocks = status.st_size / BLOCK;

		uint64_t offset = number * 7919 % blocks * BLOCK;

		if ((writes ? write_block : read_block)(file, block, offset) != BLOCK || (syncs && sync_blocks(file)))
			return 1;
		usleep(5000);
	}
	return 0;
}
