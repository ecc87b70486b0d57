// SPDX-License-Identifier: Apache-2.0
//! Four seconds of two threads. `engine` runs 400 ms of every second, is preempted for 100 ms and waits for a
//! lock for 500 ms. One of its waits lasts beyond the end of the second second. `stuck` waits for a lock from
//! the start and never gets it.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use wallprof_model::event::{LedgerDelta, SampleDelta, Stall, WakerStacks, Weighted};
use wallprof_model::{
    ClockAnchor, EpochNs, EpochSecond, Event, Frame, FrameId, FrameKind, Module, ModuleId, MonoNs, Reason,
    StackEnd, StackId, StallKind, StallReason, State, SymbolLine, ThreadInfo, ThreadKey,
};
use wallprof_recording::{Recorder, RecordingStart};

use wallprof_testkit::program::wallprof;

pub const MILLI: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MILLI;

const START: MonoNs = MonoNs(1_000 * SECOND);
/// 2026-11-21 08:00:00 UTC.
const FIRST: u32 = 1_795_248_000;
const ENGINE: ThreadKey = ThreadKey(1);
const STUCK: ThreadKey = ThreadKey(2);
const LOCK: StallReason = StallReason::Blocked(Reason::Lock);

/// Its functions, root first.
const RUNNING: StackId = StackId(1);
const LOCKING: StackId = StackId(2);
const STUCK_AT: StackId = StackId(3);
const WAKING: StackId = StackId(4);

/// A recording in a folder of its own.
pub struct Fixture {
    pub folder: TempDir,
    pub file: PathBuf,
}

