// SPDX-License-Identifier: Apache-2.0
//! Which programs are loaded, from the options and the kernel's features: values in, values out.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::attach::Program;
use crate::bpf::constants as c;
use crate::events::PerfEventSpec;
use crate::features::KernelTypes;
use crate::look;

/// The threads whose time is recorded.
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
    /// These processes with their threads, including later ones.
    pub processes: Vec<u32>,
    /// Also the processes that these have started or will start, and so on.
    pub with_children: bool,
    /// These threads only.
    pub threads: Vec<u32>,
    pub cgroup: Option<CgroupTarget>,
    /// Processes and threads with matching names, now and later.
    pub names: Vec<NameGlob>,
}

/// The most globs that are matched.
pub const MAX_NAME_GLOBS: usize = c::MAX_NAME_GLOBS as usize;

/// A glob over names as an automaton of at most 64 states, one bit each. State `i`: `i` characters are
/// matched.
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
    /// The inode number of its directory.
    pub id: u64,
    /// The hierarchy's number in `/proc/PID/cgroup`; 0 for cgroup v2.
    pub hierarchy: u32,
}

/// The options of a recording that concern the kernel side.
#[derive(Clone, Debug)]
pub struct ProbeOptions {
    pub targets: Targets,
    /// `-C`; `None`: all.
    pub cpus: Option<Vec<u32>>,
    /// 0: without the sampling clock.
    pub sample_hz: u32,
    pub events: Vec<PerfEventSpec>,
    pub min_stall_ns: u64,
    /// Longer busy periods are emitted one by one.
    pub busy_budget_ns: Option<u64>,
    pub user_stacks: UserStacks,
    /// Guarded CPUs: the noise there is counted.
    pub guarded: Vec<u32>,
    /// `--span`; those after the first [`MAX_SPAN_PROBES`] are left out.
    pub spans: Vec<SpanProbes>,
    /// A poll at an idle place that returns at once ends a busy period: `--span loop`.
    pub loops: bool,
}

/// The most options `--span`.
pub const MAX_SPAN_PROBES: usize = c::MAX_SPAN_PROBES as usize;

/// Two sets of places in a file's code: a span goes from one of the first to one of the second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanProbes {
    /// As the user has written it.
    pub option: String,
    pub path: PathBuf,
    pub begins: Vec<CodePlace>,
    pub ends: Vec<CodePlace>,
    /// The places are a function's start and its ends: a span is one call of it.
    pub is_call: bool,
}

/// A place in a file's code. Offsets are in the file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodePlace {
    pub offset: u64,
    /// The counter that switches the place on in the program.
    pub semaphore: Option<u64>,
    /// Of a conditional jump by which the code leaves a function: `tttn` of its opcode (Intel SDM, volume 2,
    /// appendix B). A span ends there only where it holds.
    pub condition: Option<u8>,
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
    /// Whether processes that recorded ones start are recorded.
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

    /// The ids for the first scan, each once, with its kinds of target.
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

/// Tracepoints without which nothing can be measured: every kernel since 6.1 has them. A program for any
/// other tracepoint is left out where the kernel lacks it, and its data is missing.
const REQUIRED: &[&str] = &[
    "sched_switch",
    "sched_waking",
    "sched_migrate_task",
    "task_newtask",
    "task_rename",
    "sched_process_exec",
    "sched_process_exit",
    "irq_handler_entry",
    "irq_handler_exit",
    "softirq_entry",
    "softirq_exit",
    "sys_exit",
];

/// Names of the programs that cannot load here, or that nothing needs.
pub(crate) fn left_out(programs: &[Program<'_>], types: &KernelTypes, options: &ProbeOptions) -> Vec<String> {
    let unneeded = |program: &&Program<'_>| match program.name {
        "on_cgroup_attach" => options.targets.cgroup().is_none(),
        "on_exec" => options.targets.names().is_empty(),
        "on_fault_started" => types.features().page_faults,
        // One alone would leave the other's faults to the event, which reports both.
        "on_fault_in_user" | "on_fault_in_kernel" => !types.features().page_faults,
        "on_ipi_send_cpu" | "on_ipi_send_cpumask" | "on_csd_queue_cpu" => options.guarded.is_empty(),
        "on_event" => !options.events.iter().any(|event| !event.is_tracepoint()),
        "on_tracepoint" => !options.events.iter().any(PerfEventSpec::is_tracepoint),
        "on_span_start" | "on_span_end" => options.spans.is_empty(),
        "on_system_call_end" => !options.loops,
        look::PROGRAM => true,
        _ => false,
    };
    let mut names = missing(programs, types);
    names.extend(programs.iter().filter(unneeded).map(|program| program.name.to_owned()));
    names
}

