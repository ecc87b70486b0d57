// SPDX-License-Identifier: Apache-2.0
// preempted: a thread that never sleeps loses its CPU to a neighbour.
//
// `worker` reads the clock in a loop, pinned to one CPU, and logs each gap between two readings that is
// longer than 300 µs. `neighbour`, pinned to the same CPU, spins for 2 to 6 ms and sleeps for 5 to 15 ms in
// turn, and logs when it ran, by the gaps in its own readings.
//
// read_market stands between watch_clock and glibc because a walk by frame pointers loses the direct caller
// of a libc function without a frame.
//
// Truth, besides truth.h's lines:
//   {"event":"gap", "start_ns", "end_ns", "cpu_ns", "queued_ns", "switched"}   the worker did not run its
//       loop in between: for cpu_ns of it by its CPU clock it had the CPU, for interrupts and the like; for
//       queued_ns it waited for it, by the kernel's own sum; switched says that the kernel counted an
//       involuntary switch of the worker in the gap (otherwise an interrupt, or the hypervisor, had the CPU)
//   {"event":"ran", "start_ns", "end_ns"}   the neighbour ran, interrupted by less than 20 µs at a time
// The run lasts until the worker has 150 such gaps. Options: -c CPU, the shared CPU (default 0).

#include "truth.h"

#define MIN_GAP_NS (300 * NS_PER_US)
#define MIN_PAUSE_NS (20 * NS_PER_US)
#define MAX_INTERVALS 65536
#define ENOUGH_GAPS 150

struct interval {
    uint64_t start_ns, end_ns, cpu_ns, queued_ns;
    bool switched;
};

struct intervals {
    struct interval list[MAX_INTERVALS];
    int count;
};

static struct intervals gaps, ran;
static _Atomic int switched_gaps;
static int cpu;
static struct run run = {.scenario = "preempted", .seconds = 10, .seed = 42};

static bool is_over(uint64_t now) { return run_is_over_after(switched_gaps, ENOUGH_GAPS, now); }

static void keep(struct intervals *intervals, struct interval interval) {
    if (intervals->count < MAX_INTERVALS)
        intervals->list[intervals->count++] = interval;
}

static long preemptions(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nivcsw;
}

SHOWN static uint64_t read_market(void) { return now_ns(); }

// Both clocks when a gap was over: until the next one they advance alike. And what the kernel has counted.
struct resumed {
    uint64_t at_ns, cpu_ns, queued_ns;
    long preemptions;
};

static struct resumed resume(void) {
    uint64_t queued = queued_ns(), cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID);
    return (struct resumed){
        .at_ns = now_ns(), .cpu_ns = cpu_ns, .queued_ns = queued, .preemptions = preemptions()};
}

static void keep_gap(uint64_t start, uint64_t end, struct resumed before, struct resumed after) {
    uint64_t outside_ns = start - before.at_ns, ran_ns = after.cpu_ns - before.cpu_ns;
    keep(&gaps, (struct interval){.start_ns = start,
                                  .end_ns = end,
                                  .cpu_ns = ran_ns > outside_ns ? ran_ns - outside_ns : 0,
                                  .queued_ns = after.queued_ns - before.queued_ns,
                                  .switched = after.preemptions != before.preemptions});
    switched_gaps += after.preemptions != before.preemptions;
}

SHOWN static void watch_clock(struct runner *self) {
    (void)self;
    pin_to(cpu);
    struct resumed before = resume();
    for (uint64_t last = read_market(), now; !is_over(last); last = now) {
        now = read_market();
        if (now - last <= MIN_GAP_NS)
            continue;
        struct resumed after = resume();
        keep_gap(last, now, before, after);
        before = after;
        now = read_market();
    }
}

SHOWN static void burst(uint64_t ends_at) {
    uint64_t start = now_ns(), last = start;
    for (uint64_t now = start; now < ends_at; last = now) {
        now = now_ns();
        if (now - last <= MIN_PAUSE_NS)
            continue;
        keep(&ran, (struct interval){.start_ns = start, .end_ns = last});
        start = now;
    }
    keep(&ran, (struct interval){.start_ns = start, .end_ns = last});
}

SHOWN static void disturb(struct runner *self) {
    uint64_t chance = run.seed;
    (void)self;
    pin_to(cpu);
    while (!is_over(now_ns())) {
        sleep_for(random_between(&chance, 5 * NS_PER_MS, 15 * NS_PER_MS));
        burst(now_ns() + random_between(&chance, 2 * NS_PER_MS, 6 * NS_PER_MS));
    }
}

static void print_truth(void) {
    for (int i = 0; i < gaps.count; i++)
        printf("{\"event\":\"gap\",\"start_ns\":%llu,\"end_ns\":%llu,\"cpu_ns\":%llu,\"queued_ns\":%llu,"
               "\"switched\":%s}\n",
               (unsigned long long)gaps.list[i].start_ns, (unsigned long long)gaps.list[i].end_ns,
               (unsigned long long)gaps.list[i].cpu_ns, (unsigned long long)gaps.list[i].queued_ns,
               gaps.list[i].switched ? "true" : "false");
    for (int i = 0; i < ran.count; i++)
        printf("{\"event\":\"ran\",\"start_ns\":%llu,\"end_ns\":%llu}\n",
               (unsigned long long)ran.list[i].start_ns, (unsigned long long)ran.list[i].end_ns);
}

int main(int argc, char **argv) {
    const struct own_option own = {.letter = 'c', .argument = "CPU", .index = &cpu};
    take_options(argc, argv, &run, &own, 1);
    // Touched now, so that keeping a log costs no page faults.
    memset(&gaps, 0, sizeof gaps);
    memset(&ran, 0, sizeof ran);
    struct runner runners[] = {{.name = "worker", .body = watch_clock},
                               {.name = "neighbour", .body = disturb}};
    run_scenario(runners, 2, &run, print_truth);
}
