// SPDX-License-Identifier: Apache-2.0
//! The in-memory model that every view and every finding reads: the contents of a recording as plain values.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::event::{
    CrossCallDelta, Fault, InterruptDelta, KernelDelay, LedgerDelta, Peer, SampleDelta, Stall, Throttled,
    WaitedFile,
};
use crate::guard::IntrusionDelta;
use crate::histogram::Histogram;
use crate::label::Labels;
use crate::lateness::Lateness;
use crate::meaning::Meaning;
use crate::span_budget::SpanBudgets;
use crate::stack::{FrameKind, StackEnd, SymbolLine};
use crate::state::{Metric, StallKind, StallReason};
use crate::thread::{ThreadInfo, ThreadKey, ThreadRef};
use crate::time::{ClockMap, MonoNs};
use crate::trace::TraceIds;
use crate::word::WaitWord;

/// The recording as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordingInfo {
    /// Monotonic clock, ns. In a recording of bounded size the start of its window.
    pub start: MonoNs,
    /// Monotonic clock, ns.
    pub end: MonoNs,
    /// Without anchors the source knew no times of day.
    pub clock: ClockMap,
    /// `live`, `perf.data`, `intel-pt` or `perf-script`.
    pub source: String,
    /// The release of the recorded machine's kernel (`uname -r`). A text is empty if it is not known.
    pub kernel: String,
    /// The recorded machine's architecture (`uname -m`).
    pub arch: String,
    /// CPUs of the recorded machine that were online at the start; 0: not known.
    pub cpus: u32,
    /// The recorded machine's name.
    pub hostname: String,
    /// The recorded machine's `/etc/machine-id`.
    pub machine_id: String,
    /// The `boot_id` of random(4): with tid and start time the identity of a thread.
    pub boot_id: String,
    /// The names of the recorded program, processes and cgroups, or [`Self::ALL_THREADS`]. Arguments of
    /// commands are left out.
    pub command: String,
    /// What the user said about the recording: `version=1.4`.
    pub labels: Labels,
    /// How long spans may take, by the user's choice.
    pub budgets: SpanBudgets,
    /// The shortest stall that has a record, ns. Shorter waits are in ledgers, latencies and samples only.
    pub min_stall_ns: u64,
    /// False for a recording whose writer was killed, or still writes: `end` is then the last time that it holds.
    pub ended_cleanly: bool,
    /// Names of the extra events, by index.
    pub events: Vec<String>,
    /// Counts by reason: names of [`crate::Loss`], and of losses that other versions of wallprof have.
    pub losses: BTreeMap<String, u64>,
    /// The cost of wallprof while it recorded.
    pub overhead: Overhead,
    /// How complete the user stacks are.
    pub unwinding: Unwinding,
    /// The resolution of times of calls; `None` where it is not known.
    pub call_resolution_ns: Option<u64>,
    /// Whether a poll that returns at once ended a busy period, too (`--span loop`): each is one turn of its loop.
    pub has_turns: bool,
}

impl RecordingInfo {
    /// What readers say of a recording that has not ended cleanly. The file does not show which of both it is.
    pub const NO_END: &str = "The recording has no end: its recorder was killed, or still records.";

    /// The `command` of a recording of every thread of the machine.
    pub const ALL_THREADS: &str = "all threads";

    /// The `source` of what wallprof itself records.
    pub const LIVE: &str = "live";

    /// Whether wallprof itself recorded it, so that its ledgers have all waits and faults.
    pub fn is_live(&self) -> bool {
        self.source == Self::LIVE
    }

    /// Whether it is of all threads (`-a`).
    pub fn is_of_all_threads(&self) -> bool {
        self.command == Self::ALL_THREADS
    }
}

