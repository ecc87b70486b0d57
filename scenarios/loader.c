// SPDX-License-Identifier: Apache-2.0
// loader: time inside the dynamic linker, and in libraries that come and go.
//
// In its first thread:
//   bind_lazily → call_lazy_N → the dynamic linker: a first call of each of the 64 functions of liblazy.so.
//   The pages with that
//       library's symbols are given to userfaultfd before each call, and another thread fills them in 2 ms
//       after they are touched: the first thread is blocked in a page fault inside _dl_fixup
//   use_plugin → plugin_work → call_leaf, of libplugin.so, which is loaded before and unloaded after each
//   call;
//       until the run is over
//
// Truth: alone.h's lines, where `<linker>` stands for frames of the dynamic linker; and
//   {"event":"bound", "functions"}   how many functions were bound while symbols were missing, by a thread
//   that slept for them (0: no userfaultfd)

#include "alone.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define DELAY_NS (2 * NS_PER_MS)

#include "loader_lazy.h"

static struct run run = {.scenario = "loader", .seconds = 2, .seed = 42};
static volatile uint64_t sink;
static int bound; // first calls that returned
static bool slept[64];

// --- pages that come late ---

struct late_pages {
    int fd; // userfaultfd
    char *start;
    size_t size;
    char *contents; // what belongs there
};

static struct late_pages late = {.fd = -1};

// The library's first mapping: its symbols, their names and their hashes.
static int find_symbols(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    (void)data;
    if (strstr(info->dlpi_name, "liblazy.so") == NULL)
        return 0;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    late.start = (char *)info->dlpi_addr;
    late.size = (info->dlpi_phdr[0].p_memsz + page - 1) / page * page;
    return 1;
}

// The callees of `fill_pages` are bound first: with missing symbols, its own lookup of one would never end.
static void bind_for_filling(void) {
    sleep_for(1);
    if (read(-1, NULL, 0) == 0 || ioctl(-1, 0) == 0)
        die("descriptor -1 is open", 0);
}

static void *fill_pages(void *argument) {
    struct uffd_msg message;
    (void)argument;
    while (read(late.fd, &message, sizeof message) == sizeof message) {
        sleep_for(DELAY_NS);
        struct uffdio_copy copy = {
            .dst = (uintptr_t)late.start, .src = (uintptr_t)late.contents, .len = late.size};
        ioctl(late.fd, UFFDIO_COPY, &copy);
    }
    return NULL;
}

static bool prepare_late_pages(void) {
    if (!dl_iterate_phdr(find_symbols, NULL))
        die("liblazy.so is not loaded", 0);
    late.fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API};
    if (late.fd < 0 || ioctl(late.fd, UFFDIO_API, &api) != 0)
        return false;
    late.contents = malloc(late.size);
    memcpy(late.contents, late.start, late.size);
    bind_for_filling();
    pthread_t thread;
    int error = pthread_create(&thread, NULL, fill_pages, NULL);
    if (error)
        die("cannot start a thread", error);
    return true;
}

// From here on the pages are missing.
static void drop_pages(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(late.start, late.size, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED)
        die("cannot map over the library's symbols", errno);
    struct uffdio_register missing = {.range = {(uintptr_t)late.start, late.size},
                                      .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(late.fd, UFFDIO_REGISTER, &missing) != 0)
        die("cannot register the library's symbols", errno);
}

// --- lazy binding ---

#define CALL(name)                                                                                           \
    OPAQUE static void call_##name(void) {                                                                   \
        sink += name();                                                                                      \
        bound++;                                                                                             \
    }
LAZY_FUNCTIONS(CALL)

static void (*const calls[])(void) = {
#define CALLER(name) call_##name,
    LAZY_FUNCTIONS(CALLER)};

static const char *const lazy_names[] = {
#define NAME(name) #name,
    LAZY_FUNCTIONS(NAME)};
_Static_assert(sizeof calls / sizeof calls[0] == sizeof slept / sizeof slept[0], "an entry for each");

// How often this thread went to sleep.
static long sleeps(void) {
    struct rusage usage;
    if (getrusage(RUSAGE_THREAD, &usage) != 0)
        die("getrusage", errno);
    return usage.ru_nvcsw;
}

// A hypervisor can take the thread's CPU away after it has asked for its page and before it sleeps. The page
// is there when it gets the CPU back, and it does not sleep.
OPAQUE static void bind_lazily(void) {
    sleeps(); // binds its callee
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        drop_pages();
        long before = sleeps();
        calls[i]();
        slept[i] = sleeps() > before;
    }
}

// --- a library that comes and goes ---

OPAQUE static void use_plugin(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "scenario: %s\n", dlerror());
        exit(1);
    }
    uint64_t (*work)(uint64_t (*)(uint64_t)) =
        (uint64_t (*)(uint64_t (*)(uint64_t)))dlsym(library, "plugin_work");
    sink += work(call_leaf);
    dlclose(library);
}

static void find_plugin(char *path, size_t size) {
    ssize_t length = readlink("/proc/self/exe", path, size - sizeof "libplugin.so");
    if (length < 0)
        die("/proc/self/exe", errno);
    path[length] = '\0';
    strcpy(strrchr(path, '/') + 1, "libplugin.so");
}

static void print_truth(void) {
    int waited = 0;
    for (int i = 0; i < bound; i++) {
        if (!slept[i])
            continue;
        char callers[128];
        snprintf(callers, sizeof callers, "\"call_%s\",\"bind_lazily\",\"main\"", lazy_names[i]);
        print_stack("loader", "blocked", "<linker>", callers);
        waited++;
    }
    printf("{\"event\":\"bound\",\"functions\":%d}\n", waited);
    print_leaf_stacks("loader", "\"plugin_inner\",\"plugin_work\",\"use_plugin\",\"main\"");
}

int main(int argc, char **argv) {
    char plugin[4096];
    take_options(argc, argv, &run, NULL, 0);
    find_plugin(plugin, sizeof plugin);
    bool can_be_late = prepare_late_pages();
    begin_alone(&run);
    if (can_be_late)
        bind_lazily();
    while (!run_is_over())
        for (size_t i = 0; i < LEAVES; i++) {
            leaf = leaves[i].run;
            use_plugin(plugin);
        }
    print_truth();
    end_alone(&run);
}
