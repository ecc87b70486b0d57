// SPDX-License-Identifier: Apache-2.0
// fault: page faults of a given length, a page of a cold file, and faults that fail.
//
// The `reader` thread touches memory that a userfaultfd serves: the `server` thread fills each page in 1, 4
// or 40 ms after it was touched, read or written, by the program itself (touch_page) or by the kernel inside
// read(2) and write(2) (touch_in_syscall). Then it touches a page of a file that is not in memory
// (touch_cold), and catches SIGSEGV and SIGBUS in a loop (fail_often), sleeping FAIL_SLEEP_NS after every
// eighth one. The `spinner` thread touches fresh pages as fast as it can (-t TIMES of 4,096; none by
// default).
//
// Truth, besides truth.h's lines:
//   {"event":"fault", "start_ns", "off_ns", "on_ns", "end_ns", "waited_ns", "address", "access", "in",
//    "asked_ns", "mapping"}
//       one served fault: `in` is "user", "read" or "write" (the system call); asked_ns is how long it was to
//       last, start_ns and end_ns are the reader's own times just before and after. By the kernel's records
//       it first waited from off_ns on, its last wait ended at on_ns, and all of its waits took waited_ns;
//       the three are 0 where there are no records. mapping: "anonymous"
//   {"event":"cold", "start_ns", "off_ns", "on_ns", "end_ns", "address", "file", "offset", "evicted"}
//       the touch of a file's page, which was in memory unless `evicted`
//   {"event":"failed", "segv", "bus", "slept_ns"}   signals caught, and the time asked for between them
//   {"event":"fresh", "pages", "start_ns", "end_ns"}   the pages that the spinner touched
//   {"event":"refused", "what"}   there are no served faults: userfaultfd is not permitted
//   {"event":"stuck", "tid", "address", "since_ns", "by_ns"}   with -k, which is all there is then: the
//   `stuck`
//       thread reads a page that is never served, and does not return; at by_ns it was asleep
// Options: -k; -f FILE, the cold one (made if it is missing, 1 MiB); -t TIMES

#include "switches.h"
#include "truth.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <setjmp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define PAGE 4096ul
#define FILE_PAGES 256
#define FRESH_PAGES 4096
#define FAILURES 64
#define FAIL_SLEEP_NS NS_PER_MS

static struct run run = {.scenario = "fault", .seconds = 5, .seed = 42};
static const char *cold_path;
static uint64_t fresh_times;

// --- served faults ---

enum place { IN_USER, IN_READ, IN_WRITE };
static const char *const place_names[] = {"user", "read", "write"};

struct served {
    uint64_t asked_ns;
    bool write;
    enum place place;
    uint64_t start_ns, end_ns;
    struct off_cpu off;
};

// read(2) writes into the page, write(2) reads from it.
static struct served served[] = {
    {.asked_ns = NS_PER_MS, .write = false, .place = IN_USER},
    {.asked_ns = NS_PER_MS, .write = true, .place = IN_USER},
    {.asked_ns = 4 * NS_PER_MS, .write = false, .place = IN_USER},
    {.asked_ns = 4 * NS_PER_MS, .write = true, .place = IN_USER},
    {.asked_ns = 40 * NS_PER_MS, .write = false, .place = IN_USER},
    {.asked_ns = 40 * NS_PER_MS, .write = true, .place = IN_USER},
    {.asked_ns = NS_PER_MS, .write = true, .place = IN_READ},
    {.asked_ns = 4 * NS_PER_MS, .write = true, .place = IN_READ},
    {.asked_ns = 4 * NS_PER_MS, .write = false, .place = IN_WRITE},
    {.asked_ns = 40 * NS_PER_MS, .write = false, .place = IN_WRITE},
};
#define SERVED (sizeof served / sizeof served[0])
// The page behind the served ones.
#define NEVER SERVED

static int userfault = -1, pipe_ends[2];
static volatile char *late_pages;
static _Alignas(4096) char contents[4096];
static const char *refused;

// Each page has its own delay; a page is named by the address of the fault.
static void serve_pages(struct runner *self) {
    (void)self;
    for (size_t i = 0; i < SERVED && userfault >= 0; i++) {
        struct uffd_msg message;
        if (read(userfault, &message, sizeof message) != sizeof message)
            die("userfaultfd", errno);
        uint64_t page = message.arg.pagefault.address & -PAGE;
        sleep_for(served[(page - (uint64_t)late_pages) / PAGE].asked_ns);
        struct uffdio_copy copy = {.dst = page, .src = (uintptr_t)contents, .len = PAGE};
        if (ioctl(userfault, UFFDIO_COPY, &copy) != 0)
            die("UFFDIO_COPY", errno);
    }
}

