// SPDX-License-Identifier: Apache-2.0
//! `busy-wait`: a thread waited by asking again and again, and gave its CPU to others in between (sched_yield): for a spin
//! lock, an answer, or work. No call waits for anything, so that no wakeup says what it waited for; the function that
//! asks is known.
//!
//! One finding a program and function, where a tenth of a thread's time was in sched_yield: on a CPU, by samples, and off
//! it, where others ran in between.
//!
//! False positives: threads that poll for their work so by design.

use wallprof_model::StallReason;

use super::case::Case;
use super::conclusion::Conclusion;
use super::evidence::{Evidence, Loss};
use super::limits::frequent_ns;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec};
use super::sums::{self, Place, Problem};
use super::wording;

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "busy-wait",
    topic: None,
    excludes: &[],
    cause: Cause::Program,
    evidence: EvidenceKind::Sums,
    find,
};

const ADVICE: &str = "Wait for a lock that may be held for longer than some microseconds in a way that needs no CPU, as a mutex \
    does: the holder gets the CPU, and recordings say who it is. Let a thread without work wait for a condition variable, or in \
    poll.";

fn find<'e>(evidence: &'e Evidence, _: &Reported) -> Vec<Conclusion<'e>> {
    let what = |loss: &Loss| matches!(loss, Loss::Yields).then(String::new);
    let counted =
        |_: &Place, _, ns, wall_ns| (ns >= frequent_ns(evidence) && sums::is_much(ns, wall_ns)).then_some(ns);
    let problems = sums::problems(evidence, what, counted);
    problems.into_iter().filter_map(|problem| conclude(problem, evidence)).collect()
}

fn conclude<'e>(problem: Problem<'_>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let title = format!(
        "{} asked again and again{} for some {} in all, with sched_yield in between.",
        problem.who(evidence),
        wording::place(problem.longest()?.site.as_ref()),
        problem.time(),
    );
    let is_one = |case: &Case| case.reason == StallReason::Preempted;
    Some(problem.conclude(title, ADVICE.to_owned(), evidence, is_one))
}

#[cfg(test)]
mod tests {
    use super::super::evidence::SumRow;
    use super::super::findings;
    use super::super::fixture::{Fixture, WALL_NS, stack};
    use super::*;
    use wallprof_model::ThreadKey;
    use wallprof_model::profile::Finding;

    fn row(thread: u32, function: &str, ns: u64) -> SumRow {
        let user = Some(stack(&["sched_yield", function, "serve"]));
        SumRow { thread: ThreadKey(thread), loss: Loss::Yields, user, kernel: None, ns, count: 50 }
    }

    fn found(rows: &[SumRow]) -> Vec<Finding> {
        let mut fixture = Fixture::new();
        fixture.sums = rows.to_vec();
        findings(&fixture.evidence())
    }

    #[test]
    fn function_that_asks_again_is_named() {
        let found = found(&[row(1, "Spin::lock", WALL_NS / 16), row(1, "Spin::lock", WALL_NS / 16)]);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(
            found[0].title,
            "thread-1 of app asked again and again in Spin::lock (called by serve) for some 1.25 s in all, with sched_yield \
             in between."
        );
        assert!(found[0].advice.contains("mutex"), "{}", found[0].advice);
        assert_eq!((found[0].rule.as_str(), found[0].count, found[0].stalls.len()), (RULE.name, 100, 0));
    }

    #[test]
    fn less_than_a_tenth_at_one_place_is_none() {
        assert_eq!(found(&[row(1, "Spin::lock", WALL_NS / 16), row(1, "take_task", WALL_NS / 16)]), []);
        assert_eq!(found(&[row(1, "Spin::lock", WALL_NS / 10 - 1)]), []);
    }

    #[test]
    fn threads_of_a_pool_are_one_finding() {
        let found = found(&[1, 2, 3].map(|thread| row(thread, "Spin::lock", WALL_NS / 5)));
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(found[0].threads, [1, 2, 3].map(ThreadKey));
    }
}
