// SPDX-License-Identifier: Apache-2.0
// workers: threads that wait for work, for a time or for each other, as they should. None of them is late.
//
//   queue        `worker` threads at a queue, which `producer` fills by a timer
//   pool         `worker` threads at a queue, which `client` threads fill and wait for the answer; some jobs
//                have a second part, which the worker puts into the queue
//   stealing     `worker` threads with a futex each, that split a task, wake each other for the parts, and
//                sleep again in their outermost loop; `client` brings a task every few milliseconds
//   barrier      `stepper` threads that compute in steps and meet at a pthread_barrier_t after each
//   rendezvous   the same with a barrier made of a condition variable
//   timer        `timer` sleeps until the next of the times that `client` threads have set, and wakes the
//                client
//   pipeline     `reader`, `parser` and `writer` hand buffers on through queues; the writer hands them back
//   to
//                the reader through the list of free ones
//   pingpong     `asker` and `answerer` take turns
//   signals      `signaller` signals a condition variable; its `waiter` threads share a CPU with `spinner`,
//   which
//                goes first. In glibc 2.25 to 2.40 a signal waits for waiters that were woken before and have
//                not run since
//
// Truth, besides truth.h's lines: those of waits.h, about these waits; with `signals`
//   {"event":"signalled", "count", "total_ns"}   the waits inside of signals, by the kernel's records of
//   switches; none where the kernel gives no records
// Options: -w KIND (default queue).

#include "switches.h"
#include "waits.h"

#include <linux/futex.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define MOST_RUNNERS 8
#define CAPACITY 64

static struct run run = {.scenario = "workers", .seconds = 5, .seed = 42};
static struct runner runners[MOST_RUNNERS];
static struct durations waits[MOST_RUNNERS];
static int runner_count;

static const struct work pace = {NS_PER_MS / 2, 2 * NS_PER_MS};
static const struct work job_work = {200 * NS_PER_US, NS_PER_MS};

static void add_runner(const char *name, void (*body)(struct runner *)) {
    runners[runner_count] = (struct runner){.name = name, .body = body, .index = runner_count};
    runner_count++;
}

static void add_runners(const char *name, void (*body)(struct runner *), int count) {
    for (int i = 0; i < count; i++)
        add_runner(name, body);
}

static void note_wait(const struct runner *self, uint64_t start_ns) {
    add_duration(&waits[self->index], now_ns() - start_ns);
}

SHOWN static void pace_for(uint64_t *chance) { sleep_for(random_between(chance, pace.low_ns, pace.high_ns)); }

// --- a job, for which its client can wait ---

// A job outlives its answer: the signal comes after that, so that the client finds the mutex free.

struct job {
    pthread_mutex_t guard;
    pthread_cond_t done;
    bool is_done, has_second_part;
};

#define JOB {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false}

SHOWN static void await_answer(struct runner *self, struct job *job) {
    uint64_t start_ns = now_ns();
    pthread_mutex_lock(&job->guard);
    while (!job->is_done)
        pthread_cond_wait(&job->done, &job->guard);
    job->is_done = false;
    pthread_mutex_unlock(&job->guard);
    note_wait(self, start_ns);
}

SHOWN static void answer(struct job *job) {
    pthread_mutex_lock(&job->guard);
    job->is_done = true;
    pthread_mutex_unlock(&job->guard);
    pthread_cond_signal(&job->done);
}

// --- a queue ---

struct queue {
    pthread_mutex_t guard;
    pthread_cond_t filled;
    struct job *jobs[CAPACITY];
    unsigned first, length;
    bool is_closed;
};

#define QUEUE {.guard = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER}

// False where the queue is full or closed.
SHOWN static bool put_job(struct queue *queue, struct job *job) {
    pthread_mutex_lock(&queue->guard);
    bool fits = queue->length < CAPACITY && !queue->is_closed;
    if (fits)
        queue->jobs[(queue->first + queue->length++) % CAPACITY] = job;
    pthread_mutex_unlock(&queue->guard);
    if (fits)
        pthread_cond_signal(&queue->filled);
    return fits;
}

static struct job *pop_job(struct queue *queue) {
    if (queue->length == 0)
        return NULL;
    struct job *job = queue->jobs[queue->first];
    queue->first = (queue->first + 1) % CAPACITY;
    queue->length--;
    return job;
}

