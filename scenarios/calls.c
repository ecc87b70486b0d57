// SPDX-License-Identifier: Apache-2.0
// calls: threads call functions that a recorder can probe, in ways in which calls have no end, or two.
//
//   caller   calls descend(), which calls itself five times before it returns; escape(), which it leaves by
//   longjmp
//            every other time; and hand_over(), whose last instruction is a jump to another function. 200
//            rounds, one every 2 ms. Its child executes this program in the middle of descend(), with -k
//            again
//   leaver   ends in the middle of a call of descend()
//   busy     with -k busy: calls often() all the time
//
// Truth, besides truth.h's lines:
//   {"event":"calls", "function", "count", "ended"}   outer calls in all processes, and those that returned

#include "truth.h"

#include <setjmp.h>
#include <sys/wait.h>

#define ROUNDS 200

static struct run run = {.scenario = "calls", .seconds = 3, .seed = 42};
static const char *part = "";
static jmp_buf way_out;
static int rounds, escapes;

// The compiler keeps each call.
SHOWN static int often(int number) {
    __asm__ volatile("");
    return number + 1;
}

SHOWN static void leave_this_process(void) {
    char self[4096] = "";

    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0 || !freopen("/dev/null", "w", stdout))
        _exit(1);
    execl(self, "calls", "-k", "again", (char *)NULL);
    _exit(1);
}

enum end { RETURN, END_THREAD, EXECUTE };

SHOWN static int descend(int depth, enum end end) {
    if (depth > 0)
        return descend(depth - 1, end) + 1;
    if (end == END_THREAD)
        pthread_exit(NULL);
    if (end == EXECUTE)
        leave_this_process();
    spin_until(now_ns() + 20 * NS_PER_US);
    return 0;
}

SHOWN static int escape(bool jumps) {
    if (jumps)
        longjmp(way_out, 1);
    return often(1);
}

SHOWN __attribute__((used)) static void sleep_a_little(uint64_t ns) { sleep_for(ns); }

// Assembly, so that the compiler's options do not decide on the jump.
void hand_over(uint64_t ns);
__asm__(".pushsection .text\n"
        ".type hand_over, @function\n"
        "hand_over: nop\n"
        "jmp sleep_a_little\n"
        ".size hand_over, . - hand_over\n"
        ".popsection\n");

static void call_all(void) {
    for (; rounds < ROUNDS; rounds++) {
        descend(5, RETURN);
        if (setjmp(way_out) == 0) {
            escapes += rounds % 2;
            escape(rounds % 2);
        }
        hand_over(2 * NS_PER_MS);
    }
}

SHOWN static void caller(struct runner *self) {
    (void)self;
    pid_t child = fork();

    if (child == 0)
        descend(2, EXECUTE);
    if (child < 0)
        die("cannot fork", errno);
    waitpid(child, NULL, 0);
    call_all();
}

SHOWN static void *leave(void *unused) {
    descend(3, END_THREAD);
    return unused;
}

SHOWN static void leaver(struct runner *self) {
    pthread_t thread;
    int error = pthread_create(&thread, NULL, leave, NULL);

    (void)self;
    if (error)
        die("cannot start a thread", error);
    pthread_join(thread, NULL);
}

SHOWN static void busy(struct runner *self) {
    int number = 0;

    (void)self;
    while (!run_is_over())
        number = often(number);
}

static void print_calls(const char *function, int count, int ended) {
    printf("{\"event\":\"calls\",\"function\":\"%s\",\"count\":%d,\"ended\":%d}\n", function, count, ended);
}

static void print_truth(void) {
    if (*part)
        return;
    // One by the thread that ends, one by the child, one in what the child executes.
    print_calls("descend", rounds + 3, rounds + 1);
    print_calls("escape", rounds, rounds - escapes);
    print_calls("hand_over", rounds, rounds);
}

int main(int argc, char **argv) {
    const struct own_option own[] = {{.letter = 'k', .argument = "PART", .text = &part}};
    struct runner runners[] = {{.name = "caller", .body = caller}, {.name = "leaver", .body = leaver}};
    struct runner busy_runner[] = {{.name = "busy", .body = busy}};

    take_options(argc, argv, &run, own, 1);
    if (!strcmp(part, "again")) {
        descend(1, RETURN);
        return 0;
    }
    if (!strcmp(part, "busy"))
        run_scenario(busy_runner, 1, &run, print_truth);
    else
        run_scenario(runners, 2, &run, print_truth);
    return 0;
}
