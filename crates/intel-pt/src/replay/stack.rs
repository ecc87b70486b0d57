//! One thread's open calls over a tree of call paths: pushing, popping and charging time. Which of them an event asks for
//! is decided elsewhere: in `stretch` for what a segment shows by itself, in `thread` for all the rest.

use std::ops::Range;

use super::frame::{Frame, Side};
use super::tree::{CallTree, PathId};
use crate::event::Event;
use crate::time_conv::TimeConv;

/// What ending an open frame means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Its begin was seen: a call that counts.
    Call,
    /// Entered before it could be seen.
    Before,
    /// Counted as incomplete at a gap; kept in case later returns confirm it.
    Hypothesis,
    /// Below it nothing is known.
    Floor,
    /// The floor of another stack of the thread. What is below it is on the stack that the thread left.
    OtherStack,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub path: PathId,
    pub frame: Frame,
    /// Where it returns to; 0 when unknown.
    pub return_to: u64,
    pub since: u64,
    pub standing: Standing,
    /// The call was not to the function's entry: return trampolines call into their own middle.
    pub into_middle: bool,
    /// It runs in the kernel: on top of all that runs in user code.
    pub in_kernel: bool,
    /// The trace shows code of it.
    pub is_traced: bool,
}

impl Open {
    /// Where the processor is while it is the topmost frame. Code without a symbol may be on either side.
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
    /// The time up to which all is charged.
    pub last: u64,
    pub time_conv: TimeConv,
    /// How many bytes behind `return_to` a return may land: 0 where calls tell where they return to.
    pub slack: u64,
    /// So many of the outermost frames are hypotheses, or floors between them.
    suspected: usize,
}

impl Stack {
    /// An empty one over `tree`.
    pub fn new(tree: CallTree, time_conv: TimeConv) -> Stack {
        Stack { tree, open: Vec::new(), last: 0, time_conv, slack: 0, suspected: 0 }
    }

    /// Whether a return to `address` may end `open`.
    #[inline]
    pub fn returns(&self, open: &Open, address: u64) -> bool {
        open.return_to != 0 && address.wrapping_sub(open.return_to) <= self.slack
    }

    /// Gives the time up to `ticks` to `path`, unless it is past already.
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
        self.stand(parent, Frame::of_target(event), return_to, Standing::Call, event);
    }

    /// Opens `frame` below `parent` where `event` went.
    pub fn stand(&mut self, parent: PathId, frame: Frame, return_to: u64, standing: Standing, event: &Event) {
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

    /// Ends the topmost frames until `depth` are left; all but the lowest of them were skipped, not returned from.
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

    /// Ends the frames above `depth`, none of them by its own return.
    pub fn skip_to(&mut self, depth: usize) {
        self.leave_stacks(depth);
        while self.open.len() > depth {
            let Some(open) = self.pop() else { return };
            if open.standing == Standing::Call && !open.frame.is_outside() {
                self.tree.numbers_mut(open.path).unwound += 1;
            }
        }
    }

    /// Takes away all other stacks above `depth`. What is open there has not ended, and is not seen any more.
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

    /// Where the stack that the thread is on begins.
    pub fn base(&self) -> usize {
        let floor = self.open.iter().rposition(|open| open.standing == Standing::OtherStack);
        floor.map_or(0, |floor| floor + 1)
    }

    /// Replaces the topmost frame as a tail call does: the new one returns where the old one would have.
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
                // An interrupted system call starts again: its instruction is two bytes long.
                || open.frame == Frame::SystemCall && open.return_to == address.wrapping_add(2)
        })
    }

    /// The topmost frame of the function at `event`'s target below the top, as the number of frames up to it.
    pub fn landing(&self, event: &Event) -> Option<usize> {
        let function = Frame::of_place(event).function()?;
        let below = self.open.len().checked_sub(1)?;
        let found = self.open[..below].iter().rposition(|open| open.frame == Frame::Function(function))?;
        Some(found + 1)
    }

    /// Counts the open calls with these numbers, from the outermost on, as incomplete. Their frames stay, as
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

    /// Ends the topmost frame, now. When it really ended is not known.
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
