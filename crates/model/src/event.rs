//! The few things a source can say. Nothing downstream knows which source said them.

use crate::calls::CallPath;
use crate::counter::{Counter, CounterKey};
use crate::guard::IntrusionDelta;
use crate::histogram::Cell;
use crate::lateness::Lateness;
use crate::loss::Loss;
use crate::stack::{Frame, FrameId, Module, ModuleId, StackEnd, StackId, SymbolLine};
use crate::state::{Metric, Reason, StallKind, StallReason, State};
use crate::thread::{ThreadInfo, ThreadKey, ThreadRef};
use crate::time::{ClockAnchor, EpochSecond, MonoNs};

/// What a source sends to the recorder. An id (thread key, stack, frame, module) is defined by its own
/// event before anything refers to it.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Clock(ClockAnchor),
    /// A thread appears, or one of its names changed.
    Thread(ThreadInfo),
    /// The time from which on the thread was observed: the start of the recording or of the thread.
    ThreadSeen {
        thread: ThreadKey,
        from: MonoNs,
    },
    /// The thread ended; without this event it lived to the end of the recording.
    ThreadEnd {
        thread: ThreadKey,
        at: MonoNs,
    },
    Module {
        id: ModuleId,
        module: Module,
    },
    Frame {
        id: FrameId,
        frame: Frame,
    },
    /// The functions at a frame, innermost first; sent when resolved, which may be long after the frame.
    Symbol {
        frame: FrameId,
        lines: Vec<SymbolLine>,
    },
    /// Leaf first.
    Stack {
        id: StackId,
        frames: Vec<FrameId>,
        end: StackEnd,
    },
    Binding(Binding),
    Ledger(LedgerDelta),
    Latency(LatencyDelta),
    OffCpu(OffCpuDelta),
    Sample(SampleDelta),
    /// Names the extra event number `index` of [`Weighted::Event`].
    EventName {
        index: u16,
        name: String,
    },
    Stall(Box<Stall>),
    Interrupt(InterruptDelta),
    /// What was on a guarded CPU.
    Intrusion(Box<IntrusionDelta>),
    KernelWork(KernelWork),
    CrossCalls(CrossCallDelta),
    Throttled(Throttled),
    /// How close two times of calls may be and still be told apart, in ns; of several the coarsest counts.
    CallResolution(u64),
    CallPath(Box<CallPath>),
    Counter {
        key: CounterKey,
        counter: Counter,
    },
    /// A counter's value; of one that does not change the first and the last moment are enough.
    CounterValue {
        key: CounterKey,
        at: MonoNs,
        value: f64,
    },
    /// Something that is not recorded; the reason is a name of [`Loss`].
    Loss {
        reason: String,
        count: u64,
    },
    /// What wallprof itself has cost since the last such event.
    Overhead {
        process_cpu_ns: u64,
        probe_ns: u64,
        probe_runs: u64,
        /// What unwind tables take in kernel memory now, bytes.
        table_bytes: u64,
    },
}

impl Event {
    pub fn loss(loss: Loss, count: u64) -> Self {
        Event::Loss { reason: loss.name().into(), count }
    }
}

/// A user stack in which the dynamic linker binds a function at its first call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    pub stack: StackId,
    /// How many frames of the stack are the linker's: the next one made the call.
    pub depth: u32,
    /// The function that is bound, as people read it; `None` where the call does not tell.
    pub symbol: Option<String>,
    /// The file that has the function; `None` where several or none could.
    pub library: Option<String>,
}

/// Time a thread spent, to be added to one thread's one-second bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerDelta {
    pub thread: ThreadKey,
    pub second: EpochSecond,
    pub wall_ns: u64,
    /// Exact running time: user + kernel + irq + the on-CPU part of faults.
    pub on_cpu_ns: u64,
    pub irq_ns: u64,
    pub fault_minor_ns: u64,
    pub fault_major_ns: u64,
    /// The part of both fault states that was on CPU.
    pub fault_on_cpu_ns: u64,
    pub runnable_ns: u64,
    pub preempted_ns: u64,
    /// Indexed by [`Reason::code`].
    pub blocked_ns: [u64; Reason::COUNT],
    /// Page faults that ended: with a page, with one that had to be read in or waited for, and without one.
    pub minor_faults: u64,
    pub major_faults: u64,
    pub failed_faults: u64,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
    /// Samples of the ledger's clock in user and in kernel mode, outside interrupts: they divide `on_cpu_ns`.
    pub user_samples: u64,
    pub kernel_samples: u64,
    /// The part of `on_cpu_ns` that a trace divides: samples do not divide it again.
    pub traced_user_ns: u64,
    pub traced_kernel_ns: u64,
    /// The part of `on_cpu_ns` of which nothing says where it went.
    pub undivided_ns: u64,
}

