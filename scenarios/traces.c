// SPDX-License-Identifier: Apache-2.0
// traces: a thread that sleeps for one trace after another, and publishes which, as OpenTelemetry's OTEP 4947
// says. Between two traces it sleeps for none, in one of several ways.
//
//   engine   sleep_for_a_trace | sleep_for_none, again and again
//   other    sleep_unpublished: works for no trace
//
// The code that publishes is in the program (traces), or in a library beside it that is loaded by dlopen when
// the threads exist (traces-late -l LIBRARY).
//
// Truth, besides truth.h's lines:
//   {"event":"traced", "trace_id", "span_id", "start_ns", "end_ns"}   one sleep of the engine for a trace
//   {"event":"untraced", "count"}   its other sleeps

#include "truth.h"

#include "traces_context.h"

#include <dlfcn.h>

#define SLEEP_NS (2 * NS_PER_MS)
#define MOST_TRACES 4096

// In which ways the engine works for no trace.
enum untraced { DETACHED, IN_CHANGE, WITHOUT_IDS, UNMAPPED, UNTRACED };

static struct run run = {.scenario = "traces", .seconds = 1, .seed = 42};
static const char *library = "libcontext-near.so";
static void (*publish)(struct trace_record *);
static struct {
    struct trace_record record;
    uint64_t start_ns, end_ns;
} traces[MOST_TRACES];
static unsigned traced, others;

static void fill(struct trace_record *record, uint64_t *chance) {
    for (size_t i = 0; i < sizeof record->trace_id; i++)
        record->trace_id[i] = (uint8_t)next_random(chance);
    for (size_t i = 0; i < sizeof record->span_id; i++)
        record->span_id[i] = (uint8_t)next_random(chance);
    // The bits of an id that are not set have their place, too.
    record->trace_id[0] = 0;
    record->span_id[7] |= 1;
    record->valid = 1;
}

SHOWN static void sleep_for_a_trace(uint64_t *chance) {
    fill(&traces[traced].record, chance);
    publish(&traces[traced].record);
    traces[traced].start_ns = now_ns();
    sleep_for(SLEEP_NS);
    traces[traced].end_ns = now_ns();
    publish(NULL);
    traced++;
}

SHOWN static void sleep_for_none(enum untraced how) {
    static struct trace_record record;
    uint64_t chance = 7;
    fill(&record, &chance);
    record.valid = how != IN_CHANGE;
    if (how == WITHOUT_IDS)
        memset(&record, 0, sizeof record.trace_id + sizeof record.span_id);
    if (how == UNMAPPED)
        publish((struct trace_record *)0x1000);
    else if (how != DETACHED)
        publish(&record);
    sleep_for(SLEEP_NS);
    publish(NULL);
    others++;
}

#ifdef PUBLISHES
__thread struct trace_record *otel_thread_ctx_v1;

void attach(struct trace_record *record) { otel_thread_ctx_v1 = record; }

static void find_publisher(void) { publish = attach; }
#else
static void find_publisher(void) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - strlen(library) - 1);
    if (length < 0)
        die("/proc/self/exe", errno);
    path[length] = '\0';
    strcpy(strrchr(path, '/') + 1, library);
    void *loaded = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (loaded == NULL) {
        fprintf(stderr, "scenario: %s\n", dlerror());
        exit(1);
    }
    publish = (void (*)(struct trace_record *))dlsym(loaded, "attach");
}
#endif

static void run_engine(struct runner *self) {
    uint64_t chance = run.seed;
    (void)self;
    find_publisher();
    for (unsigned turn = 0; !run_is_over() && traced < MOST_TRACES; turn++) {
        sleep_for_a_trace(&chance);
        sleep_for_none(turn % UNTRACED);
    }
}

SHOWN static void sleep_unpublished(void) { sleep_for(SLEEP_NS); }

static void run_other(struct runner *self) {
    (void)self;
    while (!run_is_over())
        sleep_unpublished();
}

static void print_hex(const char *name, const uint8_t *bytes, size_t count) {
    printf(",\"%s\":\"", name);
    for (size_t i = 0; i < count; i++)
        printf("%02x", bytes[i]);
    printf("\"");
}

static void print_truth(void) {
    for (unsigned i = 0; i < traced; i++) {
        printf("{\"event\":\"traced\"");
        print_hex("trace_id", traces[i].record.trace_id, sizeof traces[i].record.trace_id);
        print_hex("span_id", traces[i].record.span_id, sizeof traces[i].record.span_id);
        printf(",\"start_ns\":%llu,\"end_ns\":%llu}\n", (unsigned long long)traces[i].start_ns,
               (unsigned long long)traces[i].end_ns);
    }
    printf("{\"event\":\"untraced\",\"count\":%u}\n", others);
}

int main(int argc, char **argv) {
    struct runner runners[] = {{.name = "engine", .body = run_engine}, {.name = "other", .body = run_other}};
    const struct own_option own = {.letter = 'l', .argument = "LIBRARY", .text = &library};
    take_options(argc, argv, &run, &own, 1);
    run_scenario(runners, 2, &run, print_truth);
}
