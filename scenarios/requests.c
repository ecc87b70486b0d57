// requests: an engine handles short requests, one in thirty of which is slow for a known cause (-k).
//
// `engine` handles a request every 1.5 ms: few enough that each of its waits is emitted by itself. Slow are:
//   lock   wait in take_registry_lock for the lock that `housekeeper` holds in sweep_registry for 1 ms
//   work   compute for 1 ms more
//   none   are as the others
// Before a slow request for a lock, engine waits until housekeeper has it: each of them waits.
//
// Truth, besides truth.h's lines:
//   {"event":"request", "start_ns", "end_ns", "waited_ns", "ran_ns"}   each request of `engine`; how long it
//       took to get the lock; how long it ran, by the kernel's clock of the thread

#include "truth.h"

#define PAUSE_NS (1500 * NS_PER_US)
#define WORK_NS (20 * NS_PER_US)
#define SLOW_NS NS_PER_MS
#define ONE_IN 30
#define MAX_REQUESTS 40000

static struct request {
    uint64_t start_ns, end_ns, waited_ns, ran_ns;
} requests[MAX_REQUESTS];
static int requested;
static const char *cause = "none";
static struct run run = {.scenario = "requests", .seconds = 4, .seed = 42};
static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool held;
static sem_t wanted;

static uint64_t thread_ran_ns(void) {
    struct timespec ran;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ran);
    return (uint64_t)ran.tv_sec * NS_PER_S + (uint64_t)ran.tv_nsec;
}

static void compute(uint64_t ns) {
    for (uint64_t end = now_ns() + ns; now_ns() < end;)
        ;
}

// --- engine ---

SHOWN static void take_registry_lock(void) {
    uint64_t start_ns = now_ns();
    pthread_mutex_lock(&registry);
    requests[requested].waited_ns = now_ns() - start_ns;
    pthread_mutex_unlock(&registry);
}

SHOWN static void handle_request(bool slow) {
    compute(WORK_NS);
    if (!slow)
        return;
    if (!strcmp(cause, "lock"))
        take_registry_lock();
    else if (!strcmp(cause, "work"))
        compute(SLOW_NS);
}

static void have_the_lock_taken(void) {
    held = false;
    sem_post(&wanted);
    while (!held && !run_is_over())
        sleep_for(20 * NS_PER_US);
}

SHOWN static void engine(struct actor *self) {
    (void)self;
    while (!run_is_over() && requested < MAX_REQUESTS) {
        struct request *request = &requests[requested];
        bool slow = requested % ONE_IN == ONE_IN - 1;
        if (slow && !strcmp(cause, "lock"))
            have_the_lock_taken();
        request->waited_ns = 0;
        request->ran_ns = thread_ran_ns();
        request->start_ns = now_ns();
        handle_request(slow);
        request->end_ns = now_ns();
        request->ran_ns = thread_ran_ns() - request->ran_ns;
        requested++;
        sleep_for(PAUSE_NS);
    }
}

// --- housekeeper ---

SHOWN static void sweep_registry(void) {
    pthread_mutex_lock(&registry);
    held = true;
    compute(SLOW_NS);
    pthread_mutex_unlock(&registry);
}

SHOWN static void housekeeping(struct actor *self) {
    (void)self;
    while (!run_is_over()) {
        struct timespec until;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        if (!sem_timedwait(&wanted, &until))
            sweep_registry();
    }
}

static void print_truth(void) {
    for (int i = 0; i < requested; i++)
        printf("{\"event\":\"request\",\"start_ns\":%llu,\"end_ns\":%llu,"
               "\"waited_ns\":%llu,\"ran_ns\":%llu}\n",
               (unsigned long long)requests[i].start_ns, (unsigned long long)requests[i].end_ns,
               (unsigned long long)requests[i].waited_ns, (unsigned long long)requests[i].ran_ns);
}

int main(int argc, char **argv) {
    const struct own_option own[] = {{.letter = 'k', .argument = "CAUSE", .text = &cause}};
    take_options(argc, argv, &run, own, 1);
    sem_init(&wanted, 0, 0);
    // Touched now, so that keeping the log costs the engine no page faults.
    memset(requests, 1, sizeof requests);
    struct actor actors[] = {{.name = "engine", .act = engine}, {.name = "housekeeper", .act = housekeeping}};
    run_scenario(actors, 2, &run, print_truth);
}
