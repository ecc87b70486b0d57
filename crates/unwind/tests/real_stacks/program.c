// SPDX-License-Identifier: Apache-2.0
/* Waits at places that are hard to unwind. At each it prints the input of an unwinder, registers and memory,
 * and the result of libgcc's backtrace(). tests/real_stacks.rs reads it. */
#define _GNU_SOURCE
#include <alloca.h>
#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define NOINLINE __attribute__((noinline, noipa))
#define ALTERNATE_BYTES 65536
#define DEPTH 40

typedef unsigned long u64;

static const char *place;
static u64 alternate[ALTERNATE_BYTES / 8];
/* The lowest needed address of the thread's own stack while it runs on another one. */
static u64 *interrupted_at;
static volatile int sink;

static void print_words(const u64 *from, const u64 *to) {
    printf("memory %lx", (u64)from);
    for (; from < to; from++)
        printf(" %lx", *from);
    putchar('\n');
}

/* The end of the mapping that holds `address`. */
static u64 *mapping_end(u64 address) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    u64 start, end;

    while (fgets(line, sizeof(line), maps))
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start <= address && address < end) {
            fclose(maps);
            return (u64 *)end;
        }
    abort();
}

static NOINLINE void capture(void) {
    u64 ip, sp, fp, bx, r10;
    void *found[128];
    int count, i;

    __asm__ volatile("lea 0(%%rip), %0\n\tmov %%rsp, %1\n\tmov %%rbp, %2\n\tmov %%rbx, %3\n\tmov %%r10, %4"
                     : "=&r"(ip), "=&r"(sp), "=&r"(fp), "=&r"(bx), "=&r"(r10));
    count = backtrace(found, 128);
    printf("place %s\nregisters %lx %lx %lx %lx %lx\nbacktrace", place, ip, sp, fp, bx, r10);
    for (i = 0; i < count; i++)
        printf(" %lx", (u64)found[i]);
    putchar('\n');
    if (sp - (u64)alternate < ALTERNATE_BYTES) {
        print_words((u64 *)sp, alternate + ALTERNATE_BYTES / 8);
        sp = (u64)interrupted_at;
    }
    print_words((u64 *)sp, mapping_end(sp));
}

static NOINLINE void recurse(int depth) {
    if (depth)
        recurse(depth - 1);
    else
        capture();
    sink++;
}

static int compare(const void *left, const void *right) {
    if (!sink++)
        capture();
    return *(const int *)left - *(const int *)right;
}

static NOINLINE void in_qsort(void) {
    int numbers[] = {3, 1, 2};

    place = "qsort";
    sink = 0;
    qsort(numbers, 3, sizeof(int), compare);
    sink += numbers[0];
}

static NOINLINE void fill(void *buffer, int len) { memset(buffer, 1, len); }

static NOINLINE void with_alloca(int len) {
    char *buffer = alloca(len);

    fill(buffer, len);
    place = "alloca";
    capture();
    sink += buffer[len - 1];
}

/* A stack with a larger alignment than that of the ABI. */
static NOINLINE void realigned(int len) {
    char buffer[256] __attribute__((aligned(128)));

    fill(buffer, len);
    place = "realigned";
    capture();
    sink += buffer[len - 1];
}

/* The same with a moving rsp, which takes a register for the arguments. */
static NOINLINE int realigned_with_alloca(int len, ...) {
    char buffer[256] __attribute__((aligned(64)));
    char *more = alloca(len);
    __builtin_va_list list;

    __builtin_va_start(list, len);
    fill(buffer, 256);
    fill(more, len);
    place = "realigned_with_alloca";
    capture();
    len = __builtin_va_arg(list, int) + buffer[255] + more[len - 1];
    __builtin_va_end(list);
    return len;
}

static void handler(int signal) {
    sink += signal;
    capture();
}

static NOINLINE void by_signal(int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};

    /* raise() needs less. */
    interrupted_at = (u64 *)__builtin_frame_address(0) - 512;
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    sink++;
}

static sigjmp_buf back;

static void escape(int signal) {
    sink += signal;
    capture();
    siglongjmp(back, 1);
}

/* Faults at its first byte, directly after the end of another function. */
__attribute__((naked)) static void first_instruction(void) { __asm__("movl $0, 8\n\tret"); }

static NOINLINE void at_a_fault(void) {
    struct sigaction action = {.sa_handler = escape};

    sigaction(SIGSEGV, &action, NULL);
    place = "fault";
    if (!sigsetjmp(back, 1))
        first_instruction();
    sink++;
}

static void *thread(void *unused) {
    place = "thread";
    recurse(3);
    return unused;
}

static ucontext_t outer;

static void coroutine(void) {
    place = "coroutine";
    recurse(2);
}

static NOINLINE void in_coroutine(void) {
    static ucontext_t inner;

    getcontext(&inner);
    inner.uc_stack.ss_sp = alternate;
    inner.uc_stack.ss_size = ALTERNATE_BYTES;
    inner.uc_link = &outer;
    makecontext(&inner, coroutine, 0);
    interrupted_at = (u64 *)__builtin_frame_address(0);
    swapcontext(&outer, &inner);
    sink++;
}

static void print_maps(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];

    while (fgets(line, sizeof(line), maps))
        printf("map %s", line);
    fclose(maps);
}

int main(void) {
    stack_t other = {.ss_sp = alternate, .ss_size = ALTERNATE_BYTES};
    pthread_t other_thread;
    void *warm_up[1];

    backtrace(warm_up, 1);
    place = "recursion";
    recurse(DEPTH);
    in_qsort();
    with_alloca(300);
    realigned(200);
    sink += realigned_with_alloca(200, 7);
    place = "signal";
    by_signal(0);
    at_a_fault();
    sigaltstack(&other, NULL);
    place = "signal_on_another_stack";
    by_signal(SA_ONSTACK);
    in_coroutine();
    pthread_create(&other_thread, NULL, thread, NULL);
    pthread_join(other_thread, NULL);
    print_maps();
    return 0;
}
