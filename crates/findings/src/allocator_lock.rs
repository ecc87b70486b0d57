// SPDX-License-Identifier: Apache-2.0
//! `allocator-lock`: threads wait for a lock inside malloc or free. This is a plain wait for a lock, but its
//! remedy is another one, and the source of the program does not show the lock.
//!
//! One finding a process.
//!
//! False positives: a function of the program itself that has the name of an allocator's function.

use super::case::{Case, across_processes, grouped, mostly};
use super::conclusion::Conclusion;
use super::evidence::{Evidence, is_allocator_symbol};
use super::lock;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "allocator-lock",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

const ADVICE: &str = "Do not allocate on this path: reuse buffers or reserve ahead; or give the threads arenas of \
    their own (another allocator, or glibc's MALLOC_ARENA_MAX and malloc_trim where they are used).";

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let waits = lock::waits(evidence, reported).filter(|case| case.in_allocator);
    let processes = grouped(waits, |case| case.pid);
    let is_problem = |cases: &[&'e Case]| conclude(cases.to_vec(), evidence).is_some();
    let programs = across_processes(processes.into_values(), |cases| evidence.program(cases[0]), is_problem);
    programs.into_iter().filter_map(|cases| conclude(cases, evidence)).collect()
}

fn conclude<'e>(cases: Vec<&'e Case>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let site = mostly(&cases, |case| case.site.clone());
    let through = site.as_ref().and_then(|site| site.through.as_deref());
    // Functions of a stripped allocator have no names: then that is the mutex's.
    let what = match through.filter(|through| is_allocator_symbol(through)) {
        Some(through) => format!("the allocator's lock (through {through})"),
        None => "the allocator's lock".to_owned(),
    };
    lock::conclude(cases, evidence, &what, |_, _| ADVICE.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, lock_case, stack};
    use super::*;
    use wallprof_model::profile::{LockRecord, StallRecord};

    fn in_malloc(id: u64) -> StallRecord {
        let user =
            stack(&["__lll_lock_wait_private", "malloc", "operator new(unsigned long)", "checksum_error"]);
        let lock = LockRecord { address: 0x1000 + id, owner: None };
        StallRecord { user: Some(user), lock: Some(lock), ..lock_case(id, 1, 2, 870_000) }
    }

    #[test]
    fn names_the_caller_of_malloc_whatever_the_arena() {
        let found = Fixture::only_finding((1..=5).map(in_malloc));
        assert_eq!(found.rule, RULE.name);
        assert!(
            found.title.starts_with(
                "thread-1 of app waited for the allocator's lock (through malloc) in checksum_error 5 times"
            ),
            "{}",
            found.title
        );
        assert!(found.title.contains("thread-2 released it"), "{}", found.title);
    }

    #[test]
    fn a_short_wait_now_and_then_is_none() {
        assert_eq!(Fixture::findings((1..=4).map(in_malloc)), []);
    }
}
