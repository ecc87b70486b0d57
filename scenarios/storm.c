// SPDX-License-Identifier: Apache-2.0
// storm: more births than a machine is usually asked for.
//
//   storm forks    N processes that end at once, RATE a second
//   storm execs    one process that calls exec N times, one after the other
//   storm threads  N threads that live at the same time, until all of them do
//
// Truth, besides truth.h's start and end lines:
//   {"event":"storm", "born", "start_ns", "end_ns", "cpu_ns"}   how many there were, and when the first was
//   begun and
//       the last had ended; cpu_ns of `execs` is what the process used by its own clock, from its first
//       program to its last
//   {"event":"refused", "error"}   the kernel gave no more than `born`
// Options: -n N (default 1000), -r RATE (default 1000).

#include "truth.h"

#include <sys/wait.h>

static struct run run = {.scenario = "storm", .seconds = 10, .seed = 42};
static uint64_t asked = 1000;
static uint64_t rate = 1000;

static void print_truth(unsigned long born, int error, uint64_t start_ns, uint64_t cpu_ns) {
    printf("{\"event\":\"storm\",\"born\":%lu,\"start_ns\":%llu,\"end_ns\":%llu,\"cpu_ns\":%llu}\n", born,
           (unsigned long long)start_ns, (unsigned long long)now_ns(), (unsigned long long)cpu_ns);
    if (error)
        printf("{\"event\":\"refused\",\"error\":\"%s\"}\n", strerror(error));
    print_end();
    wait_for_leave(&run);
}

// --- forks ---

static void storm_of_forks(void) {
    uint64_t start_ns = now_ns();
    unsigned long born = 0;
    int error = 0;
    for (; born < asked && !error; born++) {
        sleep_until(start_ns + born * NS_PER_S / rate);
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        if (child < 0)
            error = errno, born--;
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
    while (wait(NULL) > 0)
        ;
    print_truth(born, error, start_ns, 0);
}

// --- execs ---

#define LEFT "STORM_LEFT"
#define BEGAN "STORM_BEGAN"

static void set_number(const char *name, uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    setenv(name, text, 1);
}

static uint64_t number(const char *name) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

// Each program is the next one's `asked` less one.
static void storm_of_execs(char **arguments) {
    if (getenv(LEFT) == NULL) {
        set_number(LEFT, asked);
        set_number(BEGAN, now_ns());
    }
    uint64_t left = number(LEFT);
    if (left > 0) {
        set_number(LEFT, left - 1);
        execv("/proc/self/exe", arguments);
        die("exec", errno);
    }
    print_truth(asked, 0, number(BEGAN), read_clock(CLOCK_PROCESS_CPUTIME_ID));
}

// --- threads ---

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void *wait_at_the_gate(void *argument) {
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return argument;
}

// Small stacks without guards: they lie in a few mappings, of which a process may not have many.
static void storm_of_threads(void) {
    uint64_t start_ns = now_ns();
    pthread_t *threads = calloc(asked, sizeof *threads);
    pthread_attr_t small;
    if (threads == NULL)
        die("cannot remember the threads", ENOMEM);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 16384);
    pthread_attr_setguardsize(&small, 0);
    pthread_mutex_lock(&gate);
    unsigned long born = 0;
    int error = 0;
    while (born < asked && (error = pthread_create(&threads[born], &small, wait_at_the_gate, NULL)) == 0)
        born++;
    pthread_mutex_unlock(&gate);
    for (unsigned long i = 0; i < born; i++)
        pthread_join(threads[i], NULL);
    print_truth(born, error, start_ns, 0);
}

int main(int argc, char **argv) {
    const struct own_option own[] = {{.letter = 'n', .argument = "N", .count = &asked},
                                     {.letter = 'r', .argument = "RATE", .count = &rate}};
    take_options(argc, argv, &run, own, 2);
    const char *kind = optind < argc ? argv[optind] : "";
    if (getenv(LEFT) == NULL) {
        print_start(NULL, 0, &run);
        wait_for_go(&run);
    }
    if (strcmp(kind, "forks") == 0)
        storm_of_forks();
    else if (strcmp(kind, "execs") == 0)
        storm_of_execs(argv);
    else if (strcmp(kind, "threads") == 0)
        storm_of_threads();
    else {
        fprintf(stderr, "storm: '%s' is no kind of storm: name forks, execs or threads\n", kind);
        return 2;
    }
    return 0;
}
