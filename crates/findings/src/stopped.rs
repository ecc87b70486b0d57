// SPDX-License-Identifier: Apache-2.0
//! `stopped`: threads were stopped from outside: by a signal (`SIGSTOP`), by a tracer, or by the freezer of
//! their control group.
//!
//! One finding a program and thread that let them continue, where the stops took a hundredth of the threads' time,
//! or one took 20 ms.
//!
//! False positives: a program that a person stopped on purpose, in a debugger or with Ctrl-Z.

use wallprof_model::{Reason, StallReason};

use super::case::{Case, Party, grouped};
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::Evidence;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::wording;

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "stopped",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Machine,
    evidence: EvidenceKind::Stalls,
    find,
};

const ADVICE: &str = "Find out why that program stops this one: profilers and tracers stop threads for each \
    sample or event, cpulimit and job control send SIGSTOP, container engines and kubelet freeze control groups.";

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let is_stop = |case: &&Case| case.reason == StallReason::Blocked(Reason::Stopped) && !reported.has(case);
    let stops = grouped(evidence.cases().filter(is_stop), |case| {
        let by = case.waker.as_ref().and_then(|waker| waker.by.as_ref());
        // One thread of a program or another: its name is what a user knows.
        (evidence.program(case), by.map(|by| Party { key: None, tid: 0, ..by.clone() }))
    });
    stops.into_iter().filter_map(|((_, by), cases)| conclude(cases, by, evidence)).collect()
}

fn conclude<'e>(cases: Vec<&'e Case>, by: Option<Party>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let problem = Problem::heavy(Charged::over(cases, Case::without_run_queue_ns), evidence)?;
    let delays = problem.delays;
    let (were, them) = if problem.threads.len() == 1 { ("was", "it") } else { ("were", "them") };
    let continued = match by {
        Some(by) => format!(": {} let {them} continue", wording::party(&by, problem.cases[0].pid)),
        None => String::new(),
    };
    let title = format!(
        "{} {were} stopped from outside (a signal, a tracer or a freezer) {}{continued}.",
        wording::who(&problem.cases, evidence),
        wording::delays(&delays)
    );
    Some(problem.conclude(title, ADVICE))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, case, untracked};
    use super::*;
    use wallprof_model::profile::{StallRecord, WakerRecord};

    const MS: u64 = 1_000_000;

    fn stop(id: u64, by: Option<&str>) -> StallRecord {
        let waker = by.map(|by| WakerRecord { thread: Some(untracked(by)), user: None, kernel: None });
        StallRecord { waker, ..case(id, 1, StallReason::Blocked(Reason::Stopped), 8 * MS) }
    }

    #[test]
    fn the_program_that_let_it_continue_is_named() {
        let found = Fixture::only_finding((1..=20).map(|id| stop(id, Some("cpulimit"))));
        assert_eq!(found.rule, RULE.name);
        assert_eq!(
            found.title,
            "thread-1 of app was stopped from outside (a signal, a tracer or a freezer) 20 times, 160 ms in all, \
             up to 8.00 ms: cpulimit 900 let it continue."
        );
    }

    #[test]
    fn few_stops_and_other_waits_are_none() {
        assert_eq!(Fixture::findings((1..=5).map(|id| stop(id, Some("cpulimit")))), []);
        let wait = |id| case(id, 1, StallReason::Blocked(Reason::Wait), 8 * MS);
        let rules: Vec<String> =
            Fixture::findings((1..=20).map(wait)).into_iter().map(|found| found.rule).collect();
        assert!(!rules.contains(&RULE.name.to_owned()), "{rules:?}");
    }
}