static bool prepare_late_pages(void) {
    size_t size = (SERVED + 1) * PAGE;
    late_pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // Faults in system calls are served to the privileged only.
    userfault = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register missing = {.range = {(uintptr_t)late_pages, size},
                                      .mode = UFFDIO_REGISTER_MODE_MISSING};
    return late_pages != MAP_FAILED && userfault >= 0 && ioctl(userfault, UFFDIO_API, &api) == 0 &&
           ioctl(userfault, UFFDIO_REGISTER, &missing) == 0 && pipe(pipe_ends) == 0;
}

// Where in its page a fault is, so that an address is more than a page's number.
static volatile char *address_of(size_t i) { return late_pages + i * PAGE + 128 + i; }

SHOWN static void touch_page(struct served *fault, volatile char *address) {
    fault->start_ns = now_ns();
    if (fault->write)
        *address = 1;
    else
        (void)*address;
    fault->end_ns = now_ns();
}

SHOWN static void touch_in_syscall(struct served *fault, volatile char *address) {
    ssize_t done;
    char byte = 1;
    if (fault->place == IN_READ && write(pipe_ends[1], &byte, 1) != 1)
        die("a pipe", errno);
    fault->start_ns = now_ns();
    done = fault->place == IN_READ ? read(pipe_ends[0], (char *)address, 1)
                                   : write(pipe_ends[1], (const char *)address, 1);
    fault->end_ns = now_ns();
    if (done != 1)
        die("a pipe", errno);
    if (fault->place == IN_WRITE && read(pipe_ends[0], &byte, 1) != 1)
        die("a pipe", errno);
}

// --- a page that never comes ---

static bool keeps_stuck;
static _Atomic uint64_t stuck_since_ns;

SHOWN static void touch_never(struct runner *self) {
    (void)self;
    // Says that it is under way: the thread cannot say it later.
    atomic_store(&stuck_since_ns, now_ns());
    (void)*address_of(NEVER);
}

static bool is_asleep(pid_t tid) { return state_of(tid) == 'S' || state_of(tid) == 'D'; }

static void print_stuck(const struct runner *stuck) {
    while (atomic_load(&stuck_since_ns) == 0 || !is_asleep(stuck->tid))
        sched_yield();
    printf("{\"event\":\"stuck\",\"tid\":%d,\"address\":\"%p\",\"since_ns\":%llu,\"by_ns\":%llu}\n",
           stuck->tid, (void *)address_of(NEVER), (unsigned long long)atomic_load(&stuck_since_ns),
           (unsigned long long)now_ns());
}

// --- a cold file ---

static int cold_file = -1;
static char *cold_map;
static volatile char *cold_address;
static uint64_t cold_start_ns, cold_end_ns;
static struct off_cpu cold_off;
static bool cold_evicted;

static void prepare_cold_file(void) {
    cold_file = open(cold_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (cold_file < 0 || ftruncate(cold_file, FILE_PAGES * PAGE) != 0)
        die(cold_path, errno);
    for (size_t i = 0; i < FILE_PAGES; i++)
        if (pwrite(cold_file, contents, PAGE, (off_t)(i * PAGE)) != (ssize_t)PAGE)
            die(cold_path, errno);
    if (fsync(cold_file) != 0)
        die(cold_path, errno);
    cold_map = mmap(NULL, FILE_PAGES * PAGE, PROT_READ, MAP_PRIVATE, cold_file, 0);
    if (cold_map == MAP_FAILED || madvise(cold_map, FILE_PAGES * PAGE, MADV_RANDOM) != 0)
        die(cold_path, errno);
    cold_address = cold_map + 37 * PAGE + 5;
}

SHOWN static void touch_cold(void) {
    unsigned char present = 1;
    posix_fadvise(cold_file, 0, 0, POSIX_FADV_DONTNEED);
    mincore(cold_map + 37 * PAGE, PAGE, &present);
    cold_evicted = !(present & 1);
    cold_start_ns = now_ns();
    (void)*cold_address;
    cold_end_ns = now_ns();
}

// --- faults that fail ---

static sigjmp_buf escape;
static volatile sig_atomic_t caught_segv, caught_bus;
static volatile char *no_page, *beyond_file;

static void on_failure(int signal) {
    if (signal == SIGSEGV)
        caught_segv++;
    else
        caught_bus++;
    siglongjmp(escape, 1);
}

static void prepare_failures(void) {
    struct sigaction action = {.sa_handler = on_failure};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    no_page = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int empty = memfd_create("empty", MFD_CLOEXEC);
    beyond_file = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, empty, 0);
    if (no_page == MAP_FAILED || beyond_file == MAP_FAILED)
        die("cannot map", errno);
}

SHOWN static void fail_often(void) {
    for (volatile int i = 0; i < FAILURES; i++) {
        if (sigsetjmp(escape, 1) == 0)
            (void)*(i % 2 == 0 ? no_page : beyond_file);
        if (i % 8 == 7)
            sleep_for(FAIL_SLEEP_NS);
    }
}

// --- reader ---

static struct switches switches;

