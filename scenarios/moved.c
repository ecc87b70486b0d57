// SPDX-License-Identifier: Apache-2.0
// moved: the program has moved its own text to anonymous memory, as programs do that want huge pages for it.
//
// The only thread sleeps for 20 ms again and again: doze, called by work. Ends after 60 s, or killed. Prints
// nothing: there is no truth but its stacks.

#include "truth.h"

#include <sys/mman.h>

#define PAGE 4096UL

extern char etext, _init; // ends of the text

SHOWN static void doze(void) { sleep_for(20 * NS_PER_MS); }

SHOWN static void work(void) {
    for (int i = 0; i < 3000; i++)
        doze();
}

int main(void) {
    uintptr_t start = (uintptr_t)&_init & ~(PAGE - 1), end = ((uintptr_t)&etext + PAGE - 1) & ~(PAGE - 1);
    size_t bytes = end - start;
    char *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED)
        die("cannot map memory", errno);
    memcpy(copy, (void *)start, bytes);
    mprotect(copy, bytes, PROT_READ | PROT_EXEC);
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, start) == MAP_FAILED)
        die("cannot move the text", errno);
    prctl(PR_SET_NAME, "worker");
    work();
}
