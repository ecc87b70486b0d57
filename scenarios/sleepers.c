// SPDX-License-Identifier: Apache-2.0
// sleepers: threads in voluntary waits. None of these waits is a stall.
//
//   sleeper       nanosleep, 20 ms at a time
//   worker-0 …    a pool of workers on one condition variable
//   dispatcher    gives the workers a job every 50 ms (and sleeps in between)
//   semaphore     waits for a semaphore that the dispatcher posts with every job
//   poller        epoll_wait on nothing, timeout 30 ms
//   joiner        pthread_join, one thread of 40 ms (named `short`) after the other
//
// Truth, besides truth.h's lines:
//   {"event":"waits", "tid", "name", "count", "total_ns", "asked_ns"}   a thread's waits by its own clock,
//       and the timeout of each (0: until another thread ends it); one more line, with tid 0, is about
//       all the threads named `short`
// Options: -n N, workers (1 to 16).

#include "truth.h"

#include <sys/epoll.h>

#define MAX_WORKERS 16
#define SLEEP_NS (20 * NS_PER_MS)
#define POLL_MS 30
#define JOB_NS (50 * NS_PER_MS)
#define SHORT_NS (40 * NS_PER_MS)

struct waits {
    uint64_t count, total_ns, asked_ns;
};

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_filled = PTHREAD_COND_INITIALIZER;
static int queued;
static bool closed;
static sem_t posted;
static struct runner runners[MAX_WORKERS + 5];
static struct waits waits[MAX_WORKERS + 5];
static int workers = 4, runner_count;
static uint64_t shorts;
static struct run run = {.scenario = "sleepers", .seconds = 10, .seed = 42};

static void note_wait(const struct runner *self, uint64_t start_ns) {
    waits[self - runners].count++;
    waits[self - runners].total_ns += now_ns() - start_ns;
}

SHOWN static void sleep_a_while(struct runner *self) {
    while (!run_is_over()) {
        uint64_t start = now_ns();
        sleep_for(SLEEP_NS);
        note_wait(self, start);
    }
}

// False when there will be no more jobs.
SHOWN static bool take_job(struct runner *self) {
    pthread_mutex_lock(&queue_lock);
    while (queued == 0 && !closed) {
        uint64_t start = now_ns();
        pthread_cond_wait(&queue_filled, &queue_lock);
        note_wait(self, start);
    }
    bool taken = queued > 0;
    queued -= taken;
    pthread_mutex_unlock(&queue_lock);
    return taken;
}

SHOWN static void work(struct runner *self) {
    while (take_job(self))
        spin_until(now_ns() + NS_PER_MS / 10);
}

static void give_job(bool last) {
    pthread_mutex_lock(&queue_lock);
    queued++;
    closed = last;
    pthread_mutex_unlock(&queue_lock);
    if (last)
        pthread_cond_broadcast(&queue_filled);
    else
        pthread_cond_signal(&queue_filled);
    sem_post(&posted);
}

SHOWN static void dispatch(struct runner *self) {
    while (!run_is_over()) {
        uint64_t start = now_ns();
        sleep_for(JOB_NS);
        note_wait(self, start);
        give_job(false);
    }
    give_job(true);
}

SHOWN static void wait_for_posts(struct runner *self) {
    while (!run_is_over()) {
        uint64_t start = now_ns();
        wait_for(&posted);
        note_wait(self, start);
    }
}

SHOWN static void poll_nothing(struct runner *self) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event;
    while (!run_is_over()) {
        uint64_t start = now_ns();
        epoll_wait(set, &event, 1, POLL_MS);
        note_wait(self, start);
    }
    close(set);
}

static void *short_life(void *argument) {
    (void)argument;
    prctl(PR_SET_NAME, "short");
    sleep_for(SHORT_NS);
    return NULL;
}

SHOWN static void join_others(struct runner *self) {
    while (!run_is_over()) {
        pthread_t other;
        shorts++;
        int error = pthread_create(&other, NULL, short_life, NULL);
        if (error)
            die("cannot start a thread", error);
        uint64_t start = now_ns();
        pthread_join(other, NULL);
        note_wait(self, start);
    }
}

static void print_truth(void) {
    for (int i = 0; i < runner_count; i++)
        printf("{\"event\":\"waits\",\"tid\":%d,\"name\":\"%s\",\"count\":%llu,\"total_ns\":%llu,\"asked_"
               "ns\":%llu}\n",
               runners[i].tid, runners[i].name, (unsigned long long)waits[i].count,
               (unsigned long long)waits[i].total_ns, (unsigned long long)waits[i].asked_ns);
    printf("{\"event\":\"waits\",\"tid\":0,\"name\":\"short\",\"count\":%llu,\"total_ns\":0,\"asked_ns\":%"
           "llu}\n",
           (unsigned long long)shorts, (unsigned long long)SHORT_NS);
}

static void add_runner(const char *name, void (*body)(struct runner *), uint64_t asked_ns) {
    waits[runner_count].asked_ns = asked_ns;
    runners[runner_count++] = (struct runner){.name = name, .body = body};
}

static void cast_all(void) {
    static char names[MAX_WORKERS][24];
    add_runner("sleeper", sleep_a_while, SLEEP_NS);
    add_runner("dispatcher", dispatch, JOB_NS);
    add_runner("semaphore", wait_for_posts, 0);
    add_runner("poller", poll_nothing, POLL_MS * NS_PER_MS);
    add_runner("joiner", join_others, 0);
    for (int i = 0; i < workers; i++) {
        snprintf(names[i], sizeof names[i], "worker-%d", i);
        add_runner(names[i], work, 0);
    }
}

int main(int argc, char **argv) {
    const struct own_option own = {.letter = 'n', .argument = "WORKERS", .index = &workers};
    take_options(argc, argv, &run, &own, 1);
    if (workers < 1 || workers > MAX_WORKERS) {
        fprintf(stderr, "sleepers: -n takes 1 to %d workers\n", MAX_WORKERS);
        return 2;
    }
    sem_init(&posted, 0, 0);
    cast_all();
    run_scenario(runners, runner_count, &run, print_truth);
}
