// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* CPUs that go offline. */
#include "bpf_api.h"
#include "include/limits.h"

/* By CPU: how often it has gone offline. The perf events that were open on it are lost then, for good. */
u32 cpu_departures[MAX_CPUS];

/* Runs after each step of a CPU on its way up or down. `state` is the state that it has reached: below
 * `step` on its way down. One step ends its perf events and prevents new ones (kernel/cpu.c,
 * perf_event_exit_cpu). The count changes after that step, so that an event opened once the count was read
 * stays valid. */
SEC("tp_btf/cpuhp_exit")
int BPF_PROG(on_cpu_step, u32 cpu, s32 state, s32 step, s32 error) {
    s32 ends_events = bpf_core_enum_value(enum cpuhp_state, CPUHP_AP_PERF_ONLINE);

    if (cpu < MAX_CPUS && step == ends_events && state < step)
        __sync_fetch_and_add(&cpu_departures[cpu], 1);
    return 0;
}
