// SPDX-License-Identifier: Apache-2.0
//! Whether a finding is the recorded program's doing, or that of the machine on which it ran. Each rule has an
//! answer ([`RuleSpec::cause`]); for some, the evidence of the finding gives a better one.
//!
//! A thread is *outside* of the recording where it is neither recorded nor of the waiting thread's own process.
//! The kernel's threads and wallprof's own are outside, too. In a recording of all threads (`-a`) no thread is
//! outside: what keeps a thread waiting there is in the recording, and the reader's to judge. Only time in which
//! no thread at all had the CPU, because a hypervisor did not run it, is the machine's there.
//!
//! | rule | the machine's doing where |
//! | --- | --- |
//! | `preempted`, `run-queue`, `cpu-saturated`, `dropped-packets` | the CPUs were mostly with threads outside, or with none |
//! | `cpu-saturated` | or the recorded programs used less than a quarter of the CPU time meanwhile |
//! | `holder-preempted` | the holder's CPU was mostly so |
//! | `lock-wait`, `lock-convoy`, `allocator-lock`, `kernel-lock`, `mmap-lock`, `wake-chain` | wallprof had the lock |
//! | these six | or holders waited for a CPU for half of the whole waiting time, which was mostly so |
//! | `irq-time` | the interrupts are mostly no calls from other CPUs, or threads outside make most of these |
//!
//! `oversleep` is always the machine's. A recording has no evidence of what ran on the CPU before the timer
//! fired: the threads that ran instead are known for a wait for a CPU only, and interrupts only as sums. So the
//! program's own doing, such as ten thousand timers at one time, is not distinguished from a hypervisor's. The same
//! holds for the timer interrupts and softirqs of `irq-time`.

use super::case::Case;
use super::conclusion::Conclusion;
use super::evidence::Evidence;
use super::left_out::OWN_PROCESS;
use super::spec::{Cause, RuleSpec};
use super::{cpu_saturated, known, lock, tlb_shootdown};

/// Whose doing the finding of this rule is. What is not known of it is the rule's to say.
pub(super) fn cause(rule: &RuleSpec, conclusion: &Conclusion<'_>, evidence: &Evidence) -> Cause {
    let cases = &conclusion.cases[..];
    let known = match rule.name {
        "preempted" | "run-queue" | "dropped-packets" => CpuTime::waited_for(cases, evidence).cause(),
        "cpu-saturated" => cause_of_saturation(cases, evidence),
        "holder-preempted" => Holders::of(cases, evidence).cpus.cause(),
        "lock-wait" | "wake-chain" | "lock-convoy" | "allocator-lock" | "kernel-lock" | "mmap-lock" => {
            cause_of_lock(cases, evidence)
        }
        "irq-time" => cause_of_interrupts(conclusion, evidence),
        _ => None,
    };
    known.unwrap_or(rule.cause)
}

fn cause_of_lock(cases: &[&Case], evidence: &Evidence) -> Option<Cause> {
    if is_held_by_wallprof(cases) {
        return Some(Cause::Machine);
    }
    Holders::of(cases, evidence).cause()
}

/// Whether wallprof had the lock in most of the time: it reads memory of processes, for which it takes the lock of their
/// memory map.
fn is_held_by_wallprof(cases: &[&Case]) -> bool {
    let by_wallprof = |case: &&&Case| {
        case.waited_for().is_some_and(|party| party.comm.starts_with(OWN_PROCESS) && party.pid != case.pid)
    };
    let sum_ns = |ns: u64, case: &&Case| ns.saturating_add(case.duration_ns());
    let held_ns = cases.iter().filter(by_wallprof).fold(0, sum_ns);
    held_ns > cases.iter().fold(0, sum_ns) / 2
}

fn cause_of_saturation(cases: &[&Case], evidence: &Evidence) -> Option<Cause> {
    if !evidence.is_of_all_threads() && cpu_saturated::is_of_other_programs(evidence) {
        return Some(Cause::Machine);
    }
    CpuTime::waited_for(cases, evidence).cause()
}

/// The time for which threads waited for CPUs, by what had these. `ran_instead` may be known for a part of it.
#[derive(Default)]
struct CpuTime {
    waited_ns: u64,
    /// Threads that are recorded, or of the waiting thread's process.
    recorded_ns: u64,
    outside_ns: u64,
    /// No thread of this machine had the CPU.
    unused_ns: u64,
}

