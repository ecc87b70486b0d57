// SPDX-License-Identifier: Apache-2.0
//! Puts records into the order of time. perf writes its per-CPU buffers one after the other, and marks the
//! end of each round through all of them.
//!
//! A record from before the end of one round is written before the end of the next one. So a record is held
//! for two rounds at most. Memory is bounded: if rounds do not end, or are very large, the oldest records are
//! released early, and records that come too late are counted.

use std::collections::BTreeMap;

/// The limit of held records, in bytes. Two rounds of a machine with 100 CPUs are 64 MiB.
const MAX_HELD: usize = 80 << 20;
/// The memory of a record besides its bytes.
const OVERHEAD: usize = 96;

/// A record that is held until its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldRecord {
    pub kind: u32,
    pub misc: u16,
    pub body: Box<[u8]>,
}

/// The held records, and the times up to which records were written and released.
pub(crate) struct Rounds {
    held: BTreeMap<(u64, u64), HeldRecord>,
    bytes: usize,
    limit: usize,
    arrived: u64,
    /// The latest time of this round, and of the previous one.
    latest: u64,
    settled: u64,
    released_until: u64,
    late: u64,
}

impl Default for Rounds {
    fn default() -> Self {
        Rounds {
            held: BTreeMap::new(),
            bytes: 0,
            limit: MAX_HELD,
            arrived: 0,
            latest: 0,
            settled: 0,
            released_until: 0,
            late: 0,
        }
    }
}

impl Rounds {
    /// Adds a record. Records that must be released are given to `take`, the oldest first.
    pub(crate) fn push<E>(
        &mut self,
        time: u64,
        record: HeldRecord,
        take: &mut impl FnMut(u64, HeldRecord) -> Result<(), E>,
    ) -> Result<(), E> {
        if time < self.released_until {
            self.late += 1;
        }
        self.latest = self.latest.max(time);
        self.bytes += record.body.len() + OVERHEAD;
        self.arrived += 1;
        self.held.insert((time, self.arrived), record);
        if self.bytes > self.limit { self.release(u64::MAX, self.limit / 2, take) } else { Ok(()) }
    }

    /// perf has written the buffers of all CPUs.
    pub(crate) fn finish_round<E>(
        &mut self,
        take: &mut impl FnMut(u64, HeldRecord) -> Result<(), E>,
    ) -> Result<(), E> {
        let settled = std::mem::replace(&mut self.settled, self.latest);
        self.release(settled, 0, take)
    }

    /// Releases all records at the end of the input.
    pub(crate) fn finish<E>(
        &mut self,
        take: &mut impl FnMut(u64, HeldRecord) -> Result<(), E>,
    ) -> Result<(), E> {
        self.release(u64::MAX, 0, take)
    }

    /// Records that came after later ones had been released.
    pub(crate) fn late(&self) -> u64 {
        self.late
    }

    /// Releases records up to and including `until`, as long as more than `keep` bytes are held.
    fn release<E>(
        &mut self,
        until: u64,
        keep: usize,
        take: &mut impl FnMut(u64, HeldRecord) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(first) = self.held.first_entry()
            && first.key().0 <= until
            && self.bytes > keep
        {
            let ((time, _), record) = first.remove_entry();
            self.bytes -= record.body.len() + OVERHEAD;
            self.released_until = self.released_until.max(time);
            take(time, record)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(number: u32) -> HeldRecord {
        HeldRecord { kind: number, misc: 0, body: Box::default() }
    }

    /// Times released at each step; 0 ends a round.
    fn times(rounds: &mut Rounds, steps: &[u64]) -> Vec<Vec<u64>> {
        let step = |time: &u64| {
            let mut out = Vec::new();
            let mut take = |time, _| {
                out.push(time);
                Ok::<(), ()>(())
            };
            match time {
                0 => rounds.finish_round(&mut take),
                time => rounds.push(*time, record(0), &mut take),
            }
            .expect("taken");
            out
        };
        steps.iter().map(step).collect()
    }

    #[test]
    fn record_is_held_until_the_end_of_the_next_round() {
        let out = times(&mut Rounds::default(), &[5, 3, 0, 4, 9, 0, 7, 0]);
        let nothing: Vec<u64> = Vec::new();
        assert_eq!(out[..5], [&nothing, &nothing, &nothing, &nothing, &nothing].map(Clone::clone));
        assert_eq!((&out[5], &out[7]), (&vec![3, 4, 5], &vec![7, 9]));
    }

    #[test]
    fn records_of_one_time_keep_their_order() {
        let mut rounds = Rounds::default();
        let mut out = Vec::new();
        let mut take = |_, record: HeldRecord| {
            out.push(record.kind);
            Ok::<(), ()>(())
        };
        for number in 0..5 {
            rounds.push(7, record(number), &mut take).expect("taken");
        }
        rounds.finish(&mut take).expect("taken");
        assert_eq!(out, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn without_rounds_memory_is_bounded_and_late_records_are_counted() {
        let mut rounds = Rounds { limit: 10 * OVERHEAD, ..Rounds::default() };
        let steps: Vec<u64> = (100..200).chain([50]).collect();
        let out = times(&mut rounds, &steps);
        assert!(out[..100].iter().flatten().is_sorted() && rounds.bytes <= 10 * OVERHEAD);
        assert_eq!((out.concat().len() + rounds.held.len(), rounds.late()), (101, 1));
    }

    proptest! {
        #[test]
        fn every_record_is_released_once(steps in proptest::collection::vec(0u64..50, 0..200)) {
            let mut rounds = Rounds::default();
            let mut out = times(&mut rounds, &steps).concat();
            rounds.finish(&mut |time, _| { out.push(time); Ok::<(), ()>(()) }).expect("taken");
            let mut expected: Vec<u64> = steps.into_iter().filter(|time| *time > 0).collect();
            prop_assert!(rounds.late() > 0 || out.is_sorted());
            out.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(out, expected);
            prop_assert_eq!(rounds.bytes, 0);
        }
    }
}
