// SPDX-License-Identifier: Apache-2.0
// bystander: threads whose waits interrupts end, on one CPU with threads that have nothing to do with it.
//
//   spinner    computes and makes no system call
//   caller     reads /dev/zero, and sends to itself over loopback, whose softirqs are its own
//   sleeper    sleeps: a timer's hard interrupt ends it
//   receiver   receives with a timeout: a timer's softirq ends it
//   syncer     writes and calls fdatasync: the disk's interrupt or a thread of the kernel ends it
//   listener   receives what `ringer` sends over loopback: a softirq of the ringer's own ends it
//   ringer     sleeps and sends
//
// Truth, besides truth.h's lines:
//   {"event":"waits", "name", "count"}   how often each of them waited
// Options: -c CPU (default 0), -f FILE to write to (default: none, and no syncer), -n SLEEPS after which the
// run ends if it is not over before (default: any number)

#include "truth.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>

enum waiter { SLEEPER, RECEIVER, SYNCER, LISTENER, RINGER, WAITERS };

static const char *const names[WAITERS] = {"sleeper", "receiver", "syncer", "listener", "ringer"};
static uint64_t waits[WAITERS];
static struct run run = {.scenario = "bystander", .seconds = 3, .seed = 42};
static int cpu;
static const char *file;
static uint64_t most_sleeps = UINT64_MAX;
static volatile uint64_t result;

static atomic_bool sleeper_is_done;
static int listening;

static int open_socket(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = socket(AF_INET, SOCK_DGRAM, 0);
    if (one < 0 || bind(one, (struct sockaddr *)&address, sizeof address))
        die("cannot make a socket", errno);
    return one;
}

static void connect_sockets(int from, int to) {
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    if (getsockname(to, (struct sockaddr *)&address, &length) ||
        connect(from, (struct sockaddr *)&address, length))
        die("cannot connect a socket", errno);
}

SHOWN static void spin(struct runner *self) {
    (void)self;
    uint64_t sequence = run.seed;
    // Without a look at the clock, which is a system call on some machines.
    while (!sleeper_is_done)
        for (int i = 0; i < 100000; i++)
            result += next_random(&sequence);
}

SHOWN static void call(struct runner *self) {
    (void)self;
    static char bytes[1 << 14];
    int zero = open("/dev/zero", O_RDONLY), own = open_socket();
    connect_sockets(own, own);
    if (zero < 0)
        die("cannot open /dev/zero", errno);
    while (!run_is_over()) {
        if (read(zero, bytes, sizeof bytes) < 0 || send(own, bytes, 64, 0) < 0 || recv(own, bytes, 64, 0) < 0)
            die("cannot read or send", errno);
    }
}

SHOWN static void sleep_often(struct runner *self) {
    (void)self;
    prctl(PR_SET_TIMERSLACK, 1);
    for (; !run_is_over() && waits[SLEEPER] < most_sleeps; waits[SLEEPER]++)
        sleep_for(150 * NS_PER_US);
    end_run(0);
    sleeper_is_done = true;
}

SHOWN static void receive_nothing(struct runner *self) {
    (void)self;
    char byte;
    int silent = open_socket();
    struct timeval timeout = {.tv_usec = 1000};
    if (setsockopt(silent, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout))
        die("cannot set a timeout", errno);
    for (; !run_is_over(); waits[RECEIVER]++)
        recv(silent, &byte, 1, 0);
}

SHOWN static void sync_often(struct runner *self) {
    (void)self;
    int fd = file ? open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    char bytes[512] = {0};
    if (file && fd < 0)
        die("cannot open the file", errno);
    for (; fd >= 0 && !run_is_over(); waits[SYNCER]++)
        if (pwrite(fd, bytes, sizeof bytes, 0) < 0 || fdatasync(fd))
            die("cannot write", errno);
}

SHOWN static void listen_for_ring(struct runner *self) {
    (void)self;
    char byte;
    for (; recv(listening, &byte, 1, 0) == 1 && byte; waits[LISTENER]++)
        ;
}

SHOWN static void ring(struct runner *self) {
    (void)self;
    int ringing = open_socket();
    connect_sockets(ringing, listening);
    for (char byte = 1; !run_is_over(); waits[RINGER]++) {
        sleep_for(400 * NS_PER_US);
        send(ringing, &byte, 1, 0);
    }
    char last = 0;
    send(ringing, &last, 1, 0);
}

static void print_truth(void) {
    for (int i = 0; i < WAITERS; i++)
        printf("{\"event\":\"waits\",\"name\":\"%s\",\"count\":%llu}\n", names[i],
               (unsigned long long)waits[i]);
}

int main(int argc, char **argv) {
    struct own_option own[] = {{.letter = 'c', .argument = "CPU", .index = &cpu},
                               {.letter = 'f', .argument = "FILE", .text = &file},
                               {.letter = 'n', .argument = "SLEEPS", .count = &most_sleeps}};
    take_options(argc, argv, &run, own, 3);
    pin_to(cpu);
    listening = open_socket();
    struct runner runners[] = {
        {.name = "sleeper", .body = sleep_often}, {.name = "receiver", .body = receive_nothing},
        {.name = "syncer", .body = sync_often},   {.name = "listener", .body = listen_for_ring},
        {.name = "ringer", .body = ring},         {.name = "caller", .body = call},
        {.name = "spinner", .body = spin}};
    run_scenario(runners, 7, &run, print_truth);
}
