//! A thread's whole stack: puts its stretches together in the order of time, and decides what a segment alone could not.

use super::frame::{Frame, Sides};
use super::limit::PathLimit;
use super::stack::{Open, Stack, Standing, is_in_kernel};
use super::stretch::{Epoch, Stretch};
use super::tree::{CallTree, PathId};
use crate::code::FunctionId;
use crate::event::{EndCause, Event, EventKind};
use crate::schedule::{Departure, ThreadId};
use crate::time_conv::TimeConv;

/// Open calls of one thread, 12 MiB: more than a stack of 8 MiB has limit for, and less than a damaged trace may invent.
const MAX_DEPTH: usize = 1 << 18;

/// All calls of one thread.
#[derive(Clone, Debug)]
pub struct ThreadCalls {
    pub thread: ThreadId,
    /// The first and the last time the trace knows of it, in ticks: its self times add up to the difference.
    pub first: u64,
    pub last: u64,
    /// One root, at [`CallTree::ROOT`], which is no frame.
    pub tree: CallTree,
}

/// Replays one thread.
#[derive(Clone, Debug)]
pub struct ThreadReplay {
    thread: ThreadId,
    stack: Stack,
    first: Option<u64>,
    floors: u32,
    /// The depth of the stack when the transaction under way began.
    transaction: Option<usize>,
    /// Ticks at the begin of the stretch at hand that the one before it has told already: times in a damaged trace, or
    /// of two CPUs, may not fit.
    overlap: u64,
    /// Since they were last asked for.
    sides: Sides,
}

impl ThreadReplay {
    /// With limit of its own.
    pub fn new(thread: ThreadId, time_conv: TimeConv) -> ThreadReplay {
        ThreadReplay::within(PathLimit::default(), thread, time_conv)
    }

    /// Call paths take their place in `limit`.
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

    /// Goes on with the thread's next stretch. Stretches come in the order of time.
    pub fn add(&mut self, stretch: &Stretch) {
        self.add_with_stubs(stretch, &|_| false);
    }

    /// As [`ThreadReplay::add`]. `is_stub`: whether a function is a stub of the linkage table, which only
    /// jumps to another.
    pub fn add_with_stubs(&mut self, stretch: &Stretch, is_stub: &dyn Fn(FunctionId) -> bool) {
        let mut first = 0;
        if self.first.is_none() {
            // Before its first event nothing is known of a thread; it starts there.
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

    /// What is open, the outermost first; how the thread left its CPU is no part of it.
    pub fn frames(&self) -> impl Iterator<Item = Frame> + '_ {
        let frames = self.stack.open[self.stack.base()..].iter().map(|open| open.frame);
        frames.filter(|frame| !is_off_cpu(*frame) && !matches!(frame, Frame::Floor(_)))
    }

    /// Where the processor was since the last call.
    pub fn take_sides(&mut self) -> Sides {
        std::mem::take(&mut self.sides)
    }

    /// Since when it has been off the CPU, if it is.
    pub fn away_since(&self) -> Option<u64> {
        self.stack.open.last().filter(|open| is_off_cpu(open.frame)).map(|open| open.since)
    }

    /// A gap that the trace itself does not tell: data was lost between two pieces of it.
    pub fn lose(&mut self, ticks: u64) {
        self.start(ticks);
        self.charge(ticks);
        self.gap(false);
    }

    /// At `ticks` the thread began another program: its open calls never return.
    fn execute(&mut self, ticks: u64) {
        self.start(ticks);
        self.charge(ticks);
        self.close_all();
        self.stack.push(CallTree::ROOT, Frame::Untraced, 0, Standing::Before);
    }

    /// Closes what is open. `ticks` is when the trace ended, as far as it concerns this thread.
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
        self.stand_somewhere();
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

    /// Time that belongs to no frame yet belongs to one that nothing is known of.
    fn stand_somewhere(&mut self) {
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
            self.stand_somewhere();
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
            EventKind::Begin | EventKind::Resume => self.resumed(event, is_stub),
            EventKind::Gap(cause) => self.gap(is_in_kernel(event.from) && !cause.loses_packets()),
            EventKind::TransactionBegin => self.transaction = Some(self.stack.open.len()),
            EventKind::TransactionEnd => self.transaction = None,
            EventKind::TransactionAbort => self.aborted(),
            EventKind::Switch(_) => {}
        }
    }

    /// What runs next is not traced.
    fn ended(&mut self, cause: EndCause, return_to: u64) {
        match cause {
            EndCause::Return => return self.returned_untraced(return_to),
            EndCause::Jump if self.is_lowest_known() => {
                // Its caller is not traced, so its return will not be seen.
                self.stack.drop_top();
                return self.stand_on_untraced(self.untraced_caller().unwrap_or(0));
            }
            EndCause::SystemReturn => return self.left_kernel(),
            EndCause::Gap => self.end_gap(),
            _ => {}
        }
        self.stack.push(self.top(), Frame::of_end(cause), return_to, Standing::Call);
    }

