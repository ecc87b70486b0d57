// SPDX-License-Identifier: Apache-2.0
// fsync: a writer that appends records, and now and then waits for the disk.
//
// The `writer` thread appends a 512-byte record every 500 µs: append_record. After every 100th record it
// takes commit_records → sync_journal → fsync. sync_journal stands between the named function and glibc
// because a walk by frame pointers loses the direct caller of a libc function without a frame.
//
// Truth, besides truth.h's lines:
//   {"event":"fsync", "start_ns", "end_ns", "off_ns", "blocked_ns", "queued_ns"}   one fsync: off_ns of it
//   the writer was off the CPU by the kernel's records, of which blocked_ns began with a wait; queued_ns of
//   it the writer was waiting for a CPU
//   {"event":"refused", "what"}   the kernel gives no such records: off_ns and blocked_ns are 0
// Options: -f FILE, the file to write, removed at the end (default a new file in $TMPDIR, else in the current
// directory; on tmpfs an fsync waits for nothing), -n N, records between two fsyncs.

#include "switches.h"
#include "truth.h"

#include <fcntl.h>

#define RECORD_BYTES 512
#define RECORD_NS (500 * NS_PER_US)
#define MAX_SYNCS 65536
// The file is overwritten from its beginning beyond this size, so that a long run does not fill the disk.
#define MAX_FILE_BYTES (16 << 20)

struct sync {
    uint64_t start_ns, end_ns, queued_ns;
    struct off_cpu off;
};

static struct switches switches;
static struct sync syncs[MAX_SYNCS];
static int sync_count, journal;
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

SHOWN static void commit_records(void) {
    uint64_t queued = queued_ns();
    struct sync sync = {.start_ns = now_ns()};
    sync_journal();
    sync.end_ns = now_ns();
    sync.queued_ns = queued_ns() - queued;
    sync.off = take_switches(&switches, sync.start_ns);
    if (sync_count < MAX_SYNCS)
        syncs[sync_count++] = sync;
}

SHOWN static void write_records(struct runner *self) {
    (void)self;
    record_switches(&switches);
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
    if (switches.page == NULL)
        printf("{\"event\":\"refused\",\"what\":\"records of switches\"}\n");
    for (int i = 0; i < sync_count; i++)
        printf("{\"event\":\"fsync\",\"start_ns\":%llu,\"end_ns\":%llu,\"off_ns\":%llu,"
               "\"blocked_ns\":%llu,\"queued_ns\":%llu}\n",
               (unsigned long long)syncs[i].start_ns, (unsigned long long)syncs[i].end_ns,
               (unsigned long long)syncs[i].off.total_ns, (unsigned long long)syncs[i].off.blocked_ns,
               (unsigned long long)syncs[i].queued_ns);
}

int main(int argc, char **argv) {
    const struct own_option own[] = {{.letter = 'f', .argument = "FILE", .text = &given},
                                     {.letter = 'n', .argument = "RECORDS", .count = &records_a_commit}};
    take_options(argc, argv, &run, own, 2);
    open_journal();
    // Touched now, so that keeping the log costs no page faults.
    memset(syncs, 1, sizeof syncs);
    struct runner runners[] = {{.name = "writer", .body = write_records}};
    run_scenario(runners, 1, &run, print_truth);
    unlink(path);
}
