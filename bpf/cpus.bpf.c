/* CPUs that go offline. */
#include "state.h"

/* By CPU: how often it has gone offline. The perf events that were opened on it go with it, for good. */
u32 cpu_departures[MAX_CPUS];

/* Runs after each step of a CPU on its way up or down: `state` is the one that it has reached, below `step`
 * on its way down. One step ends its perf events and lets none be opened (kernel/cpu.c, perf_event_exit_cpu):
 * counted after it, so that what is opened once the count has been seen lives on. */
SEC("tp_btf/cpuhp_exit")
int BPF_PROG(on_cpu_step, u32 cpu, s32 state, s32 step, s32 error) {
    s32 ends_events = bpf_core_enum_value(enum cpuhp_state, CPUHP_AP_PERF_ONLINE);

    if (cpu < MAX_CPUS && step == ends_events && state < step)
        __sync_fetch_and_add(&cpu_departures[cpu], 1);
    return 0;
}
