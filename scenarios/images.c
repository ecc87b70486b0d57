// SPDX-License-Identifier: Apache-2.0
// images: programs that come into being in every way there is, each doing the same work under a name of its
// own.
//
//   forked     a child without exec
//   execed     the program again, by its path
//   memfd      from a file in memory
//   deleted    from a copy whose file is removed while it runs
//   replaced   from a copy over whose name another file is moved while it runs
//   chrooted   a static copy in a root of its own, on a tmpfs that exists in its mount namespace only
//   short      `true`, started -n times (200) one after the other
// The first five are this very program; they and chrooted run work → work_inner → call_leaf for a fifth of
// the run's time each.
//
// Truth: alone.h's lines, and
//   {"event":"refused", "name", "error"}   the kernel did not allow this one
//   {"event":"short", "processes"}

#include "alone.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define NAME_VARIABLE "IMAGES_NAME"
#define SECONDS_VARIABLE "IMAGES_SECONDS"

static struct run run = {.scenario = "images", .seconds = 5, .seed = 42};
static volatile uint64_t sink;
static int shorts = 200;
static char folder[] = "/tmp/wallprof-images-XXXXXX";

// --- work ---

OPAQUE static uint64_t work_inner(uint64_t depth) {
    volatile uint64_t room[20];
    room[depth % 20] = depth;
    return call_leaf(depth) + room[depth % 20];
}

OPAQUE static void work(const char *name, double seconds) {
    prctl(PR_SET_NAME, name);
    uint64_t until = now_ns() + (uint64_t)(seconds * NS_PER_S);
    while (now_ns() < until)
        for (size_t i = 0; i < LEAVES; i++) {
            leaf = leaves[i].run;
            sink += work_inner(i);
        }
}

// --- files ---

static void copy_file(const char *from, int to) {
    int source = open(from, O_RDONLY | O_CLOEXEC);
    struct stat facts;
    if (source < 0 || fstat(source, &facts) != 0)
        die(from, errno);
    for (off_t at = 0; at < facts.st_size;)
        if (sendfile(to, source, &at, (size_t)(facts.st_size - at)) <= 0)
            die("cannot copy a program", errno);
    close(source);
}

// A program of this folder, or this one.
static void copy_program(const char *name, const char *to) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 64);
    if (length < 0)
        die("/proc/self/exe", errno);
    path[length] = '\0';
    if (name != NULL)
        strcpy(strrchr(path, '/') + 1, name);
    int file = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    if (file < 0)
        die(to, errno);
    copy_file(path, file);
    close(file);
}

static void path_in_folder(char *path, const char *name) { sprintf(path, "%s/%s", folder, name); }

// --- programs ---

static void wait_for_child(pid_t pid) {
    if (pid < 0)
        die("cannot fork", errno);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

// This program at `path`, working under `name`; does not return.
static void become(const char *path, const char *name) {
    char *arguments[] = {(char *)name, NULL};
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%f", run.seconds / 5);
    setenv(NAME_VARIABLE, name, 1);
    setenv(SECONDS_VARIABLE, seconds, 1);
    execv(path, arguments);
    die(path, errno);
}

OPAQUE static void run_forked(void) {
    pid_t pid = fork();
    if (pid == 0) {
        work("forked", run.seconds / 5);
        _exit(0);
    }
    wait_for_child(pid);
}

static void run_execed(void) {
    pid_t pid = fork();
    if (pid == 0)
        become("/proc/self/exe", "execed");
    wait_for_child(pid);
}

static void run_memfd(void) {
    pid_t pid = fork();
    if (pid == 0) {
        char path[64];
        int memory = memfd_create("images", 0);
        if (memory < 0)
            die("cannot make a file in memory", errno);
        copy_file("/proc/self/exe", memory);
        // Opened for writing it is busy.
        snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
        int program = open(path, O_RDONLY);
        close(memory);
        snprintf(path, sizeof path, "/proc/self/fd/%d", program);
        become(path, "memfd");
    }
    wait_for_child(pid);
}

// Returns when the child runs the program at `path`.
static pid_t fork_and_become(const char *path, const char *name) {
    int until_exec[2];
    char nothing;
    if (pipe2(until_exec, O_CLOEXEC) != 0)
        die("cannot make a pipe", errno);
    pid_t pid = fork();
    if (pid == 0)
        become(path, name);
    close(until_exec[1]);
    while (read(until_exec[0], &nothing, 1) < 0 && errno == EINTR)
        ;
    close(until_exec[0]);
    return pid;
}

// The change of the file while the program runs.
enum fate { DELETED, REPLACED };

static void run_copy(const char *name, enum fate fate) {
    char path[4096], other[4096];
    path_in_folder(path, name);
    path_in_folder(other, "other");
    copy_program(NULL, path);
    pid_t pid = fork_and_become(path, name);
    if (fate == REPLACED) {
        copy_program("chain", other);
        if (rename(other, path) != 0)
            die(path, errno);
    } else if (unlink(path) != 0) {
        die(path, errno);
    }
    wait_for_child(pid);
    unlink(path);
}

static void enter_own_root(void) {
    char path[4096];
    path_in_folder(path, "images-static");
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", folder, "tmpfs", 0, NULL) != 0)
        _exit(errno);
    copy_program("images-static", path);
    if (chroot(folder) != 0 || chdir("/") != 0)
        _exit(errno);
}

static void run_chrooted(void) {
    pid_t pid = fork();
    int status = 0;
    if (pid == 0) {
        enter_own_root();
        become("/images-static", "chrooted");
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
        printf("{\"event\":\"refused\",\"name\":\"chrooted\",\"error\":\"%s\"}\n",
               strerror(WEXITSTATUS(status)));
    else
        print_leaf_stacks("chrooted", "\"work_inner\",\"work\",\"main\"");
}

static void run_shorts(void) {
    char *arguments[] = {"true", NULL};
    for (int i = 0; i < shorts; i++) {
        pid_t pid;
        int error = posix_spawnp(&pid, "true", NULL, NULL, arguments, environ);
        if (error)
            die("cannot start true", error);
        wait_for_child(pid);
    }
    printf("{\"event\":\"short\",\"processes\":%d}\n", shorts);
}

static void print_truth(void) {
    print_leaf_stacks("forked", "\"work_inner\",\"work\",\"run_forked\",\"main\"");
    const char *started[] = {"execed", "memfd", "deleted", "replaced"};
    for (int i = 0; i < 4; i++)
        print_leaf_stacks(started[i], "\"work_inner\",\"work\",\"main\"");
}

int main(int argc, char **argv) {
    const char *name = getenv(NAME_VARIABLE), *seconds = getenv(SECONDS_VARIABLE);
    if (name != NULL && seconds != NULL) {
        work(name, positive_number(seconds));
        return 0;
    }
    const struct own_option own = {.letter = 'n', .argument = "SHORT", .index = &shorts};
    take_options(argc, argv, &run, &own, 1);
    if (mkdtemp(folder) == NULL)
        die("cannot make a folder in /tmp", errno);
    begin_alone(&run);
    run_forked();
    run_execed();
    run_memfd();
    run_copy("deleted", DELETED);
    run_copy("replaced", REPLACED);
    run_chrooted();
    run_shorts();
    rmdir(folder);
    print_truth();
    end_alone(&run);
}
