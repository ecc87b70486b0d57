// SPDX-License-Identifier: Apache-2.0
//! Groups of runs compared, figure by figure.
//!
//! Each run gives one value of a figure. The means of two groups are compared by Welch's t-test, findings by
//! Fisher's exact test. Four families are tested, each by Holm's (1979) procedure with its share of
//! [`FALSE_DIFFERENCES`]: the states and lengths of waits, the places, the spans, the findings. So in at most that share
//! of comparisons of equal groups is anything at all called different, whatever depends on what.

use std::collections::{BTreeMap, BTreeSet};

use super::figures::{Figure, Run, Unit, What};
use super::fisher::p_of_counts;
use crate::diff::welch::{Variance, Welch};
use crate::diff::{Floor, Group};
use crate::interest::Class;

/// The share of comparisons of equal groups in which anything is called different.
pub const FALSE_DIFFERENCES: f64 = 0.05;

/// What each family has of it. Findings need a hundredth: five runs of five against none have p = 0.008.
const OF_STATES: f64 = 0.4 * FALSE_DIFFERENCES;
const OF_PLACES: f64 = 0.2 * FALSE_DIFFERENCES;
const OF_SPANS: f64 = 0.2 * FALSE_DIFFERENCES;
const OF_FINDINGS: f64 = 0.2 * FALSE_DIFFERENCES;

/// Fewer runs than this in a group say nothing about the noise between them.
pub const LEAST_RUNS: usize = 2;

/// Runs that agree more closely than this agree by chance: two values tell little about their spread.
const LEAST_SPREAD: f64 = 0.01;
/// A percentile is that of a bucket, 6.25 % wide: this is the spread of what the bucket hides.
const LEAST_SPREAD_OF_SPANS: f64 = 0.0625 / 3.5;

/// Figures tested: those with the most time.
const MOST_FIGURES: usize = 2_000;

/// The runs with one value of the compared label, in the order in which they were recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct RunGroup<'r> {
    pub value: &'r str,
    pub runs: Vec<&'r Run>,
}

/// A figure that is compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    pub figure: Figure,
    pub a: f64,
    pub b: f64,
    /// The standard deviation between the runs of each group.
    pub spread_a: f64,
    pub spread_b: f64,
    /// Before any correction for how many figures are tested.
    pub p: f64,
    /// Beyond the noise, and large enough to matter.
    pub is_news: bool,
}

/// A rule that fired in some runs.
#[derive(Clone, Debug, PartialEq)]
pub struct FindingChange {
    pub rule: String,
    /// Runs in which it fired.
    pub a: usize,
    pub b: usize,
    /// Of the run where it had the most time.
    pub title: String,
    pub p: f64,
    pub is_news: bool,
}

/// Two groups of runs, compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    pub runs_a: usize,
    pub runs_b: usize,
    /// The largest in time per second first.
    pub figures: Vec<Difference>,
    pub findings: Vec<FindingChange>,
    /// False: a group has fewer than [`LEAST_RUNS`] runs, and nothing is news.
    pub can_judge: bool,
    /// Whether places were compared: all runs kept stalls from the same length on, and nearly all of these.
    pub has_places: bool,
    /// Threads that only the runs of one group have.
    pub only_a: Vec<Group>,
    pub only_b: Vec<Group>,
    pub matched: usize,
}

impl Difference {
    /// Relative to the larger side.
    pub fn share(&self) -> f64 {
        let larger = self.a.max(self.b);
        if larger == 0.0 { 0.0 } else { (self.b - self.a) / larger }
    }
}

