// SPDX-License-Identifier: Apache-2.0
//! The counters that moved while a thread was stalled: their values in the second before, at the stall, and
//! in the second after it.
//!
//! A level counts as it is. Of a sum its rate per second counts, and only a rise: a thread that does not run
//! counts less of everything. A counter **moved** if it left its range of the second before by more than the
//! width of that range, by more than a tenth of its value, and by more than a small amount of its unit.

use std::ops::Range;

use wallprof_model::counter::{CounterKind, CounterTrack, CounterUnit};
use wallprof_model::{Mark, MonoNs};

/// The time before a stall that shows the usual values, and the time after it that shows the consequences.
const AROUND_NS: u64 = 1_000_000_000;
/// A reading this soon after the end still shows the stall: counters are read ten times a second.
const SETTLE_NS: u64 = 250_000_000;
/// Of a longer stall only this much is read: the rest adds nothing to its start.
const LONGEST_NS: u64 = 10_000_000_000;
/// The interval of a rate before the stall.
const STEP_NS: u64 = 100_000_000;
const SECOND_NS: f64 = 1e9;

/// A counter that moved. Sums are rates, per second.
#[derive(Clone, Debug, PartialEq)]
pub struct CounterMove {
    pub name: String,
    pub kind: CounterKind,
    pub unit: CounterUnit,
    /// The mean of the second before.
    pub before: f64,
    /// The value farthest from that.
    pub at: f64,
    /// The mean of the second after; `None` when the recording holds nothing of it.
    pub after: Option<f64>,
    /// The size of the move in units of the smallest one that counts.
    pub weight: f64,
}

/// The time range of counters that is needed to find what moved in a stall.
pub fn time_around(stall: Range<MonoNs>) -> Range<MonoNs> {
    let end = end_of(&stall).0;
    MonoNs(stall.start.0.saturating_sub(AROUND_NS))..MonoNs(end.saturating_add(AROUND_NS + 2 * SETTLE_NS))
}

/// The counters that moved in a stall, those that moved most first.
pub fn moved<'a>(
    tracks: impl IntoIterator<Item = &'a CounterTrack>,
    stall: Range<MonoNs>,
) -> Vec<CounterMove> {
    let during = stall.start..end_of(&stall).max(stall.start);
    let mut moves: Vec<CounterMove> =
        tracks.into_iter().filter_map(|track| moved_track(track, &during)).collect();
    moves.sort_by(|a, b| b.weight.total_cmp(&a.weight).then_with(|| a.name.cmp(&b.name)));
    moves
}

/// The marks of a stall: those under way during it, and a second before and after. They are given oldest
/// first.
pub fn marks_around(marks: &[Mark], stall: Range<MonoNs>) -> impl Iterator<Item = &Mark> {
    let (from, to) = (stall.start.0.saturating_sub(AROUND_NS), stall.end.0.saturating_add(AROUND_NS));
    let later = marks.partition_point(|mark| mark.at.0 <= to);
    marks[..later].iter().filter(move |mark| mark.end().0 >= from)
}

fn end_of(stall: &Range<MonoNs>) -> MonoNs {
    stall.end.min(MonoNs(stall.start.0.saturating_add(LONGEST_NS)))
}

/// A counter around a stall: its usual values in `before`, the values of the stall in `at`.
struct Around {
    before: Vec<f64>,
    at: Vec<f64>,
    after: Option<f64>,
    /// One unit of `at` in the counter's own unit.
    scale: f64,
}

fn moved_track(track: &CounterTrack, stall: &Range<MonoNs>) -> Option<CounterMove> {
    let around = match track.counter.kind {
        CounterKind::Level => level_around(&track.points, stall)?,
        CounterKind::Sum => sum_around(&track.points, stall)?,
    };
    let (low, high) = around
        .before
        .iter()
        .fold((f64::MAX, f64::MIN), |(low, high), &value| (low.min(value), high.max(value)));
    let rises_only = track.counter.kind == CounterKind::Sum;
    let left_by = |value: f64| if rises_only { value - high } else { (value - high).max(low - value) };
    let at = around.at.iter().copied().max_by(|a, b| left_by(*a).total_cmp(&left_by(*b)))?;
    let bound = if at > high { high } else { low };
    let enough = (high - low)
        .max(at.abs().max(bound.abs()) / 10.0)
        .max(least(track.counter.kind, track.counter.unit) / around.scale);
    let left = left_by(at);
    (left > 0.0 && left >= enough).then(|| CounterMove {
        name: track.counter.name.clone(),
        kind: track.counter.kind,
        unit: track.counter.unit,
        before: mean(&around.before),
        at,
        after: around.after,
        weight: left / enough,
    })
}

/// The largest of the values that a level has in a stall, where that leaves what it usually has: what it had for most of the
/// second before. A stall of that second is no part of the usual.
pub(crate) fn unusual_peak(track: &CounterTrack, stall: &Range<MonoNs>) -> Option<f64> {
    let around = level_around(&track.points, stall)?;
    let steps = (0..AROUND_NS / STEP_NS).map(|back| stall.start.0.checked_sub(back * STEP_NS));
    let mut held: Vec<f64> = steps.map_while(|at| held_at(&track.points, MonoNs(at?))).collect();
    held.sort_by(f64::total_cmp);
    let usual = *held.get(held.len() * 3 / 5)?;
    let peak = around.at.iter().copied().max_by(f64::total_cmp)?;
    let enough = (peak / 10.0).max(least(track.counter.kind, track.counter.unit));
    (peak - usual >= enough).then_some(peak)
}

