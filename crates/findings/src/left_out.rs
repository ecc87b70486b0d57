// SPDX-License-Identifier: Apache-2.0
//! The threads that findings leave out as late ones. In a recording of all threads, which no user chose,
//! these are the kernel's own threads, wallprof itself, and the processes that began and ended within a
//! second of the recording. They stay evidence: a finding names them where they had the CPU, a lock or the
//! data.

use std::collections::{HashMap, HashSet};

use wallprof_model::profile::{RecordingInfo, Thread};
use wallprof_model::{MonoNs, ThreadKey};

/// A process that lives for less than this is a command that some script runs.
const SHORT_NS: u64 = 1_000_000_000;

/// The name of wallprof's own processes.
pub(super) const OWN_PROCESS: &str = "wallprof";

pub(super) fn left_out(threads: &[Thread], info: &RecordingInfo) -> HashSet<ThreadKey> {
    if !info.is_of_all_threads() {
        return HashSet::new();
    }
    let lives = lives(threads);
    let is_short = |thread: &Thread| {
        lives.get(&thread.info.pid).is_some_and(|&(start, end)| {
            start > info.start && end < info.end && end.0.saturating_sub(start.0) < SHORT_NS
        })
    };
    let is_left_out = |thread: &&Thread| {
        thread.info.kernel_thread || thread.info.process == OWN_PROCESS || is_short(thread)
    };
    threads.iter().filter(is_left_out).map(|thread| thread.info.key).collect()
}

/// The first start and the last end of each process's threads.
fn lives(threads: &[Thread]) -> HashMap<u32, (MonoNs, MonoNs)> {
    let mut lives: HashMap<u32, (MonoNs, MonoNs)> = HashMap::new();
    for thread in threads {
        let (start, end) = lives.entry(thread.info.pid).or_insert((thread.start, thread.end));
        (*start, *end) = ((*start).min(thread.start), (*end).max(thread.end));
    }
    lives
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, WALL_NS, lock_case};
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// The findings about a wait of thread 1 for a lock, in a recording of `command`, after `change`.
    fn rules(command: &str, change: impl Fn(&mut Thread)) -> usize {
        let mut fixture = Fixture::new();
        fixture.info.command = command.into();
        change(&mut fixture.threads[0]);
        fixture.stall(lock_case(1, 1, 2, 2_000_000));
        findings(&fixture.evidence()).len()
    }

    /// A process of its own that lives from `start` on.
    fn lived(thread: &mut Thread, start: u64, ns: u64) {
        thread.info.pid = 7;
        (thread.start, thread.end) = (MonoNs(start), MonoNs(start + ns));
    }

    #[test]
    fn kernel_threads_wallprof_and_short_commands_have_no_findings_among_all_threads() {
        let changes: [&dyn Fn(&mut Thread); 3] = [
            &|thread| thread.info.kernel_thread = true,
            &|thread| thread.info.process = "wallprof".into(),
            &|thread| lived(thread, SECOND, SECOND - 1),
        ];
        for change in changes {
            assert_eq!((rules("all threads", change), rules("app", change)), (0, 1));
        }
    }

    #[test]
    fn processes_that_lived_longer_or_beyond_the_recording_are_not_left_out() {
        assert_eq!(rules("all threads", |_| ()), 1);
        assert_eq!(rules("all threads", |thread| lived(thread, SECOND, SECOND)), 1);
        assert_eq!(rules("all threads", |thread| lived(thread, 0, SECOND / 2)), 1, "since before it");
        assert_eq!(rules("all threads", |thread| lived(thread, WALL_NS - 1_000, 1_000)), 1, "until after it");
    }

    #[test]
    fn threads_of_a_process_live_as_long_as_it() {
        let starts_late = |thread: &mut Thread| {
            (thread.start, thread.end) = (MonoNs(SECOND), MonoNs(SECOND + 5));
        };
        assert_eq!(rules("all threads", starts_late), 1);
    }
}
