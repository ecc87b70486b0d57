// fsync: a writer that appends records, and now and then waits for the disk.
//
// The `writer` thread appends a 512-byte record every 500 µs: append_record. After every 100th record it
// takes commit_records → sync_journal → fsync. sync_journal stands between the named function and glibc
// because a walk by frame pointers loses the direct caller of a libc function without a frame.
//
// Truth, besides truth.h's lines:
//   {"event":"fsync", "start_ns", "end_ns", "cpu_ns", "queued_ns"}   one fsync; cpu_ns of it the writer was
//   running, queued_ns of it waiting for a CPU
// Options: -f FILE, the file to write, removed at the end (default a new file in $TMPDIR, else in the current
// directory; on tmpfs an fsync waits for nothing), -n N, records between two fsyncs.

#include "truth.h"

#include <fcntl.h>

#define RECORD_BYTES 512
#define RECORD_NS (500 * NS_PER_US)
#define MAX_SYNCS 65536
// The file is overwritten from its beginning beyond this size, so that a long run does not fill the disk.
#define MAX_FILE_BYTES (16 << 20)

struct sync {
    uint64_t start_ns, end_ns, cpu_ns, queued_ns;
};

static struct sync syncs[MAX_SYNCS];
static int sync_count, journal, schedstat = -1;
static uint64_t records_a_commit = 100;
static const char *given;
static char path[4096];
static struct run run = {.scenario = "fsync", .seconds = 10, .seed = 42};

SHOWN static void append_record(uint64_t record) {
    char bytes[RECORD_BYTES];
    memset(bytes, (int)('a' + record % 26), sizeof bytes);
    off_t at = (off_t)(record * RECORD_BYTES % MAX_FILE_BYTES);
    if (pwrite(journal, bytes, sizeof bytes, at) != RECORD_BYTES)
        die("cannot append a record", errno);
}

SHOWN static void sync_journal(void) {
    if (fsync(journal) != 0)
        die("cannot fsync", errno);
}

// How long the calling thread has waited for a CPU so far; 0 where the kernel does not say.
static uint64_t queued_ns(void) {
    unsigned long long ran, queued;
    char line[96] = "";
    if (schedstat < 0)
        schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (pread(schedstat, line, sizeof line - 1, 0) <= 0 || sscanf(line, "%llu %llu", &ran, &queued) != 2)
        return 0;
    return queued;
}

SHOWN static void commit_records(void) {
    uint64_t queued = queued_ns();
    uint64_t cpu = read_clock(CLOCK_THREAD_CPUTIME_ID);
    struct sync sync = {.start_ns = now_ns()};
    sync_journal();
    sync.end_ns = now_ns();
    sync.cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID) - cpu;
    sync.queued_ns = queued_ns() - queued;
    if (sync_count < MAX_SYNCS)
        syncs[sync_count++] = sync;
}

SHOWN static void write_records(struct actor *self) {
    (void)self;
    for (uint64_t record = 1; !run_is_over(); record++) {
        append_record(record);
        if (record % records_a_commit == 0)
            commit_records();
        sleep_for(RECORD_NS);
    }
}

static void open_journal(void) {
    if (given != NULL) {
        snprintf(path, sizeof path, "%s", given);
        journal = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    } else {
        const char *directory = getenv("TMPDIR");
        snprintf(path, sizeof path, "%s/fsync-scenario.XXXXXX", directory ? directory : ".");
        journal = mkstemp(path);
    }
    if (journal < 0)
        die(path, errno);
}

static void print_truth(void) {
    for (int i = 0; i < sync_count; i++)
        printf("{\"event\":\"fsync\",\"start_ns\":%llu,\"end_ns\":%llu,\"cpu_ns\":%llu,"
               "\"queued_ns\":%llu}\n",
               (unsigned long long)syncs[i].start_ns, (unsigned long long)syncs[i].end_ns,
               (unsigned long long)syncs[i].cpu_ns, (unsigned long long)syncs[i].queued_ns);
}

int main(int argc, char **argv) {
    const struct own_option own[] = {{.letter = 'f', .argument = "FILE", .text = &given},
                                     {.letter = 'n', .argument = "RECORDS", .count = &records_a_commit}};
    take_options(argc, argv, &run, own, 2);
    open_journal();
    // Touched now, so that keeping the log costs no page faults.
    memset(syncs, 1, sizeof syncs);
    struct actor actors[] = {{.name = "writer", .act = write_records}};
    run_scenario(actors, 1, &run, print_truth);
    unlink(path);
}
