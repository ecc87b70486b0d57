// SPDX-License-Identifier: Apache-2.0
//! One stall as slices, with the flow from the thread that ended it.

use std::io;
use std::sync::Arc;

use wallprof_analysis::weights::Frame;
use wallprof_model::profile::{ResolvedStack, StallRecord, WakerRecord};
use wallprof_model::{MonoNs, StackEnd, StallKind, ThreadRef};

use super::messages::{DebugAnnotation, EventType, TrackEvent};
use super::sequence::Sequence;
use super::tracks::{Owner, Tracks};
use crate::escape::escape;
use crate::export::stall_names::{stall_name, thread_name, waker_name};
use crate::frame_name::{marked_name, shown_comm};

pub(super) fn write(out: &mut Sequence<'_>, tracks: &mut Tracks, stall: &StallRecord) -> io::Result<()> {
    if tracks.thread(stall.thread).is_none() {
        return Ok(());
    }
    let row = tracks.row(out, Owner::Thread(stall.thread), (stall.start, stall.end))?;
    let kind = if row.is_free { EventType::SliceBegin } else { EventType::Instant };
    let begin = described(out, TrackEvent::on(row.track, kind), stall);
    out.event(stall.start, begin)?;
    if row.is_free {
        wakeup(out, tracks, row.track, stall)?;
        out.event(stall.end, TrackEvent::on(row.track, EventType::SliceEnd))?;
    }
    Ok(())
}

/// The part of a wait after its wakeup, and the flow that leads there.
fn wakeup(out: &mut Sequence<'_>, tracks: &mut Tracks, track: u64, stall: &StallRecord) -> io::Result<()> {
    let woken_at = MonoNs(stall.end.0.saturating_sub(stall.runnable_ns).max(stall.start.0));
    let flows = match &stall.waker {
        Some(WakerRecord { thread: Some(thread), user, kernel }) => {
            let track = tracks.mentioned(out, thread)?;
            let mut wakes = TrackEvent::on(track, EventType::Instant);
            wakes.name_iid = Some(out.name(&format!("wakes {}", shown_comm(&stall.comm))));
            wakes.flow_ids.push(stall.id);
            add_stacks(out, &mut wakes, user.as_ref(), kernel.as_ref());
            out.event(woken_at, wakes)?;
            vec![stall.id]
        }
        _ => Vec::new(),
    };
    let is_runnable = stall.blocked_ns > 0 && stall.runnable_ns > 0;
    if !is_runnable && flows.is_empty() {
        return Ok(());
    }
    let kind = if is_runnable { EventType::SliceBegin } else { EventType::Instant };
    let name_iid = Some(out.name(if is_runnable { "runnable" } else { "woken" }));
    let event = TrackEvent { name_iid, terminating_flow_ids: flows, ..TrackEvent::on(track, kind) };
    out.event(woken_at, event)?;
    if is_runnable {
        out.event(stall.end, TrackEvent::on(track, EventType::SliceEnd))?;
    }
    Ok(())
}

fn described(out: &mut Sequence<'_>, mut event: TrackEvent, stall: &StallRecord) -> TrackEvent {
    let category = match (stall.voluntary, stall.kind) {
        (true, _) => "idle",
        (false, StallKind::OffCpu) => "stall",
        (false, StallKind::Fault) => "fault",
    };
    event.category_iids.push(out.category(category));
    event.name_iid = Some(out.name(&stall_name(stall)));
    let mut annotations = Annotations { out, list: Vec::new() };
    annotations.number("stall", Some(stall.id));
    annotations.text("reason", Some(stall.reason.name()));
    annotations.text("meaning", stall.meaning.as_ref().map(ToString::to_string).as_deref());
    annotations.truth("voluntary", stall.voluntary);
    annotations.truth("open", stall.open);
    annotations.number("duration_ns", Some(stall.duration_ns()));
    annotations.number("late_ns", Some(stall.late_ns()));
    annotations.number("blocked_ns", Some(stall.blocked_ns));
    annotations.number("runnable_ns", Some(stall.runnable_ns));
    annotations.number("asked_ns", stall.asked_ns);
    annotations.number("wait_id", stall.wait_id);
    annotations.text("syscall", stall.syscall.as_deref());
    annotations.number("cpu", stall.cpu.map(u64::from));
    annotations.text("woken by", stall.waker.as_ref().map(waker_name).as_deref());
    annotations.pointer("lock", stall.lock.as_ref().map(|lock| lock.address));
    let owner = stall.lock.as_ref().and_then(|lock| lock.owner.as_ref());
    annotations.text("lock owner", owner.map(thread_name).as_deref());
    annotations.text("trace_id", stall.trace.map(|ids| ids.trace_id()).as_deref());
    annotations.text("span_id", stall.trace.map(|ids| ids.span_id()).as_deref());
    annotations.text("file", stall.file.as_ref().map(|file| file.path.as_str()));
    if let Some(fault) = &stall.fault {
        annotations.pointer("fault address", Some(fault.address));
        annotations.text("fault file", fault.file.as_deref());
    }
    annotations.ran_instead(&stall.ran_instead);
    event.debug_annotations = annotations.list;
    add_stacks(out, &mut event, stall.user.as_ref(), stall.kernel.as_ref());
    event
}

