/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* wallprof.h: marks the operations of a program, so that `wallprof tail` can say why the slow ones are slow.
 *
 *     #include <wallprof.h>
 *
 *     wallprof_begin("order");              // C11 and C++
 *     wallprof_begin("risk check");         // a stage of the order
 *     wallprof_end();
 *     wallprof_end();
 *
 *     wallprof::span span{"order"};         // C++: ends with its scope
 *
 * Header only: no library, no system call per span. While nobody records the program, a pair of marks takes
 * a nanosecond or two. Spans of one thread nest, at most WALLPROF_DEPTH deep; begin and end are called by the
 * same thread. Names are copied at their first use, 47 bytes of them; a thread has up to 31 kinds, and
 * further ones are counted as "(other kinds)".
 *
 * The marks of a process lie in memory that it shares with recorders: one memfd for sixteen threads, a slot
 * for each thread, whose layout is that of the structures below. The thread writes, recorders read. A
 * recorder sets `on_until` every half second; when it is gone, marks are off again within two seconds.
 *
 * This file may be copied into any program: MIT-0. */
#ifndef WALLPROF_H
#define WALLPROF_H

#ifdef __cplusplus
#include <cstddef>
#include <cstdint>
#include <cstring>
extern "C" {
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#endif

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__)) && !defined(WALLPROF_OFF)

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Strict C11 hides these. */
#ifndef __cplusplus
extern long syscall(long number, ...);
extern int clock_gettime(int clock, struct timespec *time);
#endif

/* ---- the layout, version 1: all numbers little or big endian as the machine, all slots zero at first ----
 */

#define WALLPROF_MAGIC 0x736e6170736c6c77ULL /* "wllspans" */
#define WALLPROF_VERSION 1
#define WALLPROF_NAME "wallprof-spans"
#define WALLPROF_SLOTS 16
#define WALLPROF_KINDS 32
#define WALLPROF_NAME_BYTES 48
#define WALLPROF_DEPTH 16
#define WALLPROF_RING 2048
/* Log-linear, 16 an octave, up to 2^40 ns. */
#define WALLPROF_BUCKETS 592
/* Shorter spans are in the sums alone, ns. */
#define WALLPROF_SHORT 1000
#define WALLPROF_SLOT_BYTES 389120
#define WALLPROF_PAGE 4096
#define WALLPROF_MOST_CHUNKS 256

__extension__ typedef unsigned __int128 wallprof_wide;

enum { WALLPROF_TICKS = 1, WALLPROF_MONOTONIC = 2 };

/* A span that has ended. `sequence` is 1 + its place among all of its slot, and is written last. */
struct wallprof_entry {
    uint64_t sequence;
    uint64_t id;
    uint64_t outer; /* id of the span around it, 0: none */
    uint64_t end;   /* the clock */
    uint64_t ns;
};

struct wallprof_cell {
    uint64_t count;
    uint64_t ns;
};

/* The spans of one thread. An id is the number of the span, shifted by eight bits, and its kind. */
struct wallprof_slot {
    uint64_t current; /* id of the innermost span, 0: none. The kernel side reads it at each switch */
    uint64_t entries; /* that were written to `ring` */
    uint64_t number;  /* of the last span */
    uint64_t depth;
    uint64_t too_deep; /* spans that were not counted */
    uint64_t other_kinds;
    uint64_t taken_at; /* `number` when the present thread took the slot */
    uint64_t unused;
    uint64_t ids[WALLPROF_DEPTH];
    uint64_t starts[WALLPROF_DEPTH];
    const char *used[64]; /* where names were when they were last looked up, which is in this process */
    uint8_t kinds[64];    /* their kinds */
    char names[WALLPROF_KINDS][WALLPROF_NAME_BYTES];
    char fill[WALLPROF_PAGE - 64 - 16 * WALLPROF_DEPTH - 64 * 9 - WALLPROF_KINDS * WALLPROF_NAME_BYTES];
    struct wallprof_entry ring[WALLPROF_RING];
    struct wallprof_cell sums[WALLPROF_KINDS][WALLPROF_BUCKETS];
};

