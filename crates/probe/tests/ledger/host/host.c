// SPDX-License-Identifier: Apache-2.0
/* The kernel side on the host: the programs of bpf/, driven by commands on stdin, one a line. What they write
 * to their rings and iterators goes to stdout. crates/probe/tests/ledger/kernel.rs writes the commands.
 *
 * Time, the current CPU and the current task are what the commands say. Maps are arrays in memory. The
 * programs run one at a time: concurrency is not tested here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each is defined again in bpf/include/kernel.h. */
#undef NULL

/* Settings that are constant for the verifier differ from test to test. */
#define const
/* unwind.h takes the kernel side's own tables, which are empty here. */
#define __bpf__
/* <stdlib.h> has another function of that name. */
#define on_exit on_thread_exit
#include "wallprof.bpf.c"

#define CPUS 8
#define TASKS 64

/* ---- tasks ---- */

/* A pid in the outermost namespace. */
struct host_pid {
    struct pid pid;
    struct upid number;
};

struct host_task {
    struct task_struct task; /* first: a task's address is that of its host_task */
    struct pt_regs regs;
    struct pt_regs faulting; /* of the code that takes a page fault */
    struct mm_struct mm;
    struct host_pid pid;
    struct thread_state state;
    bool has_state;
    struct open_spans spans;
    bool has_spans;
};

static struct host_task tasks[TASKS];
/* The idle tasks, one a CPU. All have pid 0. */
static struct host_task idle[CPUS];
static struct host_task *current[CPUS];
static u64 now;
static u32 cpu_now;

static struct host_task *task_from_number(long number) {
    return number < 0 ? &idle[-number - 1] : &tasks[number % TASKS];
}

u64 bpf_ktime_get_ns(void) { return now; }
u64 bpf_ktime_get_boot_ns(void) { return now; }
u64 bpf_ktime_get_tai_ns(void) { return now; }
u32 bpf_get_smp_processor_id(void) { return cpu_now; }

static u64 cookie;
u64 bpf_get_attach_cookie(void *ctx) { return cookie; }

struct task_struct *bpf_get_current_task_btf(void) { return &current[cpu_now]->task; }
long bpf_task_pt_regs(struct task_struct *task) { return (long)&((struct host_task *)task)->regs; }

u64 bpf_get_current_pid_tgid(void) {
    return (u64)current[cpu_now]->task.tgid << 32 | (u32)current[cpu_now]->task.pid;
}

void *bpf_task_storage_get(void *map, struct task_struct *task, void *value, u64 flags) {
    struct host_task *of = (struct host_task *)task;

    if (map == &open_spans) {
        if (!of->has_spans && (flags & BPF_LOCAL_STORAGE_GET_F_CREATE)) {
            memset(&of->spans, 0, sizeof(of->spans));
            of->has_spans = true;
        }
        return of->has_spans ? &of->spans : NULL;
    }
    if (!of->has_state && (flags & BPF_LOCAL_STORAGE_GET_F_CREATE)) {
        memset(&of->state, 0, sizeof(of->state));
        of->has_state = true;
    }
    return of->has_state ? &of->state : NULL;
}

long bpf_task_storage_delete(void *map, struct task_struct *task) {
    ((struct host_task *)task)->has_state = false;
    return 0;
}

/* ---- maps ---- */

struct entry {
    u8 *key;
    u8 *value;
};

struct host_map {
    void *map;
    const char *name;
    u32 type, key_size, value_size, capacity;
    u32 count;
    struct entry *entry; /* of a hash */
    u8 *array;
};

#define HOST_MAP(of)                                                                                         \
    {.map = &of,                                                                                             \
     .name = #of,                                                                                            \
     .type = sizeof(*of.type) / sizeof(int),                                                                 \
     .key_size = sizeof(*of.key),                                                                            \
     .value_size = sizeof(*of.value),                                                                        \
     .capacity = sizeof(*of.max_entries) / sizeof(int)}