/// A smaller move is ignored.
fn least(kind: CounterKind, unit: CounterUnit) -> f64 {
    match (kind, unit) {
        (_, CounterUnit::Plain) => f64::MIN_POSITIVE,
        (CounterKind::Level, CounterUnit::Count) => 1.0,
        (CounterKind::Sum, CounterUnit::Count) => 2.0,
        (_, CounterUnit::Bytes) => 4096.0,
        (_, CounterUnit::Ns) => 1e6,
    }
}

/// Values that hold until the next one.
fn level_around(points: &[(MonoNs, f64)], stall: &Range<MonoNs>) -> Option<Around> {
    let (from, to) = (stall.start, stall.end);
    let window = MonoNs(from.0.saturating_sub(AROUND_NS));
    let before: Vec<f64> = held_at(points, window).into_iter().chain(values(points, window, from)).collect();
    let first_after = points.iter().find(|(at, _)| *at > to).filter(|(at, _)| at.0 - to.0 <= SETTLE_NS);
    let settled = first_after.map_or(to, |(at, _)| *at);
    let at: Vec<f64> = values(points, from, settled).chain(held_at(points, to)).collect();
    let later = MonoNs(settled.0.saturating_add(AROUND_NS));
    let after: Vec<f64> = values(points, settled, later).collect();
    let after = if after.is_empty() { held_at(points, later) } else { Some(mean(&after)) };
    (!before.is_empty()).then_some(Around { before, at, after, scale: 1.0 })
}

/// Rates, per second.
fn sum_around(points: &[(MonoNs, f64)], stall: &Range<MonoNs>) -> Option<Around> {
    let rate = |from: u64, to: u64| {
        let grown = sum_at(points, MonoNs(to))? - sum_at(points, MonoNs(from))?;
        Some(grown * SECOND_NS / to.saturating_sub(from).max(1) as f64)
    };
    // A change between two readings is spread over the time between them, and so is the stall.
    let last_before = points.iter().rev().find(|(at, _)| *at <= stall.start)?.0;
    let from = last_before.0.max(stall.start.0.saturating_sub(SETTLE_NS));
    let first_after = points.iter().find(|(at, _)| *at >= stall.end).map_or(stall.end.0, |(at, _)| at.0);
    let to = first_after.min(stall.end.0.saturating_add(SETTLE_NS)).max(from + 1);
    let steps = AROUND_NS / STEP_NS;
    let step = |back: u64| rate(from.checked_sub((back + 1) * STEP_NS)?, from - back * STEP_NS);
    let before: Vec<f64> = (0..steps).map_while(step).collect();
    let after = rate(to, to.saturating_add(AROUND_NS));
    let at = rate(from, to)?;
    (before.len() > 2).then(|| Around { before, at: vec![at], after, scale: (to - from) as f64 / SECOND_NS })
}

fn held_at(points: &[(MonoNs, f64)], at: MonoNs) -> Option<f64> {
    let after = points.partition_point(|(point, _)| *point <= at);
    Some(points[after.checked_sub(1)?].1)
}

/// The values after `from`, up to `to`.
fn values(points: &[(MonoNs, f64)], from: MonoNs, to: MonoNs) -> impl Iterator<Item = f64> {
    let first = points.partition_point(|(at, _)| *at <= from);
    points[first..].iter().take_while(move |(at, _)| *at <= to).map(|(_, value)| *value)
}

