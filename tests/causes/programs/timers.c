// Whether the timers of this machine come late for everybody: sleeps for a millisecond again and again, and
// prints at SIGTERM the permille of its time by which sleeps were too long. Waits for a CPU after the wakeup
// do not count (schedstat), nor does a sleep that was late by less than the kernel's slack and a stall's 100
// µs.

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const long ASKED_NS = 1000000;
static const long LEEWAY_NS = 50000 + 100000;

static volatile sig_atomic_t ended;

static void end(int signal) {
    (void)signal;
    ended = 1;
}

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// For how long this thread has waited for a CPU so far.
static long long delayed_ns(int schedstat) {
    char text[96] = "";
    long long running, delayed = 0;
    if (pread(schedstat, text, sizeof text - 1, 0) <= 0 ||
        sscanf(text, "%lld %lld", &running, &delayed) != 2) {
        fputs("timers: /proc/thread-self/schedstat cannot be read\n", stderr);
        exit(1);
    }
    return delayed;
}

int main(void) {
    signal(SIGTERM, end);
    int schedstat = open("/proc/thread-self/schedstat", O_RDONLY);
    long long late = 0, began = now_ns();
    while (!ended) {
        long long delayed = delayed_ns(schedstat), slept = now_ns();
        nanosleep(&(struct timespec){.tv_nsec = ASKED_NS}, NULL);
        slept = now_ns() - slept - (delayed_ns(schedstat) - delayed) - ASKED_NS;
        if (slept >= LEEWAY_NS)
            late += slept;
    }
    printf("%lld\n", late * 1000 / (now_ns() - began));
    return 0;
}
