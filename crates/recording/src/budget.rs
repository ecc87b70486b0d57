// SPDX-License-Identifier: Apache-2.0
//! The size budget: selects the stalls that are kept one by one, and those that are folded into counts.
//!
//! It is a token bucket on the size of the file: first a burst, so that short recordings keep everything,
//! then a number of bytes for each minute. All recorded data count against it, but only stalls are folded.
//! This module owns neither stalls nor files.

use wallprof_model::event::Stall;

const NS_PER_MINUTE: u128 = 60_000_000_000;

/// The size limit of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeBudget {
    pub bytes_per_minute: u64,
    /// The size that is allowed at the start.
    pub burst_bytes: u64,
}

impl Default for SizeBudget {
    /// 15 MiB after a minute. With the symbols, which are written at the end, less than 20.
    fn default() -> Self {
        SizeBudget { bytes_per_minute: 11 << 20, burst_bytes: 4 << 20 }
    }
}

impl SizeBudget {
    pub const UNLIMITED: SizeBudget = SizeBudget { bytes_per_minute: u64::MAX, burst_bytes: u64::MAX };
}

/// The bytes of stalls that may be written now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    pub bytes: u64,
    /// The part of `bytes` that voluntary stalls may use. They leave half of the burst to the others.
    pub voluntary_bytes: u64,
}

impl SizeBudget {
    /// The allowance after `elapsed_ns` of recording, with `new_ns` since stalls were last written and a file
    /// of `file_bytes`. Stalls get at least a quarter of the rate, even where other data use all of it.
    pub(crate) fn allowance(&self, elapsed_ns: u64, new_ns: u64, file_bytes: u64) -> Allowance {
        let earned = self.burst_bytes.saturating_add(self.bytes_in(elapsed_ns));
        let left = earned.saturating_sub(file_bytes);
        Allowance {
            bytes: left.max(self.bytes_in(new_ns) / 4),
            voluntary_bytes: left.saturating_sub(self.burst_bytes / 2),
        }
    }

    fn bytes_in(&self, ns: u64) -> u64 {
        let bytes = u128::from(self.bytes_per_minute) * u128::from(ns) / NS_PER_MINUTE;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// The size of a stall in the file, with its share of new stacks and names. It was measured on recordings of
/// busy machines. The allowance uses the real size of the file, so that an error here does not add up.
pub(crate) fn bytes_of(stall: &Stall) -> u64 {
    64 + 18 * stall.ran_instead.len() as u64 + if stall.fault.is_some() { 40 } else { 0 }
}

/// A stall that is not judged yet, and its row if the file has one. Open stalls and the ones that close them
/// have a row.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub stall: Box<Stall>,
    pub row: Option<u64>,
}

/// The stalls that are kept and those that are folded, each in the order given to [`divide`].
#[derive(Default)]
pub(crate) struct Division {
    pub kept: Vec<Candidate>,
    pub folded: Vec<Stall>,
}

/// Keeps every stall with a row, then those of threads that were not idle, the latest first, then idle ones,
/// the longest first, until the allowance is used up.
pub(crate) fn divide(candidates: Vec<Candidate>, allowance: Allowance) -> Division {
    let total: u64 = candidates.iter().map(|candidate| bytes_of(&candidate.stall)).sum();
    if total <= allowance.voluntary_bytes {
        return Division { kept: candidates, folded: Vec::new() };
    }
    let is_kept = select(&candidates, allowance);
    let mut division = Division::default();
    for (candidate, kept) in candidates.into_iter().zip(is_kept) {
        if kept { division.kept.push(candidate) } else { division.folded.push(*candidate.stall) }
    }
    division
}

fn select(candidates: &[Candidate], allowance: Allowance) -> Vec<bool> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_cached_key(|&index| rank(&candidates[index]));
    let mut used = 0;
    let mut is_kept = vec![false; candidates.len()];
    for index in order {
        let Candidate { stall, row } = &candidates[index];
        let limit = if stall.is_idle() { allowance.voluntary_bytes } else { allowance.bytes };
        if row.is_some() || used + bytes_of(stall) <= limit {
            used += bytes_of(stall);
            is_kept[index] = true;
        }
    }
    is_kept
}

