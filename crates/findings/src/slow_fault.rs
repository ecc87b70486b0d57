// SPDX-License-Identifier: Apache-2.0
//! `slow-fault`: page faults that read nothing took long, because they waited: for the page to be written back,
//! for the journal of the file system, for a frozen file system, for a page that another thread has locked, for a
//! lock of the kernel. The kernel counts them as minor. Names the file, the offset and what ended the waits.
//!
//! One finding a program, kind of wait and file. Time spent waiting for a CPU in such a fault belongs to
//! `run-queue`.
//!
//! False positives: threads whose task is to store to mapped files, and that no other thread waits for.

use wallprof_meaning::site::base_name;
use wallprof_model::FrameKind;
use wallprof_model::event::Access;
use wallprof_model::profile::ResolvedStack;

use super::case::{Case, grouped, mostly};
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::Evidence;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{other_end, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "slow-fault",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

/// What a page fault waits for that reads nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FaultWait {
    Writeback,
    Journal,
    /// `fsfreeze`, as snapshots of volumes do.
    Frozen,
    /// A page that another thread reads or writes.
    LockedPage,
    /// A process that provides the page, by `userfaultfd(2)`.
    Provider,
    KernelLock,
}

use FaultWait::{Frozen, Journal, KernelLock, LockedPage, Provider, Writeback};

/// Functions of the kernel, by their beginnings, and what a fault waits for in them; the first that any function
/// of the stack matches decides. Compilers turn the calls of folio_wait_stable() and folio_wait_writeback() into
/// jumps, and only folio_wait_bit() is in the stack.
const WAITS: [(&str, FaultWait); 20] = [
    ("handle_userfault", Provider),
    ("do_get_write_access", Journal),
    ("wait_transaction_locked", Journal),
    ("start_this_handle", Journal),
    ("jbd2_", Journal),
    ("xlog_", Journal),
    ("xfs_log_", Journal),
    ("wait_current_trans", Journal),
    ("percpu_rwsem_wait", Frozen),
    ("__percpu_down_read", Frozen),
    ("__folio_lock", LockedPage),
    ("folio_wait_stable", Writeback),
    ("folio_wait_writeback", Writeback),
    ("fuse_wait_on_", Writeback),
    ("folio_wait_bit", LockedPage),
    ("migration_entry_wait", LockedPage),
    ("__mutex_lock", KernelLock),
    ("mutex_lock", KernelLock),
    ("rwsem_down_", KernelLock),
    ("__down", KernelLock),
];

impl FaultWait {
    /// Of a fault with this stack, which stores or reads; `None`: it does not wait for one of these.
    pub(super) fn of(kernel: &ResolvedStack, is_store: bool) -> Option<Self> {
        let frames = kernel.frames.iter().filter(|frame| frame.kind == FrameKind::Kernel);
        let names = frames.flat_map(|frame| frame.lines.iter().filter_map(|line| line.symbol.as_deref()));
        let names: Vec<&str> = names.collect();
        let has = |beginning: &str| names.iter().any(|name| name.starts_with(beginning));
        let (_, found) = WAITS.iter().find(|(beginning, _)| has(beginning))?;
        let is_unlocked = !has("__folio_lock") && !has("migration_entry");
        Some(if *found == LockedPage && is_store && is_unlocked { Writeback } else { *found })
    }

    fn words(self, of: &str) -> String {
        match self {
            Writeback => format!("pages{of} to be written back to disk"),
            Journal => format!("the journal of the file system{of}"),
            Frozen => format!("a frozen file system{of}"),
            LockedPage => format!("pages{of} that others read or write"),
            Provider => format!("pages{of} that another thread provides (userfaultfd)"),
            KernelLock => format!("a lock of the kernel{of}"),
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Writeback | Journal => {
                "Do not store to a mapped file where the thread must not wait: map a file in memory (/dev/shm), store in \
                 another thread, or write(2) there. For a JVM's hsperfdata: -XX:+PerfDisableSharedMem."
            }
            Frozen => {
                "Find out what freezes the file system (fsfreeze: snapshots, backups), or keep the file elsewhere."
            }
            LockedPage => "Touch the pages before (MAP_POPULATE, madvise), or read ahead in another thread.",
            Provider => {
                "Make the thread that provides the pages faster, or provide them before they are touched."
            }
            KernelLock => {
                "Keep other threads from holding it on this path: touch the pages before they are needed."
            }
        }
    }
}

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let waits = evidence.cases().filter(|case| wait(case).is_some() && !reported.has(case));
    let files = grouped(waits, |case| {
        (evidence.program(case), wait(case), case.fault.as_ref().and_then(|fault| fault.file.clone()))
    });
    files.into_iter().filter_map(|((_, wait, _), cases)| conclude(wait?, cases, evidence)).collect()
}

fn wait(case: &Case) -> Option<FaultWait> {
    case.fault.as_ref().filter(|fault| !fault.major)?.wait
}