impl CpuTime {
    fn waited_for(cases: &[&Case], evidence: &Evidence) -> Self {
        let mut time = CpuTime::default();
        cases.iter().for_each(|case| time.add(case, case.cpu_wait_ns(), evidence));
        time
    }

    /// Adds `ns` of a stall's wait for a CPU: of the threads that ran instead, as much as they ran in all of it.
    fn add(&mut self, case: &Case, ns: u64, evidence: &Evidence) {
        let known_ns = case.ran_ns.min(ns);
        let outside_ns =
            if evidence.is_of_all_threads() { 0 } else { part(case.outside_ns, known_ns, case.ran_ns) };
        let unused_ns = if evidence.had_no_thread(case, case.cpu_wait_ns()) { ns } else { 0 };
        // A thread that has used up its runtime chose the runtime.
        let (unused_ns, own_ns) = if case.has_deadline() { (0, unused_ns) } else { (unused_ns, 0) };
        self.waited_ns = self.waited_ns.saturating_add(ns);
        self.recorded_ns = self.recorded_ns.saturating_add(own_ns.max(known_ns - outside_ns));
        self.outside_ns = self.outside_ns.saturating_add(outside_ns);
        self.unused_ns = self.unused_ns.saturating_add(unused_ns);
    }

    /// `None`: it is not known what had the CPUs.
    fn cause(&self) -> Option<Cause> {
        let machines_ns = self.outside_ns.saturating_add(self.unused_ns);
        match (machines_ns, self.recorded_ns) {
            (0, 0) => None,
            (machines_ns, recorded_ns) if machines_ns > recorded_ns => Some(Cause::Machine),
            _ => Some(Cause::Program),
        }
    }
}

/// `part` of `whole`, in the same proportion of `of`.
fn part(part: u64, of: u64, whole: u64) -> u64 {
    let scaled = u128::from(part) * u128::from(of) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX).min(of)
}

/// What the threads did that held locks which others waited for.
#[derive(Default)]
struct Holders {
    /// The time of all waits, those whose holder is not known, too.
    waited_ns: u64,
    /// The part of it in which the holders waited for a CPU.
    cpus: CpuTime,
}

impl Holders {
    fn of(cases: &[&Case], evidence: &Evidence) -> Self {
        let mut holders = Holders { waited_ns: known::waited_ns(cases), ..Holders::default() };
        for held in lock::held(cases, evidence) {
            let (from, to) = (held.since, held.released);
            for absence in evidence.during(held.holder, from, to) {
                let waited_ns = absence.overlap_ns(from.max(absence.queued_from()), to);
                holders.cpus.add(absence, waited_ns, evidence);
            }
        }
        holders
    }

    /// `None`: they had a CPU for more than half of the time, or it is not known what had it.
    fn cause(&self) -> Option<Cause> {
        let is_without_cpu = known::is_most(self.cpus.waited_ns, self.waited_ns);
        self.cpus.cause().filter(|_| is_without_cpu)
    }
}

