/* SPDX-License-Identifier: Apache-2.0 */
// The base of all scenarios, which log their own behaviour: a clock, a pseudo-random sequence, named threads
// that start and stop together, and JSON lines on stdout.
//
// Owns the protocol that the truth tests read, one JSON object a line:
//   {"event":"start", "scenario", "pid", "mono_ns", "epoch_ns", "threads":[{"tid","name"}]}
//       All threads exist and wait at the gate. mono_ns and epoch_ns are one time on two clocks.
//   … the scenario's own lines, documented at the top of its file …
//   {"event":"thread", "tid", "name", "start_ns", "end_ns", "cpu_ns", "voluntary", "involuntary"}
//       The time of a thread between the gate and its end by its own clocks, and its context switches.
//   {"event":"end", "mono_ns", "epoch_ns"}
//       Nothing follows, and every thread but the main one is parked.
// All other times are nanoseconds of CLOCK_MONOTONIC. Nothing is printed while the threads run, so
// that printing is not measured.
//
// Options of every scenario:
//   -d SECONDS   how long the threads run (a number, fractions allowed)
//   -s SEED      seed of the pseudo-random sequence
//   -a ALIAS     the name of all threads but the first; of a scenario with one thread, of that one
//   -g           gated: wait for a line on stdin before running, and for stdin's end before exiting
// SIGTERM ends the run early, with all lines printed.
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

// A function that must keep its own frame and its name in stacks.
#define SHOWN __attribute__((noinline, noclone))

#define NS_PER_US 1000ull
#define NS_PER_MS 1000000ull
#define NS_PER_S 1000000000ull

// --- errors ---

// Ends the scenario: `what` failed because of `error`, an errno value.
static inline void die(const char *what, int error) {
    fprintf(stderr, "scenario: %s: %s\n", what, strerror(error));
    exit(1);
}

// --- clocks ---

