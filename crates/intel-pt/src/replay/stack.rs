// SPDX-License-Identifier: Apache-2.0
//! One thread's open calls over a tree of call paths: pushing, popping and charging time. `stretch` decides
//! which of them an event needs within a segment, `thread` decides all the rest.

use std::ops::Range;

use super::frame::{Frame, Side};
use super::tree::{CallTree, PathId};
use crate::event::Event;
use crate::time_conv::TimeConv;

/// The way in which an open frame counts when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Its start was recorded: a call that counts.
    Call,
    /// Entered before the recording of the thread.
    Before,
    /// Counted as incomplete at a gap, and kept because later returns may confirm it.
    Hypothesis,
    /// Nothing is known of the frames below it.
    Floor,
    /// The floor of another stack of the thread. The frames below it are on the stack that the thread left.
    OtherStack,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub path: PathId,
    pub frame: Frame,
    /// Its return address; 0 if unknown.
    pub return_to: u64,
    pub since: u64,
    pub standing: Standing,
    /// The call was not to the function's entry: return trampolines call into their own middle.
    pub into_middle: bool,
    /// It runs in the kernel: it is above all frames of user code.
    pub in_kernel: bool,
    /// The trace shows its code.
    pub is_traced: bool,
}

impl Open {
    /// The side of the processor while it is the topmost frame. Code without a symbol may be on either side.
    pub fn side(&self) -> Option<Side> {
        match (self.frame, self.is_traced) {
            (Frame::Unknown, true) if self.in_kernel => Some(Side::Kernel),
            (Frame::Unknown, true) => Some(Side::User),
            (frame, _) => frame.side(),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Stack {
    pub tree: CallTree,
    pub open: Vec<Open>,
    /// The time up to which all time is charged.
    pub last: u64,
    pub time_conv: TimeConv,
    /// The distance behind `return_to` at which a return may land, in bytes. 0 if calls have exact return
    /// addresses.
    pub slack: u64,
    /// The number of outermost frames that are hypotheses, or floors between them.
    suspected: usize,
}

impl Stack {
    /// An empty stack over `tree`.
    pub fn new(tree: CallTree, time_conv: TimeConv) -> Stack {
        Stack { tree, open: Vec::new(), last: 0, time_conv, slack: 0, suspected: 0 }
    }

    /// Whether a return to `address` may end `open`.
    #[inline]
    pub fn returns(&self, open: &Open, address: u64) -> bool {
        open.return_to != 0 && address.wrapping_sub(open.return_to) <= self.slack
    }

    /// Charges the time up to `ticks` to `path`, unless it is charged already.
    #[inline]
    pub fn charge(&mut self, path: PathId, ticks: u64) {
        if ticks > self.last {
            self.tree.numbers_mut(path).spend(ticks - self.last);
            self.last = ticks;
        }
    }

    /// Opens `frame` below `parent`, now.
    #[inline]
    pub fn push(&mut self, parent: PathId, frame: Frame, return_to: u64, standing: Standing) {
        let path = self.tree.child(parent, frame);
        let since = self.last;
        self.open.push(Open {
            path,
            frame,
            return_to,
            since,
            standing,
            into_middle: false,
            in_kernel: false,
            is_traced: false,
        });
    }

    /// Opens the frame of a call below `parent`, now.
    #[inline]
    pub fn call(&mut self, parent: PathId, event: &Event, return_to: u64) {
        self.push(parent, Frame::of_target(event), return_to, Standing::Call);
        if let Some(open) = self.open.last_mut() {
            open.into_middle = !event.at_entry;
            open.in_kernel = is_in_kernel(event.to);
        }
    }

    /// Opens the frame of a handler.
    pub fn enter(&mut self, parent: PathId, event: &Event, return_to: u64) {
        self.push_traced(parent, Frame::of_target(event), return_to, Standing::Call, event);
    }

    /// Opens `frame` below `parent` at the target of `event`.
    pub fn push_traced(
        &mut self,
        parent: PathId,
        frame: Frame,
        return_to: u64,
        standing: Standing,
        event: &Event,
    ) {
        self.push(parent, frame, return_to, standing);
        if let Some(open) = self.open.last_mut() {
            open.in_kernel = is_in_kernel(event.to);
            open.is_traced = true;
        }
    }

    /// Ends the topmost frame, now.
    #[inline]
    pub fn pop(&mut self) -> Option<Open> {
        let open = self.open.pop()?;
        self.suspected = self.suspected.min(self.open.len());
        let ticks = self.last.saturating_sub(open.since);
        match open.standing {
            Standing::Call => {
                let ns = self.time_conv.delta_ns(ticks);
                self.tree.complete(open.path, ticks, ns);
            }
            Standing::Before => self.count_partial(open.path, ticks, false),
            Standing::Hypothesis => {}
            Standing::Floor | Standing::OtherStack => self.tree.dissolve(open.path),
        }
        Some(open)
    }

    /// Ends the topmost frames until `depth` are left. Only the lowest of them returned, the others were
    /// skipped.
    pub fn unwind_to(&mut self, depth: usize) {
        self.leave_stacks(depth);
        while self.open.len() > depth {
            let skipped = self.open.len() > depth + 1;
            let Some(open) = self.pop() else { return };
            if skipped && open.standing == Standing::Call && !open.frame.is_outside() {
                self.tree.numbers_mut(open.path).unwound += 1;
            }
        }
    }

    /// Ends the frames above `depth`. None of them returned by itself.
    pub fn skip_to(&mut self, depth: usize) {
        self.leave_stacks(depth);
        while self.open.len() > depth {
            let Some(open) = self.pop() else { return };
            if open.standing == Standing::Call && !open.frame.is_outside() {
                self.tree.numbers_mut(open.path).unwound += 1;
            }
        }
    }

    /// Removes all other stacks above `depth`. Their open calls have not ended, but are not seen again.
    fn leave_stacks(&mut self, depth: usize) {
        let above = self.open.get(depth..).unwrap_or_default();
        let Some(floor) = above.iter().position(|open| open.standing == Standing::OtherStack) else { return };
        while self.open.len() > depth + floor {
            if let Some(top) = self.open.last_mut().filter(|top| top.standing == Standing::Call) {
                top.standing = Standing::Hypothesis;
                let (path, ticks) = (top.path, self.last.saturating_sub(top.since));
                self.count_partial(path, ticks, true);
            }
            self.pop();
        }
    }

    /// The depth of the thread's current stack.
    pub fn base(&self) -> usize {
        let floor = self.open.iter().rposition(|open| open.standing == Standing::OtherStack);
        floor.map_or(0, |floor| floor + 1)
    }

    /// Replaces the topmost frame like a tail call: the new frame has the old one's return address.
    pub fn replace(&mut self, parent: PathId, frame: Frame, standing: Standing) {
        let Some(old) = self.pop() else { return };
        self.push(parent, frame, old.return_to, standing);
        if let Some(open) = self.open.last_mut() {
            open.in_kernel = old.in_kernel;
            open.is_traced = true;
        }
    }

    /// The number of frames below those that run in the kernel, if there are any of those.
    pub fn below_kernel(&self) -> Option<usize> {
        self.open.iter().position(|open| open.in_kernel)
    }

    /// The topmost frame that returns to `address`, as the number of frames below it.
    pub fn returning_to(&self, address: u64) -> Option<usize> {
        self.open.iter().rposition(|open| {
            self.returns(open, address)
                // An interrupted system call starts again. Its instruction has two bytes.
                || open.frame == Frame::SystemCall && open.return_to == address.wrapping_add(2)
        })
    }

    /// The topmost frame of the function at `event`'s target, without the top itself, as the number of frames
    /// up to it.
    pub fn landing(&self, event: &Event) -> Option<usize> {
        let function = Frame::of_place(event).function()?;
        let below = self.open.len().checked_sub(1)?;
        let found = self.open[..below].iter().rposition(|open| open.frame == Frame::Function(function))?;
        Some(found + 1)
    }

    /// Counts the open calls with these indices as incomplete, from the outermost on. Their frames stay as
    /// hypotheses.
    pub fn suspect(&mut self, calls: Range<usize>) {
        for index in (calls.start.max(self.suspected)..calls.end).rev() {
            let open = self.open[index];
            let ticks = self.last.saturating_sub(open.since);
            match open.standing {
                Standing::Call => self.count_partial(open.path, ticks, true),
                Standing::Before => self.count_partial(open.path, ticks, false),
                Standing::Floor | Standing::Hypothesis | Standing::OtherStack => continue,
            }
            self.open[index].standing = Standing::Hypothesis;
        }
        if calls.start <= self.suspected {
            self.suspected = self.suspected.max(calls.end);
        }
    }

    /// Ends the topmost frame now. Its real end is not known.
    pub fn drop_top(&mut self) {
        if let Some(top) = self.open.len().checked_sub(1) {
            self.suspect(top..top + 1);
            self.pop();
        }
    }

    fn count_partial(&mut self, path: PathId, ticks: u64, called: bool) {
        let numbers = self.tree.numbers_mut(path);
        numbers.partial_ticks = numbers.partial_ticks.saturating_add(ticks);
        if called {
            numbers.incomplete += 1;
        } else {
            numbers.entered_before += 1;
        }
    }
}

pub(super) fn is_in_kernel(address: u64) -> bool {
    address >> 63 != 0
}
