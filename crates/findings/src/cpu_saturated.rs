// SPDX-License-Identifier: Apache-2.0
//! `cpu-saturated`: all CPUs were busy, and several threads waited for one. One finding for the machine, in
//! place of one for each program that waited.
//!
//! The CPUs were busy in the whole recording where the recorded threads used at least nine tenths of their
//! time. They were busy between two readings of the counters `cpuN.run_queue` where each CPU had two threads
//! or more that ran or could run. The counters are rounded: a value of 1 may be a CPU that was idle for half
//! of the time. A wait for a CPU counts where the CPUs were busy for half of it, and other threads are known
//! to have had that CPU. Waits that a quota or a hypervisor explains are left out.
//!
//! Where threads of several containers are recorded, the waiters and those that used the CPUs are containers, and
//! programs outside of any.
//!
//! False positives: batch programs that are meant to fill the machine.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use wallprof_analysis::tally::Tally;
use wallprof_model::{MonoNs, StallReason, ThreadKey};

use super::case::Case;
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::Evidence;
use super::limits::is_share;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{neighbours, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "cpu-saturated",
    topic: Some(Topic::CpuShared),
    excludes: &[Topic::CpuDenied],
    cause: Cause::Machine,
    evidence: EvidenceKind::Stalls,
    find,
};

const ADVICE: &str = "Run fewer busy threads at a time than there are CPUs, or give the machine more CPUs; give \
    what must not wait a higher priority than the programs that use most (`nice`, `chrt`, cpu.weight), or CPUs of \
    its own (cpusets).";

/// Containers and programs named in a title.
const MOST_USERS: usize = 3;
const MOST_WAITERS: usize = 2;

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let load = Load::of(evidence);
    let waits = |case: &&Case| {
        !evidence.is_left_out(case.thread) && waits_in_a_crowd(case, &load, evidence) && !reported.has(case)
    };
    let cases: Vec<&Case> = evidence.cpu_waits().filter(waits).collect();
    conclude(cases, &load, evidence).into_iter().collect()
}

/// The time for which a thread waited for a CPU, and when.
fn cpu_wait(case: &Case) -> (MonoNs, MonoNs) {
    (MonoNs(case.end.0.saturating_sub(case.cpu_wait_ns())), case.end)
}

fn waited_ns(case: &Case) -> u64 {
    let (from, to) = cpu_wait(case);
    to.0 - from.0
}

fn waits_in_a_crowd(case: &Case, load: &Load, evidence: &Evidence) -> bool {
    let (from, to) = cpu_wait(case);
    let ns = to.0 - from.0;
    let is_ended = case.reason == StallReason::Preempted || !case.open;
    is_ended
        && !case.yielded
        && ns >= evidence.unit_ns()
        && case.ran_ns > 0
        && load.full_ns(from, to, evidence) >= ns / 2
}

/// Whether the recorded programs used less than a quarter of the CPU time while all CPUs were busy. All that they
/// used in the recording counts: it may have been at that time.
pub(super) fn is_of_other_programs(evidence: &Evidence) -> bool {
    let load = Load::of(evidence);
    let busy_ns = load.busy_ns(evidence).saturating_mul(evidence.cpus().into());
    load.used.total() < busy_ns / 4
}

/// A container, where threads of several are recorded, or a program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Group {
    Container(Arc<str>),
    Program(Arc<str>),
}

impl Group {
    fn of(container: Option<&Arc<str>>, program: Arc<str>) -> Self {
        container.map_or(Group::Program(program), |container| Group::Container(container.clone()))
    }
}

/// ns by group.
#[derive(Default)]
struct Groups {
    groups: Tally<Group>,
    /// Of containers.
    programs: Tally<(Arc<str>, Arc<str>)>,
}

impl Groups {
    fn add(&mut self, container: Option<&Arc<str>>, program: Arc<str>, ns: u64) {
        if let Some(container) = container {
            self.programs.add((container.clone(), program.clone()), ns);
        }
        self.groups.add(Group::of(container, program), ns);
    }

    fn total(&self) -> u64 {
        self.groups.total()
    }

    /// `redis-server`, `container 0123456789ab (redis-server)`: a container with its heaviest program.
    fn name(&self, group: &Group) -> String {
        match group {
            Group::Program(program) => wording::shown(program).to_owned(),
            Group::Container(container) => {
                let program = self.programs.ranked().into_iter().find(|((of, _), _)| of == container);
                let program = program.map(|((_, program), _)| format!(" ({})", wording::shown(program)));
                format!("container {container}{}", program.unwrap_or_default())
            }
        }
    }

