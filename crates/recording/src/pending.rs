// SPDX-License-Identifier: Apache-2.0
//! The data of the next commit: new rows, and sums to be added to rows. All ids are the file's.
//!
//! It is kept until a commit has succeeded, so that nothing is lost when a full disk has free space again.

use std::collections::BTreeMap;
use std::sync::Arc;

use wallprof_model::event::{Fault, InterruptKind, KernelDelay, LedgerDelta, Peer, Stall, Throttled};
use wallprof_model::histogram::Cell;
use wallprof_model::{
    CallFrame, CallNumbers, ClockAnchor, Counter, Frame, IntrusionKind, LateSample, Mark, MonoNs, Span,
    SpanSource, SpanStates,
};

use crate::budget::Candidate;
use crate::intern::Node;

#[derive(Default)]
pub(crate) struct Pending {
    pub clock: Vec<ClockAnchor>,
    pub texts: Vec<(u32, Arc<str>)>,
    pub threads: BTreeMap<u32, ThreadChange>,
    pub mentions: Vec<(u32, MentionRow)>,
    pub modules: Vec<ModuleRow>,
    pub missing_files: Vec<MissingFileRow>,
    pub frames: Vec<FrameRow>,
    pub lines: BTreeMap<u32, Vec<LineRow>>,
    pub nodes: Vec<Node>,
    pub stacks: Vec<u32>,
    pub bindings: BTreeMap<u32, BindingRow>,
    pub ledger: BTreeMap<(u32, u32), LedgerDelta>,
    pub latency: BTreeMap<(u32, u8, u16), Cell>,
    pub wakers: Vec<(u32, SampleWaker)>,
    pub samples: BTreeMap<SampleKey, SampleSum>,
    pub events: BTreeMap<u16, String>,
    /// Stalls that the size budget has not judged yet.
    pub candidates: Vec<Candidate>,
    pub stalls: Vec<StallRow>,
    pub folded: BTreeMap<(u32, u8, bool), Cell>,
    pub interrupts: BTreeMap<InterruptKey, Cell>,
    pub intrusions: BTreeMap<IntrusionKey, Cell>,
    pub kernel_delays: Vec<KernelDelay>,
    /// By caller, system call and function. 0 is none.
    pub cross_calls: BTreeMap<(u32, u32, u32), u64>,
    /// With the text row of the group's name.
    pub throttled: Vec<(Throttled, u32)>,
    pub span_cells: BTreeMap<SpanKey, SpanSum>,
    /// With the text row of the kind. The thread of each is the file's row.
    pub spans: Vec<(Span, u32)>,
    /// The thread of each is the file's row.
    pub late: Vec<LateRow>,
    pub call_paths: Vec<CallPathRow>,
    pub call_resolution_ns: Option<u64>,
    /// The thread of each is the file's row.
    pub counters: Vec<(u32, Counter)>,
    pub counter_values: Vec<(u32, MonoNs, f64)>,
    pub marks: Vec<Mark>,
    pub losses: BTreeMap<String, u64>,
    pub overhead: Overhead,
}

/// Thread, source, kind and bucket of spans.
pub(crate) type SpanKey = (u32, SpanSource, u32, u16);

#[derive(Clone, Copy, Default)]
pub(crate) struct SpanSum {
    pub count: u64,
    pub max_ns: u64,
    pub states: SpanStates,
}

impl SpanSum {
    pub fn add(&mut self, more: &SpanSum) {
        self.count = self.count.saturating_add(more.count);
        self.max_ns = self.max_ns.max(more.max_ns);
        self.states.add(&more.states);
    }
}

/// Rows of other tables; 0 is none.
#[derive(Clone, Copy)]
pub(crate) struct LateRow {
    pub sample: LateSample,
    pub user: u32,
    pub kernel: u32,
}

/// Changes of a thread since the last commit.
#[derive(Default)]
pub(crate) struct ThreadChange {
    pub names: Option<ThreadRow>,
    pub start: Option<MonoNs>,
    pub end: Option<MonoNs>,
}

