// SPDX-License-Identifier: Apache-2.0
//! A small recording with names that somebody chose to do harm.

use std::path::Path;
use std::sync::Arc;

use wallprof_model::event::{LedgerDelta, Stall};
use wallprof_model::{
    ClockAnchor, EpochNs, EpochSecond, Event, MonoNs, Reason, StallReason, ThreadInfo, ThreadKey,
};
use wallprof_recording::{Recorder, RecordingStart};

pub const HOSTILE_NAME: &str = "\x1b[31mred\n;evil";

const START: MonoNs = MonoNs(1_000_000_000);
const END: MonoNs = MonoNs(3_000_000_000);
/// 2026-11-21 08:00:00 UTC.
const EPOCH_START: u64 = 1_795_248_000_000_000_000;

/// Writes a recording of two seconds: `threads` threads of hostile name with one wait for a lock each, the
/// first one of 5 ms, the others of 1 ms, and one voluntary sleep of the first.
pub fn write(path: &Path, threads: u32) {
    write_in(path, threads, |_| None);
}

/// The same with threads in control groups, each with the pod of its container.
pub fn write_in(path: &Path, threads: u32, group: impl Fn(u32) -> Option<(String, Option<&'static str>)>) {
    let start = RecordingStart {
        start: START,
        clock: Some(ClockAnchor { mono: START, epoch: EpochNs(EPOCH_START) }),
        source: "live".into(),
        command: HOSTILE_NAME.into(),
        min_stall_ns: 100_000,
        ..RecordingStart::default()
    };
    let mut recorder = Recorder::create(path, &start).expect("the recording is created");
    let mut take = |event| recorder.take(event).expect("the event is taken");
    for number in 0..threads {
        let key = ThreadKey(number);
        let (cgroup, pod) = group(number).unzip();
        let pod = pod.flatten().map(|pod| Arc::new(pod.parse().expect("the names of a pod")));
        take(Event::Thread(ThreadInfo { cgroup, pod, ..thread(key) }));
        take(Event::ThreadSeen { thread: key, from: START });
        take(Event::Ledger(ledger(key)));
        let ms = if number == 0 { 5 } else { 1 };
        take(Event::Stall(Box::new(stall(key, Reason::Lock, ms * 1_000_000))));
    }
    take(Event::Stall(Box::new(stall(ThreadKey(0), Reason::Sleep, 50_000_000))));
    recorder.finish(END).expect("the recording is finished");
}

fn thread(key: ThreadKey) -> ThreadInfo {
    ThreadInfo { start_boot_ns: 1, ..ThreadInfo::new(key, (100, HOSTILE_NAME), (100 + key.0, HOSTILE_NAME)) }
}

fn ledger(key: ThreadKey) -> LedgerDelta {
    let mut delta = LedgerDelta::new(key, EpochSecond((EPOCH_START / 1_000_000_000) as u32));
    delta.wall_ns = 2_000_000_000;
    delta.on_cpu_ns = 2_000_000_000;
    delta.user_samples = 198;
    delta
}

fn stall(thread: ThreadKey, reason: Reason, duration_ns: u64) -> Stall {
    let start = MonoNs(START.0 + 500_000_000);
    Stall {
        comm: HOSTILE_NAME.into(),
        syscall: Some("futex".into()),
        cpu: Some(0),
        ..Stall::new(thread, StallReason::Blocked(reason), start, duration_ns)
    }
}
