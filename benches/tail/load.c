// SPDX-License-Identifier: Apache-2.0
// Requests in a closed loop on a number of connections, with percentiles of their latency over windows of
// time.
//
// usage: load redis|postgres ADDRESS CONNECTIONS
//        load loop CPU
//
//   redis     ADDRESS is a TCP port of this machine; a request is GET of one key
//   postgres  ADDRESS is the path of a Unix socket; a request is pgbench's select of one account, of scale 1;
//   the
//             server must trust the user `postgres`
//   loop      no request: turns of 10 µs on one CPU, each of which takes longer where the CPU was taken away
//
// Each line on stdin ends the window and starts the next one. For each window one line on stdout: requests,
// and P50, P99, P99.9 and the longest latency in ns. Percentiles are exact to 1/128. Ends with stdin.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define TURN_NS 10000

enum { MAX_CONNECTIONS = 256, STEPS = 128, OCTAVES = 40, ACCOUNTS = 100000 };

struct connection {
    int socket;
    uint64_t asked_ns;
    uint8_t answer[4096];
    size_t length;
};

static struct connection connections[MAX_CONNECTIONS];
static uint64_t buckets[OCTAVES * STEPS], requests, longest_ns;
static bool is_postgres;

static void die(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

// Linear below STEPS, then STEPS buckets an octave.
static size_t bucket_of(uint64_t ns) {
    unsigned octave = 0;
    while (ns >> octave >= 2 * STEPS)
        octave++;
    size_t bucket = ns < STEPS ? ns : STEPS * (octave + 1) + ((ns >> octave) - STEPS);
    return bucket < OCTAVES * STEPS ? bucket : OCTAVES * STEPS - 1;
}

// The middle of a bucket.
static uint64_t value_of(size_t bucket) {
    if (bucket < STEPS)
        return bucket;
    unsigned octave = bucket / STEPS - 1;
    return ((bucket % STEPS + STEPS) << octave) + ((1ull << octave) >> 1);
}

static void count(uint64_t ns) {
    buckets[bucket_of(ns)]++;
    requests++;
    if (ns > longest_ns)
        longest_ns = ns;
}

static uint64_t percentile(double share) {
    uint64_t rank = (uint64_t)(share * requests), below = 0;
    for (size_t bucket = 0; bucket < OCTAVES * STEPS; bucket++) {
        below += buckets[bucket];
        if (below > rank)
            return value_of(bucket);
    }
    return longest_ns;
}

static void end_window(void) {
    printf("%llu %llu %llu %llu %llu\n", (unsigned long long)requests, (unsigned long long)percentile(0.5),
           (unsigned long long)percentile(0.99), (unsigned long long)percentile(0.999),
           (unsigned long long)longest_ns);
    fflush(stdout);
    memset(buckets, 0, sizeof buckets);
    requests = longest_ns = 0;
}

static void send_all(int socket, const void *bytes, size_t length) {
    for (const uint8_t *at = bytes; length > 0;) {
        ssize_t sent = send(socket, at, length, 0);
        if (sent < 0)
            die("send");
        at += sent;
        length -= sent;
    }
}

// A message of PostgreSQL's frontend protocol, version 3: type, length with itself, body.
static void send_message(int socket, char type, const char *body, size_t length) {
    uint8_t message[256];
    size_t start = type != 0;
    uint32_t size = htonl((uint32_t)(length + 4));
    message[0] = (uint8_t)type;
    memcpy(message + start, &size, 4);
    memcpy(message + start + 4, body, length);
    send_all(socket, message, start + 4 + length);
}

static void ask(struct connection *connection) {
    connection->length = 0;
    connection->asked_ns = now_ns();
    if (is_postgres) {
        char query[96];
        int length = snprintf(query, sizeof query, "SELECT abalance FROM pgbench_accounts WHERE aid = %ld",
                              random() % ACCOUNTS + 1);
        send_message(connection->socket, 'Q', query, (size_t)length + 1);
    } else {
        static const char get[] = "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n";
        send_all(connection->socket, get, sizeof get - 1);
    }
}

// A bulk string of Redis, `$LENGTH\r\n…\r\n` or `$-1\r\n`; of PostgreSQL, all messages up to ReadyForQuery.
static bool is_whole(struct connection *connection) {
    const uint8_t *answer = connection->answer;
    size_t length = connection->length;
    if (!is_postgres) {
        const uint8_t *end = memchr(answer, '\n', length);
        if (!end)
            return false;
        long body = strtol((const char *)answer + 1, NULL, 10);
        return body < 0 || length >= (size_t)(end - answer) + 1 + (size_t)body + 2;
    }
    for (size_t at = 0; at + 5 <= length;) {
        uint32_t size;
        memcpy(&size, answer + at + 1, 4);
        if (answer[at] == 'E') {
            fprintf(stderr, "load: the server refused: %.200s\n", answer + at + 5);
            exit(1);
        }
        if (answer[at] == 'Z')
            return at + 1 + ntohl(size) <= length;
        at += 1 + ntohl(size);
    }
    return false;
}

static void take(struct connection *connection) {
    size_t space = sizeof connection->answer - 1 - connection->length;
    ssize_t taken = recv(connection->socket, connection->answer + connection->length, space, 0);
    if (taken <= 0)
        die("the server closed a connection");
    connection->length += (size_t)taken;
    connection->answer[connection->length] = 0;
}

static void open_redis(struct connection *connection, const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    int one = 1;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connection->socket = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(connection->socket, (struct sockaddr *)&to, sizeof to) != 0)
        die("connect");
    setsockopt(connection->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void open_postgres(struct connection *connection, const char *path) {
    static const char start[] = "\0\3\0\0"
                                "user\0postgres\0database\0postgres\0";
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    connection->socket = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(connection->socket, (struct sockaddr *)&to, sizeof to) != 0)
        die("connect");
    send_message(connection->socket, 0, start, sizeof start);
    while (!is_whole(connection))
        take(connection);
}

static void serve_requests(const char *address, int wanted) {
    int poll = epoll_create1(0);
    for (int i = 0; i < wanted; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &connections[i]};
        (is_postgres ? open_postgres : open_redis)(&connections[i], address);
        epoll_ctl(poll, EPOLL_CTL_ADD, connections[i].socket, &event);
    }
    struct epoll_event orders = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, STDIN_FILENO, &orders) != 0)
        die("stdin must be a pipe");
    for (int i = 0; i < wanted; i++)
        ask(&connections[i]);
    for (;;) {
        struct epoll_event events[64];
        int ready = epoll_wait(poll, events, 64, -1);
        for (int i = 0; i < ready; i++) {
            struct connection *connection = events[i].data.ptr;
            if (!connection) {
                char order[64];
                if (read(STDIN_FILENO, order, sizeof order) <= 0)
                    return;
                end_window();
                continue;
            }
            take(connection);
            if (is_whole(connection)) {
                count(now_ns() - connection->asked_ns);
                ask(connection);
            }
        }
    }
}

