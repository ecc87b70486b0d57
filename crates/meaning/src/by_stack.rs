// SPDX-License-Identifier: Apache-2.0
//! What is computed from a stack or from a frame, once for each one that a reader shares among its stalls.

use std::sync::Arc;

use wallprof_model::FastMap;
use wallprof_model::profile::{ResolvedFrame, ResolvedStack};

/// Stacks that are known at a time. A table that is full starts anew, so that a recording with twice as many
/// stacks finds hardly one in it. Three minutes of a busy machine had 35,000.
const MOST_STACKS: usize = 1 << 16;

/// Frames that are known at a time. A reader keeps all frames of its recording.
const MOST_FRAMES: usize = 1 << 17;

/// Values by the address of the shared frames. The table holds the frames, so that no other stack gets their
/// address.
#[derive(Debug)]
pub struct ByStack<T>(FastMap<usize, Known<T>>);

#[derive(Debug)]
struct Known<T> {
    _frames: Arc<[Arc<ResolvedFrame>]>,
    value: T,
}

impl<T> Default for ByStack<T> {
    fn default() -> Self {
        ByStack(FastMap::default())
    }
}

impl<T: Clone> ByStack<T> {
    /// The value of these frames, which `find` computes where it is not known.
    pub fn get(&mut self, stack: &ResolvedStack, find: impl FnOnce(&ResolvedStack) -> T) -> T {
        let address = Arc::as_ptr(&stack.frames).cast::<()>().addr();
        if let Some(known) = self.0.get(&address) {
            return known.value.clone();
        }
        if self.0.len() >= MOST_STACKS {
            self.0.clear();
        }
        let value = find(stack);
        self.0.insert(address, Known { _frames: Arc::clone(&stack.frames), value: value.clone() });
        value
    }
}

/// Values of the lines of each frame, by the address of the shared frame. Stacks have the same frames again
/// and again: 35,000 stacks of fifty frames each had 55,000 different ones.
#[derive(Debug)]
pub struct ByFrame<T>(FastMap<usize, (Arc<ResolvedFrame>, Box<[T]>)>);

impl<T> Default for ByFrame<T> {
    fn default() -> Self {
        ByFrame(FastMap::default())
    }
}

impl<T> ByFrame<T> {
    /// The values of this frame, which `find` computes where they are not known.
    pub fn get(&mut self, frame: &Arc<ResolvedFrame>, find: impl FnOnce(&ResolvedFrame) -> Box<[T]>) -> &[T] {
        let address = Arc::as_ptr(frame).addr();
        if self.0.len() >= MOST_FRAMES && !self.0.contains_key(&address) {
            self.0.clear();
        }
        &self.0.entry(address).or_insert_with(|| (Arc::clone(frame), find(frame))).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_testkit::stacks::stack;

    #[test]
    fn value_of_a_shared_stack_is_computed_once() {
        let mut lengths = ByStack::default();
        let (one, other) = (stack(&["take", "serve"]), stack(&["take", "serve", "main"]));
        let mut computed = 0;
        for stack in [&one, &one.clone(), &other, &one] {
            let length = lengths.get(stack, |stack| {
                computed += 1;
                stack.frames.len()
            });
            assert_eq!(length, stack.frames.len());
        }
        assert_eq!(computed, 2);
    }

    #[test]
    fn values_of_a_shared_frame_are_computed_once() {
        let mut names = ByFrame::default();
        let one = stack(&["take", "serve", "main"]);
        let other = ResolvedStack { frames: one.frames[1..].into(), end: one.end };
        let mut computed = 0;
        for frame in one.frames.iter().chain(other.frames.iter()) {
            let symbols = names.get(frame, |frame| {
                computed += 1;
                frame.lines.iter().map(|line| line.symbol.clone()).collect()
            });
            assert_eq!(symbols, [frame.lines[0].symbol.clone()]);
        }
        assert_eq!(computed, 3);
    }

    #[test]
    fn frames_are_bounded_and_those_at_former_addresses_have_their_own_values() {
        let mut lines = ByFrame::default();
        for at in 0..2 * MOST_FRAMES {
            let stack = stack(&[["a", "b", "c"][at % 3]]);
            let symbol = lines.get(&stack.frames[0], |frame| [frame.lines[0].symbol.clone()].into());
            assert_eq!(symbol, [stack.frames[0].lines[0].symbol.clone()]);
        }
        assert!(lines.0.len() <= MOST_FRAMES);
    }

    #[test]
    fn stack_at_the_address_of_a_former_one_has_its_own_value() {
        let mut lengths = ByStack::default();
        for length in (1..=6).cycle().take(2 * MOST_STACKS) {
            let stack = stack(&["f"; 6][..length]);
            assert_eq!(lengths.get(&stack, |stack| stack.frames.len()), length);
        }
        assert!(lengths.0.len() <= MOST_STACKS);
    }
}
