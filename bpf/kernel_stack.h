/* The kernel's own stack in a tracepoint, without walking it where it is one that was met before.
 *
 * The kernel walks by tables (ORC) that nobody else reads: on a CPU that has just left idle the fifteen
 * frames of a wakeup cost 25 to 40 µs of cache misses. But threads wait and are woken at few places, so a CPU
 * remembers what it walked last at each of them: which words of the stack held the return addresses. Where
 * all of them are there again, the walk would find the same frames: each tells where the next one lies. */
#pragma once

#include "context.h"
#include "stack.h"

/* What a place is: who asks, and what tells its ways apart best. */
#define PLACE_SWITCH (1u << 28)
#define PLACE_WAKEUP (2u << 28)
#define PLACE_INTERRUPT (3u << 28)

#define MEMO_SLOT_BITS 5
/* A thread of the kernel waits for work at one place and for time at another one. */
#define MEMO_WAYS 2
/* A memo that did not hold so often in a row is replaced. */
#define MEMO_STRIKES 3

/* Place's hash and way → a stack there. Used by the outermost of nested probes alone, which an interrupt's
 * cannot change while it reads. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, MEMO_WAYS << MEMO_SLOT_BITS);
    __type(key, u32);
    __type(value, struct kernel_memo);
} kernel_memos SEC(".maps");

ALWAYS_INLINE struct kernel_memo *memo_of(u32 place, u32 way) {
    u32 slot = (place * 0x9e3779b1u) >> (32 - MEMO_SLOT_BITS);

    slot = slot * MEMO_WAYS + way;
    return way < MEMO_WAYS ? bpf_map_lookup_elem(&kernel_memos, &slot) : NULL;
}

/* A thread's stack is aligned to its size. */
ALWAYS_INLINE u64 top_of(u64 address) { return (address | (STACK_BYTES - 1)) + 1; }

ALWAYS_INLINE u64 word_at(struct stack_room *room, u32 position) {
    return *(u64 *)&room->pieces[position & (PIECES_BYTES - 8)];
}

/* ---- finding it again ---- */

/* Whether the stack above `base` holds the same return addresses. Global, as what follows: verified once. */
__attribute__((noinline)) bool is_same_stack(struct kernel_memo *memo, struct stack_room *room, u64 base) {
    u32 near, far, i;
    u64 outermost = 0;

    if (!memo || !room)
        return false;
    near = memo->near;
    far = memo->far;
    if (near > NEAR_BYTES || far > FAR_BYTES || bpf_probe_read_kernel(room->pieces, near, (void *)base))
        return false;
    if (memo->link) {
        base = word_at(room, memo->link);
        if (far && bpf_probe_read_kernel(&room->pieces[FAR_AT], far, (void *)base))
            return false;
    }
    for (i = 0; i < MEMO_FRAMES; i++) {
        if (i >= memo->listed)
            break;
        if (i >= memo->first && word_at(room, memo->position[i]) != memo->address[i])
            return false;
    }
    if (!memo->tail)
        return true;
    if (i >= MEMO_FRAMES || bpf_probe_read_kernel(&outermost, 8, (void *)(top_of(base) - memo->tail)))
        return false;
    return outermost == memo->address[i];
}

/* Which of the stacks remembered for this place is the one above `base`; MEMO_WAYS if none is. */
__attribute__((noinline)) u32 find_way(struct stack_room *room, u64 base, u32 place) {
    struct kernel_memo *memo;
    u32 way;

    if (!room)
        return MEMO_WAYS;
    for (way = 0; way < MEMO_WAYS; way++) {
        memo = memo_of(place, way);
        if (!memo || !memo->frames)
            break;
        if (memo->place == place && is_same_stack(memo, room, base)) {
            memo->strikes = 0;
            return way;
        }
        memo->strikes++;
    }
    return MEMO_WAYS;
}

struct address_copy {
    u64 *to;
    u64 *from;
};

static long copy_step(u32 index, struct address_copy *copy) {
    if (index >= MEMO_FRAMES)
        return 1;
    copy->to[index] = copy->from[index];
    return 0;
}

/* The stack above `base` if it is remembered for this place; 0 if it is to be walked. */
NOINLINE u64 recall_stack(struct stack_room *room, u64 base, u32 place) {
    struct kernel_memo *memo = memo_of(place, find_way(room, base, place));
    struct address_copy copy;
    u64 id;

    if (!memo)
        return 0;
    id = memo->id;
    if (bpf_map_lookup_elem(&stacks, &id))
        return id;
    /* User space has taken it out of there. */
    begin_kernel_stack(&room->stack, memo->frames, true);
    copy.to = room->stack.address;
    copy.from = memo->address;
    bpf_loop(memo->frames, copy_step, &copy, 0);
    return put_stack(&room->stack, id);
}

/* ---- remembering it ---- */

struct memo_scan {
    struct stack_room *room;
    u32 from;  /* where the piece begins */
    u32 next;  /* frame that is looked for; 0: the first one */
    u32 found; /* where the last one was */
    u32 inner; /* frames but the outermost */
};

/* Of the frames below the probe's context there are few: the programs', and the one that called them. */
#define MOST_BELOW 6

static long scan_step(u32 index, struct memo_scan *scan) {
    u32 position = scan->from + index * 8, next = scan->next, i;
    struct kernel_memo *memo = &scan->room->memo;
    u64 word = word_at(scan->room, position);

    if (next >= scan->inner)
        return 1;
    for (i = 1; !next && i <= MOST_BELOW; i++) {
        if (i < scan->inner && word == scan->room->stack.address[i]) {
            memo->first = i;
            next = i;
        }
    }
    if (!next || next >= MEMO_FRAMES || word != scan->room->stack.address[next])
        return 0;
    memo->position[next] = position;
    scan->found = position;
    scan->next = next + 1;
    return 0;
}

