// SPDX-License-Identifier: Apache-2.0
//! The threads that had the CPU while a thread waited for it, the CPU, and the finding about that: what
//! `preempted` and `run-queue` share.

use std::collections::BTreeSet;
use std::sync::Arc;

use wallprof_analysis::tally::Tally;

use super::case::{Case, Party, grouped};
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::Evidence;
use super::limits::{is_share, worth_naming};
use super::wording;

/// Neighbours named in a title, and CPUs.
const MOST_NAMES: usize = 2;
const MOST_CPUS: usize = 4;

const NOBODY_ADVICE: &str = "Nothing inside this machine had the CPU. Look for a CPU quota (cpu.max). On a virtual \
    machine, give it CPUs of its own (dedicated or pinned ones), or move it to a host with less load; on another \
    one, forbid deep idle states (cpu_dma_latency).";

const RUNTIME_IS_USED_UP: &str = ": no other thread had the CPU. It has a deadline (SCHED_DEADLINE), so it had used up its \
    runtime and waited for its next period";
const RUNTIME_ADVICE: &str = "Give the thread more runtime in each period (sched_setattr, `chrt --deadline`), or let it do \
    less in one.";

/// The advice about a container that took the CPU from others.
pub(super) fn limit_container(container: &str) -> String {
    format!(
        "Limit the CPU time of container {container} (`--cpus`, cpu.max), or give each container CPUs of its own \
         (`--cpuset-cpus`)."
    )
}

/// A rule about waiting for a CPU.
pub(super) struct CpuWait {
    /// `lost the CPU` …
    pub what: &'static str,
    /// `while running` …
    pub when: &'static str,
    /// What it means that no thread had the CPU.
    pub nobody: &'static str,
    /// The part of a case that was such a wait.
    pub ns: fn(&Case) -> u64,
}

impl CpuWait {
    /// One finding a container, program and thread name.
    pub fn find<'e>(
        &self,
        cases: impl Iterator<Item = &'e Case>,
        evidence: &Evidence,
    ) -> Vec<Conclusion<'e>> {
        let names = grouped(cases, |case| {
            let container = evidence.container(case.thread).cloned();
            (container, evidence.program(case), case.comm.clone(), self.is_unexplained(case, evidence))
        });
        names.into_values().filter_map(|cases| self.conclude(cases, evidence)).collect()
    }

    /// Whether no thread had the CPU.
    fn is_unexplained(&self, case: &Case, evidence: &Evidence) -> bool {
        evidence.had_no_thread(case, (self.ns)(case))
    }

    fn conclude<'e>(&self, cases: Vec<&'e Case>, evidence: &Evidence) -> Option<Conclusion<'e>> {
        let problem = Problem::heavy(Charged::over(cases, self.ns), evidence)?;
        let delays = problem.delays;
        let neighbours = Neighbours::of(&problem.cases, evidence);
        let is_unexplained = problem.cases.iter().all(|case| self.is_unexplained(case, evidence));
        let has_deadline = is_unexplained && problem.cases.iter().all(|case| case.has_deadline());
        let (why, advice) = match is_unexplained {
            _ if has_deadline => (RUNTIME_IS_USED_UP.to_owned(), RUNTIME_ADVICE.to_owned()),
            true => (
                format!(": no thread of this machine had the CPU, so {}", self.nobody),
                NOBODY_ADVICE.to_owned(),
            ),
            false => (neighbours.names(delays.total_ns), neighbours.advice()),
        };
        let title = format!(
            "{} {}{} {} {}{why}.",
            wording::who(&problem.cases, evidence),
            self.what,
            neighbours.cpus(),
            self.when,
            wording::delays(&delays),
        );
        Some(problem.conclude(title, advice))
    }
}

/// The threads that ran instead, over some stalls.
pub(super) struct Neighbours {
    /// Names by ns.
    ran: Tally<(String, Whose)>,
    cpus: BTreeSet<u32>,
}

