// SPDX-License-Identifier: Apache-2.0
//! Recordings made by a test: one thread, blocked by a lock for a given time of every second.

use std::path::{Path, PathBuf};

use wallprof_model::event::{LedgerDelta, SampleDelta, Weighted};
use wallprof_model::{
    ClockAnchor, EpochNs, EpochSecond, Event, Frame, FrameId, FrameKind, Module, ModuleId, MonoNs, Reason,
    StackEnd, StackId, State, SymbolLine, ThreadInfo, ThreadKey,
};
use wallprof_recording::{Recorder, RecordingStart};

/// 2026-11-21 08:00:00 UTC.
const EPOCH_SECOND: u32 = 1_795_248_000;
const SECOND_NS: u64 = 1_000_000_000;

pub struct Written<'a> {
    pub process: &'a str,
    pub function: &'a str,
    pub seconds: u32,
    pub lock_ms: u64,
}

impl Written<'_> {
    pub fn write(&self, folder: &Path, name: &str) -> PathBuf {
        self.write_labelled(folder, name, &[])
    }

    pub fn write_labelled(&self, folder: &Path, name: &str, labels: &[(&str, &str)]) -> PathBuf {
        let path = folder.join(name);
        let start = MonoNs(SECOND_NS);
        let epoch = EpochNs(u64::from(EPOCH_SECOND) * SECOND_NS);
        let about = RecordingStart {
            start,
            clock: Some(ClockAnchor { mono: start, epoch }),
            source: "live".into(),
            command: self.process.into(),
            labels: labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            ..RecordingStart::default()
        };
        let mut recorder = Recorder::create(&path, &about).expect("the recording is created");
        let events = self.opening().into_iter().chain((0..self.seconds).flat_map(|at| self.second(at)));
        events.for_each(|event| recorder.take(event).expect("the event is taken"));
        recorder.finish(MonoNs(start.0 + u64::from(self.seconds) * SECOND_NS)).expect("the recording ends");
        path
    }

    fn opening(&self) -> Vec<Event> {
        let line = SymbolLine { symbol: Some(self.function.into()), ..SymbolLine::default() };
        let frame = Frame { kind: FrameKind::Native, module: Some(ModuleId(1)), address: 0x1000 };
        vec![
            Event::Thread(ThreadInfo {
                start_boot_ns: 1,
                ..ThreadInfo::new(ThreadKey(1), (100, self.process), (100, self.process))
            }),
            Event::Module { id: ModuleId(1), module: Module { path: "/bin/app".into(), build_id: None } },
            Event::Frame { id: FrameId(1), frame },
            Event::Symbol { frame: FrameId(1), lines: vec![line] },
            Event::Stack { id: StackId(1), frames: vec![FrameId(1)], end: StackEnd::Complete },
        ]
    }

    fn second(&self, at: u32) -> [Event; 2] {
        let second = EpochSecond(EPOCH_SECOND + at);
        let mut ledger = LedgerDelta::new(ThreadKey(1), second);
        ledger.wall_ns = SECOND_NS;
        ledger.blocked_ns[usize::from(Reason::Lock.code())] = self.lock_ms * 1_000_000;
        ledger.blocked_ns[usize::from(Reason::Sleep.code())] = SECOND_NS - self.lock_ms * 1_000_000;
        let sample = SampleDelta {
            thread: ThreadKey(1),
            second,
            what: Weighted::State(State::Blocked(Reason::Lock)),
            user: Some(StackId(1)),
            kernel: None,
            waker: None,
            weight: self.lock_ms * 1_000_000,
            count: 1,
        };
        [Event::Ledger(ledger), Event::Sample(sample)]
    }
}
