// SPDX-License-Identifier: Apache-2.0
// eventloop: a thread that serves requests from an event loop, and a pool that works on long jobs.
//
//   loop     run_loop → wait_for_requests (epoll_wait), and run_loop → serve_request, which takes some
//            microseconds. With -b US every fiftieth request waits for so long: serve_request → back_off, or
//            with -p serve_request → ask_backend, which polls for an answer that does not come
//   client   sends a request every 2 ms (-e US: another time): send_requests. With -n N it sends that many at
//   once, and the loop
//            takes one of them in a turn, so that a poll returns at once while there are more. With -c US
//            each request computes for so long, and only every hundredth time N come at once; with -l one
//            comes then that computes N times as long
//   worker   waits on a condition variable for jobs of 30 ms each: take_job, and run_job. It is no event loop
//
// Truth, besides truth.h's lines:
//   {"event":"served", "tid", "requests", "blocked", "blocked_ns"}   requests, those that waited, and the
//       time that these took by the thread's own clock
// Options: -b US, how long every fiftieth request waits (default 0: none does); -p, it does so in poll; -n N;
// -c US; -l; -e US.

#include "truth.h"

#include <poll.h>
#include <sys/epoll.h>

#define JOB_NS (30 * NS_PER_MS)
#define BLOCKED_EVERY 50
#define BURST_EVERY 100

static pthread_mutex_t jobs_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t jobs_filled = PTHREAD_COND_INITIALIZER;
static int jobs;
static bool closed;
static int requests_in, requests_out;
static uint64_t requests, blocked, blocked_ns;
static double block_us;
static bool polls;
static double burst;
static double compute_us;
static double every_us = 2000;
static bool in_one;
static struct runner runners[3];
static struct run run = {.scenario = "eventloop", .seconds = 10, .seed = 42};

SHOWN static void back_off(void) { sleep_for((uint64_t)(block_us * NS_PER_US)); }

SHOWN static void ask_backend(void) {
    uint64_t ns = (uint64_t)(block_us * NS_PER_US);
    struct timespec timeout = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    ppoll(NULL, 0, &timeout, NULL);
}

SHOWN static void price_order(uint64_t until) { spin_until(until); }

SHOWN static void serve_request(char request) {
    uint64_t start = now_ns();
    requests++;
    if (compute_us > 0) {
        uint64_t ns = (uint64_t)(compute_us * NS_PER_US);
        price_order(start + (request == 'l' ? (uint64_t)burst * ns : ns));
        return;
    }
    if (block_us > 0 && requests % BLOCKED_EVERY == 0) {
        if (polls)
            ask_backend();
        else
            back_off();
        blocked++;
        blocked_ns += now_ns() - start;
    } else {
        spin_until(start + 20 * NS_PER_US);
    }
}

// The number of requests; -1 when there will be no more.
SHOWN static int wait_for_requests(int set, char *bytes, size_t most) {
    struct epoll_event event;
    if (epoll_wait(set, &event, 1, -1) < 1)
        return 0;
    ssize_t got = read(requests_in, bytes, burst > 0 ? 1 : most);
    return got > 0 ? (int)got : -1;
}

SHOWN static void run_loop(struct runner *self) {
    (void)self;
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, requests_in, &event) != 0)
        die("cannot watch the requests", errno);
    char bytes[64];
    for (int count = 0; count >= 0; count = wait_for_requests(set, bytes, sizeof bytes))
        for (int i = 0; i < count; i++)
            serve_request(bytes[i]);
    close(set);
}

static void add_job(bool last) {
    pthread_mutex_lock(&jobs_lock);
    jobs += !last;
    closed = last;
    pthread_cond_signal(&jobs_filled);
    pthread_mutex_unlock(&jobs_lock);
}

SHOWN static void send_requests(struct runner *self) {
    (void)self;
    for (uint64_t sent = 0; !run_is_over(); sent++) {
        sleep_for((uint64_t)(every_us * NS_PER_US));
        bool is_burst = burst > 1 && (compute_us == 0 || sent % BURST_EVERY == BURST_EVERY - 1);
        ssize_t count = is_burst && !in_one ? (ssize_t)burst : 1;
        const char *sends = is_burst && in_one ? "l" : "rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr";
        if (write(requests_out, sends, (size_t)count) != count)
            die("cannot send a request", errno);
        if (sent % 25 == 0)
            add_job(false);
    }
    close(requests_out);
    add_job(true);
}

// False when there will be no more jobs.
SHOWN static bool take_job(void) {
    pthread_mutex_lock(&jobs_lock);
    while (jobs == 0 && !closed)
        pthread_cond_wait(&jobs_filled, &jobs_lock);
    bool taken = jobs > 0;
    jobs -= taken;
    pthread_mutex_unlock(&jobs_lock);
    return taken;
}

SHOWN static void run_job(void) { sleep_for(JOB_NS); }

SHOWN static void work(struct runner *self) {
    (void)self;
    while (take_job())
        run_job();
}

static void print_truth(void) {
    printf("{\"event\":\"served\",\"tid\":%d,\"requests\":%llu,\"blocked\":%llu,\"blocked_ns\":%llu}\n",
           runners[1].tid, (unsigned long long)requests, (unsigned long long)blocked,
           (unsigned long long)blocked_ns);
}

int main(int argc, char **argv) {
    const struct own_option own[] = {{.letter = 'b', .argument = "US", .number = &block_us},
                                     {.letter = 'p', .flag = &polls},
                                     {.letter = 'n', .argument = "N", .number = &burst},
                                     {.letter = 'c', .argument = "US", .number = &compute_us},
                                     {.letter = 'l', .flag = &in_one},
                                     {.letter = 'e', .argument = "US", .number = &every_us}};
    int ends[2];
    take_options(argc, argv, &run, own, 6);
    if (burst > 32)
        die("-n takes at most 32", EINVAL);
    if (pipe(ends) != 0)
        die("cannot make a pipe", errno);
    requests_in = ends[0];
    requests_out = ends[1];
    runners[0] = (struct runner){.name = "client", .body = send_requests, .index = 0};
    runners[1] = (struct runner){.name = "loop", .body = run_loop, .index = 1};
    runners[2] = (struct runner){.name = "worker", .body = work, .index = 2};
    run_scenario(runners, 3, &run, print_truth);
}
