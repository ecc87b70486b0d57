// SPDX-License-Identifier: Apache-2.0
//! The user stacks of a recording, each with its thread and the thread's state.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use wallprof_model::event::Weighted;
use wallprof_model::profile::ResolvedStack;
use wallprof_model::{EpochSecond, FrameKind, MonoNs, StackEnd, State, SymbolLine, ThreadKey};
use wallprof_recording::{Recording, StallFilter};
use wallprof_testkit::defect::always;

/// The state of a thread when its stack was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Running,
    Blocked,
    /// Waiting for a CPU, or preempted.
    Waiting,
    /// An extra event's count.
    Event,
}

/// The time of a stack, as far as the recording has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Of a sum over a second.
    Second(EpochSecond),
    /// The start of an interval with a row of its own.
    Start(MonoNs),
}

/// One distinct stack of one thread.
#[derive(Debug)]
pub struct Taken {
    pub key: ThreadKey,
    pub thread: String,
    pub doing: Doing,
    pub when: When,
    /// How often it was taken.
    pub count: u64,
    pub end: StackEnd,
    /// Leaf first.
    pub frames: Vec<Place>,
    /// All functions, inlined ones too, leaf first, with their lines.
    pub lines: Vec<SymbolLine>,
}

/// A frame as the tests compare it: inlined functions are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub symbol: Option<String>,
    /// The file's name without its directories.
    pub module: String,
    pub kind: FrameKind,
}

impl Taken {
    pub fn is_complete(&self) -> bool {
        self.end == StackEnd::Complete
    }

    /// The start of an interval.
    pub fn start(&self) -> Option<MonoNs> {
        if let When::Start(start) = self.when { Some(start) } else { None }
    }

    /// The second of samples of running code.
    pub fn running_second(&self) -> Option<EpochSecond> {
        match self.when {
            When::Second(second) if self.doing == Doing::Running => Some(second),
            _ => None,
        }
    }
}

impl Place {
    pub fn is(&self, name: &str) -> bool {
        self.symbol.as_deref() == Some(name)
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Taken { thread, doing, when, end, count, .. } = self;
        write!(f, "{thread} {doing:?} {when:?} {end:?} x{count}:")?;
        self.frames
            .iter()
            .try_for_each(|frame| write!(f, " {}({})", frame.symbol.as_deref().unwrap_or("?"), frame.module))
    }
}

/// All stacks of a recording: of samples, of summed and of single intervals.
pub fn user_stacks(file: &Path) -> Vec<Taken> {
    let recording = always(Recording::open(file));
    let threads: HashMap<_, _> = recording
        .threads()
        .expect("threads")
        .into_iter()
        .map(|thread| (thread.info.key, thread.info.comm))
        .collect();
    let mut taken = Vec::new();
    let mut push = |key: ThreadKey, doing, when, count, stack: &ResolvedStack| {
        let (thread, frames) = (threads.get(&key).cloned().unwrap_or_default(), frames_of(stack));
        let lines = stack.frames.iter().flat_map(|frame| frame.lines.iter().cloned()).collect();
        taken.push(Taken { key, thread, doing, when, count, end: stack.end, frames, lines });
    };
    for row in recording.samples(..).expect("samples") {
        let row = row.expect("a sample");
        let Some(stack) = row.user else { continue };
        let stack = recording.resolve(stack).expect("a stack");
        push(row.thread, doing(row.what), When::Second(row.second), row.count, &stack);
    }
    let all = StallFilter { include_voluntary: true, ..StallFilter::default() };
    for stall in recording.stalls(&all).expect("stalls") {
        let stall = stall.expect("a stall");
        if let Some(stack) = &stall.user {
            let doing = if stall.blocked_ns > 0 { Doing::Blocked } else { Doing::Waiting };
            push(stall.thread, doing, When::Start(stall.start), 1, stack);
        }
    }
    taken
}

fn doing(what: Weighted) -> Doing {
    match what {
        Weighted::State(State::User | State::Kernel) => Doing::Running,
        Weighted::State(State::Blocked(_)) => Doing::Blocked,
        Weighted::State(_) => Doing::Waiting,
        Weighted::Event(_) => Doing::Event,
    }
}

fn frames_of(stack: &ResolvedStack) -> Vec<Place> {
    let place = |frame: &wallprof_model::profile::ResolvedFrame| {
        let module = frame.module.as_deref().unwrap_or_default();
        Place {
            symbol: frame.lines.last().and_then(|line| line.symbol.clone()),
            module: module.rsplit('/').next().unwrap_or(module).to_owned(),
            kind: frame.kind,
        }
    };
    stack.frames.iter().map(|frame| place(frame)).collect()
}
