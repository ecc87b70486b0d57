/* The kernel side of wallprof, one object: each topic is a file, the maps and the ledger are in state.h. */
#include "cpus.bpf.c"
#include "guard.bpf.c"
#include "irq.bpf.c"
#include "lifecycle.bpf.c"
#include "sampler.bpf.c"
#include "sched.bpf.c"

/* These tell what sched.bpf.c's rings carry. */
#include "faults.bpf.c"
#include "work.bpf.c"
/* Ends threads as sched.bpf.c does. */
#include "names.bpf.c"

char LICENSE[] SEC("license") = "Dual MIT/GPL";