struct wallprof_chunk {
    uint64_t magic;
    uint32_t version;
    uint32_t pid;
    struct wallprof_chunk *first; /* of this process */
    uint64_t unused[5];
    /* Written by recorders. Those of the first chunk count: marks are on until the clock says this. */
    uint64_t on_until;
    uint64_t ns_per_tick; /* shifted by 32 bits */
    uint64_t clock;
    uint64_t unused_too[5];
    struct wallprof_chunk *next; /* of this process; only its own threads follow it */
    uint64_t refused;            /* threads without a slot */
    uint32_t tids[WALLPROF_SLOTS];
    char fill[WALLPROF_PAGE - 208];
    struct wallprof_slot slots[WALLPROF_SLOTS];
};

/* ---- the state of this program or shared library ---- */

/* In a page that is empty in a child after fork: it gets slots of its own. */
struct wallprof_state {
    struct wallprof_chunk *chunk;
};

#define WALLPROF_SHARED __attribute__((weak, visibility("hidden")))
#define WALLPROF_RARE __attribute__((noinline, cold, unused)) static
#define WALLPROF_FAST __attribute__((always_inline, unused)) static inline

WALLPROF_SHARED struct wallprof_state wallprof_none = {NULL};
WALLPROF_SHARED struct wallprof_state *wallprof_state_page = &wallprof_none;
/* Where there is no memory for spans: never on. */
WALLPROF_SHARED uint64_t wallprof_never[WALLPROF_PAGE / 8] = {0};
WALLPROF_SHARED __thread struct wallprof_slot *wallprof_own_slot = NULL;

