/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The kernel's own stack in a tracepoint, without a walk where an equal stack was walked before.
 *
 * The kernel walks by tables (ORC) that nothing else reads. On a CPU that has just left idle, the fifteen
 * frames of a wakeup cost 25 to 40 µs of cache misses. But threads wait and are woken at few places. So
 * each CPU caches, for each place, which words of the stack held the return addresses of its last walk.
 * Where all of them are there again, a walk would find the same frames: each return address determines
 * where the next one lies. */
#pragma once

#include "context.h"
#include "stack.h"
#include "stack_place.h"

#define CACHE_SLOT_BITS 5
/* A kernel thread waits for requests at one place and for time at another one. */
#define CACHE_WAYS 2
/* An entry that has missed this many times in a row is replaced. */
#define CACHE_MISSES 3

/* Hash of the place, and way → a stack there. Only the outermost of nested probes uses it, so an
 * interrupt's probe cannot change it while it is read. A full set replaces its stale entry. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, CACHE_WAYS << CACHE_SLOT_BITS);
    __type(key, u32);
    __type(value, struct cached_stack);
} cached_stacks SEC(".maps");

ALWAYS_INLINE struct cached_stack *cached_stack_at(u32 place, u32 way) {
    u32 slot = (place * 0x9e3779b1u) >> (32 - CACHE_SLOT_BITS);

    slot = slot * CACHE_WAYS + way;
    return way < CACHE_WAYS ? bpf_map_lookup_elem(&cached_stacks, &slot) : NULL;
}

/* A thread's stack is aligned to its size. */
ALWAYS_INLINE u64 top_of(u64 address) { return (address | (STACK_BYTES - 1)) + 1; }

/* One load: through an expression with the array the compiler would take the word for unaligned bytes. */
ALWAYS_INLINE u64 word_at(struct stack_scratch *scratch, u32 position) {
    u8 *at = &scratch->pieces[position & (PIECES_BYTES - 8)];

    return *(u64 *)at;
}

/* ---- lookup ---- */

/* Reads the pieces of the stack above `base` that the entry lists. Returns the address of the stack that
 * holds its outermost frame; 0 where one of them cannot be read. */
ALWAYS_INLINE u64 read_pieces(struct cached_stack *cached, struct stack_scratch *scratch, u64 base) {
    u32 near = cached->near, far = cached->far;

    if (near > NEAR_BYTES || far > FAR_BYTES || bpf_probe_read_kernel(scratch->pieces, near, (void *)base))
        return 0;
    if (!cached->link)
        return base;
    base = word_at(scratch, cached->link);
    if (far && bpf_probe_read_kernel(&scratch->pieces[FAR_AT], far, (void *)base))
        return 0;
    return base;
}

/* Whether the pieces hold the listed return addresses. */
GLOBAL bool has_same_words(struct cached_stack *cached, struct stack_scratch *scratch) {
    u32 i, frame;

    if (!cached || !scratch)
        return false;
    /* Bounded by a number of its own: the frame is any number to the verifier, which merges its paths. */
    for (i = 0; i < CACHED_FRAMES; i++) {
        frame = cached->first + i;
        if (frame >= cached->listed)
            break;
        frame &= CACHED_FRAMES - 1;
        if (word_at(scratch, cached->position[frame]) != cached->address[frame])
            return false;
    }
    return true;
}

/* Whether the stack above `base` holds the same return addresses. */
GLOBAL bool is_same_stack(struct cached_stack *cached, struct stack_scratch *scratch, u64 base) {
    u64 outermost = 0;
    u32 last;

    if (!cached || !scratch)
        return false;
    base = read_pieces(cached, scratch, base);
    if (!base || !has_same_words(cached, scratch))
        return false;
    if (!cached->tail)
        return true;
    last = cached->listed;
    if (last >= CACHED_FRAMES || bpf_probe_read_kernel(&outermost, 8, (void *)(top_of(base) - cached->tail)))
        return false;
    return outermost == cached->address[last];
}