/// Names of the programs that cannot load here: their tracepoint does not exist. Any other program has to
/// load.
pub(crate) fn missing(programs: &[Program<'_>], types: &KernelTypes) -> Vec<String> {
    let is_missing = |program: &&Program<'_>| {
        let optional = program.tracepoint().filter(|tracepoint| !REQUIRED.contains(tracepoint));
        optional.is_some_and(|tracepoint| !types.has_tracepoint(tracepoint))
    };
    programs.iter().filter(is_missing).map(|program| program.name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::tests::programs_of_the_object;

    const PROGRAMS: [(&str, &str); 10] = [
        ("on_switch", "tp_btf/sched_switch"),
        ("on_switched", "tp_btf/sched_exit_tp"),
        ("on_cgroup_attach", "tp_btf/cgroup_attach_task"),
        ("on_irq_entry", "tp_btf/irq_handler_entry"),
        ("on_irq_exit", "tp_btf/irq_handler_exit"),
        ("on_softirq_exit", "tp_btf/softirq_exit"),
        ("on_irq_work_entry", "tp_btf/irq_work_entry"),
        ("on_cross_call", "raw_tp/csd_queue_cpu"),
        ("on_event", "perf_event"),
        ("on_tracepoint", "tp"),
    ];
    const EXEC: Program<'_> = Program { name: "on_exec", section: "tp_btf/sched_process_exec" };

    fn programs() -> Vec<Program<'static>> {
        PROGRAMS.map(|(name, section)| Program { name, section }).to_vec()
    }

    fn options(targets: Targets) -> ProbeOptions {
        ProbeOptions {
            targets,
            cpus: None,
            sample_hz: 99,
            events: Vec::new(),
            min_stall_ns: 100_000,
            busy_budget_ns: None,
            user_stacks: UserStacks::Tables,
            guarded: Vec::new(),
            spans: Vec::new(),
            loops: false,
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
    fn only_optional_programs_are_missing() {
        let bare = KernelTypes::with_tracepoints(&[]);
        let optional = ["on_switched", "on_cgroup_attach", "on_irq_work_entry", "on_cross_call"];
        assert_eq!(missing(&programs(), &bare), optional);
    }

    #[test]
    fn programs_of_existing_tracepoints_are_loaded() {
        let old = KernelTypes::with_tracepoints(&["cgroup_attach_task", "irq_work_entry", "csd_queue_cpu"]);
        assert_eq!(missing(&programs(), &old), ["on_switched"]);
        let new = KernelTypes::with_tracepoints(&[
            "sched_exit_tp",
            "cgroup_attach_task",
            "irq_work_entry",
            "csd_queue_cpu",
        ]);
        assert_eq!(missing(&programs(), &new), [""; 0]);
    }

    #[test]
    fn required_tracepoints_are_those_of_programs() {
        let object = programs_of_the_object();
        let programs: Vec<_> = object.iter().map(|(name, section)| Program { name, section }).collect();
        let tracepoints: Vec<_> = programs.iter().filter_map(|program| program.tracepoint()).collect();
        assert_eq!(REQUIRED.iter().find(|required| !tracepoints.contains(required)), None);
        let bare = missing(&programs, &KernelTypes::with_tracepoints(&[]));
        assert_eq!(bare.len(), tracepoints.len() - REQUIRED.len(), "{bare:?}");
    }

    #[test]
    fn unneeded_programs_are_left_out() {
        let types = KernelTypes::with_tracepoints(&["sched_exit_tp", "irq_work_entry", "csd_queue_cpu"]);
        let everything = options(Targets::Everything);
        assert_eq!(
            left_out(&programs()[3..], &types, &everything),
            ["on_event", "on_tracepoint"],
            "no -e was given"
        );
        let group = given(TargetSet { cgroup: Some(GROUP), ..TargetSet::default() });
        assert_eq!(left_out(&programs()[..3], &types, &group), ["on_cgroup_attach"], "the kernel lacks it");
        assert_eq!(left_out(&programs()[..2], &types, &everything), [""; 0]);
        assert_eq!(left_out(&[EXEC], &types, &everything), [EXEC.name], "no name is asked for");
        let named = given(TargetSet { names: vec![any_name()], ..TargetSet::default() });
        assert_eq!(left_out(&[EXEC], &types, &named), [""; 0]);
        let both = [EXEC, programs()[2]];
        let types = KernelTypes::with_tracepoints(&["cgroup_attach_task"]);
        assert_eq!(left_out(&both, &types, &named), ["on_cgroup_attach"]);
        let combined =
            given(TargetSet { names: vec![any_name()], cgroup: Some(GROUP), ..TargetSet::default() });
        assert_eq!(left_out(&both, &types, &combined), [""; 0]);
    }

    #[test]
    fn faults_have_one_kind_of_start() {
        let programs = [
            ("on_fault_started", "perf_event"),
            ("on_fault_in_user", "tp_btf/page_fault_user"),
            ("on_fault_in_kernel", "tp_btf/page_fault_kernel"),
        ];
        let programs = programs.map(|(name, section)| Program { name, section });
        let everything = options(Targets::Everything);
        let both = KernelTypes::with_tracepoints(&["page_fault_user", "page_fault_kernel"]);
        assert_eq!(left_out(&programs, &both, &everything), ["on_fault_started"]);
        for present in [&[][..], &["page_fault_user"]] {
            let left_out = left_out(&programs, &KernelTypes::with_tracepoints(present), &everything);
            let is_left_out = programs.map(|program| left_out.iter().any(|name| name == program.name));
            assert_eq!(is_left_out, [false, true, true], "{present:?}");
        }
    }

    #[test]
    fn each_id_has_all_its_kinds_of_target_once() {
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
