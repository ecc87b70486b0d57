// SPDX-License-Identifier: Apache-2.0
//! A thread's whole stack: merges its stretches in the order of time, and decides the cases that a segment
//! alone cannot.

use super::frame::{Frame, Sides};
use super::limit::PathLimit;
use super::stack::{Open, Stack, Standing, is_in_kernel};
use super::stretch::{Epoch, Stretch};
use super::tree::{CallTree, PathId};
use crate::code::FunctionId;
use crate::event::{EndCause, Event, EventKind};
use crate::schedule::{Departure, ThreadId};
use crate::time_conv::TimeConv;

/// The limit of open calls of one thread: 12 MiB. It is more than a stack of 8 MiB can have, and bounds the
/// calls of damaged traces.
const MAX_DEPTH: usize = 1 << 18;

/// All calls of one thread.
#[derive(Clone, Debug)]
pub struct ThreadCalls {
    /// The thread.
    pub thread: ThreadId,
    /// The first time of the thread in the trace, in ticks. Its self times add up to the difference to
    /// `last`.
    pub first: u64,
    /// The last time of the thread in the trace, in ticks.
    pub last: u64,
    /// One root, at [`CallTree::ROOT`], which is not a frame.
    pub tree: CallTree,
}

/// Replays one thread.
#[derive(Clone, Debug)]
pub struct ThreadReplay {
    thread: ThreadId,
    stack: Stack,
    first: Option<u64>,
    floors: u32,
    /// The depth of the stack at the start of the current transaction.
    transaction: Option<usize>,
    /// Ticks at the start of the current stretch that the previous one has counted already. Times in a
    /// damaged trace, or of two CPUs, may overlap.
    overlap: u64,
    /// The time by side since the last call of `take_sides`.
    sides: Sides,
}

impl ThreadReplay {
    /// A replay with limits of its own.
    pub fn new(thread: ThreadId, time_conv: TimeConv) -> ThreadReplay {
        ThreadReplay::within(PathLimit::default(), thread, time_conv)
    }

    /// A replay whose call paths count against `limit`.
    pub fn within(limit: PathLimit, thread: ThreadId, time_conv: TimeConv) -> ThreadReplay {
        let mut tree = CallTree::within(limit);
        tree.new_root(Frame::Unknown);
        let stack = Stack::new(tree, time_conv);
        ThreadReplay {
            thread,
            stack,
            first: None,
            floors: 0,
            transaction: None,
            overlap: 0,
            sides: Sides::default(),
        }
    }

    /// As [`Recorder::with_slack`](super::Recorder::with_slack).
    pub fn with_slack(mut self, slack: u64) -> ThreadReplay {
        self.stack.slack = slack;
        self
    }

    /// Adds the thread's next stretch. Stretches come in the order of time.
    pub fn add(&mut self, stretch: &Stretch) {
        self.add_with_stubs(stretch, &|_| false);
    }

    /// As [`ThreadReplay::add`]. `is_stub`: whether a function is a stub of the procedure linkage table,
    /// which only jumps to another function.
    pub fn add_with_stubs(&mut self, stretch: &Stretch, is_stub: &dyn Fn(FunctionId) -> bool) {
        let mut first = 0;
        if self.first.is_none() {
            // Nothing is known of a thread before its first event, so it starts there.
            first = stretch.epochs.iter().take_while(|epoch| stretch.is_blank(epoch)).count();
            let Some(epoch) = stretch.epochs.get(first) else { return };
            self.start(epoch.event.map_or(stretch.from, |event| event.ticks));
        }
        self.charge(stretch.from);
        self.overlap = self.stack.last.saturating_sub(stretch.from) * u64::from(first == 0);
        if self.stack.open.last().is_some_and(|open| is_off_cpu(open.frame)) {
            self.stack.pop();
        }
        for (index, epoch) in stretch.epochs.iter().enumerate().skip(first) {
            if let Some(event) = &epoch.event {
                self.event(event, is_stub);
            }
            self.add_epoch(stretch, epoch, stretch.end_of_epoch(index));
        }
        if stretch.replaced {
            self.execute(stretch.to);
        }
        if let Some(departure) = stretch.departure {
            self.depart(stretch.to, departure);
        }
    }

