/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Busy periods: from the wakeup that ends a wait at an idle place to the start of the next such wait.
 *
 * A thread that leaves the CPU for a voluntary wait looks up whether the place is idle. Its states since the
 * wakeup are the ledger's growth. Sums have every busy period. A few are emitted one by one as well. With
 * --span loop, a poll at an idle place that returns at once ends a period, too: loop.bpf.c. */
#pragma once

#include "include/histogram.h"
#include "rings.h"
#include "settings.h"
#include "span_states.h"
#include "syscall.h"
#include "wait_place.h"
#include "wait_word.h"

/* Thread, second and histogram bucket → sums of busy periods. Rows of past seconds are deleted by user space.
 * Full: LOSS_SPANS_FULL. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, MAX_SPAN_CELLS);
    __type(key, struct span_key);
    __type(value, struct span_value);
} spans SEC(".maps");

/* Makes the record's type part of the object, from which its Rust view is generated. */
const struct span_record empty_span = {.type = RECORD_SPAN};
const struct late_record empty_late = {.type = RECORD_LATE};

/* A row that is new. */
const struct span_value no_periods = {};

/* The thread has waited for work in the open period, which still goes on: where the waits were is known only
 * from now on, or is no longer known. */
ALWAYS_INLINE void abandon_period(struct thread_state *t) {
    if (!t->busy_from)
        return;
    lose(LOSS_PERIODS_ABANDONED);
    t->busy_from = 0;
}

/* Whether the thread's place `number` is idle. Verdicts are looked up once a second and place: a thread waits
 * at few places. */
GLOBAL int is_idle_place(struct thread_state *t, u64 number) {
    struct known_place *known;
    struct wait_place *place;
    bool was_idle, waited;

    if (!t)
        return 0;
    known = &t->known_places[(number >> 32) & (KNOWN_PLACES - 1)];
    if (likely(known->number == number && known->second == t->second))
        return known->is_idle;
    waited = known->number == number && known->second >= (t->busy_from + epoch_offset) / 1000000000ULL;
    was_idle = number == t->busy_place || (known->number == number && known->is_idle);
    place = bpf_map_lookup_elem(&places, &number);
    known->number = number;
    known->second = t->second;
    known->is_idle = place && (place->verdict == PLACE_IDLE || place->verdict == PLACE_IDLE_ASKED);
    if (unlikely(known->is_idle ? waited && !was_idle : was_idle))
        abandon_period(t);
    return known->is_idle;
}

ALWAYS_INLINE void add_states(struct span_states *sum, struct span_states *more) {
    u32 i;

    sum->on_cpu += more->on_cpu;
    sum->irq += more->irq;
    sum->runnable += more->runnable;
    sum->preempted += more->preempted;
    sum->fault_on_cpu += more->fault_on_cpu;
    for (i = 0; i < SLEEPS; i++)
        sum->blocked[i] += more->blocked[i];
}

ALWAYS_INLINE void start_busy_second(struct thread_state *t) {
    if (t->busy_second == t->second)
        return;
    t->busy_second = t->second;
    t->busy_longest = 0;
    t->busy_count = 0;
    t->late_spans = 0;
    t->rare_spans = 0;
    t->late_waits = 0;
    t->over_spans = 0;
}

/* A step up outweighs nineteen steps down. */
ALWAYS_INLINE void follow_late(struct thread_state *t, u64 ns) {
    u64 step = t->late_ns / 64;

    if (!t->late_ns)
        t->late_ns = ns;
    else if (ns > t->late_ns)
        t->late_ns += 19 * step + 1;
    else
        t->late_ns -= step;
}

/* A step up outweighs 999 steps down. */
ALWAYS_INLINE void follow_rare(struct thread_state *t, u64 ns) {
    u64 step = t->rare_ns / 4096 + 1;

    if (ns > t->rare_ns)
        t->rare_ns = t->rare_ns ? t->rare_ns + 999 * step : ns;
    else if (t->rare_ns > step)
        t->rare_ns -= step;
}

/* The longest of each second is among them, and some that last longer than most. One that lasts very long
 * leaves none that are longer in its second: those of the tail are found by what is rare. */
GLOBAL bool is_example(struct thread_state *t, u64 ns) {
    if (!t)
        return false;
    start_busy_second(t);
    t->busy_count++;
    if (ns > busy_budget_ns)
        return ++t->over_spans <= MAX_OVER_SPANS;
    if (ns > t->busy_longest) {
        t->busy_longest = ns;
        return true;
    }
    if (ns > t->rare_ns && t->rare_spans < MAX_RARE_SPANS) {
        t->rare_spans++;
        return true;
    }
    if (ns > t->late_ns && t->late_spans < MAX_LATE_SPANS) {
        t->late_spans++;
        return true;
    }
    return t->busy_count <= FIRST_SPANS || t->busy_count % ONE_SPAN_IN == 0;
}

