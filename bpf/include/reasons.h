/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Reasons of blocked time, each declared once: the number in records and in recordings, the name, whether a
 * thread enters such a wait voluntarily, and what it waits for. crates/model generates its `Reason` from this
 * list, and the recording's SQL from that. Append; never reorder. */
#pragma once

#define INVOLUNTARY 0
#define VOLUNTARY 1

#define FOR_EACH_REASON(X)                                                                                   \
    X(0, LOCK, INVOLUNTARY)     /* a futex that is a lock, a file lock, or a lock of the kernel */           \
    X(1, WAIT, VOLUNTARY)       /* a condition variable, a signal, an eventfd, or new work in the kernel */  \
    X(2, DISK, INVOLUNTARY)     /* the I/O of a file or of a file system */                                  \
    X(3, NETWORK, INVOLUNTARY)  /* a socket of a family other than unix */                                   \
    X(4, POLL, VOLUNTARY)       /* descriptors, by poll, epoll or io_uring; a terminal or another device */  \
    X(5, SLEEP, VOLUNTARY)      /* a time, in nanosleep or clock_nanosleep */                                \
    X(6, PIPE, INVOLUNTARY)     /* a pipe or a FIFO */                                                       \
    X(7, IPC, INVOLUNTARY)      /* a unix socket, a message queue, or a System V semaphore */                \
    X(8, CHILD, VOLUNTARY)      /* the end of a child process, or its exec after vfork */                    \
    X(9, MEMORY, INVOLUNTARY)   /* reclaim of memory, a change of the memory map, or a userfaultfd */        \
    X(10, STOPPED, INVOLUNTARY) /* the end of a stop by a signal, a tracer or a freezer */                   \
    X(11, OTHER, INVOLUNTARY)   /* anything else, such as an RCU grace period, a FUSE server or an ioctl */

#define REASON_ENUMERATOR(number, name, voluntary) REASON_##name = number,
#define REASON_ONE(number, name, voluntary) +1
#define REASON_BIT(number, name, voluntary) | (1 << number)
#define REASON_VOLUNTARY_BIT(number, name, voluntary) | (voluntary << number)

enum reason { FOR_EACH_REASON(REASON_ENUMERATOR) };

enum {
    REASONS = FOR_EACH_REASON(REASON_ONE),
    /* By number, a bit each. */
    VOLUNTARY_REASONS = 0 FOR_EACH_REASON(REASON_VOLUNTARY_BIT),
};

_Static_assert((0 FOR_EACH_REASON(REASON_BIT)) == (1 << REASONS) - 1, "numbers of reasons have no gaps");