    /// The open frames, the outermost first, without the frame of the departure from the CPU.
    pub fn frames(&self) -> impl Iterator<Item = Frame> + '_ {
        let frames = self.stack.open[self.stack.base()..].iter().map(|open| open.frame);
        frames.filter(|frame| !is_off_cpu(*frame) && !matches!(frame, Frame::Floor(_)))
    }

    /// The time by side since the last call.
    pub fn take_sides(&mut self) -> Sides {
        std::mem::take(&mut self.sides)
    }

    /// The time at which it left the CPU, if it is off the CPU.
    pub fn away_since(&self) -> Option<u64> {
        self.stack.open.last().filter(|open| is_off_cpu(open.frame)).map(|open| open.since)
    }

    /// A gap outside of the trace: data between two pieces was lost.
    pub fn lose(&mut self, ticks: u64) {
        self.start(ticks);
        self.charge(ticks);
        self.gap(false);
    }

    /// The thread started another program at `ticks`: its open calls never return.
    fn execute(&mut self, ticks: u64) {
        self.start(ticks);
        self.charge(ticks);
        self.close_all();
        self.stack.push(CallTree::ROOT, Frame::Untraced, 0, Standing::Before);
    }

    /// Closes all open calls. `ticks` is the end of the thread's trace.
    pub fn finish(mut self, ticks: u64) -> ThreadCalls {
        self.start(ticks);
        self.charge(ticks);
        self.close_all();
        let first = self.first.unwrap_or(self.stack.last);
        ThreadCalls { thread: self.thread, first, last: self.stack.last, tree: self.stack.tree }
    }

    fn close_all(&mut self) {
        self.stack.suspect(0..self.stack.open.len());
        while self.stack.pop().is_some() {}
        self.transaction = None;
    }

    fn start(&mut self, ticks: u64) {
        if self.first.is_none() {
            self.first = Some(ticks);
            self.stack.last = ticks;
        }
    }

    fn add_epoch(&mut self, stretch: &Stretch, epoch: &Epoch, end: usize) {
        let is_leaf = end == epoch.root.index() + 1 && epoch.open.is_empty();
        if is_leaf && stretch.tree.numbers(epoch.root).self_ticks == 0 {
            return;
        }
        self.ensure_frame();
        let side = self.stack.open.last().and_then(Open::side);
        self.sides.add(stretch.tree.sides(epoch.root, end, side));
        let top = self.top();
        let places = self.stack.tree.graft(&stretch.tree, epoch.root, end, top, &mut self.overlap);
        for open in &epoch.open {
            let path = CallTree::grafted(&places, epoch.root, open.path);
            self.stack.open.push(Open { path, ..*open });
        }
        self.stack.last = self.stack.last.max(epoch.until);
        if self.stack.open.len() > MAX_DEPTH {
            self.close_all();
        }
    }

    /// Time without a frame belongs to an unknown one.
    fn ensure_frame(&mut self) {
        if self.stack.open.is_empty() {
            self.stack.push(CallTree::ROOT, Frame::Unknown, 0, Standing::Before);
        }
    }

    fn depart(&mut self, ticks: u64, departure: Departure) {
        self.charge(ticks);
        self.stack.push(self.top(), Frame::of_departure(departure), 0, Standing::Call);
    }

    fn top(&self) -> PathId {
        self.stack.open.last().map_or(CallTree::ROOT, |open| open.path)
    }

    fn below_top(&self) -> PathId {
        let below = self.stack.open.len().checked_sub(2);
        below.map_or(CallTree::ROOT, |index| self.stack.open[index].path)
    }

    fn charge(&mut self, ticks: u64) {
        if ticks > self.stack.last {
            self.ensure_frame();
            if let Some(open) = self.stack.open.last() {
                self.sides.spend(open.side(), ticks - self.stack.last);
            }
            let top = self.top();
            self.stack.charge(top, ticks);
        }
    }

    /// Applies an event to the whole stack.
    pub(super) fn event(&mut self, event: &Event, is_stub: &dyn Fn(FunctionId) -> bool) {
        self.start(event.ticks);
        self.charge(event.ticks);
        match event.kind {
            EventKind::Call { return_to } => self.stack.call(self.top(), event, return_to),
            EventKind::Return => self.returned(event),
            EventKind::Jump { indirect } => self.jumped(event, indirect),
            EventKind::SystemCall { return_to } => self.stack.enter(self.top(), event, return_to),
            EventKind::Interrupt { .. } => self.stack.enter(self.top(), event, event.from),
            EventKind::SystemReturn => self.system_returned(event),
            EventKind::End { cause, return_to } => self.ended(cause, return_to),
            EventKind::Start | EventKind::Resume => self.resumed(event, is_stub),
            EventKind::Gap(cause) => self.gap(is_in_kernel(event.from) && !cause.loses_packets()),
            EventKind::TransactionStart => self.transaction = Some(self.stack.open.len()),
            EventKind::TransactionEnd => self.transaction = None,
            EventKind::TransactionAbort => self.aborted(),
            EventKind::Switch(_) => {}
        }
    }

    /// The next code is not traced.
    fn ended(&mut self, cause: EndCause, return_to: u64) {
        match cause {
            EndCause::Return => return self.returned_untraced(return_to),
            EndCause::Jump if self.is_lowest_known() => {
                // Its caller is not traced, so its return will not be recorded.
                self.stack.drop_top();
                return self.return_to_untraced(self.untraced_caller().unwrap_or(0));
            }
            EndCause::SystemReturn => return self.left_kernel(),
            EndCause::Gap => self.end_gap(),
            _ => {}
        }
        self.stack.push(self.top(), Frame::of_end(cause), return_to, Standing::Call);
    }

    fn returned(&mut self, event: &Event) {
        self.ensure_frame();
        // The return address of a call may be the entry of another function.
        if self.stack.open.last().is_some_and(|top| self.stack.returns(top, event.to)) {
            self.stack.pop();
            return;
        }
        if event.at_entry {
            return self.returned_to_entry(event);
        }
        // A return stays on its stack.
        let base = self.stack.base();
        if let Some(depth) = self.stack.returning_to(event.to).filter(|depth| *depth >= base) {
            return self.stack.unwind_to(depth);
        }
        if self.is_lowest_known() {
            return self.found_parent(event);
        }
        match self.stack.landing(event).filter(|depth| *depth > base) {
            Some(depth) => self.stack.skip_to(depth),
            None => self.replace_top(Frame::of_place(event), Standing::Before),
        }
    }

    /// Only some functions are traced, and the topmost frame returned to `address` in another one. That code
    /// was called by a frame below; otherwise the stack becomes empty.
    fn returned_untraced(&mut self, address: u64) {
        let depth = self.stack.returning_to(address).or_else(|| self.untraced_caller());
        self.stack.pop();
        self.return_to_untraced(depth.unwrap_or(0));
    }

    /// The topmost frame of untraced code, as the number of frames up to it.
    fn untraced_caller(&self) -> Option<usize> {
        Some(self.stack.open.iter().rposition(|open| is_away(open.frame))? + 1)
    }

    /// Keeps `depth` frames. The next code is not traced.
    fn return_to_untraced(&mut self, depth: usize) {
        self.stack.unwind_to(depth);
        if self.stack.open.last().is_none_or(|top| !is_away(top.frame)) {
            self.stack.push(self.top(), Frame::Untraced, 0, Standing::Call);
        }
    }

    /// Whether the topmost frame's caller is not known.
    fn is_lowest_known(&self) -> bool {
        match &self.stack.open[..] {
            [.., floor, top] => {
                matches!(floor.standing, Standing::Floor | Standing::OtherStack) && top.return_to == 0
            }
            [top] => top.return_to == 0,
            [] => true,
        }
    }

    /// The topmost frame ended, and its call was not recorded. Its caller was open before the gap, or was
    /// entered before the recording.
    fn found_parent(&mut self, event: &Event) {
        if let [.., left, floor, _] = &self.stack.open[..]
            && floor.standing == Standing::OtherStack
            && self.stack.returns(left, event.to)
        {
            // It is the same stack: the jump led to another part of the function that jumped.
            let left = self.stack.open.len() - 3;
            return self.stack.unwind_to(left);
        }
        let base = self.stack.base();
        let known = self.stack.landing(event).filter(|depth| *depth > base);
        self.stack.pop();
        if let Some(depth) = known {
            return self.stack.skip_to(depth);
        }
        let (floor, since) = match self.stack.open.last() {
            Some(floor) => (floor.path, floor.since),
            None => (CallTree::ROOT, self.first.unwrap_or(self.stack.last)),
        };
        let frame = Frame::of_place(event);
        self.stack.tree.insert_below(floor, frame);
        self.stack.push_traced(floor, frame, 0, Standing::Before, event);
        if let Some(parent) = self.stack.open.last_mut() {
            parent.since = since;
        }
    }

    /// A return used as a jump: a frame that called only for that ends with it.
    fn returned_to_entry(&mut self, event: &Event) {
        if let [.., below, top] = &self.stack.open[..]
            && top.into_middle
            && top.frame == below.frame
        {
            self.stack.pop();
        }
        self.replace_top(Frame::of_target(event), Standing::Call);
    }

    fn replace_top(&mut self, frame: Frame, standing: Standing) {
        let parent = self.below_top();
        self.stack.replace(parent, frame, standing);
    }

    fn jumped(&mut self, event: &Event, indirect: bool) {
        self.ensure_frame();
        let top = self.stack.open.last().map(|open| open.frame);
        if event.function.0 != 0 && top == Some(Frame::Function(event.function)) {
            return;
        }
        if event.at_entry {
            return self.replace_top(Frame::of_target(event), Standing::Call);
        }
        if !indirect {
            return;
        }
        match self.stack.landing(event) {
            Some(depth) => self.stack.skip_to(depth),
            None if event.function != FunctionId::UNKNOWN => self.changed_stack(event),
            None => {}
        }
    }

    /// A jump into the middle of a function that is not open: the thread continues with another stack, as
    /// Go's `gogo` does. Calls on the stack that it leaves stay open, because a later jump may come back to
    /// them.
    fn changed_stack(&mut self, event: &Event) {
        if matches!(&self.stack.open[..], [only] if only.frame == Frame::Unknown) {
            return self.replace_top(Frame::of_place(event), Standing::Before);
        }
        self.floors += 1;
        let floor = Frame::Floor(self.floors);
        self.stack.push_traced(CallTree::ROOT, floor, 0, Standing::OtherStack, event);
        self.stack.push_traced(self.top(), Frame::of_place(event), 0, Standing::Before, event);
    }

    /// Back in user code, or in interrupted kernel code.
    fn system_returned(&mut self, event: &Event) {
        if let Some(depth) = self.stack.returning_to(event.to) {
            return self.stack.unwind_to(depth);
        }
        self.continued(event);
    }

    /// From the kernel to untraced user code: the kernel's frames have ended.
    fn left_kernel(&mut self) {
        self.return_to_untraced(self.stack.below_kernel().unwrap_or(0));
    }

    /// As [`ThreadReplay::continued`]. Behind a gap in a stub of the procedure linkage table, the stub's
    /// target runs, or the stub's caller.
    fn resumed(&mut self, event: &Event, is_stub: &dyn Fn(FunctionId) -> bool) {
        let is_in_stub = match &self.stack.open[..] {
            [.., stub, lost] if lost.frame == Frame::Lost => stub.frame.function().is_some_and(is_stub),
            _ => false,
        };
        if !is_in_stub || !self.is_elsewhere(event) {
            return self.continued(event);
        }
        self.stack.pop();
        match event.at_entry {
            true => self.replace_top(Frame::of_target(event), Standing::Call),
            false => self.replace_top(Frame::of_place(event), Standing::Before),
        }
    }

    /// Whether user code runs that is not open, or starts.
    fn is_elsewhere(&self, event: &Event) -> bool {
        !is_in_kernel(event.to)
            && self.stack.returning_to(event.to).is_none()
            && (event.at_entry || self.stack.landing(event).is_none())
    }

    /// Execution continues at a place to which no call or return led.
    fn continued(&mut self, event: &Event) {
        self.end_gap();
        if self.is_only_untraced() {
            self.stack.pop();
        }
        if let Some(depth) = self.stack.returning_to(event.to) {
            return self.stack.unwind_to(depth);
        }
        if !is_in_kernel(event.to)
            && let Some(depth) = self.stack.below_kernel()
        {
            // User code runs, so all kernel frames have ended.
            self.stack.skip_to(depth);
        }
        if event.at_entry {
            self.end_departed();
            return self.push_on_floor(Frame::of_target(event), Standing::Call, event);
        }
        // Kernel frames are above the user's stack, whatever led there.
        let lowest = match is_in_kernel(event.to) {
            true => self.stack.below_kernel().unwrap_or(self.stack.open.len()),
            false => 0,
        };
        while self.stack.open.len() > lowest
            && self.stack.open.last().is_some_and(|open| open.frame.is_outside())
        {
            self.stack.pop();
        }
        let frame = Frame::of_place(event);
        if self.stack.open.last().is_some_and(|open| open.frame == frame) {
            return;
        }
        match self.stack.landing(event) {
            Some(depth) => self.stack.skip_to(depth),
            None => self.push_on_floor(frame, Standing::Before, event),
        }
    }

    /// Whether the thread is only known to have run untraced code.
    fn is_only_untraced(&self) -> bool {
        matches!(&self.stack.open[..], [only] if only.frame == Frame::Untraced)
    }

    fn end_gap(&mut self) {
        if self.stack.open.last().is_some_and(|open| open.frame == Frame::Lost) {
            self.stack.pop();
        }
    }

    /// A function starts again. If the topmost one had jumped to an untraced part of itself, and its caller
    /// is not traced either, it has returned in between.
    fn end_departed(&mut self) {
        if let [.., below, top] = &self.stack.open[..]
            && top.frame == Frame::Untraced
            && top.return_to == 0
            && below.return_to == 0
            && !below.frame.is_outside()
            && below.standing != Standing::Floor
        {
            self.stack.pop();
            self.stack.drop_top();
            self.stack.unwind_to(self.untraced_caller().unwrap_or(0));
            if self.is_only_untraced() {
                self.stack.pop();
            }
        }
    }

    fn push_on_floor(&mut self, frame: Frame, standing: Standing, event: &Event) {
        if !self.stack.open.is_empty() {
            self.floors += 1;
            self.stack.push_traced(self.top(), Frame::Floor(self.floors), 0, Standing::Floor, event);
        }
        self.stack.push_traced(self.top(), frame, 0, standing, event);
    }

    /// All open calls become hypotheses. After a gap of kernel code, only those of the kernel.
    fn gap(&mut self, of_kernel: bool) {
        let is_lost = self.stack.open.last().is_some_and(|open| open.frame == Frame::Lost);
        let end = self.stack.open.len() - usize::from(is_lost);
        let start = if of_kernel { self.stack.below_kernel().unwrap_or(end) } else { 0 };
        self.stack.suspect(start.min(end)..end);
        self.transaction = None;
        if !is_lost {
            self.stack.push(self.top(), Frame::Lost, 0, Standing::Call);
        }
    }

    fn aborted(&mut self) {
        if let Some(depth) = self.transaction.take() {
            self.stack.skip_to(depth.max(1));
        }
    }
}

fn is_off_cpu(frame: Frame) -> bool {
    matches!(frame, Frame::Blocked | Frame::Preempted | Frame::OffCpu)
}

/// Whether `frame` stands for code that may call traced code.
fn is_away(frame: Frame) -> bool {
    frame == Frame::Untraced || is_kernel_entry(frame)
}

fn is_kernel_entry(frame: Frame) -> bool {
    matches!(frame, Frame::SystemCall | Frame::Interrupt | Frame::PageFault)
}