/* Finds the outermost return address near the top of a stack: where system calls begin at a random distance
 * to it (randomize_kstack_offset), this one lies at the end all the same. */
ALWAYS_INLINE bool find_outermost(struct memo_scan *scan, u64 top) {
    struct stack_room *room = scan->room;
    u32 last = scan->inner, i;

    if (last >= MEMO_FRAMES ||
        bpf_probe_read_kernel(&room->pieces[TAIL_AT], TAIL_BYTES, (void *)(top - TAIL_BYTES)))
        return false;
    for (i = 0; i < TAIL_BYTES / 8; i++) {
        if (word_at(room, TAIL_AT + i * 8) == room->stack.address[last]) {
            room->memo.tail = TAIL_BYTES - i * 8;
            return true;
        }
    }
    return false;
}

/* Reads the piece above `base`, or what of it lies on the same page: an interrupt's stack ends before a page
 * that is not there. Returns its length. */
ALWAYS_INLINE u32 read_near(struct stack_room *room, u64 base) {
    u64 rest = top_of(base) - base;
    u32 near = rest < NEAR_BYTES ? (u32)rest : NEAR_BYTES;

    if (!bpf_probe_read_kernel(room->pieces, near, (void *)base))
        return near;
    near = 4096 - (base & 4095);
    if (near > NEAR_BYTES || bpf_probe_read_kernel(room->pieces, near, (void *)base))
        return 0;
    return near;
}

/* Finds the return addresses of the walked stack above `base`. An interrupt's stack keeps the address of the
 * interrupted one behind its outermost return address (call_on_stack in arch/x86/include/asm/irq_stack.h).
 * With `bystander` what was interrupted is cut off: it has nothing to do with the interrupt. */
__attribute__((noinline)) bool find_words(struct stack_room *room, u64 base, bool bystander) {
    struct memo_scan scan = {.room = room};
    struct kernel_memo *memo;
    u32 near, far, link;
    u64 rest;

    if (!room || room->stack.frames < 2)
        return false;
    scan.inner = room->stack.frames - 1;
    memo = &room->memo;
    memo->link = 0;
    memo->far = 0;
    memo->tail = 0;
    near = read_near(room, base);
    bpf_loop(near / 8, scan_step, &scan, 0);
    if (!scan.next)
        return false;
    memo->listed = scan.next;
    link = scan.found + 8;
    memo->near = link;
    if (scan.next >= scan.inner && find_outermost(&scan, top_of(base)))
        return true;
    if (link + 8 > near)
        return false;
    base = word_at(room, link);
    if ((s64)base >= 0 || (base & 7))
        return false;
    if (bystander) {
        room->stack.frames = scan.next;
        return true;
    }
    memo->near = link + 8;
    memo->link = link;
    if (scan.next < scan.inner) {
        rest = top_of(base) - base;
        far = rest < FAR_BYTES ? (u32)rest : FAR_BYTES;
        if (bpf_probe_read_kernel(&room->pieces[FAR_AT], far, (void *)base))
            return false;
        scan.from = FAR_AT;
        bpf_loop(far / 8, scan_step, &scan, 0);
        if (scan.next < scan.inner)
            return false;
        memo->listed = scan.next;
        memo->far = scan.found + 8 - FAR_AT;
    }
    return find_outermost(&scan, top_of(base));
}

/* Remembers the stack that was walked, unless those that are remembered for this place have held of late. */
__attribute__((noinline)) int remember_stack(struct stack_room *room, u32 place, u64 id) {
    struct address_copy copy;
    struct kernel_memo *memo;
    u32 way;

    if (!room || room->stack.frames > MEMO_FRAMES)
        return 0;
    copy.to = room->memo.address;
    copy.from = room->stack.address;
    for (way = 0; way < MEMO_WAYS; way++) {
        memo = memo_of(place, way);
        if (!memo || (memo->frames && memo->strikes < MEMO_STRIKES))
            continue;
        room->memo.id = id;
        room->memo.place = place;
        room->memo.frames = room->stack.frames;
        room->memo.strikes = 0;
        bpf_loop(room->stack.frames, copy_step, &copy, 0);
        *memo = room->memo;
        return 0;
    }
    return 0;
}

/* ---- taking it ---- */

/* The kernel stack in a tracepoint; `ctx` lies on it, in the frame of what called the probe. */
ALWAYS_INLINE u64 take_kernel_stack_at(void *ctx, struct cpu_state *cpu, struct stack_room *room, u32 place,
                                       bool bystander) {
    u64 base = address_of_context(ctx, &room->walk.sp);
    u64 id;
    long bytes;
    bool found;

    if (cpu->scratch_level == 1) {
        id = recall_stack(room, base, place);
        if (id)
            return id;
    }
    bytes = bpf_get_stack(ctx, room->stack.address, KERNEL_STACK_BYTES, 0);
    if (bytes <= 0)
        return 0;
    begin_kernel_stack(&room->stack, (u16)(bytes / 8), true);
    found = find_words(room, base, bystander);
    id = keep_kernel_stack(&room->stack);
    if (id && found && cpu->scratch_level == 1)
        remember_stack(room, place, id);
    return id;
}

/* Both stacks of the current task, in a tracepoint. */
ALWAYS_INLINE void take_stacks_at(void *ctx, struct cpu_state *cpu, u32 place, u64 *user, u64 *kernel) {
    struct stack_room *room = enter_scratch(cpu);

    if (!room)
        return;
    *kernel = take_kernel_stack_at(ctx, cpu, room, place, false);
    *user = take_user_stack(room);
    leave_scratch(cpu);
}
