// SPDX-License-Identifier: Apache-2.0
//! `cpu-throttling`: threads could not run because their control group had used up its CPU quota.
//!
//! While a group is throttled, its threads look preempted, or woken and not scheduled, and other threads may
//! have their CPU. The kernel reports for how long the group was throttled between two readings. It counts
//! each CPU once, however many threads wait for it. The rule compares this with the time in which threads of
//! the group waited for CPUs, each CPU once, too. Where the group was throttled for at least half of that
//! time, the waits of all these threads count, each thread's, less the time in which threads of the group
//! had the CPU. Where the group was throttled for less time than its CPUs were waited for, other programs
//! had the rest, and only that share of the waits counts.
//!
//! The last readings of a group are lost when the group disappears with its last process. So a wait that no
//! reading explains counts, too, if no thread had the CPU for half of it and the group was throttled before.
//! Such waits, each CPU once, count up to the time of that throttling. One finding a program and thread name.
//! Without a quota there is none.
//!
//! False positives: a quota that is meant to limit the program.

use std::collections::{BTreeMap, HashMap, HashSet};

use wallprof_model::MonoNs;
use wallprof_model::profile::ThrottledRow;

use super::case::{Case, grouped};
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::Evidence;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::wording;

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "cpu-throttling",
    topic: Some(Topic::CpuDenied),
    excludes: &[],
    cause: Cause::Machine,
    evidence: EvidenceKind::Stalls,
    find,
};

const ADVICE: &str = "Raise the group's quota (cpu.max, cpu.cfs_quota_us; a container's CPU limit), use fewer threads at once, or \
    give it weight instead of a quota (cpu.weight); a longer period or a burst (cpu.max.burst) forgives short peaks.";

fn find<'e>(evidence: &'e Evidence, _reported: &Reported) -> Vec<Conclusion<'e>> {
    let groups = Group::all(evidence);
    let is_held_back = |case: &&Case| {
        let is_wait = !evidence.is_left_out(case.thread) && waits_for_cpu(case, evidence);
        is_wait && groups.iter().any(|group| group.holds_back(case))
    };
    let names = grouped(evidence.cpu_waits().filter(is_held_back), |case| {
        (evidence.program(case), case.comm.clone())
    });
    names.into_values().filter_map(|cases| conclude(cases, &groups, evidence)).collect()
}

fn conclude<'e>(cases: Vec<&'e Case>, groups: &[Group<'e>], evidence: &Evidence) -> Option<Conclusion<'e>> {
    let mut by_group = vec![0.0; groups.len()];
    let charged = Charged::over(cases, |case| {
        let mut sum = 0.0;
        for (at, group) in groups.iter().enumerate() {
            let ns = group.held_back_ns(case);
            by_group[at] += ns;
            sum += ns;
        }
        // Groups of which one lies in the other may hold it back at the same time.
        (sum as u64).min(case.runnable_ns)
    });
    let problem = Problem::heavy(charged, evidence)?;
    let most = by_group.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b))?.0;
    let quota = groups[most].quota();
    let title = format!(
        "{} could not run because {} had used up its CPU quota ({}) {}.",
        wording::who(&problem.cases, evidence),
        wording::group(&quota.cgroup, evidence.pod(&quota.cgroup)),
        wording::percent(quota.quota_ns, quota.period_ns),
        wording::delays(&problem.delays)
    );
    Some(problem.conclude(title, ADVICE))
}

fn waits_for_cpu(case: &Case, evidence: &Evidence) -> bool {
    case.runnable_ns >= evidence.unit_ns()
}

/// The end of a wait, in which the thread waited for a CPU.
fn cpu_wait(case: &Case) -> (MonoNs, MonoNs) {
    (case.woken(), case.end)
}

/// A control group with a quota that was used up.
struct Group<'e> {
    /// In the order of time, without overlap.
    looks: Vec<Look<'e>>,
    /// Of all looks.
    pids: HashSet<u32>,
    /// The share of the threads' waiting in explaining looks that is charged to the quota.
    share: f64,
    /// The same of the waiting that no look explains.
    share_of_unexplained: f64,
}

