// SPDX-License-Identifier: Apache-2.0
// requests: an engine handles short requests, one in thirty of which is slow for a known cause (-k).
//
// `engine` handles a request every 1.5 ms: few enough that each of its waits is emitted by itself. Slow are:
//   lock   wait in take_registry_lock for the lock that `housekeeper` holds in sweep_registry for 1 ms
//   work   compute for 1 ms more
//   fault  touch a page in touch_page that `pager` serves (userfaultfd) after 1 ms
//   preemption
//          wake `neighbour` in wake_neighbour, whose priority is higher and which computes for 1 ms on
//          engine's CPU
//   none   are as the others
// Before a slow request for a lock, engine waits until housekeeper has it: each of them waits.
//
// With -l, `client` sends the requests through a pipe, one every 1.5 ms, and sees to it that housekeeper has
// the lock. `engine` serves them in a loop around poll, and works for 100 µs in each.
//
// With -m, `engine` marks its requests with wallprof.h: the kind `request`, and in it the stage `registry`.
// USDT probes are where these marks are: request__begin and request__end of the provider `requests`.
//
// The run lasts until there are 1,800 requests, with -m as many that were marked.
//
// With -n TIMES, the cause takes TIMES as long: the housekeeper holds the lock for TIMES ms.
//
// Truth, besides truth.h's lines:
//   {"event":"request", "from_ns", "start_ns", "end_ns", "to_ns", "waited_ns", "queued_ns", "around_ns",
//       "sent_ns", "marked"}
//       each request of `engine`: the clock before its mark, after it, before the end of the mark and after
//       (with -l after the log of it, which belongs to its period); how long it took to get the lock, to
//       touch the page or to wake the neighbour; how long the thread waited for a CPU, by the kernel's own
//       sum (with -l since the end of the request before); how long the thread was outside of from_ns to
//       to_ns between the two readings of that sum (without -l); when the client sent it (with -l, else 0);
//       whether a recorder had switched its marks on

#include "truth.h"

#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "../include/wallprof.h"
#include "usdt.h"

#define PAUSE_NS (1500 * NS_PER_US)
#define WORK_NS (20 * NS_PER_US)
#define LOOP_WORK_NS (100 * NS_PER_US)
#define SLOW_NS NS_PER_MS
#define ONE_IN 30
#define MAX_REQUESTS 40000
#define ENOUGH_REQUESTS 1800
#define PAGE 4096ul
#define LATE_PAGES (MAX_REQUESTS / ONE_IN + 1)

static struct request {
    uint64_t from_ns, start_ns, end_ns, to_ns, waited_ns, queued_ns, around_ns, sent_ns;
    bool marked;
} requests[MAX_REQUESTS];
// `counted`: with -m those that were marked.
static _Atomic int requested, counted;
static const char *cause = "none";
static double slow_factor = 1;
static bool loops, marks;
static int requests_in, requests_out;
static struct run run = {.scenario = "requests", .seconds = 4, .seed = 42};
static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool held, engine_is_done;
static sem_t wanted;
static int userfault = -1;
static volatile char *late_page;

static bool is_cause(const char *name) { return !strcmp(cause, name); }

static uint64_t slow_ns(void) { return (uint64_t)(SLOW_NS * slow_factor); }

static void compute(uint64_t ns) {
    for (uint64_t end = now_ns() + ns; now_ns() < end;)
        ;
}

static bool is_over(void) {
    return requested >= MAX_REQUESTS || run_is_over_after(counted, ENOUGH_REQUESTS, now_ns());
}

// --- engine ---

SHOWN static void take_registry_lock(void) {
    uint64_t start_ns = now_ns();
    if (marks)
        wallprof_begin("registry");
    pthread_mutex_lock(&registry);
    requests[requested].waited_ns = now_ns() - start_ns;
    pthread_mutex_unlock(&registry);
    if (marks)
        wallprof_end();
}

SHOWN static void touch_page(void) {
    uint64_t start_ns = now_ns();
    *late_page = 1;
    requests[requested].waited_ns = now_ns() - start_ns;
    late_page += PAGE;
}

