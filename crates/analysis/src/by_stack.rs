// SPDX-License-Identifier: Apache-2.0
//! What is computed from a stack, once for each stack that a reader shares among its stalls.

use std::sync::Arc;

use wallprof_model::FastMap;
use wallprof_model::profile::{ResolvedFrame, ResolvedStack};

/// Stacks that are known at a time. A table that is full starts anew.
const MOST_STACKS: usize = 16_384;

/// Values by the address of the shared frames. The table holds the frames, so that no other stack gets their
/// address.
#[derive(Debug)]
pub(crate) struct ByStack<T>(FastMap<usize, Known<T>>);

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::stack;

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
    fn stack_at_the_address_of_a_former_one_has_its_own_value() {
        let mut lengths = ByStack::default();
        for length in (1..=6).cycle().take(2 * MOST_STACKS) {
            let stack = stack(&["f"; 6][..length]);
            assert_eq!(lengths.get(&stack, |stack| stack.frames.len()), length);
        }
        assert!(lengths.0.len() <= MOST_STACKS);
    }
}