static inline uint64_t read_clock(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static inline uint64_t now_ns(void) { return read_clock(CLOCK_MONOTONIC); }

// How long the calling thread has waited for a CPU so far; 0 where the kernel does not say.
static inline uint64_t queued_ns(void) {
    static _Thread_local int schedstat = -1;
    unsigned long long ran, queued;
    char line[96] = "";
    if (schedstat < 0)
        schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (pread(schedstat, line, sizeof line - 1, 0) <= 0 || sscanf(line, "%llu %llu", &ran, &queued) != 2)
        return 0;
    return queued;
}

static inline void sleep_until(uint64_t at_ns) {
    struct timespec at = {.tv_sec = (time_t)(at_ns / NS_PER_S), .tv_nsec = (long)(at_ns % NS_PER_S)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

static inline void sleep_for(uint64_t ns) {
    struct timespec length = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    nanosleep(&length, NULL);
}

static inline void spin_until(uint64_t at_ns) {
    while (now_ns() < at_ns)
        ;
}

// --- chance ---

// xorshift64: the same seed gives the same run on every machine. The state must not be 0.
static inline uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline uint64_t random_between(uint64_t *state, uint64_t low, uint64_t high) {
    return low + next_random(state) % (high - low + 1);
}

// --- the run: options, and when it is over ---

struct run {
    const char *scenario;
    double seconds;
    uint64_t seed;
    bool gated;
};

// The name of all runners, instead of their own names.
static const char *alias;

static _Atomic uint64_t run_ends_at = UINT64_MAX;
// Ten times as long: a run that waits for something does not wait for it for ever.
static _Atomic uint64_t run_gives_up_at = UINT64_MAX;

static inline bool run_is_over_at(uint64_t now) {
    return now >= atomic_load_explicit(&run_ends_at, memory_order_relaxed);
}

static inline bool run_is_over(void) { return run_is_over_at(now_ns()); }

// For runs that must see enough to judge by: a machine that is held up takes longer for it.
static inline bool run_is_over_after(int seen, int enough, uint64_t now) {
    return seen >= enough ? run_is_over_at(now) : now >= atomic_load(&run_gives_up_at);
}

static inline void end_run(int signal) {
    (void)signal;
    atomic_store_explicit(&run_ends_at, 0, memory_order_relaxed);
    atomic_store_explicit(&run_gives_up_at, 0, memory_order_relaxed);
}

// --- the command line ---

// An option of one scenario: the name of its argument in the usage, and the variable for its value.
struct own_option {
    char letter;
    const char *argument; // NULL: it takes none
    const char **text;
    double *number;  // above 0
    uint64_t *count; // above 0
    int *index;      // 0 or more
    bool *flag;
};

static inline double positive_number(const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (*end != '\0' || !(value > 0)) {
        fprintf(stderr, "scenario: '%s' is not a positive number\n", text);
        exit(2);
    }
    return value;
}

static inline int index_number(const char *text) {
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < 0 || value > 1 << 20) {
        fprintf(stderr, "scenario: '%s' is not a whole number\n", text);
        exit(2);
    }
    return (int)value;
}

static inline void take_own_option(const struct own_option *option, const char *argument) {
    if (option->text)
        *option->text = argument;
    else if (option->number)
        *option->number = positive_number(argument);
    else if (option->count)
        *option->count = (uint64_t)positive_number(argument);
    else if (option->index)
        *option->index = index_number(argument);
    else
        *option->flag = true;
}

// Ends the program with its usage.
static inline void refuse_options(const struct run *run, const struct own_option *own, size_t owned) {
    fprintf(stderr, "usage: %s [-d SECONDS] [-s SEED] [-g] [-a ALIAS]", run->scenario);
    for (size_t i = 0; i < owned; i++)
        fprintf(stderr, " [-%c%s%s]", own[i].letter, own[i].argument ? " " : "",
                own[i].argument ? own[i].argument : "");
    fprintf(stderr, "\n");
    exit(2);
}

static inline void take_option(struct run *run, int option, const struct own_option *own, size_t owned) {
    for (size_t i = 0; i < owned; i++)
        if (option == own[i].letter) {
            take_own_option(&own[i], optarg);
            return;
        }
    switch (option) {
    case 'd':
        run->seconds = positive_number(optarg);
        break;
    case 's':
        run->seed = (uint64_t)positive_number(optarg);
        break;
    case 'g':
        run->gated = true;
        break;
    case 'a':
        alias = optarg;
        break;
    default:
        refuse_options(run, own, owned);
    }
}

// Takes the options of every scenario and `owned` ones of this one.
static inline void take_options(int argc, char **argv, struct run *run, const struct own_option *own,
                                size_t owned) {
    char letters[64] = "d:s:ga:";
    for (size_t i = 0; i < owned; i++)
        snprintf(letters + strlen(letters), sizeof letters - strlen(letters), "%c%s", own[i].letter,
                 own[i].argument ? ":" : "");
    int option;
    while ((option = getopt(argc, argv, letters)) != -1)
        take_option(run, option, own, owned);
}

// --- runners: the named threads of a scenario ---

struct runner {
    const char *name;
    void (*body)(struct runner *self);
    int index; // among the runners with the same `body`
    pid_t tid;
    uint64_t start_ns, end_ns, cpu_ns;
    long voluntary, involuntary;
    pthread_t handle;
    sem_t go, leave;
};

static sem_t runners_ready, runners_done;

static inline void wait_for(sem_t *semaphore) {
    while (sem_wait(semaphore) != 0)
        ;
}

static inline void note_totals(struct runner *self) {
    struct rusage usage;
    self->cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID) - self->cpu_ns;
    self->end_ns = now_ns();
    getrusage(RUSAGE_THREAD, &usage);
    self->voluntary = usage.ru_nvcsw - self->voluntary;
    self->involuntary = usage.ru_nivcsw - self->involuntary;
}

static inline void introduce(struct runner *self) {
    prctl(PR_SET_NAME, self->name);
    prctl(PR_SET_TIMERSLACK, 1ul);
    self->tid = gettid();
}

static inline void run_and_note(struct runner *self) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    self->voluntary = usage.ru_nvcsw;
    self->involuntary = usage.ru_nivcsw;
    self->start_ns = now_ns();
    self->cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID);
    self->body(self);
    note_totals(self);
}

static inline void *runner_life(void *argument) {
    struct runner *self = argument;
    introduce(self);
    sem_post(&runners_ready);
    wait_for(&self->go);
    run_and_note(self);
    sem_post(&runners_done);
    wait_for(&self->leave);
    return NULL;
}

// SIGTERM is the main thread's business: no runner's wait is interrupted by it.
static inline void obey_sigterm(int how) {
    struct sigaction action = {.sa_handler = end_run};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaction(SIGTERM, &action, NULL);
    pthread_sigmask(how, &set, NULL);
}

static inline void assemble_runners(struct runner *runners, int count) {
    obey_sigterm(SIG_BLOCK);
    sem_init(&runners_ready, 0, 0);
    sem_init(&runners_done, 0, 0);
    for (int i = 0; i < count; i++) {
        if (alias != NULL)
            runners[i].name = alias;
        sem_init(&runners[i].go, 0, 0);
        sem_init(&runners[i].leave, 0, 0);
        int error = pthread_create(&runners[i].handle, NULL, runner_life, &runners[i]);
        if (error)
            die("cannot start a thread", error);
    }
    for (int i = 0; i < count; i++)
        wait_for(&runners_ready);
    obey_sigterm(SIG_UNBLOCK);
}

static inline void release_runners(struct runner *runners, int count, const struct run *run) {
    uint64_t now = now_ns(), length = (uint64_t)(run->seconds * NS_PER_S);
    atomic_store(&run_ends_at, now + length);
    atomic_store(&run_gives_up_at, now + 10 * length);
    for (int i = 0; i < count; i++)
        sem_post(&runners[i].go);
}

