// SPDX-License-Identifier: Apache-2.0
// causality: one thread that is delayed in ten ways, each of a known length, of which one can be made larger.
//
// In each of -n ROUNDS rounds `worker`, on the first CPU, waits for a mutex that `housekeeper` holds
// (wait_for_lock), for a disk (flush_journal), for its CPU, which `hog` takes (lose_cpu), for a page that
// `pager` serves (touch_page), for `collector`, which stops it by a signal (wait_at_safepoint), for the
// answer of `nameserver` (resolve_name), of `backend` over TCP (call_backend), of `indexer` over a pipe
// (ask_indexer), and for a timer (back_off); then it computes. The process `batch`, on the second CPU,
// computes for a given CPU time in a control group with a quota (compute_in_group). Helpers have real-time
// priority, so that their own waits for a CPU add nothing.
//
// Truth, besides truth.h's lines:
//   {"event":"batch", "pid"}   before the start
//   {"event":"cause", "name", "function", "asked_ns", "count", "total_ns"}
//       how often the worker was in the function, and for how long off the CPU, by its own clocks: wall time
//       less CPU time, of the page fault all of the wall time. asked_ns is what was asked for in all. Of the
//       disk, asked_ns is 0: only the number of writes is asked for. `quota` is the batch's.
//   {"event":"refused", "what"}   there is no control group, or no real-time priority
// Options: -n ROUNDS (default 100); -w CAUSE, the one that is made larger; -x PERCENT, by which it is
// (default 0); -f FILE, for the disk (made if it is missing)

#include "group.h"

#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <resolv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define PAGE 4096ul
#define BATCH_CPU_NS (600 * NS_PER_MS)
#define QUOTA_PERIOD_US 100000.0
// The quota's share of the period without -w quota.
#define QUOTA_SHARE 0.6
#define WRITES 10

enum cause { LOCK, DISK, HOG, FAULT, PAUSE, NAME, DOWNSTREAM, IPC, TIMER, QUOTA, CAUSES };

static struct {
    const char *name, *function;
    uint64_t base_ns; // of each round; 0: see the cause's function
    uint64_t asked_ns, count, total_ns;
} causes[CAUSES] = {
    [LOCK] = {"lock", "wait_for_lock", NS_PER_MS},
    [DISK] = {"disk", "flush_journal", 0},
    [HOG] = {"cpu hog", "lose_cpu", NS_PER_MS},
    [FAULT] = {"page fault", "touch_page", NS_PER_MS},
    [PAUSE] = {"pause", "wait_at_safepoint", NS_PER_MS},
    [NAME] = {"DNS", "resolve_name", NS_PER_MS},
    [DOWNSTREAM] = {"downstream", "call_backend", NS_PER_MS},
    [IPC] = {"IPC", "ask_indexer", NS_PER_MS},
    [TIMER] = {"timer", "back_off", NS_PER_MS},
    [QUOTA] = {"quota", "compute_in_group", 0},
};

static struct run run = {.scenario = "causality", .seconds = 60, .seed = 42};
static uint64_t rounds = 100;
static const char *larger = "", *journal_path = "/tmp/wallprof-journal";
static double percent;
static const char *refused;

static double factor(enum cause cause) {
    return strcmp(causes[cause].name, larger) == 0 ? 1 + percent / 100 : 1;
}

static uint64_t asked(enum cause cause) { return (uint64_t)((double)causes[cause].base_ns * factor(cause)); }

// --- helpers: each waits to be asked, and is late on purpose ---

struct helper {
    sem_t asked;
};

static struct helper housekeeper, hog, collector;
static _Atomic bool is_over;

static void become_urgent(int priority) {
    struct sched_param urgent = {.sched_priority = priority};
    if (sched_setscheduler(0, SCHED_FIFO, &urgent) != 0)
        refused = "real-time priority is not permitted";
}

// False when there is nothing more to do.
static bool await_order(struct helper *helper) {
    wait_for(&helper->asked);
    return !atomic_load(&is_over);
}

// --- a lock ---

static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool registry_is_taken;

static void keep_house(struct runner *self) {
    (void)self;
    become_urgent(10);
    while (await_order(&housekeeper)) {
        pthread_mutex_lock(&registry);
        atomic_store(&registry_is_taken, true);
        sleep_for(asked(LOCK));
        pthread_mutex_unlock(&registry);
    }
}

