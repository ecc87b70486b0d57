/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The few kernel types that the probes read, each field relocated by CO-RE (a full vmlinux.h is most of
 * the time of a BPF compile). Field order and size here mean nothing; names and nesting do. */
#pragma once

#include "integers.h"

typedef _Bool bool;

#define true 1
#define false 0
#define NULL ((void *)0)

/* bpf_helper_defs.h uses these. */
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef s32 __s32;
typedef s64 __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u32 __wsum;
typedef short __s16;

enum cpuhp_state {
    CPUHP_AP_PERF_ONLINE = 1,
};

enum bpf_map_type {
    BPF_MAP_TYPE_HASH = 1,
    BPF_MAP_TYPE_ARRAY = 2,
    BPF_MAP_TYPE_PERCPU_ARRAY = 6,
    BPF_MAP_TYPE_LRU_HASH = 9,
    BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
    BPF_MAP_TYPE_RINGBUF = 27,
    BPF_MAP_TYPE_TASK_STORAGE = 29,
};

enum {
    BPF_ANY = 0,
    BPF_NOEXIST = 1,
    BPF_F_NO_PREALLOC = 1,
    BPF_F_MMAPABLE = 1024,
    BPF_F_USER_STACK = 256,
    BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
    BPF_RB_NO_WAKEUP = 1,
    BPF_RB_FORCE_WAKEUP = 2,
    BPF_RB_AVAIL_DATA = 0,
    BPF_RB_RING_SIZE = 1,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct pt_regs {
    unsigned long bp, bx, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, sp, flags;
    unsigned short cs;
};

struct thread_info {
    u32 status;
    u32 cpu;
};

struct __call_single_node {
    unsigned int u_flags;
};

struct __call_single_data {
    struct __call_single_node node;
    void *func;
};

struct sched_info {
    unsigned long pcount;
    unsigned long long run_delay;
    unsigned long long last_arrival;
    unsigned long long last_queued;
};

struct rq {
    unsigned int nr_running;
    u64 clock;
    u64 clock_task;
};

struct cfs_rq {
    struct rq *rq;
};

struct sched_entity {
    u64 exec_start;
    u64 sum_exec_runtime;
    u64 prev_sum_exec_runtime;
    struct cfs_rq *cfs_rq;
};

struct upid {
    int nr;
};

struct pid {
    unsigned int level;
    struct upid numbers[0];
};

struct qstr {
    const unsigned char *name;
};

struct dentry {
    struct qstr d_name;
};

struct path {
    struct dentry *dentry;
};

struct super_block {
    unsigned int s_dev;
    unsigned long s_magic;
};

/* bpf/reason.h has the one of user space under the plain name. */
struct timespec64___kernel {
    s64 tv_sec;
    long tv_nsec;
};

struct inode {
    u16 i_mode;
    unsigned long i_ino;
    struct super_block *i_sb;
    s64 i_size;
    s64 i_ctime_sec; /* 6.11+ */
    u32 i_ctime_nsec;
};

/* 6.6 to 6.10 */
struct inode___ctime_behind_accessors {
    struct timespec64___kernel __i_ctime;
};

/* up to 6.5 */
struct inode___ctime_as_timespec {
    struct timespec64___kernel i_ctime;
};

struct in6_addr {
    u8 in6_u[16];
};

struct sock_common {
    u16 skc_family;
    u8 skc_state;
    u32 skc_daddr;
    u32 skc_rcv_saddr;
    u16 skc_dport;
    u16 skc_num;
    struct in6_addr skc_v6_daddr; /* with CONFIG_IPV6 */
    struct in6_addr skc_v6_rcv_saddr;
};

typedef struct {
    int counter;
} atomic_t;

typedef struct refcount_struct {
    atomic_t refs;
} refcount_t;

struct sock {
    struct sock_common __sk_common;
    u32 sk_max_ack_backlog;
    u16 sk_protocol;
    struct pid *sk_peer_pid;
    refcount_t sk_wmem_alloc;
    u8 sk_userlocks : 4;
};

struct inet_sock {
    atomic_t inet_id;
};

/* up to 6.5 */
struct inet_sock___short_id {
    u16 inet_id;
};

struct tcp_sock {
    u32 write_seq;
    u64 bytes_sent;
    u64 bytes_received;
};

struct unix_sock {
    void *addr;
    struct sock *peer;
};

struct socket {
    struct sock *sk;
};

struct file {
    struct inode *f_inode;
    struct path f_path;
    s64 f_pos;
    void *private_data;
};

struct vm_area_struct {
    unsigned long vm_start;
    unsigned long vm_end;
    struct mm_struct *vm_mm;
    unsigned long vm_pgoff;
    unsigned long vm_flags;
    struct file *vm_file;
};

struct fdtable {
    unsigned int max_fds;
    struct file **fd;
};

struct files_struct {
    struct fdtable *fdt;
};

struct kernfs_node {
    u64 id;
};

struct list_head {
    struct list_head *next;
};

struct cgroup_root {
    int hierarchy_id;
};

struct cgroup {
    int level;
    struct kernfs_node *kn;
    struct cgroup_root *root;
    struct cgroup *ancestors[];
};

struct css_set {
    struct cgroup *dfl_cgrp;
    struct list_head cgrp_links;
};

struct cgrp_cset_link {
    struct cgroup *cgrp;
    struct list_head cgrp_link;
};

/* atomic_long_t */
struct atomic_number {
    s64 counter;
};

struct mutex {
    struct atomic_number owner;
};

struct rw_semaphore {
    struct atomic_number owner;
};

typedef struct {
    void *vdso; /* where it starts */
} mm_context_t;

struct mm_struct {
    mm_context_t context;
    struct rw_semaphore mmap_lock;
    struct file *exe_file;
    unsigned long start_brk;
    unsigned long brk;
};

struct timens_offsets {
    struct timespec64___kernel monotonic;
    struct timespec64___kernel boottime;
};

struct time_namespace {
    struct timens_offsets offsets;
};

struct nsproxy {
    struct time_namespace *time_ns;
};

/* Seen in 7.3: what a task has for futexes is in a structure of its own. */
struct futex_sched_data {
    void *robust_list;
};

struct task_struct___with_futex {
    struct futex_sched_data futex;
};

/* x86_64. The thread pointer of a thread that runs is the one that it had when it came to its CPU. */
struct thread_struct {
    unsigned long fsbase;
};

struct task_struct {
    struct thread_info thread_info;
    unsigned int __state;
    unsigned int flags;
    unsigned int
        on_cpu; /* an int up to 7.1, one byte in 7.2: only reads of unsigned fields are fitted to the size */
    struct sched_entity se;
    struct sched_info sched_info;
    unsigned int in_iowait : 1;
    unsigned int frozen : 1; /* by the freezer of cgroup v2 */
    unsigned long nvcsw;
    unsigned long nivcsw;
    int pagefault_disabled;
    void *stack;
    int prio;
    int static_prio;
    int pid;
    int tgid;
    struct mm_struct *mm;
    struct task_struct *real_parent;
    struct task_struct *group_leader;
    struct pid *thread_pid;
    u64 start_boottime;
    char comm[16];
    struct files_struct *files;
    struct css_set *cgroups;
    struct nsproxy *nsproxy;
    void *robust_list;     /* what set_robust_list(2) registered; before 7.3 */
    unsigned long blocker; /* 6.16+, with CONFIG_DETECT_HUNG_TASK_BLOCKER */
    u64 self_exec_id;
    u64 timer_slack_ns;
    struct thread_struct thread;
};

struct seq_file;

struct bpf_iter_meta {
    struct seq_file *seq;
    u64 session_id;
    u64 seq_num;
};

struct bpf_iter__task {
    struct bpf_iter_meta *meta;
    struct task_struct *task;
};

#pragma clang attribute pop

/* The context of a perf_event program: plain UAPI, not relocated. x86_64 register order. */
struct user_pt_regs {
    unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags,
        sp, ss;
};

struct bpf_perf_event_data {
    struct user_pt_regs regs;
    u64 sample_period;
    u64 addr;
};

/* Task states and flags: linux/sched.h, stable since 4.14. */
#define TASK_RUNNING 0x0
#define TASK_INTERRUPTIBLE 0x1
#define TASK_UNINTERRUPTIBLE 0x2
#define TASK_STOPPED 0x4
#define TASK_TRACED 0x8
#define TASK_DEAD 0x80
#define TASK_WAKING 0x200
#define TASK_NOLOAD 0x400
#define TASK_FROZEN 0x8000
#define PF_POSTCOREDUMP 0x00000008
#define PF_IO_WORKER 0x00000010
#define PF_DUMPCORE 0x00000200
#define PF_USER_WORKER 0x00004000 /* 6.4+; no flag before */
#define PF_KTHREAD 0x00200000
#define TS_COMPAT 0x2
#define CLONE_THREAD 0x10000

/* x86 page fault error codes: asm/trap_pf.h. */
#define PF_ERROR_WRITE 0x2
#define PF_ERROR_EXEC 0x10
/* trace/events/lock.h, LCB_F_… */
#define LOCK_SPINS 1
#define LOCK_READS 2
#define LOCK_WRITES 4
#define LOCK_IS_RT 8
#define LOCK_PER_CPU 16
#define LOCK_IS_MUTEX 32
/* linux/mm.h */
#define VM_GROWSDOWN 0x100
#define VM_HUGETLB 0x400000
/* asm-generic/signal.h */
#define SIGNAL_BUS 7
#define SIGNAL_SEGV 11

#define S_IFMT 0170000
#define S_IFREG 0100000
#define S_IFBLK 0060000
#define S_IFIFO 0010000
#define S_IFCHR 0020000
#define S_IFSOCK 0140000
/* linux/magic.h */
#define ANON_INODE_FS_MAGIC 0x09041934
#define PROC_SUPER_MAGIC 0x9fa0
#define SYSFS_MAGIC 0x62656572
#define DEBUGFS_MAGIC 0x64626720
#define TRACEFS_MAGIC 0x74726163
#define SECURITYFS_MAGIC 0x73636673
#define CGROUP_SUPER_MAGIC 0x27e0eb
#define CGROUP2_SUPER_MAGIC 0x63677270
#define FUSE_SUPER_MAGIC 0x65735546
#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
