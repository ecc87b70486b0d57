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
use crate::word::WaitWord;

/// The recording as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordingInfo {
    pub start: MonoNs,
    pub end: MonoNs,
    pub clock: ClockMap,
    /// `live`, `perf.data`, `intel-pt` or `perf-script`.
    pub source: String,
    pub kernel: String,
    pub arch: String,
    pub cpus: u32,
    pub hostname: String,
    pub machine_id: String,
    pub boot_id: String,
    pub command: String,
    /// What the user said about the recording: `version=1.4`.
    pub labels: Labels,
    /// How long spans may take, by the user's choice.
    pub budgets: SpanBudgets,
    pub min_stall_ns: u64,
    /// False for a recording whose writer was killed: `end` is then the last time that it holds.
    pub ended_cleanly: bool,
    /// Names of the extra events, by index.
    pub events: Vec<String>,
    pub losses: BTreeMap<String, u64>,
    pub overhead: Overhead,
    pub unwinding: Unwinding,
    /// The resolution of times of calls; `None` where it is not known.
    pub call_resolution_ns: Option<u64>,
}

impl RecordingInfo {
    /// The `command` of a recording of every thread of the machine.
    pub const ALL_THREADS: &str = "all threads";

    /// Whether it is of all threads (`-a`).
    pub fn is_of_all_threads(&self) -> bool {
        self.command == Self::ALL_THREADS
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    pub process_cpu_ns: u64,
    pub probe_ns: u64,
    pub probe_runs: u64,
    /// That recorded threads waited for a CPU on which a thread of wallprof ran.
    pub behind_ns: u64,
    /// The most that unwind tables took in kernel memory, bytes.
    pub table_bytes: u64,
}

/// How user stacks ended, weighted by how often each stack was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unwinding {
    pub stacks: u64,
    pub complete: u64,
    pub incomplete: BTreeMap<String, u64>,
}

/// One thread over the whole recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Thread {
    /// In a profile the key is the thread's row id in the file.
    pub info: ThreadInfo,
    pub start: MonoNs,
    pub end: MonoNs,
    /// The sum of the thread's buckets; its `second` means nothing.
    pub ledger: LedgerDelta,
    pub latency: BTreeMap<Metric, Histogram>,
    /// Stalls of this thread in the file, the voluntary ones left out.
    pub stalls: u64,
}

/// One second of one thread.
pub type LedgerRow = LedgerDelta;

/// Samples of one thread in one second; the stack ids are the file's.
pub type SampleRow = SampleDelta;

pub type InterruptRow = InterruptDelta;

/// A thread or an interrupt on a guarded CPU, over the whole recording.
pub type IntrusionRow = IntrusionDelta;

pub type KernelDelayRow = KernelDelay;

pub type CrossCallRow = CrossCallDelta;

pub type ThrottledRow = Throttled;

/// One frame with everything known about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedFrame {
    pub kind: FrameKind,
    pub module: Option<String>,
    pub build_id: Option<Vec<u8>>,
    pub address: u64,
    /// Innermost first; at least one entry, whose symbol may be unknown.
    pub lines: Vec<SymbolLine>,
}

/// A whole stack, leaf first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedStack {
    /// Shared: a reader returns one stack a million times.
    pub frames: Arc<[Arc<ResolvedFrame>]>,
    pub end: StackEnd,
}

/// One stall with its stacks resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct StallRecord {
    pub id: u64,
    pub thread: ThreadKey,
    pub pid: u32,
    pub tid: u32,
    pub comm: Arc<str>,
    pub kind: StallKind,
    pub reason: StallReason,
    pub voluntary: bool,
    pub open: bool,
    pub start: MonoNs,
    pub end: MonoNs,
    pub blocked_ns: u64,
    pub runnable_ns: u64,
    pub syscall: Option<Arc<str>>,
    pub cpu: Option<u32>,
    /// As of [`Stall::priority`](crate::event::Stall::priority).
    pub priority: Option<i16>,
    pub user: Option<ResolvedStack>,
    pub kernel: Option<ResolvedStack>,
    pub waker: Option<WakerRecord>,
    pub lock: Option<LockRecord>,
    /// When the lock's owner was sampled during the wait, and what it ran then.
    pub owner_sample: Option<(MonoNs, ResolvedStack)>,
    pub ran_instead: Vec<(ThreadRef, u64)>,
    pub fault: Option<Fault>,
    pub asked_ns: Option<u64>,
    /// The function that the dynamic linker was binding.
    pub binding: Option<BoundAtFirstCall>,
    pub file: Option<WaitedFile>,
    pub peer: Option<Box<Peer>>,
    pub word: Option<WaitWord>,
    pub meaning: Option<Arc<Meaning>>,
    /// The first stall of a wait in time slices, of which this is one; `None` for a wait in one piece.
    pub wait_id: Option<u64>,
}

/// A stall that is in the file, by the number it has there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptStall {
    pub id: u64,
    /// The source's number of the thread.
    pub thread: ThreadKey,
    pub kind: StallKind,
    pub start: MonoNs,
    pub end: MonoNs,
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
    pub symbol: Option<String>,
    pub library: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct WakerRecord {
    /// `None`: woken from an interrupt.
    pub thread: Option<ThreadRef>,
    pub user: Option<ResolvedStack>,
    pub kernel: Option<ResolvedStack>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRecord {
    pub address: u64,
    pub owner: Option<ThreadRef>,
}

/// Stalls that the size budget folded into counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoldedStalls {
    pub thread: ThreadKey,
    pub reason: StallReason,
    pub voluntary: bool,
    pub count: u64,
    pub total_ns: u64,
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
    pub cause: Cause,
    /// One sentence: the threads, the place, the time and the cause. Names are those of the recorded machine.
    pub title: String,
    /// What to do about it.
    pub advice: String,
    /// Rows of the threads that were late.
    pub threads: Vec<ThreadKey>,
    /// How often it happened.
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
    /// Ids of the stalls it rests on, ascending; of very many the longest.
    pub stalls: Vec<u64>,
}
