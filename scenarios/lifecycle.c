// lifecycle: threads and processes that come, change their names and go.
//
// One after the other, each running for 20 ms of its own CPU time (`brief` ones 2 ms):
//   brief         20 threads that start and end
//   caterpillar   a thread that becomes `butterfly` half-way
//   (hostile)     a thread whose name holds an escape sequence, a newline, a quote, a semicolon and markup
//   child         a forked process, which forks `grandchild`; they exit with 7 and 8
//   first, second two processes of which the second is given the pid of the first (needs privileges)
//   swapper       a thread, not the first one, that calls exec: the kernel gives it the process' pid, ends
//   all
//                 others, and the program starts again as `reborn`
//
// Truth, besides truth.h's start and end lines:
//   {"event":"life", "pid", "tid", "name", "was", "start_ns", "end_ns", "cpu_ns"}   one life by its own
//       clocks; name is the last name, was the one before (null if it had none); swapper's ends with exec
//   {"event":"refused", "name", "error"}   the kernel did not allow this one
// Option -n N: brief threads (default 20).

#include "truth.h"

#include <linux/sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define MAX_LIVES 1024
#define LIFE_NS (20 * NS_PER_MS)
#define BRIEF_NS (2 * NS_PER_MS)
#define HOSTILE "a\033[31m\n\"';<&>"

struct life {
    const char *name, *was;
    pid_t pid, tid;
    uint64_t start_ns, end_ns, cpu_ns;
};

// Shared with the forked processes, which write down their own lives.
struct book {
    atomic_int count;
    struct life lives[MAX_LIVES];
};

static struct book *book;
static int briefs = 20, refused_reuse;
static char **arguments;
static struct run run = {.scenario = "lifecycle", .seconds = 10, .seed = 42};

// --- one life ---

static uint64_t own_cpu_ns(void) { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

SHOWN static void live_for(uint64_t cpu_ns) {
    while (own_cpu_ns() < cpu_ns)
        ;
}

static struct life begin_life(const char *name) {
    prctl(PR_SET_NAME, name);
    return (struct life){.name = name, .pid = getpid(), .tid = gettid(), .start_ns = now_ns()};
}

static void end_life(struct life *life) {
    life->cpu_ns = own_cpu_ns();
    life->end_ns = now_ns();
    int at = atomic_fetch_add(&book->count, 1);
    if (at < MAX_LIVES)
        book->lives[at] = *life;
}

static void whole_life(const char *name, uint64_t cpu_ns) {
    struct life life = begin_life(name);
    live_for(cpu_ns);
    end_life(&life);
}

// --- threads ---

static void *brief(void *argument) {
    (void)argument;
    whole_life("brief", BRIEF_NS);
    return NULL;
}

static void *hostile(void *argument) {
    (void)argument;
    whole_life(HOSTILE, LIFE_NS);
    return NULL;
}

static void *caterpillar(void *argument) {
    (void)argument;
    struct life life = begin_life("caterpillar");
    live_for(LIFE_NS / 2);
    life.was = life.name;
    life.name = "butterfly";
    prctl(PR_SET_NAME, life.name);
    live_for(LIFE_NS);
    end_life(&life);
    return NULL;
}

static void run_thread(void *(*body)(void *)) {
    pthread_t thread;
    int error = pthread_create(&thread, NULL, body, NULL);
    if (error)
        die("cannot start a thread", error);
    pthread_join(thread, NULL);
}

// --- processes ---

static void wait_for_child(pid_t pid) {
    if (pid < 0)
        die("cannot fork", errno);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

static void fork_family(void) {
    pid_t child = fork();
    if (child == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0) {
            whole_life("grandchild", LIFE_NS);
            _exit(8);
        }
        whole_life("child", LIFE_NS);
        wait_for_child(grandchild);
        _exit(7);
    }
    wait_for_child(child);
}

// Forks a process with this pid, or any when it is 0; negative with errno set when refused.
static pid_t fork_as(pid_t pid) {
    struct clone_args how = {.exit_signal = SIGCHLD};
    if (pid != 0) {
        how.set_tid = (uint64_t)(uintptr_t)&pid;
        how.set_tid_size = 1;
    }
    return (pid_t)syscall(SYS_clone3, &how, sizeof how);
}

static void reuse_pid(void) {
    pid_t first = fork_as(0);
    if (first == 0) {
        whole_life("first", LIFE_NS);
        _exit(0);
    }
    wait_for_child(first);
    pid_t second = fork_as(first);
    if (second == 0) {
        whole_life("second", LIFE_NS);
        _exit(0);
    }
    if (second < 0)
        refused_reuse = errno;
    else
        wait_for_child(second);
}

// --- truth ---

static void print_text(const char *text) {
    putchar('"');
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < ' ' || *text == '"' || *text == '\\')
            printf("\\u%04x", *text);
        else
            putchar(*text);
    }
    putchar('"');
}

static void print_life(const struct life *life) {
    printf("{\"event\":\"life\",\"pid\":%d,\"tid\":%d,\"name\":", life->pid, life->tid);
    print_text(life->name);
    printf(",\"was\":");
    if (life->was == NULL)
        printf("null");
    else
        print_text(life->was);
    printf(",\"start_ns\":%llu,\"end_ns\":%llu,\"cpu_ns\":%llu}\n", (unsigned long long)life->start_ns,
           (unsigned long long)life->end_ns, (unsigned long long)life->cpu_ns);
}

static void print_lives(void) {
    int count = atomic_load(&book->count);
    for (int i = 0; i < count && i < MAX_LIVES; i++)
        print_life(&book->lives[i]);
    if (refused_reuse != 0)
        printf("{\"event\":\"refused\",\"name\":\"second\",\"error\":\"%s\"}\n", strerror(refused_reuse));
    fflush(stdout);
}

// --- exec ---

static void *swapper(void *argument) {
    (void)argument;
    struct life life = begin_life("swapper");
    live_for(LIFE_NS);
    end_life(&life);
    print_lives();
    setenv("LIFECYCLE_REBORN", "1", 1);
    execv("/proc/self/exe", arguments);
    die("cannot exec", errno);
    return NULL;
}

static void live_again(void) {
    struct life life = begin_life("reborn");
    uint64_t before = own_cpu_ns();
    live_for(before + LIFE_NS);
    end_life(&life);
    print_lives();
    print_end();
    wait_for_leave(&run);
}

int main(int argc, char **argv) {
    const struct own_option own = {.letter = 'n', .argument = "BRIEF", .index = &briefs};
    take_options(argc, argv, &run, &own, 1);
    arguments = argv;
    book = mmap(NULL, sizeof *book, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (book == MAP_FAILED)
        die("cannot map memory", errno);
    if (getenv("LIFECYCLE_REBORN") != NULL) {
        live_again();
        return 0;
    }
    print_start(NULL, 0, &run);
    wait_for_go(&run);
    for (int i = 0; i < briefs; i++)
        run_thread(brief);
    run_thread(caterpillar);
    run_thread(hostile);
    fork_family();
    reuse_pid();
    run_thread(swapper);
}
