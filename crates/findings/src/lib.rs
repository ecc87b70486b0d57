// SPDX-License-Identifier: Apache-2.0
//! Rules: what a recording means. Each rule is a pure function over the [`Evidence`]. It concludes which
//! threads were late, what caused that, and what to do about it.
//!
//! One cause is reported once. A wait for a lock that is part of a deadlock or of a chain of waits, or that
//! lies inside the allocator, is not reported again as a plain wait for a lock. `docs/findings.md` describes
//! for users what each rule reports, its limits, and when it is wrong.

mod accept_queue;
mod allocator_lock;
mod barrier_wait;
mod blocked_loop;
mod bottleneck;
mod busy_wait;
mod callers;
mod case;
mod cause;
mod compaction;
mod conclusion;
mod cpu_saturated;
mod cpu_throttling;
mod deadlock;
mod disk_limit;
mod disk_wait;
mod dispatch;
mod dropped_packets;
mod evidence;
#[cfg(test)]
pub(crate) mod fixture;
mod grace_period;
mod guard_shared;
mod holder_blocked;
mod holder_preempted;
mod holding;
mod interrupted;
mod irq_time;
mod kernel_delay;
mod kernel_lock;
mod known;
mod lazy_binding;
mod left_out;
mod limits;
mod lock;
mod lock_convoy;
mod lock_wait;
mod machine;
mod major_fault;
mod memory_group;
mod memory_reclaim;
mod mmap_lock;
mod neighbours;
mod network_wait;
mod other_end;
mod over_budget;
mod oversleep;
mod page_faults;
mod pipe_wait;
mod pool_exhausted;
mod preempted;
mod priority_inversion;
mod program_wait;
mod relay;
mod run_queue;
mod safepoint;
mod short_waits;
mod slow_fault;
mod spec;
mod steal;
mod stopped;
mod sums;
mod tlb_shootdown;
mod upstream;
mod wake_chain;
mod wording;

use std::cmp::Reverse;

use wallprof_model::profile::Finding;

pub use dropped_packets::times_of_drops;
pub use evidence::{Collector, Evidence, Loss, SumRow, Surroundings};
pub use machine::reads_counter;
pub use short_waits::{is_enough_lost, reads_wait};
pub use spec::{Cause, EvidenceKind, RuleSpec};
pub use sums::is_much;

use conclusion::Conclusion;
use spec::Reported;

/// Every rule, in the order in which they run and in which `docs/findings.md` describes them. A rule leaves
/// out stalls and threads that earlier rules reported for a topic of its `excludes`. So the more specific
/// rule comes first.
pub static RULES: &[RuleSpec] = &[
    deadlock::RULE,
    stopped::RULE,
    lazy_binding::RULE,
    memory_reclaim::RULE,
    compaction::RULE,
    grace_period::RULE,
    program_wait::RULE,
    mmap_lock::RULE,
    kernel_lock::RULE,
    barrier_wait::RULE,
    wake_chain::RULE,
    allocator_lock::RULE,
    holder_blocked::RULE,
    priority_inversion::RULE,
    holder_preempted::RULE,
    lock_convoy::RULE,
    lock_wait::RULE,
    blocked_loop::RULE,
    pool_exhausted::RULE,
    accept_queue::RULE,
    dropped_packets::RULE,
    major_fault::RULE,
    slow_fault::RULE,
    page_faults::RULE,
    cpu_throttling::RULE,
    steal::RULE,
    cpu_saturated::RULE,
    preempted::RULE,
    run_queue::RULE,
    disk_wait::RULE,
    short_waits::RULE,
    busy_wait::RULE,
    network_wait::RULE,
    pipe_wait::RULE,
    oversleep::RULE,
    tlb_shootdown::RULE,
    irq_time::RULE,
    guard_shared::RULE,
    bottleneck::RULE,
    over_budget::RULE,
];

/// Whether the rules read a counter of a process.
pub fn reads_process_counter(name: &str) -> bool {
    wallprof_analysis::receive::reads_counter(name)
        || memory_group::reads_counter(name)
        || disk_limit::reads_counter(name)
        || upstream::reads_counter(name)
        || accept_queue::reads_counter(name)
}

/// The rule of this name.
pub fn rule(name: &str) -> Option<&'static RuleSpec> {
    RULES.iter().find(|rule| rule.name == name)
}

