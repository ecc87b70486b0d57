// deadlock: two threads that lock the same two mutexes in opposite order, and stay.
//
// `left` holds the accounts and wants the orders, `right` the other way round: settle_left or settle_right →
// take_second_lock. Each takes its second lock only when both have their first.
// lock_mutex stands between the named functions and glibc because a walk by frame pointers loses the direct
// caller of a libc function without a frame.
//
// Truth, besides truth.h's start and end lines (the threads never end, so they have no `thread` lines):
//   {"event":"stuck", "tid", "name", "holds", "wants", "owner", "since_ns"}   printed as soon as both threads
//       sleep in the kernel: addresses of the mutexes, tid of the wanted one's owner, and when the thread
//       asked for it
// The main thread prints and then waits for -d seconds, SIGTERM or, gated, stdin's end.

#include "truth.h"

struct settler {
    pthread_mutex_t *holds, *wants;
    _Atomic uint64_t since_ns;
};

static pthread_mutex_t accounts = PTHREAD_MUTEX_INITIALIZER, orders = PTHREAD_MUTEX_INITIALIZER;
static struct settler settlers[2] = {{.holds = &accounts, .wants = &orders},
                                     {.holds = &orders, .wants = &accounts}};
static pthread_barrier_t both_hold_one;
static struct run run = {.scenario = "deadlock", .seconds = 3600, .seed = 42};

SHOWN static void lock_mutex(pthread_mutex_t *mutex) { pthread_mutex_lock(mutex); }

SHOWN static void take_second_lock(struct settler *settler) {
    atomic_store(&settler->since_ns, now_ns());
    lock_mutex(settler->wants);
}

static void settle(struct settler *settler) {
    lock_mutex(settler->holds);
    pthread_barrier_wait(&both_hold_one);
    take_second_lock(settler);
}

SHOWN static void settle_left(struct actor *self) {
    (void)self;
    settle(&settlers[0]);
}

SHOWN static void settle_right(struct actor *self) {
    (void)self;
    settle(&settlers[1]);
}

// True when the thread sleeps in the kernel: state S in its stat file.
static bool is_asleep(pid_t tid) {
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *stat = fopen(path, "r");
    if (stat == NULL)
        die(path, errno);
    if (fgets(line, sizeof line, stat) == NULL)
        line[0] = '\0';
    fclose(stat);
    const char *after_name = strrchr(line, ')');
    return after_name != NULL && after_name[1] == ' ' && after_name[2] == 'S';
}

static void wait_until_stuck(const struct actor *actors) {
    for (int i = 0; i < 2; i++)
        while (atomic_load(&settlers[i].since_ns) == 0 || !is_asleep(actors[i].tid))
            sched_yield();
}

static void print_stuck(const struct actor *actors) {
    for (int i = 0; i < 2; i++)
        printf(
            "{\"event\":\"stuck\",\"tid\":%d,\"name\":\"%s\",\"holds\":\"%p\",\"wants\":\"%p\",\"owner\":%d,"
            "\"since_ns\":%llu}\n",
            actors[i].tid, actors[i].name, (void *)settlers[i].holds, (void *)settlers[i].wants,
            actors[1 - i].tid, (unsigned long long)settlers[i].since_ns);
}

int main(int argc, char **argv) {
    take_options(argc, argv, &run, NULL, 0);
    struct actor actors[] = {{.name = "left", .act = settle_left}, {.name = "right", .act = settle_right}};
    pthread_barrier_init(&both_hold_one, NULL, 2);
    assemble_actors(actors, 2);
    print_start(actors, 2, &run);
    wait_for_go(&run);
    release_actors(actors, 2, &run);
    wait_until_stuck(actors);
    print_stuck(actors);
    print_end();
    if (run.gated)
        wait_for_leave(&run);
    else
        sleep_until(atomic_load(&run_ends_at));
    // Returning ends the stuck threads with the process.
}
