/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The scratch buffers in which stacks are built, one a nesting level. */
#pragma once

#include "cpu_state.h"
#include "losses.h"
#include "unwind.h"

/* Kernel stacks of more frames are not cached. */
#define CACHED_FRAMES 64

/* A kernel stack as it was walked; kernel_stack.h has its use. */
struct cached_stack {
    u64 id;
    u32 place;
    u16 frames; /* 0: the entry is empty */
    u16 first;  /* first frame above the probe's context; the frames below depend on the place alone */
    u16 listed; /* index behind the last frame that has a position */
    u16 near;   /* bytes read of the stack */
    u16 link;   /* position in them of the address of the interrupted stack; 0: there is none */
    u16 far;    /* bytes read of the interrupted stack */
    u16 tail;   /* distance of the outermost return address from its stack's top; 0: it has a position, too */
    u16 misses;
    u16 position[CACHED_FRAMES]; /* positions of return addresses in the pieces, by frame */
    u64 address[CACHED_FRAMES];
};

/* The pieces that are read of a kernel stack: upwards from the probe's context, which can be on an
 * interrupt's stack; of the stack that was interrupted; and the end at which a thread's stack starts. */
#define NEAR_BYTES 2048
#define FAR_BYTES 1536
#define TAIL_BYTES 256
#define FAR_AT NEAR_BYTES
#define TAIL_AT (NEAR_BYTES + FAR_BYTES)
#define PIECES_BYTES 4096 /* a power of two: positions are masked */

/* Nesting level → scratch buffer for one stack. A sampler can interrupt a walk. Deeper nesting is
 * LOSS_SCRATCH_BUSY. */
struct stack_scratch {
    struct stack_record stack;
    struct walk walk;
    struct cached_stack candidate;
    u8 pieces[PIECES_BYTES];
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, SCRATCH_LEVELS);
    __type(key, u32);
    __type(value, struct stack_scratch);
} stack_scratch SEC(".maps");

ALWAYS_INLINE struct stack_scratch *enter_scratch(struct cpu_state *cpu) {
    u32 level = cpu->scratch_level;
    struct stack_scratch *scratch;

    scratch = bpf_map_lookup_elem(&stack_scratch, &level);
    if (!scratch) {
        lose(LOSS_SCRATCH_BUSY);
        return NULL;
    }
    cpu->scratch_level = level + 1;
    return scratch;
}

ALWAYS_INLINE void leave_scratch(struct cpu_state *cpu) { cpu->scratch_level--; }