SHOWN static void wake_neighbour(void) {
    uint64_t start_ns = now_ns();
    sem_post(&wanted);
    requests[requested].waited_ns = now_ns() - start_ns;
}

SHOWN static void handle_request(bool slow) {
    compute(loops ? LOOP_WORK_NS : WORK_NS);
    if (!slow)
        return;
    if (is_cause("lock"))
        take_registry_lock();
    else if (is_cause("work"))
        compute(slow_ns());
    else if (is_cause("fault"))
        touch_page();
    else if (is_cause("preemption"))
        wake_neighbour();
}

static void have_the_lock_taken(void) {
    held = false;
    sem_post(&wanted);
    while (!held && !is_over())
        sleep_for(20 * NS_PER_US);
}

static bool is_slow(int number) { return number % ONE_IN == ONE_IN - 1; }

// `queued_before_ns`: what queued_ns() was when the request can first have waited for a CPU. Returns what it
// is now.
static uint64_t serve(int number, uint64_t sent_ns, uint64_t queued_before_ns) {
    struct request *request = &requests[number];

    request->sent_ns = sent_ns;
    request->waited_ns = 0;
    request->marked = false;
    request->from_ns = now_ns();
    USDT_PROBE("requests", "request__begin");
    if (marks)
        wallprof_begin("request");
    request->start_ns = now_ns();
    if (marks)
        request->marked = wallprof_own_slot && wallprof_own_slot->depth > 0;
    handle_request(is_slow(number));
    request->end_ns = now_ns();
    if (marks)
        wallprof_end();
    USDT_PROBE("requests", "request__end");
    request->to_ns = now_ns();
    uint64_t queued_after_ns = queued_ns();
    request->queued_ns = queued_after_ns - queued_before_ns;
    request->around_ns = now_ns() - request->to_ns;
    if (loops)
        request->to_ns += request->around_ns;
    counted += !marks || request->marked;
    return queued_after_ns;
}

static void share_cpu(void) {
    if (is_cause("preemption"))
        pin_to_nth(0);
}

SHOWN static void engine(struct runner *self) {
    (void)self;
    share_cpu();
    while (!is_over()) {
        if (is_slow(requested) && is_cause("lock"))
            have_the_lock_taken();
        uint64_t before_ns = now_ns();
        serve(requested, 0, queued_ns());
        requests[requested].around_ns += requests[requested].from_ns - before_ns;
        requested++;
        sleep_for(PAUSE_NS);
    }
    engine_is_done = true;
}

// --- engine with a loop, and its client ---

// When the next request was sent; 0: there will be no more.
SHOWN static uint64_t wait_for_request(void) {
    struct pollfd ready = {.fd = requests_in, .events = POLLIN};
    uint64_t sent_ns;

    poll(&ready, 1, -1);
    return read(requests_in, &sent_ns, sizeof sent_ns) == sizeof sent_ns ? sent_ns : 0;
}

SHOWN static void engine_loop(struct runner *self) {
    uint64_t sent_ns, queued = queued_ns();

    (void)self;
    share_cpu();
    while ((sent_ns = wait_for_request())) {
        queued = serve(requested, sent_ns, queued);
        requested++;
    }
    engine_is_done = true;
}

// The engine waits again before the next request is sent: none of its busy periods has two of them.
SHOWN static void send_requests(struct runner *self) {
    uint64_t random = run.seed;

    (void)self;
    for (int sent = 0; !is_over(); sent++) {
        sleep_for(random_between(&random, PAUSE_NS / 2, PAUSE_NS * 3 / 2));
        if (is_slow(sent) && is_cause("lock"))
            have_the_lock_taken();
        uint64_t now = now_ns();
        if (write(requests_out, &now, sizeof now) != sizeof now)
            die("cannot send a request", errno);
        while (requested <= sent)
            sleep_for(PAUSE_NS / 4);
    }
    close(requests_out);
}

// --- who makes it wait: housekeeper, pager, neighbour ---