pub(crate) struct ThreadRow {
    pub tid: u32,
    pub pid: u32,
    pub ns_tid: u32,
    pub ns_pid: u32,
    pub start_boot_ns: u64,
    pub comm: u32,
    pub process: u32,
    pub cgroup: Option<u32>,
    pub container: Option<u32>,
    pub pod: Option<u32>,
    pub kernel_thread: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MentionRow {
    pub thread: Option<u32>,
    pub pid: u32,
    pub tid: u32,
    pub comm: u32,
    pub title: Option<u32>,
}

pub(crate) struct ModuleRow {
    pub id: u32,
    pub path: u32,
    pub build_id: Option<Vec<u8>>,
}

pub(crate) struct MissingFileRow {
    pub module: u32,
    pub build_id: Vec<u8>,
    pub code_offset: u64,
}

pub(crate) struct FrameRow {
    pub id: u32,
    pub frame: Frame,
    pub module: Option<u32>,
}

pub(crate) struct LineRow {
    pub symbol: Option<u32>,
    pub offset: Option<u64>,
    pub file: Option<u32>,
    pub line: Option<u32>,
    pub inlined: bool,
}

pub(crate) struct BindingRow {
    pub depth: u32,
    pub symbol: Option<u32>,
    pub library: Option<u32>,
}

/// Rows of other tables; 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SampleKey {
    pub second: u32,
    pub thread: u32,
    /// As in table `sample`.
    pub state_or_event: i64,
    pub user: u32,
    pub kernel: u32,
    pub waker: u32,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct SampleSum {
    pub weight: u64,
    pub count: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SampleWaker {
    pub thread: Option<u32>,
    pub interrupt: bool,
    pub user: Option<u32>,
    pub kernel: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InterruptKey {
    pub cpu: u32,
    pub kind: InterruptKind,
    pub name: u32,
    pub victim: u32,
}

/// Rows of other tables; 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IntrusionKey {
    pub cpu: u32,
    pub kind: IntrusionKind,
    pub what: u32,
    pub mention: u32,
    pub allowed: bool,
}

pub(crate) struct StallRow {
    pub id: u64,
    /// The file may have the row already, from when the stall was open.
    pub replaces: bool,
    pub stall: Box<Stall>,
    pub comm: u32,
    pub syscall: Option<u32>,
    pub waker: Option<u32>,
    pub lock_owner: Option<u32>,
    pub ran_instead: Vec<(u32, u64)>,
    pub fault: Option<(Fault, Option<u32>)>,
    pub file: Option<(u32, Option<u64>)>,
    /// With its local and remote address, and the name of its process.
    pub peer: Option<(Box<Peer>, [Option<u32>; 3])>,
    /// Symbol, module and value.
    pub word: Option<(u32, u32, u64)>,
}

pub(crate) struct CallPathRow {
    pub id: u32,
    pub thread: u32,
    pub parent: Option<u32>,
    /// The row of its function's frame.
    pub frame: CallFrame<u32>,
    pub numbers: CallNumbers,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Overhead {
    pub process_cpu_ns: u64,
    pub probe_ns: u64,
    pub probe_runs: u64,
    pub behind_ns: u64,
    pub table_bytes: u64,
}

/// Limit on stalls in memory that the size budget has not judged.
const MAX_CANDIDATES: usize = 16_384;

/// Limit on rows of one kind in memory.
const MAX_ROWS: usize = 65_536;

impl Pending {
    /// Whether a limit is reached, so that rows must be written before the next commit.
    pub fn is_full(&self) -> bool {
        let longest = [
            self.texts.len(),
            self.threads.len(),
            self.mentions.len(),
            self.modules.len(),
            self.missing_files.len(),
            self.frames.len(),
            self.lines.len(),
            self.nodes.len(),
            self.stacks.len(),
            self.bindings.len(),
            self.ledger.len(),
            self.latency.len(),
            self.wakers.len(),
            self.samples.len(),
            self.stalls.len(),
            self.interrupts.len(),
            self.intrusions.len(),
            self.kernel_delays.len(),
            self.cross_calls.len(),
            self.throttled.len(),
            self.span_cells.len(),
            self.spans.len(),
            self.late.len(),
            self.call_paths.len(),
            self.counters.len(),
            self.counter_values.len(),
            self.marks.len(),
            self.clock.len(),
        ]
        .into_iter()
        .max();
        self.candidates.len() >= MAX_CANDIDATES || longest >= Some(MAX_ROWS)
    }

    pub fn lose(&mut self, reason: &str, count: u64) {
        if count > 0 {
            let sum = self.losses.entry(reason.to_owned()).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    pub fn add_overhead(&mut self, more: Overhead) {
        let sum = &mut self.overhead;
        sum.process_cpu_ns = sum.process_cpu_ns.saturating_add(more.process_cpu_ns);
        sum.probe_ns = sum.probe_ns.saturating_add(more.probe_ns);
        sum.probe_runs = sum.probe_runs.saturating_add(more.probe_runs);
        sum.behind_ns = sum.behind_ns.saturating_add(more.behind_ns);
        sum.table_bytes = sum.table_bytes.max(more.table_bytes);
    }

    pub fn add_ledger(&mut self, delta: LedgerDelta) {
        let key = (delta.second.0, delta.thread.0);
        match self.ledger.entry(key) {
            std::collections::btree_map::Entry::Vacant(slot) => {
                slot.insert(delta);
            }
            std::collections::btree_map::Entry::Occupied(mut slot) => slot.get_mut().add(&delta),
        }
    }

    pub fn add_sample(&mut self, key: SampleKey, weight: u64, count: u64) {
        let sum = self.samples.entry(key).or_default();
        sum.weight = sum.weight.saturating_add(weight);
        sum.count = sum.count.saturating_add(count);
    }

    pub fn fold(&mut self, stall: &Stall) {
        let key = (stall.thread.0, stall.reason.code(), stall.voluntary);
        let ns = stall.late_ns();
        add_cell(self.folded.entry(key).or_default(), Cell { count: 1, total_ns: ns, max_ns: ns });
    }
}

/// Adds `other` to `cell`. Sums saturate.
pub(crate) fn add_cell(cell: &mut Cell, other: Cell) {
    cell.count = cell.count.saturating_add(other.count);
    cell.total_ns = cell.total_ns.saturating_add(other.total_ns);
    cell.max_ns = cell.max_ns.max(other.max_ns);
}