static inline void dismiss_runners(struct runner *runners, int count) {
    for (int i = 0; i < count; i++)
        sem_post(&runners[i].leave);
    for (int i = 0; i < count; i++)
        pthread_join(runners[i].handle, NULL);
}

// --- output ---

// Prints the current time on both clocks, from the closest of several pairs of readings.
static inline void print_clocks(void) {
    uint64_t mono = 0, epoch = 0, best = UINT64_MAX;
    for (int i = 0; i < 16; i++) {
        uint64_t before = now_ns(), at = read_clock(CLOCK_REALTIME), after = now_ns();
        if (after - before < best) {
            best = after - before;
            mono = before + best / 2;
            epoch = at;
        }
    }
    printf("\"mono_ns\":%llu,\"epoch_ns\":%llu", (unsigned long long)mono, (unsigned long long)epoch);
}

static inline void print_start(const struct runner *runners, int count, const struct run *run) {
    printf("{\"event\":\"start\",\"scenario\":\"%s\",\"pid\":%d,", run->scenario, getpid());
    print_clocks();
    printf(",\"threads\":[{\"tid\":%d,\"name\":\"%s\"}", getpid(), run->scenario);
    for (int i = 0; i < count; i++)
        printf(",{\"tid\":%d,\"name\":\"%s\"}", runners[i].tid, runners[i].name);
    printf("]}\n");
    fflush(stdout);
}

static inline void print_runners(const struct runner *runners, int count) {
    for (int i = 0; i < count; i++)
        printf("{\"event\":\"thread\",\"tid\":%d,\"name\":\"%s\",\"start_ns\":%llu,\"end_ns\":%llu,\"cpu_"
               "ns\":%llu,"
               "\"voluntary\":%ld,\"involuntary\":%ld}\n",
               runners[i].tid, runners[i].name, (unsigned long long)runners[i].start_ns,
               (unsigned long long)runners[i].end_ns, (unsigned long long)runners[i].cpu_ns,
               runners[i].voluntary, runners[i].involuntary);
}

static inline void print_end(void) {
    printf("{\"event\":\"end\",");
    print_clocks();
    printf("}\n");
    fflush(stdout);
}

// --- durations ---

struct durations {
    uint64_t count, total_ns, max_ns;
};

static inline void add_duration(struct durations *durations, uint64_t ns) {
    durations->count++;
    durations->total_ns += ns;
    if (ns > durations->max_ns)
        durations->max_ns = ns;
}

static inline void print_durations(const char *event, const struct durations *durations) {
    printf("{\"event\":\"%s\",\"count\":%llu,\"total_ns\":%llu,\"max_ns\":%llu}\n", event,
           (unsigned long long)durations->count, (unsigned long long)durations->total_ns,
           (unsigned long long)durations->max_ns);
}

// --- the gate ---

// Waits in poll, not in read, so that the main thread's wait is voluntary. False at the end of stdin.
static inline bool read_gate(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char byte;
    while (poll(&input, 1, -1) < 0)
        if (errno == EINTR && run_is_over())
            return false;
    return read(STDIN_FILENO, &byte, 1) == 1;
}

static inline void wait_for_go(const struct run *run) {
    if (run->gated && !read_gate())
        exit(0);
}

static inline void wait_for_leave(const struct run *run) {
    while (run->gated && read_gate())
        ;
}

// Runs the scenario: start line, gate, threads, the lines of the scenario, totals, end line, gate.
static inline void run_scenario(struct runner *runners, int count, const struct run *run,
                                void (*print_truth)(void)) {
    assemble_runners(runners, count);
    print_start(runners, count, run);
    wait_for_go(run);
    release_runners(runners, count, run);
    for (int i = 0; i < count; i++)
        wait_for(&runners_done);
    print_truth();
    print_runners(runners, count);
    print_end();
    wait_for_leave(run);
    dismiss_runners(runners, count);
}

// --- states ---

// The state of a thread of any process, as its stat file has it: S where it sleeps, D uninterruptibly. 0
// where the file says nothing.
static inline char state_of(pid_t tid) {
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", tid);
    FILE *stat = fopen(path, "r");
    if (stat == NULL)
        die(path, errno);
    if (fgets(line, sizeof line, stat) == NULL)
        line[0] = '\0';
    fclose(stat);
    // The state follows the name in parentheses.
    const char *after_name = strrchr(line, ')');
    return after_name != NULL && after_name[1] == ' ' ? after_name[2] : '\0';
}

// --- CPUs ---

// Pins the calling thread to `cpu`.
static inline void pin_to(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        die("cannot pin a thread to its CPU", errno);
}

// One of the CPUs that the process may use, counted from 0; all of them where there are fewer.
static inline void pin_to_nth(int number) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) <= number)
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && number-- == 0)
            pin_to(cpu);
}
