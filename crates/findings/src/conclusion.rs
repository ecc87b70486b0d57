// SPDX-License-Identifier: Apache-2.0
//! The conclusions of a rule, with the stalls as evidence. Cases of one cause are a problem when they cost
//! enough. A problem with a title and an advice is a conclusion.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use wallprof_analysis::receive::Backlog;
use wallprof_analysis::recurrence::recurrence;
use wallprof_meaning::site::Site;
use wallprof_model::profile::{Finding, InterruptRow};
use wallprof_model::{MonoNs, ThreadKey};

use super::case::{Case, mostly};
use super::cause::cause;
use super::evidence::Evidence;
use super::limits::{Delays, is_share, wall_ns};
use super::spec::{RuleSpec, Topic};
use super::{deadlock, dropped_packets, known, wording};

/// Stalls that a finding lists; `count` says how many there were.
const MOST_STALLS: usize = 1_000;

/// Stalls of a finding at which the receive queues are looked at.
const MOST_LOOKED_AT: usize = 100;

/// A finding before its evidence is reduced to ids.
#[derive(Debug)]
pub(super) struct Conclusion<'e> {
    pub title: String,
    pub advice: String,
    pub threads: Vec<ThreadKey>,
    pub delays: Delays,
    pub cases: Vec<&'e Case>,
    /// What the cause took of each of these, ns.
    taken_ns: Vec<u64>,
    /// What it took of each thread, ns; threads of which that is not known are not in it.
    by_thread: BTreeMap<ThreadKey, u64>,
    /// The interrupts of a conclusion about interrupts; else none.
    pub interrupts: Vec<&'e InterruptRow>,
}

/// Cases with one cause, and what that took of each.
#[derive(Debug)]
pub(super) struct Charged<'e> {
    pub cases: Vec<&'e Case>,
    /// Of each case, ns.
    taken_ns: Vec<u64>,
    /// Of all; where the cause is known by other sums, those.
    pub delays: Delays,
}

impl<'e> Charged<'e> {
    /// The part of each case that `ns` returns.
    pub fn over(cases: Vec<&'e Case>, mut ns: impl FnMut(&Case) -> u64) -> Self {
        let taken_ns: Vec<u64> = cases.iter().map(|case| ns(case)).collect();
        Charged { delays: Delays::of(taken_ns.iter().copied()), cases, taken_ns }
    }
}

/// Cases of one cause that are worth a finding.
#[derive(Debug)]
pub(super) struct Problem<'e> {
    pub threads: Vec<ThreadKey>,
    pub delays: Delays,
    pub cases: Vec<&'e Case>,
    taken_ns: Vec<u64>,
    by_thread: BTreeMap<ThreadKey, u64>,
}

impl<'e> Problem<'e> {
    pub fn new(charged: Charged<'e>) -> Self {
        let Charged { cases, taken_ns, delays } = charged;
        let mut by_thread: BTreeMap<ThreadKey, u64> = BTreeMap::new();
        for (case, ns) in cases.iter().zip(&taken_ns) {
            let sum = by_thread.entry(case.thread).or_default();
            *sum = sum.saturating_add(*ns);
        }
        Problem { threads: by_thread.keys().copied().collect(), delays, cases, taken_ns, by_thread }
    }

    /// A cause that is known by sums, not by stalls: `by_thread`, ns.
    pub fn of_threads(by_thread: BTreeMap<ThreadKey, u64>, delays: Delays) -> Self {
        let threads = by_thread.keys().copied().collect();
        Problem { by_thread, ..Problem::of_all(threads, delays) }
    }

    /// A cause that is known of these threads together.
    pub fn of_all(threads: Vec<ThreadKey>, delays: Delays) -> Self {
        Problem { threads, delays, cases: Vec::new(), taken_ns: Vec::new(), by_thread: BTreeMap::new() }
    }