    /// `stress-ng-cpu 91 %`, `rustc 4 %`, `others 3 %`.
    fn shares(&self, whole_ns: u64) -> Vec<String> {
        let ranked = self.groups.ranked();
        let named = ranked.iter().take(MOST_USERS).filter(|(_, ns)| is_share(*ns, 100, whole_ns));
        let mut shares: Vec<String> = named
            .clone()
            .map(|(group, ns)| format!("{} {}", self.name(group), wording::percent(*ns, whole_ns)))
            .collect();
        let others_ns = self.total() - named.map(|(_, ns)| ns).sum::<u64>().min(self.total());
        if is_share(others_ns, 100, whole_ns) {
            shares.push(format!("others {}", wording::percent(others_ns, whole_ns)));
        }
        shares
    }

    fn of_container(&self, container: &Arc<str>) -> u64 {
        let is_it = |group: &Group| matches!(group, Group::Container(of) if of == container);
        self.groups.ranked().into_iter().find(|(group, _)| is_it(group)).map_or(0, |(_, ns)| ns)
    }

    /// The container with more than half of the time.
    fn most_of_a_container(&self) -> Option<&Arc<str>> {
        match self.groups.top().filter(|(_, ns)| *ns > self.total() / 2)? {
            (Group::Container(container), _) => Some(container),
            (Group::Program(_), _) => None,
        }
    }
}

/// How busy the CPUs were.
struct Load {
    used: Groups,
    /// The CPU time that there was.
    capacity_ns: u64,
    has_several_containers: bool,
}

impl Load {
    fn of(evidence: &Evidence) -> Self {
        let has_several_containers = evidence.is_of_several_containers();
        let mut used = Groups::default();
        for thread in evidence.threads() {
            let container = thread.container.as_ref().filter(|_| has_several_containers);
            used.add(container, thread.process.clone(), thread.on_cpu_ns);
        }
        let capacity_ns = evidence.duration_ns().saturating_mul(evidence.cpus().into());
        Load { used, capacity_ns, has_several_containers }
    }

    /// Whether the recorded threads used the CPUs nearly all of the time.
    fn is_full(&self) -> bool {
        self.capacity_ns > 0 && is_share(self.used.total(), 10, self.capacity_ns.saturating_mul(9))
    }

    fn container<'e>(&self, thread: ThreadKey, evidence: &'e Evidence) -> Option<&'e Arc<str>> {
        evidence.container(thread).filter(|_| self.has_several_containers)
    }

    /// The time of the recording in which all CPUs were busy, ns.
    fn busy_ns(&self, evidence: &Evidence) -> u64 {
        match self.is_full() {
            true => evidence.duration_ns(),
            false => evidence.machine().crowded_ns(MonoNs(0), MonoNs(u64::MAX)),
        }
    }

    /// The part of a time in which all CPUs were busy, ns.
    fn full_ns(&self, from: MonoNs, to: MonoNs, evidence: &Evidence) -> u64 {
        if self.is_full() { to.0 - from.0 } else { evidence.machine().crowded_ns(from, to) }
    }
}

fn conclude<'e>(cases: Vec<&'e Case>, load: &Load, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let problem = Problem::heavy(Charged::over(cases, waited_ns), evidence)?;
    let delays = problem.delays;
    if problem.threads.len() < 2 {
        return None;
    }
    let busy = match load.is_full() {
        true => format!("{} of the time", wording::percent(load.used.total(), load.capacity_ns)),
        false => wording::time(load.busy_ns(evidence)),
    };
    let meanwhile;
    let (users, whole_ns, what) = if load.is_full() {
        (&load.used, load.capacity_ns, "of the CPU time")
    } else {
        meanwhile = had_the_cpus(&problem.cases, load, evidence);
        (&meanwhile, meanwhile.total(), "meanwhile the CPUs were with")
    };
    let waited = waited(&problem.cases, load, evidence);
    let title = format!(
        "The {} CPUs were all busy for {busy}: {} waited for a CPU {}; {what} {}.",
        evidence.cpus(),
        waiters(&problem, &waited, load, evidence),
        wording::delays(&delays),
        wording::list(&users.shares(whole_ns))
    );
    // A limit helps others, not a container that waits for its own threads.
    let is_waited_for =
        |container: &&Arc<str>| is_share(waited.total() - waited.of_container(container), 10, waited.total());
    let limited = users.most_of_a_container().filter(is_waited_for);
    let advice =
        limited.map_or_else(|| ADVICE.to_owned(), |container| neighbours::limit_container(container));
    Some(problem.conclude(title, advice))
}

