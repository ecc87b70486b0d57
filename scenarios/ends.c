// SPDX-License-Identifier: Apache-2.0
// ends: a thread that waits for the other end of a connection or a pipe, which is slow or has nothing to say.
//
//   worker   waits: ask_price or ask_in_parts → await_answer, send_record, read_request, read_output
//   other    the other end; with -k child that is a process
//
// Truth, besides truth.h's lines:
//   {"event":"waits", "count", "total_ns", "longest_ns"}   the worker's calls that took 5 ms or longer, by
//       its own clock
// Options: -k KIND (default answer):
//   answer      it asks over TCP, and the answer takes 30 ms
//   parts       it asks over TCP; the first part of the answer takes 2 ms, the other one 30 ms more
//   buffer      it sends over TCP to an end that reads 256 KiB each 30 ms
//   pipe        it writes to a pipe of which 64 KiB are read each 30 ms
//   requests    it serves requests over TCP, one each 30 ms
//   keepalive   it asked once, had its answer, and then waits for what else the server sends: each 30 ms
//   child       it reads what a child process writes, each 30 ms

#include "truth.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define PAUSE_NS (30 * NS_PER_MS)
#define FIRST_PART_NS (2 * NS_PER_MS)
#define LONG_NS (5 * NS_PER_MS)

static const char *kind = "answer";
static int own = -1, others = -1;
static pid_t child;
static struct {
    uint64_t count, total_ns, longest_ns;
} waits;
static struct run run = {.scenario = "ends", .seconds = 10, .seed = 42};

static char record[1 << 16];

static bool is(const char *name) { return strcmp(kind, name) == 0; }

static void note_wait(uint64_t start) {
    uint64_t ns = now_ns() - start;
    if (ns < LONG_NS)
        return;
    waits.count++;
    waits.total_ns += ns;
    if (ns > waits.longest_ns)
        waits.longest_ns = ns;
}

static bool receive(int from) {
    char byte;
    return read(from, &byte, 1) == 1;
}

static bool send_byte(int to) { return write(to, "x", 1) == 1; }

SHOWN static bool await_answer(void) {
    uint64_t start = now_ns();
    bool got = receive(own);
    note_wait(start);
    return got;
}

SHOWN static bool ask_price(void) { return send_byte(own) && await_answer(); }

SHOWN static bool ask_in_parts(void) { return send_byte(own) && await_answer() && await_answer(); }

SHOWN static bool read_request(void) { return await_answer() && send_byte(own); }

SHOWN static bool send_record(void) {
    uint64_t start = now_ns();
    bool sent = write(own, record, sizeof record) > 0;
    note_wait(start);
    return sent;
}

SHOWN static void run_worker(struct runner *self) {
    bool goes_on = true;
    (void)self;
    if (is("keepalive"))
        goes_on = ask_price();
    while (goes_on && !run_is_over()) {
        if (is("answer"))
            goes_on = ask_price();
        else if (is("parts"))
            goes_on = ask_in_parts();
        else if (is("buffer") || is("pipe"))
            goes_on = send_record();
        else if (is("requests"))
            goes_on = read_request();
        else
            goes_on = await_answer();
    }
    if (is("pipe"))
        close(own);
    else
        shutdown(own, SHUT_RDWR);
}

SHOWN static void read_slowly(size_t bytes) {
    for (size_t got = 0; got < bytes;) {
        ssize_t part = read(others, record, sizeof record);
        if (part <= 0)
            return;
        got += (size_t)part;
    }
}

SHOWN static void run_other(struct runner *self) {
    (void)self;
    if (is("child"))
        return;
    // The one answer is quick.
    bool goes_on = !is("keepalive") || (receive(others) && send_byte(others));
    while (goes_on && !run_is_over()) {
        if (is("answer") || is("parts"))
            goes_on = receive(others);
        if (is("parts")) {
            sleep_for(FIRST_PART_NS);
            goes_on = goes_on && send_byte(others);
        }
        sleep_for(PAUSE_NS);
        if (is("buffer"))
            read_slowly(1 << 18);
        else if (is("pipe"))
            read_slowly(1 << 16);
        else
            goes_on = goes_on && send_byte(others) && (!is("requests") || receive(others));
    }
    if (is("pipe"))
        close(others);
    else
        shutdown(others, SHUT_RDWR);
}

// The side that makes the connection first.
static void connect_over_tcp(int *client, int *server) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) != 0 ||
        listen(listener, 1) != 0 || getsockname(listener, (struct sockaddr *)&address, &length) != 0)
        die("cannot listen", errno);
    *client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*client < 0)
        die("socket", errno);
    // As much as the other end reads in one go: it is full at once.
    int bytes = 1 << 16;
    setsockopt(*client, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    if (connect(*client, (struct sockaddr *)&address, length) != 0)
        die("connect", errno);
    *server = accept(listener, NULL, NULL);
    if (*server < 0)
        die("accept", errno);
    close(listener);
}

static void open_pipe(int *from, int *to) {
    int ends[2];
    if (pipe(ends) != 0)
        die("cannot make a pipe", errno);
    *from = ends[0];
    *to = ends[1];
}

// A process that writes a byte each PAUSE_NS, until nothing reads them.
static void start_child(void) {
    open_pipe(&own, &others);
    child = fork();
    if (child < 0)
        die("fork", errno);
    if (child == 0) {
        close(own);
        signal(SIGPIPE, SIG_DFL);
        do
            sleep_for(PAUSE_NS);
        while (send_byte(others));
        _exit(0);
    }
    close(others);
}

static void print_truth(void) {
    printf("{\"event\":\"waits\",\"count\":%llu,\"total_ns\":%llu,\"longest_ns\":%llu}\n",
           (unsigned long long)waits.count, (unsigned long long)waits.total_ns,
           (unsigned long long)waits.longest_ns);
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
}

int main(int argc, char **argv) {
    const struct own_option options[] = {{.letter = 'k', .argument = "KIND", .text = &kind}};
    struct runner runners[] = {{.name = "other", .body = run_other}, {.name = "worker", .body = run_worker}};
    take_options(argc, argv, &run, options, 1);
    signal(SIGPIPE, SIG_IGN);
    if (is("child"))
        start_child();
    else if (is("pipe"))
        open_pipe(&others, &own);
    else if (is("requests"))
        connect_over_tcp(&others, &own);
    else
        connect_over_tcp(&own, &others);
    run_scenario(runners, 2, &run, print_truth);
}