    /// For causes that should be very rare.
    pub fn unusual(charged: Charged<'e>, evidence: &Evidence) -> Option<Self> {
        let problem = Problem::new(charged);
        (problem.delays.is_unusual(evidence) && problem.is_significant(evidence)).then_some(problem)
    }

    /// For causes that every program meets at times.
    pub fn heavy(charged: Charged<'e>, evidence: &Evidence) -> Option<Self> {
        let problem = Problem::new(charged);
        (problem.is_heavy(evidence) && problem.is_significant(evidence)).then_some(problem)
    }

    /// For waits for one thing at one place, however short each is.
    pub fn frequent(charged: Charged<'e>, evidence: &Evidence) -> Option<Self> {
        let problem = Problem::new(charged);
        (problem.is_frequent(evidence) && problem.is_significant(evidence)).then_some(problem)
    }

    /// For waits that every program meets at times, and that are a problem where there are many short ones, too.
    pub fn heavy_or_frequent(charged: Charged<'e>, evidence: &Evidence) -> Option<Self> {
        let problem = Problem::new(charged);
        let is_one = problem.is_frequent(evidence) || problem.is_heavy(evidence);
        (is_one && problem.is_significant(evidence)).then_some(problem)
    }

    fn is_heavy(&self, evidence: &Evidence) -> bool {
        let latest = MostLate::of(&self.by_thread, &self.threads);
        self.delays.is_heavy(evidence, &self.threads) || latest.is_tenth(self.delays, evidence)
    }

    fn is_frequent(&self, evidence: &Evidence) -> bool {
        self.delays.is_frequent(evidence, &self.threads)
    }

    fn is_significant(&self, evidence: &Evidence) -> bool {
        !self.delays.is_negligible(evidence, &self.threads)
    }

    /// The place of most of the delays.
    pub fn site(&self) -> Option<Arc<Site>> {
        mostly(&self.cases, |case| case.site.clone())
    }

    pub fn conclude(self, title: String, advice: impl Into<String>) -> Conclusion<'e> {
        let Problem { threads, delays, cases, taken_ns, by_thread } = self;
        let advice = advice.into();
        Conclusion { title, advice, threads, delays, cases, taken_ns, by_thread, interrupts: Vec::new() }
    }
}

/// The threads that a cause made late, without those that it hardly touched. A writer that waits for most of its
/// time is a problem of its own, and no smaller where a hundred readers wait for the same lock for a moment.
struct MostLate {
    threads: Vec<ThreadKey>,
    ns: u64,
    /// What all threads were late for, ns.
    whole_ns: u64,
}

impl MostLate {
    /// All of `threads` where it is not known of each what the cause took of it: its part may be in the part of the
    /// others.
    fn of(by_thread: &BTreeMap<ThreadKey, u64>, threads: &[ThreadKey]) -> Self {
        let mut late_ns = by_thread.clone();
        let whole_ns = late_ns.values().fold(0u64, |sum, ns| sum.saturating_add(*ns));
        if late_ns.len() < threads.len() || whole_ns == 0 {
            return MostLate { threads: threads.to_vec(), ns: whole_ns, whole_ns };
        }
        let most_ns = late_ns.values().max().copied().unwrap_or(0);
        let mut least: Vec<(u64, ThreadKey)> = late_ns.iter().map(|(key, ns)| (*ns, *key)).collect();
        least.sort_unstable();
        let mut left_ns = 0u64;
        for (ns, key) in least {
            left_ns = left_ns.saturating_add(ns);
            if ns > most_ns / 20 || left_ns > whole_ns / 10 {
                left_ns -= ns;
                break;
            }
            late_ns.remove(&key);
        }
        MostLate { threads: late_ns.into_keys().collect(), ns: whole_ns - left_ns, whole_ns }
    }