/// The cost of wallprof itself over the whole recording; all 0 for an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    /// CPU time of the recorder's process, ns.
    pub process_cpu_ns: u64,
    /// Time in the probes on all CPUs, ns: estimated, because a part of the runs is timed.
    pub probe_ns: u64,
    /// Runs of the probes on all CPUs.
    pub probe_runs: u64,
    /// How long recorded threads waited for a CPU on which a thread of wallprof ran, ns.
    pub behind_ns: u64,
    /// The most that unwind tables took in kernel memory, bytes.
    pub table_bytes: u64,
}

/// How user stacks ended, weighted by how often each stack was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unwinding {
    /// User stacks of all samples and stalls.
    pub stacks: u64,
    /// Stacks that ended at a known start: [`StackEnd::Complete`].
    pub complete: u64,
    /// The other stacks, by [`StackEnd::name`].
    pub incomplete: BTreeMap<String, u64>,
}

/// One thread over the whole recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Thread {
    /// In a profile the key is the thread's row id in the file.
    pub info: ThreadInfo,
    /// The start of the thread, or of the recording if that is later. Monotonic clock, ns.
    pub start: MonoNs,
    /// The end of the thread, or of the recording if that is earlier. Monotonic clock, ns.
    pub end: MonoNs,
    /// The sum of the thread's buckets; its `second` means nothing.
    pub ledger: LedgerDelta,
    /// Lengths of its intervals, those too short for a stall included. Metrics without an interval are not
    /// there.
    pub latency: BTreeMap<Metric, Histogram>,
    /// Stalls of this thread in the file, the voluntary ones left out.
    pub stalls: u64,
}

impl AsRef<ThreadInfo> for Thread {
    fn as_ref(&self) -> &ThreadInfo {
        &self.info
    }
}

/// One second of one thread.
pub type LedgerRow = LedgerDelta;

/// Samples of one thread in one second; the stack ids are the file's.
pub type SampleRow = SampleDelta;

/// Interrupts of one cause, CPU and victim, over the whole recording.
pub type InterruptRow = InterruptDelta;

/// A thread or an interrupt on a guarded CPU, over the whole recording.
pub type IntrusionRow = IntrusionDelta;

/// One delay of a thread.
pub type KernelDelayRow = KernelDelay;

/// Functions that one thread had called on other CPUs, by system call and function, over the whole recording.
pub type CrossCallRow = CrossCallDelta;

/// One interval in which a quota was used up, of one process.
pub type ThrottledRow = Throttled;

/// One frame with everything known about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedFrame {
    /// Where the code is from.
    pub kind: FrameKind,
    /// The path of the file, as its process saw it. `None` for the kernel, and for code that is in no file.
    pub module: Option<String>,
    /// Of the module's file; `None`: it has none, or it is not known.
    pub build_id: Option<Vec<u8>>,
    /// As [`crate::Frame::address`].
    pub address: u64,
    /// Innermost first; at least one entry, whose symbol may be unknown.
    pub lines: Vec<SymbolLine>,
}

/// A whole stack, leaf first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedStack {
    /// Shared: a reader returns one stack a million times.
    pub frames: Arc<[Arc<ResolvedFrame>]>,
    /// How the walk ended: whether the last frame is the outermost one.
    pub end: StackEnd,
}