/// `None`: they are calls from other CPUs, and it is not known which threads make these.
fn cause_of_interrupts(conclusion: &Conclusion<'_>, evidence: &Evidence) -> Option<Cause> {
    let calls = conclusion.interrupts.iter().filter(|row| tlb_shootdown::is_call(row));
    let calls_ns = calls.fold(0u64, |sum, row| sum.saturating_add(row.total_ns));
    if calls_ns <= conclusion.delays.total_ns / 2 {
        return Some(Cause::Machine);
    }
    let pids: Vec<u32> =
        conclusion.threads.iter().filter_map(|key| Some(evidence.thread(*key)?.pid)).collect();
    let (mut recorded, mut outside) = (0u64, 0u64);
    for call in evidence.cross_calls() {
        let is_recorded = call.caller.key.is_some() || pids.contains(&call.caller.pid);
        let count = if is_recorded || evidence.is_of_all_threads() { &mut recorded } else { &mut outside };
        *count = count.saturating_add(call.count);
    }
    match (recorded, outside) {
        (0, 0) => None,
        _ if outside > recorded => Some(Cause::Machine),
        _ => Some(Cause::Program),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{
        Fixture, WALL_NS, at, case, lock_case, run_queue, stack, steal, thread_ref, untracked, woken_by,
    };
    use super::super::{findings, rule};
    use super::*;
    use wallprof_model::event::InterruptKind;
    use wallprof_model::profile::{CrossCallRow, InterruptRow, RecordingInfo, StallRecord, WakerRecord};
    use wallprof_model::{Reason, StallReason, ThreadKey, ThreadRef};

    const MS: u64 = 1_000_000;

    /// The causes of the findings of `rule` in this recording.
    fn causes(fixture: Fixture, rule: &str) -> Vec<Cause> {
        let found = findings(&fixture.evidence());
        found.iter().filter(|finding| finding.rule == rule).map(|finding| finding.cause).collect()
    }

    /// That of the one finding of `rule` from these stalls.
    fn cause_of(rule: &str, stalls: impl IntoIterator<Item = StallRecord>) -> Cause {
        let mut fixture = Fixture::new();
        stalls.into_iter().for_each(|stall| fixture.stall(stall));
        let causes = causes(fixture, rule);
        assert_eq!(causes.len(), 1, "{rule}");
        causes[0]
    }

    /// Threads with a CPU meanwhile: `#` a recorded one, `.` one outside, `s` one that is not recorded but of
    /// the same process; a character is a millisecond.
    fn ran(timeline: &str) -> Vec<(ThreadRef, u64)> {
        let threads = [
            ('#', thread_ref(2)),
            ('.', untracked("build")),
            ('s', ThreadRef { pid: 100, ..untracked("sibling") }),
        ];
        let ns = |mark| timeline.chars().filter(|&at| at == mark).count() as u64 * MS;
        threads.into_iter().map(|(mark, thread)| (thread, ns(mark))).filter(|(_, ns)| *ns > 0).collect()
    }

    /// Forty waits for a CPU as long as the timeline, with these threads on it meanwhile.
    fn waits(reason: StallReason, timeline: &str) -> Vec<StallRecord> {
        let ns = timeline.len() as u64 * MS;
        let wait = |id| {
            let wait = case(id, 1, reason, ns);
            let runnable_ns = if reason == StallReason::Preempted { wait.runnable_ns } else { ns };
            StallRecord { runnable_ns, ran_instead: ran(timeline), ..wait }
        };
        (1..=40).map(wait).collect()
    }

    #[test]
    fn rules_of_this_file_exist() {
        let source = include_str!("cause.rs");
        let arms = source.lines().filter(|line| line.starts_with("        \"") && line.contains(" => "));
        let names = arms.flat_map(|arm| arm.split(" => ").next().unwrap_or_default().split(" | "));
        let names: Vec<&str> = names.map(|name| name.trim().trim_matches('"')).collect();
        assert_eq!(names.len(), 12, "{names:?}");
        names.iter().for_each(|name| assert!(rule(name).is_some(), "{name}"));
    }

    #[test]
    fn a_wait_for_a_cpu_is_of_the_threads_that_had_it_mostly() {
        for (rule, reason) in [("preempted", StallReason::Preempted), ("run-queue", StallReason::Runnable)] {
            let cause = |timeline: &str| cause_of(rule, waits(reason, timeline));
            assert_eq!(cause("........"), Cause::Machine, "{rule}: a neighbour outside");
            assert_eq!(cause("########"), Cause::Program, "{rule}: a recorded neighbour");
            assert_eq!(cause(".....###"), Cause::Machine, "{rule}");
            assert_eq!(cause("...#####"), Cause::Program, "{rule}");
            assert_eq!(cause("....####"), Cause::Program, "{rule}: not more than half");
            assert_eq!(cause("ssssssss"), Cause::Program, "{rule}: an unrecorded thread of the process");
            assert_eq!(cause("...     "), Cause::Machine, "{rule}: of the time that is known");
        }
    }

    #[test]
    fn a_wait_in_which_no_thread_had_the_cpu_is_the_machines() {
        let unused = waits(StallReason::Runnable, "        ");
        // The kernel side has said once who ran: else it says so never.
        let said = || StallRecord { ran_instead: ran("#"), ..case(90, 9, StallReason::Preempted, MS) };
        assert_eq!(cause_of("run-queue", unused.iter().cloned().chain([said()])), Cause::Machine);
        assert_eq!(cause_of("run-queue", unused), Cause::Machine, "not known: what the rule says");
    }

    #[test]
    fn no_thread_is_outside_of_a_recording_of_all_threads() {
        let of_all = |timeline: &str| {
            let mut fixture = Fixture::new();
            fixture.info.command = RecordingInfo::ALL_THREADS.into();
            waits(StallReason::Runnable, timeline).into_iter().for_each(|stall| fixture.stall(stall));
            fixture.stall(StallRecord { ran_instead: ran("#"), ..case(90, 9, StallReason::Preempted, MS) });
            causes(fixture, "run-queue")
        };
        assert_eq!(of_all("........"), [Cause::Program]);
        assert_eq!(of_all("########"), [Cause::Program]);
        assert_eq!(of_all("        "), [Cause::Machine], "a hypervisor");
    }

    /// Two threads wait on two CPUs that are busy for 9 s, while the recorded threads use `used_ns`.
    fn crowded(used_ns: u64, timeline: &str) -> Vec<Cause> {
        let mut fixture = Fixture::new();
        fixture.info.cpus = 2;
        fixture.threads.iter_mut().for_each(|thread| thread.ledger.on_cpu_ns = 0);
        fixture.threads[0].ledger.on_cpu_ns = used_ns;
        fixture.counters = (0..2).map(|cpu| run_queue(cpu, &[(500, 3), (9_500, 3)])).collect();
        for stall in waits(StallReason::Preempted, timeline) {
            let thread = ThreadKey(1 + stall.id as u32 % 2 * 2);
            fixture.stall(StallRecord { thread, ..stall });
        }
        causes(fixture, "cpu-saturated")
    }

    #[test]
    fn a_full_machine_is_of_those_that_fill_it() {
        let half_ns = 9_000 * MS;
        assert_eq!(crowded(half_ns, "................"), [Cause::Machine]);
        assert_eq!(crowded(half_ns, "################"), [Cause::Program]);
        assert_eq!(crowded(half_ns / 2 - 1, "################"), [Cause::Machine], "less than a quarter");
        assert_eq!(crowded(half_ns / 2, "################"), [Cause::Program]);
        assert_eq!(crowded(2 * WALL_NS, "################"), [Cause::Program], "it had all");
    }

    #[test]
    fn steal_is_the_machines() {
        let mut fixture = Fixture::new();
        fixture.counters.push(steal(1, &[(1_000, 0), (1_100, 60)]));
        let wait = case(1, 1, StallReason::Preempted, 50 * MS);
        fixture.stall(at(10 * MS, StallRecord { ran_instead: ran(&"#".repeat(50)), ..wait }));
        assert_eq!(causes(fixture, "steal"), [Cause::Machine]);
    }

    /// A wait of 8 ms for a lock whose holder, thread 2, is off the CPU for as long as the timeline.
    fn held(reason: StallReason, timeline: &str) -> [StallRecord; 2] {
        let ns = timeline.len() as u64 * MS;
        let off = StallRecord { ran_instead: ran(timeline), ..case(2, 2, reason, ns) };
        [at(0, lock_case(1, 1, 2, 8 * MS)), at(0, off)]
    }

    #[test]
    fn a_holder_without_a_cpu_is_the_doing_of_the_threads_that_had_it() {
        let cause = |timeline: &str| cause_of("holder-preempted", held(StallReason::Preempted, timeline));
        assert_eq!(cause("......"), Cause::Machine);
        assert_eq!(cause("ssssss"), Cause::Program);
        assert_eq!(cause("....ss"), Cause::Machine);
        assert_eq!(cause("..ssss"), Cause::Program);
    }

    /// The same lock, which does not name its owner: the thread that releases it is the holder.
    fn unnamed(reason: StallReason, timeline: &str) -> [StallRecord; 2] {
        let [wait, off] = held(reason, timeline);
        [StallRecord { lock: None, ..wait }, off]
    }

    #[test]
    fn a_wait_for_a_lock_is_the_machines_where_the_holder_had_no_cpu_for_half_of_it() {
        let cause = |timeline: &str| cause_of("lock-wait", unnamed(StallReason::Preempted, timeline));
        assert_eq!(cause("....."), Cause::Machine);
        assert_eq!(cause("sssss"), Cause::Program);
        assert_eq!(cause("..."), Cause::Program, "for less than half");
        let slept = unnamed(StallReason::Blocked(Reason::Sleep), ".....");
        assert_eq!(cause_of("lock-wait", slept), Cause::Program, "it slept");
    }

    #[test]
    fn a_lock_that_wallprof_had_is_the_machines() {
        let held_by = |comm: &str| {
            let waker = WakerRecord { thread: Some(untracked(comm)), user: None, kernel: None };
            let wait = case(1, 1, StallReason::Blocked(Reason::Lock), 12 * MS);
            let stall = StallRecord { syscall: Some("munmap".into()), waker: Some(waker), ..wait };
            let mut fixture = Fixture::new();
            fixture.stall(stall);
            let found = findings(&fixture.evidence()).remove(0);
            assert!(found.title.contains("waited for a lock of the kernel (munmap) in"), "{}", found.title);
            found.cause
        };
        assert_eq!(held_by("wallprof-java"), Cause::Machine);
        assert_eq!(held_by("debugger"), Cause::Program);
    }

    #[test]
    fn so_is_one_for_the_allocators_lock() {
        let cause = |timeline: &str| {
            let [wait, off] = unnamed(StallReason::Preempted, timeline);
            let user = Some(stack(&["__lll_lock_wait_private", "malloc", "take_order"]));
            cause_of("allocator-lock", [StallRecord { user, ..wait }, off])
        };
        assert_eq!(cause("....."), Cause::Machine);
        assert_eq!(cause("..."), Cause::Program, "for less than half");
    }

    #[test]
    fn a_chain_is_the_machines_where_the_holder_came_back_late() {
        // The holder asks thread 3, is answered after 4 ms, and waits for a CPU until it releases the lock.
        let chain = |timeline: &str| {
            let asked = case(2, 2, StallReason::Blocked(Reason::Pipe), 8 * MS);
            let (runnable_ns, waker) = (timeline.len() as u64 * MS, Some(woken_by(3, "answer")));
            let blocked_ns = asked.blocked_ns - runnable_ns;
            let asked = StallRecord { blocked_ns, runnable_ns, waker, ran_instead: ran(timeline), ..asked };
            cause_of("wake-chain", [at(0, lock_case(1, 1, 2, 9 * MS)), at(0, asked)])
        };
        assert_eq!(chain("....."), Cause::Machine);
        assert_eq!(chain("sssss"), Cause::Program);
        assert_eq!(chain("..."), Cause::Program, "a part of the wait");
    }

    fn interrupted(name: &str, calls: &[(ThreadRef, u64)]) -> Vec<Cause> {
        let mut fixture = Fixture::new();
        fixture.interrupts.push(InterruptRow {
            cpu: 1,
            kind: InterruptKind::Vector,
            name: name.into(),
            victim: Some(ThreadKey(1)),
            count: 1_000,
            total_ns: 600 * MS,
            max_ns: MS,
        });
        for (caller, count) in calls {
            let (caller, count) = (caller.clone(), *count);
            fixture.cross_calls.push(CrossCallRow { caller, syscall: None, function: None, count });
        }
        causes(fixture, "irq-time")
    }

    #[test]
    fn interrupts_are_the_programs_where_it_makes_the_calls() {
        let (own, other) = (thread_ref(2), untracked("tuned"));
        let calls = |counts: &[(&ThreadRef, u64)]| {
            let counts: Vec<_> = counts.iter().map(|(caller, count)| ((*caller).clone(), *count)).collect();
            interrupted("call_function", &counts)
        };
        assert_eq!(calls(&[(&own, 300), (&other, 200)]), [Cause::Program]);
        assert_eq!(calls(&[(&own, 200), (&other, 300)]), [Cause::Machine]);
        assert_eq!(calls(&[]), [Cause::Machine], "not known: what the rule says");
        assert_eq!(interrupted("nvme0q1", &[(own.clone(), 300)]), [Cause::Machine], "a device");
    }

    #[test]
    fn late_timeouts_are_the_machines() {
        let slept = |id| StallRecord {
            voluntary: false,
            asked_ns: Some(MS),
            ..case(id, 1, StallReason::Blocked(Reason::Sleep), 11 * MS)
        };
        assert_eq!(cause_of("oversleep", (1..=40).map(slept)), Cause::Machine);
    }

    #[test]
    fn every_other_finding_is_of_what_its_rule_says() {
        assert_eq!(cause_of("lock-wait", (1..=7).map(|id| lock_case(id, 1, 2, MS))), Cause::Program);
        let disk = |id| case(id, 1, StallReason::Blocked(Reason::Disk), 20 * MS);
        assert_eq!(cause_of("disk-wait", (1..=40).map(disk)), Cause::Program);
    }
}