/// What a thread that ran instead is to the one that waited.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Whose {
    SameProcess,
    /// Another process of the same container.
    SameContainer,
    /// Of another container, which is known.
    Container(Arc<str>),
    /// Of another process outside of containers, or of a thread that is not recorded.
    Other,
}

impl Whose {
    fn of(party: &Party, waiter: &Case, evidence: &Evidence) -> Self {
        let container = party.key.and_then(|key| evidence.container(key));
        match container {
            _ if party.pid == waiter.pid => Whose::SameProcess,
            Some(_) if container == evidence.container(waiter.thread) => Whose::SameContainer,
            Some(container) => Whose::Container(container.clone()),
            None => Whose::Other,
        }
    }

    /// The name of such a thread; `is_own`: beside one of the process itself that has the same name.
    fn name(&self, name: &str, is_own: bool) -> String {
        match self {
            Whose::SameContainer => format!("{name} of the same container"),
            Whose::Container(container) => format!("{name} of container {container}"),
            Whose::Other if is_own => format!("{name} of another process"),
            Whose::SameProcess | Whose::Other => name.to_owned(),
        }
    }
}

impl Neighbours {
    pub fn of(cases: &[&Case], evidence: &Evidence) -> Self {
        let mut ran = Tally::default();
        for case in cases {
            for (party, ns) in &case.ran_instead {
                ran.add((wording::name(party), Whose::of(party, case, evidence)), *ns);
            }
        }
        Neighbours { ran, cpus: cases.iter().filter_map(|case| case.cpu).collect() }
    }

    /// ` on CPU 1`, ` on CPUs 0, 1`; nothing where there are many or none is known.
    pub fn cpus(&self) -> String {
        let list: Vec<String> = self.cpus.iter().map(u32::to_string).collect();
        match list.len() {
            1 => format!(" on CPU {}", list[0]),
            2..=MOST_CPUS => format!(" on CPUs {}", list.join(", ")),
            _ => String::new(),
        }
    }

    /// `: the CPU was with build for 70 %, cron for 20 % and others for 5 % of that time`; nothing where
    /// none is known.
    pub fn names(&self, waited_ns: u64) -> String {
        let whole = waited_ns.max(self.ran.total());
        let ranked = self.ran.ranked();
        let (ranked, others) = ranked.split_at(worth_naming(&ranked, MOST_NAMES, 100, whole));
        let others = others.iter().fold(0u64, |sum, (_, ns)| sum.saturating_add(*ns));
        let others = Some(others).filter(|ns| *ns > 0 && is_share(*ns, 100, whole));
        let is_own =
            |name: &str| ranked.iter().any(|((own, whose), _)| own == name && *whose == Whose::SameProcess);
        let named = ranked.iter().map(|((name, whose), ns)| (whose.name(name, is_own(name)), *ns));
        let others = others.map(|ns| ("others".to_owned(), ns));
        let share = |(name, ns): (String, u64)| format!("{name} for {}", wording::percent(ns, whole));
        let mut shares: Vec<String> = named.chain(others).map(share).collect();
        let Some(last) = shares.pop() else { return String::new() };
        let but_last = if shares.is_empty() { String::new() } else { format!("{} and ", shares.join(", ")) };
        format!(": the CPU was with {but_last}{last} of that time")
    }

