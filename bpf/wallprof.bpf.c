// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The kernel side of wallprof, one object. Each subject has its own file, and each file includes what it
 * uses. */
#include "cpus.bpf.c"
#include "cross_calls.bpf.c"
#include "delay.bpf.c"
#include "faults.bpf.c"
#include "irq.bpf.c"
#include "lifecycle.bpf.c"
#include "look.bpf.c"
#include "loop.bpf.c"
#include "noise.bpf.c"
#include "open_waits.bpf.c"
#include "sampler.bpf.c"
#include "snapshot.bpf.c"
#include "span_probes.bpf.c"
#include "switch.bpf.c"
#include "wakeup.bpf.c"

#include "bpf_api.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";
