/* SPDX-License-Identifier: Apache-2.0 */
/* libbpf's header of the same name, for the host. host.c has the helpers. */
#pragma once

#define SEC(name)
#define __weak __attribute__((weak))
#define __ksym
#define bpf_ksym_exists(function) ((function) != NULL)
#define __uint(name, val) int(*name)[val]
#define __type(name, val) __typeof__(val) *name
#define __array(name, val) __typeof__(val) *name[]
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define barrier() __asm__ volatile("" ::: "memory")
#define barrier_var(var) __asm__ volatile("" : "+r"(var))

#define bpf_loop(count, step, context, flags)                                                                \
    ({                                                                                                       \
        u32 count_ = (count), index_ = 0;                                                                    \
        while (index_ < count_ && !step(index_, context))                                                    \
            index_++;                                                                                        \
        (long)index_;                                                                                        \
    })

/* Its callback's last argument has a type of its own. No memory of a process exists here. */
#define bpf_find_vma(task, address, callback, context, flags)                                                \
    ({                                                                                                       \
        (void)(task), (void)(callback);                                                                      \
        -2L;                                                                                                 \
    })

u64 bpf_ktime_get_ns(void);
u64 bpf_ktime_get_boot_ns(void);
u64 bpf_ktime_get_tai_ns(void);
u32 bpf_get_smp_processor_id(void);
u64 bpf_get_current_pid_tgid(void);
struct task_struct *bpf_get_current_task_btf(void);
u64 bpf_get_attach_cookie(void *ctx);
long bpf_task_pt_regs(struct task_struct *task);

void *bpf_map_lookup_elem(void *map, const void *key);
void *bpf_map_lookup_percpu_elem(void *map, const void *key, u32 cpu);
long bpf_map_update_elem(void *map, const void *key, const void *value, u64 flags);
long bpf_map_delete_elem(void *map, const void *key);
void *bpf_task_storage_get(void *map, struct task_struct *task, void *value, u64 flags);
long bpf_task_storage_delete(void *map, struct task_struct *task);

void *bpf_ringbuf_reserve(void *ring, u64 size, u64 flags);
void bpf_ringbuf_submit(void *record, u64 flags);
u64 bpf_ringbuf_query(void *ring, u64 flags);
long bpf_seq_write(struct seq_file *seq, const void *record, u32 len);

long bpf_probe_read_kernel(void *to, u32 len, const void *from);
long bpf_probe_read_kernel_str(void *to, u32 len, const void *from);
long bpf_probe_read_user(void *to, u32 len, const void *from);
long bpf_copy_from_user_task(void *to, u32 len, const void *from, struct task_struct *task, u64 flags);
long bpf_get_stack(void *ctx, void *to, u32 len, u64 flags);
long bpf_get_task_stack(struct task_struct *task, void *to, u32 len, u64 flags);
