// SPDX-License-Identifier: Apache-2.0
//! One look at all threads, with complete stacks: `wallprof stacks`.
//!
//! Owns the passes over the threads, and the stacks that they find. Records nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use wallprof_meaning::waits::Rules;
use wallprof_model::profile::{LockRecord, ResolvedFrame, ResolvedStack};
use wallprof_model::{
    Activity, Event, Frame, FrameId, Meaning, Module, ModuleId, MonoNs, Reason, Since, StackEnd, StackId,
    SymbolLine, ThreadNow, ThreadRef,
};
use wallprof_probe::bpf::{constants as c, look_record, name_from_bytes, stack_record};
use wallprof_probe::reasons::syscall_name;
use wallprof_probe::{Look as Probe, Pass, Targets, clock};
use wallprof_symbols::KernelSymbols;

use crate::follower::Follower;
use crate::known::KnownProcesses;
use crate::session::{SessionError, sites};
use crate::stacks::Stacks;
use crate::words::{ReadWords, WordSources, Words};

/// The CPUs are sampled this long for the stacks of running threads.
const SAMPLED: Duration = Duration::from_millis(10);
/// A sleep before the look: the distance of the clocks is that of this thread's arrival on its CPU.
const BREATH: Duration = Duration::from_micros(50);
/// Holders of the kernel's locks that are no targets can wait for each other: their chain is followed so far.
const MOST_LINKS: usize = 8;

/// Everything that one look found.
#[derive(Debug, Default)]
pub struct Seen {
    /// In the order of the kernel's list. This process is left out.
    pub threads: Vec<ThreadNow>,
    /// The threads among them that are no targets: they hold locks of the kernel for which targets wait.
    pub holders: HashSet<u32>,
    /// Stacks that did not fit into the kernel's map.
    pub lost_stacks: u64,
}

/// Loaded programs, and the unwind tables of the processes that are looked at.
pub struct Look {
    probe: Probe,
    follower: Follower,
    stacks: Stacks,
    rules: Arc<Rules>,
    words: ReadWords,
    holders: HashSet<u32>,
}

impl Look {
    /// Loads the programs, and builds the unwind tables of the code that the processes have mapped.
    pub fn load(targets: Targets, rules: Arc<Rules>) -> Result<Self, SessionError> {
        let (mut probe, code) = Probe::load(targets)?;
        probe.find()?;
        let mut known = KnownProcesses::default();
        known.charge_nothing();
        let mut holders = HashSet::new();
        for _ in 0..MOST_LINKS {
            let others = other_holders(&mut probe, &mut known)?;
            let before = holders.len();
            holders.extend(&others);
            if holders.len() == before {
                break;
            }
            probe.add_threads(&others)?;
        }
        known.start_charging();
        let sources = Arc::new(WordSources::default());
        let words = ReadWords { rules: Some(rules.clone()), sources: sources.clone() };
        let follower = Follower::start(code, known, Vec::new(), Words::new(rules.clone(), sources), None)
            .map_err(|error| SessionError::Reading { what: "news about mappings", error })?;
        Ok(Look { probe, follower, stacks: Stacks::default(), rules, words, holders })
    }

    /// Names kernel frames, and the reasons of uninterruptible sleeps.
    pub fn set_kernel_symbols(&mut self, symbols: Arc<KernelSymbols>) {
        self.probe.set_sites(&sites(&symbols));
        self.stacks.set_kernel_symbols(symbols);
    }

    /// Looks at all threads, and then names the functions.
    pub fn take(mut self) -> Result<Seen, SessionError> {
        let mut found = Found::default();
        // Threads that have started since.
        self.probe.find()?;
        std::thread::sleep(BREATH);
        let mut records = Vec::new();
        self.pass(&mut records, &mut found, |probe, records, take_stack| {
            probe.threads(Pass::Walk, &mut |record| records.push(*record), take_stack)
        })?;
        let mut samples = HashMap::new();
        self.pass(&mut samples, &mut found, |probe, samples, take_stack| {
            let mut take = |key, user, kernel| {
                samples.insert(key, (user, kernel));
            };
            probe.sample(SAMPLED, &mut take, take_stack)
        })?;
        self.pass(&mut records, &mut found, |probe, records, take_stack| {
            probe.threads(Pass::Rest, &mut |record| records.push(with_sample(*record, &samples)), take_stack)
        })?;
        self.name(&mut found);
        let lag_ns = self.probe.clock_lag_ns();
        let threads = found.threads(&records, lag_ns, &self.rules, &self.words);
        Ok(Seen { threads, holders: self.holders, lost_stacks: self.probe.lost_stacks()? })
    }

