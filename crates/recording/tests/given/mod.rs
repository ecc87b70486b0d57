//! Recordings to test with: a thread, two stacks, and events that refer to them.
#![allow(dead_code, reason = "each test program uses its part")]

pub mod flight;
pub mod references;

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use wallprof_model::event::{LedgerDelta, SampleDelta, Stall, Weighted};
use wallprof_model::{
    ClockAnchor, EpochNs, EpochSecond, Event, Frame, FrameId, FrameKind, Module, ModuleId, MonoNs, Reason,
    StackEnd, StackId, StallReason, State, SymbolLine, ThreadInfo, ThreadKey,
};
use wallprof_recording::{Recorder, RecordingStart, SizeBudget};

pub const START: MonoNs = MonoNs(1_000_000_000_000);
pub const SECOND: EpochSecond = EpochSecond(1_800_000_000);
pub const USER: StackId = StackId(0);
pub const KERNEL: StackId = StackId(77);

pub struct Place {
    folder: TempDir,
}

pub fn place() -> Place {
    Place { folder: tempfile::tempdir().unwrap() }
}

impl Place {
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn file(&self) -> PathBuf {
        self.folder.path().join("wallprof.db")
    }
}

pub fn start() -> RecordingStart {
    RecordingStart {
        start: START,
        clock: Some(ClockAnchor {
            mono: START,
            epoch: EpochNs(u64::from(SECOND.0) * 1_000_000_000 + 250_000_000),
        }),
        source: "live".into(),
        kernel: "6.18.0".into(),
        arch: "x86_64".into(),
        cpus: 2,
        hostname: "host".into(),
        machine_id: "0123".into(),
        boot_id: "4567".into(),
        command: "redis-server".into(),
        min_stall_ns: 100_000,
        sample_period_ns: Some(10_101_010),
        budget: SizeBudget::UNLIMITED,
        retention: None,
    }
}

pub fn recorder(path: &Path) -> Recorder {
    Recorder::create(path, &start()).unwrap()
}

pub fn at(ns: u64) -> MonoNs {
    MonoNs(START.0 + ns)
}

pub fn thread(key: u32, comm: &str) -> ThreadInfo {
    ThreadInfo {
        key: ThreadKey(key),
        tid: 1000 + key,
        pid: 1000,
        ns_tid: 1 + key,
        ns_pid: 1,
        start_boot_ns: 5_000_000_000,
        comm: comm.into(),
        process: "server".into(),
        cgroup: Some("/system.slice/server.service".into()),
        kernel_thread: false,
    }
}

pub fn line(symbol: &str) -> SymbolLine {
    SymbolLine {
        symbol: Some(symbol.into()),
        offset: Some(16),
        file: Some("src/a.c".into()),
        line: Some(42),
        inlined: false,
    }
}

/// Thread 7 and the stacks `USER` (`main` calls `wait_for_it`, which is not symbolized) and `KERNEL`.
pub fn definitions() -> Vec<Event> {
    let module = Module { path: "/usr/bin/server".into(), build_id: Some(vec![0xab; 20]) };
    let frame =
        |id, kind, module, address| Event::Frame { id: FrameId(id), frame: Frame { kind, module, address } };
    vec![
        Event::Thread(thread(7, "worker")),
        Event::ThreadSeen { thread: ThreadKey(7), from: START },
        Event::Module { id: ModuleId(3), module },
        frame(0, FrameKind::Native, Some(ModuleId(3)), 0x1000),
        frame(1, FrameKind::Native, Some(ModuleId(3)), 0x2000),
        frame(2, FrameKind::Kernel, None, 0xffff_ffff_8100_0000),
        Event::Symbol { frame: FrameId(0), lines: vec![line("main")] },
        Event::Stack { id: USER, frames: vec![FrameId(1), FrameId(0)], end: StackEnd::FramePointerEnd },
        Event::Stack { id: KERNEL, frames: vec![FrameId(2)], end: StackEnd::Complete },
    ]
}

pub fn take_all(recorder: &mut Recorder, events: Vec<Event>) {
    for event in events {
        recorder.take(event).unwrap();
    }
}

/// A lock wait of thread 7 without anything optional.
pub fn stall(start_ns: u64, duration_ns: u64) -> Stall {
    let lock = StallReason::Blocked(Reason::Lock);
    Stall { comm: "worker".into(), ..Stall::new(ThreadKey(7), lock, at(start_ns), duration_ns) }
}

pub fn ledger(second: u32, wall_ns: u64) -> LedgerDelta {
    LedgerDelta {
        wall_ns,
        on_cpu_ns: wall_ns,
        ..LedgerDelta::new(ThreadKey(7), EpochSecond(SECOND.0 + second))
    }
}

pub fn sample(second: u32, weight: u64) -> SampleDelta {
    SampleDelta {
        thread: ThreadKey(7),
        second: EpochSecond(SECOND.0 + second),
        what: Weighted::State(State::User),
        user: Some(USER),
        kernel: None,
        waker: None,
        weight,
        count: 1,
    }
}
