// SPDX-License-Identifier: Apache-2.0
// A server of four processes that take a lock around the wait for the next client, as Apache with `Mutex flock` and
// uWSGI with --thunder-lock do.
//
// usage: prefork flock|mutex slow|quick SECONDS. With quick, a client comes each 20 ms, and three workers wait for their
// turn. With slow, two clients come one after the other, and a worker serves its client before it gives the lock away.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WORKERS = 4, CLIENTS = 2 };

static pthread_mutex_t *mutex;
static struct sockaddr_in address = {.sin_family = AF_INET};
static int listener, file = -1;
static bool slow;

static void check(bool is_right) {
    if (!is_right)
        exit(1);
}

__attribute__((noinline)) static void take_turn(void) {
    check((file < 0 ? pthread_mutex_lock(mutex) : flock(file, LOCK_EX)) == 0);
    __asm__ volatile("");
}

static void end_turn(void) { check((file < 0 ? pthread_mutex_unlock(mutex) : flock(file, LOCK_UN)) == 0); }

__attribute__((noinline)) static void serve(int client) {
    char text[8];
    check(read(client, text, sizeof text) >= 0);
    usleep(slow ? 20000 : 1000);
    check(write(client, "done", 4) == 4);
    close(client);
}

static void work(const char *path) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    check(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0);
    // Of its own, so that the lock is.
    if (file >= 0)
        check((file = open(path, O_RDWR | O_CLOEXEC)) >= 0);
    for (;;) {
        take_turn();
        epoll_wait(set, &event, 1, -1);
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (slow)
            serve(client);
        end_turn();
        if (!slow)
            serve(client);
    }
}

static void ask(void) {
    char text[8];
    for (;;) {
        int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        check(connect(server, (struct sockaddr *)&address, sizeof address) == 0 && write(server, "ask", 3) == 3);
        check(read(server, text, sizeof text) >= 0);
        close(server);
        usleep(slow ? 1000 : 20000);
    }
}

static void start(const char *name, void (*run)(const char *), const char *path) {
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_NAME, name);
        run ? run(path) : ask();
    }
}

int main(int count, char **arguments) {
    check(count == 4);
    slow = strcmp(arguments[2], "slow") == 0;
    char path[] = "/tmp/wallprof-prefork.XXXXXX";
    mutex = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(mutex != MAP_FAILED);
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(mutex, &shared);
    if (strcmp(arguments[1], "flock") == 0)
        check((file = mkostemp(path, O_CLOEXEC)) >= 0);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    check(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 64) == 0);
    check(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
    for (int i = 0; i < WORKERS; i++)
        start("server", work, path);
    for (int i = 0; i < (slow ? CLIENTS : 1); i++)
        start("client", NULL, NULL);
    sleep((unsigned)atoi(arguments[3]));
    if (file >= 0)
        unlink(path);
}
