//! Records in the order of time: perf writes its per-CPU buffers one after the other, and says when it has
//! been round all of them.
//!
//! What was recorded before the end of one round has been written by the end of the next one, so that a
//! record waits for two rounds at most. Memory is bounded: where rounds do not end, or are very large, the
//! oldest records are let go before their time, and records that come later than that are counted.

use std::collections::BTreeMap;

/// What waits at most, in bytes. Two rounds of a machine with 100 CPUs are 64 MiB.
const MAX_WAITING: usize = 80 << 20;
/// What a record costs beside its bytes.
const OVERHEAD: usize = 96;

/// A record that waits for its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub kind: u32,
    pub misc: u16,
    pub body: Box<[u8]>,
}

/// Records that wait, and how far time has come.
pub(crate) struct Rounds {
    waiting: BTreeMap<(u64, u64), Waiting>,
    bytes: usize,
    limit: usize,
    arrived: u64,
    /// The latest time of this round, and of the one before.
    latest: u64,
    settled: u64,
    let_go_until: u64,
    late: u64,
}

impl Default for Rounds {
    fn default() -> Self {
        Rounds {
            waiting: BTreeMap::new(),
            bytes: 0,
            limit: MAX_WAITING,
            arrived: 0,
            latest: 0,
            settled: 0,
            let_go_until: 0,
            late: 0,
        }
    }
}

impl Rounds {
    /// A record of this time; records that must not wait any longer are given to `take`, the oldest first.
    pub(crate) fn push<E>(
        &mut self,
        time: u64,
        record: Waiting,
        take: &mut impl FnMut(u64, Waiting) -> Result<(), E>,
    ) -> Result<(), E> {
        if time < self.let_go_until {
            self.late += 1;
        }
        self.latest = self.latest.max(time);
        self.bytes += record.body.len() + OVERHEAD;
        self.arrived += 1;
        self.waiting.insert((time, self.arrived), record);
        if self.bytes > self.limit { self.let_go(u64::MAX, self.limit / 2, take) } else { Ok(()) }
    }

    /// perf has been round all CPUs.
    pub(crate) fn finish_round<E>(
        &mut self,
        take: &mut impl FnMut(u64, Waiting) -> Result<(), E>,
    ) -> Result<(), E> {
        let settled = std::mem::replace(&mut self.settled, self.latest);
        self.let_go(settled, 0, take)
    }

    /// Nothing more comes.
    pub(crate) fn finish<E>(
        &mut self,
        take: &mut impl FnMut(u64, Waiting) -> Result<(), E>,
    ) -> Result<(), E> {
        self.let_go(u64::MAX, 0, take)
    }

    /// Records that came when later ones had been let go.
    pub(crate) fn late(&self) -> u64 {
        self.late
    }

    /// Up to and including `until`, as long as more than `keep` bytes wait.
    fn let_go<E>(
        &mut self,
        until: u64,
        keep: usize,
        take: &mut impl FnMut(u64, Waiting) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(first) = self.waiting.first_entry()
            && first.key().0 <= until
            && self.bytes > keep
        {
            let ((time, _), record) = first.remove_entry();
            self.bytes -= record.body.len() + OVERHEAD;
            self.let_go_until = self.let_go_until.max(time);
            take(time, record)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(number: u32) -> Waiting {
        Waiting { kind: number, misc: 0, body: Box::default() }
    }

    /// Times let go at each step; 0 ends a round.
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
    fn a_record_waits_for_the_end_of_the_next_round() {
        let out = times(&mut Rounds::default(), &[5, 3, 0, 4, 9, 0, 7, 0]);
        let nothing = Vec::new();
        assert_eq!(out[..5], [&nothing, &nothing, &nothing, &nothing, &nothing].map(Clone::clone));
        assert_eq!((&out[5], &out[7]), (&vec![3, 4, 5], &vec![7, 9]));
    }

    #[test]
    fn records_of_one_time_keep_their_order() {
        let mut rounds = Rounds::default();
        let mut out = Vec::new();
        let mut take = |_, record: Waiting| {
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
    fn without_rounds_memory_is_bounded_and_lateness_counted() {
        let mut rounds = Rounds { limit: 10 * OVERHEAD, ..Rounds::default() };
        let steps: Vec<u64> = (100..200).chain([50]).collect();
        let out = times(&mut rounds, &steps);
        assert!(out[..100].iter().flatten().is_sorted() && rounds.bytes <= 10 * OVERHEAD);
        assert_eq!((out.concat().len() + rounds.waiting.len(), rounds.late()), (101, 1));
    }

    proptest! {
        #[test]
        fn everything_comes_out_once(steps in proptest::collection::vec(0u64..50, 0..200)) {
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
