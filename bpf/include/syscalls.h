/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Numbers of x86_64 system calls whose arguments or results the probes read (asm/unistd_64.h). A test
 * compares them with the table of crates/probe/src/reasons.rs. */
#pragma once

#define NR_READ 0
#define NR_WRITE 1
#define NR_POLL 7
#define NR_PREAD64 17
#define NR_PWRITE64 18
#define NR_READV 19
#define NR_WRITEV 20
#define NR_SELECT 23
#define NR_NANOSLEEP 35
#define NR_CLONE 56
#define NR_EXIT 60
#define NR_SYNC 162
#define NR_FUTEX 202
#define NR_IO_GETEVENTS 208
#define NR_RESTART_SYSCALL 219
#define NR_CLOCK_NANOSLEEP 230
#define NR_EXIT_GROUP 231
#define NR_EPOLL_WAIT 232
#define NR_PSELECT6 270
#define NR_PPOLL 271
#define NR_EPOLL_PWAIT 281
#define NR_PREADV 295
#define NR_PWRITEV 296
#define NR_PREADV2 327
#define NR_PWRITEV2 328
#define NR_IO_PGETEVENTS 333
#define NR_IO_URING_ENTER 426
#define NR_CLONE3 435
#define NR_EPOLL_PWAIT2 441
