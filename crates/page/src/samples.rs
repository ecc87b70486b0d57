//! The weights of stacks by bin: as a flame graph of each bin and thread would show them, so that the page
//! adds up those of a selection.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use wallprof_analysis::weights::{FrameId, Gather, Side, View};
use wallprof_model::event::LedgerDelta;
use wallprof_model::profile::{RecordingInfo, ResolvedStack, SampleRow, StallRecord, Thread};
use wallprof_model::{Meaning, MonoNs, StackId, ThreadInfo, ThreadKey};

use crate::columns::Columns;
use crate::ledger::{BinnedLedger, Bins};
use crate::names::Names;
use crate::stacks::Stacks;

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
    let info = ThreadInfo {
        key,
        tid,
        pid,
        ns_tid,
        ns_pid,
        start_boot_ns: 0,
        comm: String::new(),
        process: String::new(),
        cgroup: None,
        kernel_thread,
    };
    Thread { info, start: thread.start, end: thread.end, ledger, latency: BTreeMap::new(), stalls: 0 }
}

/// Collects samples and long waits.
pub struct Samples<'a> {
    slots: &'a Slots,
    gather: Gather<'a>,
}

impl<'a> Samples<'a> {
    pub fn new(slots: &'a Slots) -> Self {
        Samples { slots, gather: Gather::new(View::Wall, Side::Both, &[], &slots.threads, |_| true) }
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

    /// The weights by bin, thread and stack, as nodes of `stacks`.
    pub fn finish(self, stacks: &mut Stacks, names: &mut Names) -> BinnedWeights {
        let weights = self.gather.finish();
        let mut known: HashMap<&[FrameId], u32> = HashMap::new();
        let mut rows: Vec<Row> = Vec::with_capacity(weights.stacks.len());
        for stack in &weights.stacks {
            let Some((bin, thread)) = self.slots.places.get(stack.thread) else { continue };
            let node = *known
                .entry(&stack.frames)
                .or_insert_with(|| stacks.weighted(&stack.frames, &weights.frames, names));
            rows.push(Row { bin: *bin, thread: *thread, node, weight: stack.weight });
        }
        let mut binned =
            BinnedWeights { width: self.slots.bins.width, edges: self.slots.edges.clone(), rows };
        binned.add_up();
        binned
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    bin: u64,
    thread: u32,
    node: u32,
    weight: u64,
}

impl Row {
    fn key(&self) -> (u64, u32, u32) {
        (self.bin, self.thread, self.node)
    }
}

pub struct BinnedWeights {
    /// Seconds in a bin.
    pub width: u64,
    edges: Vec<u64>,
    rows: Vec<Row>,
}

impl BinnedWeights {
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Makes bins twice as long; false where there is one bin already.
    pub fn widen(&mut self) -> bool {
        if self.edges.len() <= 2 {
            return false;
        }
        let last = self.edges.len() - 1;
        let kept = self.edges.iter().enumerate().filter(|(at, _)| at % 2 == 0 || *at == last);
        self.edges = kept.map(|(_, edge)| *edge).collect();
        self.width *= 2;
        self.rows.iter_mut().for_each(|row| row.bin /= 2);
        self.add_up();
        true
    }

    fn add_up(&mut self) {
        self.rows.sort_unstable_by_key(Row::key);
        self.rows.dedup_by(|row, before| {
            let is_same = row.key() == before.key();
            if is_same {
                before.weight = before.weight.saturating_add(row.weight);
            }
            is_same
        });
    }

    pub fn write(&self, columns: &mut Columns) {
        columns.deltas("weight_edge", self.edges.iter().map(|at| at.cast_signed()));
        columns.deltas("weight_bin", self.rows.iter().map(|row| row.bin.cast_signed()));
        columns.deltas("weight_thread", self.rows.iter().map(|row| i64::from(row.thread)));
        columns.deltas("weight_node", self.rows.iter().map(|row| i64::from(row.node)));
        columns.unsigned("weight_ns", self.rows.iter().map(|row| row.weight));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledgers;
    use wallprof_model::event::Weighted;
    use wallprof_model::{EpochSecond, Reason, StallReason, State};

    const SECOND: u64 = 1_000_000_000;

    /// Three seconds, without a time of day.
    fn info() -> RecordingInfo {
        RecordingInfo { end: MonoNs(3 * SECOND), ..RecordingInfo::default() }
    }

    fn thread(key: u32) -> Thread {
        let ledger = LedgerDelta::new(ThreadKey(key), EpochSecond(0));
        let info = ThreadInfo {
            key: ThreadKey(key),
            tid: key,
            pid: 1,
            ns_tid: key,
            ns_pid: 1,
            start_boot_ns: 0,
            comm: "engine".into(),
            process: "engine".into(),
            cgroup: None,
            kernel_thread: false,
        };
        Thread {
            info,
            start: MonoNs(0),
            end: MonoNs(3 * SECOND),
            ledger,
            latency: BTreeMap::new(),
            stalls: 0,
        }
    }

    fn sample(second: u32, weight: u64) -> SampleRow {
        SampleRow {
            thread: ThreadKey(7),
            second: EpochSecond(second),
            what: Weighted::State(State::User),
            user: None,
            kernel: None,
            waker: None,
            weight,
            count: 1,
        }
    }

    /// A thread that runs for all of the first second, and waits for a lock from then on.
    fn weights(wait: Option<StallRecord>) -> (BinnedWeights, Names) {
        let (info, threads) = (info(), [thread(7)]);
        let mut ledgers = Ledgers::new(&info, &threads);
        for second in 0..3 {
            let mut row =
                LedgerDelta { wall_ns: SECOND, ..LedgerDelta::new(ThreadKey(7), EpochSecond(second)) };
            match second {
                0 => row.on_cpu_ns = SECOND,
                _ => row.blocked_ns[usize::from(Reason::Lock.code())] = SECOND,
            }
            ledgers.add(&row);
        }
        let binned = ledgers.finish();
        let slots = Slots::new(&info, &threads, &binned);
        let mut samples = Samples::new(&slots);
        samples.add(&sample(0, 5), None, |_| Err(())).unwrap();
        wait.iter().for_each(|wait| samples.add_wait(wait));
        let (mut stacks, mut names) = (Stacks::default(), Names::default());
        (samples.finish(&mut stacks, &mut names), names)
    }

    #[test]
    fn weights_of_each_bin_are_its_ledger() {
        let (weights, _) = weights(None);
        let sums: Vec<(u64, u64)> = weights.rows.iter().map(|row| (row.bin, row.weight)).collect();
        assert_eq!(sums, [(0, SECOND), (1, SECOND), (2, SECOND)]);
    }

    #[test]
    fn wait_across_bins_counts_in_each_with_its_part() {
        let reason = StallReason::Blocked(Reason::Lock);
        let mut wait = StallRecord::new(1, ThreadKey(7), reason, MonoNs(SECOND), 2 * SECOND);
        wait.open = true;
        let frames = [].into();
        wait.user = Some(ResolvedStack { frames, end: wallprof_model::StackEnd::Complete });
        let (weights, names) = weights(Some(wait));
        assert_eq!(weights.rows.iter().map(|row| row.weight).sum::<u64>(), 3 * SECOND);
        assert!(names.texts().iter().any(|name| name == "[blocked:lock]"), "{:?}", names.texts());
    }

    #[test]
    fn wider_bins_lose_no_weight() {
        let (mut weights, _) = weights(None);
        assert!(weights.widen());
        assert_eq!((weights.width, weights.edges.as_slice()), (2, &[0, 2 * SECOND, 3 * SECOND][..]));
        assert!(weights.widen() && !weights.widen());
        assert_eq!(weights.len(), 2, "one row a state");
        assert_eq!(weights.rows.iter().map(|row| row.weight).sum::<u64>(), 3 * SECOND);
    }
}
