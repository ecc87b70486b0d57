//! From what is wanted and what the kernel has to what is loaded: values in, values out.

use crate::bpf::constants as c;
use crate::events::PerfEventSpec;
use crate::features::KernelTypes;

/// Whose time is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    Everything,
    /// These processes with their threads, also later ones.
    Processes(Vec<u32>),
    /// These threads only.
    Threads(Vec<u32>),
    /// This process and everything it starts.
    Descendants(u32),
    Cgroup(CgroupTarget),
    /// Processes and threads with such names, now and later.
    Names(Vec<NameGlob>),
}

/// More globs than this are not looked for.
pub const MAX_NAME_GLOBS: usize = c::MAX_NAME_GLOBS as usize;

/// A glob over names as an automaton of at most 64 states, one bit each: state `i` says that `i` characters are matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameGlob {
    /// By byte: the states from which it leads to the next one.
    pub takes: Box<[u64; 256]>,
    /// States that any byte leads back to.
    pub loops: u64,
    /// The last state.
    pub accepts: u64,
}

/// A control group and its children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupTarget {
    /// The inode number of its folder.
    pub id: u64,
    /// The hierarchy's number in `/proc/PID/cgroup`; 0 for cgroup v2.
    pub hierarchy: u32,
    /// Threads in it at the start.
    pub threads: Vec<u32>,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct ProbeOptions {
    pub targets: Targets,
    /// `-C`; `None`: all.
    pub cpus: Option<Vec<u32>>,
    pub sample_hz: u32,
    pub events: Vec<PerfEventSpec>,
    pub min_stall_ns: u64,
    pub user_stacks: UserStacks,
    /// CPUs of which it is told who runs there and who interrupts them.
    pub guarded: Vec<u32>,
}

/// How user stacks are walked: `--call-graph`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UserStacks {
    /// By unwind tables, and by frame pointer where code has none.
    #[default]
    Tables,
    /// By frame pointers alone.
    FramePointers,
}

impl ProbeOptions {
    /// New threads of a recorded process are recorded.
    pub(crate) fn inherits_threads(&self) -> bool {
        !matches!(self.targets, Targets::Threads(_) | Targets::Names(_))
    }

    /// New processes of a recorded one are recorded.
    pub(crate) fn inherits_children(&self) -> bool {
        matches!(self.targets, Targets::Descendants(_) | Targets::Cgroup(_))
    }

    /// What the start-up iterator looks for: id, and 1 for a thread, 2 for a process.
    pub(crate) fn start_ids(&self) -> Vec<(u32, u8)> {
        match &self.targets {
            Targets::Everything | Targets::Names(_) => Vec::new(),
            Targets::Processes(pids) => pids.iter().map(|&pid| (pid, 2)).collect(),
            Targets::Threads(tids) => tids.iter().map(|&tid| (tid, 1)).collect(),
            Targets::Descendants(pid) => vec![(*pid, 2)],
            Targets::Cgroup(group) => group.threads.iter().map(|&tid| (tid, 1)).collect(),
        }
    }
}

/// Programs that attach to something this kernel may not have: program, tracepoint.
const OPTIONAL: &[(&str, &str)] = &[
    ("on_switched", "sched_exit_tp"),
    ("on_cgroup_attach", "cgroup_attach_task"),
    ("on_fault_in_user", "page_fault_user"),
    ("on_fault_in_kernel", "page_fault_kernel"),
    ("on_signal", "signal_generate"),
    ("on_ipi_send_cpu", "ipi_send_cpu"),
    ("on_ipi_send_cpumask", "ipi_send_cpumask"),
    ("on_csd_queue_cpu", "csd_queue_cpu"),
    ("on_direct_reclaim_begin", "mm_vmscan_direct_reclaim_begin"),
    ("on_direct_reclaim_end", "mm_vmscan_direct_reclaim_end"),
    ("on_group_reclaim_begin", "mm_vmscan_memcg_reclaim_begin"),
    ("on_group_reclaim_end", "mm_vmscan_memcg_reclaim_end"),
    ("on_compaction_begin", "mm_compaction_begin"),
    ("on_compaction_end", "mm_compaction_end"),
    ("on_contention_begin", "contention_begin"),
    ("on_contention_end", "contention_end"),
    ("on_cross_call", "csd_queue_cpu"),
];

/// Names of the programs that cannot load here, or that nothing wants.
pub(crate) fn left_out(programs: &[String], types: &KernelTypes, options: &ProbeOptions) -> Vec<String> {
    let unwanted = |name: &&String| match name.as_str() {
        "on_cgroup_attach" => !matches!(options.targets, Targets::Cgroup(_)),
        "on_exec" => !matches!(options.targets, Targets::Names(_)),
        "on_fault_begun" => types.features().page_faults,
        // One alone would leave the other's faults to the event, which tells both.
        "on_fault_in_user" | "on_fault_in_kernel" => !types.features().page_faults,
        "on_ipi_send_cpu" | "on_ipi_send_cpumask" | "on_csd_queue_cpu" => options.guarded.is_empty(),
        "on_event" => !options.events.iter().any(|event| !event.is_tracepoint()),
        "on_tracepoint" => !options.events.iter().any(PerfEventSpec::is_tracepoint),
        _ => false,
    };
    let mut names = missing(programs, types);
    names.extend(programs.iter().filter(unwanted).cloned());
    names
}

