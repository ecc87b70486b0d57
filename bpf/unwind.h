/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Walking a user stack by unwind tables, and by frame pointer where no entry covers the code.
 *
 * Needs no kernel. A host program defines, before it includes this:
 * - chunk_words(chunk): the words of an arena chunk, or NULL;
 * - rule_from_number(number): the rule, or NULL;
 * - read_user(buffer, len, address, of): 0 once `len` bytes of memory are in `buffer`, of task `of` or, if
 * that is NULL, of the current one;
 * - find_in_memory(mapping, pc, of): finds the mapping that holds pc where the process's list is not known;
 * - mix(hash, value): the hash that identifies a stack;
 * - GLOBAL: before a function that the verifier is to walk through once.
 *
 * crates/unwind walks by the same rules; its tests compare the two. */
#pragma once

#include "include/limits.h"
#include "include/unwind.h"
#ifdef __bpf__
#include "stack_hash.h"
#include "tables.h"
#endif

/* The stack is copied in pieces of this size: reading 8 bytes costs nearly as much as reading 2048. */
#define WINDOW_BYTES 2048
/* A frame saves its registers at most this far below its CFA: six registers and a margin. */
#define SAVED_BYTES 128

#define LOWEST_CODE 0x10000ULL
#define HIGHEST_CODE (1ULL << 47)

struct walk {
    u64 ip;
    u64 sp;
    u64 fp;
    u64 bx;
    u64 r10;
    u64 link; /* rdi, in which vfork keeps its return address */
    u64 hash;
    u64 window_start;
    u32 window_len;
    u32 list;
    u32 mappings;
    u8 tables;                  /* walk by tables; else by frame pointers alone */
    u8 known;                   /* the process's mappings are known */
    u8 exact;                   /* ip was interrupted; else it is a return address */
    u8 bx_known;                /* also after a frame without a rule for bx: it has kept it */
    u8 r10_known;               /* in an interrupted frame only */
    u8 link_known;              /* in the first frame only */
    u8 lost;                    /* the end of the walk if this frame's fp leads nowhere */
    u8 end;                     /* enum stack_end; END_TRUNCATED until the walk ends by itself */
    u8 unstarted;               /* a new thread that has not run: its first frame is its last */
    struct unwind_mapping code; /* the mapping of the last frame */
    u64 word;                   /* what was read last */
    u8 window[WINDOW_BYTES + 8];
};

/* ---- the stack ---- */

ALWAYS_INLINE bool read_piece(struct walk *walk, struct task_struct *of, u64 from, u32 len) {
    walk->window_start = from;
    walk->window_len = 0;
    if (len > WINDOW_BYTES || read_user(walk->window, len, from, of))
        return false;
    walk->window_len = len;
    return true;
}

/* Copies the piece of stack that starts at `low`, or its part on the page of `address`: a stack ends at a
 * page's end. */
ALWAYS_INLINE bool fill_window(struct walk *walk, struct task_struct *of, u64 low, u64 address) {
    u64 from = low & ~7ULL;

    if (address - from > WINDOW_BYTES - 8)
        from = address;
    if (read_piece(walk, of, from, WINDOW_BYTES))
        return true;
    if ((from ^ address) & ~4095ULL)
        from = address;
    return read_piece(walk, of, from, 4096 - (from & 4095)) || read_piece(walk, of, address, 8);
}

/* The word at `address`; the copied piece starts at `low`. */
ALWAYS_INLINE bool find_word(struct walk *walk, struct task_struct *of, u64 low, u64 address, u64 *value) {
    u64 offset = address - walk->window_start;
    u8 *at;

    if (offset + 8 > walk->window_len || offset > WINDOW_BYTES) {
        if (!fill_window(walk, of, low, address))
            return false;
        offset = address - walk->window_start;
    }
    /* One load, which may be unaligned, as the stack is then. */
    at = &walk->window[offset & (WINDOW_BYTES - 1)];
    *value = *(u64 *)at;
    return true;
}

/* The same of the current task: such a function has no argument that is a task. */
GLOBAL bool read_own_word(struct walk *walk, u64 low, u64 address) {
    return walk && find_word(walk, NULL, low, address, &walk->word);
}

ALWAYS_INLINE bool read_word(struct walk *walk, struct task_struct *of, u64 low, u64 address, u64 *value) {
    if (of)
        return find_word(walk, of, low, address, value);
    if (!read_own_word(walk, low, address))
        return false;
    *value = walk->word;
    return true;
}

/* ---- rules ---- */

ALWAYS_INLINE u32 *words_at(u32 position) { return chunk_words(position >> CHUNK_BITS); }

#define WORD(position) ((position) & (CHUNK_WORDS - 1))
#define LIST_WORDS 8