/// Stalls with smaller ranks are kept first.
fn rank(candidate: &Candidate) -> (bool, bool, std::cmp::Reverse<u64>) {
    let Candidate { stall, row } = candidate;
    // An idle wait shows the place of its thread, so its length counts.
    let ns = if stall.is_idle() { stall.duration_ns() } else { stall.late_ns() };
    (row.is_none(), stall.is_idle(), std::cmp::Reverse(ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{Meaning, MeaningSource, MonoNs, Reason, StallReason, ThreadKey};

    fn candidate(duration_ns: u64, voluntary: bool, row: Option<u64>) -> Candidate {
        Candidate { stall: stall(duration_ns, voluntary).into(), row }
    }

    fn stall(duration_ns: u64, voluntary: bool) -> Stall {
        let lock = StallReason::Blocked(Reason::Lock);
        Stall { voluntary, ..Stall::new(ThreadKey(1), lock, MonoNs(1_000), duration_ns) }
    }

    /// The durations of the kept stalls and of the folded ones.
    fn durations(division: &Division) -> (Vec<u64>, Vec<u64>) {
        let kept = division.kept.iter().map(|candidate| candidate.stall.duration_ns()).collect();
        (kept, division.folded.iter().map(Stall::duration_ns).collect())
    }

    #[test]
    fn budget_grows_with_time_and_shrinks_with_the_file() {
        let budget = SizeBudget { bytes_per_minute: 6_000, burst_bytes: 1_000 };
        let minute = 60_000_000_000;
        assert_eq!(budget.allowance(0, 0, 0), Allowance { bytes: 1_000, voluntary_bytes: 500 });
        assert_eq!(budget.allowance(minute, 0, 500), Allowance { bytes: 6_500, voluntary_bytes: 6_000 });
        assert_eq!(budget.allowance(minute, minute / 60, 9_000), Allowance { bytes: 25, voluntary_bytes: 0 });
    }

    #[test]
    fn unlimited_budget_does_not_overflow() {
        let allowance = SizeBudget::UNLIMITED.allowance(u64::MAX, u64::MAX, 1);
        assert_eq!(allowance.bytes, u64::MAX - 1);
    }

    #[test]
    fn stalls_with_rows_then_involuntary_then_longest_are_kept() {
        let one = bytes_of(&stall(1, false));
        let candidates = vec![
            candidate(10, false, None),
            candidate(900, true, None),
            candidate(30, false, None),
            candidate(1, true, Some(7)),
            candidate(20, false, None),
        ];
        let division = divide(candidates, Allowance { bytes: 3 * one, voluntary_bytes: 3 * one });
        assert_eq!(durations(&division), (vec![30, 1, 20], vec![10, 900]));
    }

    #[test]
    fn rank_is_lateness_and_not_the_requested_sleep() {
        let one = bytes_of(&stall(1, false));
        let sleep = Stall {
            voluntary: false,
            asked_ns: Some(900),
            ..Stall::new(ThreadKey(1), StallReason::Blocked(Reason::Sleep), MonoNs(1_000), 906)
        };
        let timed_lock = Stall { asked_ns: Some(900), ..stall(905, false) };
        let candidates = [stall(10, false), sleep, stall(20, false), timed_lock];
        let candidates = candidates.map(|stall| Candidate { stall: stall.into(), row: None }).to_vec();
        let division = divide(candidates, Allowance { bytes: 3 * one, voluntary_bytes: 0 });
        assert_eq!(durations(&division), (vec![10, 20, 905], vec![906]));
    }

    #[test]
    fn voluntary_wait_for_peers_is_kept_as_an_involuntary_one() {
        let one = bytes_of(&stall(1, true));
        let source = MeaningSource::Wakers;
        let meaning = Meaning { name: "lock".into(), software: None, idle: false, holder: true, source };
        let lock = Stall { meaning: Some(meaning.into()), ..stall(10, true) };
        let lock = Candidate { stall: lock.into(), row: None };
        let candidates = vec![candidate(20, true, None), lock];
        let division = divide(candidates, Allowance { bytes: one, voluntary_bytes: 0 });
        assert_eq!(durations(&division), (vec![10], vec![20]));
    }

    #[test]
    fn voluntary_stalls_do_not_use_the_reserve() {
        let one = bytes_of(&stall(1, true));
        let candidates =
            vec![candidate(10, true, None), candidate(20, true, None), candidate(5, false, None)];
        let division = divide(candidates, Allowance { bytes: 9 * one, voluntary_bytes: 2 * one });
        assert_eq!(durations(&division), (vec![20, 5], vec![10]));
    }
}
