// SPDX-License-Identifier: Apache-2.0
// Runs a command that insists on raising how much memory it may lock (RLIMIT_MEMLOCK) where that is not
// permitted, although nothing of it needs the raise: kernels since 5.11 charge the memory of BPF to the
// control group.
//
// usage: unlimited COMMAND ARGUMENT…
//
// A seccomp filter makes setting that one limit succeed without effect. The command runs at full speed, without a tracer.

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FIELD(name) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, name))
#define UNLESS(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), 0, (skip))

int main(int argc, char **argv) {
    if (argc < 2) {
        fputs("usage: unlimited COMMAND ARGUMENT...\n", stderr);
        return 2;
    }
    // prlimit64(pid, resource, new, old): a call without `new` only asks. Arguments are 64 bits, the lower
    // half first.
    struct sock_filter filter[] = {
        FIELD(nr),
        UNLESS(SYS_prlimit64, 7),
        FIELD(args[1]),
        UNLESS(RLIMIT_MEMLOCK, 5),
        FIELD(args[2]),
        UNLESS(0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2]) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("unlimited: cannot filter system calls");
        return 1;
    }
    execvp(argv[1], argv + 1);
    perror(argv[1]);
    return 127;
}
