/* Why a thread goes to sleep: from its system call and the decisive arguments, in_iowait, the task state and,
 * for uninterruptible sleeps, the kernel functions it sleeps in.
 *
 * Which system call means what is user space's table (crates/probe/src/reasons.rs); what needs a look at
 * arguments is here. */
#pragma once

#include "stack.h"

#define NR_FUTEX 202
#define FUTEX_CMD 0x7f
#define FUTEX_WAIT 0
#define FUTEX_LOCK_PI 6
#define FUTEX_WAIT_BITSET 9
#define FUTEX_WAIT_REQUEUE_PI 11
#define FUTEX_LOCK_PI2 13
#define FUTEX_CLOCK_REALTIME 256
#define FUTEX_PRIVATE 128
#define FUTEX_WAITERS 0x80000000U
#define FUTEX_TID_MASK 0x3fffffffU
#define MUTEX_CONTENDED 2
#define THREAD_PARKED 0xffffffffU

#define F_SETLKW 7
#define F_OFD_SETLKW 38

/* glibc's pthread_mutex_t: lock word, count, owner. */
#define MUTEX_OWNER_OFFSET 8

ALWAYS_INLINE void note_owner(struct thread_state *t, u32 owner) {
    owner &= FUTEX_TID_MASK;
    t->lock_owner = owner;
    t->owner_known = owner != 0;
}

/* Reads the owner from user memory, which only the thread itself can. Absent pages mean unknown. */
ALWAYS_INLINE void read_owner(struct thread_state *t, u64 address, bool own) {
    u32 owner = 0;

    if (own && !bpf_probe_read_user(&owner, sizeof(owner), (void *)address))
        note_owner(t, owner);
}

/* A futex tells its users apart by operation and value:
 *   glibc mutex        WAIT, 2                      glibc timed mutex   WAIT_BITSET, 2
 *   robust mutex       WAIT, tid|WAITERS            PI mutex            LOCK_PI(2)
 *   condvar, semaphore WAIT_BITSET|REALTIME, 0      rwlock              WAIT_BITSET|REALTIME, not 0
 *   join               WAIT_BITSET|REALTIME, shared (op 265)
 *   Rust: mutex WAIT_BITSET, 2; parked thread -1; rwlock has one of its two top bits set; condvar a counter
 * Observed with glibc 2.36 and Rust 1.95. */
ALWAYS_INLINE u8 futex_reason(struct thread_state *t, u64 address, u64 op, u32 value, bool own) {
    u64 command = op & FUTEX_CMD;
    bool lock = false;

    if (command == FUTEX_LOCK_PI || command == FUTEX_LOCK_PI2) {
        read_owner(t, address, own);
        lock = true;
    } else if (command == FUTEX_WAIT) {
        if (value == MUTEX_CONTENDED) {
            read_owner(t, address + MUTEX_OWNER_OFFSET, own);
            lock = true;
        } else if ((value & FUTEX_WAITERS) && value != THREAD_PARKED) {
            note_owner(t, value);
            lock = true;
        }
    } else if (command == FUTEX_WAIT_BITSET) {
        bool rust_rwlock = (value >> 30) && value != THREAD_PARKED;
        bool glibc_rwlock = (op & FUTEX_CLOCK_REALTIME) && (op & FUTEX_PRIVATE) && value;

        lock = value == MUTEX_CONTENDED || rust_rwlock || glibc_rwlock;
        if (value == MUTEX_CONTENDED)
            read_owner(t, address + MUTEX_OWNER_OFFSET, own);
    }
    if (!lock)
        return REASON_WAIT;
    t->futex_lock = 1;
    t->lock_address = address;
    return REASON_LOCK;
}

/* The file behind a descriptor of the task; NULL: there is none. */
ALWAYS_INLINE struct file *file_of(struct task_struct *task, u64 fd) {
    struct fdtable *table;
    struct file *file = NULL;

    if (!task->files)
        return NULL;
    table = task->files->fdt;
    if (!table || fd >= table->max_fds)
        return NULL;
    if (bpf_probe_read_kernel(&file, sizeof(file), &table->fd[fd]))
        return NULL;
    return file;
}

/* What a read or write on this descriptor of the task waits for. */
ALWAYS_INLINE u8 file_reason(struct task_struct *task, u64 fd) {
    struct file *file = file_of(task, fd);
    struct inode *inode;
    u32 kind;

    if (!file)
        return REASON_OTHER;
    inode = BPF_CORE_READ(file, f_inode);
    kind = BPF_CORE_READ(inode, i_mode) & S_IFMT;
    switch (kind) {
    case S_IFIFO:
        return REASON_PIPE;
    case S_IFSOCK: {
        struct socket *socket = BPF_CORE_READ(file, private_data);

        return BPF_CORE_READ(socket, sk, __sk_common.skc_family) == AF_UNIX ? REASON_IPC : REASON_NETWORK;
    }
    case S_IFCHR:
        return REASON_POLL; /* a terminal or a device that has nothing to say yet */
    default:
        /* eventfd, timerfd, inotify: anonymous inodes, which 6.16+ calls regular. */
        if (BPF_CORE_READ(inode, i_sb, s_magic) == ANON_INODE_FS_MAGIC)
            return REASON_WAIT;
        return REASON_DISK;
    }
}

