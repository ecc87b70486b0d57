//! Rules: what a recording means. Each rule is a pure function over the [`Evidence`]. It concludes which
//! threads were late, what caused that, and what to do about it.
//!
//! One cause is reported once. A wait for a lock that is part of a deadlock or of a chain of waits, or that
//! lies inside the allocator, is not reported again as a plain wait for a lock. `docs/findings.md` describes
//! for users what each rule reports, its limits, and when it is wrong.

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
mod kernel_delay;
mod kernel_lock;
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
mod spec;
mod steal;
mod tlb_shootdown;
mod wake_chain;
mod wording;

use wallprof_model::profile::Finding;

pub use evidence::{Collector, Evidence, Surroundings};
pub use machine::reads_counter;
pub use spec::{Cause, EvidenceKind, RuleSpec};

use conclusion::Conclusion;
use spec::Reported;

/// Every rule, in the order in which they run and in which `docs/findings.md` describes them. A rule leaves
/// out stalls and threads that earlier rules reported for a topic of its `excludes`. So the more specific
/// rule comes first.
pub static RULES: &[RuleSpec] = &[
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

/// The rule of this name.
pub fn rule(name: &str) -> Option<&'static RuleSpec> {
    RULES.iter().find(|rule| rule.name == name)
}

/// The findings of a recording: deadlocks first, then by their cost. A run without a problem has none.
pub fn findings(evidence: &Evidence) -> Vec<Finding> {
    let mut conclusions: Vec<(&RuleSpec, Conclusion<'_>)> = Vec::new();
    for rule in RULES {
        let reported = Reported::of(&conclusions, rule.excludes);
        let found = (rule.find)(evidence, &reported);
        conclusions.extend(found.into_iter().map(|conclusion| (rule, conclusion)));
    }
    let findings = conclusions.into_iter().map(|(rule, conclusion)| conclusion.into_finding(rule.name));
    let mut findings: Vec<Finding> = findings.collect();
    findings.sort_by(|a, b| rank(a).cmp(&rank(b)));
    findings
}

fn rank(finding: &Finding) -> impl Ord + use<'_> {
    (finding.rule != deadlock::RULE.name, std::cmp::Reverse(finding.total_ns), &finding.rule, &finding.title)
}

#[cfg(test)]
mod tests {
    use super::fixture::{Fixture, lock_case};
    use super::*;

    const PAGE: &str = include_str!("../../../../docs/findings.md");

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