// NULL where the queue is empty and closed.
SHOWN static struct job *take_job(struct runner *self, struct queue *queue) {
    uint64_t start_ns = now_ns();
    pthread_mutex_lock(&queue->guard);
    while (queue->length == 0 && !queue->is_closed)
        pthread_cond_wait(&queue->filled, &queue->guard);
    struct job *job = pop_job(queue);
    pthread_mutex_unlock(&queue->guard);
    note_wait(self, start_ns);
    return job;
}

static void close_queue(struct queue *queue) {
    pthread_mutex_lock(&queue->guard);
    queue->is_closed = true;
    pthread_mutex_unlock(&queue->guard);
    pthread_cond_broadcast(&queue->filled);
}

// --- queue ---

static struct queue work_queue = QUEUE;

SHOWN static void do_job(struct job *job, uint64_t *chance) {
    (void)job;
    do_some(&job_work, chance);
}

SHOWN static void work_at_queue(struct runner *self) {
    uint64_t chance = chance_of(&run, self);
    struct job *job;
    while ((job = take_job(self, &work_queue)) != NULL)
        do_job(job, &chance);
}

SHOWN static void produce(struct runner *self) {
    static struct job job = JOB;
    uint64_t chance = chance_of(&run, self);
    while (!run_is_over()) {
        pace_for(&chance);
        put_job(&work_queue, &job);
    }
    close_queue(&work_queue);
}

static void cast_queue(void) {
    add_runner("producer", produce);
    add_runners("worker", work_at_queue, 3);
}

// --- pool ---

#define POOL_CLIENTS 3
static struct job pool_jobs[POOL_CLIENTS] = {JOB, JOB, JOB};
static atomic_int pool_clients = POOL_CLIENTS;

SHOWN static void do_pool_job(struct job *job, uint64_t *chance) {
    do_some(&job_work, chance);
    if (job->has_second_part) {
        job->has_second_part = false;
        if (put_job(&work_queue, job))
            return;
    }
    answer(job);
}

SHOWN static void work_in_pool(struct runner *self) {
    uint64_t chance = chance_of(&run, self);
    struct job *job;
    while ((job = take_job(self, &work_queue)) != NULL)
        do_pool_job(job, &chance);
}

SHOWN static void ask_pool(struct runner *self) {
    uint64_t chance = chance_of(&run, self);
    struct job *job = &pool_jobs[self->index];
    while (!run_is_over()) {
        pace_for(&chance);
        job->has_second_part = next_random(&chance) % 4 == 0;
        if (put_job(&work_queue, job))
            await_answer(self, job);
    }
    if (atomic_fetch_sub(&pool_clients, 1) == 1)
        close_queue(&work_queue);
}

static void cast_pool(void) {
    add_runners("client", ask_pool, POOL_CLIENTS);
    add_runners("worker", work_in_pool, 4);
}

// --- stealing ---

#define STEALERS 4
#define PARTS 16 // of a task; a power of two

static struct {
    pthread_mutex_t guard;
    int parts[CAPACITY]; // each is the size of a part of the task; the last one is taken first
    int length;
    atomic_bool is_over;
} deque = {.guard = PTHREAD_MUTEX_INITIALIZER};

static struct stealer {
    atomic_uint is_asleep; // the futex
} stealers[STEALERS];
static atomic_int parts_left;
static struct job task = JOB;

