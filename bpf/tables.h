/* What user space tells the kernel side about code: unwind tables by file, mappings by process. */
#pragma once

#include "state.h"

#include "include/unwind.h"

/* Walk by unwind tables; else by frame pointers alone. */
const volatile bool walk_by_tables = true;

/* Chunk → its words. Chunks are created, written through a mapping and never taken away by user space; what
 * is freed in them is used again only when no walk can still read it. */
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

/* Number → rule. Written by user space before a page that names it; never deleted. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, MAX_RULES);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, u32);
    __type(value, struct unwind_rule);
} rules SEC(".maps");

/* tgid → its mappings. Written by user space, at a fork also here, since the child's memory is its parent's;
 * deleted by user space. Full: such processes' stacks have their leaf frame only. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_PROCESSES);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, u32);
    __type(value, struct unwind_process);
} processes SEC(".maps");

/* File → its table. Written and deleted by user space. Full: only known processes are walked through that
 * file. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_FILES);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct file_key);
    __type(value, struct unwind_file);
} files SEC(".maps");

/* (tgid << 32) | exec generation, 64 bits, of processes that were walked and are not in `processes`. Full:
 * asked again with the next stack. */
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096);
} wanted_processes SEC(".maps");

ALWAYS_INLINE u32 *chunk_words(u32 chunk) {
    u32 zero = 0;
    void *inner = bpf_map_lookup_elem(&chunks, &chunk);
    struct arena_chunk *found = inner ? bpf_map_lookup_elem(inner, &zero) : NULL;

    return found ? found->word : NULL;
}

ALWAYS_INLINE struct unwind_rule *rule_from_number(u32 number) {
    return bpf_map_lookup_elem(&rules, &number);
}

ALWAYS_INLINE long read_user(void *room, u32 len, u64 address, struct task_struct *of) {
    if (of)
        return bpf_copy_from_user_task(room, len, (void *)address, of, 0);
    return bpf_probe_read_user(room, len, (void *)address);
}

/* The process's mappings in its present image; NULL, and asked for, where they are not known. */
ALWAYS_INLINE struct unwind_process *mappings_of(u32 tgid, u32 exec_id) {
    struct unwind_process *process = bpf_map_lookup_elem(&processes, &tgid);
    u64 wanted = ((u64)tgid << 32) | exec_id;

    if (process && process->exec_id == exec_id)
        return process;
    bpf_ringbuf_output(&wanted_processes, &wanted, sizeof(wanted), 0);
    return NULL;
}

struct vma_look {
    u64 start;
    u64 end;
    u64 offset;
    struct file_key file;
    bool found;
};

static long look_at_vma(struct task_struct *task, struct vm_area_struct *vma, struct vma_look *look) {
    struct file *file = vma->vm_file;

    if (!file)
        return 0;
    look->start = vma->vm_start;
    look->end = vma->vm_end;
    look->offset = (u64)vma->vm_pgoff * 4096;
    look->file.inode = BPF_CORE_READ(file, f_inode, i_ino);
    look->file.device = BPF_CORE_READ(file, f_inode, i_sb, s_dev);
    look->found = true;
    return 0;
}

/* The mapping that holds pc, from the process's memory itself: for processes that user space has not told
 * about. Fails while another thread changes the memory. */
ALWAYS_INLINE bool find_in_memory(struct unwind_mapping *mapping, u64 pc, struct task_struct *of) {
    struct task_struct *task = of ? of : bpf_get_current_task_btf();
    struct vma_look look = {};
    struct unwind_file *file;

    if (bpf_find_vma(task, pc, look_at_vma, &look, 0) || !look.found)
        return false;
    file = bpf_map_lookup_elem(&files, &look.file);
    if (!file)
        return false;
    mapping->start = look.start;
    mapping->len = look.end - look.start;
    mapping->bias = look.start - look.offset - file->delta;
    mapping->directory = file->directory;
    mapping->pages = file->pages;
    return true;
}

/* A new process has its parent's memory until it says otherwise. */
ALWAYS_INLINE void inherit_mappings(struct task_struct *parent, struct task_struct *child) {
    u32 from = parent->tgid, to = child->tgid;
    struct unwind_process *process = bpf_map_lookup_elem(&processes, &from);

    if (process && process->exec_id == (u32)parent->self_exec_id)
        bpf_map_update_elem(&processes, &to, process, BPF_ANY);
}
