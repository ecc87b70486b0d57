/* SPDX-License-Identifier: Apache-2.0 */
// Threads and processes that come and go, each writing down its own life.
//
// Truth: {"event":"life", "pid", "tid", "name", "was", "start_ns", "end_ns", "cpu_ns"}
//       One life by its own clocks; name is the last name, was the one before (null if it had none).
#pragma once

#include "truth.h"

#include <linux/sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define MAX_LIVES 1024

struct life {
    char name[16], was[16]; // copied: another program has its texts elsewhere
    pid_t pid, tid;
    uint64_t start_ns, end_ns, cpu_ns;
};

// Shared with the forked processes, which write down their own lives.
struct book {
    atomic_int count;
    struct life lives[MAX_LIVES];
};

static struct book *book;

// Maps the book: of the file, which other programs map as well, or (-1) for processes that are forked from
// here.
static void open_book(int file) {
    int flags = file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
    book = mmap(NULL, sizeof *book, PROT_READ | PROT_WRITE, flags, file, 0);
    if (book == MAP_FAILED)
        die("cannot map memory", errno);
}

// --- one life ---

static uint64_t own_cpu_ns(void) { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

SHOWN static void live_for(uint64_t cpu_ns) {
    while (own_cpu_ns() < cpu_ns)
        ;
}

static struct life begin_life(const char *name) {
    struct life life = {.pid = getpid(), .tid = gettid(), .start_ns = now_ns()};
    prctl(PR_SET_NAME, name);
    snprintf(life.name, sizeof life.name, "%s", name);
    return life;
}

static void end_life(struct life *life) {
    life->cpu_ns = own_cpu_ns();
    life->end_ns = now_ns();
    int at = atomic_fetch_add(&book->count, 1);
    if (at < MAX_LIVES)
        book->lives[at] = *life;
}

static void whole_life(const char *name, uint64_t cpu_ns) {
    struct life life = begin_life(name);
    live_for(cpu_ns);
    end_life(&life);
}

// --- processes ---

static void wait_for_child(pid_t pid) {
    if (pid < 0)
        die("cannot fork", errno);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

// Forks a process with this pid, or any when it is 0; negative with errno set when refused.
static pid_t fork_as(pid_t pid) {
    struct clone_args how = {.exit_signal = SIGCHLD};
    if (pid != 0) {
        how.set_tid = (uint64_t)(uintptr_t)&pid;
        how.set_tid_size = 1;
    }
    return (pid_t)syscall(SYS_clone3, &how, sizeof how);
}

// --- truth ---

static void print_text(const char *text) {
    putchar('"');
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < ' ' || *text == '"' || *text == '\\')
            printf("\\u%04x", *text);
        else
            putchar(*text);
    }
    putchar('"');
}

static void print_life(const struct life *life) {
    printf("{\"event\":\"life\",\"pid\":%d,\"tid\":%d,\"name\":", life->pid, life->tid);
    print_text(life->name);
    printf(",\"was\":");
    if (life->was[0] == '\0')
        printf("null");
    else
        print_text(life->was);
    printf(",\"start_ns\":%llu,\"end_ns\":%llu,\"cpu_ns\":%llu}\n", (unsigned long long)life->start_ns,
           (unsigned long long)life->end_ns, (unsigned long long)life->cpu_ns);
}

static void print_book(void) {
    int count = atomic_load(&book->count);
    for (int i = 0; i < count && i < MAX_LIVES; i++)
        print_life(&book->lives[i]);
}