/* The way of the cached stack at this place that equals the one above `base`; CACHE_WAYS if there is none. */
GLOBAL u32 find_way(struct stack_scratch *scratch, u64 base, u32 place) {
    struct cached_stack *cached;
    u32 way;

    if (!scratch)
        return CACHE_WAYS;
    for (way = 0; way < CACHE_WAYS; way++) {
        cached = cached_stack_at(place, way);
        if (!cached || !cached->frames)
            break;
        if (cached->place == place && is_same_stack(cached, scratch, base)) {
            cached->misses = 0;
            return way;
        }
        cached->misses++;
    }
    return CACHE_WAYS;
}

struct address_copy {
    u64 *to;
    u64 *from;
};

static long copy_step(u32 index, struct address_copy *copy) {
    if (index >= CACHED_FRAMES)
        return 1;
    copy->to[index] = copy->from[index];
    return 0;
}

/* The stack above `base` if it is cached for this place; 0 if it must be walked. */
NOINLINE u64 find_cached_stack(struct stack_scratch *scratch, u64 base, u32 place) {
    struct cached_stack *cached = cached_stack_at(place, find_way(scratch, base, place));
    struct address_copy copy;
    u64 id;

    if (!cached)
        return 0;
    id = cached->id;
    if (bpf_map_lookup_elem(&stacks, &id))
        return id;
    /* User space has deleted it from the map. */
    start_kernel_stack(&scratch->stack, cached->frames, true);
    copy.to = scratch->stack.address;
    copy.from = cached->address;
    bpf_loop(cached->frames, copy_step, &copy, 0);
    return put_stack(&scratch->stack, id);
}

/* ---- insertion ---- */

struct word_scan {
    struct stack_scratch *scratch;
    u32 from;  /* start of the piece */
    u32 next;  /* index of the frame to find; 0: the first one */
    u32 found; /* position of the last one */
    u32 inner; /* frames except the outermost */
};

/* There are few frames below the probe's context: those of the programs, and of their caller. */
#define MOST_BELOW 6

/* The index of the frame above the probe's context that has this address; 0: none has. */
GLOBAL u32 first_frame(struct stack_scratch *scratch, u64 word, u32 inner) {
    u32 i;

    for (i = 1; scratch && i < inner && i <= MOST_BELOW; i++) {
        if (word == scratch->stack.address[i])
            return i;
    }
    return 0;
}

static long scan_step(u32 index, struct word_scan *scan) {
    u32 position = scan->from + index * 8, next = scan->next;
    struct cached_stack *cached = &scan->scratch->candidate;
    u64 word = word_at(scan->scratch, position);

    if (next >= scan->inner)
        return 1;
    if (!next) {
        next = first_frame(scan->scratch, word, scan->inner);
        cached->first = next;
    }
    if (!next || next >= CACHED_FRAMES || word != scan->scratch->stack.address[next])
        return 0;
    cached->position[next] = position;
    scan->found = position;
    scan->next = next + 1;
    return 0;
}

/* Finds the outermost return address near the top of a stack. System calls start at a random distance from
 * the top (randomize_kstack_offset), but this address always lies at the end. */
ALWAYS_INLINE bool find_outermost(struct word_scan *scan, u64 top) {
    struct stack_scratch *scratch = scan->scratch;
    u32 last = scan->inner, i;

    if (last >= CACHED_FRAMES ||
        bpf_probe_read_kernel(&scratch->pieces[TAIL_AT], TAIL_BYTES, (void *)(top - TAIL_BYTES)))
        return false;
    for (i = 0; i < TAIL_BYTES / 8; i++) {
        if (word_at(scratch, TAIL_AT + i * 8) == scratch->stack.address[last]) {
            scratch->candidate.tail = TAIL_BYTES - i * 8;
            return true;
        }
    }
    return false;
}

/* Reads the piece above `base`, or its part on the same page: an interrupt's stack ends before an unmapped
 * page. Returns its length. */
ALWAYS_INLINE u32 read_near(struct stack_scratch *scratch, u64 base) {
    u64 rest = top_of(base) - base;
    u32 near = rest < NEAR_BYTES ? (u32)rest : NEAR_BYTES;

    if (!bpf_probe_read_kernel(scratch->pieces, near, (void *)base))
        return near;
    near = 4096 - (base & 4095);
    if (near > NEAR_BYTES || bpf_probe_read_kernel(scratch->pieces, near, (void *)base))
        return 0;
    return near;
}