static void futex(atomic_uint *word, int operation, unsigned value) {
    syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

SHOWN static void wake_a_worker(void) {
    for (int i = 0; i < STEALERS; i++) {
        unsigned asleep = 1;
        if (atomic_compare_exchange_strong(&stealers[i].is_asleep, &asleep, 0)) {
            futex(&stealers[i].is_asleep, FUTEX_WAKE, 1);
            return;
        }
    }
}

static bool push_part(int size) {
    pthread_mutex_lock(&deque.guard);
    bool fits = deque.length < CAPACITY;
    if (fits)
        deque.parts[deque.length++] = size;
    pthread_mutex_unlock(&deque.guard);
    if (fits)
        wake_a_worker();
    return fits;
}

// The size of a part, or 0. An announced sleep is taken back where there is work.
static int steal_part(struct stealer *self, bool announce) {
    pthread_mutex_lock(&deque.guard);
    int size = deque.length > 0 ? deque.parts[--deque.length] : 0;
    if (size == 0 && announce && !deque.is_over)
        atomic_store(&self->is_asleep, 1);
    pthread_mutex_unlock(&deque.guard);
    return size;
}

SHOWN static void run_part(int size, uint64_t *chance) {
    static const struct work leaf = {50 * NS_PER_US, 250 * NS_PER_US};
    while (size > 1 && push_part(size / 2))
        size -= size / 2;
    for (int i = 0; i < size; i++)
        do_some(&leaf, chance);
    if (atomic_fetch_sub(&parts_left, size) == size)
        answer(&task);
}

SHOWN static void steal_and_run(struct runner *self) {
    uint64_t chance = chance_of(&run, self);
    struct stealer *stealer = &stealers[self->index - 1];
    while (!deque.is_over) {
        int size = steal_part(stealer, true);
        if (size != 0) {
            run_part(size, &chance);
            continue;
        }
        uint64_t start_ns = now_ns();
        while (atomic_load(&stealer->is_asleep))
            futex(&stealer->is_asleep, FUTEX_WAIT, 1);
        note_wait(self, start_ns);
    }
}

SHOWN static void bring_tasks(struct runner *self) {
    uint64_t chance = chance_of(&run, self);
    while (!run_is_over()) {
        pace_for(&chance);
        atomic_store(&parts_left, PARTS);
        push_part(PARTS);
        await_answer(self, &task);
    }
    pthread_mutex_lock(&deque.guard);
    deque.is_over = true;
    pthread_mutex_unlock(&deque.guard);
    for (int i = 0; i < STEALERS; i++)
        wake_a_worker();
}

static void cast_stealing(void) {
    add_runner("client", bring_tasks);
    add_runners("worker", steal_and_run, STEALERS);
}

// --- barrier, rendezvous ---

#define STEPPERS 4

static pthread_barrier_t barrier;
static struct {
    pthread_mutex_t guard;
    pthread_cond_t all_here;
    unsigned here, round;
} rendezvous = {.guard = PTHREAD_MUTEX_INITIALIZER, .all_here = PTHREAD_COND_INITIALIZER};
static bool last_step;

// True for one of those who met.
SHOWN static bool meet_at_barrier(void) {
    return pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD;
}

SHOWN static bool meet_at_rendezvous(void) {
    pthread_mutex_lock(&rendezvous.guard);
    unsigned round = rendezvous.round;
    bool is_last = ++rendezvous.here == STEPPERS;
    if (is_last) {
        rendezvous.here = 0;
        rendezvous.round++;
    }
    while (round == rendezvous.round)
        pthread_cond_wait(&rendezvous.all_here, &rendezvous.guard);
    pthread_mutex_unlock(&rendezvous.guard);
    // Behind the mutex, so that those who wake up find it free.
    if (is_last)
        pthread_cond_broadcast(&rendezvous.all_here);
    return is_last;
}

static bool (*meet)(void);

SHOWN static void meet_others(struct runner *self) {
    uint64_t start_ns = now_ns();
    bool decides = meet();
    note_wait(self, start_ns);
    if (decides)
        last_step = run_is_over();
}

// The two halves of a step: whether it was the last one is decided after the first, and read after the
// second.
SHOWN static void step(struct runner *self, uint64_t *chance) {
    do_some(&job_work, chance);
    meet_others(self);
    do_some(&job_work, chance);
    uint64_t start_ns = now_ns();
    meet();
    note_wait(self, start_ns);
}

SHOWN static void take_steps(struct runner *self) {
    uint64_t chance = chance_of(&run, self);
    do
        step(self, &chance);
    while (!last_step);
}

static void cast_barrier(void) {
    pthread_barrier_init(&barrier, NULL, STEPPERS);
    meet = meet_at_barrier;
    add_runners("stepper", take_steps, STEPPERS);
}

static void cast_rendezvous(void) {
    meet = meet_at_rendezvous;
    add_runners("stepper", take_steps, STEPPERS);
}

// --- timer ---

#define TIMER_CLIENTS 3

static struct {
    pthread_mutex_t guard;
    pthread_cond_t changed;
    uint64_t due_ns[TIMER_CLIENTS]; // 0: not set
    struct job fired[TIMER_CLIENTS];
    bool is_over;
} timers;
static atomic_int timer_clients = TIMER_CLIENTS;

static uint64_t next_due_ns(void) {
    uint64_t next_ns = UINT64_MAX;
    for (int i = 0; i < TIMER_CLIENTS; i++)
        if (timers.due_ns[i] != 0 && timers.due_ns[i] < next_ns)
            next_ns = timers.due_ns[i];
    return next_ns;
}

SHOWN static void fire_due(void) {
    uint64_t now = now_ns();
    for (int i = 0; i < TIMER_CLIENTS; i++)
        if (timers.due_ns[i] != 0 && timers.due_ns[i] <= now) {
            timers.due_ns[i] = 0;
            answer(&timers.fired[i]);
        }
}

SHOWN static void await_next_timer(struct runner *self) {
    uint64_t start_ns = now_ns(), due_ns = next_due_ns();
    struct timespec due = {(time_t)(due_ns / NS_PER_S), (long)(due_ns % NS_PER_S)};
    if (due_ns == UINT64_MAX)
        pthread_cond_wait(&timers.changed, &timers.guard);
    else
        pthread_cond_timedwait(&timers.changed, &timers.guard, &due);
    note_wait(self, start_ns);
}

SHOWN static void keep_time(struct runner *self) {
    pthread_mutex_lock(&timers.guard);
    while (!timers.is_over) {
        await_next_timer(self);
        fire_due();
    }
    pthread_mutex_unlock(&timers.guard);
}

// The time of this client's timer; it wakes the timer's thread where it is the next one.
SHOWN static void set_timer(int client, uint64_t due_ns) {
    pthread_mutex_lock(&timers.guard);
    bool is_next = due_ns < next_due_ns();
    timers.due_ns[client] = due_ns;
    pthread_mutex_unlock(&timers.guard);
    if (is_next)
        pthread_cond_signal(&timers.changed);
}

SHOWN static void use_timers(struct runner *self) {
    uint64_t chance = chance_of(&run, self);
    int client = self->index - 1;
    while (!run_is_over()) {
        set_timer(client, now_ns() + random_between(&chance, NS_PER_MS, 5 * NS_PER_MS));
        await_answer(self, &timers.fired[client]);
        do_some(&job_work, &chance);
    }
    if (atomic_fetch_sub(&timer_clients, 1) > 1)
        return;
    pthread_mutex_lock(&timers.guard);
    timers.is_over = true;
    pthread_mutex_unlock(&timers.guard);
    pthread_cond_signal(&timers.changed);
}

static void cast_timer(void) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&timers.guard, NULL);
    pthread_cond_init(&timers.changed, &monotonic);
    for (int i = 0; i < TIMER_CLIENTS; i++) {
        pthread_mutex_init(&timers.fired[i].guard, NULL);
        pthread_cond_init(&timers.fired[i].done, NULL);
    }
    add_runner("timer", keep_time);
    add_runners("client", use_timers, TIMER_CLIENTS);
}

