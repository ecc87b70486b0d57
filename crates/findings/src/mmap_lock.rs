// SPDX-License-Identifier: Apache-2.0
//! `mmap-lock`: threads waited for the lock of their own process's memory map, which another of its threads
//! held: to map, unmap or protect memory, or for a page fault beside those.
//!
//! One finding a program. Only the wait for the lock counts, in the stalls in which it lies.
//!
//! False positives: programs that start many threads at once, each of which maps its stack.

use wallprof_model::event::DelayKind;

use super::case::{Case, mostly};
use super::conclusion::{Conclusion, Problem};
use super::evidence::Evidence;
use super::kernel_delay::DelayedStalls;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{lock, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "mmap-lock",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

const ADVICE: &str = "Map, unmap and protect less and in smaller pieces while other threads run: keep large buffers instead \
    of returning them (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD), use MADV_DONTNEED, or do it in another process.";

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let delayed = DelayedStalls::find(evidence, DelayKind::MmapLock, reported, |case| evidence.program(case));
    delayed.into_iter().filter_map(|delayed| conclude(delayed, evidence)).collect()
}

fn conclude<'e>(delayed: DelayedStalls<'e>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let problem = Problem::heavy_or_frequent(delayed.cases, delayed.delays, evidence)?;
    let title = format!(
        "{} waited for the lock of their process's memory map ({}){} {}{}.",
        wording::who(&problem.cases, evidence),
        what(&problem.cases),
        wording::place(problem.site().as_ref()),
        wording::delays(&problem.delays),
        lock::holder(&problem.cases, evidence, None)
    );
    Some(problem.conclude(title, ADVICE))
}

/// The system call, or the page fault, of most of them.
fn what(cases: &[&Case]) -> String {
    let call = mostly(cases, |case| case.syscall.clone().filter(|_| case.fault.is_none()));
    call.map_or("page fault".into(), |call| call.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, case, delay_in, fault, woken_by};
    use super::*;
    use wallprof_model::profile::StallRecord;
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
