/* SPDX-License-Identifier: Apache-2.0 */
// A control group of a scenario's own, with one limit, for the time of its run.
//
// Version 1: below the group that the scenario was started in. Version 2: below the root, because a group
// with processes in it may not hand its controllers down. Where that is not permitted the scenario runs
// without a limit and says so:
//   {"event":"refused", "what"}
#pragma once

#include "truth.h"

#include <fcntl.h>
#include <sys/stat.h>

struct group {
    const char *controller;
    const char *v2_file, *v2_text;
    const char *v1_file, *v1_text;
    const char *refused; // why there is none
    char folder[4096], parent[4096];
};

static inline bool write_file(const char *folder, const char *name, const char *text) {
    char path[8192];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    bool done = write(file, text, strlen(text)) == (ssize_t)strlen(text);
    int error = errno;
    close(file);
    errno = error;
    return done;
}

static inline bool has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at++)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
            return true;
    return false;
}

// The group that the process is in, in the hierarchy of a version 1 controller.
static inline bool own_group(const char *controller, char *path, size_t size) {
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[4096];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL)
            continue;
        *group = '\0';
        group[1 + strcspn(group + 1, "\n")] = '\0';
        if (has_word(controllers + 1, controller)) {
            snprintf(path, size, "/sys/fs/cgroup/%s%s", controllers + 1, group + 1);
            found = true;
        }
    }
    if (file)
        fclose(file);
    return found;
}

static inline void enter_group(struct group *group) {
    bool v1 = own_group(group->controller, group->parent, sizeof group->parent);
    if (!v1)
        snprintf(group->parent, sizeof group->parent, "/sys/fs/cgroup");
    int length =
        snprintf(group->folder, sizeof group->folder, "%.3900s/wallprof-%d", group->parent, getpid());
    char pid[16];
    snprintf(pid, sizeof pid, "%d", getpid());
    if (length < 0 || mkdir(group->folder, 0700) != 0) {
        group->refused = strerror(errno);
        return;
    }
    bool limited = v1 ? write_file(group->folder, group->v1_file, group->v1_text)
                      : write_file(group->folder, group->v2_file, group->v2_text);
    if (limited && write_file(group->folder, "cgroup.procs", pid))
        return;
    group->refused = strerror(errno);
    rmdir(group->folder);
}

// Before anybody may kill the scenario: a group without processes stays.
static inline void leave_group(struct group *group) {
    if (group->refused) {
        printf("{\"event\":\"refused\",\"what\":\"%s\"}\n", group->refused);
        return;
    }
    char pid[16];
    snprintf(pid, sizeof pid, "%d", getpid());
    if (!write_file(group->parent, "cgroup.procs", pid) || rmdir(group->folder) != 0)
        fprintf(stderr, "scenario: %s is left behind: %s\n", group->folder, strerror(errno));
}