    /// Whether they lost a tenth of their time, with one long wait in it.
    fn is_tenth(&self, delays: Delays, evidence: &Evidence) -> bool {
        let ns = self.part_of(delays.total_ns);
        delays.is_long(evidence) && is_share(ns, 10, wall_ns(evidence, &self.threads))
    }

    /// The part of a cause that took `total_ns` of all threads. A cause can be a part of each stall.
    fn part_of(&self, total_ns: u64) -> u64 {
        match self.whole_ns {
            0 => total_ns,
            whole_ns => (u128::from(total_ns) * u128::from(self.ns) / u128::from(whole_ns)) as u64,
        }
    }
}

impl<'e> Conclusion<'e> {
    /// With stalls as the evidence of what is known by sums.
    pub fn with_stalls(self, cases: Vec<&'e Case>) -> Self {
        let taken_ns = cases.iter().map(|case| case.late_ns()).collect();
        Conclusion { cases, taken_ns, ..self }
    }

    /// The cases, those of which the cause took most first.
    fn longest(&self) -> Vec<(u64, &'e Case)> {
        let mut longest: Vec<_> = self.taken_ns.iter().copied().zip(self.cases.iter().copied()).collect();
        longest.sort_by_key(|(ns, case)| (Reverse(*ns), case.id));
        longest
    }

    /// The finding of this rule.
    pub fn into_finding(mut self, rule: &RuleSpec, evidence: &Evidence) -> Finding {
        let cause = cause(rule, &self, evidence);
        if rule.topic == Some(Topic::Waits) && rule.name != deadlock::RULE.name {
            self.title.push_str(&known::not_ended(&self.cases));
        }
        let longest = self.longest();
        self.title.push_str(&recurs(&longest, evidence));
        // That one counts them itself.
        if rule.name != dropped_packets::RULE.name {
            self.title.push_str(&not_received(&self.cases, evidence));
        }
        let mut stalls: Vec<u64> = longest.iter().take(MOST_STALLS).map(|(_, case)| case.id).collect();
        stalls.sort_unstable();
        let latest = MostLate::of(&self.by_thread, &self.threads);
        Finding {
            rule: rule.name.into(),
            cause,
            title: self.title,
            advice: self.advice,
            threads: self.threads,
            most_late_ns: latest.part_of(self.delays.total_ns),
            most_late: latest.threads,
            count: self.delays.count,
            total_ns: self.delays.total_ns,
            max_ns: self.delays.max_ns,
            stalls,
        }
    }
}

/// ` They recur every 1.000 s, within 20 ms of the full second.`; nothing where they come at any time. The
/// cases count that make up nine tenths of the time: what is short may be noise. Where these do not recur,
/// those may that are at least half as long as the longest: `The 10 longest recur every 1.000 s.`
fn recurs(longest: &[(u64, &Case)], evidence: &Evidence) -> String {
    let whole_ns = longest.iter().fold(0u64, |sum, (ns, _)| sum.saturating_add(*ns));
    let mut sum_ns = 0u64;
    let most = longest.iter().take_while(|(ns, _)| {
        let is_needed = sum_ns < whole_ns / 10 * 9;
        sum_ns = sum_ns.saturating_add(*ns);
        is_needed
    });
    let most = most.count();
    let half_ns = longest.first().map_or(0, |(ns, _)| ns.div_ceil(2));
    let long = longest.iter().take_while(|(ns, _)| *ns >= half_ns).count();
    let clock = evidence.clock().map(|clock| |at| clock.epoch_from_mono(at));
    let found = |count: usize| {
        let late = longest[..count].iter().map(|(_, case)| (late_from(case), case.end));
        recurrence(&late.collect::<Vec<_>>(), clock)
    };
    let all = found(most).map(|found| ("They".to_owned(), found));
    let found = all.or_else(|| Some((format!("The {long} longest"), found(long.min(most))?)));
    found.map(|(which, found)| format!(" {which} {}.", wording::recurrence(&found))).unwrap_or_default()
}