/// The sum at a time, interpolated between two points; unknown before the first one.
fn sum_at(points: &[(MonoNs, f64)], at: MonoNs) -> Option<f64> {
    let after = points.partition_point(|(point, _)| *point <= at);
    let (from, value) = points[after.checked_sub(1)?];
    let Some((to, next)) = points.get(after) else { return Some(value) };
    Some(value + (next - value) * (at.0 - from.0) as f64 / (to.0 - from.0) as f64)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wallprof_model::Counter;

    const MS: u64 = 1_000_000;
    const MIB: f64 = 1_048_576.0;

    fn track(
        kind: CounterKind,
        unit: CounterUnit,
        points: impl IntoIterator<Item = (u64, f64)>,
    ) -> CounterTrack {
        CounterTrack {
            counter: Counter { name: "it".into(), thread: None, kind, unit },
            points: points.into_iter().map(|(ms, value)| (MonoNs(ms * MS), value)).collect(),
        }
    }

    fn level(points: impl IntoIterator<Item = (u64, f64)>) -> CounterTrack {
        track(CounterKind::Level, CounterUnit::Bytes, points)
    }

    /// A stall of 40 ms at 5.05 s.
    fn stalled(track: &CounterTrack) -> Option<CounterMove> {
        moved([track], MonoNs(5_050 * MS)..MonoNs(5_090 * MS)).pop()
    }

    fn numbers(moved: &CounterMove) -> [u64; 3] {
        [moved.before, moved.at, moved.after.unwrap()].map(|number| number.round() as u64)
    }

    #[test]
    fn a_queue_that_filled_shows_in_the_reading_behind_the_stall() {
        let queue = level([(0, 0.0), (5_000, 0.0), (5_100, 200_000.0), (5_200, 0.0)]);
        assert_eq!(numbers(&stalled(&queue).unwrap()), [0, 200_000, 0]);
        let later = level([(0, 0.0), (5_000, 0.0), (5_400, 200_000.0)]);
        assert_eq!(stalled(&later), None, "that was not this stall");
    }

    #[test]
    fn a_level_that_falls_moves_too_and_one_that_wobbles_does_not() {
        let free =
            level([(4_000, 100.0 * MIB), (4_500, 99.0 * MIB), (5_060, 12.0 * MIB), (5_500, 14.0 * MIB)]);
        let moved = stalled(&free).unwrap();
        assert_eq!((moved.at, moved.after), (12.0 * MIB, Some(14.0 * MIB)));
        assert!((99.0 * MIB..100.0 * MIB).contains(&moved.before));
        let wobbling =
            level((40..60).map(|tick| (tick * 100, if tick % 2 == 0 { 100.0 * MIB } else { 80.0 * MIB })));
        assert_eq!(stalled(&wobbling), None);
        let little = level([(4_000, 0.0), (5_060, 4_095.0)]);
        assert_eq!(stalled(&little), None, "below the smallest amount");
    }

    #[test]
    fn a_sum_counts_by_its_rate_around_the_stall() {
        let faults = |burst: f64| {
            let value = move |tick: u64| tick as f64 + if tick >= 51 { burst } else { 0.0 };
            track(CounterKind::Sum, CounterUnit::Count, (30..70).map(move |tick| (tick * 100, value(tick))))
        };
        assert_eq!(numbers(&stalled(&faults(6.0)).unwrap()), [10, 70, 10]);
        assert_eq!(stalled(&faults(0.0)), None);
        let falling = track(
            CounterKind::Sum,
            CounterUnit::Count,
            (30..=50).map(|tick| (tick * 100, tick as f64 * 50.0)),
        );
        assert_eq!(stalled(&falling), None, "a thread that does not run counts nothing");
    }

    #[test]
    fn a_sum_that_stood_still_until_then() {
        // As it is stored: the last time that it was read unchanged, and the change.
        let major =
            track(CounterKind::Sum, CounterUnit::Count, [(0, 3.0), (5_000, 3.0), (5_100, 9.0), (5_200, 9.0)]);
        assert_eq!(numbers(&stalled(&major).unwrap()), [0, 60, 0]);
    }

    #[test]
    fn without_a_before_nothing_moved() {
        assert_eq!(stalled(&level([(5_060, 1e9)])), None);
        assert_eq!(stalled(&level([])), None);
        assert_eq!(stalled(&track(CounterKind::Sum, CounterUnit::Count, [(5_000, 0.0), (5_100, 1e6)])), None);
    }

    #[test]
    fn largest_move_comes_first() {
        let mut small = level([(0, 100.0 * MIB), (5_060, 120.0 * MIB)]);
        small.counter.name = "small".into();
        let large = level([(0, 100.0 * MIB), (5_060, 900.0 * MIB)]);
        let moves = moved([&small, &large], MonoNs(5_050 * MS)..MonoNs(5_090 * MS));
        assert_eq!(moves.iter().map(|moved| &*moved.name).collect::<Vec<_>>(), ["it", "small"]);
    }

    #[test]
    fn marks_of_a_stall_are_those_within_a_second() {
        let mark = |ms: u64, duration: Option<u64>| Mark {
            at: MonoNs(ms * MS),
            duration_ns: duration.map(|ms| ms * MS),
            text: ms.to_string(),
        };
        let marks = [
            mark(1_000, Some(3_100)),
            mark(2_000, None),
            mark(4_100, None),
            mark(6_090, None),
            mark(6_091, None),
        ];
        let around: Vec<_> = marks_around(&marks, MonoNs(5_050 * MS)..MonoNs(5_090 * MS))
            .map(|mark| mark.text.clone())
            .collect();
        assert_eq!(around, ["1000", "4100", "6090"]);
    }

    proptest! {
        #[test]
        fn any_values_at_any_times_are_looked_at(
            mut times in proptest::collection::vec(0u64..u64::MAX, 0..30),
            values in proptest::collection::vec(proptest::num::f64::NORMAL, 30),
            from in 0u64..u64::MAX,
            length in 0u64..u64::MAX,
        ) {
            times.sort();
            times.dedup();
            let points: Vec<_> = times.into_iter().map(MonoNs).zip(values).collect();
            for kind in CounterKind::ALL {
                let track = CounterTrack { points: points.clone(), ..track(kind, CounterUnit::Plain, []) };
                let stall = MonoNs(from)..MonoNs(from.saturating_add(length));
                time_around(stall.clone());
                moved([&track], stall);
            }
        }
    }
}
