// SPDX-License-Identifier: Apache-2.0
// timeouts: threads that wait for 20 ms, each in its own way, over and over.
//
//   ticker      usleep: comes back a little late each time
//   mono, boot, tai   sleep until a time of CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_TAI
//   cpu-clock   sleeps for 2 ms of the process's CPU time, which takes as long as the keeper makes it
//   waiter      waits for a mutex with a timeout, in vain: the keeper holds it. By CLOCK_MONOTONIC
//   pi-waiter   the same with priority inheritance, by CLOCK_REALTIME
//   keeper      holds both mutexes to the end, and runs for a millisecond of every twenty
//
// Truth, besides truth.h's lines:
//   {"event":"waits", "tid", "name", "count", "total_ns", "asked_ns"}   a thread's waits by its own clock,
//   and the
//       length each was asked to last (0: until something else happens)

#include "truth.h"

#define WAIT_NS (20 * NS_PER_MS)
#define CPU_TIME_NS (2 * NS_PER_MS)
#define RUN_NS NS_PER_MS
#define RUNNERS 8

struct waits {
    uint64_t count, total_ns, asked_ns;
};

static struct run run = {.scenario = "timeouts", .seconds = 5, .seed = 42};
static struct runner runners[RUNNERS];
static struct waits waits[RUNNERS];
static pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t inheriting;
static sem_t kept;
static _Atomic bool cpu_time_is_wanted = true;

static struct timespec from_ns(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
}

static void note_wait(const struct runner *self, uint64_t start_ns) {
    waits[self - runners].count++;
    waits[self - runners].total_ns += now_ns() - start_ns;
}

SHOWN static void tick(struct runner *self) {
    while (!run_is_over()) {
        uint64_t start = now_ns();
        usleep(WAIT_NS / NS_PER_US);
        note_wait(self, start);
    }
}

SHOWN static void sleep_until_time_of(struct runner *self, clockid_t clock) {
    while (!run_is_over()) {
        uint64_t start = now_ns();
        struct timespec until = from_ns(read_clock(clock) + WAIT_NS);
        clock_nanosleep(clock, TIMER_ABSTIME, &until, NULL);
        note_wait(self, start);
    }
}

static void sleep_by_monotonic(struct runner *self) { sleep_until_time_of(self, CLOCK_MONOTONIC); }

static void sleep_by_boottime(struct runner *self) { sleep_until_time_of(self, CLOCK_BOOTTIME); }

static void sleep_by_tai(struct runner *self) { sleep_until_time_of(self, CLOCK_TAI); }

SHOWN static void sleep_by_cpu_time(struct runner *self) {
    struct timespec length = from_ns(CPU_TIME_NS);
    while (!run_is_over()) {
        uint64_t start = now_ns();
        clock_nanosleep(CLOCK_PROCESS_CPUTIME_ID, 0, &length, NULL);
        note_wait(self, start);
    }
    cpu_time_is_wanted = false;
}

SHOWN static void wait_in_vain(struct runner *self, pthread_mutex_t *mutex, clockid_t clock) {
    while (!run_is_over()) {
        uint64_t start = now_ns();
        struct timespec until = from_ns(read_clock(clock) + WAIT_NS);
        if (pthread_mutex_clocklock(mutex, clock, &until) == ETIMEDOUT)
            note_wait(self, start);
        else
            pthread_mutex_unlock(mutex); // the keeper has let it go
    }
}

static void wait_for_plain(struct runner *self) {
    wait_for(&kept);
    wait_in_vain(self, &plain, CLOCK_MONOTONIC);
}

static void wait_for_inheriting(struct runner *self) {
    wait_for(&kept);
    wait_in_vain(self, &inheriting, CLOCK_REALTIME);
}

SHOWN static void keep(struct runner *self) {
    pthread_mutex_lock(&plain);
    pthread_mutex_lock(&inheriting);
    sem_post(&kept);
    sem_post(&kept);
    while (!run_is_over() || cpu_time_is_wanted) {
        uint64_t start = now_ns();
        sleep_for(WAIT_NS);
        note_wait(self, start);
        spin_until(now_ns() + RUN_NS);
    }
    pthread_mutex_unlock(&inheriting);
    pthread_mutex_unlock(&plain);
}

static void print_truth(void) {
    for (int i = 0; i < RUNNERS; i++)
        printf("{\"event\":\"waits\",\"tid\":%d,\"name\":\"%s\",\"count\":%llu,\"total_ns\":%llu,\"asked_"
               "ns\":%llu}\n",
               runners[i].tid, runners[i].name, (unsigned long long)waits[i].count,
               (unsigned long long)waits[i].total_ns, (unsigned long long)waits[i].asked_ns);
}

static void add_runner(const char *name, void (*body)(struct runner *), uint64_t asked_ns) {
    static int count;
    waits[count].asked_ns = asked_ns;
    runners[count++] = (struct runner){.name = name, .body = body};
}

static void make_mutex_with_inheritance(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
    int error = pthread_mutex_init(&inheriting, &attributes);
    if (error)
        die("cannot make a mutex", error);
}

int main(int argc, char **argv) {
    take_options(argc, argv, &run, NULL, 0);
    sem_init(&kept, 0, 0);
    make_mutex_with_inheritance();
    add_runner("ticker", tick, WAIT_NS);
    add_runner("mono", sleep_by_monotonic, WAIT_NS);
    add_runner("boot", sleep_by_boottime, WAIT_NS);
    add_runner("tai", sleep_by_tai, WAIT_NS);
    add_runner("cpu-clock", sleep_by_cpu_time, 0);
    add_runner("waiter", wait_for_plain, WAIT_NS);
    add_runner("pi-waiter", wait_for_inheriting, WAIT_NS);
    add_runner("keeper", keep, WAIT_NS);
    run_scenario(runners, RUNNERS, &run, print_truth);
}
