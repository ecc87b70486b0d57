// SPDX-License-Identifier: Apache-2.0
//! `steal`: threads could not run because the hypervisor did not run their CPU: it was running another
//! machine there.
//!
//! Steal time is counted in ticks and read some ten times a second, so it cannot be attributed to a single
//! wait. Waits for a CPU, and the lateness of timeouts, count between two readings in which the steal time
//! was at least half as long as the recorded threads waited for the CPU. Of all waits between two readings, no more
//! counts than the steal time. One finding a program and thread name.
//!
//! Time that a thread lost while it *ran* is in no stall: its running time contains it.
//!
//! False positives: a wait for another program inside the machine that lies between the same two readings as
//! steal time.

use std::collections::BTreeMap;

use wallprof_model::MonoNs;

use super::case::{Case, grouped};
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::Evidence;
use super::machine::StealInterval;
use super::neighbours::Neighbours;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{oversleep, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "steal",
    topic: Some(Topic::CpuDenied),
    excludes: &[Topic::CpuDenied],
    cause: Cause::Machine,
    evidence: EvidenceKind::Stalls,
    find,
};

const ADVICE: &str = "Nothing inside this machine helps: give it CPUs of its own (dedicated or pinned ones, no type that runs \
    on credits), or move it to a host with less load; the counters cpuN.steal show when it happens.";

/// A CPU, and the index of one of its intervals of steal time.
type IntervalKey = (u32, usize);

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let explaining = explaining(evidence, reported);
    let blamed_ns = |case: &Case| blamed_ns(case, evidence, &explaining);
    let is_stolen =
        |case: &&Case| !evidence.is_left_out(case.thread) && blamed_ns(case) >= delay_ns(case).div_ceil(2);
    let names = grouped(delayed(evidence, reported).filter(is_stolen), |case| {
        (evidence.program(case), case.comm.clone())
    });
    names.into_values().filter_map(|cases| conclude(cases, blamed_ns, evidence)).collect()
}

/// Stalls that steal time can cause.
fn delayed<'e: 't, 't>(
    evidence: &'e Evidence,
    reported: &'t Reported,
) -> impl Iterator<Item = &'e Case> + use<'e, 't> {
    let unit_ns = evidence.unit_ns();
    evidence.cpu_waits().filter(move |case| delay_ns(case) >= unit_ns && !reported.has(case))
}

/// The end of a stall, in which the thread or its timer needed the CPU, ns.
fn delay_ns(case: &Case) -> u64 {
    case.runnable_ns.saturating_add(oversleep::lateness_ns(case)).min(case.late_ns())
}