    /// One pass of the probe, whose stacks go to `found`.
    fn pass<T>(
        &mut self,
        into: &mut T,
        found: &mut Found,
        pass: impl FnOnce(&mut Probe, &mut T, &mut dyn FnMut(u64, &stack_record)) -> Result<(), SessionError>,
    ) -> Result<(), SessionError> {
        let Look { probe, follower, stacks, .. } = self;
        let now = clock::mono_now();
        let mut known = follower.known();
        pass(probe, into, &mut |id, record| {
            stacks.emit(id, record, MonoNs(now.0), &mut known, &mut |event| found.take(event));
        })
    }

    fn name(&mut self, found: &mut Found) {
        let follower = &self.follower;
        let file_of = &mut |id| follower.known().processes.module_file(id);
        self.stacks.name_all(file_of, &mut |event| found.take(event));
        follower.await_names();
        found.symbols.extend(follower.known().processes.jit_names());
    }
}

/// Lists the threads, so that their processes are known. The answer are the threads that hold locks of the
/// kernel for which those wait, and that are not listed.
fn other_holders(probe: &mut Probe, known: &mut KnownProcesses) -> Result<Vec<u32>, SessionError> {
    let (mut listed, mut holders) = (HashSet::new(), HashSet::new());
    let mut meet = |record: &look_record| {
        listed.insert(record.tid);
        if u64::from(record.flags) & c::LOOK_KERNEL_THREAD == 0 {
            known.process(record.tgid, record.exec_id);
        }
        if u64::from(record.flags) & c::LOOK_KERNEL_OWNER != 0 {
            holders.insert(record.kernel_owner.tid);
        }
    };
    probe.threads(Pass::List, &mut meet, &mut |_, _| {})?;
    Ok(holders.difference(&listed).copied().collect())
}

/// A running thread has no saved registers: its stacks are those of a sample.
fn with_sample(record: look_record, samples: &HashMap<u32, (u64, u64)>) -> look_record {
    match samples.get(&record.key) {
        Some(&(user_stack, kernel_stack)) if u64::from(record.activity) == c::ACTIVITY_RUNNING => {
            look_record { user_stack, kernel_stack, ..record }
        }
        _ => record,
    }
}

/// Stacks and names so far.
#[derive(Default)]
struct Found {
    modules: HashMap<ModuleId, Module>,
    frames: HashMap<FrameId, Frame>,
    symbols: HashMap<FrameId, Vec<SymbolLine>>,
    stacks: HashMap<StackId, (Vec<FrameId>, StackEnd)>,
}

impl Found {
    fn take(&mut self, event: Event) {
        match event {
            Event::Module { id, module } => drop(self.modules.insert(id, module)),
            Event::Frame { id, frame } => drop(self.frames.insert(id, frame)),
            Event::Symbol { frame, lines } => drop(self.symbols.insert(frame, lines)),
            Event::Stack { id, frames, end } => drop(self.stacks.insert(id, (frames, end))),
            _ => {}
        }
    }