// --- pipeline ---

#define STAGES 3
#define BUFFERS 2

static struct queue stages[STAGES] = {QUEUE, QUEUE, QUEUE};
static struct job buffers[BUFFERS] = {JOB, JOB};

// Each stage takes from its own queue, the first one from the free buffers, and puts into the next one's.
SHOWN static void work_in_stage(struct runner *self) {
    uint64_t chance = chance_of(&run, self);
    struct queue *next = &stages[(self->index + 1) % STAGES];
    struct job *buffer;
    while ((buffer = take_job(self, &stages[self->index])) != NULL) {
        do_some(&job_work, &chance);
        if (self->index == 0 && run_is_over())
            break;
        put_job(next, buffer);
    }
    close_queue(next);
}

static void cast_pipeline(void) {
    for (int i = 0; i < BUFFERS; i++)
        put_job(&stages[0], &buffers[i]);
    add_runner("reader", work_in_stage);
    add_runner("parser", work_in_stage);
    add_runner("writer", work_in_stage);
}

// --- pingpong ---

static struct {
    pthread_mutex_t guard;
    pthread_cond_t changed;
    int of;
    bool is_over;
} turn = {.guard = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

// False when the other one has ended the game.
SHOWN static bool await_turn(struct runner *self) {
    uint64_t start_ns = now_ns();
    pthread_mutex_lock(&turn.guard);
    while (turn.of != self->index && !turn.is_over)
        pthread_cond_wait(&turn.changed, &turn.guard);
    bool is_over = turn.is_over;
    pthread_mutex_unlock(&turn.guard);
    note_wait(self, start_ns);
    return !is_over;
}

SHOWN static void end_turn(struct runner *self) {
    pthread_mutex_lock(&turn.guard);
    turn.of = 1 - self->index;
    turn.is_over = turn.is_over || run_is_over();
    pthread_mutex_unlock(&turn.guard);
    pthread_cond_signal(&turn.changed);
}

SHOWN static void take_turns(struct runner *self) {
    uint64_t chance = chance_of(&run, self);
    while (await_turn(self)) {
        do_some(&job_work, &chance);
        end_turn(self);
    }
}

static void cast_pingpong(void) {
    add_runner("asker", take_turns);
    add_runner("answerer", take_turns);
}

// --- signals ---

#define SIGNAL_WAITERS 3

static struct {
    pthread_mutex_t guard;
    pthread_cond_t rung;
    bool is_over;
} bell = {.guard = PTHREAD_MUTEX_INITIALIZER, .rung = PTHREAD_COND_INITIALIZER};

// The scenario's threads may be bound to some CPUs.
static int last_cpu;

static struct switches switches;
static struct durations signalled;

SHOWN static void ring_bell(void) {
    uint64_t start_ns = now_ns();
    pthread_cond_signal(&bell.rung);
    uint64_t blocked_ns = take_switches(&switches, start_ns).blocked_ns;
    if (blocked_ns > 0)
        add_duration(&signalled, blocked_ns);
}

SHOWN static void ring_often(struct runner *self) {
    uint64_t chance = chance_of(&run, self);
    record_switches(&switches);
    while (!run_is_over()) {
        sleep_for(random_between(&chance, 100 * NS_PER_US, 300 * NS_PER_US));
        ring_bell();
    }
    pthread_mutex_lock(&bell.guard);
    bell.is_over = true;
    pthread_mutex_unlock(&bell.guard);
    pthread_cond_broadcast(&bell.rung);
}

SHOWN static void spin_on_the_last_cpu(struct runner *self) {
    (void)self;
    pin_to(last_cpu);
    while (!run_is_over())
        compute(NS_PER_MS);
}

SHOWN static void await_bell(struct runner *self) {
    (void)self;
    pin_to(last_cpu);
    if (setpriority(PRIO_PROCESS, 0, 10) != 0)
        die("a lower priority", errno);
    pthread_mutex_lock(&bell.guard);
    while (!bell.is_over)
        pthread_cond_wait(&bell.rung, &bell.guard);
    pthread_mutex_unlock(&bell.guard);
}

static void cast_signals(void) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        die("cannot read the CPUs", errno);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed))
            last_cpu = cpu;
    add_runner("signaller", ring_often);
    add_runner("spinner", spin_on_the_last_cpu);
    add_runners("waiter", await_bell, SIGNAL_WAITERS);
}

// --- the run ---

static const char *const names[] = {"queue", "pool",     "stealing", "barrier", "rendezvous",
                                    "timer", "pipeline", "pingpong", "signals"};
static void (*const casts[])(void) = {cast_queue, cast_pool,     cast_stealing, cast_barrier, cast_rendezvous,
                                      cast_timer, cast_pipeline, cast_pingpong, cast_signals};
#define KINDS (int)(sizeof names / sizeof names[0])

static void print_truth(void) {
    print_waits(runners, waits, runner_count);
    if (signalled.count > 0)
        print_durations("signalled", &signalled);
}

int main(int argc, char **argv) {
    const char *name = names[0];
    const struct own_option own = {.letter = 'w', .argument = "KIND", .text = &name};
    take_options(argc, argv, &run, &own, 1);
    casts[kind_named(name, names, KINDS)]();
    run_scenario(runners, runner_count, &run, print_truth);
}
