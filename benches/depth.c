// SPDX-License-Identifier: Apache-2.0
// depth N: calls getppid from under N functions without frame pointers, over and over, until it is killed.
//
// Sixty-four functions, each with its own frame, that save different registers; so that every frame of a
// stack is another place of the unwind table.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALONE __attribute__((noinline, noclone))

static volatile uint64_t sink;

ALONE static uint64_t leaf(void) { return (uint64_t)syscall(SYS_getppid); }

#define STEP(name, next, words)                                                                              \
    ALONE static uint64_t name(unsigned left) {                                                              \
        volatile uint64_t room[words];                                                                       \
        uint64_t kept = sink ^ left;                                                                         \
        __asm__ volatile("" : "+r"(kept));                                                                   \
        room[0] = left ? next(left - 1) : leaf();                                                            \
        __asm__ volatile("" : "+r"(kept));                                                                   \
        return room[0] + kept;                                                                               \
    }

static uint64_t last(unsigned left) {
    (void)left;
    return leaf();
}

#define EIGHT(tens, next)                                                                                    \
    STEP(f##tens##7, next, 1)                                                                                \
    STEP(f##tens##6, f##tens##7, 3)                                                                          \
    STEP(f##tens##5, f##tens##6, 8)                                                                          \
    STEP(f##tens##4, f##tens##5, 2)                                                                          \
    STEP(f##tens##3, f##tens##4, 13)                                                                         \
    STEP(f##tens##2, f##tens##3, 5)                                                                          \
    STEP(f##tens##1, f##tens##2, 21)                                                                         \
    STEP(f##tens##0, f##tens##1, 1)

EIGHT(7, last)
EIGHT(6, f70)
EIGHT(5, f60)
EIGHT(4, f50)
EIGHT(3, f40)
EIGHT(2, f30)
EIGHT(1, f20)
EIGHT(0, f10)

int main(int argc, char **argv) {
    // Below them are _start, __libc_start_main, its helper and main; above them leaf and syscall.
    int functions = argc == 2 ? atoi(argv[1]) - 6 : 0;

    if (functions < 1 || functions > 64) {
        fprintf(stderr, "usage: depth FRAMES, 7 to 70\n");
        return 2;
    }
    for (;;)
        sink = f00((unsigned)functions - 1);
}