/// The intervals of steal time during a delay, and how much of it lies in each, ns.
fn steal_intervals<'e>(
    case: &Case,
    evidence: &'e Evidence,
) -> impl Iterator<Item = (IntervalKey, &'e StealInterval, u64)> + use<'e> {
    let (from, to) = (MonoNs(case.end.0.saturating_sub(delay_ns(case))), case.end);
    let cpus = case.cpu.into_iter();
    cpus.flat_map(move |cpu| {
        let steal_intervals = evidence.machine().steal_intervals(cpu, from, to);
        steal_intervals.map(move |(at, interval)| ((cpu, at), interval, interval.overlap_ns(from, to)))
    })
}

/// The intervals whose steal time is at least half as long as threads waited in them, with both, ns.
type Explaining = BTreeMap<IntervalKey, (u64, u64)>;

fn explaining(evidence: &Evidence, reported: &Reported) -> Explaining {
    let mut waited_ns: BTreeMap<IntervalKey, (u64, u64)> = BTreeMap::new();
    for case in delayed(evidence, reported) {
        for (key, interval, ns) in steal_intervals(case, evidence) {
            let (_, sum) = waited_ns.entry(key).or_insert((interval.ns, 0));
            *sum = sum.saturating_add(ns);
        }
    }
    waited_ns.retain(|_, (stolen_ns, waited_ns)| *stolen_ns >= *waited_ns / 2);
    waited_ns
}

/// Waits of several threads within one interval share its steal time.
fn blamed_ns(case: &Case, evidence: &Evidence, explaining: &Explaining) -> u64 {
    let part = |key: &IntervalKey, ns: u64| {
        let (stolen_ns, waited_ns) = *explaining.get(key)?;
        let part = u128::from(ns) * u128::from(stolen_ns);
        let part = part.div_ceil(u128::from(waited_ns).max(1));
        Some(u64::try_from(part).unwrap_or(u64::MAX).min(ns))
    };
    let parts = steal_intervals(case, evidence).filter_map(|(key, _, ns)| part(&key, ns));
    parts.fold(0u64, u64::saturating_add)
}

fn conclude<'e>(
    cases: Vec<&'e Case>,
    blamed_ns: impl Fn(&Case) -> u64,
    evidence: &Evidence,
) -> Option<Conclusion<'e>> {
    let problem = Problem::heavy(Charged::over(cases, blamed_ns), evidence)?;
    let delays = problem.delays;
    let title = format!(
        "{} could not run{} because the hypervisor did not run this machine there (steal) {}.",
        wording::who(&problem.cases, evidence),
        Neighbours::of(&problem.cases, evidence).cpus(),
        wording::delays(&delays)
    );
    Some(problem.conclude(title, ADVICE))
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, at, case, steal, untracked};
    use super::*;
    use wallprof_model::profile::StallRecord;
    use wallprof_model::{Reason, StallReason};

    const MS: u64 = 1_000_000;

    /// CPU 1 is stolen for `stolen_ms` of the 100 ms from 1.1 s on, and of each fifth 100 ms after that.
    fn rules(stolen_ms: u64, stalls: &[StallRecord]) -> Vec<(String, u64, usize)> {
        let readings = (0..40u64).map(|tick| (1_000 + tick * 100, tick.div_ceil(5) * stolen_ms));
        let mut fixture = Fixture::new();
        fixture.threads.iter_mut().for_each(|thread| thread.ledger.wall_ns = 1_000 * MS);
        fixture.counters.push(steal(1, &readings.collect::<Vec<_>>()));
        stalls.iter().for_each(|stall| fixture.stall(stall.clone()));
        let found = findings(&fixture.evidence());
        found.into_iter().map(|found| (found.rule, found.total_ns, found.stalls.len())).collect()
    }

    /// A wait for CPU 1 in the middle of the `nth` reading in which it was stolen.
    fn waiting(nth: u64, ns: u64) -> StallRecord {
        let stall = case(nth + 1, 1, StallReason::Preempted, ns);
        at(nth * 500 * MS + 10 * MS, StallRecord { ran_instead: vec![(untracked("build"), ns)], ..stall })
    }

    #[test]
    fn title_names_the_thread_the_cpu_and_the_time() {
        let mut fixture = Fixture::new();
        fixture.counters.push(steal(1, &[(1_000, 0), (1_100, 60)]));
        fixture.stall(waiting(0, 50 * MS));
        let found = findings(&fixture.evidence());
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(
            found[0].title,
            "thread-1 of app could not run on CPU 1 because the hypervisor did not run this machine there (steal) for 50.0 ms."
        );
        assert_eq!((found[0].rule.as_str(), found[0].stalls.as_slice()), (RULE.name, &[1][..]));
    }

    #[test]
    fn no_more_than_the_steal_time_counts() {
        let stalls: Vec<StallRecord> = (0..4).map(|nth| waiting(nth, 60 * MS)).collect();
        assert_eq!(rules(40, &stalls), [(RULE.name.to_owned(), 160 * MS, 4)]);
        assert_eq!(rules(29, &stalls), [("preempted".to_owned(), 240 * MS, 4)], "less than half of it");
        assert_eq!(rules(0, &stalls), [("preempted".to_owned(), 240 * MS, 4)]);
    }

    #[test]
    fn many_waits_beside_little_steal_time_are_not_steal() {
        let crowd = |thread: u32| StallRecord {
            id: thread.into(),
            thread: wallprof_model::ThreadKey(thread),
            ..waiting(0, 60 * MS)
        };
        let crowd: Vec<StallRecord> = (1..=4).map(crowd).collect();
        assert!(rules(60, &crowd).iter().all(|(rule, ..)| rule == "preempted"), "{:?}", rules(60, &crowd));
        assert_eq!(rules(60, &crowd[..1]), [(RULE.name.to_owned(), 60 * MS, 1)]);
        let shared: u64 = rules(80, &crowd[..2]).iter().map(|(_, ns, _)| ns).sum();
        assert_eq!(shared, 80 * MS, "of 120 ms of waiting");
    }

    #[test]
    fn other_cpus_other_times_and_other_waits_are_not_steal() {
        let elsewhere = StallRecord { cpu: Some(0), ..waiting(0, 60 * MS) };
        let later = at(150 * MS, waiting(0, 60 * MS));
        for stall in [elsewhere, later] {
            assert_eq!(rules(60, &[stall]), [("preempted".to_owned(), 60 * MS, 1)]);
        }
        let disk = at(10 * MS, case(1, 1, StallReason::Blocked(Reason::Disk), 60 * MS));
        assert_eq!(rules(60, &[disk]), [("disk-wait".to_owned(), 60 * MS, 1)]);
    }

    #[test]
    fn late_timer_counts_by_its_lateness() {
        let sleep = case(1, 1, StallReason::Blocked(Reason::Sleep), 50 * MS);
        let late = StallRecord { voluntary: false, asked_ns: Some(20 * MS), ..at(20 * MS, sleep) };
        let lateness_ns = 30 * MS;
        assert_eq!(rules(40, std::slice::from_ref(&late)), [(RULE.name.to_owned(), lateness_ns, 1)]);
        assert_eq!(rules(0, &[late]), [("oversleep".to_owned(), lateness_ns, 1)]);
    }
}