SHOWN static void wait_for_lock(void) {
    pthread_mutex_lock(&registry);
    atomic_store(&registry_is_taken, false);
    pthread_mutex_unlock(&registry);
}

static void prepare_lock(void) {
    sem_post(&housekeeper.asked);
    while (!atomic_load(&registry_is_taken))
        ;
}

// --- a disk ---

static int journal;

SHOWN static void flush_journal(void) {
    char record[512] = "record";
    for (int i = 0; i < (int)(WRITES * factor(DISK) + 0.5); i++)
        if (pwrite(journal, record, sizeof record, 0) != (ssize_t)sizeof record || fsync(journal) != 0)
            die(journal_path, errno);
}

// --- another thread on the CPU ---

static void take_cpu(struct runner *self) {
    (void)self;
    pin_to_nth(0);
    become_urgent(5);
    while (await_order(&hog))
        spin_until(now_ns() + asked(HOG));
}

SHOWN static void lose_cpu(void) {
    sem_post(&hog.asked);
    // The hog has the CPU before sem_post returns.
    atomic_signal_fence(memory_order_seq_cst);
}

// --- a page fault ---

static int userfault;
static char *late_page;

static void prepare_pages(void) {
    late_page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    userfault = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register missing = {.range = {(uintptr_t)late_page, PAGE},
                                      .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (late_page == MAP_FAILED || userfault < 0 || ioctl(userfault, UFFDIO_API, &api) != 0 ||
        ioctl(userfault, UFFDIO_REGISTER, &missing) != 0)
        die("userfaultfd", errno);
}

static void serve_pages(struct runner *self) {
    static _Alignas(4096) char contents[PAGE];
    struct uffd_msg message;
    (void)self;
    become_urgent(10);
    for (uint64_t served = 0; served < rounds; served++) {
        if (read(userfault, &message, sizeof message) != sizeof message)
            die("userfaultfd", errno);
        sleep_for(asked(FAULT));
        struct uffdio_copy copy = {.dst = (uintptr_t)late_page, .src = (uintptr_t)contents, .len = PAGE};
        if (ioctl(userfault, UFFDIO_COPY, &copy) != 0)
            die("UFFDIO_COPY", errno);
    }
}

SHOWN static void touch_page(void) { *(volatile char *)late_page = 1; }

// --- a pause, as of a garbage collector ---

static pthread_t paused_thread;
static _Atomic bool has_paused;
static sem_t resumed;

SHOWN static void wait_at_safepoint(void) { wait_for(&resumed); }

static void timed(enum cause cause, void (*body)(void));

static void pause_here(int signal) {
    (void)signal;
    int error = errno;
    timed(PAUSE, wait_at_safepoint);
    atomic_store(&has_paused, true);
    errno = error;
}

static void collect(struct runner *self) {
    (void)self;
    become_urgent(10);
    while (await_order(&collector)) {
        pthread_kill(paused_thread, SIGUSR1);
        sleep_for(asked(PAUSE));
        sem_post(&resumed);
    }
}

static void be_paused(void) {
    sem_post(&collector.asked);
    while (!atomic_load(&has_paused))
        ;
    atomic_store(&has_paused, false);
}

// --- the network: a name server, and a backend ---

static int dns_socket, backend_listener, backend_socket;
static struct sockaddr_in dns_address, backend_address;
static struct __res_state resolver;

static int bound(int kind, struct sockaddr_in *address) {
    int made = socket(AF_INET, kind | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof *address;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (made < 0 || bind(made, (struct sockaddr *)address, size) != 0 ||
        getsockname(made, (struct sockaddr *)address, &size) != 0)
        die("cannot bind a socket", errno);
    return made;
}

static void prepare_network(void) {
    int yes = 1;
    dns_socket = bound(SOCK_DGRAM, &dns_address);
    backend_listener = bound(SOCK_STREAM, &backend_address);
    if (listen(backend_listener, 1) != 0)
        die("cannot listen", errno);
    backend_socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(backend_socket, (struct sockaddr *)&backend_address, sizeof backend_address) != 0)
        die("cannot connect", errno);
    setsockopt(backend_socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (res_ninit(&resolver) != 0)
        die("no resolver", errno);
    resolver.nscount = 1;
    resolver.nsaddr_list[0] = dns_address;
    resolver.options = RES_INIT | RES_RECURSE;
}

static void serve_names(struct runner *self) {
    unsigned char packet[512];
    struct sockaddr_in from;
    (void)self;
    become_urgent(10);
    for (uint64_t served = 0; served < rounds; served++) {
        socklen_t size = sizeof from;
        ssize_t length = recvfrom(dns_socket, packet, sizeof packet - 16, 0, (struct sockaddr *)&from, &size);
        static const unsigned char answer[16] = {0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1};
        HEADER *header = (HEADER *)packet;
        if (length < (ssize_t)sizeof *header)
            die("no question", errno);
        sleep_for(asked(NAME));
        header->qr = 1;
        header->ra = 1;
        header->ancount = htons(1);
        header->arcount = 0;
        memcpy(packet + length, answer, sizeof answer);
        if (sendto(dns_socket, packet, (size_t)length + sizeof answer, 0, (struct sockaddr *)&from, size) < 0)
            die("no answer", errno);
    }
}

SHOWN static void resolve_name(void) {
    unsigned char answer[512];
    if (res_nquery(&resolver, "orders.example", ns_c_in, ns_t_a, answer, sizeof answer) < 0)
        die("a name has no address", EIO);
}

static void answer_calls(struct runner *self) {
    char byte;
    (void)self;
    become_urgent(10);
    int accepted = accept4(backend_listener, NULL, NULL, SOCK_CLOEXEC);
    while (read(accepted, &byte, 1) == 1) {
        sleep_for(asked(DOWNSTREAM));
        if (write(accepted, &byte, 1) != 1)
            die("the backend", errno);
    }
}

SHOWN static void call_backend(void) {
    char byte = 1;
    if (write(backend_socket, &byte, 1) != 1 || read(backend_socket, &byte, 1) != 1)
        die("the backend", errno);
}

// --- a pipe ---

static int questions[2], answers[2];

static void answer_questions(struct runner *self) {
    char byte;
    (void)self;
    become_urgent(10);
    while (read(questions[0], &byte, 1) == 1) {
        sleep_for(asked(IPC));
        if (write(answers[1], &byte, 1) != 1)
            die("the indexer", errno);
    }
}

SHOWN static void ask_indexer(void) {
    char byte = 1;
    if (write(questions[1], &byte, 1) != 1 || read(answers[0], &byte, 1) != 1)
        die("the indexer", errno);
}

// --- a timer ---

SHOWN static void back_off(void) { sleep_for(asked(TIMER)); }

// --- a quota ---

static struct group group = {.controller = "cpu", .v2_file = "cpu.max", .v1_file = "cpu.cfs_quota_us"};
static int batch_gate[2], batch_answer[2];
static pid_t batch;

SHOWN static void compute_in_group(void) {
    while (read_clock(CLOCK_THREAD_CPUTIME_ID) < BATCH_CPU_NS)
        ;
}

static void be_batch(void) {
    char byte, v1[32], v2[64];
    prctl(PR_SET_NAME, "batch");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin_to_nth(1);
    // Without the quota the thread computes for BATCH_CPU_NS; what it waits is that by (period / quota - 1).
    double quota = QUOTA_PERIOD_US / (1 + (1 / QUOTA_SHARE - 1) * factor(QUOTA));
    snprintf(v1, sizeof v1, "%d", (int)quota);
    snprintf(v2, sizeof v2, "%d %d", (int)quota, (int)QUOTA_PERIOD_US);
    group.v1_text = v1;
    group.v2_text = v2;
    if (read(batch_gate[0], &byte, 1) != 1)
        exit(0);
    enter_group(&group);
    uint64_t start = now_ns(), ran = read_clock(CLOCK_THREAD_CPUTIME_ID);
    compute_in_group();
    uint64_t lost = now_ns() - start - (read_clock(CLOCK_THREAD_CPUTIME_ID) - ran);
    if (group.refused)
        lost = 0;
    leave_group(&group);
    if (write(batch_answer[1], &lost, sizeof lost) != sizeof lost)
        die("the batch", errno);
    // The recorder sees the end of the wait.
    pause();
}

static void start_batch(void) {
    if (pipe2(batch_gate, O_CLOEXEC) != 0 || pipe2(batch_answer, O_CLOEXEC) != 0)
        die("cannot make a pipe", errno);
    batch = fork();
    if (batch < 0)
        die("cannot start a process", errno);
    if (batch == 0)
        be_batch();
    printf("{\"event\":\"batch\",\"pid\":%d}\n", batch);
}

static void end_batch(void) {
    if (read(batch_answer[0], &causes[QUOTA].total_ns, sizeof causes[QUOTA].total_ns) !=
        sizeof causes[QUOTA].total_ns)
        die("the batch", errno);
    causes[QUOTA].count = 1;
    causes[QUOTA].asked_ns = (uint64_t)(BATCH_CPU_NS * (1 / QUOTA_SHARE - 1) * factor(QUOTA));
    if (causes[QUOTA].total_ns == 0)
        refused = "a control group with a quota is not permitted";
    kill(batch, SIGKILL);
    waitpid(batch, NULL, 0);
}

// --- the worker ---

// Time off the CPU. A page fault is on it, and counts as a whole.
static void timed(enum cause cause, void (*body)(void)) {
    uint64_t start = now_ns(), ran = read_clock(CLOCK_THREAD_CPUTIME_ID);
    body();
    uint64_t own = cause == FAULT ? 0 : read_clock(CLOCK_THREAD_CPUTIME_ID) - ran;
    causes[cause].total_ns += now_ns() - start - own;
    causes[cause].count++;
    causes[cause].asked_ns += asked(cause);
}

SHOWN static void compute(void) { spin_until(now_ns() + NS_PER_MS / 2); }

SHOWN static void work(struct runner *self) {
    (void)self;
    pin_to_nth(0);
    paused_thread = pthread_self();
    if (write(batch_gate[1], "g", 1) != 1)
        die("the batch", errno);
    for (uint64_t round = 0; round < rounds; round++) {
        prepare_lock();
        timed(LOCK, wait_for_lock);
        timed(DISK, flush_journal);
        timed(HOG, lose_cpu);
        madvise(late_page, PAGE, MADV_DONTNEED);
        timed(FAULT, touch_page);
        be_paused();
        timed(NAME, resolve_name);
        timed(DOWNSTREAM, call_backend);
        timed(IPC, ask_indexer);
        timed(TIMER, back_off);
        compute();
    }
    end_batch();
    atomic_store(&is_over, true);
    sem_post(&housekeeper.asked);
    sem_post(&hog.asked);
    sem_post(&collector.asked);
    shutdown(backend_socket, SHUT_RDWR);
    close(questions[1]);
}

static void print_truth(void) {
    if (refused)
        printf("{\"event\":\"refused\",\"what\":\"%s\"}\n", refused);
    for (int i = 0; i < CAUSES; i++)
        printf("{\"event\":\"cause\",\"name\":\"%s\",\"function\":\"%s\",\"asked_ns\":%llu,\"count\":%llu,"
               "\"total_ns\":%llu}\n",
               causes[i].name, causes[i].function, (unsigned long long)causes[i].asked_ns,
               (unsigned long long)causes[i].count, (unsigned long long)causes[i].total_ns);
}

int main(int argc, char **argv) {
    const struct own_option own[] = {{.letter = 'n', .argument = "ROUNDS", .count = &rounds},
                                     {.letter = 'w', .argument = "CAUSE", .text = &larger},
                                     {.letter = 'x', .argument = "PERCENT", .number = &percent},
                                     {.letter = 'f', .argument = "FILE", .text = &journal_path}};
    struct runner runners[] = {
        {.name = "worker", .body = work},          {.name = "housekeeper", .body = keep_house},
        {.name = "hog", .body = take_cpu},         {.name = "pager", .body = serve_pages},
        {.name = "collector", .body = collect},    {.name = "nameserver", .body = serve_names},
        {.name = "backend", .body = answer_calls}, {.name = "indexer", .body = answer_questions},
    };
    struct helper *helpers[] = {&housekeeper, &hog, &collector};
    struct sigaction paused = {.sa_handler = pause_here};
    take_options(argc, argv, &run, own, sizeof own / sizeof own[0]);
    for (size_t i = 0; i < sizeof helpers / sizeof helpers[0]; i++)
        sem_init(&helpers[i]->asked, 0, 0);
    sem_init(&resumed, 0, 0);
    sigaction(SIGUSR1, &paused, NULL);
    start_batch();
    journal = open(journal_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (journal < 0)
        die(journal_path, errno);
    prepare_pages();
    prepare_network();
    if (pipe2(questions, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0)
        die("cannot make a pipe", errno);
    run_scenario(runners, sizeof runners / sizeof runners[0], &run, print_truth);
}
