// SPDX-License-Identifier: Apache-2.0
//! `program-wait`: threads waited inside a system call for another program that decides about the call, or
//! serves it: a scanner, the supervisor of a seccomp filter, a file system in user space, the reader of a queue that
//! is full, a child between vfork and exec. Names that program, and what it did meanwhile if it is recorded.
//!
//! One finding a program and kind of wait, where waits of 10 ms or longer took a hundredth of the threads'
//! time, or one took 20 ms, or where all of them took half of the time. Waits for space in a queue count however short
//! they are, where they took a twentieth of the time: a queue that is full again and again has a reader that is too slow
//! for its writers. Page faults that such a file system serves have a finding of their own, with the limits of
//! `major-fault`.
//!
//! False positives: a program that reads large amounts through a file system in user space, as its task is.

use wallprof_meaning::waits::FILE_SERVER;

use super::case::{Case, grouped, mostly};
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::Evidence;
use super::limits::{SHORTEST_BLOCK_NS, is_share, wall_ns};
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{other_end, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "program-wait",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

/// A kind of wait for another program.
struct Kind {
    /// Its meaning, by `waits/linux.toml`.
    meaning: &'static str,
    /// `waited for …`.
    what: &'static str,
    advice: &'static str,
}

/// Those that wait for space in a queue: each wait says that its reader is behind.
const QUEUES: [&str; 3] = ["datagram queue", "full backlog", "full message queue"];

const KINDS: [Kind; 12] = [
    Kind {
        meaning: "scanner",
        what: "a scanner to permit access to a file",
        advice: "Exclude these files from scanning at access (fanotify: virus scanners, fapolicyd, security agents), \
                 or open them once and keep them open.",
    },
    Kind {
        meaning: "seccomp supervisor",
        what: "the supervisor of its seccomp filter",
        advice: "Make the supervisor answer faster, or do not let the filter ask it about this call.",
    },
    Kind {
        meaning: FILE_SERVER,
        what: "a file system in user space (FUSE)",
        advice: "Make the process that serves the file system faster, let it cache more (attribute timeouts, \
                 kernel_cache, read-ahead), or keep these files elsewhere.",
    },
    Kind {
        meaning: "terminal",
        what: "space in its terminal, whose other end does not read",
        advice: "Let the other end (ssh, tmux, the log of a container) read faster, print less, or write to a file.",
    },
    Kind {
        meaning: "datagram queue",
        what: "space in the queue of another unix socket",
        advice: "Let its reader (a log daemon) read faster, or send with MSG_DONTWAIT and count what is dropped.",
    },
    Kind {
        meaning: "full backlog",
        what: "a unix socket's listener to accept connections",
        advice: "Let the listener accept faster, in a thread of its own, or give listen(2) a larger backlog.",
    },
    Kind {
        meaning: "full message queue",
        what: "space in a message queue",
        advice: "Let the queue's readers read faster, make the queue larger, or send with IPC_NOWAIT or O_NONBLOCK and \
                 count what is dropped.",
    },
    Kind {
        meaning: "file lease",
        what: "the lease of a file to be given up (F_SETLEASE)",
        advice: "Let the program that has the lease (smbd, an NFS server for a client) give it up faster, do without \
                 leases there, or open with O_NONBLOCK, which does not wait.",
    },
    Kind {
        meaning: "automounter",
        what: "the automounter (autofs)",
        advice: "See what the automounter waits for: a server that does not answer, a name that does not resolve. Do not \
                 look for files in its folder that are not there, or mount what is needed before.",
    },
    Kind {
        meaning: "vfork",
        what: "its child to execute a program (vfork)",
        advice: "Do less in the child before it executes the program, or start programs in a thread that has nothing \
                 else to do: the calling thread sleeps until then.",
    },
    Kind {
        meaning: "lingering close",
        what: "the other end to receive what it had sent before it closed (SO_LINGER)",
        advice: "Close in another thread, or with a shorter linger time; shutdown(2) does not wait.",
    },
    Kind {
        meaning: "core dump",
        what: "a dump of the process (core)",
        advice: "Dump less (coredump_filter, MADV_DONTDUMP), or to a faster program or file (core_pattern).",
    },
];

/// The part of the threads' time that waits take which are a finding however short each is.
const MOST_PART: u64 = 2;

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let is_one = |case: &&Case| !case.voluntary && !reported.has(case);
    let of_kind = |kind: &'static Kind| {
        let is_of_kind = |case: &&Case| match case.kernel_said() {
            Some(said) => said == kind.meaning,
            None => kind.meaning == FILE_SERVER && case.is_read_by_a_process(),
        };
        let waits = evidence.cases().filter(is_of_kind).filter(is_one);
        let programs = grouped(waits, |case| (evidence.program(case), case.is_major()));
        programs.into_values().filter_map(move |cases| conclude(kind, cases, evidence))
    };
    KINDS.iter().flat_map(of_kind).collect()
}