struct site_walk {
    struct stack_room *room;
    u32 reason;
};

static long site_step(u32 index, struct site_walk *walk) {
    u64 address;
    u32 i;

    if (index >= SITE_FRAMES)
        return 1;
    address = walk->room->stack.address[index];
    for (i = 0; i < MAX_SITES; i++) {
        if (i >= site_count)
            break;
        if (address >= sites[i].from && address < sites[i].to) {
            walk->reason = sites[i].reason;
            return 1;
        }
    }
    return 0;
}

/* The reason of the innermost known sleeping place on the current task's kernel stack, or CLASS_NONE. Costs a
 * stack walk: for uninterruptible sleeps only, which are few. */
ALWAYS_INLINE u8 site_reason(void *ctx, struct cpu_state *cpu) {
    struct site_walk walk = {.reason = CLASS_NONE};
    long bytes;

    walk.room = enter_scratch(cpu);
    if (!walk.room)
        return CLASS_NONE;
    bytes = bpf_get_stack(ctx, walk.room->stack.address, SITE_FRAMES * 8, 0);
    if (bytes > 0)
        bpf_loop((u32)bytes / 8, site_step, &walk, 0);
    leave_scratch(cpu);
    return walk.reason;
}

/* The system call the task is in, or -1: not in one (a fault, an interrupt), a kernel thread, or a 32-bit
 * call, whose numbers are others. */
ALWAYS_INLINE s32 syscall_of(struct task_struct *task, struct pt_regs *regs) {
    if ((task->flags & PF_KTHREAD) || (task->thread_info.status & TS_COMPAT))
        return -1;
    return (s32)regs->orig_ax;
}

/* Sets reason, syscall and lock of a thread that sleeps in state `prev_state`. `cpu` is NULL where another
 * thread is current: its memory and kernel stack are then left alone. */
ALWAYS_INLINE void classify(void *ctx, struct cpu_state *cpu, struct thread_state *t,
                            struct task_struct *prev, u32 prev_state) {
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(prev);
    s32 nr = syscall_of(prev, regs);
    u8 class = CLASS_NONE;
    bool uninterruptible = (prev_state & TASK_UNINTERRUPTIBLE) && !(prev_state & TASK_NOLOAD);

    t->syscall = nr;
    t->futex_lock = 0;
    t->owner_known = 0;
    if (prev_state & (TASK_STOPPED | TASK_TRACED | TASK_FROZEN)) {
        t->reason = REASON_STOPPED;
        return;
    }
    if (nr >= 0 && nr < MAX_SYSCALLS)
        class = syscall_class[nr];
    if (likely(class < REASONS && !uninterruptible)) {
        t->reason = class;
        return;
    }
    if (class == CLASS_FUTEX && !uninterruptible) {
        t->reason = futex_reason(t, regs->di, regs->si, (u32)regs->dx, cpu != NULL);
        return;
    }
    if (class == CLASS_COMPLETION) {
        t->reason = REASON_POLL;
        return;
    }
    if (BPF_CORE_READ_BITFIELD(prev, in_iowait)) {
        t->reason = REASON_DISK;
        return;
    }
    if (uninterruptible) {
        u8 site = cpu ? site_reason(ctx, cpu) : CLASS_NONE;

        if (site < REASONS) {
            t->reason = site;
            return;
        }
        switch (class) {
        case CLASS_CHILD_IF_D:
            t->reason = REASON_CHILD;
            return;
        case CLASS_DISK_IF_D:
            t->reason = REASON_DISK;
            return;
        case CLASS_MEMORY_IF_D:
            t->reason = REASON_MEMORY;
            return;
        }
        if (class == CLASS_NONE && nr < 0 && !(prev->flags & PF_KTHREAD)) {
            t->reason = REASON_MEMORY; /* a page fault */
            return;
        }
    }
    if (class == CLASS_FILE)
        t->reason = file_reason(prev, regs->di);
    else if (class == CLASS_FCNTL)
        t->reason = regs->si == F_SETLKW || regs->si == F_OFD_SETLKW ? REASON_LOCK : REASON_OTHER;
    else if (class < REASONS)
        t->reason = class;
    else if (prev->flags & PF_KTHREAD)
        t->reason = uninterruptible ? REASON_OTHER : REASON_WAIT; /* parked kernel workers */
    else
        t->reason = nr < 0 ? REASON_MEMORY : REASON_OTHER; /* outside system calls: userfaultfd */
}

struct timespec64 {
    s64 seconds;
    s64 nanoseconds;
};

