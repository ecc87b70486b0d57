// SPDX-License-Identifier: Apache-2.0
//! Whether events recur: with a fixed period, or at one place of the wall clock's second.
//!
//! Events that overlap or follow each other closely are one occurrence. At least five occurrences are needed.
//! Nine tenths of them must lie in an arc of the period. An arc is taken for chance unless random times would
//! lie in one as small with a probability below `MOST_CHANCE`: for `n` times of which `m` lie in an arc of
//! the share `w` of the circle, that is at most `n · C(n-1, m-1) · w^(m-1)` (each time may start the arc). A
//! period that is found from the times themselves could be any of many, so the probability is multiplied by
//! their number. Five occurrences have to lie in 2.4 % of the second, six in 4.8 %; ten may take 10 %, which
//! is the most.

use wallprof_model::{EpochNs, MonoNs};

/// Occurrences that are needed.
const LEAST: usize = 5;
/// Further occurrences are left out: these show the period.
const MOST: usize = 2_000;
/// Of so many occurrences one may lie elsewhere.
const STRAY: usize = 10;
/// The most of a period, or of a second, in which the occurrences may lie.
const WIDEST: f64 = 0.1;
/// With some twenty findings in a report, one in ten thousand reports says it of random times.
const MOST_CHANCE: f64 = 5e-6;
/// Shorter periods are those of the scheduler, of frames and of polling loops. 100 ms is that of CPU quotas.
const SHORTEST_NS: f64 = 90e6;
const SECOND_NS: f64 = 1e9;
/// The parts of the longest gap from which on a gap divides two occurrences: the smaller ones find the period
/// where some occurrences are missing.
const DIVIDING: [f64; 3] = [0.4, 0.2, 0.1];

/// How events recur.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recurrence {
    pub period_ns: Option<u64>,
    pub second: Option<PlaceInSecond>,
}

/// A place of the wall clock's second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceInSecond {
    /// After the full second. 0: within `within_ns` before or after it.
    pub after_ns: u64,
    pub within_ns: u64,
}

/// How events with these starts and ends, in any order, recur. `epoch` is the wall clock, where it is known.
pub fn recurrence<E: Fn(MonoNs) -> EpochNs>(
    events: &[(MonoNs, MonoNs)],
    epoch: Option<E>,
) -> Option<Recurrence> {
    let mut events = events.to_vec();
    events.sort_unstable();
    events.truncate(MOST);
    if events.len() < LEAST {
        return None;
    }
    let period_ns = DIVIDING.into_iter().find_map(|part| period(&occurrences(&events, part)));
    let second = epoch.and_then(|epoch| {
        DIVIDING.into_iter().find_map(|part| place_in_second(&occurrences(&events, part), &epoch))
    });
    let period_ns = period_ns.map(|ns| ns.round() as u64);
    (period_ns.is_some() || second.is_some()).then_some(Recurrence { period_ns, second })
}

/// The first start of each run of events without a gap of this part of the longest one.
fn occurrences(events: &[(MonoNs, MonoNs)], part: f64) -> Vec<MonoNs> {
    let gaps = events.windows(2).map(|pair| pair[1].0.0 - pair[0].0.0);
    let least = gaps.max().unwrap_or(0) as f64 * part;
    let mut starts: Vec<MonoNs> = events.first().map(|(start, _)| *start).into_iter().collect();
    let mut last = events.first().map_or((MonoNs(0), MonoNs(0)), |event| *event);
    for &(start, end) in &events[1..] {
        if start >= last.1 && (start.0 - last.0.0) as f64 > least {
            starts.push(start);
        }
        last = (start, end.max(last.1));
    }
    starts
}

/// The period in which the times recur, ns.
fn period(times: &[MonoNs]) -> Option<f64> {
    if times.len() < LEAST {
        return None;
    }
    let mut gaps: Vec<u64> = times.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    gaps.sort_unstable();
    let usual = gaps[gaps.len() / 2] as f64;
    let found = (0..3).filter_map(|anchor| {
        let period_ns = followed(times, anchor, usual);
        let circle: Vec<f64> = times.iter().map(|at| turn((at.0 - times[0].0) as f64, period_ns)).collect();
        let arc = arc(&circle)?;
        let cycles = (times[times.len() - 1].0 - times[0].0) as f64 / period_ns;
        // Periods within a tenth of the usual gap, of which the occurrences tell so many apart.
        let trials = DIVIDING.len() as f64 * 3.0 * (0.2 * cycles / arc.width.max(1e-6)).max(1.0);
        let is_regular = cycles < 3.0 * times.len() as f64 && period_ns >= SHORTEST_NS;
        (is_regular && arc.is_no_chance(trials)).then_some((arc.width, period_ns))
    });
    found.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, period_ns)| period_ns)
}