fn waited(cases: &[&Case], load: &Load, evidence: &Evidence) -> Groups {
    let mut waited = Groups::default();
    for case in cases {
        let container = load.container(case.thread, evidence);
        waited.add(container, evidence.program(case), waited_ns(case));
    }
    waited
}

/// `29 threads (21 of rustc, 8 of stress-ng-cpu)`, by their waiting.
fn waiters(problem: &Problem<'_>, waited: &Groups, load: &Load, evidence: &Evidence) -> String {
    let mut threads: HashMap<Group, BTreeSet<ThreadKey>> = HashMap::new();
    for case in &problem.cases {
        let group = Group::of(load.container(case.thread, evidence), evidence.program(case));
        threads.entry(group).or_default().insert(case.thread);
    }
    let ranked = waited.groups.ranked();
    if let [(group, _)] = ranked[..] {
        return format!("{} threads of {}", problem.threads.len(), waited.name(group));
    }
    let mut counts: Vec<(usize, String)> = ranked
        .iter()
        .take(MOST_WAITERS)
        .map(|(group, _)| (threads.get(*group).map_or(0, BTreeSet::len), waited.name(group)))
        .collect();
    let others = problem.threads.len().saturating_sub(counts.iter().map(|(count, _)| count).sum());
    counts.extend((others > 0).then(|| (others, "other programs".to_owned())));
    let counts: Vec<String> = counts.into_iter().map(|(count, name)| format!("{count} of {name}")).collect();
    format!("{} threads ({})", problem.threads.len(), counts.join(", "))
}