/// One stall with its stacks resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct StallRecord {
    /// The number of the stall in the file, which never changes.
    pub id: u64,
    /// The thread's row in the file, as of [`Thread::info`].
    pub thread: ThreadKey,
    /// The number of the thread's process.
    pub pid: u32,
    /// The thread's tid. Tids are reused; `thread` is unique.
    pub tid: u32,
    /// The thread's name at the time.
    pub comm: Arc<str>,
    /// Whether the stall is an interval off the CPU or a page fault.
    pub kind: StallKind,
    /// As of [`Stall::reason`].
    pub reason: StallReason,
    /// The thread was idle, by the meaning of the wait; without a meaning as of [`Stall::voluntary`].
    pub voluntary: bool,
    /// The recording ended before the stall did.
    pub open: bool,
    /// Monotonic clock, ns.
    pub start: MonoNs,
    /// Monotonic clock, ns; of an open stall, the last time at which it was known to last.
    pub end: MonoNs,
    /// From the start to the wakeup, ns. Of a fault: the sleeps in it.
    pub blocked_ns: u64,
    /// Runnable without a CPU, ns.
    pub runnable_ns: u64,
    /// As of [`Stall::syscall`].
    pub syscall: Option<Arc<str>>,
    /// The CPU that the thread came back on, or waits for; `None`: not known.
    pub cpu: Option<u32>,
    /// As of [`Stall::priority`](crate::event::Stall::priority).
    pub priority: Option<i16>,
    /// The thread's user stack, in which it waited or faulted; `None`: no stack was taken.
    pub user: Option<ResolvedStack>,
    /// The thread's kernel stack; `None`: no stack was taken.
    pub kernel: Option<ResolvedStack>,
    /// `None`: no wakeup was seen, as for a preemption or an open stall.
    pub waker: Option<WakerRecord>,
    /// As of [`Stall::lock`].
    pub lock: Option<LockRecord>,
    /// When the lock's owner was sampled during the wait, and the user stack that it had then.
    pub owner_sample: Option<(MonoNs, ResolvedStack)>,
    /// The threads that had the CPU while the thread waited for it, each with its ns, most time first.
    pub ran_instead: Vec<(ThreadRef, u64)>,
    /// `None` unless `kind` is [`StallKind::Fault`].
    pub fault: Option<Fault>,
    /// The timeout that the thread had asked for, ns from the start of the wait; `None`: it had none.
    pub asked_ns: Option<u64>,
    /// The function that the dynamic linker was binding; `None`: it bound none.
    pub binding: Option<BoundAtFirstCall>,
    /// The file that a wait for a disk was for; `None`: not known.
    pub file: Option<WaitedFile>,
    /// The other end of the socket or pipe that it waited on; `None`: not known.
    pub peer: Option<Box<Peer>>,
    /// What the process's own memory said that the thread waited for; `None`: no word was read.
    pub word: Option<WaitWord>,
    /// The trace that the thread worked for; `None`: the process publishes none, or the thread worked for none.
    pub trace: Option<TraceIds>,
    /// What the wait means by the whole recording, once the search for meanings was made; `None`: nothing
    /// names it.
    pub meaning: Option<Arc<Meaning>>,
    /// The first stall of a wait in time slices, of which this is one; `None` for a wait in one piece.
    pub wait_id: Option<u64>,
}

/// A stall that is in the file, by the number it has there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptStall {
    /// As [`StallRecord::id`].
    pub id: u64,
    /// The source's number of the thread.
    pub thread: ThreadKey,
    /// As of the stall's event.
    pub kind: StallKind,
    /// As of the stall's event. Monotonic clock, ns.
    pub start: MonoNs,
    /// As of the stall's event. Monotonic clock, ns.
    pub end: MonoNs,
    /// As of the stall's event.
    pub trace: Option<TraceIds>,
}

impl StallRecord {
    /// As [`Stall::new`](crate::event::Stall::new); of process 0.
    pub fn new(id: u64, thread: ThreadKey, reason: StallReason, start: MonoNs, ns: u64) -> Self {
        let Stall { comm, kind, voluntary, open, end, blocked_ns, runnable_ns, .. } =
            Stall::new(thread, reason, start, ns);
        StallRecord {
            id,
            thread,
            pid: 0,
            tid: 0,
            comm: comm.into(),
            kind,
            reason,
            voluntary,
            open,
            start,
            end,
            blocked_ns,
            runnable_ns,
            syscall: None,
            cpu: None,
            priority: None,
            user: None,
            kernel: None,
            waker: None,
            lock: None,
            owner_sample: None,
            ran_instead: Vec::new(),
            fault: None,
            asked_ns: None,
            binding: None,
            file: None,
            peer: None,
            word: None,
            trace: None,
            meaning: None,
            wait_id: None,
        }
    }

