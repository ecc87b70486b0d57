/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Records that are emitted one by one, through a ring buffer a CPU. */
#pragma once

#include "losses.h"

/* CPU → ring of records. User space creates one a CPU. A record that does
 * not fit is LOSS_RING_FULL. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, MAX_CPUS);
    __type(key, u32);
    __array(
        values, struct {
            __uint(type, BPF_MAP_TYPE_RINGBUF);
            __uint(max_entries, 4096);
        });
} rings SEC(".maps");

/* This CPU's ring. */
ALWAYS_INLINE void *own_ring(void) {
    u32 cpu = bpf_get_smp_processor_id();

    return bpf_map_lookup_elem(&rings, &cpu);
}

/* The last quarter of a ring is kept for the ends of threads: the life of a thread that comes and goes
 * between two snapshots is nowhere else. */
ALWAYS_INLINE bool has_room(void *ring) {
    return bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) < bpf_ringbuf_query(ring, BPF_RB_RING_SIZE) / 4 * 3;
}

/* For an example of what is counted elsewhere as well: without it nothing is lost. */
ALWAYS_INLINE void *reserve_example(u64 size) {
    void *ring = own_ring();

    return ring && has_room(ring) ? bpf_ringbuf_reserve(ring, size, 0) : NULL;
}

ALWAYS_INLINE void *reserve(u64 size) {
    void *slot = reserve_example(size);

    if (!slot)
        lose(LOSS_RING_FULL);
    return slot;
}

/* For the end of a thread. */
ALWAYS_INLINE void *reserve_end(u64 size) {
    void *ring = own_ring();
    void *slot = ring ? bpf_ringbuf_reserve(ring, size, 0) : NULL;

    if (!slot)
        lose(LOSS_ENDS_FULL);
    return slot;
}

/* Wakes the reader only when a ring fills up. It reads several times a second without being woken. */
ALWAYS_INLINE u64 ring_flags(void) {
    void *ring = own_ring();

    if (ring && bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) > bpf_ringbuf_query(ring, BPF_RB_RING_SIZE) / 4)
        return BPF_RB_FORCE_WAKEUP;
    return BPF_RB_NO_WAKEUP;
}
