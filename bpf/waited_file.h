/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The file that a wait for a disk was for: that of the system call's descriptor.
 *
 * Calls that take a path have none: their arguments are no longer in the registers, and the directory
 * would not help much. */
#pragma once

#include "include/records.h"
#include "include/syscalls.h"
#include "open_file.h"
#include "settings.h"

ALWAYS_INLINE bool has_descriptor(s32 nr) {
    u8 class;

    if (nr < 0 || nr >= MAX_SYSCALLS || nr == NR_SYNC)
        return false;
    class = syscall_class[nr];
    return class == CLASS_FILE || class == CLASS_DISK_IF_D;
}

/* The file's own position moves when the call is done. */
ALWAYS_INLINE u64 waited_offset(struct file *file, struct pt_regs *regs, s32 nr) {
    switch (nr) {
    case NR_READ:
    case NR_WRITE:
    case NR_READV:
    case NR_WRITEV:
        return BPF_CORE_READ(file, f_pos);
    case NR_PREAD64:
    case NR_PWRITE64:
    case NR_PREADV:
    case NR_PWRITEV:
    case NR_PREADV2:
    case NR_PWRITEV2:
        return regs->r10;
    }
    return NO_OFFSET;
}

/* Sets nothing where the descriptor has been closed meanwhile, or is neither a regular file's nor a
 * disk's. */
NOINLINE int note_waited_file(struct task_struct *task, struct stall_record *stall, s32 nr) {
    struct pt_regs *regs;
    struct file *file;
    struct inode *inode;
    u32 kind;

    if (!task || !stall || !has_descriptor(nr))
        return 0;
    regs = (struct pt_regs *)bpf_task_pt_regs(task);
    file = file_of(task, regs->di);
    if (!file)
        return 0;
    inode = BPF_CORE_READ(file, f_inode);
    kind = BPF_CORE_READ(inode, i_mode) & S_IFMT;
    if (kind != S_IFREG && kind != S_IFBLK)
        return 0;
    stall->flags |= STALL_FILE;
    stall->fault.address = regs->di;
    stall->fault.mapping = MAPPING_FILE;
    stall->fault.inode = BPF_CORE_READ(inode, i_ino);
    stall->fault.device = BPF_CORE_READ(inode, i_sb, s_dev);
    stall->fault.file_offset = waited_offset(file, regs, nr);
    bpf_probe_read_kernel_str(stall->fault.file_name, FILE_NAME_LEN,
                              BPF_CORE_READ(file, f_path.dentry, d_name.name));
    return 0;
}