    /// The thread that held what the wait was for: the owner that the lock names, else the one that ended the
    /// wait, where such waits are for what a thread holds.
    pub fn holder(&self) -> Option<&ThreadRef> {
        let owner = self.lock.as_ref().and_then(|lock| lock.owner.as_ref());
        let is_held = self.meaning.as_ref().is_some_and(|meaning| meaning.holder && !meaning.idle);
        owner.or_else(|| self.waker.as_ref().filter(|_| is_held)?.thread.as_ref())
    }

    /// From start to end, ns; of an open stall, so far. 0 where the end is before the start.
    pub fn duration_ns(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// How late the thread returned, ns.
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
            is_lock: self.lock.is_some() || self.meaning.as_ref().is_some_and(|meaning| !meaning.idle),
        }
    }
}

/// See [`crate::event::Binding`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundAtFirstCall {
    /// How many frames of the user stack are the linker's.
    pub depth: usize,
    /// The function that was bound, as people read it; `None`: not known.
    pub symbol: Option<String>,
    /// The file that has the function; `None`: not known.
    pub library: Option<String>,
}

/// The wakeup that ended a wait, with its stacks.
#[derive(Clone, Debug, PartialEq)]
pub struct WakerRecord {
    /// `None`: woken from an interrupt.
    pub thread: Option<ThreadRef>,
    /// The user stack of the waker at the wakeup; `None`: no stack was taken, or no thread is known.
    pub user: Option<ResolvedStack>,
    /// The kernel stack at the wakeup, of the waker or of the interrupt; `None`: no stack was taken.
    pub kernel: Option<ResolvedStack>,
}

/// A lock that a thread waits for, as of [`crate::event::Lock`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRecord {
    /// As of [`crate::event::Lock::address`].
    pub address: u64,
    /// As of [`crate::event::Lock::owner`].
    pub owner: Option<ThreadRef>,
}

/// Stalls that the size budget folded into counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoldedStalls {
    /// The thread's row in the file, as of [`Thread::info`].
    pub thread: ThreadKey,
    /// As of [`StallRecord::reason`].
    pub reason: StallReason,
    /// As of [`Stall::voluntary`]: readers do not know the meanings of these stalls.
    pub voluntary: bool,
    /// How many stalls.
    pub count: u64,
    /// The lateness of all stalls together, ns.
    pub total_ns: u64,
    /// The largest lateness of a stall, ns.
    pub max_ns: u64,
}

/// Where the cause of a finding lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// In the recorded program.
    Program,
    /// In the machine: other programs, its configuration, a hypervisor.
    Machine,
}

impl Cause {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Program => "program",
            Cause::Machine => "machine",
        }
    }
}

/// A conclusion with its evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule that draws it: `lock-wait`, `deadlock` …
    pub rule: String,
    /// Whether the program or the machine is the cause.
    pub cause: Cause,
    /// One sentence: the threads, the place, the time and the cause. Names are those of the recorded machine.
    pub title: String,
    /// What to do about it.
    pub advice: String,
    /// Rows of the threads that were late.
    pub threads: Vec<ThreadKey>,
    /// Those of them to which nearly all of it happened: the others were late for a twentieth, at most, of what the
    /// latest one was, and for a tenth of the whole together.
    pub most_late: Vec<ThreadKey>,
    /// The time that the cause took of these threads, ns.
    pub most_late_ns: u64,
    /// How often it happened.
    pub count: u64,
    /// The time that the cause took, ns: it can be a part of each stall.
    pub total_ns: u64,
    /// The longest single time of the cause, ns.
    pub max_ns: u64,
    /// Ids of the stalls it rests on, ascending; of very many the longest.
    pub stalls: Vec<u64>,
}
