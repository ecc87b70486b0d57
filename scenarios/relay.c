// SPDX-License-Identifier: Apache-2.0
// relay: a thread waits for a lock whose holder waits for an answer from a third thread.
//
// `front` looks a price up every 5 ms: look_up → take_prices. `middle` has the lock while it asks `back` over
// a pipe: refresh → ask_back, and back computes for 6 ms: answer → compute. Then it leaves the lock alone for
// 10 ms.
//
// lock_mutex stands between the named functions and glibc because a walk by frame pointers loses the direct
// caller of a libc function without a frame.
//
// Truth, besides truth.h's lines:
//   {"event":"waited", "count", "total_ns", "max_ns"}   times that `front` took 1 ms or longer to get the
//   lock

#include "truth.h"

#define LOOK_UP_NS (5 * NS_PER_MS)
#define COMPUTE_NS (6 * NS_PER_MS)
#define PAUSE_NS (10 * NS_PER_MS)

static pthread_mutex_t prices = PTHREAD_MUTEX_INITIALIZER;
static int request[2], reply[2];
static struct durations waited;
static struct run run = {.scenario = "relay", .seconds = 10, .seed = 42};

SHOWN static void lock_mutex(pthread_mutex_t *mutex) { pthread_mutex_lock(mutex); }

static void send_byte(int to) {
    if (write(to, "o", 1) != 1)
        die("cannot write to a pipe", errno);
}

// False when the other end is closed.
static bool receive_byte(int from) {
    char byte;
    return read(from, &byte, 1) == 1;
}

// --- front ---

SHOWN static void take_prices(void) { lock_mutex(&prices); }

SHOWN static void look_up(void) {
    uint64_t start_ns = now_ns();
    take_prices();
    uint64_t took_ns = now_ns() - start_ns;
    pthread_mutex_unlock(&prices);
    if (took_ns >= NS_PER_MS)
        add_duration(&waited, took_ns);
}

SHOWN static void front(struct runner *self) {
    (void)self;
    while (!run_is_over()) {
        look_up();
        sleep_for(LOOK_UP_NS);
    }
}

// --- middle ---

SHOWN static void ask_back(void) {
    send_byte(request[1]);
    receive_byte(reply[0]);
}

SHOWN static void refresh(void) {
    lock_mutex(&prices);
    ask_back();
    pthread_mutex_unlock(&prices);
}

SHOWN static void middle(struct runner *self) {
    (void)self;
    while (!run_is_over()) {
        refresh();
        sleep_for(PAUSE_NS);
    }
    close(request[1]);
}

// --- back ---

SHOWN static void compute(void) { spin_until(now_ns() + COMPUTE_NS); }

SHOWN static void answer(void) {
    compute();
    send_byte(reply[1]);
}

SHOWN static void back(struct runner *self) {
    (void)self;
    while (receive_byte(request[0]))
        answer();
}

static void print_truth(void) { print_durations("waited", &waited); }

int main(int argc, char **argv) {
    take_options(argc, argv, &run, NULL, 0);
    if (pipe(request) != 0 || pipe(reply) != 0)
        die("cannot make a pipe", errno);
    struct runner runners[] = {
        {.name = "front", .body = front}, {.name = "middle", .body = middle}, {.name = "back", .body = back}};
    run_scenario(runners, 3, &run, print_truth);
}
