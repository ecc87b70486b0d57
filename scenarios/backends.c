// SPDX-License-Identifier: Apache-2.0
// backends: four processes contend for a lock in shared memory, as the backends of a database do for a row.
//
// Each `backend` has a client of its own, a thread of the first process, which sends a request over a socket
// 0.2 to 2 ms after the answer to the one before. The backend waits for it, takes the lock, holds it for 0.2
// to 2 ms, releases it, works for 50 to 200 µs and answers: serve → handle_request → update_row → take_row.
// A backend that finds the lock taken enters a list, and waits for its turn. The one that releases the lock
// makes the first of the list the holder, and wakes it.
//
//   poll        it waits in poll for a pipe of its own, through the same function as for its client
//   semaphore   it waits for a semaphore of its own
//
// Truth, besides truth.h's lines, whose threads are the backends: those of waits.h, about the acquisitions of
// the lock.
// Options: -w KIND, how the lock is waited for (default poll).

#include "waits.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define BACKENDS 4
#define NOBODY (-1)

static const struct work held = {200 * NS_PER_US, 2 * NS_PER_MS};
static const struct work outside = {50 * NS_PER_US, 200 * NS_PER_US};
static const struct work think = {200 * NS_PER_US, 2 * NS_PER_MS};

static struct run run = {.scenario = "backends", .seconds = 5, .seed = 42};

// In the memory of all processes.
static struct {
    struct runner backends[BACKENDS];
    struct durations waits[BACKENDS];
    sem_t ready, done;
    pthread_mutex_t guard;
    int holder, waiting[BACKENDS], waiters;
    sem_t turns[BACKENDS];
} *shared;

static int turn_pipes[BACKENDS][2], sockets[BACKENDS][2];

static const char *const names[] = {"poll", "semaphore"};
enum kind { POLL, SEMAPHORE, KINDS };
static int kind;

static void map_shared(void) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die("cannot map memory", errno);
    pthread_mutexattr_t of_processes;
    pthread_mutexattr_init(&of_processes);
    pthread_mutexattr_setpshared(&of_processes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&shared->guard, &of_processes);
    shared->holder = NOBODY;
    sem_init(&shared->ready, 1, 0);
    sem_init(&shared->done, 1, 0);
    for (int i = 0; i < BACKENDS; i++)
        sem_init(&shared->turns[i], 1, 0);
}

// --- waiting for something to read ---

// False at its end.
SHOWN static bool await_byte(int from) {
    struct pollfd input = {.fd = from, .events = POLLIN};
    char byte;
    while (poll(&input, 1, -1) < 0)
        if (errno != EINTR)
            die("cannot poll", errno);
    return read(from, &byte, 1) == 1;
}

static void send_byte(int to) {
    if (write(to, "b", 1) != 1)
        die("cannot write", errno);
}

// --- the lock ---

SHOWN static void await_turn(int backend) {
    if (kind == POLL)
        await_byte(turn_pipes[backend][0]);
    else
        while (sem_wait(&shared->turns[backend]) != 0)
            ;
}

SHOWN static void give_turn(int backend) {
    if (kind == SEMAPHORE)
        sem_post(&shared->turns[backend]);
    else
        send_byte(turn_pipes[backend][1]);
}

SHOWN static void take_row(int backend) {
    pthread_mutex_lock(&shared->guard);
    bool is_free = shared->holder == NOBODY;
    if (is_free)
        shared->holder = backend;
    else
        shared->waiting[shared->waiters++] = backend;
    pthread_mutex_unlock(&shared->guard);
    if (!is_free)
        await_turn(backend);
}

SHOWN static void release_row(void) {
    pthread_mutex_lock(&shared->guard);
    int next = shared->waiters > 0 ? shared->waiting[0] : NOBODY;
    if (next != NOBODY)
        memmove(shared->waiting, shared->waiting + 1, (size_t)--shared->waiters * sizeof shared->waiting[0]);
    shared->holder = next;
    pthread_mutex_unlock(&shared->guard);
    if (next != NOBODY)
        give_turn(next);
}

// --- a backend ---

SHOWN static void update_row(int backend, uint64_t *chance) {
    uint64_t start_ns = now_ns();
    take_row(backend);
    add_duration(&shared->waits[backend], now_ns() - start_ns);
    do_some(&held, chance);
    release_row();
}

SHOWN static void handle_request(int backend, uint64_t *chance) {
    update_row(backend, chance);
    do_some(&outside, chance);
    send_byte(sockets[backend][1]);
}

SHOWN static void serve(struct runner *self) {
    uint64_t chance = chance_of(&run, self);
    while (await_byte(sockets[self->index][1]))
        handle_request(self->index, &chance);
}

// A forked process, which ends with the first one.
static void live_as_backend(struct runner *self) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < BACKENDS; i++)
        close(sockets[i][0]);
    introduce(self);
    sem_post(&shared->ready);
    wait_for(&self->go);
    run_and_note(self);
    sem_post(&shared->done);
    wait_for(&self->leave);
    _exit(0);
}

static void fork_backends(void) {
    for (int i = 0; i < BACKENDS; i++) {
        if (pipe(turn_pipes[i]) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets[i]) != 0)
            die("cannot make a pipe or sockets", errno);
        shared->backends[i] =
            (struct runner){.name = alias != NULL ? alias : "backend", .body = serve, .index = i};
        sem_init(&shared->backends[i].go, 1, 0);
        sem_init(&shared->backends[i].leave, 1, 0);
    }
    for (int i = 0; i < BACKENDS; i++) {
        pid_t pid = fork();
        if (pid < 0)
            die("cannot fork", errno);
        if (pid == 0)
            live_as_backend(&shared->backends[i]);
    }
    for (int i = 0; i < BACKENDS; i++)
        wait_for(&shared->ready);
}

// --- a client ---

SHOWN static void ask_backend(struct runner *self) {
    uint64_t chance = chance_of(&run, self) + BACKENDS;
    int socket = sockets[self->index][0];
    while (!run_is_over()) {
        sleep_for(random_between(&chance, think.low_ns, think.high_ns));
        send_byte(socket);
        await_byte(socket);
    }
    close(socket);
}

// --- the run ---

static void print_truth(void) {
    print_waits(shared->backends, shared->waits, BACKENDS);
    print_runners(shared->backends, BACKENDS);
}

int main(int argc, char **argv) {
    struct runner clients[BACKENDS];
    const char *name = names[POLL];
    const struct own_option own = {.letter = 'w', .argument = "KIND", .text = &name};
    take_options(argc, argv, &run, &own, 1);
    kind = kind_named(name, names, KINDS);
    map_shared();
    fork_backends();
    for (int i = 0; i < BACKENDS; i++)
        clients[i] = (struct runner){.name = "client", .body = ask_backend, .index = i};
    assemble_runners(clients, BACKENDS);
    print_start(shared->backends, BACKENDS, &run);
    wait_for_go(&run);
    for (int i = 0; i < BACKENDS; i++)
        sem_post(&shared->backends[i].go);
    release_runners(clients, BACKENDS, &run);
    for (int i = 0; i < BACKENDS; i++) {
        wait_for(&runners_done);
        wait_for(&shared->done);
    }
    print_truth();
    print_runners(clients, BACKENDS);
    print_end();
    wait_for_leave(&run);
    dismiss_runners(clients, BACKENDS);
    for (int i = 0; i < BACKENDS; i++) {
        sem_post(&shared->backends[i].leave);
        wait(NULL);
    }
}
