// SPDX-License-Identifier: Apache-2.0
//! The weights of stacks by bin, so that the page adds up those of a selection.

use std::collections::HashMap;

use wallprof_analysis::bins::BinnedStacks;
use wallprof_analysis::weights::FrameId;

use crate::columns::Columns;
use crate::names::Names;
use crate::stacks::Stacks;

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
    /// The stacks become nodes of `stacks`, the heaviest first: where there is no room for all, light ones are cut.
    pub fn new(binned: &BinnedStacks, stacks: &mut Stacks, names: &mut Names) -> Self {
        let mut weight_of: HashMap<&[FrameId], u64> = HashMap::new();
        for (.., stack) in binned.rows() {
            let weight = weight_of.entry(&stack.frames).or_default();
            *weight = weight.saturating_add(stack.weight);
        }
        let mut heaviest: Vec<(&[FrameId], u64)> = weight_of.into_iter().collect();
        heaviest.sort_unstable_by_key(|(frames, weight)| (std::cmp::Reverse(*weight), *frames));
        let node = |(frames, _)| (frames, stacks.weighted(frames, binned.frames(), names));
        let known: HashMap<&[FrameId], u32> = heaviest.into_iter().map(node).collect();
        let rows = binned.rows().map(|(bin, thread, stack)| {
            let node = known[&*stack.frames];
            Row { bin, thread, node, weight: stack.weight }
        });
        let mut weights =
            BinnedWeights { width: binned.width, edges: binned.edges.clone(), rows: rows.collect() };
        weights.add_up();
        weights
    }

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
pub(crate) mod tests {
    use super::*;
    use crate::stacks::MOST_NODES;
    use std::collections::BTreeMap;
    use wallprof_analysis::bins::{Ledgers, Samples, Slots};
    use wallprof_analysis::weights::Side;
    use wallprof_model::event::{LedgerDelta, Weighted};
    use wallprof_model::profile::{RecordingInfo, ResolvedStack, SampleRow, StallRecord, Thread};
    use wallprof_model::{EpochSecond, MonoNs, Reason, StallReason, State, ThreadInfo, ThreadKey};

    const SECOND: u64 = 1_000_000_000;

    /// Three seconds, without a time of day.
    fn info() -> RecordingInfo {
        RecordingInfo { end: MonoNs(3 * SECOND), ..RecordingInfo::default() }
    }

    /// A thread that lived for so many seconds.
    pub(crate) fn thread(key: u32, seconds: u64) -> Thread {
        let ledger = LedgerDelta::new(ThreadKey(key), EpochSecond(0));
        let info = ThreadInfo::new(ThreadKey(key), (1, "engine"), (key, "engine"));
        Thread {
            info,
            start: MonoNs(0),
            end: MonoNs(seconds * SECOND),
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
        let (info, threads) = (info(), [thread(7, 3)]);
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
        let mut samples = Samples::new(&slots, Side::Both);
        samples.add(&sample(0, 5), None, |_| Err(())).unwrap();
        wait.iter().for_each(|wait| samples.add_wait(wait));
        let (mut stacks, mut names) = (Stacks::with_room_for(MOST_NODES), Names::default());
        (BinnedWeights::new(&samples.finish(), &mut stacks, &mut names), names)
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
