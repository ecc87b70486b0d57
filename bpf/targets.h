/* Which of the given targets a task matches: the TARGET_… bits that `thread_state.why` keeps. Names are
 * names.h's. */
#pragma once

#include "state.h"

/* -p and -t, by id; what hands them down later is in inherited(). */
ALWAYS_INLINE u32 targets_by_id(u32 tid, u32 tgid) {
    u8 *of_thread = bpf_map_lookup_elem(&targets, &tid);
    u32 why = of_thread ? *of_thread & TARGET_THREAD : 0;
    u8 *of_process = bpf_map_lookup_elem(&targets, &tgid);

    if (of_process)
        why |= *of_process & (TARGET_PROCESS | TARGET_TREE);
    return why;
}

struct ancestry {
    struct task_struct *at;
    bool in_tree;
};

static long look_at_parent(u32 depth, struct ancestry *line) {
    struct task_struct *at = line->at;
    struct task_struct *parent = BPF_CORE_READ(at, real_parent);
    u32 tgid = BPF_CORE_READ(parent, tgid);

    if (!tgid) /* the idle task, which is its own parent */
        return 1;
    line->at = parent;
    if (!(targets_by_id(0, tgid) & TARGET_TREE))
        return 0;
    line->in_tree = true;
    return 1;
}

/* What the first look finds: the given threads, the given processes, and with --children the processes that
 * these have started before, as far as the kernel still knows their parents: an orphan has another one. */
ALWAYS_INLINE u32 targets_at_start(struct task_struct *task) {
    u32 why = targets_by_id(task->pid, task->tgid);
    struct ancestry line = {.at = task};

    if (!follow_children || why & TARGET_TREE)
        return why;
    bpf_loop(MAX_ANCESTORS, look_at_parent, &line, 0);
    return line.in_tree ? why | TARGET_TREE : why;
}

/* What a new task has from the one that starts it: -t hands down nothing, a cgroup is looked up. */
ALWAYS_INLINE u32 inherited(struct thread_state *parent, u64 clone_flags) {
    u32 handed_down =
        clone_flags & CLONE_THREAD ? TARGET_PROCESS | TARGET_TREE | TARGET_NAMED_PROCESS : TARGET_TREE;

    return parent ? parent->why & handed_down : 0;
}

/* Whether `group` is the recorded cgroup or below it. */
ALWAYS_INLINE bool group_holds(struct cgroup *group) {
    struct cgroup *at = NULL;
    int level, i;

    if (!group || (u32)BPF_CORE_READ(group, root, hierarchy_id) != cgroup_hierarchy)
        return false;
    level = BPF_CORE_READ(group, level);
    for (i = 0; i < MAX_CGROUP_DEPTH; i++) {
        if (i > level || bpf_core_read(&at, sizeof(at), &group->ancestors[i]))
            return false;
        if (BPF_CORE_READ(at, kn, id) == cgroup_id)
            return true;
    }
    return false;
}

/* The task's cgroup in the recorded one's hierarchy. cgroup v2 says it directly, those of version 1 are in a
 * list that stays as it is as long as a task has it. */
ALWAYS_INLINE struct cgroup *group_of(struct task_struct *task) {
    struct css_set *set = BPF_CORE_READ(task, cgroups);
    struct list_head *next = BPF_CORE_READ(set, cgrp_links.next);
    u32 i;

    if (!cgroup_hierarchy)
        return BPF_CORE_READ(set, dfl_cgrp);
    for (i = 0; i < MAX_HIERARCHIES; i++) {
        u64 entry = (u64)next - bpf_core_field_offset(struct cgrp_cset_link, cgrp_link);
        struct cgroup *group = BPF_CORE_READ((struct cgrp_cset_link *)entry, cgrp);

        if ((u64)next == (u64)set + bpf_core_field_offset(struct css_set, cgrp_links))
            return NULL;
        if ((u32)BPF_CORE_READ(group, root, hierarchy_id) == cgroup_hierarchy)
            return group;
        next = BPF_CORE_READ(next, next);
    }
    return NULL;
}

/* TARGET_GROUP or 0. */
NOINLINE u32 targets_by_group(struct task_struct *task) {
    return cgroup_id && group_holds(group_of(task)) ? TARGET_GROUP : 0;
}