/// Compares the runs of `b` with those of `a`.
pub fn compare_groups(a: &[&Run], b: &[&Run]) -> Comparison {
    let all = || a.iter().chain(b);
    let names = |runs: &[&Run]| -> BTreeSet<Group> {
        runs.iter().flat_map(|run| run.threads.keys().cloned()).collect()
    };
    let (in_a, in_b) = (names(a), names(b));
    let mut least = all().map(|run| run.min_stall_ns);
    let first = least.next();
    let has_places = least.all(|ns| Some(ns) == first) && all().all(|run| run.has_most_waits());
    let can_judge = a.len().min(b.len()) >= LEAST_RUNS;
    let is_compared = |figure: &Figure| {
        figure.group.as_ref().is_none_or(|group| in_a.contains(group) && in_b.contains(group))
            && is_asked(&figure.what)
            && (has_places || family(&figure.what) != Family::Places)
    };
    let wanted: BTreeSet<Figure> = all().flat_map(|run| run.figures()).filter(is_compared).collect();
    let mut figures: Vec<Difference> =
        wanted.into_iter().filter_map(|figure| difference(figure, a, b)).collect();
    figures.sort_by(|x, y| y.size().total_cmp(&x.size()).then_with(|| x.figure.cmp(&y.figure)));
    figures.truncate(MOST_FIGURES);
    let mut findings = findings(a, b);
    if can_judge {
        let families = [(Family::States, OF_STATES), (Family::Places, OF_PLACES), (Family::Spans, OF_SPANS)];
        for (tested, share) in families {
            let of_family: Vec<usize> =
                (0..figures.len()).filter(|&at| family(&figures[at].figure.what) == tested).collect();
            let p: Vec<f64> = of_family.iter().map(|&at| figures[at].p).collect();
            for at in rejected(&p, share) {
                let difference = &mut figures[of_family[at]];
                difference.is_news = difference.matters();
            }
        }
        let p: Vec<f64> = findings.iter().map(|finding| finding.p).collect();
        rejected(&p, OF_FINDINGS).into_iter().for_each(|at| findings[at].is_news = true);
    }
    Comparison {
        runs_a: a.len(),
        runs_b: b.len(),
        figures,
        findings,
        can_judge,
        has_places,
        matched: in_a.intersection(&in_b).count(),
        only_a: in_a.difference(&in_b).cloned().collect(),
        only_b: in_b.difference(&in_a).cloned().collect(),
    }
}

/// Voluntary waits are what other states leave of the time: they are not asked about.
fn is_asked(what: &What) -> bool {
    match what {
        What::State(state) => Class::of(*state) != Class::Voluntary,
        What::WaitLength(reason) => !reason.is_voluntary(),
        What::Cpu | What::Place(_) | What::PlaceLength(_) | What::Span { .. } => true,
    }
}

/// Figures that are tested together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    States,
    Places,
    Spans,
}

fn family(what: &What) -> Family {
    match what {
        What::Cpu | What::State(_) | What::WaitLength(_) => Family::States,
        What::Place(_) | What::PlaceLength(_) => Family::Places,
        What::Span { .. } => Family::Spans,
    }
}

impl Difference {
    /// For the order: time per second before lengths of waits.
    fn size(&self) -> f64 {
        match self.figure.what.unit() {
            Unit::NsPerSecond => self.a.max(self.b),
            Unit::NsPerWait => 0.0,
        }
    }

    fn matters(&self) -> bool {
        let floor = Floor::default();
        let difference = (self.b - self.a).abs();
        let is_large = match self.figure.what.unit() {
            Unit::NsPerSecond => difference >= floor.ns,
            Unit::NsPerWait => true,
        };
        is_large && difference >= floor.share * self.a.max(self.b)
    }
}

/// `None` for a figure that is too small to matter, or that a run does not know.
fn difference(figure: Figure, a: &[&Run], b: &[&Run]) -> Option<Difference> {
    let values = |runs: &[&Run], figure: &Figure| -> Option<Vec<f64>> {
        runs.iter().map(|run| run.value(figure)).collect()
    };
    let mean_rate = |runs: &[&Run]| mean(&runs.iter().map(|run| run.rate_of(&figure)).collect::<Vec<_>>());
    if mean_rate(a) + mean_rate(b) < Floor::default().ns {
        return None;
    }
    let (of_a, of_b) = (values(a, &figure)?, values(b, &figure)?);
    let (mean_a, mean_b) = (mean(&of_a), mean(&of_b));
    let is_of_spans = family(&figure.what) == Family::Spans;
    let least = if is_of_spans { LEAST_SPREAD_OF_SPANS } else { LEAST_SPREAD } * (mean_a + mean_b) / 2.0;
    let variance = |values: &[f64]| Variance {
        of: spread(values).max(least).powi(2) / values.len() as f64,
        degrees: (values.len() as f64 - 1.0).max(1.0),
    };
    let welch = Welch::new(variance(&of_a), variance(&of_b));
    Some(Difference {
        p: welch.p(mean_b - mean_a),
        a: mean_a,
        b: mean_b,
        spread_a: spread(&of_a),
        spread_b: spread(&of_b),
        is_news: false,
        figure,
    })
}