    fn threads(
        mut self,
        records: &[look_record],
        lag_ns: Option<i64>,
        rules: &Rules,
        words: &ReadWords,
    ) -> Vec<ThreadNow> {
        let stacks = self.resolve();
        let own = std::process::id();
        let owners: HashMap<(u32, u32), &look_record> =
            records.iter().map(|record| ((record.tgid, record.ns_tid), record)).collect();
        let mut meanings = HashMap::new();
        let others = records.iter().filter(|record| record.tgid != own);
        let thread = |record: &look_record| {
            let flag = |flag: u64| u64::from(record.flags) & flag != 0;
            let [user, kernel] = [record.user_stack, record.kernel_stack].map(|id| stacks.get(&id).cloned());
            let seems_lock = flag(c::LOOK_LOCK) && !flag(c::LOOK_OWNER);
            let is_no_lock = seems_lock && user.as_ref().is_some_and(|user| rules.is_no_lock(user));
            let activity = match is_no_lock {
                true => Activity::Blocked(Reason::Wait),
                false => activity(record),
            };
            let meaning = activity.reason().and_then(|_| {
                let ids = (record.user_stack, record.kernel_stack);
                let known = meanings.entry(ids);
                let ruled: &Option<Arc<Meaning>> =
                    known.or_insert_with(|| rules.meaning(user.as_ref(), kernel.as_ref()).cloned());
                match words.of_look(record) {
                    Some(word) => Some(word.beside(ruled.as_ref()).clone()),
                    None => ruled.clone(),
                }
            });
            ThreadNow {
                pid: record.tgid,
                tid: record.tid,
                comm: name_from_bytes(&record.comm),
                process: name_from_bytes(&record.process),
                kernel_thread: flag(c::LOOK_KERNEL_THREAD),
                activity,
                since: since(record, lag_ns),
                syscall: syscall_name(record.syscall),
                meaning,
                user,
                kernel,
                lock: lock(record, &owners).filter(|_| !is_no_lock),
                moved: flag(c::LOOK_MOVED),
            }
        };
        others.map(thread).collect()
    }

    fn resolve(&mut self) -> HashMap<u64, ResolvedStack> {
        let frame = |(id, frame): (&FrameId, &Frame)| {
            let module = frame.module.and_then(|module| self.modules.get(&module));
            let lines = self.symbols.get(id).filter(|lines| !lines.is_empty());
            let resolved = ResolvedFrame {
                kind: frame.kind,
                module: module.map(|module| module.path.clone()),
                build_id: module.and_then(|module| module.build_id.clone()),
                address: frame.address,
                lines: lines.cloned().unwrap_or_else(|| vec![SymbolLine::default()]),
            };
            (*id, Arc::new(resolved))
        };
        let frames: HashMap<FrameId, Arc<ResolvedFrame>> = self.frames.iter().map(frame).collect();
        let stack = |(id, (ids, end)): (StackId, (Vec<FrameId>, StackEnd))| {
            let frames = ids.iter().filter_map(|id| frames.get(id).cloned()).collect();
            (id.0, ResolvedStack { frames, end })
        };
        std::mem::take(&mut self.stacks).into_iter().map(stack).collect()
    }
}

/// A futex, or a lock of the kernel that names its owner: that has no address in the process.
fn lock(record: &look_record, owners: &HashMap<(u32, u32), &look_record>) -> Option<LockRecord> {
    let flag = |flag: u64| u64::from(record.flags) & flag != 0;
    if flag(c::LOOK_LOCK) {
        let owner = owners.get(&(record.tgid, record.lock_owner)).filter(|_| flag(c::LOOK_OWNER));
        return Some(LockRecord { address: record.lock_address, owner: owner.map(|owner| reference(owner)) });
    }
    let other = flag(c::LOOK_KERNEL_OWNER).then_some(&record.kernel_owner)?;
    let comm = name_from_bytes(&other.comm);
    let owner = ThreadRef { key: None, pid: other.tgid, tid: other.tid, comm, title: None };
    Some(LockRecord { address: 0, owner: Some(owner) })
}

fn activity(record: &look_record) -> Activity {
    match u64::from(record.activity) {
        c::ACTIVITY_RUNNING => Activity::Running,
        c::ACTIVITY_BLOCKED => Activity::Blocked(Reason::from_code(record.reason).unwrap_or(Reason::Other)),
        _ => Activity::Runnable,
    }
}

fn reference(record: &look_record) -> ThreadRef {
    let comm = name_from_bytes(&record.comm);
    ThreadRef { key: None, pid: record.tgid, tid: record.tid, comm, title: None }
}

