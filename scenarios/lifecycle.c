// SPDX-License-Identifier: Apache-2.0
// lifecycle: threads and processes that come, change their names and go.
//
// One after the other, each running for 20 ms of its own CPU time (`brief` ones 2 ms):
//   brief         20 threads that start and end
//   caterpillar   a thread that becomes `butterfly` half-way
//   (hostile)     a thread whose name holds an escape sequence, a newline, a quote, a semicolon and markup
//   child         a forked process, which forks `grandchild`; they exit with 7 and 8
//   first, second two processes of which the second is given the pid of the first (needs privileges)
//   swapper       a thread, not the first one, that calls exec: the kernel gives it the process' pid, ends
//   all
//                 others, and the program starts again as `reborn`
//
// Truth, besides truth.h's start and end lines: lives.h's, in which swapper's life ends with exec, and
//   {"event":"refused", "name", "error"}   the kernel did not allow this one
// Option -n N: brief threads (default 20).

#include "lives.h"

#define LIFE_NS (20 * NS_PER_MS)
#define BRIEF_NS (2 * NS_PER_MS)
#define HOSTILE "a\033[31m\n\"';<&>"

static int briefs = 20, refused_reuse;
static char **arguments;
static struct run run = {.scenario = "lifecycle", .seconds = 10, .seed = 42};

// --- threads ---

static void *brief(void *argument) {
    (void)argument;
    whole_life("brief", BRIEF_NS);
    return NULL;
}

static void *hostile(void *argument) {
    (void)argument;
    whole_life(HOSTILE, LIFE_NS);
    return NULL;
}

static void *caterpillar(void *argument) {
    (void)argument;
    struct life life = begin_life("caterpillar");
    live_for(LIFE_NS / 2);
    memcpy(life.was, life.name, sizeof life.was);
    snprintf(life.name, sizeof life.name, "butterfly");
    prctl(PR_SET_NAME, life.name);
    live_for(LIFE_NS);
    end_life(&life);
    return NULL;
}

static void run_thread(void *(*body)(void *)) {
    pthread_t thread;
    int error = pthread_create(&thread, NULL, body, NULL);
    if (error)
        die("cannot start a thread", error);
    pthread_join(thread, NULL);
}

// --- processes ---

static void fork_family(void) {
    pid_t child = fork();
    if (child == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0) {
            whole_life("grandchild", LIFE_NS);
            _exit(8);
        }
        whole_life("child", LIFE_NS);
        wait_for_child(grandchild);
        _exit(7);
    }
    wait_for_child(child);
}

static void reuse_pid(void) {
    pid_t first = fork_as(0);
    if (first == 0) {
        whole_life("first", LIFE_NS);
        _exit(0);
    }
    wait_for_child(first);
    pid_t second = fork_as(first);
    if (second == 0) {
        whole_life("second", LIFE_NS);
        _exit(0);
    }
    if (second < 0)
        refused_reuse = errno;
    else
        wait_for_child(second);
}

// --- truth ---

static void print_lives(void) {
    print_book();
    if (refused_reuse != 0)
        printf("{\"event\":\"refused\",\"name\":\"second\",\"error\":\"%s\"}\n", strerror(refused_reuse));
    fflush(stdout);
}

// --- exec ---

static void *swapper(void *argument) {
    (void)argument;
    struct life life = begin_life("swapper");
    live_for(LIFE_NS);
    end_life(&life);
    print_lives();
    setenv("LIFECYCLE_REBORN", "1", 1);
    execv("/proc/self/exe", arguments);
    die("cannot exec", errno);
    return NULL;
}

static void live_again(void) {
    struct life life = begin_life("reborn");
    uint64_t before = own_cpu_ns();
    live_for(before + LIFE_NS);
    end_life(&life);
    print_lives();
    print_end();
    wait_for_leave(&run);
}

int main(int argc, char **argv) {
    const struct own_option own = {.letter = 'n', .argument = "BRIEF", .index = &briefs};
    take_options(argc, argv, &run, &own, 1);
    arguments = argv;
    open_book(-1);
    if (getenv("LIFECYCLE_REBORN") != NULL) {
        live_again();
        return 0;
    }
    print_start(NULL, 0, &run);
    wait_for_go(&run);
    for (int i = 0; i < briefs; i++)
        run_thread(brief);
    run_thread(caterpillar);
    run_thread(hostile);
    fork_family();
    reuse_pid();
    run_thread(swapper);
}
