// SPDX-License-Identifier: Apache-2.0
//! The weights of stacks by bin: as a flame graph of each bin and thread would show them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use wallprof_model::event::LedgerDelta;
use wallprof_model::profile::{RecordingInfo, ResolvedStack, SampleRow, StallRecord, Thread};
use wallprof_model::{Meaning, MonoNs, StackId, ThreadInfo, ThreadKey};

use super::{BinnedLedger, Bins};
use crate::weights::{Frames, Gather, Side, View, WeightedStack, Weights};

/// Limit on threads times bins while weights are gathered; some 500 bytes each.
const MOST_SLOTS: usize = 60_000;

/// Every thread in every bin in which it lived, as a thread of its own.
pub struct Slots {
    bins: Bins,
    edges: Vec<u64>,
    start: u64,
    threads: Vec<Thread>,
    /// The bin and the thread of each slot.
    places: Vec<(u64, u32)>,
    by_place: HashMap<(u64, u32), u32>,
    known: HashMap<ThreadKey, u32>,
}

impl Slots {
    pub fn new(info: &RecordingInfo, threads: &[Thread], ledger: &BinnedLedger) -> Self {
        let mut bins = ledger.bins;
        // Bins of one width are inside one bin of twice the width.
        let bin = |bins: &Bins, sum: &LedgerDelta| bins.of(sum.second);
        loop {
            let places: HashSet<(u64, u32)> =
                ledger.rows.iter().map(|(_, thread, sum)| (bin(&bins, sum), *thread)).collect();
            if places.len() <= MOST_SLOTS || bins.count == 1 {
                break;
            }
            bins = Bins::new(info, bins.width * 2);
        }
        let mut sums: BTreeMap<(u64, u32), LedgerDelta> = BTreeMap::new();
        for (_, thread, sum) in &ledger.rows {
            let key = (bin(&bins, sum), *thread);
            sums.entry(key).or_insert_with(|| LedgerDelta::new(ThreadKey(*thread), sum.second)).add(sum);
        }
        let places: Vec<(u64, u32)> = sums.keys().copied().collect();
        let slots = sums.into_iter().zip(0..).filter_map(|(((_, thread), sum), slot)| {
            Some(slot_thread(ThreadKey(slot), threads.get(thread as usize)?, sum))
        });
        Slots {
            bins,
            edges: bins.edges(info),
            start: info.start.0,
            threads: slots.collect(),
            by_place: places.iter().copied().zip(0..).collect(),
            places,
            known: threads.iter().zip(0..).map(|(thread, at)| (thread.info.key, at)).collect(),
        }
    }

    fn slot(&self, bin: u64, thread: ThreadKey) -> Option<ThreadKey> {
        self.by_place.get(&(bin, *self.known.get(&thread)?)).copied().map(ThreadKey)
    }
}

/// Names are not needed; the process is, because its samples divide the time of threads without samples.
fn slot_thread(key: ThreadKey, thread: &Thread, ledger: LedgerDelta) -> Thread {
    let ThreadInfo { tid, pid, ns_tid, ns_pid, kernel_thread, .. } = thread.info;
    let info = ThreadInfo { ns_tid, ns_pid, kernel_thread, ..ThreadInfo::new(key, (pid, ""), (tid, "")) };
    Thread { info, start: thread.start, end: thread.end, ledger, latency: BTreeMap::new(), stalls: 0 }
}

/// Collects samples and long waits.
pub struct Samples<'a> {
    slots: &'a Slots,
    gather: Gather<'a>,
}

impl<'a> Samples<'a> {
    /// Stacks are kept as far as `side` shows them.
    pub fn new(slots: &'a Slots, side: Side) -> Self {
        Samples { slots, gather: Gather::new(View::Wall, side, &[], &slots.threads, |_| true) }
    }

