// SPDX-License-Identifier: Apache-2.0
// backlog: datagrams arrive while no thread reads them.
//
// `feeder` sends a datagram every 5 ms to a UDP socket that `receiver` reads; both take a lock for each one.
// Half-way through the run the feeder keeps the lock for 800 ms (keep_the_lock) and, once the receiver waits
// in take_the_lock, sends more than the socket's buffer holds: the queue fills and overflows.
//
// Truth, besides truth.h's lines:
//   {"event":"backlog", "start_ns", "end_ns", "port", "queued", "drops"}   while the lock was kept: the
//   socket's port,
//       the bytes of memory in its queue in the end, and the datagrams that did not fit (SO_MEMINFO)

#include "truth.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define PAUSE_NS (5 * NS_PER_MS)
#define KEPT_NS (800 * NS_PER_MS)
// The receiver waits for the lock by then.
#define BURST_AFTER_NS (150 * NS_PER_MS)
#define BURST 2000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int inbox, outbox;
static struct sockaddr_in address;
static uint64_t kept_from, kept_to, half_way;
static uint32_t queued, drops;
static struct run run = {.scenario = "backlog", .seconds = 4, .seed = 42};

SHOWN static void take_the_lock(void) { pthread_mutex_lock(&lock); }

static void send_one(void) {
    char datagram[512] = {0};
    if (send(outbox, datagram, sizeof datagram, 0) < 0)
        die("cannot send a datagram", errno);
}

static void look_at_queue(void) {
    // linux/sock_diag.h: SK_MEMINFO_RMEM_ALLOC is the first one, SK_MEMINFO_DROPS the ninth.
    uint32_t memory[9] = {0};
    socklen_t size = sizeof memory;
    if (getsockopt(inbox, SOL_SOCKET, SO_MEMINFO, memory, &size) != 0)
        die("cannot look at the socket's memory", errno);
    queued = memory[0];
    drops = memory[8];
}

SHOWN static void keep_the_lock(void) {
    take_the_lock();
    kept_from = now_ns();
    send_one();
    sleep_until(kept_from + BURST_AFTER_NS);
    for (int i = 0; i < BURST; i++)
        send_one();
    sleep_until(kept_from + KEPT_NS);
    look_at_queue();
    kept_to = now_ns();
    pthread_mutex_unlock(&lock);
}

static void feed(struct runner *self) {
    (void)self;
    while (!run_is_over()) {
        send_one();
        sleep_for(PAUSE_NS);
        if (!kept_from && now_ns() >= half_way)
            keep_the_lock();
    }
}

static void receive(struct runner *self) {
    (void)self;
    char datagram[512];
    while (!run_is_over()) {
        struct pollfd input = {.fd = inbox, .events = POLLIN};
        if (poll(&input, 1, 100) <= 0)
            continue;
        take_the_lock();
        if (recv(inbox, datagram, sizeof datagram, MSG_DONTWAIT) < 0 && errno != EAGAIN)
            die("cannot receive a datagram", errno);
        pthread_mutex_unlock(&lock);
    }
}

static void open_sockets(void) {
    socklen_t size = sizeof address;
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    inbox = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    outbox = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (inbox < 0 || outbox < 0 || bind(inbox, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(inbox, (struct sockaddr *)&address, &size) != 0 ||
        connect(outbox, (struct sockaddr *)&address, sizeof address) != 0)
        die("cannot open the sockets", errno);
}

static void print_truth(void) {
    printf(
        "{\"event\":\"backlog\",\"start_ns\":%llu,\"end_ns\":%llu,\"port\":%d,\"queued\":%u,\"drops\":%u}\n",
        (unsigned long long)kept_from, (unsigned long long)kept_to, ntohs(address.sin_port), queued, drops);
}

int main(int argc, char **argv) {
    take_options(argc, argv, &run, NULL, 0);
    open_sockets();
    half_way = now_ns() + (uint64_t)(run.seconds * NS_PER_S / 2);
    struct runner runners[] = {{.name = "receiver", .body = receive}, {.name = "feeder", .body = feed}};
    run_scenario(runners, 2, &run, print_truth);
}
