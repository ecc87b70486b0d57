/* Records that are emitted one by one, through a ring buffer a CPU. */
#pragma once

#include "losses.h"

/* CPU → ring of stall, thread, second and delay records. User space creates one a CPU. A record that does
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

ALWAYS_INLINE void *reserve(u64 size) {
    u32 cpu = bpf_get_smp_processor_id();
    void *ring = bpf_map_lookup_elem(&rings, &cpu);
    void *slot = ring ? bpf_ringbuf_reserve(ring, size, 0) : NULL;

    if (!slot)
        lose(LOSS_RING_FULL);
    return slot;
}

/* Wakes the reader only when a ring fills up. It reads several times a second without being woken. */
ALWAYS_INLINE u64 ring_flags(void) {
    u32 cpu = bpf_get_smp_processor_id();
    void *ring = bpf_map_lookup_elem(&rings, &cpu);

    if (ring && bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) > bpf_ringbuf_query(ring, BPF_RB_RING_SIZE) / 4)
        return BPF_RB_FORCE_WAKEUP;
    return BPF_RB_NO_WAKEUP;
}
