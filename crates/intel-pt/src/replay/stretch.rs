// SPDX-License-Identifier: Apache-2.0
//! The part of a thread's calls that one segment shows by itself. Complete calls are counted and open ones
//! are kept. Events that depend on the stack below are kept, too; `thread` applies them when the segments are
//! merged in order.

use super::frame::Frame;
use super::stack::{Open, Stack, Standing};
use super::tree::{CallTree, PathId};
use crate::code::SpaceId;
use crate::event::{EndCause, Event, EventKind, Sink};
use crate::schedule::{Departure, Switch, ThreadId};
use crate::time_conv::TimeConv;

/// Longer stretches are divided, and so are longer times without an event, because times are summed by the
/// second later. In ticks: a quarter of a second, and a twentieth.
const LONG_STRETCH: u64 = 1 << 29;
const LONG_PAUSE: u64 = 1 << 27;

/// A thread's time on a CPU within one segment.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// The thread.
    pub thread: ThreadId,
    /// The start, in ticks.
    pub from: u64,
    /// The end, in ticks.
    pub to: u64,
    /// The way in which the thread left the CPU; `None` if the segment ended first.
    pub departure: Option<Departure>,
    /// It ended because the thread started another program (`exec`), which has an empty stack.
    pub(super) replaced: bool,
    pub(super) tree: CallTree,
    pub(super) epochs: Vec<Epoch>,
}

/// The calls on top of the stack that `event` left.
#[derive(Clone, Debug)]
pub(super) struct Epoch {
    /// The event at its start. The first epoch of a stretch has none.
    pub event: Option<Event>,
    /// Stands for the topmost frame at its start. Its tree has the nodes from here to the next epoch's root.
    pub root: PathId,
    /// Open calls, the outermost first.
    pub open: Vec<Open>,
    /// The time up to which it has charged time.
    pub until: u64,
}

impl Stretch {
    /// The end of the tree of the epoch with this index.
    pub(super) fn end_of_epoch(&self, index: usize) -> usize {
        self.epochs.get(index + 1).map_or(self.tree.len(), |next| next.root.index())
    }

    /// Whether `epoch`, which is one of the first, is empty.
    pub(super) fn is_blank(&self, epoch: &Epoch) -> bool {
        epoch.event.is_none() && epoch.open.is_empty() && self.end_of_epoch(0) == epoch.root.index() + 1
    }
}

/// Receives a segment's events.
pub struct Recorder {
    stack: Stack,
    thread: ThreadId,
    space: SpaceId,
    from: u64,
    event: Option<Event>,
    root: PathId,
    epochs: Vec<Epoch>,
    stretches: Vec<Stretch>,
}

impl Recorder {
    /// A recorder of one segment. `time_conv` converts its times for histograms.
    pub fn new(time_conv: TimeConv) -> Recorder {
        let mut tree = CallTree::default();
        let root = tree.new_root(Frame::Unknown);
        Recorder {
            stack: Stack::new(tree, time_conv),
            thread: ThreadId::NONE,
            space: SpaceId::NOTHING,
            from: 0,
            event: None,
            root,
            epochs: Vec::new(),
            stretches: Vec::new(),
        }
    }

    /// For sources that have the address of a call, but not its return address. `return_to` of a call is then
    /// the first possible return address. A return up to `slack` bytes behind it ends the call.
    pub fn with_slack(mut self, slack: u64) -> Recorder {
        self.stack.slack = slack;
        self
    }

    /// The stretches, in order. `ticks` is the end of the segment.
    pub fn finish(mut self, ticks: u64) -> Vec<Stretch> {
        self.divide_long(ticks);
        self.end_stretch(ticks, None);
        self.stretches
    }

    /// Ends a long stretch. A long time without an event up to `ticks` becomes a stretch of its own.
    #[cold]
    #[inline(never)]
    fn divide(&mut self, ticks: u64) {
        let (thread, last) = (self.thread, self.stack.last);
        self.end_stretch(last, None);
        self.start_stretch(last, thread);
        if ticks - last > LONG_PAUSE {
            self.end_stretch(ticks, None);
            self.start_stretch(ticks, thread);
        }
    }

    #[inline]
    fn divide_long(&mut self, ticks: u64) {
        let last = self.stack.last;
        if ticks.saturating_sub(last) > LONG_PAUSE || last - self.from.min(last) > LONG_STRETCH {
            self.divide(ticks.max(last));
        }
    }

    fn end_stretch(&mut self, ticks: u64, departure: Option<Departure>) {
        self.charge(ticks);
        self.end_epoch();
        let epochs = std::mem::take(&mut self.epochs);
        let mut next = CallTree::default();
        self.root = next.new_root(Frame::Unknown);
        let tree = std::mem::replace(&mut self.stack.tree, next);
        let to = self.stack.last.max(self.from);
        if self.thread != ThreadId::NONE {
            let (thread, from) = (self.thread, self.from);
            self.stretches.push(Stretch { thread, from, to, departure, replaced: false, tree, epochs });
        }
    }

