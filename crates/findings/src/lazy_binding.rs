// SPDX-License-Identifier: Apache-2.0
//! `lazy-binding`: threads waited inside the dynamic linker, which bound a function at its first call.
//! Reports the function, the library that has it, and the caller.
//!
//! The linker looks a function up in the symbol tables of all libraries. The pages of those tables may not
//! have been touched for minutes. So a lookup that takes a microsecond at the start takes page faults later,
//! at a time that the program does not choose. One finding a program. Waits for locks inside the linker
//! count, too.
//!
//! False positives: the first seconds of a program, when it calls everything for the first time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wallprof_meaning::short_name;
use wallprof_model::StallReason;

use super::case::{Case, FirstCall, grouped};
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::Evidence;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::wording;

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "lazy-binding",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

const ADVICE: &str = "Start the program with LD_BIND_NOW=1, or link it and its libraries with `-Wl,-z,now`: all \
    functions are then bound before it begins.";

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let binds = |case: &&Case| case.first_call.is_some() && waits_itself(case) && !reported.has(case);
    let programs = grouped(evidence.cases().filter(binds), |case| evidence.program(case));
    programs.into_values().filter_map(|cases| conclude(cases, evidence)).collect()
}

/// A thread that lost its CPU there waits by chance.
fn waits_itself(case: &Case) -> bool {
    !case.voluntary && !matches!(case.reason, StallReason::Preempted | StallReason::Runnable)
}

fn conclude<'e>(cases: Vec<&'e Case>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let problem = Problem::unusual(Charged::over(cases, Case::without_run_queue_ns), evidence)?;
    let delays = problem.delays;
    let longest = longest_first(&problem.cases);
    let (first, others) = longest.split_first()?;
    let title = format!(
        "{} waited in the dynamic linker, which bound {}{} at its first call{} {}.",
        wording::who(&problem.cases, evidence),
        function(first),
        and_others(others.iter().filter(|call| call.symbol != first.symbol)),
        wording::place(first.site.as_ref()),
        wording::delays(&delays)
    );
    Some(problem.conclude(title, ADVICE))
}

/// The functions that were bound, the one that took longest first.
fn longest_first(cases: &[&Case]) -> Vec<Arc<FirstCall>> {
    let mut functions: BTreeMap<&Arc<FirstCall>, u64> = BTreeMap::new();
    for case in cases {
        if let Some(call) = &case.first_call {
            let sum = functions.entry(call).or_default();
            *sum = sum.saturating_add(case.without_run_queue_ns());
        }
    }
    let mut functions: Vec<_> = functions.into_iter().collect();
    functions.sort_by_key(|&(call, ns)| (std::cmp::Reverse(ns), call));
    functions.into_iter().map(|(call, _)| call.clone()).collect()
}

/// `sched_yield of libc.so.6`.
fn function(call: &FirstCall) -> String {
    let library = call.library.as_ref().map(|library| format!(" of {library}")).unwrap_or_default();
    match &call.symbol {
        Some(symbol) => format!("{}{library}", short_name(symbol)),
        None => "a function".into(),
    }
}

/// ` (and 3 other functions)`: distinguished by name alone.
fn and_others<'c>(others: impl Iterator<Item = &'c Arc<FirstCall>>) -> String {
    let names: BTreeSet<_> = others.map(|call| &call.symbol).collect();
    match names.len() {
        0 => String::new(),
        1 => " (and another function)".into(),
        count => format!(" (and {count} other functions)"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, fault, stack};
    use super::*;
    use wallprof_model::profile::{BoundAtFirstCall, StallRecord};

    const MS: u64 = 1_000_000;

    fn bound(id: u64, symbol: Option<&str>, ns: u64) -> StallRecord {
        let symbol = symbol.map(str::to_owned);
        let library = symbol.as_ref().map(|_| "/usr/lib/libc.so.6".into());
        StallRecord {
            user: Some(stack(&["_dl_fixup", "unknown", "rate_control", "on_timer"])),
            binding: Some(BoundAtFirstCall { depth: 2, symbol, library }),
            ..fault(id, 1, true, ns)
        }
    }

    #[test]
    fn names_the_function_its_library_and_its_caller() {
        let found = Fixture::only_finding((1..=6).map(|id| bound(id, Some("sched_yield"), 24 * MS)));
        assert_eq!(
            found.title,
            "thread-1 of app waited in the dynamic linker, which bound sched_yield of libc.so.6 at its first call in \
             rate_control (called by on_timer) 6 times, 144 ms in all, up to 24.0 ms."
        );
        assert_eq!((found.rule.as_str(), found.stalls.len()), (RULE.name, 6));
        assert!(found.advice.contains("LD_BIND_NOW=1") && found.advice.contains("-z,now"));
    }

    #[test]
    fn of_several_functions_the_most_expensive_is_named() {
        let names = [Some("poll"), Some("sched_yield"), Some("sched_yield"), None];
        let found = Fixture::only_finding(
            names.iter().zip(1..).map(|(name, id)| bound(id, *name, if id == 1 { 3 * MS } else { 2 * MS })),
        );
        assert!(found.title.contains("sched_yield of libc.so.6 (and 2 other functions)"), "{}", found.title);
        let unknown = Fixture::only_finding([bound(1, None, MS)]);
        assert!(
            unknown.title.contains("bound a function at its first call in rate_control"),
            "{}",
            unknown.title
        );
    }

    #[test]
    fn a_thread_that_lost_its_cpu_there_and_short_waits_are_none() {
        let preempted = |id| {
            let reason = StallReason::Preempted;
            StallRecord { reason, fault: None, runnable_ns: MS, blocked_ns: 0, ..bound(id, Some("poll"), MS) }
        };
        assert_eq!(Fixture::findings((1..=9).map(preempted)), []);
        assert_eq!(Fixture::findings((1..=4).map(|id| bound(id, Some("poll"), MS / 5))), []);
        let late = StallRecord { runnable_ns: 9 * MS, ..bound(1, Some("poll"), 9 * MS + MS / 2) };
        assert!(Fixture::findings([late]).iter().all(|found| found.rule != RULE.name));
    }
}
