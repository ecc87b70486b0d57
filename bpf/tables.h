/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The code tables that user space writes: unwind tables by file, mappings by process. */
#pragma once

#include "bpf_api.h"
#include "include/limits.h"
#include "include/unwind.h"

/* Walk by unwind tables; else by frame pointers alone. */
const volatile bool walk_by_tables = true;

/* Chunk → its words. User space creates chunks, writes them through a mapping and never deletes them.
 * Freed words are used again only when no walk can still read them. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, MAX_CHUNKS);
    __type(key, u32);
    __array(
        values, struct {
            __uint(type, BPF_MAP_TYPE_ARRAY);
            __uint(max_entries, 1);
            __uint(map_flags, BPF_F_MMAPABLE);
            __uint(key_size, sizeof(u32));
            __uint(value_size, sizeof(struct arena_chunk));
        });
} chunks SEC(".maps");

/* Number → rule. User space writes it before a page that refers to it. A freed number is written again
 * only when no walk can still read it. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, MAX_RULES);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, u32);
    __type(value, struct unwind_rule);
} rules SEC(".maps");

/* tgid → its mappings. Written by user space, and here at a fork, since the child's memory is a copy of
 * its parent's. Deleted by user space. Full: the stacks of such processes have their leaf frame only. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_PROCESSES);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, u32);
    __type(value, struct unwind_process);
} processes SEC(".maps");

/* File → its table. Written and deleted by user space. A file that was written to since, and another file
 * that got the inode of a deleted one, have another key: their old table is not found. The vDSO, which is of
 * no file, has a key of zeros. Full: only known processes are walked through that file. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_FILES);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct file_key);
    __type(value, struct unwind_file);
} files SEC(".maps");

/* Processes that were walked and are not in `processes` with this exec generation. Full: requested again with
 * the next stack. */
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096);
} wanted_processes SEC(".maps");

/* Makes the type part of the object, from which its Rust view is generated. */
const struct wanted_process nothing_wanted = {};

ALWAYS_INLINE u32 *chunk_words(u32 chunk) {
    u32 zero = 0;
    void *inner = bpf_map_lookup_elem(&chunks, &chunk);
    struct arena_chunk *found = inner ? bpf_map_lookup_elem(inner, &zero) : NULL;

    return found ? found->word : NULL;
}

ALWAYS_INLINE struct unwind_rule *rule_from_number(u32 number) {
    return bpf_map_lookup_elem(&rules, &number);
}

ALWAYS_INLINE long read_user(void *buffer, u32 len, u64 address, struct task_struct *of) {
    if (of)
        return bpf_copy_from_user_task(buffer, len, (void *)address, of, 0);
    return bpf_probe_read_user(buffer, len, (void *)address);
}

/* The process's mappings in its present image. NULL where they are not known; they are then requested. */
ALWAYS_INLINE struct unwind_process *mappings_of(u32 tgid, u32 exec_id) {
    struct unwind_process *process = bpf_map_lookup_elem(&processes, &tgid);
    struct wanted_process *wanted;

    if (process && process->exec_id == exec_id)
        return process;
    /* Written in place: the programs' stack has no bytes left on 6.1. */
    wanted = bpf_ringbuf_reserve(&wanted_processes, sizeof(*wanted), 0);
    if (wanted) {
        wanted->tgid = tgid;
        wanted->exec_id = exec_id;
        wanted->time = bpf_ktime_get_ns();
        bpf_ringbuf_submit(wanted, 0);
    }
    return NULL;
}

struct vma_lookup {
    u64 start;
    u64 end;
    u64 offset;
    u64 vdso; /* where the process's vDSO starts */
    struct file_key file;
};

/* From 6.13 on the highest bit of the nanoseconds says that the time was read (linux/fs.h,
 * I_CTIME_QUERIED). stat(2) does not show it. */
#define CTIME_NSEC_MASK 0x7fffffff

/* The time of the last change of contents or attributes; users cannot set it. */
ALWAYS_INLINE void read_change_time(struct file_key *key, struct inode *inode) {
    struct inode___ctime_behind_accessors *behind = (void *)inode;
    struct inode___ctime_as_timespec *plain = (void *)inode;

    if (bpf_core_field_exists(inode->i_ctime_sec)) {
        key->changed_sec = BPF_CORE_READ(inode, i_ctime_sec);
        key->changed_nsec = BPF_CORE_READ(inode, i_ctime_nsec) & CTIME_NSEC_MASK;
    } else if (bpf_core_field_exists(behind->__i_ctime)) {
        key->changed_sec = BPF_CORE_READ(behind, __i_ctime.tv_sec);
        key->changed_nsec = (u32)BPF_CORE_READ(behind, __i_ctime.tv_nsec) & CTIME_NSEC_MASK;
    } else {
        key->changed_sec = BPF_CORE_READ(plain, i_ctime.tv_sec);
        key->changed_nsec = (u32)BPF_CORE_READ(plain, i_ctime.tv_nsec) & CTIME_NSEC_MASK;
    }
}

/* Without a branch, so that the verifier goes one way only: of no file, what is read is 0. */
static long read_vma(struct task_struct *task, struct vm_area_struct *vma, struct vma_lookup *lookup) {
    struct file *file = BPF_CORE_READ(vma, vm_file);
    struct inode *inode = BPF_CORE_READ(file, f_inode);

    lookup->start = vma->vm_start;
    lookup->end = vma->vm_end;
    lookup->offset = (u64)vma->vm_pgoff * 4096;
    lookup->vdso = (u64)vma->vm_mm->context.vdso;
    lookup->file.inode = BPF_CORE_READ(inode, i_ino);
    lookup->file.device = BPF_CORE_READ(inode, i_sb, s_dev);
    lookup->file.size = BPF_CORE_READ(inode, i_size);
    read_change_time(&lookup->file, inode);
    return 0;
}

/* Where the table of this mapping's code can be found: at its file, or, of the vDSO of 64-bit code, at a key
 * of zeros. The vDSO of a 32-bit process is another one, below 4 GiB. */
ALWAYS_INLINE bool has_key(const struct vma_lookup *lookup) {
    return lookup->file.inode || (lookup->start == lookup->vdso && lookup->start >> 32);
}

/* The mapping that holds pc, from the process's memory itself: for processes whose mappings user space has
 * not written yet. Fails while another thread changes the memory. */
ALWAYS_INLINE bool find_in_memory(struct unwind_mapping *mapping, u64 pc, struct task_struct *of) {
    struct task_struct *task = of ? of : bpf_get_current_task_btf();
    struct vma_lookup lookup = {};
    struct unwind_file *file;

    if (bpf_find_vma(task, pc, read_vma, &lookup, 0) || !has_key(&lookup))
        return false;
    file = bpf_map_lookup_elem(&files, &lookup.file);
    if (!file)
        return false;
    mapping->start = lookup.start;
    mapping->len = lookup.end - lookup.start;
    mapping->bias = lookup.start - lookup.offset - file->delta;
    mapping->directory = file->directory;
    mapping->pages = file->pages;
    return true;
}

/* A new process has its parent's memory until it execs. */
ALWAYS_INLINE void inherit_mappings(struct task_struct *parent, struct task_struct *child) {
    u32 from = parent->tgid, to = child->tgid;
    struct unwind_process *process = bpf_map_lookup_elem(&processes, &from);

    if (process && process->exec_id == (u32)parent->self_exec_id)
        bpf_map_update_elem(&processes, &to, process, BPF_ANY);
}
