// SPDX-License-Identifier: Apache-2.0
//! The frames of weighted stacks: code, and marks for time that no code explains.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use wallprof_meaning::site::base_name;
use wallprof_model::profile::ResolvedFrame;
use wallprof_model::{FrameKind, Meaning, Outside, State, SymbolLine};

use super::calls::Called;

/// One entry of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Code(Arc<ResolvedFrame>),
    Called(Called),
    Mark(Mark),
}

/// A frame that stands for something else than code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    State(State),
    /// What a wait means, between its stack and its state.
    Meaning(Arc<Meaning>),
    /// Time without a stack.
    Unsampled,
    /// Wall time that no state claims.
    Unaccounted,
    /// Between a waiting thread's stack and the one that woke it.
    WokenBy,
    /// The thread that woke another one: its name.
    WakerThread(Arc<str>),
    /// Woken from an interrupt.
    Interrupt,
    /// Woken by a thread that is not in the recording.
    UnknownWaker,
    /// In a call path: outside the code that calls are known of.
    Outside(Outside),
}

/// The role of a function in a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    User,
    Kernel,
    State(State),
    /// A thread, as the root of a stack or as the one that woke another.
    Thread,
    /// A process, as the root of its threads.
    Process,
    /// `[unsampled]` and the other frames that stand for something else than code or a state.
    Mark,
}

/// One function of a frame as it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// Never empty. Not escaped.
    pub name: Cow<'a, str>,
    pub role: Role,
    /// Where it is in the sources; `None` for what is not code.
    pub line: Option<&'a SymbolLine>,
}

impl Frame {
    /// The functions at this frame, outermost first: an inlined function comes after the one it was inlined
    /// into.
    pub fn functions(&self) -> Vec<Function<'_>> {
        match self {
            Frame::Code(frame) => frame.lines.iter().rev().map(|line| function(frame, line)).collect(),
            Frame::Called(called) => called_function(called),
            Frame::Mark(mark) => vec![mark.function()],
        }
    }
}

impl Mark {
    fn function(&self) -> Function<'_> {
        let (name, role) = match self {
            Mark::State(state) => (Cow::Owned(format!("[{}]", state.label())), Role::State(*state)),
            Mark::Meaning(meaning) => (Cow::Owned(format!("[{meaning}]")), Role::Mark),
            Mark::WakerThread(name) if name.is_empty() => (Cow::Borrowed("(unnamed)"), Role::Thread),
            Mark::WakerThread(name) => (Cow::Borrowed(name.as_ref()), Role::Thread),
            Mark::Unsampled => (Cow::Borrowed("[unsampled]"), Role::Mark),
            Mark::Unaccounted => (Cow::Borrowed("[unaccounted]"), Role::Mark),
            Mark::WokenBy => (Cow::Borrowed("[woken by]"), Role::Mark),
            Mark::Interrupt => (Cow::Borrowed("[interrupt]"), Role::Mark),
            Mark::UnknownWaker => (Cow::Borrowed("[thread not recorded]"), Role::Mark),
            Mark::Outside(outside) => (Cow::Borrowed(outside.label()), Role::Mark),
        };
        Function { name, role, line: None }
    }
}

/// Calls are of whole functions: what was inlined into one is part of it.
fn called_function(called: &Called) -> Vec<Function<'_>> {
    let physical = called.code.lines.last().map(|line| function(&called.code, line));
    let counted = |function: Function<'_>| Cow::Owned(format!("{}{}", function.name, called.counts()));
    physical.into_iter().map(|function| Function { name: counted(function.clone()), ..function }).collect()
}

fn function<'a>(frame: &'a ResolvedFrame, line: &'a SymbolLine) -> Function<'a> {
    let role = if frame.kind == FrameKind::Kernel { Role::Kernel } else { Role::User };
    let symbol = line.symbol.as_deref().filter(|symbol| !symbol.is_empty());
    let name = symbol.map_or_else(|| Cow::Owned(unknown(frame)), Cow::Borrowed);
    Function { name, role, line: Some(line) }
}

/// `[libc.so.6+0x2a3b]`, `[kernel+0xffffffffc0029153]`, or `[0x7f]` where not even the module is known.
fn unknown(frame: &ResolvedFrame) -> String {
    let module = frame.module.as_deref().map(base_name).filter(|name| !name.is_empty());
    match module {
        Some(module) => format!("[{}+{:#x}]", module.trim_matches(['[', ']']), frame.address),
        None if frame.kind == FrameKind::Kernel => format!("[kernel+{:#x}]", frame.address),
        None => format!("[{:#x}]", frame.address),
    }
}