/* Finds the mapping that holds pc, and keeps it in `walk->code`. False where there is none. */
GLOBAL bool find_mapping(struct walk *walk, u64 pc) {
    struct unwind_mapping *mapping;
    u32 *words;
    u32 at, left, i;

    if (!walk)
        return false;
    words = words_at(walk->list);
    at = walk->list;
    left = walk->mappings;
    if (!words || !left)
        return false;
    for (i = 0; i < 15 && left > 1; i++) {
        u32 half = left >> 1;

        mapping = (struct unwind_mapping *)&words[WORD(at + half * LIST_WORDS) & ~7U];
        if (mapping->start <= pc)
            at += half * LIST_WORDS;
        left -= half;
    }
    mapping = (struct unwind_mapping *)&words[WORD(at) & ~7U];
    if (pc - mapping->start >= mapping->len)
        return false;
    walk->code = *mapping;
    return true;
}

/* The number of the rule in force at `address`, counted from page 0 of the current mapping's table. */
GLOBAL u32 rule_number(struct walk *walk, u64 address) {
    u64 page = address / PAGE_TEXT;
    u32 *words;
    u16 *starts;
    u32 position, block, at, left, i;

    if (!walk || page >= walk->code.pages)
        return 0;
    words = words_at(walk->code.directory);
    if (!words)
        return 0;
    position = words[WORD(walk->code.directory + (u32)page)];
    if (!position)
        return 0;
    words = words_at(position);
    if (!words)
        return 0;
    starts = (u16 *)words;
    block = WORD(position) * 2 + ((address / BLOCK_TEXT) & (BLOCKS - 1));
    at = starts[block & (2 * CHUNK_WORDS - 1)];
    left = starts[(block + 1) & (2 * CHUNK_WORDS - 1)] - at;
    at += position + PAGE_STARTS;
    for (i = 0; i < 8 && left > 1; i++) {
        u32 half = left >> 1;

        if ((words[WORD(at + half)] & (BLOCK_TEXT - 1)) <= (address & (BLOCK_TEXT - 1)))
            at += half;
        left -= half;
    }
    return words[WORD(at)] >> 8;
}

/* NULL where no entry covers pc; walk->lost then has the reason. */
ALWAYS_INLINE struct unwind_rule *find_rule(struct walk *walk, struct task_struct *of, u64 pc) {
    u32 number;

    walk->lost = END_BAD_FRAME;
    if (!walk->tables)
        return NULL;
    if (pc - walk->code.start >= walk->code.len && !(walk->known && find_mapping(walk, pc)) &&
        !find_in_memory(&walk->code, pc, of)) {
        walk->lost = walk->known ? END_JIT : END_NO_MAPPINGS;
        return NULL;
    }
    if (!walk->code.pages) {
        walk->lost = walk->code.directory ? END_JIT : END_NO_TABLE;
        return NULL;
    }
    number = rule_number(walk, pc - walk->code.bias);
    return number ? rule_from_number(number) : NULL;
}

/* ---- steps: 0, or 1 with walk->end set ---- */

ALWAYS_INLINE long end_walk(struct walk *walk, u8 end) {
    walk->end = end;
    return 1;
}

ALWAYS_INLINE bool is_code(u64 address) { return address - LOWEST_CODE < HIGHEST_CODE - LOWEST_CODE; }

ALWAYS_INLINE long step_by_frame_pointer(struct walk *walk, struct task_struct *of) {
    u64 at = walk->fp, ip, fp;

    if (!at)
        return end_walk(walk, END_FRAME_POINTER);
    if ((at & 7) || at < walk->sp)
        return end_walk(walk, walk->lost);
    if (!read_word(walk, of, at, at, &fp) || !read_word(walk, of, at, at + 8, &ip))
        return end_walk(walk, walk->lost == END_BAD_FRAME ? END_READ_FAILED : walk->lost);
    if (!ip)
        return end_walk(walk, END_FRAME_POINTER);
    if (!is_code(ip))
        return end_walk(walk, walk->lost);
    walk->ip = ip;
    walk->fp = fp;
    walk->sp = at + 16;
    walk->exact = 0;
    walk->bx_known = 0;
    walk->r10_known = 0;
    walk->link_known = 0;
    return 0;
}

ALWAYS_INLINE long step_out_of_signal(struct walk *walk, struct task_struct *of) {
    u64 at = walk->sp;

    if (!read_word(walk, of, at, at + SIGNAL_R10, &walk->r10) ||
        !read_word(walk, of, at, at + SIGNAL_FP, &walk->fp) ||
        !read_word(walk, of, at, at + SIGNAL_BX, &walk->bx) ||
        !read_word(walk, of, at, at + SIGNAL_IP, &walk->ip) ||
        !read_word(walk, of, at, at + SIGNAL_SP, &walk->sp))
        return end_walk(walk, END_READ_FAILED);
    if (!is_code(walk->ip))
        return end_walk(walk, END_BAD_FRAME);
    walk->exact = 1;
    walk->bx_known = 1;
    walk->r10_known = 1;
    walk->link_known = 0;
    return 0;
}

