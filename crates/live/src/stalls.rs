//! One off-CPU interval or page fault as the kernel side sent it → stalls of the model.
//!
//! Pure. Here a wait gets its one word (preempted, runnable, or what it was blocked on), and here it is decided
//! whether the thread chose it.

use wallprof_model::event::{Access, Fault, Lock, Mapping, RanInstead, Stall, WaitedFile, Waker};
use wallprof_model::{MonoNs, Reason, StackId, StallKind, StallReason, ThreadKey, ThreadRef};
use wallprof_probe::bpf::{constants as c, fault_facts, name_from_bytes, stall_record};
use wallprof_probe::reasons::syscall_name;

/// `NO_OFFSET` of bpf/include/records.h.
const NO_OFFSET: u64 = u64::MAX;

/// What has to be looked up elsewhere.
pub trait Lookup {
    fn stack(&self, id: u64) -> Option<StackId>;
    fn is_interrupt(&self, id: u64) -> bool;
    fn reference(&self, other: &wallprof_probe::bpf::other_thread) -> ThreadRef;
    /// The owner of a lock that a thread with this key waits for, by the tid in the lock.
    fn owner(&self, waiting: u32, ns_tid: u32) -> Option<ThreadRef>;
}

/// The stalls in one interval: none if its thread is unknown, two where a wait that the thread chose was followed by a
/// long wait for a CPU, which it did not.
pub fn stalls_from_record(record: &stall_record, min_stall_ns: u64, lookup: &dyn Lookup) -> Vec<Stall> {
    if u64::from(record.flags) & c::STALL_FAULT != 0 {
        return vec![fault_stall(record, min_stall_ns, lookup)];
    }
    let whole = stall(record, min_stall_ns, lookup);
    if !whole.voluntary || whole.runnable_ns < min_stall_ns {
        return vec![whole];
    }
    let woken_at = MonoNs(whole.end.0 - whole.runnable_ns);
    let late = Stall {
        reason: StallReason::Runnable,
        voluntary: false,
        start: woken_at,
        blocked_ns: 0,
        asked_ns: None,
        ..whole.clone()
    };
    // One that has ended lasted to its wakeup; one still open is the same wait, woken but not yet back.
    let chosen = Stall { end: woken_at, open: false, runnable_ns: 0, ran_instead: Vec::new(), ..whole };
    vec![chosen, late]
}

/// What of an interval no thread chose, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unchosen {
    /// The longest stall.
    pub longest_ns: u64,
    /// How late the thread was by it: a sleep that lasted too long counts from when it was to end.
    pub late_ns: u64,
}

impl Unchosen {
    pub fn of(record: &stall_record, min_stall_ns: u64) -> Self {
        let stalls = stalls_from_record(record, min_stall_ns, &Nothing);
        let each = stalls.iter().filter(|stall| !stall.voluntary).map(|stall| {
            let longest_ns = stall.end.0.saturating_sub(stall.start.0);
            let overslept = matches!(stall.reason, StallReason::Blocked(reason) if reason.is_voluntary());
            let asked_ns = stall.asked_ns.filter(|_| overslept).unwrap_or(0);
            Unchosen { longest_ns, late_ns: longest_ns.saturating_sub(asked_ns) }
        });
        each.fold(Unchosen::default(), Unchosen::max)
    }

    /// The greater of both.
    pub fn max(self, other: Self) -> Self {
        Unchosen {
            longest_ns: self.longest_ns.max(other.longest_ns),
            late_ns: self.late_ns.max(other.late_ns),
        }
    }
}

/// Before anything is known: neither whether a thread chose to wait nor for how long depends on it.
struct Nothing;

impl Lookup for Nothing {
    fn stack(&self, _: u64) -> Option<StackId> {
        None
    }

    fn is_interrupt(&self, _: u64) -> bool {
        false
    }

    fn reference(&self, other: &wallprof_probe::bpf::other_thread) -> ThreadRef {
        ThreadRef { key: None, pid: other.tgid, tid: other.tid, comm: String::new() }
    }

    fn owner(&self, _: u32, _: u32) -> Option<ThreadRef> {
        None
    }
}

