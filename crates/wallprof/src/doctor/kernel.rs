//! What follows from the attach points that the kernel describes in its own type information.

use wallprof_probe::{Features, KernelTypes, ProbeOptions, Probes, TargetSet, Targets, UserStacks};

use super::check::Check;
use super::pause::{self, Pauses};

/// Checks of the attach points; none where the kernel does not describe its types, which is said elsewhere.
pub fn checks() -> Vec<Check> {
    KernelTypes::read().map(|types| checks_from_features(types.features())).unwrap_or_default()
}

/// The proof of everything else: loads and attaches the probes, watching nobody but this process. A seccomp filter or a
/// security module may refuse what capabilities allow. Says also what attaching does to others.
pub fn trial() -> Vec<Check> {
    let options = ProbeOptions {
        targets: Targets::Given(TargetSet { processes: vec![std::process::id()], ..TargetSet::default() }),
        cpus: None,
        sample_hz: 1,
        events: Vec::new(),
        min_stall_ns: u64::MAX,
        user_stacks: UserStacks::Tables,
        guarded: Vec::new(),
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

/// Attaching rewrites places in the kernel, and each time all CPUs have to take note.
fn attaching(pauses: &Pauses) -> Check {
    let finding = format!(
        "took {} ms just now; a thread that ran meanwhile was kept from it for {} µs at most, and for {} µs in the time \
         before: `wallprof watch` attaches once, and arming it later does that to nobody",
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
                Check::fine("stacks of waits", "taken when a thread comes back, only of waits that need one")
            }
            false => Check::less(
                "stacks of waits",
                "this kernel has no sched_exit_tp (6.17 and newer have it)",
                "stacks are taken when a thread leaves its CPU, before it is known which waits will be long: the probes \
                 cost more; nothing is missing",
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
            true => {
                Check::fine("scheduler's account", "each thread's waiting time is there to be compared with")
            }
            false => Check::blocks(
                "scheduler's account",
                "this kernel keeps no sched_info of its threads",
                "the probes need it: run a kernel with CONFIG_SCHED_INFO, as distributions ship them",
            ),
        },
        match features.page_faults {
            true => Check::fine("page faults", "their start tells address and access"),
            false => Check::less(
                "page faults",
                "no tracepoints of page faults (exceptions:page_fault_user and _kernel)",
                "faults are timed all the same; whether they read, wrote or executed is not known",
            ),
        },
        match (features.ipi_senders, features.ipi_functions) {
            (true, true) => Check::fine(
                "guarded CPUs",
                "who interrupts them from another CPU is named, with the function",
            ),
            (true, false) => Check::fine("guarded CPUs", "who interrupts them from another CPU is named"),
            (false, _) => Check::less(
                "guarded CPUs",
                "no tracepoints tell who sends interrupts to other CPUs (ipi:ipi_send_cpu, 6.5 and newer have them)",
                "`--guard-cpus` tells such interrupts and their time, not who sent them",
            ),
        },
        match features.reclaim && features.compaction {
            true => Check::fine("memory work", "what threads free and move together themselves is timed"),
            false => Check::less(
                "memory work",
                "no tracepoints of reclaim or compaction (CONFIG_COMPACTION)",
                "the findings memory-reclaim and compaction are missing; their time is in the stalls all the same",
            ),
        },
        match features.lock_contention {
            true => Check::fine("kernel locks", "waits for the kernel's own locks tell which lock"),
            false => Check::less(
                "kernel locks",
                "no tracepoints of lock contention (5.19 and newer have them)",
                "the findings mmap-lock and kernel-lock are missing; such waits are lock-wait",
            ),
        },
        match features.ipi_functions {
            true => Check::fine("calls on other CPUs", "who interrupts other CPUs is known"),
            false => Check::less(
                "calls on other CPUs",
                "no tracepoint csd:csd_queue_cpu (6.4 and newer have it)",
                "the finding tlb-shootdown is missing; irq-time says what was interrupted, not by whom",
            ),
        },
        match features.cgroup_attach_task {
            true => Check::fine("moves of threads", "threads that move into a recorded cgroup are noticed"),
            false => Check::less(
                "moves of threads",
                "no tracepoint tells of a thread's move between cgroups",
                "`--cgroup` records those that are in it at the start, and what they start",
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
    fn attaching_is_told_with_its_price() {
        let [before, meanwhile] = [7, 130].map(Duration::from_micros);
        let check = attaching(&Pauses { before, meanwhile, took: Duration::from_millis(210) });
        for part in ["210 ms", "130 µs at most", "7 µs in the time before"] {
            assert!(check.finding.contains(part), "{}", check.finding);
        }
    }

    #[test]
    fn whatever_is_missing_has_a_price() {
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