/// Names of the programs that cannot load here: their tracepoint does not exist. Any other program has to load.
pub(crate) fn missing(programs: &[String], types: &KernelTypes) -> Vec<String> {
    let optional =
        |name: &str| OPTIONAL.iter().find(|(program, _)| *program == name).map(|(_, tracepoint)| *tracepoint);
    let missing = |name: &&String| {
        let tracepoint = optional(name).or_else(|| vector_tracepoint(name));
        tracepoint.is_some_and(|tracepoint| !types.has_tracepoint(tracepoint))
    };
    programs.iter().filter(missing).cloned().collect()
}

/// `on_local_timer_entry` → `local_timer_entry`; `None` for what is no interrupt vector's.
fn vector_tracepoint(program: &str) -> Option<&str> {
    let tracepoint = program.strip_prefix("on_")?;
    let edge = tracepoint.ends_with("_entry") || tracepoint.ends_with("_exit");
    let general = tracepoint.starts_with("irq_e") || tracepoint.starts_with("softirq_");
    (edge && !general).then_some(tracepoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAMS: [&str; 10] = [
        "on_switch",
        "on_switched",
        "on_cgroup_attach",
        "on_irq_entry",
        "on_irq_exit",
        "on_softirq_exit",
        "on_irq_work_entry",
        "on_local_timer_exit",
        "on_event",
        "on_tracepoint",
    ];

    fn programs() -> Vec<String> {
        PROGRAMS.map(String::from).to_vec()
    }

    fn options(targets: Targets) -> ProbeOptions {
        ProbeOptions {
            targets,
            cpus: None,
            sample_hz: 99,
            events: Vec::new(),
            min_stall_ns: 100_000,
            user_stacks: UserStacks::Tables,
            guarded: Vec::new(),
        }
    }

    #[test]
    fn only_what_has_a_fallback_may_be_missing() {
        let bare = KernelTypes::with_tracepoints(&[]);
        assert_eq!(
            missing(&programs(), &bare),
            ["on_switched", "on_cgroup_attach", "on_irq_work_entry", "on_local_timer_exit"]
        );
    }

    #[test]
    fn what_the_kernel_has_is_loaded() {
        let old =
            KernelTypes::with_tracepoints(&["cgroup_attach_task", "irq_work_entry", "local_timer_exit"]);
        assert_eq!(missing(&programs(), &old), ["on_switched"]);
        let new = KernelTypes::with_tracepoints(&[
            "sched_exit_tp",
            "cgroup_attach_task",
            "irq_work_entry",
            "local_timer_exit",
        ]);
        assert!(missing(&programs(), &new).is_empty());
    }

    #[test]
    fn what_nothing_asked_for_stays_out() {
        let types = KernelTypes::with_tracepoints(&["sched_exit_tp", "irq_work_entry", "local_timer_exit"]);
        let everything = options(Targets::Everything);
        assert_eq!(
            left_out(&programs()[3..], &types, &everything),
            ["on_event", "on_tracepoint"],
            "no -e was given"
        );
        let group = options(Targets::Cgroup(CgroupTarget { id: 1, hierarchy: 0, threads: vec![] }));
        assert_eq!(left_out(&programs()[..3], &types, &group), ["on_cgroup_attach"], "the kernel lacks it");
        assert_eq!(left_out(&programs()[..2], &types, &everything), [""; 0]);
        let exec = ["on_exec".to_string()];
        assert_eq!(left_out(&exec, &types, &everything), exec, "no names are looked for");
        assert_eq!(left_out(&exec, &types, &options(Targets::Names(vec![]))), [""; 0]);
    }

    #[test]
    fn a_fault_begins_once() {
        let programs = ["on_fault_begun", "on_fault_in_user", "on_fault_in_kernel"].map(String::from);
        let everything = options(Targets::Everything);
        let both = KernelTypes::with_tracepoints(&["page_fault_user", "page_fault_kernel"]);
        assert_eq!(left_out(&programs, &both, &everything), ["on_fault_begun"]);
        for present in [&[][..], &["page_fault_user"]] {
            let left_out = left_out(&programs, &KernelTypes::with_tracepoints(present), &everything);
            let is_left_out = |name: &String| left_out.contains(name);
            assert_eq!(programs.each_ref().map(is_left_out), [false, true, true], "{present:?}");
        }
    }

    #[test]
    fn targets_say_what_is_looked_for_and_inherited() {
        let threads = options(Targets::Threads(vec![7]));
        assert_eq!(threads.start_ids(), [(7, 1)]);
        assert!(!threads.inherits_threads() && !threads.inherits_children());
        let process = options(Targets::Processes(vec![7]));
        assert_eq!(process.start_ids(), [(7, 2)]);
        assert!(process.inherits_threads() && !process.inherits_children());
        let descendants = options(Targets::Descendants(7));
        assert!(descendants.inherits_threads() && descendants.inherits_children());
        // What a name chose is for the kernel side to say, thread by thread.
        let names = options(Targets::Names(vec![]));
        assert!(!names.inherits_threads() && !names.inherits_children() && names.start_ids().is_empty());
    }
}