/// The period from the time at `anchor` on, made more precise by each later time that is close to where the
/// period so far has it.
fn followed(times: &[MonoNs], anchor: usize, usual_ns: f64) -> f64 {
    let mut period_ns = usual_ns.max(1.0);
    for at in &times[anchor + 1..] {
        let since = (at.0 - times[anchor].0) as f64;
        let cycles = (since / period_ns).round();
        if cycles >= 1.0 && (since / period_ns - cycles).abs() < 0.2 {
            period_ns = since / cycles;
        }
    }
    period_ns
}

/// Where in the second the times lie, if in distinct seconds.
fn place_in_second(times: &[MonoNs], epoch: impl Fn(MonoNs) -> EpochNs) -> Option<PlaceInSecond> {
    let epochs: Vec<u64> = times.iter().map(|at| epoch(*at).0).collect();
    let mut seconds: Vec<u64> = epochs.iter().map(|ns| (ns + 500_000_000) / 1_000_000_000).collect();
    seconds.dedup();
    if seconds.len() < LEAST || seconds.len() < epochs.len() {
        return None;
    }
    let circle: Vec<f64> = epochs.iter().map(|ns| turn((ns % 1_000_000_000) as f64, SECOND_NS)).collect();
    let arc = arc(&circle).filter(|arc| arc.is_no_chance(DIVIDING.len() as f64))?;
    let end = arc.start + arc.width;
    let round_up = |turns: f64| (turns * 1e3).ceil().max(1.0) as u64 * 1_000_000;
    // The full second lies in the arc, or close to it.
    let from_full = if end >= 1.0 { (1.0 - arc.start).max(end - 1.0) } else { end.min(1.0 - arc.start) };
    Some(match from_full <= WIDEST {
        true => PlaceInSecond { after_ns: 0, within_ns: round_up(from_full) },
        false => {
            let middle = (arc.start + arc.width / 2.0) % 1.0;
            let after_ns = (middle * 1e3).round() as u64 * 1_000_000;
            PlaceInSecond { after_ns, within_ns: round_up(arc.width / 2.0 + 0.0005) }
        }
    })
}

/// The place on a circle, from 0 to 1.
fn turn(ns: f64, circle_ns: f64) -> f64 {
    (ns / circle_ns).fract()
}

/// The smallest part of a circle in which nearly all points lie.
struct Arc {
    start: f64,
    width: f64,
    points: usize,
    /// Those in it.
    within: usize,
}

fn arc(circle: &[f64]) -> Option<Arc> {
    let mut sorted = circle.to_vec();
    sorted.sort_by(f64::total_cmp);
    let points = sorted.len();
    let within = points - points / STRAY;
    let width = |first: usize| {
        let last = first + within - 1;
        let behind = sorted[last % points] + if last >= points { 1.0 } else { 0.0 };
        behind - sorted[first]
    };
    let first = (0..points).min_by(|a, b| width(*a).total_cmp(&width(*b)))?;
    Some(Arc { start: sorted[first], width: width(first), points, within })
}

