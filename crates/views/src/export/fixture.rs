// SPDX-License-Identifier: Apache-2.0
//! A recording of two seconds with stacks, for the tests of formats that have them.

use std::sync::Arc;

use wallprof_analysis::bins::{BinnedStacks, Ledgers, Samples, Slots};
use wallprof_analysis::weights::Side;
use wallprof_model::event::{LedgerDelta, SampleDelta, Weighted};
use wallprof_model::profile::{RecordingInfo, ResolvedFrame, ResolvedStack, Thread};
use wallprof_model::{
    ClockAnchor, ClockMap, EpochNs, EpochSecond, FrameKind, Meaning, MonoNs, Reason, StackEnd, StackId,
    State, SymbolLine, ThreadInfo, ThreadKey,
};

pub(super) const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
pub(super) const ENGINE: ThreadKey = ThreadKey(1);
pub(super) const KEEPER: ThreadKey = ThreadKey(2);
/// When the recordings start: 40 s after the boot, 100.5 s after the epoch.
pub(super) const START: u64 = 40 * SECOND;
const RUNS: StackId = StackId(1);
const WAITS: StackId = StackId(2);

pub(super) fn thread(key: ThreadKey, tid: u32, comm: &str) -> Thread {
    let info = ThreadInfo::new(key, (42, "matchd"), (tid, comm));
    let ledger = LedgerDelta::new(key, EpochSecond(0));
    Thread {
        info,
        start: MonoNs(START),
        end: MonoNs(START + 2 * SECOND),
        ledger,
        latency: Default::default(),
        stalls: 0,
    }
}

/// A recording of two seconds.
pub(super) fn info() -> RecordingInfo {
    let anchor = ClockAnchor { mono: MonoNs(START), epoch: EpochNs(100 * SECOND + 500 * MS) };
    RecordingInfo {
        start: MonoNs(START),
        end: MonoNs(START + 2 * SECOND),
        clock: ClockMap::new(vec![anchor]),
        command: "matchd --fast".into(),
        ..RecordingInfo::default()
    }
}

pub(super) fn stack(names: &[&str]) -> ResolvedStack {
    let frame = |name: &&str| {
        let line = SymbolLine { symbol: Some((*name).into()), ..SymbolLine::default() };
        let kind = FrameKind::Native;
        Arc::new(ResolvedFrame { kind, module: None, build_id: None, address: 0, lines: vec![line] })
    };
    ResolvedStack { frames: names.iter().map(frame).collect(), end: StackEnd::Complete }
}

/// The engine ran for 400 ms of its first half second, and waited for a lock then, for 1.6 s in all; the keeper slept.
pub(super) fn stacks(threads: &[Thread]) -> BinnedStacks {
    stacks_of_waits(threads, Reason::Lock, None)
}

/// The same, where the engine's waits have another reason or a meaning.
pub(super) fn stacks_of_waits(
    threads: &[Thread],
    reason: Reason,
    meaning: Option<&Arc<Meaning>>,
) -> BinnedStacks {
    let info = info();
    let row = |key, second, running_ms: u64, reason: Reason, blocked_ms: u64| {
        let mut row = LedgerDelta::new(key, EpochSecond(second));
        (row.wall_ns, row.on_cpu_ns) = ((running_ms + blocked_ms) * MS, running_ms * MS);
        row.user_samples = u64::from(running_ms > 0);
        row.blocked_ns[usize::from(reason.code())] = blocked_ms * MS;
        row
    };
    let rows = [
        row(ENGINE, 100, 400, reason, 100),
        row(ENGINE, 101, 0, reason, 1_000),
        row(ENGINE, 102, 0, reason, 500),
        row(KEEPER, 101, 0, Reason::Sleep, 1_000),
    ];
    let mut ledgers = Ledgers::new(&info, threads);
    rows.iter().for_each(|row| ledgers.add(row));
    let ledger = ledgers.finish();
    let slots = Slots::new(&info, threads, &ledger);
    let mut samples = Samples::new(&slots, Side::Both);
    let sample = |second, state, user, weight| SampleDelta {
        thread: ENGINE,
        second: EpochSecond(second),
        what: Weighted::State(state),
        user: Some(user),
        kernel: None,
        waker: None,
        weight,
        count: 1,
    };
    let waits = State::Blocked(reason);
    let all = [
        sample(100, State::User, RUNS, 1),
        sample(100, waits, WAITS, 100 * MS),
        sample(101, waits, WAITS, SECOND),
        sample(102, waits, WAITS, 500 * MS),
    ];
    let resolve = |id| match id {
        RUNS => Ok::<_, ()>(stack(&["match", "main"])),
        _ => Ok(stack(&["take", "main"])),
    };
    let meaning_of = |sample: &SampleDelta| meaning.filter(|_| sample.user == Some(WAITS)).cloned();
    all.iter().for_each(|sample| samples.add(sample, meaning_of(sample), resolve).expect("a stack"));
    samples.finish()
}

/// The engine ran for some milliseconds and nanoseconds of each of two seconds, with samples of user and of kernel time.
pub(super) fn stacks_of_running(threads: &[Thread], seconds: [(u64, u64, [u64; 2]); 2]) -> BinnedStacks {
    let info = info();
    let mut ledgers = Ledgers::new(&info, threads);
    for (second, (ms, ns, [user, kernel])) in (101..).zip(seconds) {
        let ns = ms * MS + ns;
        let mut row = LedgerDelta::new(ENGINE, EpochSecond(second));
        (row.wall_ns, row.on_cpu_ns) = (ns, ns);
        (row.user_samples, row.kernel_samples) = (user, kernel);
        ledgers.add(&row);
    }
    let slots = Slots::new(&info, threads, &ledgers.finish());
    Samples::new(&slots, Side::Both).finish()
}