static void prepare_late_pages(void) {
    size_t size = LATE_PAGES * PAGE;
    late_page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // A blocking one cannot be polled.
    userfault = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register missing = {.range = {(uintptr_t)late_page, size},
                                      .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (late_page == MAP_FAILED || userfault < 0 || ioctl(userfault, UFFDIO_API, &api) != 0 ||
        ioctl(userfault, UFFDIO_REGISTER, &missing) != 0)
        die("userfaultfd", errno);
}

SHOWN static void serve_pages(struct runner *self) {
    struct pollfd ready = {.fd = userfault, .events = POLLIN};

    (void)self;
    // To the last request: the engine would wait for ever.
    while (!engine_is_done) {
        struct uffd_msg message;
        if (poll(&ready, 1, 100) < 1)
            continue;
        if (read(userfault, &message, sizeof message) != sizeof message)
            die("userfaultfd", errno);
        sleep_for(slow_ns());
        struct uffdio_zeropage zero = {.range = {message.arg.pagefault.address & -PAGE, PAGE}};
        if (ioctl(userfault, UFFDIO_ZEROPAGE, &zero) != 0)
            die("UFFDIO_ZEROPAGE", errno);
    }
}

SHOWN static void sweep_registry(void) {
    pthread_mutex_lock(&registry);
    held = true;
    compute(slow_ns());
    pthread_mutex_unlock(&registry);
}

static void become_neighbour(void) {
    struct sched_param urgent = {.sched_priority = 1};

    share_cpu();
    if (sched_setscheduler(0, SCHED_FIFO, &urgent) != 0)
        die("real-time priority", errno);
}

SHOWN static void housekeeping(struct runner *self) {
    (void)self;
    if (is_cause("preemption"))
        become_neighbour();
    while (!is_over()) {
        struct timespec until;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        if (sem_timedwait(&wanted, &until))
            continue;
        if (is_cause("preemption"))
            compute(slow_ns());
        else
            sweep_registry();
    }
}

static void print_truth(void) {
    for (int i = 0; i < requested; i++)
        printf("{\"event\":\"request\",\"from_ns\":%llu,\"start_ns\":%llu,\"end_ns\":%llu,\"to_ns\":%llu,"
               "\"waited_ns\":%llu,\"queued_ns\":%llu,\"around_ns\":%llu,\"sent_ns\":%llu,"
               "\"marked\":%s}\n",
               (unsigned long long)requests[i].from_ns, (unsigned long long)requests[i].start_ns,
               (unsigned long long)requests[i].end_ns, (unsigned long long)requests[i].to_ns,
               (unsigned long long)requests[i].waited_ns, (unsigned long long)requests[i].queued_ns,
               (unsigned long long)requests[i].around_ns, (unsigned long long)requests[i].sent_ns,
               requests[i].marked ? "true" : "false");
}

int main(int argc, char **argv) {
    const struct own_option own[] = {{.letter = 'k', .argument = "CAUSE", .text = &cause},
                                     {.letter = 'l', .flag = &loops},
                                     {.letter = 'm', .flag = &marks},
                                     {.letter = 'n', .argument = "TIMES", .number = &slow_factor}};
    int ends[2];

    take_options(argc, argv, &run, own, 4);
    sem_init(&wanted, 0, 0);
    if (pipe(ends) != 0)
        die("cannot make a pipe", errno);
    requests_in = ends[0];
    requests_out = ends[1];
    // Touched now, so that keeping the log costs the engine no page faults.
    memset(requests, 1, sizeof requests);
    if (is_cause("fault"))
        prepare_late_pages();
    struct runner runners[] = {{.name = "engine", .body = loops ? engine_loop : engine},
                               is_cause("fault") ? (struct runner){.name = "pager", .body = serve_pages}
                               : is_cause("preemption")
                                   ? (struct runner){.name = "neighbour", .body = housekeeping}
                                   : (struct runner){.name = "housekeeper", .body = housekeeping},
                               {.name = "client", .body = send_requests}};
    run_scenario(runners, loops ? 3 : 2, &run, print_truth);
}
