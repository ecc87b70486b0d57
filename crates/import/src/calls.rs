// SPDX-License-Identifier: Apache-2.0
//! A thread's call paths as events of the model: ticks become nanoseconds, and each path gets the number by
//! which events refer to it.

use std::collections::HashMap;

use wallprof_intel_pt::TimeConv;
use wallprof_intel_pt::replay::{CallTree, Frame, Numbers, PathId, ThreadCalls};
use wallprof_model::{CallFrame, CallNumbers, CallPath, CallPathId, Event, FrameId, Outside, ThreadKey};

/// The meaning of a frame that is not code. `None`: code, or a floor, which is never shown.
pub(crate) fn outside(frame: Frame) -> Option<Outside> {
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

/// Emits all call paths of a thread. `name` emits a new frame into `out`; `deliver` takes the events that are
/// pending there. Returns the number of calls of functions.
pub(crate) fn emit_calls<E>(
    (key, calls): (ThreadKey, &ThreadCalls),
    time_conv: TimeConv,
    out: &mut Vec<Event>,
    mut name: impl FnMut(Frame, &mut Vec<Event>) -> Option<CallFrame<FrameId>>,
    mut deliver: impl FnMut(&mut Vec<Event>) -> Result<(), E>,
) -> Result<u64, E> {
    let mut ids: HashMap<PathId, CallPathId> = HashMap::new();
    let (mut count, mut spent) = (0u64, 0u64);
    for path in calls.tree.paths(CallTree::ROOT).into_iter().skip(1) {
        let parent = calls.tree.parent(path).filter(|&parent| parent != CallTree::ROOT);
        let parent = parent.and_then(|parent| ids.get(&parent).copied());
        let Some(frame) = name(calls.tree.frame(path), out) else { continue };
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
        out.push(Event::CallPath(Box::new(CallPath { id, thread: key, parent, frame, numbers })));
        deliver(out)?;
    }
    Ok(count)
}

/// All numbers but the own time.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_floors_alone_have_no_meaning_outside() {
        let code = [Frame::Address(7), Frame::Floor(1)];
        assert!(code.into_iter().all(|frame| outside(frame).is_none()));
        for frame in [Frame::Unknown, Frame::SystemCall, Frame::PageFault, Frame::Lost, Frame::OffCpu] {
            assert_eq!(outside(frame).map(Outside::label), frame.label());
        }
    }

    #[test]
    fn without_complete_calls_min_is_zero() {
        let mut numbers = Numbers::default();
        (numbers.partial_ticks, numbers.incomplete) = (10, 1);
        let numbers = numbers_in_ns(&numbers, TimeConv { shift: 1, mult: 1, zero: 99 });
        assert_eq!((numbers.min_ns, numbers.max_ns, numbers.total_ns, numbers.incomplete), (0, 0, 5, 1));
    }
}
