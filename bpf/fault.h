/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The facts of a page fault: its address, and the mapping there. */
#pragma once

#include "bpf_api.h"
#include "include/records.h"
#include "thread_state.h"

struct mapping_lookup {
    struct fault_facts *facts;
    u64 stack_pointer;
    u64 heap_start;
    u64 heap_end;
};

ALWAYS_INLINE void read_file_facts(struct fault_facts *facts, struct vm_area_struct *vma) {
    struct file *file = BPF_CORE_READ(vma, vm_file);

    facts->mapping = MAPPING_FILE;
    facts->file_offset = (u64)vma->vm_pgoff * 4096 + (facts->address - vma->vm_start);
    facts->inode = BPF_CORE_READ(file, f_inode, i_ino);
    facts->device = BPF_CORE_READ(file, f_inode, i_sb, s_dev);
    bpf_probe_read_kernel_str(facts->file_name, FILE_NAME_LEN,
                              BPF_CORE_READ(file, f_path.dentry, d_name.name));
}

static long read_mapping(struct task_struct *task, struct vm_area_struct *vma,
                         struct mapping_lookup *lookup) {
    struct fault_facts *facts = lookup->facts;
    u64 start = vma->vm_start, end = vma->vm_end;

    if (vma->vm_flags & VM_HUGETLB)
        facts->mapping = MAPPING_HUGE;
    else if (BPF_CORE_READ(vma, vm_file))
        read_file_facts(facts, vma);
    else if ((vma->vm_flags & VM_GROWSDOWN) || lookup->stack_pointer - start < end - start)
        facts->mapping = MAPPING_STACK;
    else if (start < lookup->heap_end && end > lookup->heap_start)
        facts->mapping = MAPPING_HEAP;
    else
        facts->mapping = MAPPING_ANONYMOUS;
    return 0;
}

/* Fails while another thread changes the memory: the mapping is then unknown. */
ALWAYS_INLINE void find_mapping_of(struct task_struct *task, struct fault_facts *facts) {
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
    struct mapping_lookup lookup = {.facts = facts, .stack_pointer = regs->sp};

    lookup.heap_start = BPF_CORE_READ(task, mm, start_brk);
    lookup.heap_end = BPF_CORE_READ(task, mm, brk);
    bpf_find_vma(task, facts->address, read_mapping, &lookup, 0);
}

ALWAYS_INLINE void note_facts(struct task_struct *task, struct thread_state *t, struct stall_record *stall) {
    stall->flags |= STALL_FAULT;
    stall->reason = t->fault.sleep;
    stall->fault.address = t->fault.address;
    stall->fault.access = t->fault.access;
    find_mapping_of(task, &stall->fault);
}