fn findings(a: &[&Run], b: &[&Run]) -> Vec<FindingChange> {
    let mut titles: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    for finding in a.iter().chain(b).flat_map(|run| &run.findings) {
        let known = titles.entry(&finding.rule).or_insert((finding.total_ns, &finding.title));
        if finding.total_ns > known.0 {
            *known = (finding.total_ns, &finding.title);
        }
    }
    let fired = |runs: &[&Run], rule: &str| {
        runs.iter().filter(|run| run.findings.iter().any(|finding| finding.rule == rule)).count()
    };
    let changes = titles.into_iter().map(|(rule, (_, title))| {
        let (in_a, in_b) = (fired(a, rule), fired(b, rule));
        FindingChange {
            rule: rule.to_owned(),
            a: in_a,
            b: in_b,
            title: title.to_owned(),
            p: p_of_counts(in_a, a.len(), in_b, b.len()),
            is_news: false,
        }
    });
    changes.filter(|change| change.a * b.len() != change.b * a.len()).collect()
}

/// The places of those p that Holm's procedure calls no chance.
fn rejected(p: &[f64], share: f64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|x, y| p[*x].total_cmp(&p[*y]));
    let level = |rank: usize| share / (p.len() - rank) as f64;
    let count = order.iter().enumerate().take_while(|(rank, at)| p[**at] <= level(*rank)).count();
    order.truncate(count);
    order
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The standard deviation; of one value 0.
fn spread(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::figures::{FoundInRun, Place, Sum, ThreadTime};
    use wallprof_model::profile::Cause;
    use wallprof_model::{Reason, State};

    const LOCK: What = What::State(State::Blocked(Reason::Lock));
    const SECOND: u64 = 1_000_000_000;

    fn group() -> Group {
        Group { process: "app".into(), thread: "worker".into() }
    }

    /// A minimal generator of noise with a seed: the sum of twelve uniform numbers is nearly normal.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> f64 {
            let mut uniform = || {
                self.0 ^= self.0 << 13;
                self.0 ^= self.0 >> 7;
                self.0 ^= self.0 << 17;
                self.0 as f64 / u64::MAX as f64
            };
            (0..12).map(|_| uniform()).sum::<f64>() - 6.0
        }
    }

    /// Ten seconds with twelve states and places, each with a spread of 4 % between runs; waits for a lock are
    /// `longer` times as long.
    fn run(noise: &mut Noise, longer: f64) -> Run {
        let mut run = Run { duration_ns: 10 * SECOND, ..Run::default() };
        let mut drawn = |base: f64| (base * (1.0 + 0.04 * noise.next())) as u64;
        let mut time = ThreadTime { threads: 4, ..ThreadTime::default() };
        for (what, ms) in [(What::Cpu, 4_000.0), (What::State(State::Runnable), 300.0)] {
            time.states.insert(what, drawn(ms * 1e6));
        }
        for (reason, ms) in
            [(Reason::Lock, 900.0 * longer), (Reason::Disk, 200.0), (Reason::Network, 2_000.0)]
        {
            let ns = drawn(ms * 1e6);
            time.states.insert(What::State(State::Blocked(reason)), ns);
            time.waits.insert(reason, Sum { count: 3_000, ns });
        }
        for (at, ms) in [500.0, 400.0, 30.0, 20.0].into_iter().enumerate() {
            let place = Place { reason: "lock", meaning: None, functions: format!("take{at}") };
            run.places.insert((group(), place), Sum { count: 100, ns: drawn(ms * 1e6) });
        }
        run.threads.insert(group(), time);
        run
    }

    fn trial(seed: u64, longer: f64) -> Comparison {
        let mut noise = Noise(seed * 7_919 + 12_345);
        (0..9).for_each(|_| {
            noise.next();
        });
        let runs: Vec<Run> = (0..10).map(|at| run(&mut noise, if at < 5 { 1.0 } else { longer })).collect();
        let (a, b) = runs.split_at(5);
        compare_groups(&a.iter().collect::<Vec<_>>(), &b.iter().collect::<Vec<_>>())
    }

    fn is_news(comparison: &Comparison, what: &What) -> bool {
        comparison.figures.iter().any(|figure| figure.is_news && figure.figure.what == *what)
    }

    #[test]
    fn planted_fifth_is_found_and_equal_runs_differ_in_few_trials() {
        let found = (1..=200).filter(|&seed| is_news(&trial(seed, 1.2), &LOCK)).count();
        assert!(found >= 180, "{found} of 200");
        let wrong =
            (1..=200).filter(|&seed| trial(seed, 1.0).figures.iter().any(|figure| figure.is_news)).count();
        assert!(wrong <= 15, "{wrong} of 200");
    }

    #[test]
    fn one_run_a_side_is_not_judged() {
        let mut noise = Noise(3);
        let (a, b) = (run(&mut noise, 1.0), run(&mut noise, 9.0));
        let comparison = compare_groups(&[&a], &[&b]);
        assert!(!comparison.can_judge);
        assert!(comparison.figures.iter().all(|figure| !figure.is_news));
    }

    #[test]
    fn runs_without_a_common_thread_have_nothing_to_compare() {
        let mut noise = Noise(3);
        let a = run(&mut noise, 1.0);
        let mut b = run(&mut noise, 1.0);
        b.threads = b
            .threads
            .into_values()
            .map(|time| (Group { process: "b".into(), thread: "b".into() }, time))
            .collect();
        b.places.clear();
        let comparison = compare_groups(&[&a, &a], &[&b, &b]);
        assert_eq!((comparison.matched, comparison.figures.len()), (0, 0));
        assert_eq!((comparison.only_a.len(), comparison.only_b.len()), (1, 1));
    }

    /// Runs of 10 s with 10,000 spans; every hundredth takes `tail_us`.
    fn with_spans(noise: &mut Noise, tail_us: f64) -> Run {
        let mut run = run(noise, 1.0);
        let drift = 1.0 + 0.04 * noise.next();
        let durations = run.spans.entry("order".into()).or_default();
        for at in 0..10_000 {
            let us = if at % 100 == 0 { tail_us } else { 300.0 };
            durations.record((us * 1e3 * drift * (1.0 + 0.1 * noise.next())) as u64);
        }
        run
    }

    fn percentiles_in_news(tail_us: f64, seed: u64) -> Vec<u16> {
        let mut noise = Noise(seed * 7_919 + 12_345);
        let tails = [900.0; 5].into_iter().chain([tail_us; 5]);
        let runs: Vec<Run> = tails.map(|us| with_spans(&mut noise, us)).collect();
        let (a, b) = runs.split_at(5);
        let comparison = compare_groups(&a.iter().collect::<Vec<_>>(), &b.iter().collect::<Vec<_>>());
        let news = comparison.figures.into_iter().filter(|found| found.is_news);
        let mut percentiles: Vec<u16> = news
            .filter_map(|found| match found.figure.what {
                What::Span { percentile, .. } => Some(percentile),
                _ => None,
            })
            .collect();
        percentiles.sort_unstable();
        percentiles
    }

    #[test]
    fn slower_tail_of_spans_is_found_at_its_percentile() {
        let right = (1..=40).filter(|&seed| percentiles_in_news(1_800.0, seed) == [999]).count();
        assert!(right >= 36, "{right} of 40");
        let wrong = (1..=40).filter(|&seed| !percentiles_in_news(900.0, seed).is_empty()).count();
        assert!(wrong <= 2, "{wrong} of 40");
    }

    #[test]
    fn percentiles_of_too_few_spans_are_not_compared() {
        let mut noise = Noise(3);
        let mut run = run(&mut noise, 1.0);
        (0..1_000).for_each(|_| run.spans.entry("order".into()).or_default().record(5_000_000));
        let comparison = compare_groups(&[&run; 5], &[&run; 5]);
        let compared = comparison.figures.iter().filter(|found| found.figure.group.is_none()).count();
        assert_eq!(compared, 3, "P99.9 of 1,000 spans is one span");
    }

    #[test]
    fn findings_come_and_go() {
        let finding = |rule: &str| FoundInRun {
            rule: rule.into(),
            cause: Cause::Program,
            title: format!("a {rule}"),
            total_ns: 1,
        };
        let with = Run { findings: vec![finding("deadlock"), finding("lock-wait")], ..Run::default() };
        let without = Run { findings: vec![finding("lock-wait")], ..Run::default() };
        let comparison = compare_groups(&[&without; 5], &[&with; 5]);
        assert_eq!(comparison.findings.len(), 1, "lock-wait is in every run");
        let change = &comparison.findings[0];
        assert_eq!((change.rule.as_str(), change.a, change.b, change.is_news), ("deadlock", 0, 5, true));
        let few = compare_groups(&[&without; 3], &[&with; 3]);
        assert!(!few.findings[0].is_news, "three a side may be chance");
    }

    #[test]
    fn places_of_unlike_thresholds_are_not_compared() {
        let mut noise = Noise(3);
        let a = run(&mut noise, 1.0);
        let other_threshold = Run { min_stall_ns: 5, ..run(&mut noise, 1.0) };
        let few_kept = Run { only_summed_ns: u64::MAX / 2, ..run(&mut noise, 1.0) };
        for b in [other_threshold, few_kept] {
            let comparison = compare_groups(&[&a, &a], &[&b, &b]);
            assert!(!comparison.has_places);
            assert!(comparison.figures.iter().all(|figure| family(&figure.figure.what) != Family::Places));
            assert!(!comparison.figures.is_empty());
        }
    }
}