impl Fixture {
    pub fn new() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("fixture.db");
        write(&file);
        Fixture { folder, file }
    }

    pub fn path(&self) -> &str {
        self.file.to_str().unwrap()
    }

    /// The command's output on stdout.
    pub fn output(&self, arguments: &[&str]) -> Vec<u8> {
        let output = wallprof(arguments).args([self.path(), "-o", "-"]).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    pub fn folded(&self, arguments: &[&str]) -> Vec<String> {
        let file = self.folder.path().join("out.folded");
        let out = file.to_str().unwrap();
        let output = wallprof(&["flame", self.path(), "-o", out]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect()
    }
}

pub fn start() -> RecordingStart {
    RecordingStart {
        start: START,
        clock: Some(ClockAnchor { mono: START, epoch: EpochNs(u64::from(FIRST) * SECOND) }),
        source: "live".into(),
        command: "server".into(),
        min_stall_ns: 100_000,
        ..RecordingStart::default()
    }
}

pub fn after(ns: u64) -> MonoNs {
    MonoNs(START.0 + ns)
}

fn write(path: &Path) {
    let mut recorder = Recorder::create(path, &start()).unwrap();
    let mut take = |event| recorder.take(event).unwrap();
    definitions().into_iter().for_each(&mut take);
    for second in 0..4 {
        seconds(second).into_iter().for_each(&mut take);
    }
    take(Event::Stall(Box::new(wait(ENGINE, 1_500 * MILLI, 2_500 * MILLI, LOCKING))));
    let stuck = wait(STUCK, 0, 4 * SECOND, STUCK_AT);
    take(Event::Stall(Box::new(Stall { open: true, ..stuck })));
    recorder.finish(after(4 * SECOND)).unwrap();
}

fn definitions() -> Vec<Event> {
    let module = Module { path: "/opt/server".into(), build_id: Some(vec![0xab; 20]) };
    let mut events = vec![
        Event::Thread(thread(ENGINE, "engine")),
        Event::Thread(thread(STUCK, "stuck")),
        Event::ThreadSeen { thread: ENGINE, from: START },
        Event::ThreadSeen { thread: STUCK, from: START },
        Event::Module { id: ModuleId(0), module },
        Event::EventName { index: 0, name: "cs".into() },
        Event::EventName { index: 1, name: "never".into() },
    ];
    for (at, name) in ["main", "tick", "take_lock", "wait_forever", "release"].into_iter().enumerate() {
        let frame = Frame { kind: FrameKind::Native, module: Some(ModuleId(0)), address: at as u64 * 16 };
        events.push(Event::Frame { id: FrameId(at as u32), frame });
        let line =
            SymbolLine { symbol: Some(name.into()), file: Some("server.c".into()), ..SymbolLine::default() };
        events.push(Event::Symbol { frame: FrameId(at as u32), lines: vec![line] });
    }
    let kernel = Frame { kind: FrameKind::Kernel, module: None, address: 0xffff_ffff_8100_0000 };
    events.push(Event::Frame { id: FrameId(9), frame: kernel });
    for (id, frames) in [
        (RUNNING, vec![1, 0]),
        (LOCKING, vec![2, 1, 0]),
        (STUCK_AT, vec![3, 0]),
        (WAKING, vec![4, 0]),
        (StackId(5), vec![9]),
    ] {
        let frames = frames.into_iter().map(FrameId).collect();
        events.push(Event::Stack { id, frames, end: StackEnd::Complete });
    }
    events
}

fn thread(key: ThreadKey, comm: &str) -> ThreadInfo {
    ThreadInfo { start_boot_ns: 1, ..ThreadInfo::new(key, (100, "server"), (100 + key.0, comm)) }
}

fn seconds(second: u32) -> Vec<Event> {
    let ledger =
        |thread| LedgerDelta { wall_ns: SECOND, ..LedgerDelta::new(thread, EpochSecond(FIRST + second)) };
    let mut engine = ledger(ENGINE);
    (engine.on_cpu_ns, engine.preempted_ns, engine.blocked_ns[0]) = (400 * MILLI, 100 * MILLI, 500 * MILLI);
    (engine.user_samples, engine.kernel_samples) = (3, 1);
    let mut stuck = ledger(STUCK);
    stuck.blocked_ns[0] = SECOND;
    // A wait counts in the second in which it ends.
    let waited = [500, 0, 1_000, 500][second as usize] * MILLI;
    let waker = WakerStacks { thread: Some(STUCK), interrupt: false, user: Some(WAKING), kernel: None };
    let state = |state, user, weight| SampleDelta {
        thread: ENGINE,
        second: EpochSecond(FIRST + second),
        what: Weighted::State(state),
        user: Some(user),
        kernel: None,
        waker: None,
        weight,
        count: 1,
    };
    let locking = SampleDelta {
        waker: Some(waker),
        kernel: Some(StackId(5)),
        ..state(State::Blocked(Reason::Lock), LOCKING, waited)
    };
    let counted = SampleDelta { what: Weighted::Event(0), ..state(State::User, RUNNING, 7) };
    let mut events = vec![Event::Ledger(engine), Event::Ledger(stuck)];
    events.extend([
        Event::Sample(state(State::User, RUNNING, 30 * MILLI)),
        Event::Sample(SampleDelta { kernel: Some(StackId(5)), ..state(State::Kernel, RUNNING, 10 * MILLI) }),
        Event::Sample(counted),
    ]);
    events.extend((waited > 0).then_some(Event::Sample(locking)));
    events
}

fn wait(thread: ThreadKey, from_ns: u64, to_ns: u64, user: StackId) -> Stall {
    Stall {
        thread,
        comm: "engine".into(),
        kind: StallKind::OffCpu,
        reason: LOCK,
        voluntary: false,
        start: after(from_ns),
        end: after(to_ns),
        open: false,
        blocked_ns: to_ns - from_ns,
        runnable_ns: 0,
        syscall: Some("futex".into()),
        cpu: None,
        priority: None,
        user: Some(user),
        kernel: (thread == ENGINE).then_some(StackId(5)),
        waker: None,
        lock: None,
        owner_sample: None,
        ran_instead: Vec::new(),
        fault: None,
        asked_ns: None,
        file: None,
        peer: None,
        word: None,
        trace: None,
        meaning: None,
    }
}
