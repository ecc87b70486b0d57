//! `steal`: threads could not run because the hypervisor did not run their CPU: it was running another machine there.
//!
//! Steal is counted in ticks and read some ten times a second, so no single wait can be laid to it. A wait for a CPU, and the
//! lateness of a timeout, count between two readings during which the CPU was stolen for at least half as long as the
//! recorded threads waited for it; of them no more than it was stolen. One finding a program and thread name.
//!
//! What a thread lost while it *ran* is in no stall: its running time holds it.
//!
//! False positives: a wait for a neighbour inside the machine that falls between the same two readings as a theft.

use std::collections::{BTreeMap, HashSet};

use wallprof_model::MonoNs;

use super::case::{Case, grouped};
use super::conclusion::{Conclusion, Problem};
use super::evidence::Evidence;
use super::limits::Toll;
use super::machine::Theft;
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

/// A CPU, and the place of one of its thefts.
type TheftKey = (u32, usize);

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let explaining = explaining(evidence, reported);
    let blamed_ns = |case: &Case| blamed_ns(case, evidence, &explaining);
    let is_stolen = |case: &&Case| blamed_ns(case) >= delay_ns(case).div_ceil(2);
    let names = grouped(delayed(evidence, reported).filter(is_stolen), |case| {
        (evidence.program(case), case.comm.clone())
    });
    names.into_values().filter_map(|cases| conclude(cases, blamed_ns, evidence)).collect()
}

/// Stalls that a CPU which is not run would make.
fn delayed<'e: 't, 't>(
    evidence: &'e Evidence,
    reported: &'t Reported,
) -> impl Iterator<Item = &'e Case> + use<'e, 't> {
    let unit_ns = evidence.unit_ns();
    evidence.cases().iter().filter(move |case| delay_ns(case) >= unit_ns && !reported.has(case))
}

/// The end of a stall, during which the thread or its timer wanted the CPU, ns.
fn delay_ns(case: &Case) -> u64 {
    case.runnable_ns.saturating_add(oversleep::lateness_ns(case)).min(case.late_ns())
}