    fn returned(&mut self, event: &Event) {
        self.stand_somewhere();
        // Where a call returns to may be where another function starts.
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

    /// The trace is of some functions only, and the topmost frame returned to `address`, which is in none of them: to code that
    /// a frame below had called, or else nothing of what was open is left.
    fn returned_untraced(&mut self, address: u64) {
        let depth = self.stack.returning_to(address).or_else(|| self.untraced_caller());
        self.stack.pop();
        self.stand_on_untraced(depth.unwrap_or(0));
    }

    /// The topmost frame of code that runs without a trace, as the number of frames up to it.
    fn untraced_caller(&self) -> Option<usize> {
        Some(self.stack.open.iter().rposition(|open| is_away(open.frame))? + 1)
    }

    /// Only `depth` frames are left, and what runs is not traced.
    fn stand_on_untraced(&mut self, depth: usize) {
        self.stack.unwind_to(depth);
        if self.stack.open.last().is_none_or(|top| !is_away(top.frame)) {
            self.stack.push(self.top(), Frame::Untraced, 0, Standing::Call);
        }
    }

    /// Whether nothing is known of what the topmost frame returns to.
    fn is_lowest_known(&self) -> bool {
        match &self.stack.open[..] {
            [.., floor, top] => {
                matches!(floor.standing, Standing::Floor | Standing::OtherStack) && top.return_to == 0
            }
            [top] => top.return_to == 0,
            [] => true,
        }
    }

    /// The topmost frame ended, and its call was not seen: its caller is one that was open before the gap, or one that was
    /// entered before anything was seen.
    fn found_parent(&mut self, event: &Event) {
        if let [.., left, floor, _] = &self.stack.open[..]
            && floor.standing == Standing::OtherStack
            && self.stack.returns(left, event.to)
        {
            // It was the same stack: the jump led to another part of the function that jumped.
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
        self.stack.stand(floor, frame, 0, Standing::Before, event);
        if let Some(parent) = self.stack.open.last_mut() {
            parent.since = since;
        }
    }

    /// A return used as a jump: what called only to get there is gone with it.
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
        self.stand_somewhere();
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

    /// A jump into the middle of a function that is not open: the thread goes on with another stack, as Go's
    /// `gogo` does. Calls on the stack that it leaves stay open; a later jump may come back to them.
    fn changed_stack(&mut self, event: &Event) {
        if matches!(&self.stack.open[..], [only] if only.frame == Frame::Unknown) {
            return self.replace_top(Frame::of_place(event), Standing::Before);
        }
        self.floors += 1;
        let floor = Frame::Floor(self.floors);
        self.stack.stand(CallTree::ROOT, floor, 0, Standing::OtherStack, event);
        self.stack.stand(self.top(), Frame::of_place(event), 0, Standing::Before, event);
    }

    /// Back in user code, or in the kernel code that an interrupt hit.
    fn system_returned(&mut self, event: &Event) {
        if let Some(depth) = self.stack.returning_to(event.to) {
            return self.stack.unwind_to(depth);
        }
        self.began(event);
    }

    /// From the kernel to user code, of which nothing is traced: what ran in the kernel has ended.
    fn left_kernel(&mut self) {
        self.stand_on_untraced(self.stack.below_kernel().unwrap_or(0));
    }

    /// As [`ThreadReplay::began`]. Behind a gap in a stub of the linkage table, the function that the stub
    /// jumped to runs, or the one that called it.
    fn resumed(&mut self, event: &Event, is_stub: &dyn Fn(FunctionId) -> bool) {
        let is_in_stub = match &self.stack.open[..] {
            [.., stub, lost] if lost.frame == Frame::Lost => stub.frame.function().is_some_and(is_stub),
            _ => false,
        };
        if !is_in_stub || !self.is_elsewhere(event) {
            return self.began(event);
        }
        self.stack.pop();
        match event.at_entry {
            true => self.replace_top(Frame::of_target(event), Standing::Call),
            false => self.replace_top(Frame::of_place(event), Standing::Before),
        }
    }

    /// Whether user code goes on that is not open, or begins.
    fn is_elsewhere(&self, event: &Event) -> bool {
        !is_in_kernel(event.to)
            && self.stack.returning_to(event.to).is_none()
            && (event.at_entry || self.stack.landing(event).is_none())
    }

    /// Execution goes on at a place that no call or return led to.
    fn began(&mut self, event: &Event) {
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
            // User code runs: whatever was in the kernel has ended.
            self.stack.skip_to(depth);
        }
        if event.at_entry {
            self.end_departed();
            return self.stand_on_floor(Frame::of_target(event), Standing::Call, event);
        }
        // What the kernel runs stands on the user's stack, whatever led there.
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
            None => self.stand_on_floor(frame, Standing::Before, event),
        }
    }

    /// Whether all that is known of the thread is that it ran something that is not traced.
    fn is_only_untraced(&self) -> bool {
        matches!(&self.stack.open[..], [only] if only.frame == Frame::Untraced)
    }

    fn end_gap(&mut self) {
        if self.stack.open.last().is_some_and(|open| open.frame == Frame::Lost) {
            self.stack.pop();
        }
    }

    /// A function starts anew. If the topmost one had jumped to a part of it that is not traced, and its
    /// caller is not traced either, it has returned in between.
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

    fn stand_on_floor(&mut self, frame: Frame, standing: Standing, event: &Event) {
        if !self.stack.open.is_empty() {
            self.floors += 1;
            self.stack.stand(self.top(), Frame::Floor(self.floors), 0, Standing::Floor, event);
        }
        self.stack.stand(self.top(), frame, 0, standing, event);
    }

    /// Nothing that is open is certain any more; after a gap of kernel code, nothing of the kernel's.
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

/// Whether `frame` stands for code that may call what is traced.
fn is_away(frame: Frame) -> bool {
    frame == Frame::Untraced || is_kernel_entry(frame)
}

fn is_kernel_entry(frame: Frame) -> bool {
    matches!(frame, Frame::SystemCall | Frame::Interrupt | Frame::PageFault)
}