WALLPROF_FAST uint64_t wallprof_monotonic(void) {
    struct timespec now;

    clock_gettime(1 /* CLOCK_MONOTONIC */, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

WALLPROF_FAST uint64_t wallprof_clock(const struct wallprof_chunk *chunk) {
#if defined(__x86_64__)
    if (__builtin_expect(chunk->clock == WALLPROF_TICKS, 1))
        return __builtin_ia32_rdtsc();
#else
    (void)chunk;
#endif
    return wallprof_monotonic();
}

WALLPROF_RARE struct wallprof_chunk *wallprof_new_chunk(struct wallprof_chunk *first) {
    void *memory, *shown;
    struct wallprof_chunk *chunk;
    int fd = (int)syscall(SYS_memfd_create, WALLPROF_NAME, 3u /* MFD_CLOEXEC | MFD_ALLOW_SEALING */);

    if (fd < 0)
        return NULL;
    /* F_ADD_SEALS: F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW. A recorder maps no file that can shrink. */
    if (syscall(SYS_ftruncate, fd, sizeof(*chunk)) || syscall(SYS_fcntl, fd, 1033, 1 | 2 | 4)) {
        close(fd);
        return NULL;
    }
    memory =
        mmap(NULL, sizeof(*chunk), PROT_READ | PROT_WRITE, MAP_SHARED | 0x4000 /* MAP_NORESERVE */, fd, 0);
    if (memory == MAP_FAILED) {
        close(fd);
        return NULL;
    }
    syscall(SYS_madvise, memory, sizeof(*chunk), 10 /* MADV_DONTFORK */);
    syscall(SYS_madvise, memory, sizeof(*chunk), 16 /* MADV_DONTDUMP */);
    chunk = (struct wallprof_chunk *)memory;
    chunk->version = WALLPROF_VERSION;
    chunk->pid = (uint32_t)getpid();
    chunk->first = first ? first : chunk;
    __atomic_store_n(&chunk->magic, WALLPROF_MAGIC, __ATOMIC_RELEASE);
    /* The kernel announces executable mappings to recorders. Where it refuses this one, they find the other
     * in /proc/PID/maps. */
    shown = mmap(NULL, WALLPROF_PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
    if (shown != MAP_FAILED)
        syscall(SYS_madvise, shown, WALLPROF_PAGE, 10);
    close(fd);
    return chunk;
}

/* The first chunk of this process, which another library may have made: its mapping that is writable. */
WALLPROF_RARE struct wallprof_chunk *wallprof_find_chunk(void) {
    struct wallprof_chunk *found = NULL;
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];

    if (!maps)
        return NULL;
    while (!found && fgets(line, sizeof(line), maps)) {
        unsigned long start = 0, end = 0;
        char rights[5] = "";

        if (!strstr(line, "/memfd:" WALLPROF_NAME) || sscanf(line, "%lx-%lx %4s", &start, &end, rights) != 3)
            continue;
        if (rights[1] == 'w' && end - start == sizeof(struct wallprof_chunk)) {
            struct wallprof_chunk *chunk = (struct wallprof_chunk *)start;

            if (chunk->magic == WALLPROF_MAGIC && chunk->version == WALLPROF_VERSION &&
                chunk->pid == (uint32_t)getpid())
                found = chunk->first;
        }
    }
    fclose(maps);
    return found;
}

/* Two threads, or two libraries, may do this at the same time. What one of them loses is a mapping. */
WALLPROF_RARE struct wallprof_chunk *wallprof_start(void) {
    struct wallprof_state *state = __atomic_load_n(&wallprof_state_page, __ATOMIC_ACQUIRE);
    struct wallprof_chunk *chunk = NULL;
    int kept = errno;

    wallprof_own_slot = NULL;
    if (state == &wallprof_none) {
        void *page =
            mmap(NULL, WALLPROF_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | 0x20 /* MAP_ANONYMOUS */, -1, 0);

        if (page != MAP_FAILED && syscall(SYS_madvise, page, WALLPROF_PAGE, 18 /* MADV_WIPEONFORK */) == 0) {
            struct wallprof_state *expected = &wallprof_none;

            state = (struct wallprof_state *)page;
            if (!__atomic_compare_exchange_n(&wallprof_state_page, &expected, state, false, __ATOMIC_ACQ_REL,
                                             __ATOMIC_ACQUIRE)) {
                munmap(page, WALLPROF_PAGE);
                state = expected;
            }
        }
    }
    if (state != &wallprof_none) {
        chunk = wallprof_find_chunk();
        if (!chunk)
            chunk = wallprof_new_chunk(NULL);
    }
    if (!chunk)
        chunk = (struct wallprof_chunk *)(void *)wallprof_never;
    /* Without a page that a fork empties, marks stay off. */
    __atomic_store_n(&state->chunk, chunk, __ATOMIC_RELEASE);
    errno = kept;
    return chunk;
}

__attribute__((constructor, unused)) static void wallprof_at_start(void) {
    if (!wallprof_state_page->chunk)
        wallprof_start();
}

WALLPROF_RARE struct wallprof_slot *wallprof_take_in(struct wallprof_chunk *chunk, uint32_t tid,
                                                     bool from_dead) {
    for (int i = 0; i < WALLPROF_SLOTS; i++) {
        uint32_t before = __atomic_load_n(&chunk->tids[i], __ATOMIC_ACQUIRE);
        bool is_free = before == 0 || before == tid;

        if (!is_free && from_dead) {
            is_free = syscall(SYS_tgkill, getpid(), before, 0) != 0 && errno == ESRCH;
            /* No mark of it is left. */
            if (is_free)
                __atomic_store_n(&chunk->slots[i].depth, 0, __ATOMIC_RELAXED);
        }
        if (is_free && __atomic_compare_exchange_n(&chunk->tids[i], &before, tid, false, __ATOMIC_ACQ_REL,
                                                   __ATOMIC_ACQUIRE)) {
            if (before != tid) {
                chunk->slots[i].current = chunk->slots[i].depth = 0;
                chunk->slots[i].taken_at = chunk->slots[i].number;
            }
            return &chunk->slots[i];
        }
    }
    return NULL;
}

/* A slot for this thread: its own from another library, a free one, one of a thread that is gone. */
WALLPROF_RARE struct wallprof_slot *wallprof_take_slot(struct wallprof_chunk *chunk) {
    uint32_t tid = (uint32_t)syscall(SYS_gettid);
    struct wallprof_slot *slot = NULL;
    struct wallprof_chunk *last = chunk;
    int kept = errno, chunks = 0;

    for (struct wallprof_chunk *at = chunk; at && !slot; at = __atomic_load_n(&at->next, __ATOMIC_ACQUIRE)) {
        slot = wallprof_take_in(at, tid, false);
        last = at;
        chunks++;
    }
    if (!slot)
        slot = wallprof_take_in(last, tid, true);
    if (!slot)
        slot = wallprof_take_in(chunk, tid, true);
    if (!slot && chunks < WALLPROF_MOST_CHUNKS) {
        struct wallprof_chunk *more = wallprof_new_chunk(chunk), *expected = NULL;

        if (more) {
            slot = wallprof_take_in(more, tid, false);
            while (!__atomic_compare_exchange_n(&last->next, &expected, more, false, __ATOMIC_ACQ_REL,
                                                __ATOMIC_ACQUIRE)) {
                last = expected;
                expected = NULL;
            }
        }
    }
    if (!slot)
        __atomic_fetch_add(&chunk->refused, 1, __ATOMIC_RELAXED);
    wallprof_own_slot = slot;
    errno = kept;
    return slot;
}

WALLPROF_RARE uint32_t wallprof_find_kind(struct wallprof_slot *slot, const char *name, uint32_t place) {
    uint32_t kind;

    for (kind = 1; kind < WALLPROF_KINDS; kind++) {
        char *known = slot->names[kind];

        if (!known[0]) {
            size_t length = 0;

            while (length + 1 < WALLPROF_NAME_BYTES && name[length])
                length++;
            /* An empty name is a name. */
            memcpy(known, length ? name : "?", length ? length : 1);
            __atomic_thread_fence(__ATOMIC_RELEASE);
            break;
        }
        if (strncmp(known, name[0] ? name : "?", WALLPROF_NAME_BYTES - 1) == 0)
            break;
    }
    if (kind == WALLPROF_KINDS) {
        slot->other_kinds++;
        return 0;
    }
    slot->used[place] = name;
    slot->kinds[place] = (uint8_t)kind;
    return kind;
}

/* The same address may have another name now. Of a literal the compiler knows the length. */
WALLPROF_FAST bool wallprof_is_named(const char *known, const char *name) {
    if (__builtin_constant_p(strlen(name)) && strlen(name) < WALLPROF_NAME_BYTES - 1)
        return memcmp(known, name, strlen(name) + 1) == 0;
    return strncmp(known, name, WALLPROF_NAME_BYTES - 1) == 0;
}

/* Kind 0 is that of further names. */
WALLPROF_FAST uint32_t wallprof_kind(struct wallprof_slot *slot, const char *name) {
    uintptr_t address = (uintptr_t)name;
    uint32_t place = (uint32_t)((address ^ (address >> 6)) & 63);
    uint32_t kind = slot->kinds[place] & (WALLPROF_KINDS - 1);

    if (__builtin_expect(slot->used[place] == name, 1) &&
        __builtin_expect(wallprof_is_named(slot->names[kind], name), 1))
        return kind;
    return wallprof_find_kind(slot, name, place);
}

WALLPROF_FAST uint32_t wallprof_bucket(uint64_t ns) {
    uint32_t exponent, bucket;

    if (ns < 16)
        return (uint32_t)ns;
    exponent = 63u - (uint32_t)__builtin_clzll(ns);
    bucket = (exponent - 3) * 16 + (uint32_t)((ns >> (exponent - 4)) & 15);
    return bucket < WALLPROF_BUCKETS ? bucket : WALLPROF_BUCKETS - 1;
}

/* Opens a span. It is stored before the clock is read, and removed after: what the kernel sees contains what
 * is measured. */
WALLPROF_FAST void wallprof_open(struct wallprof_chunk *chunk, struct wallprof_slot *slot, const char *name) {
    uint64_t depth = slot->depth, on_until, start, id;

    slot->depth = depth + 1;
    if (__builtin_expect(depth >= WALLPROF_DEPTH, 0)) {
        slot->too_deep++;
        return;
    }
    id = (++slot->number << 8) | wallprof_kind(slot, name);
    slot->ids[depth] = id;
    __atomic_store_n(&slot->current, id, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    start = wallprof_clock(chunk);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    slot->starts[depth] = start;
    on_until = __atomic_load_n(&chunk->on_until, __ATOMIC_RELAXED);
    /* The recorder is gone. A span that is open keeps its stages, so that ends meet their begins. */
    if (__builtin_expect(start >= on_until, 0) && depth == 0) {
        slot->current = slot->depth = 0;
        if (on_until)
            __atomic_compare_exchange_n(&chunk->on_until, &on_until, 0, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED);
    }
}

WALLPROF_RARE void wallprof_begin_first(const char *name) {
    struct wallprof_chunk *chunk = wallprof_state_page->chunk;
    struct wallprof_slot *slot;

    if (!chunk)
        chunk = wallprof_start();
    if (!chunk->on_until)
        return;
    slot = wallprof_take_slot(chunk);
    if (slot)
        wallprof_open(chunk, slot, name);
}

/* Opens a span of the kind `name` on this thread. */
WALLPROF_FAST void wallprof_begin(const char *name) {
    struct wallprof_chunk *chunk = wallprof_state_page->chunk;
    struct wallprof_slot *slot = wallprof_own_slot;
    bool off;

    name = name ? name : "?";
    /* Not started, or a new child, whose thread has the slot of its parent. */
    if (__builtin_expect(!chunk, 0)) {
        wallprof_begin_first(name);
        return;
    }
    off = !__atomic_load_n(&chunk->on_until, __ATOMIC_RELAXED);
    if (__builtin_expect(!slot, 0)) {
        if (!off)
            wallprof_begin_first(name);
        return;
    }
    if (off && !slot->depth)
        return;
    wallprof_open(chunk, slot, name);
}

WALLPROF_FAST void wallprof_close(struct wallprof_chunk *chunk, struct wallprof_slot *slot) {
    uint64_t end = wallprof_clock(chunk), depth = slot->depth - 1, id, outer, ns;
    struct wallprof_cell *cell;

    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    slot->depth = depth;
    if (__builtin_expect(depth >= WALLPROF_DEPTH, 0))
        return;
    id = slot->ids[depth];
    outer = depth ? slot->ids[depth - 1] : 0;
    __atomic_store_n(&slot->current, outer, __ATOMIC_RELAXED);
    ns = end - slot->starts[depth];
    if (chunk->clock == WALLPROF_TICKS)
        ns = (uint64_t)(((wallprof_wide)ns * chunk->ns_per_tick) >> 32);
    /* Clocks of two processors can differ by a little. */
    if (__builtin_expect((int64_t)ns < 0, 0))
        ns = 0;
    if (ns >= WALLPROF_SHORT) {
        struct wallprof_entry *entry = &slot->ring[slot->entries % WALLPROF_RING];

        __atomic_store_n(&entry->sequence, 0, __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_RELEASE);
        entry->id = id;
        entry->outer = outer;
        entry->end = end;
        entry->ns = ns;
        __atomic_store_n(&entry->sequence, slot->entries + 1, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->entries, slot->entries + 1, __ATOMIC_RELEASE);
    }
    cell = &slot->sums[id & (WALLPROF_KINDS - 1)][wallprof_bucket(ns)];
    __atomic_store_n(&cell->ns, cell->ns + ns, __ATOMIC_RELAXED);
    __atomic_store_n(&cell->count, cell->count + 1, __ATOMIC_RELEASE);
}

/* Closes the span of this thread that was opened last. Without one it does nothing. */
WALLPROF_FAST void wallprof_end(void) {
    struct wallprof_slot *slot = wallprof_own_slot;
    struct wallprof_chunk *chunk;

    if (__builtin_expect(!slot, 1))
        return;
    chunk = wallprof_state_page->chunk;
    if (__builtin_expect(!chunk, 0)) {
        wallprof_own_slot = NULL;
        return;
    }
    if (slot->depth)
        wallprof_close(chunk, slot);
}

#else /* not Linux, or switched off by WALLPROF_OFF */

static inline void wallprof_begin(const char *name) { (void)name; }
static inline void wallprof_end(void) {}

#endif

#ifdef __cplusplus
} /* extern "C" */

namespace wallprof {

/* A span that ends with its scope. */
class span {
  public:
    explicit span(const char *name) { wallprof_begin(name); }
    ~span() { wallprof_end(); }
    span(const span &) = delete;
    span &operator=(const span &) = delete;
};

} // namespace wallprof
#endif

#endif
