//! Rules: what a recording means. Each rule is a pure function over the [`Evidence`] and draws conclusions:
//! who was late, because of whom, and what to do about it.
//!
//! One cause is told once: a wait for a lock that is part of a deadlock or of a chain of waits, or that happened
//! inside the allocator, is not told again as a plain wait for a lock. `docs/findings.md` says for users what
//! each rule says, from which limits on, and when it is wrong.

mod allocator_lock;
mod case;
mod compaction;
mod conclusion;
mod cpu_throttling;
mod deadlock;
mod disk_wait;
mod evidence;
#[cfg(test)]
mod fixture;
mod guard_shared;
mod interrupted;
mod irq_time;
mod kernel_lock;
mod kernel_work;
mod lazy_binding;
mod limits;
mod lock;
mod lock_wait;
mod machine;
mod major_fault;
mod memory_reclaim;
mod mmap_lock;
mod neighbours;
mod oversleep;
mod preempted;
mod run_queue;
mod steal;
mod tlb_shootdown;
mod wake_chain;
mod wording;

use std::collections::HashSet;

use wallprof_model::profile::Finding;

pub use evidence::{Collector, Evidence, Surroundings};
pub use machine::reads_counter;

use conclusion::Conclusion;

/// The names of all rules, in the order of `docs/findings.md`.
pub const RULES: [&str; 19] = [
    deadlock::RULE,
    lazy_binding::RULE,
    memory_reclaim::RULE,
    compaction::RULE,
    mmap_lock::RULE,
    kernel_lock::RULE,
    wake_chain::RULE,
    allocator_lock::RULE,
    lock_wait::RULE,
    major_fault::RULE,
    cpu_throttling::RULE,
    steal::RULE,
    preempted::RULE,
    run_queue::RULE,
    disk_wait::RULE,
    oversleep::RULE,
    tlb_shootdown::RULE,
    irq_time::RULE,
    guard_shared::RULE,
];

/// A rule that leaves out the stalls that others have told.
type Rule = for<'e> fn(&'e Evidence, &HashSet<u64>) -> Vec<Conclusion<'e>>;

/// The more telling rules first: what one has told, the later ones leave out.
const TELLING: [Rule; 9] = [
    lazy_binding::find,
    memory_reclaim::find,
    compaction::find,
    mmap_lock::find,
    kernel_lock::find,
    wake_chain::find,
    allocator_lock::find,
    lock_wait::find,
    major_fault::find,
];

/// What the rules find: deadlocks first, then by the time they cost. A run without a problem has none.
pub fn findings(evidence: &Evidence) -> Vec<Finding> {
    let mut conclusions = deadlock::find(evidence);
    let mut told = told_by(&conclusions);
    for rule in TELLING {
        let more = rule(evidence, &told);
        told.extend(told_by(&more));
        conclusions.extend(more);
    }
    let throttled = cpu_throttling::find(evidence);
    let mut held_back = told_by(&throttled);
    conclusions.extend(throttled);
    let stolen = steal::find(evidence, &held_back);
    held_back.extend(told_by(&stolen));
    conclusions.extend(stolen);
    conclusions.extend(preempted::find(evidence, &held_back));
    conclusions.extend(run_queue::find(evidence, &held_back));
    conclusions.extend(disk_wait::find(evidence, &told));
    conclusions.extend(oversleep::find(evidence, &held_back));
    let shootdowns = tlb_shootdown::find(evidence);
    conclusions.extend(irq_time::find(evidence, &tlb_shootdown::victims(&shootdowns)));
    conclusions.extend(shootdowns);
    conclusions.extend(guard_shared::find(evidence));
    let mut findings: Vec<Finding> = conclusions.into_iter().map(Conclusion::into_finding).collect();
    findings.sort_by(|a, b| rank(a).cmp(&rank(b)));
    findings
}

fn told_by(conclusions: &[Conclusion<'_>]) -> HashSet<u64> {
    conclusions.iter().flat_map(|conclusion| conclusion.cases.iter().map(|case| case.id)).collect()
}

fn rank(finding: &Finding) -> impl Ord + use<'_> {
    (finding.rule != deadlock::RULE, std::cmp::Reverse(finding.total_ns), &finding.rule, &finding.title)
}

#[cfg(test)]
mod tests {
    use super::fixture::{Play, lock_case};
    use super::*;

    #[test]
    fn a_run_without_stalls_has_no_findings() {
        assert_eq!(findings(&Play::new().evidence()), []);
    }

    #[test]
    fn a_deadlock_comes_first_and_its_waits_are_told_once() {
        let mut play = Play::new();
        for id in 1..10 {
            play.stall(lock_case(id, 1, 3, 50_000_000));
        }
        play.stall(fixture::open(lock_case(20, 4, 5, 2_000_000)));
        play.stall(fixture::open(lock_case(21, 5, 4, 2_000_000)));
        let rules: Vec<String> = findings(&play.evidence()).into_iter().map(|found| found.rule).collect();
        assert_eq!(rules, ["deadlock", "lock-wait"]);
    }
}
