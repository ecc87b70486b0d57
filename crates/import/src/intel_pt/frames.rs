// SPDX-License-Identifier: Apache-2.0
//! Frames of call paths as events of the model: the decoder's function ids become frames.

use std::collections::HashMap;

use wallprof_intel_pt::ThreadId;
use wallprof_intel_pt::replay::Frame;
use wallprof_model::{CallFrame, Event, FrameId, FrameKind, Outside, StackEnd, StackId, SymbolLine};
use wallprof_symbols::ProcessKey;

use super::Prepared;
use super::code::{Entry, Programs};
use crate::calls;
use crate::stacks::Stacks;

/// Frames of call paths, and the ids under which they were emitted.
pub(crate) struct Frames<'a> {
    prepared: &'a Prepared,
    programs: &'a Programs<'a>,
    /// Functions. They are the same for all threads.
    known: HashMap<Frame, CallFrame<FrameId>>,
}

impl<'a> Frames<'a> {
    pub(crate) fn new(prepared: &'a Prepared, programs: &'a Programs<'a>) -> Self {
        Frames { prepared, programs, known: HashMap::new() }
    }

    /// `None` only for a floor, which is never shown.
    pub(crate) fn of(
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
                    let emitted = made_at_run_time((pid, number), address, name, stacks, out);
                    self.known.insert(frame, emitted.clone());
                    return Some(emitted);
                }
                None => return Some(CallFrame::Outside(Outside::Unknown)),
            },
            Frame::Address(address) => self.programs.frame_of_address(self.prepared.spaces.of(pid), address),
            _ => return calls::outside(frame).map(CallFrame::Outside),
        };
        let process = ProcessKey { pid: if code.kind == FrameKind::Kernel { 0 } else { pid }, generation: 0 };
        let emitted = CallFrame::Code(stacks.frame(process, code, out));
        if frame.function().is_some() {
            self.known.insert(frame, emitted.clone());
        }
        Some(emitted)
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

/// An address may have held several functions over time, so `number` is part of the key.
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
