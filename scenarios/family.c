// SPDX-License-Identifier: Apache-2.0
// family: processes start processes in every way there is, and some outlive the one that started them.
//
// Each runs for 20 ms of its own CPU time:
//   heir         a process that exists before the gate; behind it, it lives and forks `grandchild`
//   forked       a forked process
//   cloned       one by clone3
//   executed     one by vfork, which calls exec at once
//   daemon       forked by a forked process that ends at once, in a session of its own; forks `acolyte`
//   of-thread    forked by the thread `breeder`, which only does that
//
// Truth, besides truth.h's lines: lives.h's.

#include "lives.h"

#define LIFE_NS (20 * NS_PER_MS)
#define BOOK "FAMILY_BOOK"

static struct run run = {.scenario = "family", .seconds = 10, .seed = 42};
static int book_file;

// The pipe that heir waits at; its end opens it.
static int heir_gate[2];

// Orphans hold this pipe open while they live: end of file means that all have ended.
static int orphans[2];

static pid_t fork_or_die(void) {
    pid_t pid = fork();
    if (pid < 0)
        die("cannot fork", errno);
    return pid;
}

static void fork_and_wait(const char *name) {
    pid_t pid = fork_or_die();
    if (pid == 0) {
        whole_life(name, LIFE_NS);
        _exit(0);
    }
    wait_for_child(pid);
}

static void wait_for_end(int pipe) {
    char byte;
    while (read(pipe, &byte, 1) > 0 || errno == EINTR)
        errno = 0;
}

// --- before the gate ---

static pid_t fork_heir(void) {
    pid_t pid = fork_or_die();
    if (pid != 0)
        return pid;
    close(heir_gate[1]);
    wait_for_end(heir_gate[0]);
    whole_life("heir", LIFE_NS);
    fork_and_wait("grandchild");
    _exit(0);
}

// --- behind it ---

static void clone_and_wait(void) {
    pid_t pid = fork_as(0);
    if (pid == 0) {
        whole_life("cloned", LIFE_NS);
        _exit(0);
    }
    wait_for_child(pid);
}

static void execute_and_wait(char **arguments) {
    pid_t pid = vfork();
    if (pid == 0) {
        execv("/proc/self/exe", arguments);
        _exit(1);
    }
    wait_for_child(pid);
}

static void fork_daemon(void) {
    pid_t pid = fork_or_die();
    if (pid == 0) {
        if (fork_or_die() == 0) {
            setsid();
            while (getppid() == pid)
                ;
            whole_life("daemon", LIFE_NS);
            fork_and_wait("acolyte");
        }
        _exit(0);
    }
    wait_for_child(pid);
}

static void breed(struct runner *self) {
    (void)self;
    fork_and_wait("of-thread");
}

static void make_pipe(int ends[2]) {
    if (pipe(ends) != 0)
        die("cannot make a pipe", errno);
}

static void live_elsewhere(const char *file) {
    open_book(atoi(file));
    whole_life("executed", LIFE_NS);
}

int main(int argc, char **argv) {
    struct runner runners[] = {{.name = "breeder", .body = breed}};
    char number[16];
    if (getenv(BOOK) != NULL) {
        live_elsewhere(getenv(BOOK));
        return 0;
    }
    take_options(argc, argv, &run, NULL, 0);
    book_file = (int)syscall(SYS_memfd_create, "lives", 0u);
    if (book_file < 0 || ftruncate(book_file, sizeof *book) != 0)
        die("cannot make a file in memory", errno);
    open_book(book_file);
    snprintf(number, sizeof number, "%d", book_file);
    setenv(BOOK, number, 1);
    make_pipe(heir_gate);
    make_pipe(orphans);
    pid_t heir = fork_heir();
    assemble_runners(runners, 1);
    print_start(runners, 1, &run);
    wait_for_go(&run);
    close(heir_gate[1]);
    release_runners(runners, 1, &run);
    fork_and_wait("forked");
    clone_and_wait();
    execute_and_wait(argv);
    fork_daemon();
    wait_for(&runners_done);
    wait_for_child(heir);
    close(orphans[1]);
    wait_for_end(orphans[0]);
    print_book();
    print_runners(runners, 1);
    print_end();
    wait_for_leave(&run);
    dismiss_runners(runners, 1);
}