/// The number of a frame in a [`Frames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(u32);

impl FrameId {
    /// From 0 on, without gaps.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The distinct frames of a set of stacks.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    frames: Vec<Frame>,
    /// Code by the address of its `Arc`: a reader gives the same frame as the same `Arc`, and `frames` keeps
    /// it alive.
    code: HashMap<usize, FrameId>,
    marks: HashMap<Mark, FrameId>,
}

impl Frames {
    /// The number of a code frame, a new one for an `Arc` not seen before.
    pub fn code(&mut self, frame: &Arc<ResolvedFrame>) -> FrameId {
        let frames = &mut self.frames;
        let address = Arc::as_ptr(frame) as usize;
        *self.code.entry(address).or_insert_with(|| push(frames, Frame::Code(Arc::clone(frame))))
    }

    /// The number of a frame that is not code.
    pub fn mark(&mut self, mark: Mark) -> FrameId {
        let frames = &mut self.frames;
        *self.marks.entry(mark).or_insert_with_key(|mark| push(frames, Frame::Mark(mark.clone())))
    }

    /// The number of a call path's frame: a new one each time.
    pub(super) fn called(&mut self, called: Called) -> FrameId {
        push(&mut self.frames, Frame::Called(called))
    }

    pub fn get(&self, id: FrameId) -> &Frame {
        &self.frames[id.index()]
    }

    /// All frames, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Frame> {
        self.frames.iter()
    }

    /// Every frame replaced by another, numbers kept.
    pub(super) fn replaced(&self, change: impl FnMut(&Frame) -> Frame) -> Frames {
        Frames { frames: self.frames.iter().map(change).collect(), ..Frames::default() }
    }
}

fn push(frames: &mut Vec<Frame>, frame: Frame) -> FrameId {
    frames.push(frame);
    FrameId((frames.len() - 1) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::fixture::{code, unnamed};

    fn names(frame: Frame) -> Vec<String> {
        frame.functions().into_iter().map(|function| function.name.into_owned()).collect()
    }

    #[test]
    fn inlined_functions_come_after_the_one_they_are_in() {
        assert_eq!(names(Frame::Code(code(&["inner", "outer"]))), ["outer", "inner"]);
    }

    #[test]
    fn unnamed_frames_are_never_empty() {
        let unknown = |module, kind| names(Frame::Code(unnamed(module, kind, 0x1f)));
        assert_eq!(unknown(Some("/usr/lib/libc.so.6"), FrameKind::Native), ["[libc.so.6+0x1f]"]);
        assert_eq!(unknown(Some("[vdso]"), FrameKind::Native), ["[vdso+0x1f]"]);
        assert_eq!(unknown(None, FrameKind::Kernel), ["[kernel+0x1f]"]);
        assert_eq!(unknown(Some("dir/"), FrameKind::Jit), ["[0x1f]"]);
        assert_eq!(names(Frame::Mark(Mark::WakerThread("".into()))), ["(unnamed)"]);
        assert_eq!(names(Frame::Mark(Mark::State(State::FaultMajor))), ["[fault:major]"]);
    }

    #[test]
    fn meaning_is_named_with_its_software() {
        let named = |software: Option<&str>| {
            let source = wallprof_model::MeaningSource::Stack;
            let software = software.map(Into::into);
            names(Frame::Mark(Mark::Meaning(Arc::new(Meaning {
                name: "row lock".into(),
                software,
                idle: false,
                holder: true,
                source,
            }))))
        };
        assert_eq!(named(Some("postgresql")), ["[row lock of postgresql]"]);
        assert_eq!(named(None), ["[row lock]"]);
    }

    #[test]
    fn each_frame_has_one_number() {
        let mut frames = Frames::default();
        let main = code(&["main"]);
        assert_eq!(frames.code(&main), frames.code(&Arc::clone(&main)));
        assert_eq!(frames.mark(Mark::Unsampled), frames.mark(Mark::Unsampled));
        assert_ne!(frames.mark(Mark::Unsampled), frames.code(&main));
        assert_eq!(frames.iter().count(), 2);
    }
}