impl LedgerDelta {
    pub fn new(thread: ThreadKey, second: EpochSecond) -> Self {
        LedgerDelta {
            thread,
            second,
            wall_ns: 0,
            on_cpu_ns: 0,
            irq_ns: 0,
            fault_minor_ns: 0,
            fault_major_ns: 0,
            fault_on_cpu_ns: 0,
            runnable_ns: 0,
            preempted_ns: 0,
            blocked_ns: [0; Reason::COUNT],
            minor_faults: 0,
            major_faults: 0,
            failed_faults: 0,
            voluntary_switches: 0,
            involuntary_switches: 0,
            user_samples: 0,
            kernel_samples: 0,
            traced_user_ns: 0,
            traced_kernel_ns: 0,
            undivided_ns: 0,
        }
    }
}

/// Intervals of one length to be added to a thread's latency distribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyDelta {
    pub thread: ThreadKey,
    pub metric: Metric,
    /// A [`crate::histogram`] bucket.
    pub bucket: u16,
    pub cell: Cell,
}

/// Off-CPU intervals of one reason and length, each whole from switch-out to switch-in. For those who watch: told beside
/// the [`LatencyDelta`]s of the same intervals, which a recording keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffCpuDelta {
    pub thread: ThreadKey,
    /// As a stall of this length would be filed.
    pub reason: StallReason,
    /// A [`crate::histogram`] bucket.
    pub bucket: u16,
    pub cell: Cell,
}

/// What a sample's weight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Weighted {
    /// Nanoseconds in a ledger state. `User` and `Kernel` are samples of the ledger's clock; the others
    /// are whole intervals, or sums of short ones carried by one stack.
    State(State),
    /// Counts of the extra event with this index.
    Event(u16),
}

/// Weight on one pair of stacks, to be added to one thread's one-second bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleDelta {
    pub thread: ThreadKey,
    pub second: EpochSecond,
    pub what: Weighted,
    pub user: Option<StackId>,
    pub kernel: Option<StackId>,
    /// For blocked time: who ended it, where known.
    pub waker: Option<WakerStacks>,
    /// Nanoseconds, or counts for an extra event.
    pub weight: u64,
    /// How many samples or stacked intervals this sums up.
    pub count: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WakerStacks {
    /// `None`: woken from an interrupt, or by a thread that is not recorded.
    pub thread: Option<ThreadKey>,
    pub interrupt: bool,
    pub user: Option<StackId>,
    pub kernel: Option<StackId>,
}

/// One off-CPU interval or fault, kept by itself. What a fault has neither blocked nor waited for a CPU, it ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    pub thread: ThreadKey,
    /// The thread's name at the time.
    pub comm: String,
    pub kind: StallKind,
    pub reason: StallReason,
    pub voluntary: bool,
    pub start: MonoNs,
    /// For an open stall the last moment it was known to last.
    pub end: MonoNs,
    /// The recording ended, or the thread was looked at, before the stall did.
    pub open: bool,
    pub blocked_ns: u64,
    pub runnable_ns: u64,
    pub syscall: Option<String>,
    /// The CPU the thread came back on, or waits for.
    pub cpu: Option<u32>,
    pub user: Option<StackId>,
    pub kernel: Option<StackId>,
    pub waker: Option<Waker>,
    pub lock: Option<Lock>,
    /// Who had the CPU while the thread waited for it, most time first.
    pub ran_instead: Vec<RanInstead>,
    pub fault: Option<Fault>,
    /// The timeout the thread had asked for in this wait, counted from its start.
    pub asked_ns: Option<u64>,
    /// What a wait for a disk was for.
    pub file: Option<WaitedFile>,
}

impl Stall {
    /// An interval off the CPU that lasted `ns` and of which no more is known: all of it went by as its reason says, and
    /// the thread chose it where such waits are chosen. It has no name.
    pub fn new(thread: ThreadKey, reason: StallReason, start: MonoNs, ns: u64) -> Self {
        let is_blocked = matches!(reason, StallReason::Blocked(_));
        Stall {
            thread,
            comm: String::new(),
            kind: StallKind::OffCpu,
            reason,
            voluntary: matches!(reason, StallReason::Blocked(reason) if reason.is_voluntary()),
            start,
            end: MonoNs(start.0.saturating_add(ns)),
            open: false,
            blocked_ns: if is_blocked { ns } else { 0 },
            runnable_ns: if is_blocked { 0 } else { ns },
            syscall: None,
            cpu: None,
            user: None,
            kernel: None,
            waker: None,
            lock: None,
            ran_instead: Vec::new(),
            fault: None,
            asked_ns: None,
            file: None,
        }
    }

