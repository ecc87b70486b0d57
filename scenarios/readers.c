// SPDX-License-Identifier: Apache-2.0
// readers: one thread that waits in one system call at four places of the kernel, in no order.
//
//   reader   read() of a pipe, an eventfd, a socket and a timer, each a millisecond before there is anything
//   writer   writes to the one that is read; to none while that is the timer
//
// Truth, besides truth.h's lines:
//   {"event":"reads", "function", "count"}   how often the reader's function waited

#include "truth.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

enum source { PIPE, EVENT, SOCKET, TIMER, SOURCES };

#define AHEAD_NS NS_PER_MS

static int to_read[SOURCES], to_write[SOURCES];
static uint64_t reads[SOURCES];
static sem_t asked;
static atomic_int wanted;
static struct run run = {.scenario = "readers", .seconds = 2, .seed = 42};

static void open_sources(void) {
    int ends[2];
    if (pipe(ends))
        die("cannot make a pipe", errno);
    to_read[PIPE] = ends[0], to_write[PIPE] = ends[1];
    to_read[EVENT] = to_write[EVENT] = eventfd(0, 0);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
        die("cannot make sockets", errno);
    to_read[SOCKET] = ends[0], to_write[SOCKET] = ends[1];
    to_read[TIMER] = timerfd_create(CLOCK_MONOTONIC, 0);
    if (to_read[EVENT] < 0 || to_read[TIMER] < 0)
        die("cannot make an eventfd or a timer", errno);
}

static void take(enum source source) {
    uint64_t value;
    if (read(to_read[source], &value, sizeof value) != sizeof value)
        die("cannot read", errno);
    reads[source]++;
}

static void ask(enum source source) {
    wanted = source;
    sem_post(&asked);
}

SHOWN static void read_pipe(void) {
    ask(PIPE);
    take(PIPE);
}

SHOWN static void read_event(void) {
    ask(EVENT);
    take(EVENT);
}

SHOWN static void read_socket(void) {
    ask(SOCKET);
    take(SOCKET);
}

SHOWN static void read_timer(void) {
    struct itimerspec in = {.it_value = {.tv_nsec = AHEAD_NS}};
    timerfd_settime(to_read[TIMER], 0, &in, NULL);
    take(TIMER);
}

static void read_all(struct runner *self) {
    (void)self;
    uint64_t sequence = run.seed;
    while (!run_is_over()) {
        switch ((enum source)(next_random(&sequence) % SOURCES)) {
        case PIPE:
            read_pipe();
            break;
        case EVENT:
            read_event();
            break;
        case SOCKET:
            read_socket();
            break;
        default:
            read_timer();
        }
    }
    ask(SOURCES);
}

static void write_what_is_asked(struct runner *self) {
    (void)self;
    uint64_t value = 1;
    for (;;) {
        wait_for(&asked);
        int source = wanted;
        if (source == SOURCES)
            return;
        sleep_for(AHEAD_NS);
        if (write(to_write[source], &value, sizeof value) != sizeof value)
            die("cannot write", errno);
    }
}

static void print_truth(void) {
    static const char *const functions[SOURCES] = {"read_pipe", "read_event", "read_socket", "read_timer"};
    for (int i = 0; i < SOURCES; i++)
        printf("{\"event\":\"reads\",\"function\":\"%s\",\"count\":%llu}\n", functions[i],
               (unsigned long long)reads[i]);
}

int main(int argc, char **argv) {
    take_options(argc, argv, &run, NULL, 0);
    open_sources();
    sem_init(&asked, 0, 0);
    struct runner runners[] = {{.name = "reader", .body = read_all},
                               {.name = "writer", .body = write_what_is_asked}};
    run_scenario(runners, 2, &run, print_truth);
}
