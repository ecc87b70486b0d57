// SPDX-License-Identifier: Apache-2.0
// words: a process that says in its memory what it waits for, as databases do. One thread sleeps for a
// millisecond again and again, and writes a word before.
//
//   engine   name_the_wait, then wait_for_it
//
// The word is what the pointer `now_waits_for` leads to: one of two that have a name, garbage, a word that is
// not mapped, or no word at all.
//
// Truth, besides truth.h's lines:
//   {"event":"waits", "word", "count", "total_ns"}   the waits of each kind by its own clock:
//       row_lock, request, garbage, unmapped, null

#include "truth.h"

#include <sys/mman.h>

#define WAIT_NS NS_PER_MS
#define ROW_LOCK 0x0300
#define REQUEST 0x0600

// Exported: the recorder finds it by its name.
uint32_t own_word;
uint32_t *now_waits_for = &own_word;

enum kind { KIND_ROW_LOCK, KIND_REQUEST, KIND_GARBAGE, KIND_UNMAPPED, KIND_NULL, KINDS };

static const char *const kind_names[KINDS] = {"row_lock", "request", "garbage", "unmapped", "null"};
static struct {
    uint64_t count, total_ns;
} waits[KINDS];
static struct run run = {.scenario = "words", .seconds = 2, .seed = 42};
static uint32_t *unmapped;

SHOWN static void name_the_wait(enum kind kind, uint64_t *chance) {
    now_waits_for = &own_word;
    switch (kind) {
    case KIND_ROW_LOCK:
        own_word = ROW_LOCK;
        break;
    case KIND_REQUEST:
        own_word = REQUEST;
        break;
    case KIND_GARBAGE:
        own_word = 0x80000000 | (uint32_t)next_random(chance);
        break;
    case KIND_UNMAPPED:
        now_waits_for = unmapped;
        break;
    default:
        now_waits_for = NULL;
    }
}

SHOWN static void wait_for_it(void) { poll(NULL, 0, WAIT_NS / NS_PER_MS); }

SHOWN static void run_engine(struct runner *self) {
    uint64_t chance = run.seed;
    (void)self;
    for (unsigned turn = 0; !run_is_over(); turn++) {
        enum kind kind = turn % KINDS;
        uint64_t start;
        name_the_wait(kind, &chance);
        start = now_ns();
        wait_for_it();
        waits[kind].count++;
        waits[kind].total_ns += now_ns() - start;
    }
    now_waits_for = NULL;
}

static void print_truth(void) {
    for (int kind = 0; kind < KINDS; kind++)
        printf("{\"event\":\"waits\",\"word\":\"%s\",\"count\":%llu,\"total_ns\":%llu}\n", kind_names[kind],
               (unsigned long long)waits[kind].count, (unsigned long long)waits[kind].total_ns);
}

int main(int argc, char **argv) {
    struct runner engine = {.name = "engine", .body = run_engine};
    take_options(argc, argv, &run, NULL, 0);
    // Nothing is mapped there from now on: the program maps nothing more.
    unmapped = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (unmapped == MAP_FAILED)
        die("mmap", errno);
    munmap(unmapped, 4096);
    run_scenario(&engine, 1, &run, print_truth);
}
