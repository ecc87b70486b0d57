/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The given targets that a task matches: the TARGET_… bits in `thread_state.matches`. names.h has the
 * targets by name. */
#pragma once

#include "settings.h"
#include "thread_state.h"

/* tid or tgid → TARGET_THREAD, TARGET_PROCESS and TARGET_TREE: the ids for the first scan. User space
 * writes it before that scan; it is read while `finding_targets`. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, u32);
    __type(value, u8);
} targets SEC(".maps");

/* -p and -t, by id. inherited() passes them on to new tasks. */
ALWAYS_INLINE u32 targets_by_id(u32 tid, u32 tgid) {
    u8 *of_thread = bpf_map_lookup_elem(&targets, &tid);
    u32 matches = of_thread ? *of_thread & TARGET_THREAD : 0;
    u8 *of_process = bpf_map_lookup_elem(&targets, &tgid);

    if (of_process)
        matches |= *of_process & (TARGET_PROCESS | TARGET_TREE);
    return matches;
}

struct ancestry {
    struct task_struct *at;
    bool in_tree;
};

static long ancestor_step(u32 depth, struct ancestry *line) {
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

/* The targets of the first scan: the given threads, the given processes and, with --children, the
 * processes that these started before. An orphan is missing: the kernel has given it another parent. */
ALWAYS_INLINE u32 targets_at_start(struct task_struct *task) {
    u32 matches = targets_by_id(task->pid, task->tgid);
    struct ancestry line = {.at = task};

    if (!follow_children || matches & TARGET_TREE)
        return matches;
    bpf_loop(MAX_ANCESTORS, ancestor_step, &line, 0);
    return line.in_tree ? matches | TARGET_TREE : matches;
}

/* The targets that a new task inherits from its creator. -t is not inherited; the cgroup is looked up. */
ALWAYS_INLINE u32 inherited(struct thread_state *parent, u64 clone_flags) {
    u32 handed_down =
        clone_flags & CLONE_THREAD ? TARGET_PROCESS | TARGET_TREE | TARGET_NAMED_PROCESS : TARGET_TREE;

    return parent ? parent->matches & handed_down : 0;
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

/* The task's cgroup in the hierarchy of the recorded one. For cgroup v2 it is one field. Those of version
 * 1 are in a list that does not change while a task uses it. */
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