impl Arc {
    /// Whether random times would hardly lie in so small an arc, tried `trials` times.
    fn is_no_chance(&self, trials: f64) -> bool {
        let (n, m) = (self.points as f64, self.within as f64);
        let choices: f64 = (1..self.within).map(|k| ((n - m + k as f64) / k as f64).ln()).sum();
        let chance = n.ln() + choices + (m - 1.0) * self.width.max(1e-9).ln() + trials.ln();
        self.width <= WIDEST && chance <= MOST_CHANCE.ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const S: u64 = 1_000 * MS;

    /// Deterministic random numbers (splitmix64).
    struct Chance(u64);

    impl Chance {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)) % limit
        }
    }

    fn event(at: u64) -> (MonoNs, MonoNs) {
        (MonoNs(at), MonoNs(at + 2 * MS))
    }

    /// The monotonic clock reads 0.25 s when a second begins.
    fn wall(at: MonoNs) -> EpochNs {
        EpochNs(1_700_000_000 * S + at.0 + 750 * MS)
    }

    fn found(events: &[(MonoNs, MonoNs)]) -> Option<Recurrence> {
        recurrence(events, Some(wall))
    }

    fn period_ms(events: &[(MonoNs, MonoNs)]) -> Option<u64> {
        found(events)?.period_ns.map(|ns| ns / MS)
    }

    #[test]
    fn once_a_second_near_the_full_second() {
        let mut chance = Chance(1);
        let events: Vec<_> = (1..=20).map(|n| event(n * S + 240 * MS + chance.below(20 * MS))).collect();
        let Some(Recurrence { period_ns: Some(period_ns), second: Some(second) }) = found(&events) else {
            panic!("{:?}", found(&events));
        };
        assert!(period_ns.abs_diff(S) < 3 * MS, "{period_ns}");
        assert_eq!(second.after_ns, 0);
        assert!((5 * MS..=11 * MS).contains(&second.within_ns), "{second:?}");
    }

    #[test]
    fn elsewhere_in_the_second() {
        let events: Vec<_> = (1..=6).map(|n| event(n * S + 600 * MS + n % 3 * MS)).collect();
        let second = found(&events).and_then(|found| found.second);
        assert_eq!(second, Some(PlaceInSecond { after_ns: 351 * MS, within_ns: 2 * MS }));
        assert_eq!(recurrence(&events, None::<fn(MonoNs) -> EpochNs>).and_then(|found| found.second), None);
    }

    #[test]
    fn at_one_place_of_irregular_seconds() {
        let seconds = [2, 3, 7, 8, 19, 21, 30, 31, 44];
        let events: Vec<_> = seconds.map(|second| event(second * S + 250 * MS + second % 5 * MS)).to_vec();
        let found = found(&events).expect("a place");
        assert_eq!(found.second, Some(PlaceInSecond { after_ns: 0, within_ns: 4 * MS }));
    }

    #[test]
    fn other_periods_are_found_with_gaps_and_a_stray_event() {
        let mut events: Vec<_> = (1..=30)
            .filter(|n| ![4, 5, 17].contains(n))
            .map(|n| event(n * 700 * MS + n % 4 * 2 * MS))
            .collect();
        events.push(event(9_430 * MS));
        assert_eq!(period_ms(&events), Some(700));
        assert_eq!(found(&events).and_then(|found| found.second), None);
    }

    #[test]
    fn threads_that_stall_together_are_one_occurrence() {
        let events: Vec<_> =
            (1..=8).flat_map(|n| (0..6).map(move |thread| event(n * 5 * S + thread * 3 * MS))).collect();
        assert_eq!(period_ms(&events), Some(5_000));
        let once: Vec<_> = (0..40).map(|thread| event(5 * S + thread * 3 * MS)).collect();
        assert_eq!(found(&once), None, "a single burst does not recur");
    }

    #[test]
    fn four_occurrences_are_too_few() {
        let events: Vec<_> = (1..=4).map(|n| event(n * S)).collect();
        assert_eq!(found(&events), None);
        assert!(found(&(1..=5).map(|n| event(n * S)).collect::<Vec<_>>()).is_some());
    }

    /// Times without a period: uniform, in bursts, and with gaps of 0.5 to 1.5 s.
    #[test]
    fn random_times_do_not_recur() {
        for seed in 0..3_000 {
            let mut chance = Chance(seed);
            let count = 5 + chance.below(60);
            let uniform: Vec<_> = (0..count).map(|_| event(chance.below(60 * S))).collect();
            let bursts: Vec<_> = (0..count)
                .flat_map(|_| {
                    let start = chance.below(60 * S);
                    (0..1 + chance.below(4)).map(move |n| event(start + n * 5 * MS))
                })
                .collect();
            let mut at = 0;
            let loose: Vec<_> = (0..count)
                .map(|_| {
                    at += S / 2 + chance.below(S);
                    event(at)
                })
                .collect();
            for events in [uniform, bursts, loose] {
                assert_eq!(found(&events), None, "seed {seed}, {count} times");
            }
        }
    }

    #[test]
    fn periods_of_the_scheduler_are_left_out() {
        let events: Vec<_> = (1..=50).map(|n| event(n * 24 * MS)).collect();
        assert_eq!(period_ms(&events), None);
    }
}
