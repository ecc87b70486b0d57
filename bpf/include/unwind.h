/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Unwind tables as they lie in memory: crates/unwind builds them, bpf/unwind.h walks by them. Plain integers,
 * little endian. x86_64 register names by role: sp, fp (rbp), bx (rbx); an address is an ELF virtual address
 * unless said otherwise.
 *
 * A table covers the text of one file in pages of PAGE_TEXT bytes, counted from its lowest one. A page is a
 * run of 32-bit words: PAGE_STARTS words that hold BLOCKS + 1 16-bit indices, then its rows. Block b
 * (BLOCK_TEXT bytes) has the rows start[b] .. start[b + 1], at least one, ascending; its first row is at
 * offset 0. A row is (rule << 8) | offset in the block, in force up to the next row.
 *
 * A frame's caller: find the rule at pc (at pc - 1 where pc is a return address), then
 *   CFA by its kind; ip = *(CFA + 8 * ra); fp = fp rule; bx = bx rule; sp = CFA.
 */
#pragma once

#include "integers.h"

#define PAGE_TEXT 65536
#define BLOCK_TEXT 256
#define BLOCKS 256
/* 257 indices of 16 bits, rounded up. */
#define PAGE_STARTS 129
/* The most words of a page: its indices have 16 bits, and the number of its rows is one of them. */
#define MAX_PAGE_WORDS 65664

enum rule_kind {
    RULE_UNCOVERED = 0, /* no unwind entry: by frame pointer */
    RULE_SP = 1,        /* CFA = sp + cfa_offset */
    RULE_FP = 2,        /* CFA = fp + cfa_offset */
    RULE_BX = 3,        /* CFA = bx + cfa_offset */
    RULE_R10 = 4,       /* CFA = r10 + cfa_offset; known in an interrupted frame only */
    RULE_SP_DEREF = 5,  /* CFA = *(sp + cfa_offset) + addend */
    RULE_FP_DEREF = 6,  /* CFA = *(fp + cfa_offset) + addend */
    RULE_PLT = 7,       /* CFA = sp + cfa_offset + ((ip & 15) >= addend ? 8 : 0) */
    RULE_SIGNAL = 8,    /* every register is in the ucontext at sp */
    RULE_END = 9,       /* outermost: it has no caller */
    RULE_UNSUPPORTED = 10,
};

enum rule_flag {
    RULE_FP_AT_FP = 1,       /* the saved fp lies at fp + 8 * fp, not at CFA + 8 * fp */
    RULE_BX_AT_FP = 2,       /* the saved bx lies at fp + 8 * bx */
    RULE_RA_IN_REGISTER = 4, /* the return address is in a register: rdi (vfork), aarch64 x30 */
    RULE_ANY_STACK = 8,      /* the caller's frame lies on another stack: its sp may be lower */
    RULE_RA_AT_FP = 16,      /* the return address lies at fp + 8 * ra, not at CFA + 8 * ra */
};

/* With RULE_RA_AT_FP: the frame of a method that HotSpot's interpreter runs. The pointer to the method lies
 * in the third word below fp (src/hotspot/cpu/x86/frame_x86.hpp), and with this bit stands for the frame,
 * whose code is the same for all methods. No user address has the bit. */
#define INTERPRETED_METHOD (1ULL << 62)
#define METHOD_BELOW_FP 24

/* One distinct way to find a caller. */
struct unwind_rule {
    u8 kind;
    u8 flags;
    s16 addend;     /* bytes */
    s32 cfa_offset; /* bytes */
    s16 ra;         /* words of 8 bytes from the CFA, or with its flag from fp; -1 on x86_64 */
    s16 fp;         /* words from the CFA (0: unchanged), or with its flag from fp */
    s16 bx;         /* the same */
    u16 unused;
};

_Static_assert(sizeof(struct unwind_rule) == 16, "a rule is 16 bytes");

/* How a walk ended: crates/model/src/stack.rs StackEnd has the same codes. */
enum stack_end {
    END_COMPLETE = 0,      /* at RULE_END */
    END_FRAME_POINTER = 1, /* the end of a chain of frame pointers */
    END_TRUNCATED = 2,     /* more frames than are kept */
    END_READ_FAILED = 3,   /* a stack address could not be read */
    END_NO_MAPPINGS = 4,   /* the process is too new: its mappings are not known yet */
    END_NO_TABLE = 5,      /* a file without its unwind table, and the frame pointer led nowhere */
    END_UNSUPPORTED = 6,   /* a rule that rows cannot express, or a register that was lost on the way */
    END_BAD_FRAME = 7,     /* frames that do not ascend, or a return address that is none */
    END_JIT = 8,           /* code that is in no file, and the frame pointer led nowhere */
};

/* Offsets from sp in a signal frame's trampoline to the interrupted registers: `struct rt_sigframe` behind
 * its return address is a ucontext, whose uc_mcontext begins at 40 (asm/ucontext.h, asm/sigcontext.h). */
#define SIGNAL_R10 56
#define SIGNAL_FP 120
#define SIGNAL_BX 128
#define SIGNAL_SP 160
#define SIGNAL_IP 168

/* ---- where tables lie in the kernel ---- */

/* Tables and lists of mappings lie in an arena of chunks. A position is (chunk << CHUNK_BITS) | word.
 * Nothing crosses a chunk's end. Position 0 is never allocated. */
#define CHUNK_BITS 18
#define CHUNK_WORDS 262144
#define MAX_CHUNKS 1024
/* Distinct rules of all tables. A page's rows hold 24 bits of rule number. */
#define MAX_RULES 65536
#define MAX_PROCESSES 65536
#define MAX_FILES 16384
/* Executable mappings of one process: a list fits in a chunk. */
#define MAX_MAPPINGS 32000

struct arena_chunk {
    u32 word[CHUNK_WORDS];
};

/* An executable mapping of a file: lists hold them ascending. 32 bytes. */
struct unwind_mapping {
    u64 start;
    u64 len;
    u64 bias;      /* pc - bias: the address counted from the table's page 0 */
    u32 directory; /* position of the positions of the table's pages, one word a page (0: uncovered) */
    u32 pages;     /* 0: no table; with a directory that is not 0: code made at run time */
};

/* A file with its contents: inode number, device as the kernel keeps it, size in bytes, and time of the last
 * change. */
struct file_key {
    u64 inode;
    u64 size;
    u64 changed_sec;
    u32 changed_nsec;
    u32 device;
};

_Static_assert(sizeof(struct file_key) == 32, "a file's key has no padding");

/* A file's table, for processes whose mappings are not known yet. */
struct unwind_file {
    u64 delta; /* offset in the file + delta: the address counted from the table's page 0 */
    u32 directory;
    u32 pages;
};

/* A process without a list for its present program. */
struct wanted_process {
    u32 tgid;
    u32 exec_id;
    u64 time; /* CLOCK_MONOTONIC, ns */
};

/* A process's list of mappings. */
struct unwind_process {
    u32 exec_id;
    u32 list;
    u32 mappings;
    u32 unused;
};