    pub fn duration_ns(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// How late the thread came back, ns.
    pub fn late_ns(&self) -> u64 {
        self.lateness().late_ns()
    }

    /// How long after the timeout it had asked for; `None` where it did not oversleep one.
    pub fn overslept_ns(&self) -> Option<u64> {
        self.lateness().overslept_ns()
    }

    fn lateness(&self) -> Lateness {
        Lateness {
            duration_ns: self.duration_ns(),
            blocked_ns: self.blocked_ns,
            asked_ns: self.asked_ns,
            reason: self.reason,
            is_lock: self.lock.is_some(),
        }
    }

    /// Divides a voluntary wait for `wait` that did not oversleep at its wakeup: the thread chose the wait, but
    /// not the time without a CPU after it. One stall where either part is shorter than `least_ns`.
    pub fn divided_at_wakeup(self, wait: Reason, least_ns: u64) -> Vec<Stall> {
        if self.blocked_ns.min(self.runnable_ns) < least_ns.max(1) {
            return vec![self];
        }
        let woken_at = MonoNs(self.end.0.saturating_sub(self.runnable_ns));
        let late = Stall {
            reason: StallReason::Runnable,
            voluntary: false,
            start: woken_at,
            blocked_ns: 0,
            asked_ns: None,
            ..self.clone()
        };
        // The wait ended at its wakeup; where the stall is still open, the thread is woken and not back yet.
        let chosen = Stall {
            reason: StallReason::Blocked(wait),
            voluntary: true,
            end: woken_at,
            open: false,
            runnable_ns: 0,
            ran_instead: Vec::new(),
            ..self
        };
        vec![chosen, late]
    }
}

/// The file on whose descriptor a system call waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitedFile {
    /// As its process sees it; its name alone where the process was gone.
    pub path: String,
    /// Where the call reads or writes, bytes; `None` for calls about the whole file.
    pub offset: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waker {
    /// `None`: woken from an interrupt, where the current task is a bystander.
    pub thread: Option<ThreadRef>,
    pub user: Option<StackId>,
    pub kernel: Option<StackId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Address of the lock word in the process (futex), or of nothing for kernel locks.
    pub address: u64,
    pub owner: Option<ThreadRef>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RanInstead {
    pub thread: ThreadRef,
    pub ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    Exec,
}

impl Access {
    pub fn name(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::Exec => "exec",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Access::Read, Access::Write, Access::Exec].into_iter().find(|access| access.name() == name)
    }
}

/// What is mapped where a page fault happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    File,
    Anonymous,
    /// A thread's own stack.
    Stack,
    /// What `brk(2)` gives.
    Heap,
    /// Reserved huge pages (hugetlbfs).
    Huge,
}

impl Mapping {
    pub const ALL: [Mapping; 5] =
        [Mapping::File, Mapping::Anonymous, Mapping::Stack, Mapping::Heap, Mapping::Huge];

    pub fn name(self) -> &'static str {
        match self {
            Mapping::File => "file",
            Mapping::Anonymous => "anonymous",
            Mapping::Stack => "stack",
            Mapping::Heap => "heap",
            Mapping::Huge => "huge",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mapping| mapping.name() == name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub address: u64,
    pub access: Option<Access>,
    pub major: bool,
    pub mapping: Option<Mapping>,
    pub file: Option<String>,
    /// Of the address in the file, bytes.
    pub file_offset: Option<u64>,
}

/// Interrupt time on one CPU, to be added up by cause and victim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterruptDelta {
    pub cpu: u32,
    pub kind: InterruptKind,
    /// `local_timer`, `net_rx`, `virtio0-input.0` …
    pub name: String,
    /// The thread that was current; `None` for the idle task and for threads that are not recorded.
    pub victim: Option<ThreadKey>,
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
}

/// What the kernel does for a thread that takes the thread's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkKind {
    /// Frees memory, because there was none or a cgroup's limit was reached.
    Reclaim,
    /// Moves memory together, for a large piece.
    Compaction,
    /// Waits for the lock of the process's memory map.
    MmapLock,
    /// Waits for another lock of the kernel's own.
    KernelLock,
}

impl WorkKind {
    pub const ALL: [WorkKind; 4] =
        [WorkKind::Reclaim, WorkKind::Compaction, WorkKind::MmapLock, WorkKind::KernelLock];

    pub fn name(self) -> &'static str {
        match self {
            WorkKind::Reclaim => "reclaim",
            WorkKind::Compaction => "compaction",
            WorkKind::MmapLock => "mmap_lock",
            WorkKind::KernelLock => "kernel_lock",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// One stretch of such work, at least as long as a stall. It is a part of what the thread did at that time: of its
/// running time, of a stall, or of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelWork {
    pub thread: ThreadKey,
    pub kind: WorkKind,
    pub start: MonoNs,
    pub end: MonoNs,
}

/// A control group had used up its CPU quota while this process was in it, or in a group below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throttled {
    pub pid: u32,
    /// The group's path in its hierarchy.
    pub cgroup: String,
    /// The CPU time it may use in each period.
    pub quota_ns: u64,
    pub period_ns: u64,
    /// It happened between these two looks.
    pub from: MonoNs,
    pub to: MonoNs,
    /// How often, and for how long over all CPUs.
    pub count: u64,
    pub total_ns: u64,
}

/// Functions that a thread had called on other CPUs, which interrupts them; to be added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrossCallDelta {
    pub caller: ThreadRef,
    /// What the caller was about; `None`: not in a system call.
    pub syscall: Option<String>,
    /// The kernel's function; `None` without kernel symbols.
    pub function: Option<String>,
    pub count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum InterruptKind {
    Irq,
    Softirq,
    Vector,
}

impl InterruptKind {
    pub fn name(self) -> &'static str {
        match self {
            InterruptKind::Irq => "irq",
            InterruptKind::Softirq => "softirq",
            InterruptKind::Vector => "vector",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [InterruptKind::Irq, InterruptKind::Softirq, InterruptKind::Vector]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}