/// The thefts during a delay, and how much of it lies in each, ns.
fn thefts<'e>(
    case: &Case,
    evidence: &'e Evidence,
) -> impl Iterator<Item = (TheftKey, &'e Theft, u64)> + use<'e> {
    let (from, to) = (MonoNs(case.end.0.saturating_sub(delay_ns(case))), case.end);
    let cpus = case.cpu.into_iter();
    cpus.flat_map(move |cpu| {
        let thefts = evidence.machine().thefts(cpu, from, to);
        thefts.map(move |(at, theft)| ((cpu, at), theft, theft.overlap_ns(from, to)))
    })
}

/// The thefts that took at least half as long as threads waited meanwhile.
fn explaining(evidence: &Evidence, reported: &Reported) -> HashSet<TheftKey> {
    let mut waited_ns: BTreeMap<TheftKey, (u64, u64)> = BTreeMap::new();
    for case in delayed(evidence, reported) {
        for (key, theft, ns) in thefts(case, evidence) {
            let (_, sum) = waited_ns.entry(key).or_insert((theft.ns, 0));
            *sum = sum.saturating_add(ns);
        }
    }
    let explaining = waited_ns.into_iter().filter(|(_, (stolen_ns, waited_ns))| *stolen_ns >= waited_ns / 2);
    explaining.map(|(key, _)| key).collect()
}

fn blamed_ns(case: &Case, evidence: &Evidence, explaining: &HashSet<TheftKey>) -> u64 {
    let blamed = thefts(case, evidence).filter(|(key, ..)| explaining.contains(key));
    blamed.fold(0u64, |sum, (_, theft, ns)| sum.saturating_add(ns.min(theft.ns)))
}

fn conclude<'e>(
    cases: Vec<&'e Case>,
    blamed_ns: impl Fn(&Case) -> u64,
    evidence: &Evidence,
) -> Option<Conclusion<'e>> {
    let toll = Toll::over(&cases, blamed_ns);
    let problem = Problem::heavy(cases, toll, evidence)?;
    let title = format!(
        "{} could not run{} because the hypervisor did not run this machine there (steal) {}.",
        wording::who(&problem.cases, evidence),
        Neighbours::of(&problem.cases).cpus(),
        wording::toll(&toll)
    );
    Some(problem.conclude(title, ADVICE))
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Play, at, case, steal, stranger};
    use super::*;
    use wallprof_model::profile::StallRecord;
    use wallprof_model::{Reason, StallReason};

    const MS: u64 = 1_000_000;

    /// CPU 1 is stolen for `stolen_ms` of the 100 ms from 1.1 s on, and of each fifth 100 ms after that.
    fn rules(stolen_ms: u64, stalls: &[StallRecord]) -> Vec<(String, u64, usize)> {
        let readings = (0..40u64).map(|tick| (1_000 + tick * 100, tick.div_ceil(5) * stolen_ms));
        let mut play = Play::new();
        play.counters.push(steal(1, &readings.collect::<Vec<_>>()));
        stalls.iter().for_each(|stall| play.stall(stall.clone()));
        let found = findings(&play.evidence());
        found.into_iter().map(|found| (found.rule, found.total_ns, found.stalls.len())).collect()
    }

    /// A wait for CPU 1 in the middle of the `nth` reading in which it was stolen.
    fn waiting(nth: u64, ns: u64) -> StallRecord {
        let stall = case(nth + 1, 1, StallReason::Preempted, ns);
        at(nth * 500 * MS + 10 * MS, StallRecord { ran_instead: vec![(stranger("build"), ns)], ..stall })
    }

    #[test]
    fn says_who_could_not_run_where_and_for_how_long() {
        let mut play = Play::new();
        play.counters.push(steal(1, &[(1_000, 0), (1_100, 60)]));
        play.stall(waiting(0, 50 * MS));
        let found = findings(&play.evidence());
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(
            found[0].title,
            "thread-1 of app could not run on CPU 1 because the hypervisor did not run this machine there (steal) for 50.0 ms."
        );
        assert_eq!((found[0].rule.as_str(), found[0].stalls.as_slice()), (RULE.name, &[1][..]));
    }

    #[test]
    fn no_more_is_laid_to_it_than_was_stolen() {
        let stalls: Vec<StallRecord> = (0..4).map(|nth| waiting(nth, 60 * MS)).collect();
        assert_eq!(rules(40, &stalls), [(RULE.name.to_owned(), 160 * MS, 4)]);
        assert_eq!(rules(29, &stalls), [("preempted".to_owned(), 240 * MS, 4)], "less than half of it");
        assert_eq!(rules(0, &stalls), [("preempted".to_owned(), 240 * MS, 4)]);
    }

    #[test]
    fn many_waits_beside_one_theft_are_not_its_doing() {
        let crowd = |thread: u32| StallRecord {
            id: thread.into(),
            thread: wallprof_model::ThreadKey(thread),
            ..waiting(0, 60 * MS)
        };
        let crowd: Vec<StallRecord> = (1..=4).map(crowd).collect();
        assert!(rules(60, &crowd).iter().all(|(rule, ..)| rule == "preempted"), "{:?}", rules(60, &crowd));
        assert_eq!(rules(60, &crowd[..1]), [(RULE.name.to_owned(), 60 * MS, 1)]);
    }

    #[test]
    fn other_cpus_other_times_and_waits_for_something_else_are_not_its_doing() {
        let elsewhere = StallRecord { cpu: Some(0), ..waiting(0, 60 * MS) };
        let later = at(150 * MS, waiting(0, 60 * MS));
        for stall in [elsewhere, later] {
            assert_eq!(rules(60, &[stall]), [("preempted".to_owned(), 60 * MS, 1)]);
        }
        let disk = at(10 * MS, case(1, 1, StallReason::Blocked(Reason::Disk), 60 * MS));
        assert_eq!(rules(60, &[disk]), [("disk-wait".to_owned(), 60 * MS, 1)]);
    }

    #[test]
    fn a_timer_that_came_late_is_its_doing_by_its_lateness() {
        let sleep = case(1, 1, StallReason::Blocked(Reason::Sleep), 50 * MS);
        let late = StallRecord { voluntary: false, asked_ns: Some(20 * MS), ..at(20 * MS, sleep) };
        let lateness_ns = 30 * MS;
        assert_eq!(rules(40, std::slice::from_ref(&late)), [(RULE.name.to_owned(), lateness_ns, 1)]);
        assert_eq!(rules(0, &[late]), [("oversleep".to_owned(), lateness_ns, 1)]);
    }
}