static struct host_map maps[] = {
    HOST_MAP(cached_stacks),   HOST_MAP(cpus),
    HOST_MAP(cross_calls),     HOST_MAP(files),
    HOST_MAP(interrupts),      HOST_MAP(iter_scratch),
    HOST_MAP(latency),         HOST_MAP(losses),
    HOST_MAP(mark_slots),      HOST_MAP(noise),
    HOST_MAP(places),          HOST_MAP(processes),
    HOST_MAP(rules),           HOST_MAP(run_queues),
    HOST_MAP(samples),         HOST_MAP(spans),
    HOST_MAP(stack_scratch),   HOST_MAP(stacks),
    HOST_MAP(targets),         HOST_MAP(process_words),
    HOST_MAP(span_probe_hits), HOST_MAP(process_words_version),
};

#define MAPS (sizeof(maps) / sizeof(maps[0]))

static struct host_map *host_map(void *map) {
    u32 i;

    for (i = 0; i < MAPS; i++) {
        if (maps[i].map == map)
            return &maps[i];
    }
    fprintf(stderr, "a map that host.c does not have\n");
    exit(1);
}

static u8 *array_slot(struct host_map *map, u32 index, u32 cpu) {
    u64 size = map->value_size, of_cpu = map->type == BPF_MAP_TYPE_PERCPU_ARRAY ? cpu : 0;

    if (index >= map->capacity || cpu >= CPUS)
        return NULL;
    if (!map->array)
        map->array = calloc((u64)map->capacity * CPUS, size);
    return map->array + (of_cpu * map->capacity + index) * size;
}

static struct entry *find_entry(struct host_map *map, const void *key) {
    u32 i;

    for (i = 0; i < map->count; i++) {
        if (!memcmp(map->entry[i].key, key, map->key_size))
            return &map->entry[i];
    }
    return NULL;
}

/* A ring a CPU: its records go to stdout at once. `ring_used` is what the readers have not taken, in percent.
 */
static u8 host_rings[CPUS];
static u64 ring_used;

void *bpf_map_lookup_elem(void *map, const void *key) {
    struct host_map *of;
    struct entry *entry;

    if (map == &rings)
        return *(u32 *)key < CPUS ? &host_rings[*(u32 *)key] : NULL;
    of = host_map(map);
    if (of->type == BPF_MAP_TYPE_ARRAY || of->type == BPF_MAP_TYPE_PERCPU_ARRAY)
        return array_slot(of, *(u32 *)key, cpu_now);
    entry = find_entry(of, key);
    return entry ? entry->value : NULL;
}

void *bpf_map_lookup_percpu_elem(void *map, const void *key, u32 cpu) {
    return array_slot(host_map(map), *(u32 *)key, cpu);
}

long bpf_map_update_elem(void *map, const void *key, const void *value, u64 flags) {
    struct host_map *of = host_map(map);
    struct entry *entry = find_entry(of, key);

    if (entry && (flags & BPF_NOEXIST))
        return -17; /* EEXIST */
    if (!entry) {
        if (of->count >= of->capacity)
            return -7; /* E2BIG */
        of->entry = realloc(of->entry, (of->count + 1) * sizeof(*entry));
        entry = &of->entry[of->count++];
        entry->key = malloc(of->key_size);
        entry->value = malloc(of->value_size);
        memcpy(entry->key, key, of->key_size);
    }
    memcpy(entry->value, value, of->value_size);
    return 0;
}

long bpf_map_delete_elem(void *map, const void *key) {
    struct host_map *of = host_map(map);
    struct entry *entry = find_entry(of, key);

    if (!entry)
        return -2; /* ENOENT */
    *entry = of->entry[--of->count];
    return 0;
}

/* ---- memory ---- */

/* The kernel stacks on which the programs' arguments lie. The page behind that of interrupts is not mapped.
 */
static u8 task_stack[STACK_BYTES] __attribute__((aligned(STACK_BYTES)));
static u8 interrupt_stack[STACK_BYTES + PAGE_BYTES] __attribute__((aligned(STACK_BYTES)));
static bool in_interrupt;

