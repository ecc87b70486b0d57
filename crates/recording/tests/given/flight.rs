//! A source like the live one, on a machine where processes come and go: it remembers what it has told, and tells it
//! again when the recorder says that it has forgotten it.

use std::collections::{BTreeMap, HashSet};

use wallprof_model::event::{
    Binding, CrossCallDelta, InterruptDelta, InterruptKind, KernelWork, LatencyDelta, RanInstead,
    SampleDelta, Stall, Throttled, WaitedFile, Waker, WakerStacks, Weighted, WorkKind,
};
use wallprof_model::histogram::Cell;
use wallprof_model::{
    EpochSecond, Event, Forgotten, Frame, FrameId, FrameKind, IntrusionDelta, IntrusionKind, Metric, Module,
    ModuleId, MonoNs, Reason, StackEnd, StackId, State, ThreadInfo, ThreadKey, ThreadRef,
};
use wallprof_recording::{Recorder, RecordingStart, Retention};

use super::{SECOND, START, ledger, stall, start, thread};

pub const NS: u64 = 1_000_000_000;
/// The recording starts a quarter into a second.
const OFFSET: u64 = 250_000_000;
/// A thread that is always there; its stack is always the same.
pub const SERVER: ThreadKey = ThreadKey(1);

/// Names that threads have, one after the other.
const NAMES: u32 = 10_000;

pub struct Machine {
    pub forks_a_second: u32,
    told: HashSet<StackId>,
    frames: BTreeMap<u64, FrameId>,
    next_frame: u32,
    next_thread: u32,
    server_is_told: bool,
    /// In the last second.
    pub forgotten_modules: usize,
}

/// The start of a recording of bounded size, which also starts at the `START`.
pub fn bounded(keep_seconds: u64, keep_bytes: u64) -> RecordingStart {
    RecordingStart { retention: Some(Retention { keep_ns: keep_seconds * NS, keep_bytes }), ..start() }
}

/// The end of the `second`th second of the wall clock since the start, the first of which is three quarters long.
pub fn end_of(second: u32) -> MonoNs {
    MonoNs(START.0 + (u64::from(second) + 1) * NS - OFFSET)
}

fn begin_of(second: u32) -> MonoNs {
    if second == 0 { START } else { end_of(second - 1) }
}

impl Machine {
    pub fn new(recorder: &mut Recorder, forks_a_second: u32) -> Self {
        let module = Module { path: "/usr/bin/server".into(), build_id: Some(vec![0xab; 20]) };
        recorder.take(Event::Module { id: ModuleId(0), module }).unwrap();
        Machine {
            forks_a_second,
            told: HashSet::new(),
            frames: BTreeMap::new(),
            next_frame: 0,
            next_thread: 100,
            server_is_told: false,
            forgotten_modules: 0,
        }
    }

    /// What happens in one second, and its commit.
    pub fn second(&mut self, recorder: &mut Recorder, second: u32) {
        self.server(recorder, second);
        for _ in 0..self.forks_a_second {
            self.process(recorder, second);
        }
        recorder.take(Event::Loss { reason: "stacks_full".into(), count: 1 }).unwrap();
        let cost = Event::Overhead { process_cpu_ns: 1_000, probe_ns: 10, probe_runs: 1, table_bytes: 4_096 };
        recorder.take(cost).unwrap();
        recorder.commit(end_of(second)).unwrap();
        self.forget(&recorder.take_forgotten());
    }

    fn forget(&mut self, forgotten: &Forgotten) {
        self.forgotten_modules = forgotten.modules.len();
        self.server_is_told &= !forgotten.threads.contains(&SERVER);
        for stack in &forgotten.stacks {
            self.told.remove(stack);
        }
        let gone: HashSet<FrameId> = forgotten.frames.iter().copied().collect();
        self.frames.retain(|_, id| !gone.contains(id));
    }

    fn server(&mut self, recorder: &mut Recorder, second: u32) {
        if !self.server_is_told {
            recorder.take(Event::Thread(ThreadInfo { key: SERVER, ..thread(1, "server") })).unwrap();
            self.server_is_told = true;
        }
        let wall_ns = end_of(second).0 - begin_of(second).0;
        let row = wallprof_model::event::LedgerDelta { thread: SERVER, ..ledger(second, wall_ns) };
        recorder.take(Event::Ledger(row)).unwrap();
        let stack = self.stack(recorder, 1, &[0x10, 0x20]);
        self.late(recorder, second, SERVER, stack, ThreadKey(1));
    }

    /// A process that lives for half a second: its name, its stack and its innermost frame are its own.
    fn process(&mut self, recorder: &mut Recorder, second: u32) {
        let key = self.next_thread;
        self.next_thread += 1;
        let from = begin_of(second);
        let name = format!("job-{}", key % NAMES);
        recorder.take(Event::Thread(ThreadInfo { key: ThreadKey(key), ..thread(key, &name) })).unwrap();
        recorder.take(Event::ThreadSeen { thread: ThreadKey(key), from }).unwrap();
        let row = wallprof_model::event::LedgerDelta { thread: ThreadKey(key), ..ledger(second, NS / 2) };
        recorder.take(Event::Ledger(row)).unwrap();
        let stack = self.stack(recorder, 1_000 + u64::from(key), &[0x1_0000 + u64::from(key), 0x20]);
        self.late(recorder, second, ThreadKey(key), stack, SERVER);
        recorder.take(Event::ThreadEnd { thread: ThreadKey(key), at: MonoNs(from.0 + NS / 2) }).unwrap();
    }

