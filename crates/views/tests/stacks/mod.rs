// SPDX-License-Identifier: Apache-2.0
//! Weighted stacks made by hand.

use std::sync::Arc;

use wallprof_analysis::weights::{Frames, Mark, View, WeightedStack, WeightedThread, Weights};
use wallprof_model::profile::{RecordingInfo, ResolvedFrame};
use wallprof_model::{ClockAnchor, ClockMap, EpochNs, FrameKind, MonoNs, Reason, State, SymbolLine};

pub const LOCK: State = State::Blocked(Reason::Lock);
pub const MILLI: u64 = 1_000_000;

/// Collects stacks of two threads, `engine` (0) and `keeper` (1).
pub struct Stacks {
    pub weights: Weights,
    known: Vec<Arc<ResolvedFrame>>,
}

impl Stacks {
    pub fn new(view: View) -> Self {
        let thread =
            |comm: &str, tid| WeightedThread { process: "matchd".into(), comm: comm.into(), pid: 4242, tid };
        let threads = vec![thread("engine", 4243), thread("keeper", 4244)];
        Stacks {
            weights: Weights { view, threads, frames: Frames::default(), stacks: vec![], left_out_ns: 0 },
            known: Vec::new(),
        }
    }

    /// Functions from the root on; a leading `+` is the kernel's, `a < b` is `b` inlined into `a`.
    pub fn add(&mut self, thread: usize, names: &[&str], state: Option<State>, weight: u64) {
        let mut frames: Vec<_> = names
            .iter()
            .map(|name| {
                let frame = self.code(name);
                self.weights.frames.code(&frame)
            })
            .collect();
        frames.extend(state.map(|state| self.weights.frames.mark(Mark::State(state))));
        self.weights.stacks.push(WeightedStack { thread, frames, state, weight, count: 1 });
    }

    fn code(&mut self, name: &str) -> Arc<ResolvedFrame> {
        let (kind, name) = match name.strip_prefix('+') {
            Some(name) => (FrameKind::Kernel, name),
            None => (FrameKind::Native, name),
        };
        let lines: Vec<SymbolLine> = name.rsplit(" < ").map(line).collect();
        let found = self.known.iter().find(|frame| frame.lines == lines && frame.kind == kind);
        if let Some(known) = found {
            return Arc::clone(known);
        }
        let is_native = kind == FrameKind::Native;
        let frame = Arc::new(ResolvedFrame {
            kind,
            module: is_native.then(|| "/opt/matchd".into()),
            build_id: is_native.then(|| vec![0x5c, 0x2f]),
            address: 0x1000 + self.known.len() as u64,
            lines,
        });
        self.known.push(Arc::clone(&frame));
        frame
    }
}

fn line(symbol: &str) -> SymbolLine {
    SymbolLine {
        symbol: Some(symbol.into()),
        file: Some("/src/book.cc".into()),
        line: Some(42),
        ..SymbolLine::default()
    }
}

/// `main` ticks for 300 ms, waits for a lock 600 ms, and 100 ms are without a stack; `keeper` sweeps for 500
/// ms.
pub fn lock_stacks() -> Stacks {
    let mut stacks = Stacks::new(View::Wall);
    stacks.add(0, &["main", "tick < book"], Some(State::User), 300 * MILLI);
    stacks.add(0, &["main", "tick < book", "lock", "+futex_wait"], Some(LOCK), 600 * MILLI);
    let unsampled = vec![
        stacks.weights.frames.mark(Mark::Unsampled),
        stacks.weights.frames.mark(Mark::State(State::Irq)),
    ];
    let (state, weight) = (Some(State::Irq), 100 * MILLI);
    stacks.weights.stacks.push(WeightedStack { thread: 0, frames: unsampled, state, weight, count: 0 });
    stacks.add(1, &["main", "sweep"], Some(State::User), 500 * MILLI);
    stacks
}

pub fn info() -> RecordingInfo {
    RecordingInfo {
        start: MonoNs(7_000 * MILLI),
        end: MonoNs(8_000 * MILLI),
        // 2026-11-21 08:00:09.331 UTC.
        clock: ClockMap::new(vec![ClockAnchor {
            mono: MonoNs(7_000 * MILLI),
            epoch: EpochNs(1_795_248_009_331 * MILLI),
        }]),
        hostname: "md-07".into(),
        command: "matchd".into(),
        ended_cleanly: true,
        ..RecordingInfo::default()
    }
}

/// Names that somebody chose to do harm, or that mean something to one of the formats.
pub const HOSTILE: [&str; 14] = [
    "<script>alert(1)</script>",
    "]]><script>alert(2)</script>",
    "\"'><svg onload=alert(3)>",
    "&lt;b&gt;",
    "nul\0nul",
    "\x1b[31mred",
    "cod\u{202e}exe",
    "two\nlines 99",
    "semi;colon",
    "ends in 17",
    "marked_[k]",
    "all",
    "\u{ffff}\u{fffe}",
    "",
];

/// `HOSTILE` wherever a name can stand, and one of 10,000 characters.
pub fn hostile_stacks() -> Stacks {
    let mut stacks = Stacks::new(View::Wall);
    let long = "x".repeat(10_000);
    for (at, name) in HOSTILE.into_iter().chain([long.as_str()]).enumerate() {
        let thread = WeightedThread { process: name.into(), comm: name.into(), pid: 1, tid: at as u32 };
        stacks.weights.threads.push(thread);
        let last = stacks.weights.threads.len() - 1;
        stacks.add(last, &[name, &format!("+{name}")], Some(LOCK), MILLI);
        let waker = stacks.weights.frames.mark(Mark::WakerThread(name.into()));
        stacks.weights.stacks.last_mut().unwrap().frames.push(waker);
    }
    stacks
}