long bpf_probe_read_kernel(void *to, u32 len, const void *from) {
    u64 at = (u64)from, guard = (u64)interrupt_stack + STACK_BYTES;

    if (at < PAGE_BYTES || (s64)at < 0 || (at < guard + PAGE_BYTES && at + len > guard))
        return -14; /* EFAULT */
    memcpy(to, from, len);
    return 0;
}

long bpf_probe_read_kernel_str(void *to, u32 len, const void *from) {
    return snprintf(to, len, "%s", (char *)from) + 1;
}

/* The memory of processes: eight bytes at each of a few addresses. */
#define USER_WORDS 24
static struct {
    u64 address;
    u64 value;
} user_memory[USER_WORDS];

static const u64 *user_word(u64 address) {
    u32 i;

    for (i = 0; i < USER_WORDS; i++) {
        if (user_memory[i].address && user_memory[i].address == address)
            return &user_memory[i].value;
    }
    return NULL;
}

long bpf_probe_read_user(void *to, u32 len, const void *from) {
    u32 done, more;

    memset(to, 0, len);
    for (done = 0; done < len; done += more) {
        const u64 *word = user_word((u64)from + done);

        if (!word)
            return -14;
        more = len - done < 8 ? len - done : 8;
        memcpy((u8 *)to + done, word, more);
    }
    return 0;
}

static void write_memory(u64 address, u64 value) {
    u32 i;

    for (i = 0; i < USER_WORDS; i++) {
        if (!user_memory[i].address || user_memory[i].address == address) {
            user_memory[i].address = address;
            user_memory[i].value = value;
            return;
        }
    }
    exit(1);
}

long bpf_copy_from_user_task(void *to, u32 len, const void *from, struct task_struct *task, u64 flags) {
    return bpf_probe_read_user(to, len, from);
}

/* The frames of a task's kernel stack: one that belongs to the task alone. A sampling interrupt can hit the
 * walk. */
static struct host_task *sampled_in_walk;
static void hit_walk(void);

long bpf_get_task_stack(struct task_struct *task, void *to, u32 len, u64 flags) {
    if (len < 8)
        return 0;
    *(u64 *)to = 0xffffffff81000000ULL + (u64)task->pid * 16;
    return 8;
}

long bpf_get_stack(void *ctx, void *to, u32 len, u64 flags) {
    long bytes = bpf_get_task_stack(bpf_get_current_task_btf(), to, len, flags);

    if (sampled_in_walk)
        hit_walk();
    return bytes;
}

/* ---- records ---- */

static void print_ledger(const char *name, struct ledger *ledger) {
    u32 i;

    printf(" %s.on_cpu=%lld %s.irq=%lld %s.runnable=%lld %s.preempted=%lld %s.fault_on_cpu=%lld", name,
           ledger->on_cpu, name, ledger->irq, name, ledger->runnable, name, ledger->preempted, name,
           ledger->fault_on_cpu);
    for (i = 0; i < SLEEPS; i++)
        printf(" %s.blocked.%u=%lld", name, i, ledger->blocked[i]);
    for (i = 0; i < FAULT_ENDS; i++)
        printf(" %s.faults.%u=%lld", name, i, ledger->faults[i]);
    printf(" %s.voluntary=%lld %s.involuntary=%lld %s.user_samples=%lld %s.kernel_samples=%lld", name,
           ledger->voluntary, name, ledger->involuntary, name, ledger->user_samples, name,
           ledger->kernel_samples);
}

static void print_thread(const char *what, struct thread_record *record) {
    printf("%s key=%u tid=%u tgid=%u observed_from=%llu since=%llu run_ns=%llu wake_ns=%llu boundary=%llu "
           "activity=%u reason=%u comm=%.16s",
           what, record->key, record->tid, record->tgid, record->observed_from, record->since, record->run_ns,
           record->wake_ns, record->boundary, record->activity, record->reason, record->comm);
    print_ledger("ledger", &record->ledger);
    print_ledger("at_boundary", &record->at_boundary);
    printf("\n");
}

static void print_second(struct second_record *record) {
    printf("second key=%u boundary=%llu since=%llu activity=%u reason=%u", record->key, record->boundary,
           record->since, record->activity, record->reason);
    print_ledger("ledger", &record->ledger);
    printf("\n");
}