SHOWN static void touch_all(struct runner *self) {
    (void)self;
    record_switches(&switches);
    for (size_t i = 0; i < SERVED && userfault >= 0; i++) {
        if (served[i].place == IN_USER)
            touch_page(&served[i], address_of(i));
        else
            touch_in_syscall(&served[i], address_of(i));
        served[i].off = take_switches(&switches, served[i].start_ns);
    }
    if (cold_path) {
        touch_cold();
        cold_off = take_switches(&switches, cold_start_ns);
    }
    fail_often();
}

// --- spinner ---

static uint64_t fresh_pages, fresh_start_ns, fresh_end_ns;

SHOWN static void touch_fresh(struct runner *self) {
    size_t size = FRESH_PAGES * PAGE;
    (void)self;
    fresh_start_ns = now_ns();
    for (uint64_t time = 0; time < fresh_times && !run_is_over(); time++) {
        char *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED || madvise(pages, size, MADV_NOHUGEPAGE) != 0)
            die("cannot map", errno);
        for (size_t i = 0; i < FRESH_PAGES; i++)
            *(volatile char *)(pages + i * PAGE) = 1;
        fresh_pages += FRESH_PAGES;
        munmap(pages, size);
    }
    fresh_end_ns = now_ns();
}

// --- truth ---

static void print_served(size_t i) {
    const struct served *fault = &served[i];
    printf("{\"event\":\"fault\",\"start_ns\":%llu,\"off_ns\":%llu,\"on_ns\":%llu,\"end_ns\":%llu,"
           "\"waited_ns\":%llu,\"address\":\"%p\",\"access\":\"%s\",\"in\":\"%s\",\"asked_ns\":%llu,"
           "\"mapping\":\"anonymous\"}\n",
           (unsigned long long)fault->start_ns, (unsigned long long)fault->off.first_ns,
           (unsigned long long)fault->off.last_ns, (unsigned long long)fault->end_ns,
           (unsigned long long)fault->off.blocked_ns, (void *)address_of(i), fault->write ? "write" : "read",
           place_names[fault->place], (unsigned long long)fault->asked_ns);
}

static void print_truth(void) {
    if (userfault < 0)
        printf("{\"event\":\"refused\",\"what\":\"%s\"}\n", refused);
    for (size_t i = 0; i < SERVED && userfault >= 0; i++)
        print_served(i);
    if (cold_path)
        printf("{\"event\":\"cold\",\"start_ns\":%llu,\"off_ns\":%llu,\"on_ns\":%llu,\"end_ns\":%llu,"
               "\"address\":\"%p\",\"file\":\"%s\","
               "\"offset\":"
               "%lu,\"evicted\":%s}\n",
               (unsigned long long)cold_start_ns, (unsigned long long)cold_off.first_ns,
               (unsigned long long)cold_off.last_ns, (unsigned long long)cold_end_ns, (void *)cold_address,
               cold_path, 37 * PAGE + 5, cold_evicted ? "true" : "false");
    printf("{\"event\":\"failed\",\"segv\":%d,\"bus\":%d,\"slept_ns\":%llu}\n", (int)caught_segv,
           (int)caught_bus, (unsigned long long)(FAILURES / 8 * FAIL_SLEEP_NS));
    printf("{\"event\":\"fresh\",\"pages\":%llu,\"start_ns\":%llu,\"end_ns\":%llu}\n",
           (unsigned long long)fresh_pages, (unsigned long long)fresh_start_ns,
           (unsigned long long)fresh_end_ns);
}

int main(int argc, char **argv) {
    const struct own_option own[] = {{.letter = 'k', .flag = &keeps_stuck},
                                     {.letter = 'f', .argument = "FILE", .text = &cold_path},
                                     {.letter = 't', .argument = "TIMES", .count = &fresh_times}};
    take_options(argc, argv, &run, own, 3);
    memset(contents, 1, sizeof contents);
    if (!prepare_late_pages()) {
        refused = strerror(errno);
        userfault = -1;
    }
    if (cold_path)
        prepare_cold_file();
    prepare_failures();
    // Touched now, so that the measurement itself causes no fault.
    for (size_t i = 0; i < SERVED; i++)
        served[i].end_ns = 1;
    struct runner runners[] = {{.name = "server", .body = serve_pages},
                               {.name = "reader", .body = touch_all},
                               {.name = "spinner", .body = touch_fresh}};
    struct runner stuck = {.name = "stuck", .body = touch_never};
    if (!keeps_stuck || userfault < 0) {
        run_scenario(runners, 3, &run, print_truth);
        return 0;
    }
    // The stuck thread's runner never reports that it is done, and ends with the process.
    assemble_runners(&stuck, 1);
    print_start(&stuck, 1, &run);
    wait_for_go(&run);
    release_runners(&stuck, 1, &run);
    print_stuck(&stuck);
    print_end();
    if (run.gated)
        wait_for_leave(&run);
    else
        sleep_until(atomic_load(&run_ends_at));
}