ALWAYS_INLINE bool emit_span(struct thread_state *t) {
    struct span_record *record = reserve_example(sizeof(*record));

    if (!record)
        return false;
    record->type = RECORD_SPAN;
    record->key = t->key;
    record->start = t->busy_from;
    record->end = t->since;
    record->states = t->busy_states;
    bpf_ringbuf_submit(record, ring_flags());
    return true;
}

/* Emits the period that ends now, of `ns`, if it is one of those that are emitted one by one. */
GLOBAL int emit_example(struct thread_state *t, u64 ns) {
    if (!t)
        return 0;
    if (!(is_example(t, ns) && emit_span(t)) && ns > busy_budget_ns)
        lose(LOSS_OVER_BUDGET);
    return 0;
}

/* What the ledger has gained since the period's start takes the place of what it had then. */
GLOBAL int take_busy_states(struct thread_state *t) {
    if (t)
        take_states(&t->busy_states, &t->ledger, &t->busy_states);
    return 0;
}

GLOBAL u32 bucket_of_period(u64 ns) { return bucket_from_ns(ns); }

/* The row of the period that ends now, of `ns`. */
ALWAYS_INLINE struct span_value *row_of_period(struct thread_state *t, u64 ns) {
    struct span_value *row;
    struct span_key key;

    key.key = t->key;
    key.second = t->second;
    key.bucket = bucket_of_period(ns);
    row = bpf_map_lookup_elem(&spans, &key);
    if (likely(row) || bpf_map_update_elem(&spans, &key, &no_periods, BPF_ANY))
        return row;
    return bpf_map_lookup_elem(&spans, &key);
}

/* Counts the period that ends at `t->since`. */
GLOBAL int count_span(struct thread_state *t) {
    struct span_value *row;
    u64 ns;

    if (!t)
        return 0;
    ns = t->since - t->busy_from;
    if (unlikely(t->busy_after_nothing) && ns < SPIN_TURN_NS)
        return 0;
    take_busy_states(t);
    row = row_of_period(t, ns);
    if (likely(row)) {
        row->count++;
        if (ns > row->max)
            row->max = ns;
        add_states(&row->states, &t->busy_states);
    } else {
        lose(LOSS_SPANS_FULL);
    }
    emit_example(t, ns);
    follow_late(t, ns);
    follow_rare(t, ns);
    return 0;
}

/* `task` is current, and goes to sleep for a voluntary reason; the ledger is complete. */
ALWAYS_INLINE void end_busy(struct task_struct *task, struct thread_state *t) {
    t->place = place_of(task, t, t->syscall);
    t->idle = !is_kernel_only(task) && is_idle_place(t, t->place);
    if (t->idle && t->busy_from && t->busy_from < t->since)
        count_span(t);
}

/* The wait began before the recording, or its start was not seen. `task` is current. */
NOINLINE int find_place(struct task_struct *task, struct thread_state *t) {
    if (!task || !t)
        return 0;
    follow_words(task, t);
    note_wait_word(task, t);
    t->place = place_of(task, t, t->syscall);
    return 0;
}

/* A period begins `awake` ns ago, at a wakeup, after a wait at `place`. The ledger is complete up to `now`.
 */
GLOBAL int start_period(struct thread_state *t, u64 place, u64 now, u64 awake) {
    if (!t)
        return 0;
    t->idle = false;
    t->busy_from = now - awake;
    t->busy_place = place;
    t->busy_after_nothing = false;
    keep_states(&t->busy_states, &t->ledger);
    t->busy_states.runnable -= awake;
    return 0;
}

/* A voluntary wait ends, `awake` ns after its wakeup by the tracepoints: the scheduler's sum of the waiting
 * time can begin before the wakeup, with an old reading of its clock (seen: 5 ms). The place may have become
 * idle during the wait. */
ALWAYS_INLINE void start_busy(struct task_struct *task, struct thread_state *t, u64 now, u64 awake) {
    if (unlikely(!t->place) && !stacks_at_switch_out)
        find_place(task, t);
    if (t->idle || (!is_kernel_only(task) && is_idle_place(t, t->place))) {
        start_period(t, t->place, now, awake);
        t->busy_in_call = true;
    }
}