static void print_stall(const char *what, struct stall_record *stall) {
    u32 i;

    printf("%s key=%u start=%llu end=%llu runnable=%llu blocked=%llu reason=%u flags=%u cpu=%u syscall=%d "
           "waker=%u waker_comm=%.16s user_stack=%u kernel_stack=%u place=%u comm=%.16s rans=%u",
           what, stall->key, stall->start, stall->end, stall->runnable_ns, stall->blocked_ns, stall->reason,
           stall->flags, stall->cpu, stall->syscall, stall->waker.tid,
           stall->waker.comm[0] ? (char *)stall->waker.comm : "-", stall->user_stack != 0,
           stall->kernel_stack != 0, stall->place != 0, stall->comm, stall->rans);
    for (i = 0; i < stall->rans && i < MAX_RAN; i++)
        printf(" ran.%u=%u:%llu:%.16s", i, stall->ran[i].thread.tid, stall->ran[i].ns,
               stall->ran[i].thread.comm);
    if (stall->flags & STALL_TRACE)
        printf(" trace=%llx-%llx-%llx", stall->trace.trace_id[0], stall->trace.trace_id[1],
               stall->trace.span_id);
    printf("\n");
}

static void print_probed(struct probed_record *record) {
    u32 i;

    printf("probed key=%u span=%u start=%llu end=%llu irq=%lld runnable=%lld preempted=%lld", record->key,
           record->span, record->start, record->end, record->states.irq, record->states.runnable,
           record->states.preempted);
    for (i = 0; i < SLEEPS; i++)
        printf(" blocked.%u=%lld", i, record->states.blocked[i]);
    printf("\n");
}

static void print_busy(struct span_record *record) {
    u32 i;

    printf("busy key=%u start=%llu end=%llu on_cpu=%lld irq=%lld runnable=%lld preempted=%lld", record->key,
           record->start, record->end, record->states.on_cpu, record->states.irq, record->states.runnable,
           record->states.preempted);
    for (i = 0; i < SLEEPS; i++)
        printf(" blocked.%u=%lld", i, record->states.blocked[i]);
    printf("\n");
}

static void print_record(void *record) {
    switch (*(u32 *)record) {
    case RECORD_THREAD:
        return print_thread("end", record);
    case RECORD_STALL:
        return print_stall("stall", record);
    case RECORD_OPEN:
        return print_stall("open", record);
    case RECORD_SECOND:
        return print_second(record);
    case RECORD_SPAN:
        return print_busy(record);
    case RECORD_PROBED:
        return print_probed(record);
    }
}

void *bpf_ringbuf_reserve(void *ring, u64 size, u64 flags) {
    if ((u8 *)ring < host_rings || (u8 *)ring >= host_rings + CPUS || ring_used >= 100)
        return NULL;
    return calloc(1, size);
}

void bpf_ringbuf_submit(void *record, u64 flags) {
    print_record(record);
    free(record);
}

u64 bpf_ringbuf_query(void *ring, u64 flags) { return flags == BPF_RB_RING_SIZE ? 100 : ring_used; }

/* Of the iterator `snapshot`, and of `open_waits`. */
long bpf_seq_write(struct seq_file *seq, const void *record, u32 len) {
    if (len == sizeof(struct thread_record))
        print_thread("thread", (struct thread_record *)record);
    else
        print_record((void *)record);
    return 0;
}

/* ---- commands ---- */

/* The arguments of a tracepoint, on the stack of the context in which it fires. */
static u64 *arguments(u64 a, u64 b, u64 c, u64 d) {
    u64 *at = (u64 *)((in_interrupt ? interrupt_stack : task_stack) + STACK_BYTES / 2);

    at[0] = a;
    at[1] = b;
    at[2] = c;
    at[3] = d;
    return at;
}

static void hit_walk(void) {
    struct bpf_perf_event_data data = {.regs = {.cs = 0}};

    sampled_in_walk = NULL;
    on_clock(&data);
}

struct setting {
    const char *name;
    volatile void *at;
    u32 bytes;
};

