// SPDX-License-Identifier: Apache-2.0
//! `mmap-lock`: threads waited for the lock of their own process's memory map, which another of its threads
//! held: to map, unmap or protect memory, or for a page fault beside those.
//!
//! One finding a program. Only the wait for the lock counts, in the stalls in which it lies.
//!
//! False positives: programs that start many threads at once, each of which maps its stack.

use wallprof_model::event::DelayKind;

use super::case::{Case, mostly};
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::Evidence;
use super::kernel_delay::delayed_stalls;
use super::limits::is_share;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{known, lock, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "mmap-lock",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

/// Behind the words about who held the lock.
const COPIED: &str = ", after it had copied the memory map for a fork";

const ADVICE: &str = "Map, unmap and protect less and in smaller pieces while other threads run: keep large buffers instead \
    of returning them (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD), use MADV_DONTNEED, or do it in another process.";

/// Waits that forks ended are said so where they have one of this many parts of the time.
const BY_FORKS: u64 = 2;

const FORK_ADVICE: &str = "A fork copies the page tables of the process while it has the lock: start programs with posix_spawn or \
    vfork, or let a small process fork that was started before the memory was filled. Huge pages (MADV_HUGEPAGE) have \
    fewer entries to copy, and memory with MADV_DONTFORK has none.";

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let delayed = delayed_stalls(evidence, DelayKind::MmapLock, reported, |case| evidence.program(case));
    delayed.into_iter().filter_map(|delayed| conclude(delayed, evidence)).collect()
}

fn conclude<'e>(delayed: Charged<'e>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let problem = Problem::heavy_or_frequent(delayed, evidence)?;
    let forked_ns =
        known::part_ns(&problem.cases, |case| case.waker.as_ref().is_some_and(|waker| waker.has_forked));
    let is_by_forks = forked_ns > 0 && is_share(forked_ns, BY_FORKS, known::waited_ns(&problem.cases));
    let (copied, advice) = if is_by_forks { (COPIED, FORK_ADVICE) } else { ("", ADVICE) };
    let title = format!(
        "{} waited for the lock of their process's memory map ({}){} {}{}{copied}.",
        wording::who(&problem.cases, evidence),
        what(&problem.cases),
        wording::place(problem.site().as_ref()),
        wording::delays(&problem.delays),
        lock::holder(&problem.cases, evidence, None)
    );
    Some(problem.conclude(title, advice))
}

/// The system call, or the page fault, of most of them.
fn what(cases: &[&Case]) -> String {
    let call = mostly(cases, |case| Some(case.syscall.clone().filter(|_| case.fault.is_none())));
    call.flatten().map_or("page fault".into(), |call| call.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, case, delay_in, fault, kernel_stack, woken_by};
    use super::*;
    use wallprof_model::profile::{StallRecord, WakerRecord};
    use wallprof_model::{Reason, StallReason};

    const MS: u64 = 1_000_000;

    fn unmapping(id: u64) -> StallRecord {
        StallRecord {
            syscall: Some("munmap".into()),
            waker: Some(woken_by(2, "drop_cache")),
            ..case(id, 1, StallReason::Blocked(Reason::Lock), 8 * MS)
        }
    }

    #[test]
    fn title_names_the_waiter_and_the_waker() {
        let mut fixture = Fixture::new();
        for id in 1..=20 {
            fixture.kernel_delays.push(delay_in(&unmapping(id), DelayKind::MmapLock, 0, 7 * MS));
            fixture.stall(unmapping(id));
        }
        let found = findings(&fixture.evidence());
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(
            found[0].title,
            "thread-1 of app waited for the lock of their process's memory map (munmap) in work (called by main) 20 times, \
             140 ms in all, up to 7.00 ms: thread-2 released it in drop_cache."
        );
        assert_eq!(found[0].rule, RULE.name);
    }

    #[test]
    fn page_faults_that_took_most_of_the_time_are_said() {
        let kind = |faults: u64| {
            let mut fixture = Fixture::new();
            for id in 1..=20 {
                let stall = if id <= faults { fault(id, 1, false, 8 * MS) } else { unmapping(id) };
                fixture.kernel_delays.push(delay_in(&stall, DelayKind::MmapLock, 0, 7 * MS));
                fixture.stall(stall);
            }
            findings(&fixture.evidence()).remove(0).title
        };
        assert!(kind(11).contains("memory map (page fault)"), "{}", kind(11));
        assert!(kind(9).contains("memory map (munmap)"), "{}", kind(9));
    }

    #[test]
    fn fork_that_copied_the_memory_map_is_named() {
        let title = |forks: u64| {
            let mut fixture = Fixture::new();
            for id in 1..=20 {
                let kernel = if id <= forks { ["up_write", "dup_mmap"] } else { ["up_write", "do_munmap"] };
                let waker = woken_by(2, "save_all");
                let waker = Some(WakerRecord { kernel: Some(kernel_stack(&kernel)), ..waker });
                let stall = StallRecord { waker, ..unmapping(id) };
                fixture.kernel_delays.push(delay_in(&stall, DelayKind::MmapLock, 0, 7 * MS));
                fixture.stall(stall);
            }
            findings(&fixture.evidence()).remove(0)
        };
        let found = title(10);
        let end = ": thread-2 released it in save_all, after it had copied the memory map for a fork.";
        assert!(found.title.ends_with(end), "{}", found.title);
        assert!(found.advice.contains("posix_spawn"), "{}", found.advice);
        let found = title(9);
        assert!(found.title.ends_with(": thread-2 released it in save_all."), "{}", found.title);
        assert!(found.advice.starts_with("Map, unmap"), "{}", found.advice);
    }

    #[test]
    fn page_faults_wait_for_it_too_and_a_few_are_none() {
        let found = |count: u64| {
            let mut fixture = Fixture::new();
            for id in 1..=count {
                let stall = fault(id, 1, false, 9 * MS);
                fixture.kernel_delays.push(delay_in(&stall, DelayKind::MmapLock, 0, 9 * MS));
                fixture.stall(stall);
            }
            findings(&fixture.evidence())
        };
        assert!(found(12)[0].title.contains("memory map (page fault)"), "{:?}", found(12));
        assert_eq!(found(2), []);
    }
}