    /// Takes a sample, and what it means if it is of waits. `resolve` is asked once for each stack.
    ///
    /// # Errors
    /// The error of `resolve`.
    pub fn add<E>(
        &mut self,
        sample: &SampleRow,
        meaning: Option<Arc<Meaning>>,
        resolve: impl FnMut(StackId) -> Result<ResolvedStack, E>,
    ) -> Result<(), E> {
        let bin = self.slots.bins.of(sample.second);
        let Some(thread) = self.slots.slot(bin, sample.thread) else { return Ok(()) };
        self.gather.add(&SampleRow { thread, waker: None, ..sample.clone() }, meaning, resolve)
    }

    /// Takes a wait: one that crosses the edge of a bin counts in each bin with its part.
    pub fn add_wait(&mut self, wait: &StallRecord) {
        let edges = &self.slots.edges;
        let offset = |at: MonoNs| at.0.saturating_sub(self.slots.start);
        let last = edges.len() - 2;
        let bin_at = |ns: u64| edges.partition_point(|edge| *edge <= ns).saturating_sub(1).min(last);
        let (from, to) = (offset(wait.start), offset(wait.end));
        let (first, end) = (bin_at(from), bin_at(to.saturating_sub(1).max(from)));
        let starts_before = wait.start.0 < self.slots.start;
        if first == end && !wait.open && !starts_before {
            return;
        }
        for bin in first..=end {
            let Some(thread) = self.slots.slot(bin as u64, wait.thread) else { continue };
            let range = MonoNs(self.slots.start + edges[bin])..MonoNs(self.slots.start + edges[bin + 1]);
            let ended = !wait.open && wait.end <= range.end;
            self.gather.add_wait(&StallRecord { thread, ..wait.clone() }, &range, ended);
        }
    }

    /// The weights by bin, thread and stack.
    pub fn finish(self) -> BinnedStacks {
        let Slots { bins, edges, places, .. } = self.slots;
        BinnedStacks {
            width: bins.width,
            edges: edges.clone(),
            weights: self.gather.finish(),
            places: places.clone(),
        }
    }
}

/// Weighted stacks of wall time, by bin and thread.
pub struct BinnedStacks {
    /// Seconds in a bin.
    pub width: u64,
    /// As of [`Bins::edges`].
    pub edges: Vec<u64>,
    /// Its threads are threads in a bin.
    weights: Weights,
    places: Vec<(u64, u32)>,
}

impl BinnedStacks {
    /// The bin, the index of the thread, and a stack, in an order that depends on nothing but the recording.
    pub fn rows(&self) -> impl Iterator<Item = (u64, u32, &WeightedStack)> {
        self.weights.stacks.iter().filter_map(|stack| {
            let (bin, thread) = self.places.get(stack.thread)?;
            Some((*bin, *thread, stack))
        })
    }

    /// The stacks of each thread in each bin, by thread and bin. `threads` are those of [`Slots::new`], `start` is
    /// that of the recording.
    pub fn by_thread<'a>(&'a self, threads: &'a [Thread], start: MonoNs) -> Vec<ThreadBin<'a>> {
        let mut bins: BTreeMap<(u32, u64), Vec<&WeightedStack>> = BTreeMap::new();
        for (bin, thread, stack) in self.rows() {
            bins.entry((thread, bin)).or_default().push(stack);
        }
        let edge = |at: u64| usize::try_from(at).ok().and_then(|at| self.edges.get(at)).copied();
        let placed = bins.into_iter().filter_map(|((number, bin), stacks)| {
            let thread = threads.get(number as usize)?;
            let (from, to) = (edge(bin)?, edge(bin + 1)?);
            let from = from.max(thread.start.0.saturating_sub(start.0)).min(to);
            Some(ThreadBin { thread, from, to, stacks })
        });
        placed.collect()
    }

    pub fn frames(&self) -> &Frames {
        &self.weights.frames
    }
}

/// The stacks of a thread in a bin.
pub struct ThreadBin<'a> {
    pub thread: &'a Thread,
    /// The part of the bin from the thread's start on, in ns from the start of the recording.
    pub from: u64,
    pub to: u64,
    pub stacks: Vec<&'a WeightedStack>,
}
