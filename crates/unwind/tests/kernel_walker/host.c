// SPDX-License-Identifier: Apache-2.0
/* The kernel's walker on the host: walks the cases on stdin and writes their frames to stdout.
 * crates/unwind/tests/kernel_walker.rs has the layout of both. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef short s16;
typedef int s32;
typedef long long s64;

#define bool _Bool
#define true 1
#define false 0
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define GLOBAL static __attribute__((unused))

#include "include/limits.h"
#include "include/unwind.h"

struct task_struct;

static struct unwind_rule *rules;
static u32 rule_count;
static struct arena_chunk *chunks;
static u32 chunk_count;
static u8 *stack;
static u64 stack_start;
static u64 stack_len;

static u64 mix(u64 hash, u64 value) { return hash ^ value; }

static u32 *chunk_words(u32 chunk) { return chunk < chunk_count ? chunks[chunk].word : NULL; }

static struct unwind_rule *rule_from_number(u32 number) { return number < rule_count ? &rules[number] : NULL; }

/* All or nothing, like the copies of the kernel. */
static long read_user(void *buffer, u32 len, u64 address, struct task_struct *of) {
    if (address < stack_start || address - stack_start > stack_len || stack_len - (address - stack_start) < len) {
        memset(buffer, 0, len);
        return -14;
    }
    memcpy(buffer, stack + (address - stack_start), len);
    return 0;
}

static bool find_in_memory(struct unwind_mapping *mapping, u64 pc, struct task_struct *of) {
    return false;
}

#include "unwind.h"

static void take(void *buffer, size_t len) {
    if (len && fread(buffer, len, 1, stdin) != 1)
        exit(1);
}

static u64 take_u64(void) {
    u64 value;

    take(&value, 8);
    return value;
}

int main(void) {
    u32 list, mappings;
    u64 cases;

    rule_count = (u32)take_u64();
    rules = calloc(rule_count, sizeof(*rules));
    take(rules, rule_count * sizeof(*rules));
    chunk_count = (u32)take_u64();
    chunks = calloc(chunk_count, sizeof(*chunks));
    take(chunks, chunk_count * sizeof(*chunks));
    list = (u32)take_u64();
    mappings = (u32)take_u64();
    cases = take_u64();
    while (cases--) {
        static struct walk walk;
        u64 frames[MAX_FRAMES];
        u64 depth = 0, end;

        memset(&walk, 0, sizeof(walk));
        walk.ip = take_u64();
        walk.sp = take_u64();
        walk.fp = take_u64();
        walk.bx = take_u64();
        walk.r10 = take_u64();
        walk.link = take_u64();
        walk.exact = walk.bx_known = walk.r10_known = walk.link_known = walk.tables = walk.known = 1;
        walk.list = list;
        walk.mappings = mappings;
        walk.end = END_TRUNCATED;
        stack_start = take_u64();
        stack_len = take_u64();
        stack = malloc(stack_len);
        take(stack, stack_len);
        while (depth < MAX_FRAMES) {
            depth++;
            if (walk_frame(&walk, NULL, &frames[depth - 1], depth - 1))
                break;
        }
        end = walk.end;
        fwrite(&end, 8, 1, stdout);
        fwrite(&depth, 8, 1, stdout);
        fwrite(frames, 8, depth, stdout);
        free(stack);
    }
    return 0;
}