    /// The advice, which depends on whose threads took the CPU.
    pub fn advice(&self) -> String {
        let mut by_whose = Tally::default();
        for ((_, whose), ns) in self.ran.ranked() {
            by_whose.add(whose.clone(), ns);
        }
        let most = by_whose.top().filter(|(_, ns)| *ns > self.ran.total() / 2);
        match most.map(|(whose, _)| whose) {
            Some(Whose::SameProcess) => {
                "Threads of the process itself took the CPU: run fewer busy threads than there are CPUs, or keep this \
                     thread's CPU free of the others (`taskset`, sched_setaffinity)."
                    .into()
            }
            Some(Whose::Container(container)) => limit_container(container),
            _ => "Keep others off this thread's CPU (`taskset`, cpusets, isolcpus), or give it a higher \
                      priority (`nice`, `chrt`)."
                .into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, case, thread_ref, untracked};
    use super::*;
    use wallprof_model::profile::{Finding, StallRecord};
    use wallprof_model::{StallReason, ThreadRef};

    fn neighbours(ran: &[(ThreadRef, u64)], cpus: &[u32], check: impl Fn(&Neighbours)) {
        let mut fixture = Fixture::new();
        for (at, &cpu) in cpus.iter().enumerate() {
            let stall = case(at as u64 + 1, 1, StallReason::Preempted, 1_000_000);
            fixture.stall(StallRecord { cpu: Some(cpu), ran_instead: ran.to_vec(), ..stall });
        }
        let evidence = fixture.evidence();
        check(&Neighbours::of(&evidence.cases().collect::<Vec<_>>(), &evidence));
    }

    #[test]
    fn threads_with_most_cpu_time_are_named() {
        let ran =
            [(untracked("build"), 700_000), (untracked("kworker/1:2"), 200_000), (untracked("x"), 1_000)];
        neighbours(&ran, &[1], |found| {
            let names = found.names(1_000_000);
            assert_eq!(names, ": the CPU was with build for 70 % and kworker/1:2 for 20 % of that time");
            assert_eq!(found.cpus(), " on CPU 1");
            assert!(found.advice().starts_with("Keep others off"));
        });
    }

    #[test]
    fn others_are_reported_together() {
        let ran = ["build", "cron", "ld", "as"].map(|name| (untracked(name), 200_000));
        neighbours(&ran, &[1], |found| {
            let names = found.names(1_000_000);
            assert_eq!(
                names,
                ": the CPU was with as for 20 %, build for 20 % and others for 40 % of that time"
            );
        });
    }

    /// Beside one that had nearly all of it.
    #[test]
    fn threads_with_hardly_any_cpu_time_are_not_named() {
        let ran = [(untracked("batch"), 990_000), (untracked("cron"), 4_000), (untracked("ld"), 3_000)];
        neighbours(&ran, &[1], |found| {
            assert_eq!(found.names(1_000_000), ": the CPU was with batch for 99 % of that time");
        });
        let many: Vec<_> = (0..4).map(|at| (untracked(&format!("job-{at}")), 9_000)).collect();
        neighbours(&many, &[1], |found| {
            let names = found.names(1_000_000);
            assert_eq!(names, ": the CPU was with job-0 for 1 % and others for 3 % of that time");
        });
    }

    #[test]
    fn threads_of_two_processes_with_one_name_are_told_apart() {
        let own = thread_ref(2);
        let other = ThreadRef { key: None, ..untracked(&own.comm) };
        neighbours(&[(own.clone(), 600_000), (other, 300_000)], &[1], |found| {
            let name = &own.comm;
            let names = found.names(1_000_000);
            let expected = format!(
                ": the CPU was with {name} for 60 % and {name} of another process for 30 % of that time"
            );
            assert_eq!(names, expected);
        });
    }

    /// Thread 1 waits; the others are of two other processes, in these containers.
    fn found_beside(containers: [Option<&str>; 3]) -> Finding {
        preempted(beside(containers))
    }

    fn beside(containers: [Option<&str>; 3]) -> Fixture {
        let mut fixture = Fixture::new();
        fixture.threads.truncate(3);
        for (at, (thread, container)) in fixture.threads.iter_mut().zip(containers).enumerate() {
            thread.info.pid = 100 + at as u32;
            thread.info.cgroup = container.map(|id| format!("/system.slice/docker-{}.scope", id.repeat(64)));
        }
        let stall = case(1, 1, StallReason::Preempted, 2_000_000_000);
        let ran = |thread: u32, ns| (ThreadRef { pid: 99 + thread, ..thread_ref(thread) }, ns);
        let ran_instead = vec![ran(2, 1_500_000_000), ran(3, 400_000_000)];
        fixture.stall(StallRecord { pid: 100, cpu: Some(0), ran_instead, ..stall });
        fixture
    }

    fn preempted(fixture: Fixture) -> Finding {
        let mut found = findings(&fixture.evidence());
        found.retain(|finding| finding.rule == "preempted");
        found.pop().expect("a finding")
    }

    #[test]
    fn other_container_is_named_and_the_own_one_is_said() {
        let found = found_beside([Some("a"), Some("b"), Some("a")]);
        assert!(
            found.title.starts_with("thread-1 of app in container aaaaaaaaaaaa lost the CPU"),
            "{found:?}"
        );
        let names = "the CPU was with thread-2 of container bbbbbbbbbbbb for 75 % and thread-3 of the same \
                     container for 20 % of that time.";
        assert!(found.title.ends_with(names), "{found:?}");
        assert!(found.advice.starts_with("Limit the CPU time of container bbbbbbbbbbbb"), "{found:?}");
    }

    /// Of one program and name.
    #[test]
    fn container_of_a_pod_is_named_by_it() {
        let mut fixture = beside([Some("a"), Some("b"), None]);
        let pod = |text: &str| text.parse().map(Arc::new).ok();
        fixture.threads[0].info.pod = pod("shop/web-1/nginx");
        fixture.threads[1].info.pod = pod("batch/report-7/worker");
        let found = preempted(fixture);
        assert!(found.title.contains("of app in container shop/web-1/nginx lost the CPU"), "{found:?}");
        assert!(found.title.contains("of container batch/report-7/worker for 75 %"), "{found:?}");
        let advice = "Limit the CPU time of container batch/report-7/worker";
        assert!(found.advice.starts_with(advice), "{found:?}");
    }

    #[test]
    fn threads_of_two_containers_have_a_finding_each() {
        let mut fixture = Fixture::new();
        fixture.threads.truncate(2);
        for (at, thread) in fixture.threads.iter_mut().enumerate() {
            thread.info.pid = 100 + at as u32;
            thread.info.cgroup = Some(format!("/system.slice/docker-{}.scope", ["a", "b"][at].repeat(64)));
        }
        for (thread, other) in [(1, 2), (2, 1)] {
            let ran = ThreadRef { pid: 99 + other, ..thread_ref(other) };
            let stall = case(thread.into(), thread, StallReason::Preempted, 2_000_000_000);
            let (comm, ran_instead) = ("worker".into(), vec![(ran, 2_000_000_000)]);
            fixture.stall(StallRecord { pid: 99 + thread, comm, ran_instead, ..stall });
        }
        let found = findings(&fixture.evidence());
        assert_eq!(found.len(), 2, "{found:#?}");
        for (at, own, other) in [(0, "aaaaaaaaaaaa", "bbbbbbbbbbbb"), (1, "bbbbbbbbbbbb", "aaaaaaaaaaaa")] {
            let title = &found[at].title;
            assert!(title.contains(&format!(" in container {own} lost the CPU")), "{title}");
            assert!(title.contains(&format!(" of container {other} for 100 %")), "{title}");
        }
    }

    #[test]
    fn containers_are_no_part_of_a_finding_where_there_is_one_or_none() {
        for containers in [[None; 3], [Some("a"); 3]] {
            let found = found_beside(containers);
            assert!(found.title.starts_with("thread-1 of app lost the CPU"), "{found:?}");
            assert!(found.advice.starts_with("Keep others off"), "{found:?}");
        }
    }

    #[test]
    fn process_in_its_own_way_gets_another_advice() {
        neighbours(&[(thread_ref(2), 900_000)], &[0, 1], |found| {
            assert_eq!(found.cpus(), " on CPUs 0, 1");
            assert!(found.advice().starts_with("Threads of the process itself"));
        });
        neighbours(&[], &[0, 1, 2, 3, 4], |found| {
            assert_eq!((found.cpus().as_str(), found.names(5).as_str()), ("", ""));
        });
    }
}