#define SETTING(of) {#of, &of, sizeof(of)}

static struct setting settings[] = {
    SETTING(armed_at),       SETTING(window),           SETTING(epoch_offset),  SETTING(emit_seconds),
    SETTING(stall_ns),       SETTING(min_stall_ns),     SETTING(stack_ns),      SETTING(voluntary_stall_ns),
    SETTING(every_thread),   SETTING(open_after_ns),    SETTING(carry_ns),      SETTING(stacks_at_switch_out),
    SETTING(ring_used),      SETTING(first_waits_left), SETTING(last_snapshot), SETTING(in_interrupt),
    SETTING(walk_by_tables), SETTING(recorder_tgid),    SETTING(cpu_now),       SETTING(now),
};

static void set(const char *name, u64 value) {
    u32 i;

    for (i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        if (!strcmp(settings[i].name, name)) {
            memcpy((void *)settings[i].at, &value, settings[i].bytes);
            return;
        }
    }
    fprintf(stderr, "no setting %s\n", name);
    exit(1);
}

#define FIELD(name_, member)                                                                                 \
    if (!strcmp(name, name_)) {                                                                              \
        of->member = value;                                                                                  \
        return;                                                                                              \
    }

static void set_field(struct host_task *of, const char *name, u64 value) {
    FIELD("state", task.__state)
    FIELD("flags", task.flags)
    FIELD("on_cpu", task.on_cpu)
    FIELD("executed", task.se.sum_exec_runtime)
    FIELD("delay", task.sched_info.run_delay)
    FIELD("nvcsw", task.nvcsw)
    FIELD("cpu", task.thread_info.cpu)
    FIELD("exec_id", task.self_exec_id)
    FIELD("thread_pointer", task.thread.fsbase)
    FIELD("in_iowait", task.in_iowait)
    FIELD("frozen", task.frozen)
    FIELD("syscall", regs.orig_ax)
    FIELD("di", regs.di)
    FIELD("si", regs.si)
    FIELD("dx", regs.dx)
    FIELD("ip", regs.ip)
    FIELD("sp", regs.sp)
    FIELD("faulting_ip", faulting.ip)
    fprintf(stderr, "no field %s\n", name);
    exit(1);
}

static void start_task(struct host_task *of, int tid, int tgid, const char *comm) {
    memset(of, 0, sizeof(*of));
    of->task.pid = tid;
    of->task.tgid = tgid;
    of->task.thread_pid = &of->pid.pid;
    of->task.group_leader = &of->task;
    of->task.real_parent = &idle[0].task;
    of->task.mm = tid ? &of->mm : NULL;
    of->task.stack = task_stack;
    of->task.prio = 120;
    of->regs.orig_ax = -1;
    strcpy(of->task.comm, comm);
}

static void iterate(int (*program)(struct bpf_iter__task *)) {
    struct bpf_iter_meta meta = {};
    struct bpf_iter__task context = {.meta = &meta};
    u32 i;

    for (i = 0; i < TASKS; i++) {
        context.task = &tasks[i].task;
        if (tasks[i].task.pid && !(tasks[i].task.__state & TASK_DEAD))
            program(&context);
    }
}

/* Time of each thread that is in the ledger, and not yet in a sample. */
static void print_carried(void) {
    struct thread_state *t;
    u32 i, state;

    for (i = 0; i < TASKS; i++) {
        t = tasks[i].task.pid ? state_of(&tasks[i].task) : NULL;
        if (!t)
            continue;
        printf("carried key=%u", t->key);
        for (state = 0; state < SLEEPS + 2; state++)
            printf(" %u=%lld", state, t->carried[state]);
        printf("\n");
    }
}