/// Both stacks, leaf first, and how each ended where it is not whole.
fn add_stacks(
    out: &mut Sequence<'_>,
    event: &mut TrackEvent,
    user: Option<&ResolvedStack>,
    kernel: Option<&ResolvedStack>,
) {
    let mut annotations = Annotations { out, list: std::mem::take(&mut event.debug_annotations) };
    for (key, end_key, stack) in
        [("kernel stack", "kernel stack end", kernel), ("user stack", "user stack end", user)]
    {
        let Some(stack) = stack else { continue };
        annotations.texts(key, function_names(stack));
        let end = (stack.end != StackEnd::Complete).then(|| stack.end.name());
        annotations.text(end_key, end);
    }
    event.debug_annotations = annotations.list;
}

fn function_names(stack: &ResolvedStack) -> Vec<String> {
    let mut names = Vec::new();
    for frame in stack.frames.iter() {
        let frame = Frame::Code(Arc::clone(frame));
        names.extend(frame.functions().iter().rev().map(|function| marked_name(function).into_owned()));
    }
    names
}

/// Annotations of an event. What is not known is left out.
struct Annotations<'s, 'o> {
    out: &'s mut Sequence<'o>,
    list: Vec<DebugAnnotation>,
}

impl Annotations<'_, '_> {
    fn number(&mut self, key: &str, value: Option<u64>) {
        if value.is_some() {
            self.list.push(DebugAnnotation { uint_value: value, ..self.out.annotation(key) });
        }
    }

    fn pointer(&mut self, key: &str, value: Option<u64>) {
        if value.is_some() {
            self.list.push(DebugAnnotation { pointer_value: value, ..self.out.annotation(key) });
        }
    }

    fn truth(&mut self, key: &str, value: bool) {
        self.list.push(DebugAnnotation { bool_value: Some(value), ..self.out.annotation(key) });
    }

    fn text(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value {
            let string_value_iid = self.out.value(&escape(value)).string_value_iid;
            self.list.push(DebugAnnotation { string_value_iid, ..self.out.annotation(key) });
        }
    }

    /// Texts with a time in them are hardly ever equal: they are not shared.
    fn ran_instead(&mut self, threads: &[(ThreadRef, u64)]) {
        let text = |(thread, ns): &(ThreadRef, u64)| {
            let text = format!("{}: {ns} ns", thread_name(thread));
            DebugAnnotation { string_value: Some(escape(&text).into_owned()), ..DebugAnnotation::default() }
        };
        if !threads.is_empty() {
            let array_values = threads.iter().map(text).collect();
            self.list.push(DebugAnnotation { array_values, ..self.out.annotation("ran instead") });
        }
    }

    /// An array of escaped texts, unless it is empty.
    fn texts(&mut self, key: &str, values: Vec<String>) {
        if !values.is_empty() {
            let array_values = values.iter().map(|value| self.out.value(value)).collect();
            self.list.push(DebugAnnotation { array_values, ..self.out.annotation(key) });
        }
    }
}
