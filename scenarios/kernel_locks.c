// SPDX-License-Identifier: Apache-2.0
// kernel_locks: threads that wait for locks of the kernel, whose holder waits for a page that does not come.
//
// `writer` writes a page that a userfaultfd never serves to a file: save_record. Meanwhile the kernel holds
// the file's mutex of its position and the semaphore of its contents. `appender` writes to the same file, and
// waits for the mutex: append_record. `patcher` writes at a position, and waits for the semaphore:
// patch_record. So does `importer`, the only thread of another process.
//
// Truth, besides truth.h's start and end lines (the threads never end, so they have no `thread` lines):
//   {"event":"stuck", "pid", "tid", "name", "owner"}   printed as soon as all sleep in the kernel
//   {"event":"refused", "what"}   there is nothing stuck: userfaultfd is not permitted
// The main thread prints and then waits for -d seconds, SIGTERM or, gated, stdin's end.

#include "truth.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define PAGE 4096ul

static struct run run = {.scenario = "kernel_locks", .seconds = 3600, .seed = 42};
static char *late_page;
static int userfault = -1, file = -1;

static bool prepare_late_page(void) {
    late_page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // Faults in system calls are served to the privileged only.
    userfault = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register missing = {.range = {(uintptr_t)late_page, PAGE},
                                      .mode = UFFDIO_REGISTER_MODE_MISSING};
    return late_page != MAP_FAILED && userfault >= 0 && ioctl(userfault, UFFDIO_API, &api) == 0 &&
           ioctl(userfault, UFFDIO_REGISTER, &missing) == 0;
}

// A file of a directory: others have no mutex of their position.
static void open_file(void) {
    char path[] = "/tmp/wallprof-kernel-locks-XXXXXX";
    file = mkstemp(path);
    if (file < 0 || unlink(path) != 0)
        die(path, errno);
}

// The results are not looked at: the threads are stuck until the process ends.
SHOWN static void save_record(struct runner *self) { self->index = (int)write(file, late_page, PAGE); }

static void wait_for_the_writer(void) {
    struct uffd_msg message;
    if (read(userfault, &message, sizeof message) != sizeof message)
        die("userfaultfd", errno);
}

static _Atomic bool is_held;

static void wait_until_held(void) {
    while (!atomic_load(&is_held))
        sched_yield();
}

SHOWN static void append_record(struct runner *self) {
    wait_until_held();
    self->index = (int)write(file, "a", 1);
}

SHOWN static void patch_record(struct runner *self) {
    wait_until_held();
    self->index = (int)pwrite(file, "p", 1, 0);
}

static pid_t start_importer(void) {
    pid_t child = fork();
    if (child != 0)
        return child;
    prctl(PR_SET_NAME, "importer");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct runner self = {.name = "importer"};
    patch_record(&self);
    _exit(0);
}

static bool is_stuck(pid_t tid) { return state_of(tid) == 'D'; }

static void print_stuck(pid_t pid, pid_t tid, const char *name, pid_t owner) {
    while (!is_stuck(tid))
        sched_yield();
    printf("{\"event\":\"stuck\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"owner\":%d}\n", pid, tid, name,
           owner);
}

int main(int argc, char **argv) {
    struct runner runners[] = {{.name = "writer", .body = save_record},
                               {.name = "appender", .body = append_record},
                               {.name = "patcher", .body = patch_record}};
    take_options(argc, argv, &run, NULL, 0);
    open_file();
    bool permitted = prepare_late_page();
    assemble_runners(runners, 3);
    print_start(runners, 3, &run);
    wait_for_go(&run);
    if (permitted) {
        release_runners(runners, 3, &run);
        wait_for_the_writer();
        atomic_store(&is_held, true);
        pid_t importer = start_importer();
        for (int i = 1; i < 3; i++)
            print_stuck(getpid(), runners[i].tid, runners[i].name, runners[0].tid);
        print_stuck(importer, importer, "importer", runners[0].tid);
    } else {
        printf("{\"event\":\"refused\",\"what\":\"userfaultfd: %s\"}\n", strerror(errno));
    }
    print_end();
    if (run.gated)
        wait_for_leave(&run);
    else
        sleep_until(atomic_load(&run_ends_at));
    // Returning ends the stuck threads with the process.
}
