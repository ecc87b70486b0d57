// SPDX-License-Identifier: Apache-2.0
// chain: deep stacks of functions without frame pointers.
//
// In its first thread, in turn until the run is over:
//   climb_chain → f00 → f01 → … → f59 → call_leaf: sixty functions with frames of different sizes, that save
//       different registers, rbp among them
//   climb_down → descend → descend → …: one function in 120 frames
// At the end of each the thread spins, sleeps in nanosleep, and waits in futex (alone.h).
//
// Truth: alone.h's lines.

#include "alone.h"

#define RECURSION 120

static struct run run = {.scenario = "chain", .seconds = 3, .seed = 42};
static volatile uint64_t sink;

// --- sixty functions ---

// Values that must survive the call, each in a register of its own as far as there are any.
#define KEEP_0
#define KEEP_1 KEPT(1)
#define KEEP_2 KEPT(1) KEPT(2)
#define KEEP_4 KEEP_2 KEPT(3) KEPT(4)
#define KEEP_6 KEEP_4 KEPT(5) KEPT(6)
#define KEPT(n)                                                                                              \
    uint64_t kept_##n = depth * n;                                                                           \
    __asm__ volatile("" : "+r"(kept_##n));
#define USE_0
#define USE_1 USED(1)
#define USE_2 USED(1) USED(2)
#define USE_4 USE_2 USED(3) USED(4)
#define USE_6 USE_4 USED(5) USED(6)
#define USED(n)                                                                                              \
    __asm__ volatile("" : "+r"(kept_##n));                                                                   \
    result ^= kept_##n;

#define LINK(name, next, registers, words)                                                                   \
    OPAQUE static uint64_t name(uint64_t depth) {                                                            \
        volatile uint64_t room[words];                                                                       \
        room[depth % words] = depth;                                                                         \
        KEEP_##registers uint64_t result = next(depth + 1);                                                  \
        USE_##registers return result + room[depth % words];                                                 \
    }

// From the innermost outwards: each calls the one before.
#define LINKS                                                                                                \
    LINK(f59, call_leaf, 0, 1)                                                                               \
    LINK(f58, f59, 6, 3)                                                                                     \
    LINK(f57, f58, 2, 17)                                                                                    \
    LINK(f56, f57, 1, 200)                                                                                   \
    LINK(f55, f56, 4, 5)                                                                                     \
    LINK(f54, f55, 0, 600)                                                                                   \
    LINK(f53, f54, 6, 1)                                                                                     \
    LINK(f52, f53, 1, 2)                                                                                     \
    LINK(f51, f52, 2, 9)                                                                                     \
    LINK(f50, f51, 4, 33)                                                                                    \
    LINK(f49, f50, 0, 4)                                                                                     \
    LINK(f48, f49, 6, 65)                                                                                    \
    LINK(f47, f48, 2, 7)                                                                                     \
    LINK(f46, f47, 1, 1)                                                                                     \
    LINK(f45, f46, 4, 129)                                                                                   \
    LINK(f44, f45, 0, 11)                                                                                    \
    LINK(f43, f44, 6, 2)                                                                                     \
    LINK(f42, f43, 2, 300)                                                                                   \
    LINK(f41, f42, 1, 13)                                                                                    \
    LINK(f40, f41, 4, 1)                                                                                     \
    LINK(f39, f40, 0, 6)                                                                                     \
    LINK(f38, f39, 6, 8)                                                                                     \
    LINK(f37, f38, 2, 1000)                                                                                  \
    LINK(f36, f37, 1, 10)                                                                                    \
    LINK(f35, f36, 4, 12)                                                                                    \
    LINK(f34, f35, 0, 14)                                                                                    \
    LINK(f33, f34, 6, 16)                                                                                    \
    LINK(f32, f33, 2, 18)                                                                                    \
    LINK(f31, f32, 1, 20)                                                                                    \
    LINK(f30, f31, 4, 22)                                                                                    \
    LINK(f29, f30, 0, 2)                                                                                     \
    LINK(f28, f29, 6, 24)                                                                                    \
    LINK(f27, f28, 2, 26)                                                                                    \
    LINK(f26, f27, 1, 28)                                                                                    \
    LINK(f25, f26, 4, 30)                                                                                    \
    LINK(f24, f25, 0, 3)                                                                                     \
    LINK(f23, f24, 6, 32)                                                                                    \
    LINK(f22, f23, 2, 34)                                                                                    \
    LINK(f21, f22, 1, 36)                                                                                    \
    LINK(f20, f21, 4, 38)                                                                                    \
    LINK(f19, f20, 0, 5)                                                                                     \
    LINK(f18, f19, 6, 40)                                                                                    \
    LINK(f17, f18, 2, 42)                                                                                    \
    LINK(f16, f17, 1, 44)                                                                                    \
    LINK(f15, f16, 4, 46)                                                                                    \
    LINK(f14, f15, 0, 7)                                                                                     \
    LINK(f13, f14, 6, 48)                                                                                    \
    LINK(f12, f13, 2, 50)                                                                                    \
    LINK(f11, f12, 1, 52)                                                                                    \
    LINK(f10, f11, 4, 54)                                                                                    \
    LINK(f09, f10, 0, 9)                                                                                     \
    LINK(f08, f09, 6, 56)                                                                                    \
    LINK(f07, f08, 2, 58)                                                                                    \
    LINK(f06, f07, 1, 60)                                                                                    \
    LINK(f05, f06, 4, 62)                                                                                    \
    LINK(f04, f05, 0, 11)                                                                                    \
    LINK(f03, f04, 6, 64)                                                                                    \
    LINK(f02, f03, 2, 66)                                                                                    \
    LINK(f01, f02, 1, 68)                                                                                    \
    LINK(f00, f01, 4, 70)

LINKS

OPAQUE static void climb_chain(void) { sink += f00(1); }

// --- one function, many times ---

OPAQUE static uint64_t descend(uint64_t depth) {
    volatile uint64_t room[1 + RECURSION / 8];
    room[depth % 16] = depth;
    uint64_t result = depth == RECURSION ? call_leaf(depth) : descend(depth + 1);
    return result + room[depth % 16];
}

OPAQUE static void climb_down(void) { sink += descend(1); }

// --- truth ---

static void print_truth(void) {
    char callers[4096];
    size_t used = 0;
#undef LINK
#define LINK(name, ...) used += (size_t)sprintf(callers + used, "\"%s\",", #name);
    LINKS
    sprintf(callers + used, "\"climb_chain\",\"main\"");
    print_leaf_stacks("chain", callers);
    used = 0;
    for (int i = 0; i < RECURSION; i++)
        used += (size_t)sprintf(callers + used, "\"descend\",");
    sprintf(callers + used, "\"climb_down\",\"main\"");
    print_leaf_stacks("chain", callers);
}

int main(int argc, char **argv) {
    take_options(argc, argv, &run, NULL, 0);
    begin_alone(&run);
    while (!run_is_over())
        for (size_t i = 0; i < LEAVES; i++) {
            leaf = leaves[i].run;
            climb_chain();
            climb_down();
        }
    print_truth();
    end_alone(&run);
}
