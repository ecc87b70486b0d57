// SPDX-License-Identifier: Apache-2.0
// shapes: frames of every shape that compilers make, and stacks inside signal handlers.
//
// In its first thread, in turn until the run is over:
//   take_shapes → grow_by_alloca → realign → realign_with_arguments → enter_tail → (jump_away) → land →
//       Circle::visit → Square::visit → Ring<3>::visit → call_leaf: a frame of variable size; frames at a
//       multiple of 64, one of which finds its arguments through r10; a call that left no frame, jump_away's;
//       and C++ methods called through their class' table (shapes_virtual.cc)
//   be_interrupted → compute, with SIGALRM every 2 ms: the handler spins, or sleeps, for 1 ms; on the stack
//   it
//       interrupted (on_alarm) and on one of its own (on_alarm_elsewhere)
//
// Truth: alone.h's lines; between a handler and the function that it interrupted is one frame of libc.

#include "alone.h"

#include <alloca.h>
#include <sys/time.h>

#define ALARM_US 2000
#define HANDLER_NS NS_PER_MS
#define ROUNDS 8

// Calls `inner` from the innermost of three methods.
uint64_t visit_all(uint64_t depth, uint64_t (*inner)(uint64_t));

static struct run run = {.scenario = "shapes", .seconds = 3, .seed = 42};
static volatile uint64_t sink;

// --- shapes ---

OPAQUE static uint64_t land(uint64_t depth) { return visit_all(depth, call_leaf) + 1; }

// A tail call: its frame is gone when `land` runs.
OPAQUE static uint64_t jump_away(uint64_t depth) { return land(depth + 1); }

OPAQUE static uint64_t enter_tail(uint64_t depth) { return jump_away(depth) + 1; }

// Arguments on the stack, which the realigned frame must still find.
OPAQUE static uint64_t realign_with_arguments(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                                              uint64_t f, uint64_t g, uint64_t h) {
    volatile uint64_t aligned[8] __attribute__((aligned(64)));
    volatile char *grown = alloca(16 + a % 64);
    grown[0] = (char)a;
    aligned[a % 8] = a + b + c + d + e + f;
    return enter_tail(a) + aligned[a % 8] + g + h + (uint64_t)grown[0];
}

OPAQUE static uint64_t realign(uint64_t depth) {
    volatile uint64_t aligned[16] __attribute__((aligned(64)));
    aligned[depth % 16] = depth;
    return realign_with_arguments(depth, 2, 3, 4, 5, 6, 7, depth) + aligned[depth % 16];
}

OPAQUE static uint64_t grow_by_alloca(uint64_t depth) {
    size_t size = 64 + depth % 1024;
    volatile char *room = alloca(size);
    room[size - 1] = (char)depth;
    return realign(depth + 1) + (uint64_t)room[size - 1];
}

OPAQUE static void take_shapes(void) { sink += grow_by_alloca(now_ns()); }

// --- signals ---

static volatile sig_atomic_t alarms;

OPAQUE static void spin_in_handler(void) { spin_until(now_ns() + HANDLER_NS); }

OPAQUE static void sleep_in_handler(void) { sleep_for(HANDLER_NS); }

static void handle(void) {
    if (alarms++ % 2 == 0)
        spin_in_handler();
    else
        sleep_in_handler();
    sink++;
}

OPAQUE static void on_alarm(int signal) {
    (void)signal;
    handle();
}

OPAQUE static void on_alarm_elsewhere(int signal) {
    (void)signal;
    handle();
}

// About half a millisecond, without calling anything.
OPAQUE static uint64_t compute(uint64_t mixed) {
    for (uint64_t i = 0; i < 300000; i++)
        mixed = (mixed ^ i) * 0x9e3779b97f4a7c15ull;
    return mixed;
}

static void set_alarm(long us) {
    struct itimerval every = {{0, us}, {0, us}};
    setitimer(ITIMER_REAL, &every, NULL);
}

OPAQUE static void be_interrupted(void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(SIGALRM, &action, NULL);
    int until = alarms + ROUNDS;
    set_alarm(ALARM_US);
    while (alarms < until)
        sink = compute(sink) + 1;
    set_alarm(0);
}

static void use_other_stack(void) {
    static char room[1 << 16];
    stack_t stack = {.ss_sp = room, .ss_size = sizeof room};
    if (sigaltstack(&stack, NULL) != 0)
        die("cannot set a stack for signals", errno);
}

// --- truth ---

static void print_truth(void) {
    print_leaf_stacks("shapes",
                      "\"Ring<3>::visit(unsigned long)\",\"Square::visit(unsigned long)\","
                      "\"Circle::visit(unsigned long)\",\"visit_all\",\"land\",\"enter_tail\","
                      "\"realign_with_arguments\",\"realign\",\"grow_by_alloca\",\"take_shapes\",\"main\"");
    const char *handlers[] = {"on_alarm", "on_alarm_elsewhere"};
    char callers[512];
    for (int i = 0; i < 2; i++) {
        snprintf(callers, sizeof callers, "\"%s\",\"<signal>\",\"compute\",\"be_interrupted\",\"main\"",
                 handlers[i]);
        print_stack("shapes", "running", "spin_in_handler", callers);
        print_stack("shapes", "blocked", "sleep_in_handler", callers);
    }
}

int main(int argc, char **argv) {
    take_options(argc, argv, &run, NULL, 0);
    use_other_stack();
    begin_alone(&run);
    while (!run_is_over()) {
        for (size_t i = 0; i < LEAVES; i++) {
            leaf = leaves[i].run;
            take_shapes();
        }
        be_interrupted(on_alarm, 0);
        be_interrupted(on_alarm_elsewhere, SA_ONSTACK);
    }
    print_truth();
    end_alone(&run);
}