/// The throttled time between two readings of a group.
struct Look<'e> {
    row: &'e ThrottledRow,
    pids: HashSet<u32>,
    /// It was throttled for at least half of the time in which its threads waited for CPUs.
    explains: bool,
}

impl<'e> Group<'e> {
    fn all(evidence: &'e Evidence) -> Vec<Self> {
        let mut groups: BTreeMap<&str, BTreeMap<MonoNs, Look>> = BTreeMap::new();
        for row in evidence.throttled() {
            let looks = groups.entry(&row.cgroup).or_default();
            let look =
                looks.entry(row.from).or_insert_with(|| Look { row, pids: HashSet::new(), explains: false });
            look.pids.insert(row.pid);
        }
        let cases: Vec<&Case> = evidence.cpu_waits().filter(|case| waits_for_cpu(case, evidence)).collect();
        groups.into_values().map(|looks| Group::new(looks.into_values().collect(), &cases)).collect()
    }

    fn new(mut looks: Vec<Look<'e>>, cases: &[&Case]) -> Self {
        let mut waits: Vec<Waits> = looks.iter().map(|_| Waits::default()).collect();
        for case in cases {
            for at in during(&looks, case) {
                let Look { row, pids, .. } = &looks[at];
                waits[at].add(case, pids, row.from, row.to);
            }
        }
        let (mut throttled_ns, mut waited_ns) = (0.0, 0.0);
        for (look, waits) in looks.iter_mut().zip(waits) {
            let kept_ns = waits.cpu_time_kept_ns();
            look.explains = look.row.total_ns as f64 >= kept_ns / 2.0;
            if look.explains {
                throttled_ns += look.row.total_ns as f64;
                waited_ns += kept_ns;
            }
        }
        let pids = looks.iter().flat_map(|look| &look.pids).copied().collect();
        let share = share_of(throttled_ns, waited_ns);
        let mut group = Group { looks, pids, share, share_of_unexplained: 1.0 };
        group.share_of_unexplained = group.find_share_of_unexplained(cases);
        group
    }

    /// The row that stands for the group's quota.
    fn quota(&self) -> &'e ThrottledRow {
        let rows = self.looks.iter().map(|look| look.row);
        rows.max_by_key(|row| row.total_ns).expect("a group is made of its rows")
    }

    fn holds_back(&self, case: &Case) -> bool {
        self.pids.contains(&case.pid) && (self.is_explained(case) || self.is_unexplained(case))
    }

    fn is_explained(&self, case: &Case) -> bool {
        let mut looks = during(&self.looks, case).map(|at| &self.looks[at]);
        looks.any(|look| look.explains && own_share(case, &look.pids) < 0.5)
    }

    /// Whether it was held back by a quota that had been used up before, although no look explains it.
    fn is_unexplained(&self, case: &Case) -> bool {
        self.pids.contains(&case.pid)
            && no_thread_ran_instead(case)
            && !self.is_explained(case)
            && self.look_before(case).is_some()
    }

    /// The look to which such a wait is charged: one under way, else the last one before it.
    fn look_before(&self, case: &Case) -> Option<usize> {
        let of_it = |at: &usize| self.looks[*at].pids.contains(&case.pid);
        let begun = self.looks.partition_point(|look| look.row.from < case.end);
        (0..begun).rev().find(of_it)
    }

    /// No more counts than the quota held the group back in the looks to which such waits are charged.
    fn find_share_of_unexplained(&self, cases: &[&Case]) -> f64 {
        let (mut waits, mut looks) = (Waits::default(), HashSet::new());
        for case in cases.iter().filter(|case| self.is_unexplained(case)) {
            let (start, end) = cpu_wait(case);
            waits.add(case, &self.pids, start, end);
            looks.extend(self.look_before(case));
        }
        let throttled_ns: f64 = looks.into_iter().map(|at| self.looks[at].row.total_ns as f64).sum();
        share_of(throttled_ns, waits.cpu_time_kept_ns())
    }

    fn held_back_ns(&self, case: &Case) -> f64 {
        if self.is_unexplained(case) {
            return case.runnable_ns as f64 * self.share_of_unexplained;
        }
        let explaining = during(&self.looks, case).map(|at| &self.looks[at]).filter(|look| look.explains);
        let parts = explaining.map(|look| {
            let ns = case_wait_ns(case, look.row.from, look.row.to) as f64;
            ns * (1.0 - own_share(case, &look.pids))
        });
        parts.sum::<f64>() * self.share
    }
}