fn conclude<'e>(kind: &Kind, cases: Vec<&'e Case>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let is_long = |case: &&Case| case.without_run_queue_ns() >= SHORTEST_BLOCK_NS;
    let long: Vec<&Case> = cases.iter().copied().filter(is_long).collect();
    let of_all = || {
        let is_enough = |problem: &Problem<'_>| {
            let half = || is_share(problem.delays.total_ns, MOST_PART, wall_ns(evidence, &problem.threads));
            QUEUES.contains(&kind.meaning) || half()
        };
        Problem::frequent(Charged::over(cases.clone(), Case::duration_ns), evidence).filter(is_enough)
    };
    let problem = if cases.iter().any(|case| case.is_major()) {
        Problem::unusual(Charged::over(cases, Case::without_run_queue_ns), evidence)?
    } else {
        of_all().or_else(|| Problem::heavy(Charged::over(long, Case::duration_ns), evidence))?
    };
    let (cases, delays) = (&problem.cases, problem.delays);
    let call = mostly(cases, |case| case.syscall.clone()).map(|call| format!(" ({call})"));
    let title = format!(
        "{} waited for {}{}{}{} {}{}.",
        wording::who(cases, evidence),
        kind.what,
        call.unwrap_or_default(),
        wording::files(cases),
        wording::place(problem.site().as_ref()),
        wording::delays(&delays),
        other_end::ended(cases, evidence)
    );
    Some(problem.conclude(title, kind.advice))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, at, case, fault, stack, thread_ref, untracked, woken_by};
    use super::*;
    use std::sync::Arc;

    use wallprof_model::event::WaitedFile;
    use wallprof_model::profile::{StallRecord, WakerRecord};
    use wallprof_model::{Meaning, MeaningSource, Reason, StallReason};

    use wallprof_meaning::waits::{LINUX, Rules};

    const MS: u64 = 1_000_000;

    fn meaning(name: &str) -> Option<Arc<Meaning>> {
        let (name, software) = (name.into(), Some(LINUX.into()));
        Some(Arc::new(Meaning { name, software, idle: false, holder: false, source: MeaningSource::Stack }))
    }

    fn scanned(id: u64, ns: u64) -> StallRecord {
        StallRecord {
            syscall: Some("openat".into()),
            meaning: meaning("scanner"),
            waker: Some(WakerRecord { thread: Some(untracked("clamd")), ..woken_by(2, "answer") }),
            ..case(id, 1, StallReason::Blocked(Reason::Other), ns)
        }
    }

    #[test]
    fn the_scanner_is_named() {
        let found = Fixture::only_finding((1..=10).map(|id| scanned(id, 30 * MS)));
        assert_eq!(found.rule, RULE.name);
        assert_eq!(
            found.title,
            "thread-1 of app waited for a scanner to permit access to a file (openat) in work (called by main) 10 \
             times, 300 ms in all, up to 30.0 ms: clamd 900 ended it in answer."
        );
        assert!(found.advice.starts_with("Exclude"), "{}", found.advice);
    }

    #[test]
    fn what_a_recorded_scanner_did_meanwhile_is_named() {
        let wait = |id| {
            let own = WakerRecord { thread: Some(thread_ref(2)), ..woken_by(2, "answer") };
            at(id * 50 * MS, StallRecord { waker: Some(own), ..scanned(id, 30 * MS) })
        };
        let slept = |id| {
            let sleep = case(100 + id, 2, StallReason::Blocked(Reason::Sleep), 28 * MS);
            at(id * 50 * MS + MS, StallRecord { voluntary: true, ..sleep })
        };
        let found = Fixture::only_finding((1..=5).flat_map(|id| [wait(id), slept(id)]));
        let end = ": thread-2 ended it in answer, while thread-2 was mostly in sleep in work.";
        assert!(found.title.ends_with(end), "{}", found.title);
    }

    #[test]
    fn a_read_that_a_process_serves_is_no_wait_for_a_disk() {
        let read = |id| StallRecord {
            syscall: Some("read".into()),
            meaning: meaning("file server"),
            file: Some(WaitedFile { path: "/mnt/s3/index".into(), offset: None }),
            reason: StallReason::Blocked(Reason::Disk),
            ..scanned(id, 30 * MS)
        };
        let found = Fixture::only_finding((1..=10).map(read));
        assert_eq!(found.rule, RULE.name);
        let what = "waited for a file system in user space (FUSE) (read) on index in work";
        assert!(found.title.contains(what), "{}", found.title);
    }

    fn answered(fault: StallRecord) -> StallRecord {
        let kernel = Some(stack(&["try_to_wake_up", "fuse_request_end", "fuse_dev_do_write", "do_writev"]));
        let thread = Some(untracked("slowfs"));
        StallRecord { waker: Some(WakerRecord { thread, kernel, ..woken_by(2, "answer") }), ..fault }
    }

    #[test]
    fn page_fault_that_a_process_serves_is_no_wait_for_a_disk() {
        let served = |id| answered(fault(id, 1, true, 30 * MS));
        let found = Fixture::only_finding((1..=10).map(served));
        assert_eq!(found.rule, RULE.name);
        assert_eq!(
            found.title,
            "thread-1 of app waited for a file system in user space (FUSE) on prices.idx in work (called by main) 10 \
             times, 300 ms in all, up to 30.0 ms: slowfs 900 ended it in answer."
        );
        let short = Fixture::only_finding((1..=50).map(|id| answered(fault(id, 1, true, MS))));
        assert_eq!((short.rule.as_str(), short.count), (RULE.name, 50));
        assert_eq!(Fixture::findings((1..=4).map(|id| answered(fault(id, 1, true, MS / 5)))), []);
    }

    #[test]
    fn pages_that_a_process_reads_ahead_are_no_wait_for_a_disk() {
        let read = |id| answered(case(id, 1, StallReason::Blocked(Reason::Disk), 30 * MS));
        assert_eq!(Fixture::only_finding((1..=10).map(read)).rule, RULE.name);
        let by_disk = |id| case(id, 1, StallReason::Blocked(Reason::Disk), 30 * MS);
        assert_ne!(Fixture::only_finding((1..=10).map(by_disk)).rule, RULE.name);
    }

    #[test]
    fn short_waits_that_take_half_of_the_time_are_one() {
        let read = |id| StallRecord { meaning: meaning(FILE_SERVER), ..scanned(id, MS) };
        let found = Fixture::only_finding((1..=6_000).map(read));
        assert_eq!((found.rule.as_str(), found.count), (RULE.name, 6_000));
        assert_eq!(Fixture::findings((1..=4_000).map(read)), []);
    }

    #[test]
    fn poll_that_a_supervisor_decides_about_is_one() {
        let poll = |id| StallRecord {
            syscall: Some("poll".into()),
            meaning: meaning("seccomp supervisor"),
            reason: StallReason::Blocked(Reason::Poll),
            ..scanned(id, 30 * MS)
        };
        assert_eq!(Fixture::only_finding((1..=10).map(poll)).rule, RULE.name);
    }

    #[test]
    fn each_kind_has_a_rule_about_the_functions_of_the_kernel() {
        let rules = Rules::built_in().unwrap();
        for kind in &KINDS {
            let mut meanings = rules.iter().map(|rule| &rule.meaning).filter(|meaning| !meaning.idle);
            let is_it = |meaning: &Arc<Meaning>| {
                meaning.name == kind.meaning && meaning.software.as_deref() == Some(LINUX)
            };
            assert!(meanings.any(is_it), "{}", kind.meaning);
        }
    }

    #[test]
    fn queue_that_is_full_for_some_milliseconds_again_and_again_is_one() {
        let full = |id, ns| StallRecord {
            syscall: Some("mq_timedsend".into()),
            meaning: meaning("full message queue"),
            reason: StallReason::Blocked(Reason::Ipc),
            ..scanned(id, ns)
        };
        let found = Fixture::only_finding((1..=150).map(|id| full(id, 4 * MS)));
        assert_eq!(found.rule, RULE.name);
        let said = "waited for space in a message queue (mq_timedsend) in work (called by main) 150 times, 600 ms in all";
        assert!(found.title.contains(said), "{}", found.title);
        assert_eq!(Fixture::only_finding((1..=1_500).map(|id| full(id, MS / 2))).count, 1_500);
        assert_eq!(Fixture::findings((1..=50).map(|id| full(id, 4 * MS))), [], "2 % of the time");
    }

    #[test]
    fn fast_answers_and_few_slow_ones_are_none() {
        assert_eq!(Fixture::findings((1..=90).map(|id| scanned(id, 9 * MS))), []);
        assert_eq!(Fixture::findings((1..=4).map(|id| scanned(id, 11 * MS))), []);
        assert_eq!(Fixture::only_finding([scanned(1, 20 * MS)]).rule, RULE.name);
    }
}
