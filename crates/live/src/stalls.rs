// SPDX-License-Identifier: Apache-2.0
//! One off-CPU interval or page fault as the kernel side sent it → stalls of the model.
//!
//! Pure. Sets the reason of a wait (preempted, runnable, or blocked on something), and whether the wait was
//! voluntary.

use std::sync::Arc;

use wallprof_model::event::{Access, Fault, Lock, Mapping, RanInstead, Stall, WaitedFile, Waker};
use wallprof_model::{
    Meaning, MonoNs, Reason, StackId, StallKind, StallReason, ThreadKey, ThreadRef, TraceIds, WaitWord,
    WordSource,
};
use wallprof_probe::bpf::{constants as c, fault_facts, name_from_bytes, stall_record, trace_ids};
use wallprof_probe::reasons::syscall_name;

use crate::peers::peer_from_record;

/// The objects that a record refers to by id.
pub trait Lookup {
    fn stack(&self, id: u64) -> Option<StackId>;
    fn is_interrupt(&self, id: u64) -> bool;
    fn reference(&self, other: &wallprof_probe::bpf::other_thread) -> ThreadRef;
    /// The owner of a lock that the thread with this key waits for, by the tid in the lock.
    fn owner(&self, waiting: u32, ns_tid: u32) -> Option<ThreadRef>;
    /// What the wait means, as far as that is known.
    fn meaning(&self, record: &stall_record) -> Option<Arc<Meaning>>;
    /// Which word in the thread's memory the number stands for.
    fn word_source(&self, definition: u32) -> Option<Arc<WordSource>>;
}

/// The stalls in one interval. They are two where a long wait for a CPU, which is involuntary, follows a
/// voluntary wait.
pub fn stalls_from_record(record: &stall_record, min_stall_ns: u64, lookup: &dyn Lookup) -> Vec<Stall> {
    let is_fault = u64::from(record.flags) & c::STALL_FAULT != 0;
    let mut whole = times_of(record, min_stall_ns, || lookup.meaning(record));
    let is_divided = is_divided(record, &whole, min_stall_ns);
    add_facts(&mut whole, record, lookup);
    if is_fault {
        let major = whole.reason == StallReason::Major;
        whole.fault = Some(fault_from_facts(&record.fault, major));
    }
    match is_divided {
        true => whole.divided_at_wakeup(blocked_for(record), min_stall_ns),
        false => vec![whole],
    }
}

/// How late the thread was by the worst stall of this interval in which it was not idle, ns. It takes neither
/// stacks nor names.
pub fn latest_ns(record: &stall_record, min_stall_ns: u64, meaning: Option<Arc<Meaning>>) -> u64 {
    let whole = times_of(record, min_stall_ns, || meaning);
    let lateness = |stall: &Stall| if stall.is_idle() { 0 } else { stall.late_ns() };
    match is_divided(record, &whole, min_stall_ns) {
        true => {
            let parts = whole.divided_at_wakeup(blocked_for(record), min_stall_ns);
            parts.iter().map(lateness).max().unwrap_or(0)
        }
        false => lateness(&whole),
    }
}

/// Whether the late return from a voluntary wait is a stall of its own, if it is long enough.
fn is_divided(record: &stall_record, whole: &Stall, min_stall_ns: u64) -> bool {
    whole.kind == StallKind::OffCpu
        && blocked_voluntarily(record, blocked_for(record))
        && !is_overslept(whole, record.slack_ns, min_stall_ns)
}

/// Whether the timeout of the wait ended it.
pub fn timed_out(record: &stall_record) -> bool {
    let blocked_ns = record.end.saturating_sub(record.start).saturating_sub(record.runnable_ns);
    u64::from(record.flags) & c::STALL_ASKED != 0 && blocked_ns >= record.asked_ns
}