fn share_of(throttled_ns: f64, waited_ns: f64) -> f64 {
    if waited_ns > throttled_ns { throttled_ns / waited_ns } else { 1.0 }
}

/// The looks, by their places, between which a case of theirs waited for a CPU.
fn during<'l>(looks: &'l [Look<'_>], case: &'l Case) -> impl Iterator<Item = usize> + use<'l> {
    let (start, end) = cpu_wait(case);
    let begun = looks.partition_point(|look| look.row.from < end);
    let under_way = (0..begun).rev().take_while(move |&at| looks[at].row.to > start);
    under_way.filter(|&at| looks[at].pids.contains(&case.pid))
}

fn case_wait_ns(case: &Case, from: MonoNs, to: MonoNs) -> u64 {
    let (start, end) = cpu_wait(case);
    end.min(to).0.saturating_sub(start.max(from).0)
}

/// The part of a wait in which threads of the same group had the CPU: the group was not throttled there.
fn own_share(case: &Case, pids: &HashSet<u32>) -> f64 {
    let own = case.ran_instead.iter().filter(|(party, _)| pids.contains(&party.pid));
    let own_ns: u64 = own.map(|(_, ns)| ns).sum();
    (own_ns as f64 / case.runnable_ns.max(1) as f64).min(1.0)
}

fn no_thread_ran_instead(case: &Case) -> bool {
    let ran_ns = case.ran_instead.iter().fold(0u64, |sum, (_, ns)| sum.saturating_add(*ns));
    ran_ns < case.runnable_ns / 2
}

/// Waits for CPUs of a group's threads.
#[derive(Default)]
struct Waits {
    /// By the CPU that the threads waited for.
    intervals: HashMap<Option<u32>, Vec<(u64, u64)>>,
    /// Each thread's.
    total_ns: f64,
    /// The part in which another thread of the group had the CPU.
    own_ns: f64,
}

impl Waits {
    fn add(&mut self, case: &Case, pids: &HashSet<u32>, from: MonoNs, to: MonoNs) {
        let (start, end) = cpu_wait(case);
        self.intervals.entry(case.cpu).or_default().push((start.max(from).0, end.min(to).0));
        let ns = case_wait_ns(case, from, to) as f64;
        self.total_ns += ns;
        self.own_ns += ns * own_share(case, pids);
    }

    /// The time in which a thread waited for a CPU and none of the group had it, each CPU once. While one
    /// has it, one thread less waits than while none has.
    fn cpu_time_kept_ns(self) -> f64 {
        let waited_ns: u64 = self.intervals.into_values().map(union_ns).sum();
        let waited_ns = waited_ns as f64;
        let others = (self.total_ns / waited_ns.max(1.0) - 1.0).max(1.0);
        (waited_ns - self.own_ns / others).max(0.0)
    }
}

