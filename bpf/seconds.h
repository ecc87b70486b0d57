/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The one-second buckets of the ledger. */
#pragma once

#include "fault_time.h"
#include "ledger.h"
#include "rings.h"

/* Makes the record's type part of the object, from which its Rust view is generated. */
const struct second_record empty_second = {.type = RECORD_SECOND};

/* Emits the second that `at_boundary` closes; the thread had been in its activity since `since`. */
GLOBAL int emit_second(struct thread_state *t, u64 since) {
    struct second_record *record;

    if (!t)
        return 0;
    record = reserve(sizeof(*record));
    if (!record)
        return 0;
    record->type = RECORD_SECOND;
    record->key = t->key;
    record->boundary = t->boundary;
    record->since = since;
    record->run_ns = t->run_ns;
    record->wake_ns = t->wake_ns;
    record->activity = t->activity;
    record->reason = t->reason;
    __builtin_memset(record->unused, 0, sizeof(record->unused));
    record->ledger = t->at_boundary;
    bpf_ringbuf_submit(record, ring_flags());
    return 0;
}

/* The ledger as of the boundary. */
GLOBAL int end_second(struct thread_state *t, u64 since) {
    if (!t)
        return 0;
    t->at_boundary = t->ledger;
    if (unlikely(emit_seconds))
        emit_second(t, since);
    return 0;
}

/* Closes the one-second bucket: charges up to the end of the last whole second before `now` and copies the
 * ledger as of then. This happens once a second and thread. */
GLOBAL int roll_slow(struct thread_state *t, u64 now) {
    u64 offset, epoch, end, since;

    if (!t)
        return 0;
    since = t->since;
    offset = epoch_offset;
    epoch = now + offset;
    end = epoch - epoch % 1000000000ULL;
    if (end - offset > since && end - offset <= now && since >= armed_at) {
        if (t->activity == ACTIVITY_RUNNING) {
            t->exec_seen += end - offset - since;
            if (t->faulting && fault_goes_on(t))
                charge_fault_run(t, end - offset);
        }
        charge_until(t, end - offset);
        t->fault.unsettled = 0;
        t->borrowable = 0;
        t->boundary = end - offset;
        end_second(t, since);
    }
    t->second = epoch / 1000000000ULL;
    t->second_end = end - offset + 1000000000ULL;
    return 0;
}

/* Call this before anything is counted for the thread at `now`. True if the bucket changed. */
ALWAYS_INLINE bool roll(struct thread_state *t, u64 now) {
    if (likely(now < t->second_end))
        return false;
    roll_slow(t, now);
    return true;
}