fn stall(record: &stall_record, min_stall_ns: u64, lookup: &dyn Lookup) -> Stall {
    let flag = |flag: u64| u64::from(record.flags) & flag != 0;
    let duration_ns = record.end.saturating_sub(record.start);
    let runnable_ns = record.runnable_ns.min(duration_ns);
    let blocked_ns = duration_ns - runnable_ns;
    let blocked_for = Reason::from_code(record.reason).unwrap_or(Reason::Other);
    let reason = match flag(c::STALL_PREEMPTED) {
        true => StallReason::Preempted,
        false if blocked_ns < runnable_ns => StallReason::Runnable,
        false => StallReason::Blocked(blocked_for),
    };
    let asked_ns = flag(c::STALL_ASKED).then_some(record.asked_ns);
    let overslept = asked_ns.is_some_and(|asked| {
        duration_ns >= asked.saturating_add(record.slack_ns).saturating_add(min_stall_ns)
    });
    let voluntary = matches!(reason, StallReason::Blocked(reason) if reason.is_voluntary()) && !overslept;
    Stall {
        thread: ThreadKey(record.key),
        comm: name_from_bytes(&record.comm),
        kind: StallKind::OffCpu,
        reason,
        voluntary,
        start: MonoNs(record.start),
        end: MonoNs(record.end),
        open: u64::from(record.r#type) == c::RECORD_OPEN,
        blocked_ns,
        runnable_ns,
        syscall: syscall_name(record.syscall),
        cpu: Some(record.cpu),
        user: lookup.stack(record.user_stack),
        kernel: lookup.stack(record.kernel_stack),
        waker: flag(c::STALL_WOKEN).then(|| waker(record, lookup)),
        lock: flag(c::STALL_LOCK).then(|| Lock {
            address: record.lock_address,
            owner: flag(c::STALL_OWNER).then(|| lookup.owner(record.key, record.lock_owner)).flatten(),
        }),
        ran_instead: ran_instead(record, lookup),
        fault: None,
        asked_ns,
        file: flag(c::STALL_FILE).then(|| waited_file(&record.fault)),
    }
}

/// By its name alone: its process knows its path.
fn waited_file(facts: &fault_facts) -> WaitedFile {
    let offset = Some(facts.file_offset).filter(|&offset| offset != NO_OFFSET);
    WaitedFile { path: name_from_bytes(&facts.file_name), offset }
}

/// A page fault is nobody's choice; its waits are parts of it.
fn fault_stall(record: &stall_record, min_stall_ns: u64, lookup: &dyn Lookup) -> Stall {
    let major = u64::from(record.reason) == c::SLEEP_FAULT_MAJOR;
    let whole = stall(record, min_stall_ns, lookup);
    let duration_ns = record.end.saturating_sub(record.start);
    Stall {
        kind: StallKind::Fault,
        reason: if major { StallReason::Major } else { StallReason::Minor },
        voluntary: false,
        blocked_ns: record.blocked_ns.min(duration_ns - whole.runnable_ns),
        fault: Some(fault_from_facts(&record.fault, major)),
        ..whole
    }
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

/// Current at the wakeup is the waker only in task context: on the way out of an interrupt it is a bystander, and the
/// idle task is nobody.
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
    fn the_longer_part_names_the_stall() {
        assert_eq!(stalls(&record(Reason::Lock, MS, 0))[0].reason, StallReason::Blocked(Reason::Lock));
        assert_eq!(stalls(&record(Reason::Lock, MS, 2 * MS))[0].reason, StallReason::Runnable);
        let mut preempted = record(Reason::Lock, 0, MS);
        preempted.flags = c::STALL_PREEMPTED as u16;
        assert_eq!(stalls(&preempted)[0].reason, StallReason::Preempted);
    }

    #[test]
    fn chosen_waits_are_voluntary_unless_overslept() {
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
    fn a_late_return_from_a_chosen_wait_is_a_stall_of_its_own() {
        let both = stalls(&record(Reason::Wait, 10 * MS, 3 * MS));
        assert_eq!(both.len(), 2);
        assert!(both[0].voluntary && !both[1].voluntary);
        assert_eq!(both[0].end, both[1].start);
        assert_eq!(both[1].reason, StallReason::Runnable);
        assert_eq!((both[0].blocked_ns, both[1].blocked_ns, both[1].runnable_ns), (10 * MS, 0, 3 * MS));
    }

    #[test]
    fn who_overslept_is_late_from_when_it_was_to_wake_up() {
        let of = |record: &stall_record| {
            let Unchosen { longest_ns, late_ns } = Unchosen::of(record, 100_000);
            (longest_ns, late_ns)
        };
        assert_eq!(of(&record(Reason::Lock, 3 * MS, MS)), (4 * MS, 4 * MS));
        assert_eq!(of(&record(Reason::Sleep, 50 * MS, 0)), (0, 0), "chosen");
        assert_eq!(of(&record(Reason::Poll, 50 * MS, 2 * MS)), (2 * MS, 2 * MS), "the late return");
        let mut sleep = record(Reason::Sleep, 50 * MS, 0);
        sleep.flags |= c::STALL_ASKED as u16;
        sleep.asked_ns = 49 * MS;
        assert_eq!(of(&sleep), (50 * MS, MS));
        let lock = stall_record { reason: Reason::Lock.code(), ..sleep };
        assert_eq!(of(&lock), (50 * MS, 50 * MS), "a lock is not asked for time");
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
        read.fault.file_offset = NO_OFFSET;
        assert_eq!(stalls(&read)[0].file, file("journal", None));
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
}
