//! Call paths as events of the model: the decoder's numbers for functions become frames, its ticks nanoseconds.

use std::collections::HashMap;

use wallprof_intel_pt::replay::{CallTree, Frame, Numbers, PathId, ThreadCalls};
use wallprof_intel_pt::{ThreadId, TimeConv};
use wallprof_model::{
    CallFrame, CallNumbers, CallPath, CallPathId, Event, FrameId, FrameKind, Outside, StackEnd, StackId,
    SymbolLine,
};
use wallprof_symbols::ProcessKey;

use super::Prepared;
use super::code::{Entry, Programs};
use crate::stacks::Stacks;

/// A call path's frame as an event names it.
pub(crate) struct Frames<'a> {
    prepared: &'a Prepared,
    programs: &'a Programs<'a>,
    /// Functions, which are the same whatever thread runs them.
    known: HashMap<Frame, CallFrame<FrameId>>,
}

impl<'a> Frames<'a> {
    pub(crate) fn new(prepared: &'a Prepared, programs: &'a Programs<'a>) -> Self {
        Frames { prepared, programs, known: HashMap::new() }
    }

    /// `None` only for a floor, which nobody sees.
    fn of(
        &mut self,
        thread: ThreadId,
        frame: Frame,
        stacks: &mut Stacks,
        out: &mut Vec<Event>,
    ) -> Option<CallFrame<FrameId>> {
        if let Some(known) = self.known.get(&frame) {
            return Some(known.clone());
        }
        let pid = self.prepared.pids.get(&thread).copied().unwrap_or_default();
        let code = match frame {
            Frame::Function(function) => match self.programs.entry(function) {
                Some(Entry::Known(code)) => code,
                Some(Entry::Made { address, name, number }) => {
                    let told = made_at_run_time((pid, number), address, name, stacks, out);
                    self.known.insert(frame, told.clone());
                    return Some(told);
                }
                None => return Some(CallFrame::Outside(Outside::Unknown)),
            },
            Frame::Address(address) => self.programs.frame_of_address(self.prepared.spaces.of(pid), address),
            _ => return outside(frame).map(CallFrame::Outside),
        };
        let process = ProcessKey { pid: if code.kind == FrameKind::Kernel { 0 } else { pid }, generation: 0 };
        let told = CallFrame::Code(stacks.frame(process, code, out));
        if frame.function().is_some() {
            self.known.insert(frame, told.clone());
        }
        Some(told)
    }

    /// The stack of a thread with these frames open, the outermost first.
    pub(crate) fn stack(
        &mut self,
        thread: ThreadId,
        frames: &mut dyn Iterator<Item = Frame>,
        stacks: &mut Stacks,
        out: &mut Vec<Event>,
    ) -> Option<StackId> {
        let mut ids: Vec<FrameId> = Vec::new();
        for frame in frames {
            if let Some(CallFrame::Code(id)) = self.of(thread, frame, stacks, out) {
                ids.push(id);
            }
        }
        ids.reverse();
        // Callers from before the trace are not known.
        stacks.of_frames(ids, StackEnd::Truncated, out)
    }
}

/// The same address may have held several functions: each has its number.
fn made_at_run_time(
    (pid, number): (u32, u32),
    address: u64,
    name: &str,
    stacks: &mut Stacks,
    out: &mut Vec<Event>,
) -> CallFrame<FrameId> {
    let code = wallprof_model::Frame { kind: FrameKind::Jit, module: None, address };
    let frame = stacks.frame(ProcessKey { pid, generation: number }, code, out);
    let symbol = Some(name.to_owned()).filter(|name| !name.is_empty());
    out.push(Event::Symbol {
        frame,
        lines: vec![SymbolLine { symbol, offset: Some(0), ..SymbolLine::default() }],
    });
    CallFrame::Code(frame)
}

fn outside(frame: Frame) -> Option<Outside> {
    Some(match frame {
        Frame::Function(_) | Frame::Address(_) | Frame::Floor(_) => return None,
        Frame::Unknown => Outside::Unknown,
        Frame::SystemCall => Outside::SystemCall,
        Frame::Interrupt => Outside::Interrupt,
        Frame::PageFault => Outside::PageFault,
        Frame::Untraced => Outside::Untraced,
        Frame::Lost => Outside::Lost,
        Frame::Blocked => Outside::Blocked,
        Frame::Preempted => Outside::Preempted,
        Frame::OffCpu => Outside::OffCpu,
    })
}

/// Tells all call paths of a thread; `hand_on` takes what has gathered in `out`. Returns the number of calls of functions.
pub(crate) fn tell_calls<E>(
    calls: &ThreadCalls,
    frames: &mut Frames<'_>,
    stacks: &mut Stacks,
    out: &mut Vec<Event>,
    mut hand_on: impl FnMut(&mut Vec<Event>) -> Result<(), E>,
) -> Result<u64, E> {
    let time_conv = frames.prepared.time_conv;
    let mut ids: HashMap<PathId, CallPathId> = HashMap::new();
    let (mut count, mut spent) = (0u64, 0u64);
    for path in calls.tree.paths(CallTree::ROOT).into_iter().skip(1) {
        let parent = calls.tree.parent(path).filter(|&parent| parent != CallTree::ROOT);
        let parent = parent.and_then(|parent| ids.get(&parent).copied());
        let Some(frame) = frames.of(calls.thread, calls.tree.frame(path), stacks, out) else { continue };
        let ticks = calls.tree.numbers(path);
        // Rounded as a sum, so that own times add up.
        let before = time_conv.delta_ns(spent);
        spent = spent.saturating_add(ticks.self_ticks);
        let self_ns = time_conv.delta_ns(spent).saturating_sub(before);
        let numbers = CallNumbers { self_ns, ..numbers_in_ns(ticks, time_conv) };
        if matches!(frame, CallFrame::Code(_)) {
            count = count.saturating_add(numbers.calls).saturating_add(numbers.incomplete);
        }
        let id = CallPathId(ids.len() as u32);
        ids.insert(path, id);
        let thread = super::thread_key(calls.thread);
        out.push(Event::CallPath(Box::new(CallPath { id, thread, parent, frame, numbers })));
        hand_on(out)?;
    }
    Ok(count)
}

/// All but the own time.
fn numbers_in_ns(numbers: &Numbers, time_conv: TimeConv) -> CallNumbers {
    let has_calls = numbers.calls > 0;
    CallNumbers {
        calls: numbers.calls,
        incomplete: numbers.incomplete,
        entered_before: numbers.entered_before,
        unwound: numbers.unwound,
        self_ns: 0,
        total_ns: time_conv.delta_ns(numbers.total_ticks()),
        complete_ns: time_conv.delta_ns(numbers.call_ticks),
        min_ns: if has_calls { time_conv.delta_ns(numbers.min_ticks) } else { 0 },
        max_ns: time_conv.delta_ns(numbers.max_ticks),
        latency: numbers.histogram(),
    }
}
