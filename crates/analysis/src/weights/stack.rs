// SPDX-License-Identifier: Apache-2.0
//! Stacks with their weights, as exporters and the flame graph read them.

use wallprof_model::State;

use super::frame::{Frame, FrameId, Frames, Function, Mark};
use super::view::View;

/// Everything a picture of one view of a recording is made from.
#[derive(Clone, Debug)]
pub struct Weights {
    pub view: View,
    /// The selected threads, in the order in which they were first seen.
    pub threads: Vec<WeightedThread>,
    pub frames: Frames,
    /// In an order that depends on nothing but the recording; no weight is 0.
    pub stacks: Vec<WeightedStack>,
    /// Nanoseconds that belong to the view and have no place in it: for `wakers`, blocked time whose waker
    /// is unknown.
    pub left_out_ns: u64,
}

/// A thread by its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedThread {
    pub process: String,
    pub comm: String,
    pub pid: u32,
    pub tid: u32,
}

/// One distinct stack of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedStack {
    /// An index of [`Weights::threads`].
    pub thread: usize,
    /// Root first. In time views the last one is the state, in `wakers` the waking thread.
    pub frames: Vec<FrameId>,
    /// The state the time was spent in; `None` for counts and for unaccounted time.
    pub state: Option<State>,
    /// Nanoseconds, or counts in an `event:` view.
    pub weight: u64,
    /// How many samples or intervals this sums up; 0 for time without a stack.
    pub count: u64,
}

impl Weights {
    /// The weight of all stacks; wider than a damaged file's numbers can overflow.
    pub fn total(&self) -> u128 {
        self.stacks.iter().map(|stack| u128::from(stack.weight)).sum()
    }

    /// The frames of a stack, root first, each with its place.
    pub fn steps<'a>(&'a self, stack: &'a WeightedStack) -> impl Iterator<Item = Step> + 'a {
        let mut waking = false;
        stack.frames.iter().map(move |frame| {
            let step = Step { frame: *frame, waking };
            waking |= *self.frames.get(*frame) == Frame::Mark(Mark::WokenBy);
            step
        })
    }

    /// The functions at a step, in the order in which they stand in the stack.
    pub fn functions(&self, step: Step) -> Vec<Function<'_>> {
        let mut functions = self.frames.get(step.frame).functions();
        if step.waking {
            functions.reverse();
        }
        functions
    }
}

/// A frame at its place in a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    pub frame: FrameId,
    /// Part of the stack that woke the thread below: these come leaf first.
    pub waking: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::fixture::code;

    #[test]
    fn inlined_functions_of_a_waker_come_leaf_first_too() {
        let mut frames = Frames::default();
        let ids = vec![
            frames.code(&code(&["a", "b"])),
            frames.mark(Mark::WokenBy),
            frames.code(&code(&["c", "d"])),
        ];
        let stack = WeightedStack { thread: 0, frames: ids, state: None, weight: 1, count: 1 };
        let weights =
            Weights { view: View::Wakers, threads: vec![], frames, stacks: vec![stack], left_out_ns: 0 };
        let names: Vec<_> = weights
            .steps(&weights.stacks[0])
            .flat_map(|step| weights.functions(step))
            .map(|function| function.name)
            .collect();
        assert_eq!(names, ["b", "a", "[woken by]", "c", "d"]);
    }
}