/* Finds the return addresses of the walked stack above `base`. An interrupt's stack keeps the address of
 * the interrupted one behind its outermost return address (call_on_stack in
 * arch/x86/include/asm/irq_stack.h). With `bystander` the interrupted frames are cut off: they have
 * nothing to do with the interrupt. */
GLOBAL bool find_words(struct stack_scratch *scratch, u64 base, bool bystander) {
    struct word_scan scan = {.scratch = scratch};
    struct cached_stack *cached;
    u32 near, far, link;
    u64 rest;

    if (!scratch || scratch->stack.frames < 2)
        return false;
    scan.inner = scratch->stack.frames - 1;
    cached = &scratch->candidate;
    cached->link = 0;
    cached->far = 0;
    cached->tail = 0;
    near = read_near(scratch, base);
    bpf_loop(near / 8, scan_step, &scan, 0);
    if (!scan.next)
        return false;
    cached->listed = scan.next;
    link = scan.found + 8;
    cached->near = link;
    if (scan.next >= scan.inner && find_outermost(&scan, top_of(base)))
        return true;
    if (link + 8 > near)
        return false;
    base = word_at(scratch, link);
    if ((s64)base >= 0 || (base & 7))
        return false;
    if (bystander) {
        scratch->stack.frames = scan.next;
        return true;
    }
    cached->near = link + 8;
    cached->link = link;
    if (scan.next < scan.inner) {
        rest = top_of(base) - base;
        far = rest < FAR_BYTES ? (u32)rest : FAR_BYTES;
        if (bpf_probe_read_kernel(&scratch->pieces[FAR_AT], far, (void *)base))
            return false;
        scan.from = FAR_AT;
        bpf_loop(far / 8, scan_step, &scan, 0);
        if (scan.next < scan.inner)
            return false;
        cached->listed = scan.next;
        cached->far = scan.found + 8 - FAR_AT;
    }
    return find_outermost(&scan, top_of(base));
}

/* Caches a stack that was walked, unless the entries of this place have matched recently. */
GLOBAL int cache_stack(struct stack_scratch *scratch, u32 place, u64 id) {
    struct address_copy copy;
    struct cached_stack *cached;
    u32 way;

    if (!scratch || scratch->stack.frames > CACHED_FRAMES)
        return 0;
    copy.to = scratch->candidate.address;
    copy.from = scratch->stack.address;
    for (way = 0; way < CACHE_WAYS; way++) {
        cached = cached_stack_at(place, way);
        if (!cached || (cached->frames && cached->misses < CACHE_MISSES))
            continue;
        scratch->candidate.id = id;
        scratch->candidate.place = place;
        scratch->candidate.frames = scratch->stack.frames;
        scratch->candidate.misses = 0;
        bpf_loop(scratch->stack.frames, copy_step, &copy, 0);
        *cached = scratch->candidate;
        return 0;
    }
    return 0;
}

/* ---- taking a stack ---- */

/* The kernel stack in a tracepoint. `ctx` lies on it, in the frame of the probe's caller. */
ALWAYS_INLINE u64 take_kernel_stack_at(void *ctx, struct cpu_state *cpu, struct stack_scratch *scratch,
                                       u32 place, bool bystander) {
    u64 base = address_of_context(ctx, &scratch->walk.sp);
    u64 id;
    long bytes;
    bool found;

    if (cpu->scratch_level == 1) {
        id = find_cached_stack(scratch, base, place);
        if (id)
            return id;
    }
    bytes = bpf_get_stack(ctx, scratch->stack.address, KERNEL_STACK_BYTES, 0);
    if (bytes <= 0)
        return 0;
    start_kernel_stack(&scratch->stack, (u16)(bytes / 8), true);
    found = find_words(scratch, base, bystander);
    id = keep_kernel_stack(&scratch->stack);
    if (id && found && cpu->scratch_level == 1)
        cache_stack(scratch, place, id);
    return id;
}

/* Both stacks of the current task, in a tracepoint. */
ALWAYS_INLINE void take_stacks_at(void *ctx, struct cpu_state *cpu, u32 place, u64 *user, u64 *kernel) {
    struct stack_scratch *scratch = enter_scratch(cpu);

    if (!scratch)
        return;
    *kernel = take_kernel_stack_at(ctx, cpu, scratch, place, false);
    *user = take_user_stack(scratch);
    leave_scratch(cpu);
}