/// The findings of a recording: deadlocks first, then by the share of the late threads' time that they cost.
/// A run without a problem has none.
pub fn findings(evidence: &Evidence) -> Vec<Finding> {
    let mut conclusions: Vec<(&RuleSpec, Conclusion<'_>)> = Vec::new();
    for rule in RULES {
        let reported = Reported::of(&conclusions, rule.excludes);
        let found = (rule.find)(evidence, &reported);
        conclusions.extend(found.into_iter().map(|conclusion| (rule, conclusion)));
    }
    let findings = conclusions.into_iter().map(|(rule, conclusion)| conclusion.into_finding(rule, evidence));
    let mut findings: Vec<Finding> = findings.collect();
    findings.sort_by(|a, b| rank(a, evidence).cmp(&rank(b, evidence)));
    findings
}

fn rank<'f>(finding: &'f Finding, evidence: &Evidence) -> impl Ord + use<'f> {
    let share = share(finding, evidence);
    (finding.rule != deadlock::RULE.name, Reverse((share, finding.total_ns)), &finding.rule, &finding.title)
}

/// The share of the wall time that a finding cost the threads that were late by it, in millionths. Threads that lived for less
/// than the recording, all together, share its length: a command of 20 ms is no more than that.
fn share(finding: &Finding, evidence: &Evidence) -> u128 {
    let wall_ns = limits::wall_ns(evidence, &finding.most_late).max(evidence.duration_ns()).max(1);
    u128::from(finding.most_late_ns) * 1_000_000 / u128::from(wall_ns)
}

#[cfg(test)]
mod tests {
    use super::fixture::{Fixture, lock_case};
    use super::*;
    use wallprof_model::profile::StallRecord;
    use wallprof_model::{Reason, StallReason};

    const PAGE: &str = include_str!("../../../docs/findings.md");

    #[test]
    fn the_page_has_a_section_for_each_rule_in_their_order() {
        let headings: Vec<&str> = PAGE.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        let names: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
        assert_eq!(headings, names);
    }

    #[test]
    fn a_rule_excludes_topics_of_earlier_rules_only() {
        for (at, rule) in RULES.iter().enumerate() {
            for topic in rule.excludes {
                let is_earlier = RULES[..at].iter().any(|earlier| earlier.topic == Some(*topic));
                assert!(is_earlier, "{} excludes {topic:?}, which no earlier rule has", rule.name);
            }
            assert!(
                super::rule(rule.name).is_some_and(|found| std::ptr::eq(found, rule)),
                "two {}",
                rule.name
            );
        }
    }

    #[test]
    fn run_without_stalls_has_no_findings() {
        assert_eq!(findings(&Fixture::new().evidence()), []);
    }

    #[test]
    fn findings_are_ordered_by_the_share_of_the_late_threads_time() {
        let disk = |id: u64, thread: u32| {
            let reason = StallReason::Blocked(Reason::Disk);
            StallRecord { comm: "writer".into(), ..fixture::case(id, thread, reason, 400_000_000) }
        };
        let mut fixture = Fixture::new();
        (1..=6).for_each(|id| fixture.stall(disk(id, id as u32 % 3 + 1)));
        fixture.stall(lock_case(20, 9, 8, 1_000_000_000));
        let found = findings(&fixture.evidence());
        let order: Vec<(&str, u64)> = found.iter().map(|found| (&*found.rule, found.total_ns)).collect();
        assert_eq!(order, [("lock-wait", 1_000_000_000), ("disk-wait", 2_400_000_000)], "10 % and 8 %");
    }

    #[test]
    fn a_thread_that_lived_briefly_does_not_outrank_the_whole_recording() {
        let mut fixture = Fixture::new();
        fixture.threads[8].ledger.wall_ns = 20_000_000;
        fixture.stall(lock_case(1, 9, 8, 18_000_000));
        fixture.stall(fixture::case(2, 1, StallReason::Blocked(Reason::Disk), 500_000_000));
        let rules: Vec<String> = findings(&fixture.evidence()).into_iter().map(|found| found.rule).collect();
        assert_eq!(rules, ["disk-wait", "lock-wait"]);
    }

    #[test]
    fn deadlock_comes_first_and_its_waits_are_reported_once() {
        let mut fixture = Fixture::new();
        for id in 1..10 {
            fixture.stall(lock_case(id, 1, 3, 50_000_000));
        }
        fixture.stall(fixture::open(lock_case(20, 4, 5, 2_000_000)));
        fixture.stall(fixture::open(lock_case(21, 5, 4, 2_000_000)));
        let rules: Vec<String> = findings(&fixture.evidence()).into_iter().map(|found| found.rule).collect();
        assert_eq!(rules, ["deadlock", "lock-wait"]);
    }
}
