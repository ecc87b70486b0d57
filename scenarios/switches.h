/* SPDX-License-Identifier: Apache-2.0 */
// When the calling thread was off the CPU, by the kernel's own records of its context switches
// (PERF_RECORD_SWITCH, perf_event_open(2)). A thread's CPU clock does not say: where a hypervisor takes the
// CPU it stands still, at once or at the next tick, though the thread did not wait.
#pragma once

#include "truth.h"

#include <linux/perf_event.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define SWITCH_PAGES 64
#define SWITCH_BYTES (SWITCH_PAGES * 4096ull)

struct switches {
    struct perf_event_mmap_page *page; // NULL: the kernel does not permit it
    uint64_t left_ns;                  // 0: the thread is on a CPU
    bool left_voluntarily;
};

// With `sample_id_all` and a sample_type of TIME alone, each record ends with its time.
struct switch_record {
    struct perf_event_header header;
    uint64_t time_ns;
};

// The time off the CPU after a given time.
struct off_cpu {
    uint64_t total_ns;
    uint64_t blocked_ns;        // what began with a wait; the rest, when the thread lost its CPU
    uint64_t first_ns, last_ns; // when the first wait began, and the last one ended
};

// Starts the records of the calling thread.
static inline void record_switches(struct switches *switches) {
    struct perf_event_attr wanted = {.type = PERF_TYPE_SOFTWARE,
                                     .size = sizeof wanted,
                                     .config = PERF_COUNT_SW_DUMMY,
                                     .sample_type = PERF_SAMPLE_TIME,
                                     .sample_id_all = 1,
                                     .exclude_kernel = 1,
                                     .context_switch = 1,
                                     .use_clockid = 1,
                                     .clockid = CLOCK_MONOTONIC};
    int event = (int)syscall(SYS_perf_event_open, &wanted, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
    void *page = event < 0 ? MAP_FAILED
                           : mmap(NULL, SWITCH_BYTES + 4096, PROT_READ | PROT_WRITE, MAP_SHARED, event, 0);
    *switches = (struct switches){.page = page == MAP_FAILED ? NULL : page};
}

static inline void note_switch(struct switches *switches, const struct switch_record *record,
                               uint64_t since_ns, struct off_cpu *off) {
    if (record->header.misc & PERF_RECORD_MISC_SWITCH_OUT) {
        switches->left_ns = record->time_ns;
        switches->left_voluntarily = !(record->header.misc & PERF_RECORD_MISC_SWITCH_OUT_PREEMPT);
        return;
    }
    if (switches->left_ns >= since_ns) {
        uint64_t off_ns = record->time_ns - switches->left_ns;
        off->total_ns += off_ns;
        if (switches->left_voluntarily) {
            off->blocked_ns += off_ns;
            off->first_ns = off->first_ns ? off->first_ns : switches->left_ns;
            off->last_ns = record->time_ns;
        }
    }
    switches->left_ns = 0;
}

// Takes all records so far and returns the time off the CPU that began after `since_ns`. To be called so
// often that no more than 10,000 switches are taken at once.
static inline struct off_cpu take_switches(struct switches *switches, uint64_t since_ns) {
    struct off_cpu off = {0};
    if (switches->page == NULL)
        return off;
    struct perf_event_mmap_page *page = switches->page;
    const char *records = (const char *)page + 4096;
    uint64_t end = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE);
    while (page->data_tail < end) {
        // The ring and all records are multiples of 8 bytes, so a header is in one piece.
        struct switch_record record;
        uint64_t at = page->data_tail;
        memcpy(&record.header, records + at % SWITCH_BYTES, sizeof record.header);
        if (record.header.type == PERF_RECORD_LOST)
            die("switches were lost", EOVERFLOW);
        uint64_t time_at = at + record.header.size - sizeof record.time_ns;
        memcpy(&record.time_ns, records + time_at % SWITCH_BYTES, sizeof record.time_ns);
        if (record.header.type == PERF_RECORD_SWITCH)
            note_switch(switches, &record, since_ns, &off);
        __atomic_store_n(&page->data_tail, at + record.header.size, __ATOMIC_RELEASE);
    }
    return off;
}
