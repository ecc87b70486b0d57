// SPDX-License-Identifier: Apache-2.0
// spin: threads that never wait, in user mode, in the kernel, and half and half.
//
// `user` computes (spin_in_user), `kernel` reads /dev/zero (spin_in_kernel), `half` does both in turn, each
// for 1 ms of its own CPU time.
//
// Truth, besides truth.h's lines:
//   {"event":"split", "tid", "name", "user_ns", "kernel_ns"}   CPU time spent in either function, by the
//       thread's own CPU clock. A read of 64 KiB is all but a few hundred ns inside the kernel.
//   {"event":"gap", "start_ns", "end_ns"}   `user` did not run its loop in between: 20 ms and more
// Options: -t user|kernel|half, only this thread; -c CPU, pin to this CPU.

#include "truth.h"

#include <fcntl.h>

#define TURN_NS NS_PER_MS
#define READ_BYTES 65536
#define MIN_GAP_NS (20 * NS_PER_MS)
#define MAX_GAPS 4096

struct split {
    uint64_t user_ns, kernel_ns;
};

static struct split splits[3];
static struct runner runners[3];
static int runner_count, zero, cpu = -1;
static struct run run = {.scenario = "spin", .seconds = 10, .seed = 42};
static volatile uint64_t sink;
static struct gap {
    uint64_t start_ns, end_ns;
} gaps[MAX_GAPS];
static int gap_count;

static uint64_t own_cpu_ns(void) { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

// Returns the CPU time spent. The clock, itself a system call, is read every half a million steps.
SHOWN static uint64_t spin_in_user(void) {
    uint64_t start = own_cpu_ns(), spent, mixed = sink;
    do {
        for (uint64_t i = 0; i < 500000; i++)
            mixed = (mixed ^ i) * 0x9e3779b97f4a7c15ull;
        spent = own_cpu_ns() - start;
    } while (spent < TURN_NS);
    sink = mixed;
    return spent;
}

SHOWN static uint64_t spin_in_kernel(void) {
    static _Thread_local char bytes[READ_BYTES];
    uint64_t start = own_cpu_ns(), spent;
    do {
        for (int i = 0; i < 64; i++)
            if (read(zero, bytes, sizeof bytes) != READ_BYTES)
                die("cannot read /dev/zero", errno);
        spent = own_cpu_ns() - start;
    } while (spent < TURN_NS);
    return spent;
}

static void pin_if_asked(void) {
    if (cpu >= 0)
        pin_to(cpu);
}

SHOWN static void compute(struct runner *self) {
    pin_if_asked();
    for (uint64_t last = now_ns(), now; !run_is_over_at(last); last = now) {
        splits[self - runners].user_ns += spin_in_user();
        now = now_ns();
        if (now - last >= MIN_GAP_NS && gap_count < MAX_GAPS)
            gaps[gap_count++] = (struct gap){.start_ns = last, .end_ns = now};
    }
}

SHOWN static void call(struct runner *self) {
    pin_if_asked();
    while (!run_is_over())
        splits[self - runners].kernel_ns += spin_in_kernel();
}

SHOWN static void compute_and_call(struct runner *self) {
    pin_if_asked();
    while (!run_is_over()) {
        splits[self - runners].user_ns += spin_in_user();
        splits[self - runners].kernel_ns += spin_in_kernel();
    }
}

static void print_truth(void) {
    for (int i = 0; i < runner_count; i++)
        printf("{\"event\":\"split\",\"tid\":%d,\"name\":\"%s\",\"user_ns\":%llu,\"kernel_ns\":%llu}\n",
               runners[i].tid, runners[i].name, (unsigned long long)splits[i].user_ns,
               (unsigned long long)splits[i].kernel_ns);
    for (int i = 0; i < gap_count; i++)
        printf("{\"event\":\"gap\",\"start_ns\":%llu,\"end_ns\":%llu}\n",
               (unsigned long long)gaps[i].start_ns, (unsigned long long)gaps[i].end_ns);
}

static void add_runner(const char *name, void (*body)(struct runner *), const char *only) {
    if (only == NULL || strcmp(only, name) == 0)
        runners[runner_count++] = (struct runner){.name = name, .body = body};
}

int main(int argc, char **argv) {
    const char *only = NULL;
    const struct own_option own[] = {{.letter = 't', .argument = "user|kernel|half", .text = &only},
                                     {.letter = 'c', .argument = "CPU", .index = &cpu}};
    take_options(argc, argv, &run, own, 2);
    zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    if (zero < 0)
        die("/dev/zero", errno);
    add_runner("user", compute, only);
    add_runner("kernel", call, only);
    add_runner("half", compute_and_call, only);
    if (runner_count == 0) {
        fprintf(stderr, "spin: no thread is called '%s': -t takes user, kernel or half\n", only);
        return 2;
    }
    run_scenario(runners, runner_count, &run, print_truth);
}