/* What the maps have. */
static void print_maps(void) {
    struct host_map *map;
    u32 i, cpu, zero = 0;

    print_carried();

    map = host_map(&latency);
    for (i = 0; i < map->count; i++) {
        struct latency_key *key = (void *)map->entry[i].key;
        struct latency_value *value = (void *)map->entry[i].value;

        printf("latency key=%u second=%u metric=%u bucket=%u count=%llu total=%llu max=%llu\n", key->key,
               key->second, key->metric, key->bucket, value->count, value->total, value->max);
    }
    map = host_map(&interrupts);
    for (i = 0; i < map->count; i++) {
        struct interrupt_key *key = (void *)map->entry[i].key;
        struct latency_value *value = (void *)map->entry[i].value;

        printf("interrupt key=%u second=%u cpu=%u kind=%u number=%u count=%llu total=%llu\n", key->key,
               key->second, key->cpu, key->kind, key->number, value->count, value->total);
    }
    map = host_map(&samples);
    for (i = 0; i < map->count; i++) {
        struct sample_key *key = (void *)map->entry[i].key;
        struct sample_value *value = (void *)map->entry[i].value;

        printf("sample key=%u second=%u what=%u user_stack=%u kernel_stack=%u weight=%llu count=%llu\n",
               key->key, key->second, key->what, key->user_stack != 0, key->kernel_stack != 0, value->weight,
               value->count);
    }
    for (cpu = 0; cpu < CPUS; cpu++) {
        struct loss_counts *counts = bpf_map_lookup_percpu_elem(&losses, &zero, cpu);
        struct cpu_state *state = bpf_map_lookup_percpu_elem(&cpus, &zero, cpu);

        for (i = 0; i < LOSSES; i++) {
            if (counts->by_reason[i])
                printf("loss cpu=%u reason=%u count=%llu\n", cpu, i, counts->by_reason[i]);
        }
        printf("cpu cpu=%u behind=%llu scratch_level=%u interrupt_depth=%u\n", cpu, state->behind_ns,
               state->scratch_level, state->interrupt_depth);
    }
}

/* The size of a map that is to be full soon. */
static void limit_map(const char *name, u32 capacity) {
    u32 i;

    for (i = 0; i < MAPS; i++) {
        if (!strcmp(maps[i].name, name))
            maps[i].capacity = capacity;
    }
}

/* As user space does once it has found whether the thread waits for work in this system call. */
static void set_verdict(struct host_task *of, s32 syscall, u32 verdict) {
    struct wait_place place = {.verdict = verdict};
    u64 number = place_of(&of->task, &of->state, syscall);

    bpf_map_update_elem(&places, &number, &place, BPF_ANY);
}

/* As user space does once it has found how a process publishes its traces. */
static void set_trace(struct host_task *of, u8 access, u8 dtv_entry, u64 at) {
    struct process_words words = {
        .exec_id = (u32)of->task.self_exec_id, .trace = access, .trace_at = at, .dtv_entry = dtv_entry};
    u32 tgid = of->task.tgid, zero = 0;

    bpf_map_update_elem(&process_words, &tgid, &words, BPF_ANY);
    *(u32 *)bpf_map_lookup_elem(&process_words_version, &zero) = 1;
}