#define NR_POLL 7
#define NR_SELECT 23
#define NR_NANOSLEEP 35
#define NR_CLOCK_NANOSLEEP 230
#define NR_EPOLL_WAIT 232
#define NR_PSELECT6 270
#define NR_PPOLL 271
#define NR_EPOLL_PWAIT 281
#define NR_EPOLL_PWAIT2 441
#define TIMER_ABSTIME 1
#define CLOCK_REALTIME 0
#define CLOCK_MONOTONIC 1
#define CLOCK_BOOTTIME 7
#define CLOCK_REALTIME_ALARM 8
#define CLOCK_BOOTTIME_ALARM 9
#define CLOCK_TAI 11
#define SLACK_LIMIT_NS 100000000ULL
#define DEFAULT_PRIO 120 /* of nice 0 */

ALWAYS_INLINE bool read_time(u64 address, u64 unit, u64 *ns) {
    struct timespec64 time = {};

    if (!address || bpf_probe_read_user(&time, sizeof(time), (void *)address) || time.seconds < 0)
        return false;
    if (time.seconds > 4000000000LL)
        return false; /* as good as for ever */
    *ns = (u64)time.seconds * 1000000000ULL + (u64)time.nanoseconds * unit;
    return true;
}

ALWAYS_INLINE bool milliseconds(u64 argument, u64 *ns) {
    *ns = (u64)(u32)argument * 1000000ULL;
    return (s32)argument > 0;
}

/* How far a clock is ahead of CLOCK_MONOTONIC. False: it does not run with the time that passes (the clocks
 * of processes and threads run with their CPU time), or it is not known here. */
ALWAYS_INLINE bool clock_offset(u32 clock, u64 *offset) {
    switch (clock) {
    case CLOCK_MONOTONIC:
        *offset = 0;
        return true;
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_ALARM:
        *offset = epoch_offset;
        return true;
    case CLOCK_BOOTTIME:
    case CLOCK_BOOTTIME_ALARM:
        *offset = bpf_ktime_get_boot_ns() - bpf_ktime_get_ns();
        return true;
    case CLOCK_TAI:
        *offset = bpf_ktime_get_tai_ns() - bpf_ktime_get_ns();
        return true;
    }
    return false;
}

/* A deadline by CLOCK_MONOTONIC as a length from `start`. */
ALWAYS_INLINE u64 until(u64 deadline, u64 start) {
    return (s64)(deadline - start) > 0 ? deadline - start : 0;
}

/* The kernel reads the timeout of LOCK_PI by CLOCK_REALTIME whatever the flag says (futex(2)). */
ALWAYS_INLINE u64 futex_clock_offset(u64 op) {
    bool realtime = (op & FUTEX_CLOCK_REALTIME) || (op & FUTEX_CMD) == FUTEX_LOCK_PI;

    return realtime ? epoch_offset : 0;
}

/* The timeout that the current thread, back from a wait that began at `start`, had asked for, ns from
 * `start`; and how much later its kernel may wake it by its own rules (timer slack; for poll-like calls a
 * thousandth of the timeout, five for a thread with a nice value: fs/select.c select_estimate_accuracy).
 * False: it asked for none. */
ALWAYS_INLINE bool asked_timeout(struct task_struct *task, struct thread_state *t, u64 start, u64 *ns,
                                 u64 *slack) {
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
    bool poll_like = true;
    bool asked = false;
    u64 own_slack = task->timer_slack_ns;
    u64 offset = 0;

    switch (t->syscall) {
    case NR_POLL:
        asked = milliseconds(regs->dx, ns);
        break;
    case NR_EPOLL_WAIT:
    case NR_EPOLL_PWAIT:
        asked = milliseconds(regs->r10, ns);
        break;
    case NR_EPOLL_PWAIT2:
        asked = read_time(regs->r10, 1, ns);
        break;
    case NR_PPOLL:
        asked = read_time(regs->dx, 1, ns);
        break;
    case NR_SELECT:
        asked = read_time(regs->r8, 1000, ns);
        break;
    case NR_PSELECT6:
        asked = read_time(regs->r8, 1, ns);
        break;
    case NR_NANOSLEEP:
        poll_like = false;
        asked = read_time(regs->di, 1, ns);
        break;
    case NR_CLOCK_NANOSLEEP:
        poll_like = false;
        asked = clock_offset((u32)regs->di, &offset) && read_time(regs->dx, 1, ns);
        if (asked && (regs->si & TIMER_ABSTIME))
            *ns = until(*ns - offset, start);
        break;
    case NR_FUTEX:
        poll_like = false;
        asked = read_time(regs->r10, 1, ns);
        if (asked && (regs->si & FUTEX_CMD) != FUTEX_WAIT)
            *ns = until(*ns - futex_clock_offset(regs->si), start);
        break;
    }
    *slack = own_slack;
    if (asked && poll_like && own_slack) {
        u64 coarse = *ns / (task->static_prio > DEFAULT_PRIO ? 200 : 1000);

        if (coarse > SLACK_LIMIT_NS)
            coarse = SLACK_LIMIT_NS;
        if (coarse > own_slack)
            *slack = coarse;
    }
    return asked;
}
