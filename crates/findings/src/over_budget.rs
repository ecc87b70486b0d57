// SPDX-License-Identifier: Apache-2.0
//! `over-budget`: spans that lasted longer than the user said that they may (`--budget`). Reports how often, by
//! how much, and in which state they were for the longest time, with the place and culprit of the waits there.
//!
//! Each such span counts: the limit is the user's. Who marks no spans of the kind has no finding.
//!
//! False positives: a span that is meant to wait, such as one around a poll.

use std::collections::{BTreeMap, HashMap};

use wallprof_analysis::spans::{OverBudget, words_of_state};
use wallprof_model::{MonoNs, SpanState, StallReason, State, ThreadKey};

use super::case::Case;
use super::conclusion::{Conclusion, Problem};
use super::evidence::Evidence;
use super::limits::Delays;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec};
use super::wording;

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "over-budget",
    topic: None,
    excludes: &[],
    cause: Cause::Program,
    evidence: EvidenceKind::StallsOrSpans,
    find,
};

fn find<'e>(evidence: &'e Evidence, _: &Reported) -> Vec<Conclusion<'e>> {
    evidence.over_budget().iter().map(|over| conclude(over, evidence)).collect()
}

fn conclude<'e>(over: &OverBudget, evidence: &'e Evidence) -> Conclusion<'e> {
    let mut by_thread: BTreeMap<ThreadKey, u64> = BTreeMap::new();
    for (thread, start, end) in &over.spans {
        let excess_ns = end.0.saturating_sub(start.0).saturating_sub(over.budget_ns);
        let sum = by_thread.entry(*thread).or_default();
        *sum = sum.saturating_add(excess_ns);
    }
    let cases = cases_in(over, evidence);
    let delays = Delays {
        count: over.count,
        total_ns: over.excess_ns,
        max_ns: over.longest_ns.saturating_sub(over.budget_ns),
    };
    let title = format!(
        "{} of {} `{}` spans of {} took longer than their budget of {}, by {} in all and up to {}{}.",
        over.count,
        over.all.max(over.count),
        over.kind,
        wording::shown(&over.process),
        wording::time(over.budget_ns),
        wording::time(delays.total_ns),
        wording::time(delays.max_ns),
        mostly(over, &cases),
    );
    let advice = format!("`wallprof tail --kind '{}'` takes the slow ones apart.", over.kind);
    Problem::of_threads(by_thread, delays).conclude(title, advice).with_stalls(cases)
}

/// `: 86 % of their time waiting for a lock in take_registry_lock held by housekeeper`.
fn mostly(over: &OverBudget, cases: &[&Case]) -> String {
    let most = SpanState::all().into_iter().max_by_key(|state| over.states.0[state.index()]);
    let Some(state) = most.filter(|state| over.states.0[state.index()] > 0) else { return String::new() };
    let share = wording::percent(over.states.0[state.index()], over.states.total_ns());
    let words = words_of_state(state);
    format!(": {share} of their time {words}{}", place_of(state, cases))
}

/// Where the longest of these waits were, together.
fn place_of(state: SpanState, cases: &[&Case]) -> String {
    let SpanState::Of(State::Blocked(reason)) = state else { return String::new() };
    let mut places: BTreeMap<String, u64> = BTreeMap::new();
    for case in cases.iter().filter(|case| case.reason == StallReason::Blocked(reason)) {
        let held = case.waited_for().map(|party| format!(" held by {}", wording::other(party, case)));
        let held = held.filter(|_| case.is_for_a_lock()).unwrap_or_default();
        let meaning = case.meaning.as_ref().map(|meaning| format!(" ({})", meaning.name)).unwrap_or_default();
        let place = format!("{meaning}{}{held}", wording::place(case.site.as_ref()));
        let sum = places.entry(place).or_default();
        *sum = sum.saturating_add(case.duration_ns());
    }
    let most = places.into_iter().max_by_key(|(place, ns)| (*ns, std::cmp::Reverse(place.clone())));
    most.map(|(place, _)| place).unwrap_or_default()
}