static atomic_bool window_ends, is_over;

static void *turn(void *unused) {
    uint64_t last = now_ns();
    (void)unused;
    while (!is_over) {
        uint64_t now;
        do
            now = now_ns();
        while (now - last < TURN_NS);
        count(now - last);
        if (window_ends) {
            end_window();
            window_ends = false;
            now = now_ns();
        }
        last = now;
    }
    return NULL;
}

static void serve_turns(int cpu) {
    cpu_set_t cpus;
    pthread_t thread;
    char order[64];
    CPU_ZERO(&cpus);
    CPU_SET(cpu, &cpus);
    if (pthread_create(&thread, NULL, turn, NULL) != 0 ||
        pthread_setaffinity_np(thread, sizeof cpus, &cpus) != 0)
        die("a thread on this CPU");
    while (read(STDIN_FILENO, order, sizeof order) > 0)
        window_ends = true;
    is_over = true;
    pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "loop") == 0) {
        serve_turns(atoi(argv[2]));
        return 0;
    }
    int wanted = argc == 4 ? atoi(argv[3]) : 0;
    is_postgres = argc == 4 && strcmp(argv[1], "postgres") == 0;
    if (wanted < 1 || wanted > MAX_CONNECTIONS || (!is_postgres && strcmp(argv[1], "redis") != 0)) {
        fputs("usage: load redis|postgres ADDRESS CONNECTIONS, or load loop CPU\n", stderr);
        return 2;
    }
    serve_requests(argv[2], wanted);
    return 0;
}