    fn start_stretch(&mut self, ticks: u64, thread: ThreadId) {
        self.thread = thread;
        self.from = ticks;
        self.stack.last = ticks;
        self.event = None;
    }

    fn end_epoch(&mut self) {
        let open = std::mem::take(&mut self.stack.open);
        let (event, root, until) = (self.event.take(), self.root, self.stack.last);
        self.epochs.push(Epoch { event, root, open, until });
    }

    /// Keeps `event` for the merge, which knows the stack below.
    fn defer(&mut self, event: &Event) {
        self.end_epoch();
        self.root = self.stack.tree.new_root(Frame::Unknown);
        self.event = Some(*event);
    }

    fn switch(&mut self, switch: Switch) {
        let before = std::mem::replace(&mut self.space, switch.space);
        let ticks = switch.ticks.max(self.stack.last);
        self.divide_long(ticks);
        if switch.thread != self.thread {
            self.end_stretch(ticks, Some(switch.departure));
        } else if self.thread != ThreadId::NONE
            && switch.space == SpaceId::NOTHING
            && before != SpaceId::NOTHING
        {
            self.end_stretch(ticks, None);
            if let Some(stretch) = self.stretches.last_mut() {
                stretch.replaced = true;
            }
        } else {
            // The same thread continues: its process's mappings have changed.
            return;
        }
        self.start_stretch(ticks, switch.thread);
    }

    /// The path of the topmost frame, or of the root.
    #[inline]
    fn top(&self) -> PathId {
        self.stack.open.last().map_or(self.root, |open| open.path)
    }

    /// The path below the topmost frame.
    fn below_top(&self) -> PathId {
        let below = self.stack.open.len().checked_sub(2);
        below.map_or(self.root, |index| self.stack.open[index].path)
    }

    #[inline]
    fn charge(&mut self, ticks: u64) {
        let top = self.top();
        self.stack.charge(top, ticks);
    }

    #[inline]
    fn returned(&mut self, event: &Event) {
        match self.stack.open.last() {
            Some(top) if self.stack.returns(top, event.to) => {
                self.stack.pop();
            }
            _ => self.returned_elsewhere(event),
        }
    }

    fn returned_elsewhere(&mut self, event: &Event) {
        if event.at_entry {
            return self.returned_to_entry(event);
        }
        match self.stack.returning_to(event.to) {
            Some(depth) => self.stack.unwind_to(depth),
            None => self.defer(event),
        }
    }

    /// A return used as a jump.
    fn returned_to_entry(&mut self, event: &Event) {
        match &self.stack.open[..] {
            [.., below, top] if top.into_middle && top.frame == below.frame => {
                self.stack.pop();
                self.replace_top(event);
            }
            [_, _, ..] => self.replace_top(event),
            [top] if !top.into_middle => self.replace_top(event),
            _ => self.defer(event),
        }
    }

    fn replace_top(&mut self, event: &Event) {
        let parent = self.below_top();
        self.stack.replace(parent, Frame::of_target(event), Standing::Call);
    }

    fn jumped(&mut self, event: &Event, indirect: bool) {
        let Some(top) = self.stack.open.last() else {
            return self.defer(event);
        };
        if event.function.0 != 0 && top.frame == Frame::Function(event.function) {
            return;
        }
        if event.at_entry {
            return self.replace_top(event);
        }
        if indirect {
            match self.stack.landing(event) {
                Some(depth) => self.stack.skip_to(depth),
                None => self.defer(event),
            }
        }
    }

    fn came_back(&mut self, event: &Event) {
        match self.stack.returning_to(event.to) {
            Some(depth) => self.stack.unwind_to(depth),
            None => self.defer(event),
        }
    }
}

impl Sink for Recorder {
    fn join(&mut self, ticks: u64, current: Switch) {
        self.space = current.space;
        self.start_stretch(ticks, current.thread);
    }

    #[inline]
    fn event(&mut self, event: &Event) {
        if let EventKind::Switch(switch) = event.kind {
            return self.switch(switch);
        }
        self.divide_long(event.ticks);
        self.charge(event.ticks);
        match event.kind {
            EventKind::Call { return_to } => self.stack.call(self.top(), event, return_to),
            EventKind::Return => self.returned(event),
            EventKind::Jump { indirect } => self.jumped(event, indirect),
            EventKind::SystemCall { return_to } => self.stack.enter(self.top(), event, return_to),
            EventKind::Interrupt { .. } => self.stack.enter(self.top(), event, event.from),
            EventKind::End { cause, return_to } if depends_only_on_top(cause) => {
                self.stack.push(self.top(), Frame::of_end(cause), return_to, Standing::Call);
            }
            EventKind::Start | EventKind::SystemReturn => self.came_back(event),
            _ => self.defer(event),
        }
    }
}

fn depends_only_on_top(cause: EndCause) -> bool {
    !matches!(cause, EndCause::SystemReturn | EndCause::Return | EndCause::Jump | EndCause::Gap)
}