fn conclude<'e>(wait: FaultWait, cases: Vec<&'e Case>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let problem = Problem::heavy(Charged::over(cases, Case::without_run_queue_ns), evidence)?;
    let delays = problem.delays;
    let cases = &problem.cases;
    let worst = cases.iter().max_by_key(|case| (case.without_run_queue_ns(), case.id))?;
    let fault = worst.fault.as_ref()?;
    let of = fault.file.as_deref().map(|file| format!(" of {}", base_name(file))).unwrap_or_default();
    let offset = fault.offset.map(|at| format!(", the slowest at {at:#x}")).unwrap_or_default();
    let access = mostly(cases, |case| Some(access(case.fault.as_ref()?.access)));
    let title = format!(
        "{} waited for {} ({}{offset}){} {}{}.",
        wording::who(cases, evidence),
        wait.words(&of),
        access.unwrap_or("page faults"),
        wording::place(problem.site().as_ref()),
        wording::delays(&delays),
        other_end::ended(cases, evidence)
    );
    Some(problem.conclude(title, wait.advice()))
}

fn access(access: Option<Access>) -> &'static str {
    match access {
        Some(Access::Write) => "write faults",
        Some(Access::Read) => "read faults",
        _ => "page faults",
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, case, fault, kernel_stack, untracked};
    use super::*;

    use wallprof_model::event::Fault;
    use wallprof_model::profile::{StallRecord, WakerRecord};

    const MS: u64 = 1_000_000;

    fn store(id: u64, functions: &[&str], ns: u64) -> StallRecord {
        let stall = fault(id, 1, false, ns);
        let page = stall.fault.clone().expect("a fault");
        let kworker = WakerRecord { thread: Some(untracked("kworker/u4:1")), user: None, kernel: None };
        StallRecord {
            fault: Some(Fault { access: Some(Access::Write), ..page }),
            kernel: Some(kernel_stack(functions)),
            waker: Some(kworker),
            ..stall
        }
    }

    #[test]
    fn store_to_a_page_under_writeback_names_the_file_the_offset_and_what_ended_it() {
        let functions = ["io_schedule", "folio_wait_bit", "ext4_page_mkwrite", "do_page_mkwrite"];
        let found = Fixture::only_finding((1..=6).map(|id| store(id, &functions, 40 * MS + id)));
        assert_eq!((found.rule.as_str(), found.count), (RULE.name, 6));
        assert_eq!(
            found.title,
            "thread-1 of app waited for pages of prices.idx to be written back to disk (write faults, the slowest at \
             0x2008) in work (called by main) 6 times, 240 ms in all, up to 40.0 ms: kworker/u4:1 900 ended it."
        );
        assert!(found.advice.contains("/dev/shm"), "{}", found.advice);
    }

    #[test]
    fn kernel_functions_say_what_a_fault_waits_for() {
        for (functions, access, wait) in [
            (&["folio_wait_writeback", "filemap_page_mkwrite"][..], Access::Write, Some(Writeback)),
            (
                &["folio_wait_bit_common", "__folio_lock", "ext4_page_mkwrite"],
                Access::Write,
                Some(LockedPage),
            ),
            (&["folio_wait_bit_common", "filemap_fault"], Access::Read, Some(LockedPage)),
            (&["bit_wait", "do_get_write_access", "ext4_dirty_inode"], Access::Write, Some(Journal)),
            (&["schedule", "percpu_rwsem_wait", "ext4_page_mkwrite"], Access::Write, Some(Frozen)),
            (&["schedule", "handle_userfault", "do_anonymous_page"], Access::Read, Some(Provider)),
            (&["schedule", "rwsem_down_read_slowpath", "ext4_map_blocks"], Access::Write, Some(KernelLock)),
            (&["schedule", "exc_page_fault"], Access::Write, None),
        ] {
            assert_eq!(
                FaultWait::of(&kernel_stack(functions), access == Access::Write),
                wait,
                "{functions:?}"
            );
        }
        let program = super::super::fixture::stack(&["folio_wait_writeback"]);
        assert_eq!(FaultWait::of(&program, true), None, "a program's own function");
    }

    #[test]
    fn short_faults_waits_for_a_cpu_and_calls_are_none() {
        let functions = ["folio_wait_writeback", "ext4_page_mkwrite"];
        assert_eq!(Fixture::findings((1..=10).map(|id| store(id, &functions, 900_000))), []);
        let starved = StallRecord { runnable_ns: 30 * MS, ..store(1, &functions, 30 * MS + 900_000) };
        assert!(Fixture::findings([starved]).iter().all(|found| found.rule != RULE.name));
        let call = StallRecord {
            kernel: Some(kernel_stack(&functions)),
            ..case(1, 1, wallprof_model::StallReason::Blocked(wallprof_model::Reason::Disk), 40 * MS)
        };
        assert_eq!(Fixture::only_finding([call]).rule, "disk-wait");
    }
}