    fn stack(&mut self, recorder: &mut Recorder, id: u64, addresses: &[u64]) -> StackId {
        if self.told.insert(StackId(id)) {
            let frames = addresses.iter().map(|&address| self.frame(recorder, address)).collect();
            recorder.take(Event::Stack { id: StackId(id), frames, end: StackEnd::Complete }).unwrap();
            let (symbol, library) = (Some(format!("bound_{id}")), Some("/lib/libc.so.6".into()));
            recorder.take(Event::Binding(Binding { stack: StackId(id), depth: 1, symbol, library })).unwrap();
        }
        StackId(id)
    }

    fn frame(&mut self, recorder: &mut Recorder, address: u64) -> FrameId {
        if let Some(&id) = self.frames.get(&address) {
            return id;
        }
        let id = FrameId(self.next_frame);
        self.next_frame += 1;
        self.frames.insert(address, id);
        let frame = Frame { kind: FrameKind::Native, module: Some(ModuleId(0)), address };
        recorder.take(Event::Frame { id, frame }).unwrap();
        recorder
            .take(Event::Symbol { frame: id, lines: vec![super::line(&format!("at_{address:x}"))] })
            .unwrap();
        id
    }

    /// A sample, a latency, an interrupt and a stall of a thread.
    fn late(
        &self,
        recorder: &mut Recorder,
        second: u32,
        thread: ThreadKey,
        stack: StackId,
        waker: ThreadKey,
    ) {
        let who = ThreadRef { key: Some(waker), pid: 1_000, tid: 1_000 + waker.0, comm: "server".into() };
        recorder.take(Event::Sample(sample(second, thread, stack, waker))).unwrap();
        let (start, end) = (begin_of(second), end_of(second));
        recorder.take(Event::KernelWork(KernelWork { thread, kind: WorkKind::Reclaim, start, end })).unwrap();
        let (syscall, function) = (Some("munmap".into()), Some(format!("function_{}", thread.0)));
        recorder
            .take(Event::CrossCalls(CrossCallDelta { caller: who.clone(), syscall, function, count: 1 }))
            .unwrap();
        recorder.take(Event::Throttled(throttled(thread, start, end))).unwrap();
        let cell = Cell { count: 1, total_ns: 20, max_ns: 20 };
        recorder
            .take(Event::Latency(LatencyDelta { thread, metric: Metric::OffCpu, bucket: 20, cell }))
            .unwrap();
        let hit = InterruptDelta {
            cpu: 0,
            kind: InterruptKind::Vector,
            name: "local_timer".into(),
            victim: Some(thread),
            count: 1,
            total_ns: 5,
            max_ns: 5,
        };
        recorder.take(Event::Interrupt(hit)).unwrap();
        recorder.take(Event::Intrusion(Box::new(intrusion(&who)))).unwrap();
        let start = begin_of(second).0 - START.0 + 1_000;
        let late = Stall {
            thread,
            comm: format!("{}", thread.0 % NAMES),
            user: Some(stack),
            waker: Some(Waker { thread: Some(who.clone()), user: Some(stack), kernel: None }),
            ran_instead: vec![RanInstead { thread: who, ns: 100 }],
            file: Some(WaitedFile { path: format!("/data/{}", thread.0), offset: None }),
            ..stall(start, 500_000)
        };
        recorder.take(Event::Stall(Box::new(late))).unwrap();
    }
}

fn intrusion(who: &ThreadRef) -> IntrusionDelta {
    IntrusionDelta {
        cpu: 0,
        kind: IntrusionKind::Ipi,
        what: "flush_tlb_func".into(),
        thread: Some(who.clone()),
        allowed: false,
        count: 1,
        total_ns: 0,
        max_ns: 0,
    }
}

fn throttled(thread: ThreadKey, from: MonoNs, to: MonoNs) -> Throttled {
    let cgroup = format!("/jobs/{}", thread.0);
    Throttled { pid: thread.0, cgroup, quota_ns: 1, period_ns: 5, from, to, count: 1, total_ns: 2 }
}

fn sample(second: u32, thread: ThreadKey, stack: StackId, waker: ThreadKey) -> SampleDelta {
    SampleDelta {
        thread,
        second: EpochSecond(SECOND.0 + second),
        what: Weighted::State(State::Blocked(Reason::Lock)),
        user: Some(stack),
        kernel: None,
        waker: Some(WakerStacks { thread: Some(waker), interrupt: false, user: Some(stack), kernel: None }),
        weight: 1_000,
        count: 1,
    }
}
