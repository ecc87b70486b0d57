// SPDX-License-Identifier: Apache-2.0
//! An exporter's values for functions, made once for each place in a stack.

use std::collections::HashMap;

use wallprof_analysis::weights::{Function, Step, WeightedStack, Weights};

/// Something for each function of the stacks of `weights`.
pub(super) struct PerStep<'a, T, F> {
    weights: &'a Weights,
    make: F,
    known: HashMap<Step, Vec<T>>,
}

impl<'a, T, F: FnMut(&Function<'_>) -> T> PerStep<'a, T, F> {
    pub fn new(weights: &'a Weights, make: F) -> Self {
        PerStep { weights, make, known: HashMap::new() }
    }

    /// The values of each function of a stack, in the stack's order.
    pub fn each(&mut self, stack: &WeightedStack, mut take: impl FnMut(&T)) {
        for step in self.weights.steps(stack) {
            let make = || self.weights.functions(step).iter().map(&mut self.make).collect();
            self.known.entry(step).or_insert_with(make).iter().for_each(&mut take);
        }
    }
}
