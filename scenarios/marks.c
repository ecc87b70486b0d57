// SPDX-License-Identifier: Apache-2.0
// marks: threads and processes mark spans with wallprof.h, in all ways in which spans could be lost.
//
// Each waits until a recorder has switched marks on. After that:
//   burst    marks 20,000 spans of 2 µs at once, more than the ring of its slot holds
//   kinds    marks three spans of each of a hundred kinds: more than a thread can have
//   leaver   starts a thread that ends in the middle of a span, and another one after it
//   forker   has a child that marks spans and exits, and one that executes this program within a span, with
//   -k again; with
//            -k garbage its child fills its own slots with garbage instead, and unmaps them
//   steady   marks a span every 2 ms until the run is over, and logs which were marked. Its name is `marked`
//            once the first was
//
// -k PART: these threads alone; else all but steady.
//
// Truth, besides truth.h's lines:
//   {"event":"spans", "kind", "count"}        spans of that kind in all processes
//   {"event":"burst", "ns"}                   how long the burst took
//   {"event":"steady", "from_ns", "marked"}   each span of `steady`

#include "truth.h"

#include <sys/mman.h>
#include <sys/wait.h>

#include "../include/wallprof.h"

#define BURST 20000
#define KINDS 100
#define MAX_STEADY 40000

static struct run run = {.scenario = "marks", .seconds = 3, .seed = 42};
static const char *part = "";
static uint64_t burst_ns;
static _Atomic int started;
static struct steady {
    uint64_t from_ns;
    bool marked;
} steady_spans[MAX_STEADY];
static int steadies;

static bool is_on(void) { return wallprof_own_slot && wallprof_own_slot->depth > 0; }

// Marks one span of the kind `start`.
static void wait_for_marks(void) {
    bool on = false;

    while (!on && now_ns() < atomic_load(&run_gives_up_at)) {
        wallprof_begin("start");
        on = is_on();
        wallprof_end();
        if (!on)
            sleep_for(2 * NS_PER_MS);
    }
    if (!on)
        die("no recorder has switched marks on", ETIMEDOUT);
    started++;
}

static void mark(const char *kind, int count) {
    for (int i = 0; i < count; i++) {
        wallprof_begin(kind);
        spin_until(now_ns() + 2 * NS_PER_US);
        wallprof_end();
    }
}

SHOWN static void burst(struct runner *self) {
    (void)self;
    wait_for_marks();
    uint64_t start_ns = now_ns();
    mark("burst", BURST);
    burst_ns = now_ns() - start_ns;
}

SHOWN static void kinds(struct runner *self) {
    char names[KINDS][16];

    (void)self;
    wait_for_marks();
    for (int i = 0; i < KINDS; i++)
        snprintf(names[i], sizeof names[i], "kind %d", i);
    for (int i = 0; i < 3 * KINDS; i++)
        mark(names[i % KINDS], 1);
}

static void *leave_in_a_span(void *unused) {
    wait_for_marks();
    mark("left", 5);
    wallprof_begin("open");
    mark("left", 5);
    return unused;
}

static void *follow(void *unused) {
    wait_for_marks();
    mark("after", 10);
    return unused;
}

SHOWN static void leaver(struct runner *self) {
    void *(*lives[])(void *) = {leave_in_a_span, follow};

    (void)self;
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        int error = pthread_create(&thread, NULL, lives[i], NULL);

        if (error)
            die("cannot start a thread", error);
        pthread_join(thread, NULL);
    }
}

static void fill_with_garbage(void) {
    struct wallprof_chunk *chunk = wallprof_state_page->chunk;

    wait_for_marks();
    for (int i = 0; i < WALLPROF_SLOTS; i++)
        chunk->tids[i] = (uint32_t)gettid();
    memset(chunk->slots, 0xff, sizeof chunk->slots);
    chunk->refused = UINT64_MAX;
    sleep_for(300 * NS_PER_MS);
    munmap(chunk, sizeof *chunk);
    sleep_for(300 * NS_PER_MS);
}

static void live_as_child(int number) {
    if (!strcmp(part, "garbage")) {
        fill_with_garbage();
        _exit(0);
    }
    wait_for_marks();
    if (number == 0) {
        mark("child", 7);
        _exit(0);
    }
    char self[4096] = "";

    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0 || !freopen("/dev/null", "w", stdout))
        _exit(1);
    wallprof_begin("executed");
    mark("child", 3);
    execl(self, "marks", "-k", "again", (char *)NULL);
    _exit(1);
}

SHOWN static void forker(struct runner *self) {
    int children = strcmp(part, "garbage") ? 2 : 1;

    (void)self;
    wait_for_marks();
    for (int i = 0; i < children; i++) {
        pid_t child = fork();

        if (child == 0)
            live_as_child(i);
        if (child < 0)
            die("cannot fork", errno);
        waitpid(child, NULL, 0);
        started += 1 + i; // in the child's copy, and in what it executes
    }
    mark("parent", 4);
}

SHOWN static void again(struct runner *self) {
    (void)self;
    wait_for_marks();
    mark("again", 5);
}

SHOWN static void steady(struct runner *self) {
    bool named = false;

    (void)self;
    while (!run_is_over() && steadies < MAX_STEADY) {
        struct steady *span = &steady_spans[steadies++];

        span->from_ns = now_ns();
        wallprof_begin("steady");
        span->marked = is_on();
        wallprof_end();
        if (span->marked && !named)
            named = !prctl(PR_SET_NAME, "marked");
        sleep_for(2 * NS_PER_MS);
    }
}

static void print_kind(const char *kind, int count) {
    printf("{\"event\":\"spans\",\"kind\":\"%s\",\"count\":%d}\n", kind, count);
}

static void print_truth(void) {
    if (!*part) {
        print_kind("burst", BURST);
        print_kind("left", 10);
        print_kind("after", 10);
        print_kind("child", 10);
        print_kind("again", 5);
        // One of the names is `start`.
        for (int i = 0; i < WALLPROF_KINDS - 2; i++) {
            char name[16];

            snprintf(name, sizeof name, "kind %d", i);
            print_kind(name, 3);
        }
        print_kind("(other kinds)", 3 * (KINDS - (WALLPROF_KINDS - 2)));
    }
    if (started) {
        print_kind("parent", 4);
        print_kind("start", started);
    }
    printf("{\"event\":\"burst\",\"ns\":%llu}\n", (unsigned long long)burst_ns);
    for (int i = 0; i < steadies; i++)
        printf("{\"event\":\"steady\",\"from_ns\":%llu,\"marked\":%s}\n",
               (unsigned long long)steady_spans[i].from_ns, steady_spans[i].marked ? "true" : "false");
}

int main(int argc, char **argv) {
    const struct own_option own[] = {{.letter = 'k', .argument = "PART", .text = &part}};
    struct runner all[] = {{.name = "burst", .body = burst},
                           {.name = "kinds", .body = kinds},
                           {.name = "leaver", .body = leaver},
                           {.name = "forker", .body = forker}};
    struct runner hostile[] = {{.name = "forker", .body = forker}};
    struct runner alone[] = {{.name = "steady", .body = steady}};
    struct runner executed[] = {{.name = "again", .body = again}};

    take_options(argc, argv, &run, own, 1);
    if (!strcmp(part, "steady"))
        run_scenario(alone, 1, &run, print_truth);
    else if (!strcmp(part, "again"))
        run_scenario(executed, 1, &run, print_truth);
    else if (!strcmp(part, "garbage"))
        run_scenario(hostile, 1, &run, print_truth);
    else
        run_scenario(all, 4, &run, print_truth);
}