/// Who had the CPUs while these threads waited for one.
fn had_the_cpus(cases: &[&Case], load: &Load, evidence: &Evidence) -> Groups {
    let mut ran = Groups::default();
    for case in cases {
        for (party, ns) in &case.ran_instead {
            let program = party.key.and_then(|key| Some(evidence.thread(key)?.process.clone()));
            let container = party.key.and_then(|key| load.container(key, evidence));
            ran.add(container, program.unwrap_or_else(|| wording::name(party).into()), *ns);
        }
    }
    ran
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, WALL_NS, at, case, run_queue, thread_ref, untracked};
    use super::*;
    use wallprof_model::profile::{Finding, StallRecord};
    use wallprof_model::{Reason, StallReason};

    const MS: u64 = 1_000_000;

    /// Threads 1 to 4 lose the CPU again and again to the next one.
    fn crowd() -> impl Iterator<Item = StallRecord> {
        (1..=160).map(|id| {
            let thread = 1 + (id % 4) as u32;
            let wait = case(id, thread, StallReason::Preempted, 20 * MS);
            StallRecord { ran_instead: vec![(thread_ref(thread % 4 + 1), 20 * MS)], ..wait }
        })
    }

    /// A recording in which the threads used `used` of 20 s of two CPUs.
    fn fixture(used_ns: u64) -> Fixture {
        let mut fixture = Fixture::new();
        fixture.info.cpus = 2;
        fixture.threads.iter_mut().for_each(|thread| thread.ledger.on_cpu_ns = 0);
        for (at, share) in [(0, 7), (1, 2), (2, 1)] {
            fixture.threads[at].ledger.on_cpu_ns = used_ns * share / 10;
        }
        fixture.threads[1].info.process = "cc1".into();
        fixture.threads[2].info.process = "ld".into();
        fixture
    }

    fn rules(fixture: Fixture) -> Vec<Finding> {
        findings(&fixture.evidence())
    }

    fn names(found: &[Finding]) -> Vec<&str> {
        found.iter().map(|finding| finding.rule.as_str()).collect()
    }

    #[test]
    fn a_full_machine_is_one_finding_that_names_who_used_it() {
        let mut fixture = fixture(2 * WALL_NS);
        crowd().for_each(|stall| fixture.stall(stall));
        let found = rules(fixture);
        assert_eq!(names(&found), [RULE.name]);
        assert_eq!(
            found[0].title,
            "The 2 CPUs were all busy for 100 % of the time: 4 threads (2 of app, 1 of cc1, 1 of other programs) \
             waited for a CPU 160 times, 3.20 s in all, up to 20.0 ms; of the CPU time app 70 %, cc1 20 % \
             and ld 10 %."
        );
        assert_eq!((found[0].count, found[0].threads.len(), found[0].stalls.len()), (160, 4, 160));
    }

    #[test]
    fn containers_are_named_in_place_of_their_programs() {
        let in_containers = |ids: &[&str]| {
            let mut fixture = fixture(2 * WALL_NS);
            for (thread, id) in fixture.threads.iter_mut().zip(ids) {
                thread.info.cgroup = Some(format!("/system.slice/docker-{}.scope", id.repeat(64)));
            }
            crowd().for_each(|stall| fixture.stall(stall));
            rules(fixture)
        };
        let found = in_containers(&["a", "b", "b"]);
        assert_eq!(
            found[0].title,
            "The 2 CPUs were all busy for 100 % of the time: 4 threads (2 of container bbbbbbbbbbbb (cc1), 1 of \
             container aaaaaaaaaaaa (app), 1 of other programs) waited for a CPU 160 times, 3.20 s in all, up to \
             20.0 ms; of the CPU time container aaaaaaaaaaaa (app) 70 % and container bbbbbbbbbbbb (cc1) 30 %."
        );
        assert!(found[0].advice.starts_with("Limit the CPU time of container aaaaaaaaaaaa"), "{found:?}");
        // The others are in no container.
        let one = in_containers(&["a", "a", "a"]);
        assert!(one[0].title.contains("container aaaaaaaaaaaa"), "{one:?}");
        assert!(one[0].advice.starts_with("Limit the CPU time of container aaaaaaaaaaaa"), "{one:?}");
        let own = in_containers(&["a", "a", "a", "a"]);
        assert!(own[0].title.contains("4 threads of container aaaaaaaaaaaa (app)"), "{own:?}");
        assert_eq!(own[0].advice, ADVICE, "it waits for its own threads");
    }

    #[test]
    fn a_machine_that_was_partly_idle_keeps_the_findings_of_each_program() {
        let mut fixture = fixture(2 * WALL_NS * 9 / 10 - 1_000);
        crowd().for_each(|stall| fixture.stall(stall));
        let found = rules(fixture);
        assert!(found.len() > 1 && found.iter().all(|finding| finding.rule == "preempted"), "{found:#?}");
    }

    #[test]
    fn run_queues_say_when_others_filled_the_machine() {
        let full = |second: u32| {
            let mut fixture = fixture(WALL_NS / 10);
            fixture.counters = vec![
                run_queue(0, &[(1_000, 1), (1_100, 3), (9_900, 3)]),
                run_queue(1, &[(1_000, second), (9_900, second)].map(|(ms, value)| (ms, value.into()))),
            ];
            crowd().for_each(|stall| {
                fixture.stall(StallRecord { ran_instead: vec![(untracked("build"), 20 * MS)], ..stall });
            });
            rules(fixture)
        };
        let found = full(2);
        assert_eq!(names(&found), [RULE.name], "{found:#?}");
        assert!(
            found[0].title.ends_with("; meanwhile the CPUs were with build 100 %."),
            "{}",
            found[0].title
        );
        let one_idle = full(1);
        assert!(one_idle.iter().all(|finding| finding.rule == "preempted"), "{one_idle:#?}");
    }

    #[test]
    fn one_thread_and_waits_in_which_no_thread_ran_are_not_a_crowd() {
        let mut alone = fixture(2 * WALL_NS);
        let lost = |id| {
            let wait = case(id, 1, StallReason::Preempted, 20 * MS);
            StallRecord { ran_instead: vec![(untracked("build"), 20 * MS)], ..wait }
        };
        (1..=40).for_each(|id| alone.stall(lost(id)));
        assert_eq!(names(&rules(alone)), ["preempted"]);
        let mut unexplained = fixture(2 * WALL_NS);
        crowd().for_each(|stall| unexplained.stall(StallRecord { ran_instead: Vec::new(), ..stall }));
        assert!(rules(unexplained).iter().all(|finding| finding.rule != RULE.name));
    }

    #[test]
    fn other_waits_stay_what_they_are() {
        let mut fixture = fixture(2 * WALL_NS);
        crowd().for_each(|stall| fixture.stall(stall));
        fixture.stall(at(9_000 * MS, case(900, 5, StallReason::Blocked(Reason::Disk), 900 * MS)));
        assert_eq!(names(&rules(fixture)), ["disk-wait", RULE.name]);
    }
}