/// The stalls in the spans.
fn cases_in<'e>(over: &OverBudget, evidence: &'e Evidence) -> Vec<&'e Case> {
    let mut spans: HashMap<ThreadKey, Vec<(MonoNs, MonoNs)>> = HashMap::new();
    for (thread, start, end) in &over.spans {
        spans.entry(*thread).or_default().push((*start, *end));
    }
    for of_thread in spans.values_mut() {
        of_thread.sort_unstable();
        // From here on each end is the latest so far: nested spans end before the one around them.
        let mut latest = MonoNs(0);
        for (_, end) in of_thread {
            latest = latest.max(*end);
            *end = latest;
        }
    }
    let is_in = |case: &&Case| {
        spans.get(&case.thread).is_some_and(|spans| {
            let first = spans.partition_point(|(_, latest)| *latest <= case.start);
            spans.get(first).is_some_and(|(start, _)| *start < case.end)
        })
    };
    evidence.all_cases().iter().filter(is_in).collect()
}

#[cfg(test)]
mod tests {
    use wallprof_model::profile::Finding;
    use wallprof_model::{Reason, SpanStates};

    use super::super::findings;
    use super::super::fixture::{Fixture, at, case, lock_case};
    use super::*;

    const US: u64 = 1_000;
    /// Of the fixture's clock.
    const START: u64 = 1_000_000_000;

    fn over(state: SpanState) -> OverBudget {
        let mut states = SpanStates::default();
        states.0[SpanState::Cpu.index()] = 100 * US;
        states.0[state.index()] += 1_500 * US;
        OverBudget {
            kind: "order".into(),
            process: "server".into(),
            budget_ns: 700 * US,
            all: 4_000,
            count: 2,
            kept: 2,
            excess_ns: 200 * US,
            longest_ns: 850 * US,
            states,
            spans: vec![
                (ThreadKey(1), MonoNs(START), MonoNs(START + 850 * US)),
                (ThreadKey(1), MonoNs(START + 2_000 * US), MonoNs(START + 2_750 * US)),
            ],
        }
    }

    fn found(over: OverBudget) -> Finding {
        let mut fixture = Fixture::new();
        fixture.stall(at(20 * US, lock_case(1, 1, 2, 790 * US)));
        fixture.stall(at(2_040 * US, lock_case(2, 1, 2, 700 * US)));
        fixture.stall(at(1_000 * US, case(3, 1, StallReason::Blocked(Reason::Lock), 900 * US)));
        fixture.stall(at(2_100 * US, lock_case(4, 3, 2, 700 * US)));
        fixture.over_budget.push(over);
        let found = findings(&fixture.evidence());
        found.into_iter().find(|found| found.rule == RULE.name).expect("a finding")
    }

    #[test]
    fn largest_state_is_said_with_its_place_and_holder() {
        let found = found(over(SpanState::Of(State::Blocked(Reason::Lock))));
        let words = "2 of 4000 `order` spans of server took longer than their budget of 700 µs, by 200 µs in all \
                     and up to 150 µs: 94 % of their time waiting for a lock in ";
        assert!(found.title.starts_with(words) && found.title.contains(" held by "), "{}", found.title);
        assert_eq!((found.count, found.total_ns, found.max_ns), (2, 200 * US, 150 * US));
        assert_eq!(found.stalls, [1, 2], "those in the spans of their thread");
    }

    /// Of the second one no stall is kept.
    #[test]
    fn excess_is_that_of_each_thread() {
        let spans = |over: OverBudget| OverBudget {
            excess_ns: 2_400 * US,
            spans: (1..=3)
                .map(|thread| {
                    (ThreadKey(thread), MonoNs(START), MonoNs(START + u64::from(thread) * 750 * US))
                })
                .collect(),
            ..over
        };
        let found = found(spans(over(SpanState::Of(State::Blocked(Reason::Lock)))));
        assert_eq!((found.threads.len(), found.stalls), (3, vec![1, 4]));
        assert_eq!((found.most_late, found.most_late_ns), (vec![ThreadKey(2), ThreadKey(3)], 2_350 * US));
    }

    #[test]
    fn running_time_has_no_place() {
        let found = found(over(SpanState::Cpu));
        assert!(found.title.ends_with("up to 150 µs: 100 % of their time running."), "{}", found.title);
    }
}
