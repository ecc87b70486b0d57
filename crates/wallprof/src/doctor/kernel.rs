// SPDX-License-Identifier: Apache-2.0
//! Checks of the attach points, from the kernel's type information.

use wallprof_probe::{Features, KernelTypes, ProbeOptions, Probes, TargetSet, Targets, UserStacks};

use super::check::Check;
use super::pause::{self, Pauses};

/// Checks of the attach points; none if the kernel has no type information, which is a check of its own.
pub fn checks() -> Vec<Check> {
    KernelTypes::read().map(|types| checks_from_features(types.features())).unwrap_or_default()
}

/// Loads and attaches the probes, for this process only: a seccomp filter or a security module may refuse it
/// in spite of sufficient capabilities. Also measures the effect of attaching on other threads.
pub fn trial() -> Vec<Check> {
    let options = ProbeOptions {
        targets: Targets::Given(TargetSet { processes: vec![std::process::id()], ..TargetSet::default() }),
        cpus: None,
        sample_hz: 1,
        events: Vec::new(),
        min_stall_ns: u64::MAX,
        busy_budget_ns: None,
        user_stacks: UserStacks::Tables,
        guarded: Vec::new(),
        spans: Vec::new(),
        loops: false,
    };
    let (probes, pauses) = pause::beside(|| Probes::load(&options));
    match probes {
        Ok(_) => {
            let attaching = pauses.map(|pauses| attaching(&pauses));
            std::iter::once(Check::fine("probes", "load and attach here")).chain(attaching).collect()
        }
        Err(error) => {
            vec![Check::blocks("probes", error.to_string(), "nothing can be recorded before this is solved")]
        }
    }
}

/// Attaching patches code of the kernel, and each patch interrupts all CPUs.
fn attaching(pauses: &Pauses) -> Check {
    let finding = format!(
        "took {} ms just now; it stopped a running thread for {} µs at most, against {} µs in the time before: \
         `wallprof watch` attaches once, and arming it later stops no thread",
        pauses.took.as_millis(),
        pauses.meanwhile.as_micros(),
        pauses.before.as_micros()
    );
    Check::fine("attaching", finding)
}

fn checks_from_features(features: Features) -> Vec<Check> {
    vec![
        match features.sched_exit_tp {
            true => {
                Check::fine("stacks of waits", "taken when a thread runs again, only for waits that need one")
            }
            false => Check::less(
                "stacks of waits",
                "this kernel has no sched_exit_tp (6.17 and newer have it)",
                "stacks are taken when a thread leaves its CPU, before it is known which waits will be long: the probes \
                 use more CPU time; nothing is missing",
            ),
        },
        match features.irq_vectors {
            true => Check::fine("interrupts", "each vector has its own tracepoint"),
            false => Check::less(
                "interrupts",
                "no tracepoints of interrupt vectors",
                "time in timer and inter-processor interrupts counts as the interrupted thread's own",
            ),
        },
        match features.sched_info {
            true => Check::fine("scheduler's account", "each thread's waiting time can be compared"),
            false => Check::blocks(
                "scheduler's account",
                "this kernel keeps no sched_info of its threads",
                "the probes need it: run a kernel with CONFIG_SCHED_INFO, as distributions ship them",
            ),
        },
        match features.page_faults {
            true => Check::fine("page faults", "address and access are reported"),
            false => Check::less(
                "page faults",
                "no tracepoints of page faults (exceptions:page_fault_user and _kernel)",
                "faults are timed; whether they read, wrote or executed is not known",
            ),
        },
        match (features.ipi_senders, features.ipi_functions) {
            (true, true) => Check::fine(
                "guarded CPUs",
                "threads that interrupt them from another CPU are named, with the function",
            ),
            (true, false) => {
                Check::fine("guarded CPUs", "threads that interrupt them from another CPU are named")
            }
            (false, _) => Check::less(
                "guarded CPUs",
                "no tracepoints of interrupts to other CPUs (ipi:ipi_send_cpu, 6.5 and newer have them)",
                "`--guard-cpus` reports such interrupts and their time, not the sender",
            ),
        },
        match features.reclaim && features.compaction {
            true => Check::fine("memory delays", "reclaim and compaction by threads are timed"),
            false => Check::less(
                "memory delays",
                "no tracepoints of reclaim or compaction (CONFIG_COMPACTION)",
                "the findings memory-reclaim and compaction are missing; their time is still in the stalls",
            ),
        },
        match features.lock_contention {
            true => Check::fine("kernel locks", "waits for the kernel's own locks name the lock"),
            false => Check::less(
                "kernel locks",
                "no tracepoints of lock contention (5.19 and newer have them)",
                "the findings mmap-lock and kernel-lock are missing; such waits are lock-wait",
            ),
        },
        match features.ipi_functions {
            true => Check::fine("calls on other CPUs", "their callers are known"),
            false => Check::less(
                "calls on other CPUs",
                "no tracepoint csd:csd_queue_cpu (6.4 and newer have it)",
                "the finding tlb-shootdown is missing; irq-time reports the interrupted thread, not the sender",
            ),
        },
        match features.cgroup_attach_task {
            true => Check::fine("moves of threads", "threads that move into a recorded cgroup are noticed"),
            false => Check::less(
                "moves of threads",
                "no tracepoint of a thread's move between cgroups",
                "`--cgroup` records the threads that are in it at the start, and those that they start",
            ),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::super::check::Grade;
    use super::*;
    use std::time::Duration;

    #[test]
    fn cost_of_attaching_is_shown() {
        let [before, meanwhile] = [7, 130].map(Duration::from_micros);
        let check = attaching(&Pauses { before, meanwhile, took: Duration::from_millis(210) });
        for part in ["210 ms", "130 µs at most", "7 µs in the time before"] {
            assert!(check.finding.contains(part), "{}", check.finding);
        }
    }

    #[test]
    fn each_missing_attach_point_has_advice() {
        let features = |all| Features {
            sched_exit_tp: all,
            irq_vectors: all,
            sched_info: all,
            cgroup_attach_task: all,
            page_faults: all,
            ipi_senders: all,
            ipi_functions: all,
            reclaim: all,
            compaction: all,
            lock_contention: all,
        };
        assert!(checks_from_features(features(true)).iter().all(|check| check.grade == Grade::Fine));
        for check in checks_from_features(features(false)) {
            assert!(check.grade != Grade::Fine && !check.advice.is_empty(), "{check:?}");
        }
    }
}