/// From when on it was late.
fn late_from(case: &Case) -> MonoNs {
    MonoNs(case.end.0.saturating_sub(case.late_ns()))
}

/// ` During 2 of them the receive queue udp 10.0.0.1:5000 grew from 0 B to 208 KiB, and 37 packets were
/// dropped.`; nothing where no queue grew. Of very many stalls the longest are looked at.
fn not_received(cases: &[&Case], evidence: &Evidence) -> String {
    let mut longest: Vec<&&Case> = cases.iter().filter(|case| !case.open).collect();
    longest.sort_by_key(|case| (Reverse(case.late_ns()), case.id));
    longest.truncate(MOST_LOOKED_AT);
    longest.sort_by_key(|case| (case.start, case.id));
    let mut found: Vec<Backlog> = Vec::new();
    for mut backlog in longest.into_iter().filter_map(|case| evidence.backlog(case)) {
        // Two threads that were stalled at the same time share what was dropped.
        if found.iter().any(|before| before.between.end > backlog.between.start) {
            backlog.dropped = 0;
        }
        if backlog.queue.is_some() || backlog.dropped > 0 {
            found.push(backlog);
        }
    }
    let growth = |backlog: &Backlog| backlog.queue.as_ref().map(|queue| queue.at - queue.before);
    let Some(most) = found.iter().max_by_key(|backlog| growth(backlog)) else { return String::new() };
    let dropped = found.iter().map(|backlog| backlog.dropped).sum();
    let words = Backlog { dropped, ..most.clone() }.words();
    match (cases.len(), found.len()) {
        (1, _) => format!(" Meanwhile {words}."),
        (_, 1) => format!(" During one of them {words}."),
        (_, count) => format!(" During {count} of them {words}."),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::fixture::{Fixture, at, case, lock_case, udp_drops, udp_queue};
    use super::super::{findings, lock_wait};
    use super::*;
    use wallprof_model::profile::StallRecord;
    use wallprof_model::{ClockAnchor, ClockMap, EpochNs, Reason, StallReason};

    /// The finding about waits of thread 1 for a lock: long ones with these starts, and short ones in
    /// between.
    fn title(starts: impl Iterator<Item = u64>) -> String {
        let mut fixture = Fixture::new();
        let epoch = EpochNs(1_700_000_000_900_000_000);
        fixture.info.clock = ClockMap::new(vec![ClockAnchor { mono: MonoNs(0), epoch }]);
        for (id, start) in (1..).zip(starts) {
            fixture.stall(at(start, lock_case(id, 1, 2, 20_000_000)));
            let between = start + 217_000_000 + id * 31_000_000;
            fixture.stall(at(between, lock_case(100 + id, 1, 2, 200_000)));
        }
        let mut found = findings(&fixture.evidence());
        assert_eq!(found.len(), 1, "{found:#?}");
        found.remove(0).title
    }

    #[test]
    fn stalls_once_a_second_are_said_to_recur() {
        let title = title((1..=7).map(|n| n * 1_000_000_000 + 100_000_000 + n % 3 * 4_000_000));
        assert!(title.ends_with(" They recur every 1.000 s, within 8 ms of the full second."), "{title}");
    }

    #[test]
    fn long_stalls_recur_among_many_short_ones() {
        let mut fixture = Fixture::new();
        for n in 0..8u64 {
            let long = at(n * 1_000_000_000 + n % 2 * 3_000_000, lock_case(n, 1, 2, 50_000_000));
            fixture.stall(long);
            for short in 0..20 {
                let start = n * 1_000_000_000 + 60_000_000 + (n * 7 + short * 13) % 29 * 31_000_000;
                fixture.stall(at(start, lock_case(100 + n * 20 + short, 1, 2, 9_000_000)));
            }
        }
        let found = findings(&fixture.evidence());
        assert!(found[0].title.ends_with(" The 8 longest recur every 1.000 s."), "{}", found[0].title);
    }

    #[test]
    fn stalls_at_random_times_are_not() {
        let title = title([70, 900, 1_310, 3_680, 4_100, 6_250, 7_930].into_iter().map(|ms| ms * 1_000_000));
        assert!(!title.contains("recur"), "{title}");
    }

    #[test]
    fn packets_that_were_dropped_meanwhile_are_said() {
        let title = |queue: u64, stalled_ms: &[u64]| {
            let mut fixture = Fixture::new();
            fixture.process_counters = vec![
                udp_queue(&[(500, 0), (3_000, 0), (3_100, queue), (3_200, 0)]),
                udp_drops(&[(500, 3), (3_000, 3), (3_100, 3 + queue / 5_000), (9_000, 3 + queue / 5_000)]),
            ];
            for (id, ms) in (1..).zip(stalled_ms) {
                fixture.stall(at(ms * 1_000_000, lock_case(id, 1 + id as u32, 1, 90_000_000)));
            }
            let mut found = findings(&fixture.evidence());
            found.retain(|found| found.rule == lock_wait::RULE.name);
            assert_eq!(found.len(), 1, "{found:#?}");
            found.remove(0).title
        };
        let queue =
            "the receive queue udp 10.0.0.1:5000 grew from 0 B to 195 KiB, and 40 packets were dropped.";
        assert!(title(200_000, &[2_005]).ends_with(&format!(" Meanwhile {queue}")));
        let of_two = title(200_000, &[2_003, 2_006]);
        assert!(of_two.ends_with(&format!(" During 2 of them {queue}")), "each packet once: {of_two}");
        assert!(title(200_000, &[2_005, 5_000]).contains(&format!(" During one of them {queue}")));
        assert!(title(200_000, &[5_000]).ends_with("released it in release_order."), "at another time");
        assert!(title(0, &[2_005]).ends_with("released it in release_order."));
    }

    /// The workers of a loop sleep in a callback for as long as they asked to: these waits are not late.
    #[test]
    fn threads_have_what_the_cause_took_of_them() {
        let mut fixture = Fixture::new();
        for (id, thread) in (1..=30).zip([1, 2, 3].into_iter().cycle()) {
            let asked_ns = Some(if thread == 1 { 49_100_000 } else { 49_990_000 });
            let sleep = case(id, thread, StallReason::Blocked(Reason::Sleep), 50_000_000);
            fixture.stall(at(id * 100_000_000, StallRecord { asked_ns, ..sleep }));
        }
        let evidence = fixture.evidence();
        let late = evidence.cases().map(Case::late_ns).collect::<BTreeSet<u64>>();
        assert_eq!(late, BTreeSet::from([10_000, 900_000]));
        let problem = Problem::new(Charged::over(evidence.cases().collect(), Case::duration_ns));
        let finding = problem.conclude("t".into(), "a").into_finding(&lock_wait::RULE, &evidence);
        assert_eq!((finding.most_late.len(), finding.most_late_ns), (3, 1_500_000_000));
    }

    #[test]
    fn of_very_many_stalls_the_longest_are_listed() {
        let mut fixture = Fixture::new();
        for id in 1..=1_200 {
            fixture.stall(lock_case(id, 1, 2, id * 1_000));
        }
        let evidence = fixture.evidence();
        let cases: Vec<&Case> = evidence.cases().collect();
        let charged = Charged::over(cases, Case::duration_ns);
        let problem = Problem::unusual(charged, &evidence).expect("a problem");
        let finding = problem.conclude("t".into(), "a").into_finding(&lock_wait::RULE, &evidence);
        assert_eq!((finding.count, finding.stalls.len()), (1_200, MOST_STALLS));
        assert_eq!((finding.stalls.first(), finding.stalls.last()), (Some(&201), Some(&1_200)));
        assert_eq!(finding.threads, [ThreadKey(1)]);
    }
}