/// The length of what any of the intervals covers.
fn union_ns(mut intervals: Vec<(u64, u64)>) -> u64 {
    intervals.sort_unstable();
    let (mut covered_ns, mut until) = (0, 0);
    for (start, end) in intervals {
        covered_ns += end.saturating_sub(start.max(until));
        until = until.max(end);
    }
    covered_ns
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, at, case, thread_ref, untracked};
    use super::*;
    use wallprof_model::profile::{Finding, StallRecord};
    use wallprof_model::{MonoNs, StallReason};

    const MS: u64 = 1_000_000;

    fn throttled(pid: u32) -> ThrottledRow {
        ThrottledRow {
            pid,
            cgroup: "/shop/api".into(),
            quota_ns: 20 * MS,
            period_ns: 100 * MS,
            from: MonoNs(0),
            to: MonoNs(u64::MAX),
            count: 9,
            total_ns: 700 * MS,
        }
    }

    fn held_back(id: u64) -> StallRecord {
        case(id, 1, StallReason::Preempted, 80 * MS)
    }

    fn found(rows: Vec<ThrottledRow>, stalls: impl Iterator<Item = StallRecord>) -> Vec<Finding> {
        let mut fixture = Fixture::new();
        fixture.throttled = rows;
        stalls.for_each(|stall| fixture.stall(stall));
        findings(&fixture.evidence())
    }

    #[test]
    fn names_the_group_and_its_quota_once() {
        let found = found(vec![throttled(100)], (1..=5).map(held_back));
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(
            found[0].title,
            "thread-1 of app could not run because its control group /shop/api had used up its CPU quota (20 %) 5 times, 400 \
             ms in all, up to 80.0 ms."
        );
        assert_eq!((found[0].rule.as_str(), found[0].stalls.len()), (RULE.name, 5));
    }

    #[test]
    fn group_of_a_container_is_the_container() {
        let cgroup = format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{}.scope", "c".repeat(64));
        let found =
            found(vec![ThrottledRow { cgroup: cgroup.clone(), ..throttled(100) }], (1..=5).map(held_back));
        let words = "could not run because its container cccccccccccc had used up its CPU quota (20 %)";
        assert!(found[0].title.contains(words), "{}", found[0].title);
        let mut fixture = Fixture::new();
        fixture.threads[0].info.cgroup = Some(cgroup.clone());
        fixture.threads[0].info.pod = "shop/web-1/nginx".parse().map(std::sync::Arc::new).ok();
        fixture.throttled = vec![ThrottledRow { cgroup, ..throttled(100) }];
        (1..=5).map(held_back).for_each(|stall| fixture.stall(stall));
        let title = &findings(&fixture.evidence())[0].title;
        assert!(title.contains("because its container shop/web-1/nginx had used up"), "{title}");
    }

    #[test]
    fn without_a_quota_it_is_preemption() {
        let lost = |id| StallRecord { ran_instead: vec![(untracked("build"), 70 * MS)], ..held_back(id) };
        for rows in [vec![], vec![throttled(101)], vec![ThrottledRow { to: MonoNs(5), ..throttled(100) }]] {
            let rules: Vec<String> =
                found(rows, (1..=5).map(lost)).into_iter().map(|found| found.rule).collect();
            assert_eq!(rules, ["preempted"]);
        }
    }

    #[test]
    fn last_waits_of_a_removed_group_count_where_no_thread_ran_instead() {
        let early = ThrottledRow { to: MonoNs(5), ..throttled(100) };
        let found = found(vec![early], (1..=5).map(held_back));
        assert_eq!(found.iter().map(|found| found.rule.as_str()).collect::<Vec<_>>(), [RULE.name]);
    }

    /// The kernel counts a throttled CPU once here, too.
    #[test]
    fn each_last_wait_of_a_removed_group_counts() {
        let early = |total_ms| ThrottledRow { to: MonoNs(5), total_ns: total_ms * MS, ..throttled(100) };
        assert_eq!(total_ms(&found(vec![early(900)], periods(4, 1, 1).into_iter())), 3_600);
        assert_eq!(
            total_ms(&found(vec![early(450)], periods(4, 1, 1).into_iter())),
            1_800,
            "others had the rest"
        );
    }

    #[test]
    fn others_may_have_the_cpu_meanwhile_but_not_for_longer_than_it_was_throttled() {
        let lost = |id| {
            let ran_instead = vec![(untracked("build"), 70 * MS)];
            at(id * 100 * MS, StallRecord { ran_instead, ..held_back(id) })
        };
        let rule = |total_ns| {
            let found = found(vec![ThrottledRow { total_ns, ..throttled(100) }], (1..=5).map(lost));
            (found.len(), found[0].rule.clone(), found[0].total_ns)
        };
        assert_eq!(rule(200 * MS), (1, RULE.name.to_owned(), 200 * MS));
        assert_eq!(rule(199 * MS), (1, "preempted".to_owned(), 400 * MS));
    }

    /// The waits of `threads` threads, each for 90 ms of each of ten periods on the same CPU; the first ran
    /// before.
    fn periods(threads: u32, cpu: u32, first_thread: u32) -> Vec<StallRecord> {
        let waits = (0..10).flat_map(|period| (0..threads).map(move |thread| (period, thread)));
        let wait = |(period, thread): (u64, u32)| {
            let number = first_thread + thread;
            let id = 1 + period * 100 + u64::from(number);
            let wait = case(id, number, StallReason::Preempted, 90 * MS);
            at(period * 100 * MS, StallRecord { cpu: Some(cpu), ..wait })
        };
        waits.map(wait).collect()
    }

    fn total_ms(found: &[Finding]) -> u64 {
        let ours = found.iter().filter(|found| found.rule == RULE.name);
        ours.map(|found| found.total_ns).sum::<u64>() / MS
    }

    /// The kernel counts a throttled CPU once; each of the threads waits all the same.
    #[test]
    fn each_thread_waits_while_its_cpu_is_throttled_once() {
        let row = |total_ms| ThrottledRow { total_ns: total_ms * MS, ..throttled(100) };
        assert_eq!(total_ms(&found(vec![row(900)], periods(1, 1, 1).into_iter())), 900);
        assert_eq!(total_ms(&found(vec![row(900)], periods(4, 1, 1).into_iter())), 3_600);
        let two_cpus = periods(2, 0, 1).into_iter().chain(periods(3, 1, 3));
        assert_eq!(total_ms(&found(vec![row(1_800)], two_cpus)), 4_500);
    }

    /// Two threads take turns for the first 10 ms of a period, 5 ms each.
    #[test]
    fn waiting_for_another_thread_of_the_group_is_not_throttling() {
        let waits = (0..10).flat_map(|period| {
            [(1, 5 * MS, 95 * MS), (2, 0, 5 * MS), (2, 10 * MS, 90 * MS)].map(|(thread, from, ns)| {
                let id = 1 + period * 10 + from / MS + u64::from(thread);
                let own = if from == 10 * MS { 0 } else { 5 * MS };
                let ran_instead = vec![(thread_ref(3 - thread), own)];
                let wait = case(id, thread, StallReason::Preempted, ns);
                at(period * 100 * MS + from, StallRecord { ran_instead, ..wait })
            })
        });
        let row = ThrottledRow { total_ns: 900 * MS, ..throttled(100) };
        assert_eq!(total_ms(&found(vec![row], waits)), 1_800);
    }

    /// Each process of a group has a row of its own that says what the group was throttled.
    #[test]
    fn a_group_of_several_processes_is_throttled_once() {
        let of = |pid: u32, wait: StallRecord| StallRecord { pid, ..wait };
        let waits = || {
            let theirs = periods(1, 2, 2).into_iter().map(|wait| of(101, wait));
            periods(1, 1, 1).into_iter().chain(theirs)
        };
        let rows =
            |total_ms| [100, 101].map(|pid| ThrottledRow { total_ns: total_ms * MS, ..throttled(pid) });
        assert_eq!(total_ms(&found(rows(1_800).to_vec(), waits())), 1_800);
        assert_eq!(total_ms(&found(rows(1_200).to_vec(), waits())), 1_200, "others had the rest");
        assert_eq!(
            total_ms(&found(
                rows(899).to_vec(),
                waits()
                    .map(|wait| { StallRecord { ran_instead: vec![(untracked("build"), 80 * MS)], ..wait } })
            )),
            0,
            "it was throttled for less than half of it"
        );
    }
}