static void command(char *line) {
    char verb[32] = "", name[32] = "";
    long a = 0, b = 0, c = 0;
    struct bpf_perf_event_data data = {};
    struct pt_regs registers = {};
    struct host_task *of;

    if (sscanf(line, "%31s", verb) != 1)
        return;
    line += strcspn(line, " \n");
    if (!strcmp(verb, "set") && sscanf(line, "%31s %ld", name, &a) == 2)
        return set(name, a);
    if (!strcmp(verb, "limit") && sscanf(line, "%31s %ld", name, &a) == 2)
        return limit_map(name, a);
    if (!strcmp(verb, "field") && sscanf(line, "%ld %31s %ld", &a, name, &b) == 3)
        return set_field(task_from_number(a), name, b);
    if (!strcmp(verb, "comm") && sscanf(line, "%ld %15s", &a, name) == 2) {
        strncpy(task_from_number(a)->task.comm, name, 15);
        return;
    }
    if (!strcmp(verb, "task") && sscanf(line, "%ld %ld %ld %15s", &a, &b, &c, name) == 4)
        return start_task(task_from_number(a), b, c, name);
    sscanf(line, "%ld %ld %ld", &a, &b, &c);
    of = task_from_number(a);
    if (!strcmp(verb, "class"))
        syscall_class[a] = b;
    else if (!strcmp(verb, "current"))
        current[cpu_now] = of;
    else if (!strcmp(verb, "join"))
        join(&of->task, 0);
    else if (!strcmp(verb, "new")) /* task, flags; by the current task */
        on_new_task(arguments((u64)of, b, 0, 0));
    else if (!strcmp(verb, "out")) /* preempted, next task, state of the current one, which leaves */
        on_switch(arguments(a, (u64)current[cpu_now], (u64)task_from_number(b), c));
    else if (!strcmp(verb, "in")) /* the task that is current by now */
        on_switched(arguments(1, 0, 0, 0));
    else if (!strcmp(verb, "waking"))
        on_waking(arguments((u64)of, 0, 0, 0));
    else if (!strcmp(verb, "migrate"))
        on_migrate(arguments((u64)of, b, 0, 0));
    else if (!strcmp(verb, "irq"))
        on_irq_entry(arguments(a, 0, 0, 0));
    else if (!strcmp(verb, "irq_end"))
        on_irq_exit(arguments(0, 0, 0, 0));
    else if (!strcmp(verb, "softirq"))
        on_softirq_entry(arguments(a, 0, 0, 0));
    else if (!strcmp(verb, "softirq_end"))
        on_softirq_exit(arguments(0, 0, 0, 0));
    else if (!strcmp(verb, "fault")) /* of the current task */
        on_fault_in_user(arguments(a, (u64)&current[cpu_now]->faulting, 0, 0));
    else if (!strcmp(verb, "fault_end"))
        a ? on_fault_major(&data) : on_fault_minor(&data);
    else if (!strcmp(verb, "signal"))
        on_signal(arguments(a, 0, (u64)current[cpu_now], 0));
    else if (!strcmp(verb, "exit"))
        on_exit(arguments((u64)of, 0, 0, 0));
    else if (!strcmp(verb, "leave"))
        leave(&of->task, state_of(&of->task));
    else if (!strcmp(verb, "sample")) {
        data.regs.cs = a; /* 3: user mode */
        on_clock(&data);
    } else if (!strcmp(verb, "sample_in_next_walk"))
        sampled_in_walk = current[cpu_now];
    else if (!strcmp(verb, "memory")) /* address, value */
        write_memory(a, b);
    else if (!strcmp(verb,
                     "trace")) /* task, enum trace_access and bytes of an entry << 8, address or distance */
        set_trace(of, (u8)b, b >> 8, c);
    else if (!strcmp(verb, "idle")) /* task, system call */
        set_verdict(of, (s32)b, PLACE_IDLE);
    else if (!strcmp(verb, "asked"))
        set_verdict(of, (s32)b, PLACE_IDLE_ASKED);
    else if (!strcmp(verb, "unknown"))
        set_verdict(of, (s32)b, PLACE_UNKNOWN);
    else if (!strcmp(verb, "returned")) { /* system call, result; of the current task */
        current[cpu_now]->regs.orig_ax = a;
        on_system_call_end(arguments((u64)&current[cpu_now]->regs, b, 0, 0));
        current[cpu_now]->regs.orig_ax = -1;
    } else if (!strcmp(verb, "begin") || !strcmp(verb, "end")) { /* cookie, stack pointer, flags */
        cookie = a;
        registers.sp = b;
        registers.flags = c;
        !strcmp(verb, "begin") ? on_span_start(&registers) : on_span_end(&registers);
    } else if (!strcmp(verb, "snapshot"))
        iterate(snapshot);
    else if (!strcmp(verb, "open_waits"))
        iterate(open_waits);
    else if (!strcmp(verb, "maps"))
        print_maps();
    else {
        fprintf(stderr, "no command %s\n", verb);
        exit(1);
    }
}

int main(void) {
    char line[256];
    u32 i;

    for (i = 0; i < CPUS; i++) {
        start_task(&idle[i], 0, 0, "swapper");
        idle[i].task.flags = PF_KTHREAD;
        current[i] = &idle[i];
    }
    while (fgets(line, sizeof(line), stdin))
        command(line);
    return 0;
}