/// The interval with its times, its reason and its meaning, and what follows from them: whether it was
/// voluntary, and how late the thread was. The owner of its lock is unknown.
fn times_of(
    record: &stall_record,
    min_stall_ns: u64,
    meaning: impl FnOnce() -> Option<Arc<Meaning>>,
) -> Stall {
    let flag = |flag: u64| u64::from(record.flags) & flag != 0;
    let duration_ns = record.end.saturating_sub(record.start);
    let runnable_ns = record.runnable_ns.min(duration_ns);
    let blocked_ns = duration_ns - runnable_ns;
    let wait = blocked_for(record);
    let reason = match flag(c::STALL_PREEMPTED) {
        true if !flag(c::STALL_NEW) => StallReason::Preempted,
        false if blocked_ns >= runnable_ns => StallReason::Blocked(wait),
        _ => StallReason::Runnable,
    };
    // A sleep within a longer system call has no timeout, such as one for a disk within poll(2).
    let has_timeout = wait.is_voluntary() || wait == Reason::Lock;
    // A `Stall` is large: its fields are set in place, and it is moved once.
    let mut whole = Stall::new(ThreadKey(record.key), reason, MonoNs(record.start), duration_ns);
    whole.voluntary = false;
    whole.end = MonoNs(record.end);
    whole.open = u64::from(record.r#type) == c::RECORD_OPEN;
    (whole.blocked_ns, whole.runnable_ns) = (blocked_ns, runnable_ns);
    whole.lock = lock_address(record).map(|address| Lock { address, owner: None });
    whole.asked_ns = (flag(c::STALL_ASKED) && has_timeout).then_some(record.asked_ns);
    if flag(c::STALL_FAULT) {
        set_fault(record, &mut whole);
        return whole;
    }
    whole.meaning = matches!(reason, StallReason::Blocked(_)).then(meaning).flatten();
    let returned_in_time = match reason {
        StallReason::Runnable => whole.overslept_ns().is_some() && runnable_ns < min_stall_ns,
        _ => true,
    };
    whole.voluntary = blocked_voluntarily(record, wait)
        && returned_in_time
        && !is_overslept(&whole, record.slack_ns, min_stall_ns);
    whole
}

/// A page fault is never voluntary. Its waits are parts of it.
fn set_fault(record: &stall_record, whole: &mut Stall) {
    let major = u64::from(record.reason) == c::SLEEP_FAULT_MAJOR;
    whole.kind = StallKind::Fault;
    whole.reason = if major { StallReason::Major } else { StallReason::Minor };
    whole.blocked_ns = record.blocked_ns.min(whole.duration_ns() - whole.runnable_ns);
}

/// Adds what does not depend on the times: names, stacks and other threads.
fn add_facts(stall: &mut Stall, record: &stall_record, lookup: &dyn Lookup) {
    let flag = |flag: u64| u64::from(record.flags) & flag != 0;
    stall.comm = name_from_bytes(&record.comm);
    stall.syscall = syscall_name(record.syscall);
    stall.cpu = Some(record.cpu);
    stall.priority = i16::try_from(record.priority).ok();
    stall.user = lookup.stack(record.user_stack);
    stall.kernel = lookup.stack(record.kernel_stack);
    stall.waker = flag(c::STALL_WOKEN).then(|| waker(record, lookup));
    if let Some(lock) = &mut stall.lock {
        lock.owner = lock_owner(record, lookup);
    }
    stall.ran_instead = ran_instead(record, lookup);
    stall.file = flag(c::STALL_FILE).then(|| waited_file(&record.fault));
    stall.peer = peer_from_record(record).map(Box::new);
    stall.word = flag(c::STALL_WORD).then(|| word(record, lookup)).flatten();
    stall.trace = flag(c::STALL_TRACE).then(|| trace(&record.trace)).flatten();
}

/// Of a futex; 0 for a lock of the kernel that names its owner, which has no address in the process.
fn lock_address(record: &stall_record) -> Option<u64> {
    let flag = |flag: u64| u64::from(record.flags) & flag != 0;
    match flag(c::STALL_LOCK) {
        true => Some(record.lock_address),
        false => flag(c::STALL_KERNEL_OWNER).then_some(0),
    }
}

fn lock_owner(record: &stall_record, lookup: &dyn Lookup) -> Option<ThreadRef> {
    let flag = |flag: u64| u64::from(record.flags) & flag != 0;
    if !flag(c::STALL_LOCK) {
        return Some(lookup.reference(&record.kernel_owner));
    }
    let owner = flag(c::STALL_OWNER).then(|| lookup.owner(record.key, record.lock_owner)).flatten();
    owner.filter(|owner| !flag(c::STALL_OWNER_IF_IT_WOKE) || is_waker(record, owner))
}

fn is_waker(record: &stall_record, thread: &ThreadRef) -> bool {
    u64::from(record.flags) & c::STALL_WOKEN != 0 && record.waker.tid == thread.tid
}

fn blocked_for(record: &stall_record) -> Reason {
    Reason::from_code(record.reason).unwrap_or(Reason::Other)
}

/// Whether the thread blocked by a voluntary reason, whatever happened after the wakeup.
fn blocked_voluntarily(record: &stall_record, wait: Reason) -> bool {
    u64::from(record.flags) & c::STALL_PREEMPTED == 0 && wait.is_voluntary()
}

/// Whether it came back so late after its timeout that this is a stall: `min_stall_ns` beyond the slack that
/// the kernel allows itself.
fn is_overslept(stall: &Stall, slack_ns: u64, min_stall_ns: u64) -> bool {
    stall.overslept_ns().is_some_and(|late_ns| late_ns >= slack_ns.saturating_add(min_stall_ns))
}

/// Its name alone. The process knows its path.
fn waited_file(facts: &fault_facts) -> WaitedFile {
    let offset = Some(facts.file_offset).filter(|&offset| offset != c::NO_OFFSET);
    WaitedFile { path: name_from_bytes(&facts.file_name), offset }
}

fn word(record: &stall_record, lookup: &dyn Lookup) -> Option<WaitWord> {
    let source = lookup.word_source(record.word_definition)?;
    Some(WaitWord { source, value: record.word, text: None })
}

/// The kernel side has read the bytes as numbers of this machine.
fn trace(ids: &trace_ids) -> Option<TraceIds> {
    let [first, second] = ids.trace_id;
    let whole = u128::from(second) << 64 | u128::from(first);
    TraceIds::from_bytes(whole.to_le_bytes(), ids.span_id.to_le_bytes())
}

fn fault_from_facts(facts: &fault_facts, major: bool) -> Fault {
    let access = match u64::from(facts.access) {
        c::ACCESS_READ => Some(Access::Read),
        c::ACCESS_WRITE => Some(Access::Write),
        c::ACCESS_EXEC => Some(Access::Exec),
        _ => None,
    };
    let mapping = match u64::from(facts.mapping) {
        c::MAPPING_FILE => Some(Mapping::File),
        c::MAPPING_ANONYMOUS => Some(Mapping::Anonymous),
        c::MAPPING_STACK => Some(Mapping::Stack),
        c::MAPPING_HEAP => Some(Mapping::Heap),
        c::MAPPING_HUGE => Some(Mapping::Huge),
        _ => None,
    };
    let is_file = mapping == Some(Mapping::File);
    let name = Some(name_from_bytes(&facts.file_name)).filter(|name| is_file && !name.is_empty());
    let file_offset = is_file.then_some(facts.file_offset);
    Fault { address: facts.address, access, major, mapping, file: name, file_offset }
}

/// The current task at the wakeup is the waker only in task context. On the way out of an interrupt it is a
/// bystander, and the idle task is no thread.
fn waker(record: &stall_record, lookup: &dyn Lookup) -> Waker {
    let kernel = lookup.stack(record.waker_kernel_stack);
    if record.waker.tid == 0 || lookup.is_interrupt(record.waker_kernel_stack) {
        return Waker { thread: None, user: None, kernel };
    }
    Waker {
        thread: Some(lookup.reference(&record.waker)),
        user: lookup.stack(record.waker_user_stack),
        kernel,
    }
}

fn ran_instead(record: &stall_record, lookup: &dyn Lookup) -> Vec<RanInstead> {
    let rans = &record.ran[..usize::from(record.rans).min(record.ran.len())];
    let mut rans: Vec<_> =
        rans.iter().map(|ran| RanInstead { thread: lookup.reference(&ran.thread), ns: ran.ns }).collect();
    rans.sort_by_key(|ran| std::cmp::Reverse(ran.ns));
    rans
}

#[cfg(test)]
mod tests {
    use wallprof_meaning::waits::lock_by_wakers;
    use wallprof_probe::bpf::other_thread;

    use super::*;

    const MS: u64 = 1_000_000;
    const MIN: u64 = 100_000;

    struct Nothing;

    impl Lookup for Nothing {
        fn stack(&self, id: u64) -> Option<StackId> {
            (id != 0).then_some(StackId(id))
        }
        fn is_interrupt(&self, id: u64) -> bool {
            id == 666
        }
        fn reference(&self, other: &other_thread) -> ThreadRef {
            ThreadRef { tid: other.tid, ..ThreadRef::default() }
        }
        fn owner(&self, _: u32, ns_tid: u32) -> Option<ThreadRef> {
            (ns_tid == 5).then(|| ThreadRef { tid: 5, ..ThreadRef::default() })
        }
        fn meaning(&self, record: &stall_record) -> Option<Arc<Meaning>> {
            match record.place {
                7 => Some(lock_by_wakers()),
                8 => Some(Arc::new(Meaning { idle: true, ..(*lock_by_wakers()).clone() })),
                _ => None,
            }
        }
        fn word_source(&self, definition: u32) -> Option<Arc<WordSource>> {
            let source = WordSource { symbol: "waits_for".into(), module: "/app".into() };
            (definition == 3).then(|| Arc::new(source))
        }
    }

    fn record(reason: Reason, blocked: u64, runnable: u64) -> stall_record {
        stall_record {
            r#type: c::RECORD_STALL as u32,
            key: 1,
            start: 1_000 * MS,
            end: 1_000 * MS + blocked + runnable,
            runnable_ns: runnable,
            reason: reason.code(),
            syscall: 202,
            ..stall_record::default()
        }
    }

    fn stalls(record: &stall_record) -> Vec<Stall> {
        stalls_from_record(record, MIN, &Nothing)
    }

    #[test]
    fn longer_part_is_the_reason() {
        assert_eq!(stalls(&record(Reason::Lock, MS, 0))[0].reason, StallReason::Blocked(Reason::Lock));
        assert_eq!(stalls(&record(Reason::Lock, MS, 2 * MS))[0].reason, StallReason::Runnable);
        let mut preempted = record(Reason::Lock, 0, MS);
        preempted.flags = c::STALL_PREEMPTED as u16;
        assert_eq!(stalls(&preempted)[0].reason, StallReason::Preempted);
        preempted.flags |= c::STALL_NEW as u16;
        assert_eq!(stalls(&preempted)[0].reason, StallReason::Runnable, "its first CPU");
    }

    #[test]
    fn voluntary_wait_is_involuntary_when_overslept() {
        let mut sleep = record(Reason::Sleep, 10 * MS, 0);
        assert!(stalls(&sleep)[0].voluntary);
        sleep.flags = c::STALL_ASKED as u16;
        (sleep.asked_ns, sleep.slack_ns) = (10 * MS - 140_000, 50_000);
        assert!(stalls(&sleep)[0].voluntary, "late by its slack and less than a stall");
        sleep.asked_ns = 10 * MS - 160_000;
        assert!(!stalls(&sleep)[0].voluntary);
        sleep.asked_ns = u64::MAX;
        assert!(stalls(&sleep)[0].voluntary);
    }

    #[test]
    fn late_return_from_a_voluntary_wait_is_a_stall_of_its_own() {
        let both = stalls(&record(Reason::Wait, 10 * MS, 3 * MS));
        assert_eq!(both.len(), 2);
        assert!(both[0].voluntary && !both[1].voluntary);
        assert_eq!(both[0].end, both[1].start);
        assert_eq!(both[1].reason, StallReason::Runnable);
        assert_eq!((both[0].blocked_ns, both[1].blocked_ns, both[1].runnable_ns), (10 * MS, 0, 3 * MS));
    }

    fn timed(reason: Reason, blocked: u64, runnable: u64, asked_ns: u64) -> stall_record {
        stall_record {
            flags: c::STALL_ASKED as u16,
            asked_ns,
            slack_ns: 50_000,
            ..record(reason, blocked, runnable)
        }
    }

    #[test]
    fn lateness_counts_from_the_end_of_the_timeout() {
        let of = |record: &stall_record| latest_ns(record, MIN, None);
        assert_eq!(of(&record(Reason::Lock, 3 * MS, MS)), 4 * MS);
        assert_eq!(of(&record(Reason::Sleep, 50 * MS, 0)), 0, "voluntary");
        assert_eq!(of(&record(Reason::Poll, 50 * MS, 2 * MS)), 2 * MS, "the late return");
        let locked = latest_ns(&record(Reason::Poll, 50 * MS, 2 * MS), MIN, Some(lock_by_wakers()));
        assert_eq!(locked, 50 * MS, "its peers poll there, too");
        assert_eq!(of(&timed(Reason::Sleep, 50 * MS, 0, 49 * MS)), MS);
        assert_eq!(of(&timed(Reason::Sleep, 50 * MS, 60 * MS, 49 * MS)), 61 * MS, "mostly without a CPU");
        assert_eq!(
            of(&timed(Reason::Lock, 50 * MS, 0, 49 * MS)),
            50 * MS,
            "a timeout only bounds the wait for a lock"
        );
        let lock = stall_record {
            flags: (c::STALL_ASKED | c::STALL_LOCK) as u16,
            ..timed(Reason::Lock, MS, 60 * MS, MS)
        };
        assert_eq!(of(&lock), 61 * MS);
        assert_eq!(
            of(&timed(Reason::Disk, 50 * MS, 0, 49 * MS)),
            50 * MS,
            "a disk on the way through poll(2)"
        );
        assert_eq!(of(&timed(Reason::Disk, 50 * MS, 60 * MS, 49 * MS)), 110 * MS);
    }

    #[test]
    fn wakeup_before_the_timeout_is_no_oversleeping() {
        let both = stalls(&timed(Reason::Poll, 10 * MS, 9 * MS, 12 * MS));
        let rows: Vec<_> =
            both.iter().map(|stall| (stall.reason, stall.voluntary, stall.late_ns())).collect();
        let poll = StallReason::Blocked(Reason::Poll);
        assert_eq!(rows, [(poll, true, 10 * MS), (StallReason::Runnable, false, 9 * MS)]);
    }

    #[test]
    fn wait_has_its_meaning_and_the_late_return_has_none() {
        let at = |place| stalls(&stall_record { place, ..record(Reason::Wait, 10 * MS, 3 * MS) });
        let lock = at(7);
        assert_eq!((lock[0].meaning.clone(), &lock[1].meaning), (Some(lock_by_wakers()), &None));
        assert!(lock[0].voluntary && !lock[0].is_idle() && !lock[1].is_idle());
        assert!(at(8)[0].is_idle() && at(0)[0].is_idle());
        assert_eq!(at(0)[0].meaning, None);
        let server = &stalls(&stall_record { place: 8, ..record(Reason::Network, 10 * MS, 0) })[0];
        assert!(server.is_idle() && !server.voluntary, "for its clients");
        let timed = stall_record { place: 7, ..timed(Reason::Wait, 50 * MS, 0, 50 * MS - MIN) };
        let timed = &stalls(&timed)[0];
        assert_eq!((timed.is_idle(), timed.late_ns()), (false, 50 * MS), "a timeout only bounds it");
    }

    #[test]
    fn late_return_is_divided_also_where_the_wait_was_the_shorter_part() {
        let both = stalls(&record(Reason::Wait, 3 * MS, 10 * MS));
        let rows: Vec<_> =
            both.iter().map(|stall| (stall.reason, stall.voluntary, stall.duration_ns())).collect();
        let wait = StallReason::Blocked(Reason::Wait);
        assert_eq!(rows, [(wait, true, 3 * MS), (StallReason::Runnable, false, 10 * MS)]);
        let short = stalls(&record(Reason::Wait, MIN - 1, 10 * MS));
        assert_eq!(short.len(), 1, "a wait shorter than a stall is no row of its own");
        assert_eq!(stalls_from_record(&record(Reason::Wait, MS, 0), 0, &Nothing).len(), 1, "no empty rows");
    }

    #[test]
    fn overslept_wait_is_one_stall() {
        for runnable in [0, 2 * MS, 30 * MS] {
            let found = stalls(&timed(Reason::Sleep, 20 * MS + 50_000, runnable, 20 * MS - MS));
            let late: Vec<_> = found.iter().map(|stall| (stall.voluntary, stall.late_ns())).collect();
            assert_eq!(late, [(false, runnable + MS + 50_000)]);
        }
        let in_time = stalls(&timed(Reason::Sleep, 50_000, 60_000, 49_000));
        assert!(
            in_time.len() == 1 && in_time[0].voluntary,
            "late by less than its slack and a stall: {in_time:?}"
        );
    }

    #[test]
    fn wakers_in_interrupts_are_no_threads() {
        let mut woken = record(Reason::Network, MS, 0);
        woken.flags = c::STALL_WOKEN as u16;
        woken.waker.tid = 7;
        woken.waker_kernel_stack = 666;
        assert_eq!(stalls(&woken)[0].waker.as_ref().and_then(|waker| waker.thread.clone()), None);
        woken.waker_kernel_stack = 665;
        let waker = stalls(&woken)[0].waker.clone().expect("woken");
        assert_eq!(waker.thread.map(|thread| thread.tid), Some(7));
        woken.waker.tid = 0;
        assert_eq!(stalls(&woken)[0].waker.as_ref().and_then(|waker| waker.thread.clone()), None);
    }

    fn fault(sleep: u64, blocked: u64, runnable: u64) -> stall_record {
        let mut record = record(Reason::Lock, blocked, runnable);
        (record.reason, record.blocked_ns) = (sleep as u8, blocked - MS);
        record.flags = c::STALL_FAULT as u16;
        record.fault.address = 0x7000;
        record.fault.access = c::ACCESS_WRITE as u8;
        record
    }

    #[test]
    fn a_fault_is_one_stall_with_its_parts() {
        let stalls = stalls(&fault(c::SLEEP_FAULT_MAJOR, 4 * MS, 9 * MS));
        assert_eq!(stalls.len(), 1);
        let stall = &stalls[0];
        assert_eq!(
            (stall.kind, stall.reason, stall.voluntary),
            (StallKind::Fault, StallReason::Major, false)
        );
        assert_eq!((stall.blocked_ns, stall.runnable_ns), (3 * MS, 9 * MS), "1 ms on the CPU");
        let about = stall.fault.as_ref().expect("a fault");
        assert_eq!((about.address, about.access, about.major), (0x7000, Some(Access::Write), true));
        assert_eq!((about.mapping, about.file.as_ref(), about.file_offset), (None, None, None));
    }

    #[test]
    fn only_files_have_names_and_offsets() {
        let mut minor = fault(c::SLEEP_FAULT_MINOR, 4 * MS, 0);
        minor.fault.file_name[..3].copy_from_slice(b"a.b");
        minor.fault.file_offset = 0x2000;
        minor.fault.mapping = c::MAPPING_HEAP as u8;
        let heap = stalls(&minor)[0].fault.clone().expect("a fault");
        assert_eq!((heap.mapping, heap.file, heap.file_offset), (Some(Mapping::Heap), None, None));
        minor.fault.mapping = c::MAPPING_FILE as u8;
        let file = stalls(&minor)[0].fault.clone().expect("a fault");
        assert_eq!((file.file.as_deref(), file.file_offset, file.major), (Some("a.b"), Some(0x2000), false));
    }

    #[test]
    fn a_wait_for_a_disk_names_its_file_where_the_kernel_side_knew_it() {
        let mut read = record(Reason::Disk, 4 * MS, 0);
        assert_eq!(stalls(&read)[0].file, None);
        read.flags = c::STALL_FILE as u16;
        read.fault.file_name[..7].copy_from_slice(b"journal");
        read.fault.file_offset = 0x3000;
        let file = |path: &str, offset| Some(WaitedFile { path: path.into(), offset });
        assert_eq!(stalls(&read)[0].file, file("journal", Some(0x3000)));
        read.fault.file_offset = c::NO_OFFSET;
        assert_eq!(stalls(&read)[0].file, file("journal", None));
    }

    #[test]
    fn word_that_was_not_read_is_unknown_and_a_zero_is_a_zero() {
        let mut wait = record(Reason::Poll, 4 * MS, 0);
        wait.word_definition = 3;
        assert_eq!(stalls(&wait)[0].word, None, "the flag says whether it was read");
        wait.flags = c::STALL_WORD as u16;
        let word = stalls(&wait)[0].word.clone().expect("a word");
        assert_eq!((word.source.symbol.as_str(), word.value), ("waits_for", 0));
        wait.word_definition = 4;
        assert_eq!(stalls(&wait)[0].word, None);
    }

    #[test]
    fn trace_that_was_not_read_is_unknown() {
        let mut wait = record(Reason::Poll, 4 * MS, 0);
        wait.trace.trace_id = [u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]), u64::from_ne_bytes([9; 8])];
        wait.trace.span_id = u64::from_ne_bytes([0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(stalls(&wait)[0].trace, None, "the flag says whether it was read");
        wait.flags = c::STALL_TRACE as u16;
        let ids = stalls(&wait)[0].trace.expect("a trace");
        assert_eq!(ids.trace_id(), "01020304050607080909090909090909");
        assert_eq!(ids.span_id(), "0000000000000001");
        let mut divided = record(Reason::Poll, 4 * MS, 2 * MS);
        (divided.flags, divided.trace) = (wait.flags, wait.trace);
        let traces: Vec<_> = stalls(&divided).iter().map(|stall| stall.trace).collect();
        assert_eq!(traces, [Some(ids); 2], "its wait for a CPU is the trace's, too");
        wait.trace.span_id = 0;
        assert_eq!(stalls(&wait)[0].trace, None, "no span has this id");
    }

    #[test]
    fn parts_never_exceed_the_fault() {
        let mut odd = fault(c::SLEEP_FAULT_MINOR, 4 * MS, 0);
        (odd.blocked_ns, odd.runnable_ns) = (u64::MAX, 3 * MS);
        assert_eq!((stalls(&odd)[0].blocked_ns, stalls(&odd)[0].runnable_ns), (MS, 3 * MS));
        (odd.start, odd.end) = (odd.end, odd.start);
        assert_eq!((stalls(&odd)[0].blocked_ns, stalls(&odd)[0].runnable_ns), (0, 0));
    }

    #[test]
    fn owners_that_are_no_threads_of_the_process_are_unknown() {
        let mut waiting = record(Reason::Lock, MS, 0);
        waiting.flags = (c::STALL_LOCK | c::STALL_OWNER) as u16;
        (waiting.lock_address, waiting.lock_owner) = (0x1000, 1);
        let lock = stalls(&waiting)[0].lock.clone().expect("a lock");
        assert_eq!((lock.address, lock.owner), (0x1000, None));
        waiting.lock_owner = 5;
        assert!(stalls(&waiting)[0].lock.as_ref().is_some_and(|lock| lock.owner.is_some()));
    }

    #[test]
    fn number_that_may_be_of_another_namespace_is_believed_if_that_thread_woke() {
        let mut waiting = record(Reason::Lock, MS, 0);
        waiting.flags = (c::STALL_LOCK | c::STALL_OWNER | c::STALL_OWNER_IF_IT_WOKE) as u16;
        (waiting.lock_address, waiting.lock_owner) = (0x1000, 5);
        let owner = |waiting: &stall_record| stalls(waiting)[0].lock.clone().expect("a lock").owner;
        assert_eq!(owner(&waiting), None, "the wait is open, or an interrupt ended it");
        waiting.flags |= c::STALL_WOKEN as u16;
        waiting.waker.tid = 6;
        assert_eq!(owner(&waiting), None, "another thread");
        waiting.waker.tid = 5;
        assert_eq!(owner(&waiting).map(|owner| owner.tid), Some(5));
    }
}
