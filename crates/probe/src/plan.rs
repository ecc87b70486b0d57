//! From what is wanted and what the kernel has to what is loaded: values in, values out.

use std::collections::BTreeMap;

use crate::bpf::constants as c;
use crate::events::PerfEventSpec;
use crate::features::KernelTypes;

/// Whose time is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    Everything,
    /// This process and everything it starts: a command that is about to start.
    Command(u32),
    /// The threads that any of these matches.
    Given(TargetSet),
}

/// Targets of several kinds; a thread is recorded while at least one matches it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetSet {
    /// These processes with their threads, also later ones.
    pub processes: Vec<u32>,
    /// And the processes that these have started or will start, and so on.
    pub with_children: bool,
    /// These threads only.
    pub threads: Vec<u32>,
    pub cgroup: Option<CgroupTarget>,
    /// Processes and threads with such names, now and later.
    pub names: Vec<NameGlob>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupTarget {
    /// The inode number of its folder.
    pub id: u64,
    /// The hierarchy's number in `/proc/PID/cgroup`; 0 for cgroup v2.
    pub hierarchy: u32,
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

impl Targets {
    /// New processes of some recorded processes are recorded.
    pub(crate) fn follow_children(&self) -> bool {
        match self {
            Targets::Everything => false,
            Targets::Command(_) => true,
            Targets::Given(set) => set.with_children,
        }
    }

    pub fn cgroup(&self) -> Option<CgroupTarget> {
        match self {
            Targets::Given(set) => set.cgroup,
            Targets::Everything | Targets::Command(_) => None,
        }
    }

    pub fn names(&self) -> &[NameGlob] {
        match self {
            Targets::Given(set) => &set.names,
            Targets::Everything | Targets::Command(_) => &[],
        }
    }

    /// The ids that the first look finds, each once, with its kinds of target.
    pub(crate) fn start_ids(&self) -> BTreeMap<u32, u8> {
        let mut kinds = BTreeMap::new();
        let mut add = |ids: &[u32], kind: u64| {
            ids.iter().for_each(|&id| *kinds.entry(id).or_default() |= kind as u8);
        };
        match self {
            Targets::Everything => {}
            Targets::Command(pid) => add(&[*pid], c::TARGET_TREE),
            Targets::Given(set) => {
                add(&set.processes, if set.with_children { c::TARGET_TREE } else { c::TARGET_PROCESS });
                add(&set.threads, c::TARGET_THREAD);
            }
        }
        kinds
    }
}

/// Programs that attach to something this kernel may not have: program, tracepoint.
const OPTIONAL: &[(&str, &str)] = &[
    ("on_switched", "sched_exit_tp"),
    ("on_cgroup_attach", "cgroup_attach_task"),
    ("on_cpu_step", "cpuhp_exit"),
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
        "on_cgroup_attach" => options.targets.cgroup().is_none(),
        "on_exec" => options.targets.names().is_empty(),
        "on_fault_started" => types.features().page_faults,
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

    const GROUP: CgroupTarget = CgroupTarget { id: 1, hierarchy: 0 };

    fn given(set: TargetSet) -> ProbeOptions {
        options(Targets::Given(set))
    }

    fn any_name() -> NameGlob {
        NameGlob { takes: Box::new([0; 256]), loops: 1, accepts: 1 }
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
        let group = given(TargetSet { cgroup: Some(GROUP), ..TargetSet::default() });
        assert_eq!(left_out(&programs()[..3], &types, &group), ["on_cgroup_attach"], "the kernel lacks it");
        assert_eq!(left_out(&programs()[..2], &types, &everything), [""; 0]);
        let exec = ["on_exec".to_string()];
        assert_eq!(left_out(&exec, &types, &everything), exec, "no names are looked for");
        let named = given(TargetSet { names: vec![any_name()], ..TargetSet::default() });
        assert_eq!(left_out(&exec, &types, &named), [""; 0]);
        let both = ["on_exec", "on_cgroup_attach"].map(String::from);
        let types = KernelTypes::with_tracepoints(&["cgroup_attach_task"]);
        assert_eq!(left_out(&both, &types, &named), both[1..]);
        let combined =
            given(TargetSet { names: vec![any_name()], cgroup: Some(GROUP), ..TargetSet::default() });
        assert_eq!(left_out(&both, &types, &combined), [""; 0]);
    }

    #[test]
    fn a_fault_begins_once() {
        let programs = ["on_fault_started", "on_fault_in_user", "on_fault_in_kernel"].map(String::from);
        let everything = options(Targets::Everything);
        let both = KernelTypes::with_tracepoints(&["page_fault_user", "page_fault_kernel"]);
        assert_eq!(left_out(&programs, &both, &everything), ["on_fault_started"]);
        for present in [&[][..], &["page_fault_user"]] {
            let left_out = left_out(&programs, &KernelTypes::with_tracepoints(present), &everything);
            let is_left_out = |name: &String| left_out.contains(name);
            assert_eq!(programs.each_ref().map(is_left_out), [false, true, true], "{present:?}");
        }
    }

    #[test]
    fn each_id_is_looked_for_once_with_all_its_kinds() {
        let (thread, process, tree) = (c::TARGET_THREAD as u8, c::TARGET_PROCESS as u8, c::TARGET_TREE as u8);
        let ids = |targets: &Targets| targets.start_ids().into_iter().collect::<Vec<_>>();
        let set = TargetSet { processes: vec![9, 7], threads: vec![8, 7], ..TargetSet::default() };
        let alone = Targets::Given(set.clone());
        assert_eq!(ids(&alone), [(7, thread | process), (8, thread), (9, process)]);
        assert!(!alone.follow_children());
        let with_children = Targets::Given(TargetSet { with_children: true, ..set });
        assert_eq!(ids(&with_children), [(7, thread | tree), (8, thread), (9, tree)]);
        assert!(with_children.follow_children());
        assert_eq!(ids(&Targets::Command(7)), [(7, tree)]);
        assert!(Targets::Command(7).follow_children());
        assert_eq!(ids(&Targets::Everything), []);
    }
}