/* The frame's CFA; false with walk->end set where it is not known. */
ALWAYS_INLINE bool find_cfa(struct walk *walk, struct task_struct *of, struct unwind_rule *rule, u64 *cfa) {
    u64 offset = (u64)(s64)rule->cfa_offset;
    u64 at;

    switch (rule->kind) {
    case RULE_SP:
        *cfa = walk->sp + offset;
        return true;
    case RULE_FP:
        *cfa = walk->fp + offset;
        return true;
    case RULE_BX:
        *cfa = walk->bx + offset;
        if (walk->bx_known)
            return true;
        break;
    case RULE_R10:
        *cfa = walk->r10 + offset;
        if (walk->r10_known)
            return true;
        break;
    case RULE_PLT:
        *cfa = walk->sp + offset + ((walk->ip & 15) >= (u64)(s64)rule->addend ? 8 : 0);
        return true;
    case RULE_SP_DEREF:
    case RULE_FP_DEREF:
        at = (rule->kind == RULE_SP_DEREF ? walk->sp : walk->fp) + offset;
        if (!read_word(walk, of, at, at, cfa)) {
            walk->end = END_READ_FAILED;
            return false;
        }
        *cfa += (u64)(s64)rule->addend;
        return true;
    }
    walk->end = END_UNSUPPORTED;
    return false;
}

ALWAYS_INLINE u64 saved_at(u64 base, s16 words) { return base + (u64)((s64)words * 8); }

ALWAYS_INLINE long step_by_rule(struct walk *walk, struct task_struct *of, struct unwind_rule *rule) {
    u64 fp = walk->fp, cfa, low, ip, at;

    if (rule->kind == RULE_END)
        return end_walk(walk, END_COMPLETE);
    if (rule->kind == RULE_SIGNAL)
        return step_out_of_signal(walk, of);
    if (!find_cfa(walk, of, rule, &cfa))
        return 1;
    if (rule->flags & RULE_ANY_STACK)
        walk->sp = 0;
    /* A return address that was popped, or never pushed, leaves sp at the caller's value. */
    if (cfa < walk->sp || (cfa == walk->sp && !(rule->flags & RULE_RA_IN_REGISTER)))
        return end_walk(walk, END_BAD_FRAME);
    low = cfa - walk->sp > SAVED_BYTES ? cfa - SAVED_BYTES : walk->sp;
    if (rule->flags & RULE_RA_IN_REGISTER) {
        if (!walk->link_known)
            return end_walk(walk, END_UNSUPPORTED);
        ip = walk->link;
    } else if (!read_word(walk, of, low, saved_at(rule->flags & RULE_RA_AT_FP ? fp : cfa, rule->ra), &ip)) {
        return end_walk(walk, END_READ_FAILED);
    }
    if (!is_code(ip))
        return end_walk(walk, END_BAD_FRAME);
    if (rule->fp || (rule->flags & RULE_FP_AT_FP)) {
        at = saved_at(rule->flags & RULE_FP_AT_FP ? fp : cfa, rule->fp);
        /* A slot below sp was popped: the register has its value again. */
        if (at >= walk->sp && !read_word(walk, of, at, at, &walk->fp))
            return end_walk(walk, END_READ_FAILED);
    }
    if (rule->bx || (rule->flags & RULE_BX_AT_FP)) {
        at = saved_at(rule->flags & RULE_BX_AT_FP ? fp : cfa, rule->bx);
        if (at >= walk->sp) {
            if (!read_word(walk, of, at, at, &walk->bx))
                return end_walk(walk, END_READ_FAILED);
            walk->bx_known = 1;
        }
    }
    walk->ip = ip;
    walk->sp = cfa;
    walk->exact = 0;
    walk->r10_known = 0;
    walk->link_known = 0;
    return 0;
}

/* Keeps a frame and steps to its caller. frames[0] is the instruction where the thread was. Every other
 * frame is one past the instruction that it stands for, as a return address is by itself. */
ALWAYS_INLINE long walk_frame(struct walk *walk, struct task_struct *of, u64 *frames, u32 depth) {
    struct unwind_rule *rule;
    u64 frame = walk->ip;

    if (depth && walk->exact)
        frame++;
    rule = find_rule(walk, of, depth ? frame - 1 : frame);
    /* The trampoline's "return address" is its first instruction; the entry that covers it starts before
     * it. */
    if (rule && rule->kind == RULE_SIGNAL && depth)
        frame++;
    if (rule && rule->flags & RULE_RA_AT_FP) {
        /* Not by the copied piece of stack, and with no look at the result: the verifier walks through less.
         * What cannot be read is 0. */
        read_user(&walk->word, sizeof(walk->word), walk->fp - METHOD_BELOW_FP, of);
        frame = (walk->word | INTERPRETED_METHOD) + (depth ? 1 : 0);
    }
    *frames = frame;
    walk->hash = mix(walk->hash, frame);
    if (walk->unstarted)
        return end_walk(walk, END_COMPLETE);
    if (rule && rule->kind != RULE_UNCOVERED)
        return step_by_rule(walk, of, rule);
    /* Where the code is unknown, its frame pointer is not trusted: most code uses the register for other
     * values. */
    if (walk->lost == END_NO_MAPPINGS)
        return end_walk(walk, END_NO_MAPPINGS);
    return step_by_frame_pointer(walk, of);
}
