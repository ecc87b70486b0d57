//! From what is wanted and what the kernel has to what is loaded: values in, values out.

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
    /// Kernel text whose uninterruptible sleepers have a reason: name pattern of
    /// [`crate::reasons::KERNEL_SITES`] resolved to `[from, to)`, and the reason's code.
    pub sites: Vec<(u64, u64, u8)>,
}

impl ProbeOptions {
    /// New threads of a recorded process are recorded.
    pub(crate) fn inherits_threads(&self) -> bool {
        !matches!(self.targets, Targets::Threads(_))
    }

    /// New processes of a recorded one are recorded.
    pub(crate) fn inherits_children(&self) -> bool {
        matches!(self.targets, Targets::Descendants(_) | Targets::Cgroup(_))
    }

    /// What the start-up iterator looks for: id, and 1 for a thread, 2 for a process.
    pub(crate) fn start_ids(&self) -> Vec<(u32, u8)> {
        match &self.targets {
            Targets::Everything => Vec::new(),
            Targets::Processes(pids) => pids.iter().map(|&pid| (pid, 2)).collect(),
            Targets::Threads(tids) => tids.iter().map(|&tid| (tid, 1)).collect(),
            Targets::Descendants(pid) => vec![(*pid, 2)],
            Targets::Cgroup(group) => group.threads.iter().map(|&tid| (tid, 1)).collect(),
        }
    }
}

/// Programs that attach to something this kernel may not have: program, tracepoint.
const OPTIONAL: &[(&str, &str)] =
    &[("on_switched", "sched_exit_tp"), ("on_cgroup_attach", "cgroup_attach_task")];

/// Names of the programs that cannot load here: their tracepoint does not exist, or nothing wants them.
pub(crate) fn left_out(programs: &[String], types: &KernelTypes, options: &ProbeOptions) -> Vec<String> {
    let vector_of = |name: &str| {
        let tracepoint = name.strip_prefix("on_")?;
        let vector = tracepoint.ends_with("_entry") || tracepoint.ends_with("_exit");
        (vector && !tracepoint.starts_with("irq_e") && !tracepoint.starts_with("softirq_"))
            .then(|| tracepoint.to_string())
    };
    let missing = |name: &str| {
        let optional = OPTIONAL
            .iter()
            .find(|(program, _)| *program == name)
            .map(|(_, tracepoint)| (*tracepoint).to_string());
        let tracepoint = optional.or_else(|| vector_of(name));
        tracepoint.is_some_and(|tracepoint| !types.has_tracepoint(&tracepoint))
    };
    let unwanted = |name: &str| match name {
        "on_cgroup_attach" => !matches!(options.targets, Targets::Cgroup(_)),
        "on_event" => !options.events.iter().any(|event| !event.is_tracepoint()),
        "on_tracepoint" => !options.events.iter().any(PerfEventSpec::is_tracepoint),
        _ => false,
    };
    programs.iter().filter(|name| missing(name) || unwanted(name)).cloned().collect()
}