fn since(record: &look_record, lag_ns: Option<i64>) -> Since {
    match lag_ns {
        Some(lag_ns) => {
            Since::from_clock(record.now.saturating_add_signed(-lag_ns), record.since, record.since_latest)
        }
        None => Since::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::FrameKind;

    fn record(tid: u32, activity: u64) -> look_record {
        look_record {
            key: tid,
            tid,
            tgid: 10,
            ns_tid: tid - 8,
            ns_tgid: 2,
            activity: activity as u8,
            reason: Reason::Lock.code(),
            syscall: -1,
            now: 5_000,
            ..look_record::default()
        }
    }

    fn threads(found: Found, records: &[look_record]) -> Vec<ThreadNow> {
        found.threads(records, Some(0), &Rules::default(), &ReadWords::default())
    }

    #[test]
    fn owner_is_named_by_the_number_in_the_namespace_of_the_waiter() {
        let mut waiter = record(11, c::ACTIVITY_BLOCKED);
        (waiter.lock_owner, waiter.lock_address) = (4, 0x7000);
        waiter.flags = (c::LOOK_LOCK | c::LOOK_OWNER) as u8;
        let holder = record(12, c::ACTIVITY_RUNNING);
        let found = threads(Found::default(), &[waiter, holder]);
        let lock = found[0].lock.as_ref().expect("a lock");
        assert_eq!(lock.owner.as_ref().map(|owner| owner.tid), Some(12));
        let gone = threads(Found::default(), &[waiter]);
        assert_eq!(
            gone[0].lock.as_ref().map(|lock| (lock.address, lock.owner.is_some())),
            Some((0x7000, false))
        );
    }

    #[test]
    fn owner_of_a_lock_of_the_kernel_can_be_of_another_process() {
        let mut waiter = record(11, c::ACTIVITY_BLOCKED);
        waiter.flags = c::LOOK_KERNEL_OWNER as u8;
        (waiter.kernel_owner.tid, waiter.kernel_owner.tgid) = (77, 70);
        waiter.kernel_owner.comm[..6].copy_from_slice(b"writer");
        let found = threads(Found::default(), &[waiter]);
        let lock = found[0].lock.as_ref().expect("a lock");
        let owner = lock.owner.as_ref().map(|owner| (owner.pid, owner.tid, owner.comm.as_str()));
        assert_eq!((lock.address, owner), (0, Some((70, 77, "writer"))));
    }

    #[test]
    fn sample_is_the_stack_of_a_running_thread_alone() {
        let samples = HashMap::from([(11, (1, 2))]);
        let running = with_sample(record(11, c::ACTIVITY_RUNNING), &samples);
        assert_eq!((running.user_stack, running.kernel_stack), (1, 2));
        let asleep = with_sample(look_record { user_stack: 7, ..record(11, c::ACTIVITY_BLOCKED) }, &samples);
        assert_eq!((asleep.user_stack, asleep.kernel_stack), (7, 0), "it sleeps elsewhere by now");
        assert_eq!(with_sample(record(12, c::ACTIVITY_RUNNING), &samples).user_stack, 0, "no sample met it");
    }

    #[test]
    fn stack_has_the_names_that_came_after_it() {
        let mut found = Found::default();
        let frame = Frame { kind: FrameKind::Native, module: Some(ModuleId(1)), address: 0x40 };
        found.take(Event::Module { id: ModuleId(1), module: Module { path: "/a".into(), build_id: None } });
        found.take(Event::Frame { id: FrameId(1), frame });
        found.take(Event::Frame { id: FrameId(2), frame: Frame { module: None, ..frame } });
        let frames = vec![FrameId(1), FrameId(2)];
        found.take(Event::Stack { id: StackId(5), frames, end: StackEnd::Complete });
        let line = SymbolLine { symbol: Some("serve".into()), ..SymbolLine::default() };
        found.take(Event::Symbol { frame: FrameId(1), lines: vec![line] });
        let sleeper = look_record { user_stack: 5, ..record(11, c::ACTIVITY_BLOCKED) };
        let thread = threads(found, &[sleeper]).remove(0);
        let stack = thread.user.expect("a stack");
        assert_eq!(stack.frames[0].lines[0].symbol.as_deref(), Some("serve"));
        assert_eq!((stack.frames[0].module.as_deref(), stack.frames.len()), (Some("/a"), 2));
        assert_eq!(stack.frames[1].lines, [SymbolLine::default()]);
        assert_eq!((thread.kernel, thread.since), (None, Since::Unknown));
    }
}
