// SPDX-License-Identifier: Apache-2.0
//! Filters of a generated program: its traced functions.

use std::ops::Range;

use super::machine::Tracing;
use super::program::{Effect, GeneratedFunction, Program};
use super::random::Random;

impl Program {
    /// Sets the traced ranges.
    pub(super) fn generate_ranges(&mut self, random: &mut Random, tracing: Tracing) {
        let Tracing { ranges, kernel_ranges, splits, .. } = tracing;
        self.traced = generate(random, &self.functions, ranges, splits);
        if let Some(kernel) = &self.kernel {
            self.traced.extend(generate(random, &kernel.functions, kernel_ranges, splits));
        }
    }
}

fn generate(
    random: &mut Random,
    functions: &[GeneratedFunction],
    count: usize,
    splits: bool,
) -> Vec<Range<u64>> {
    (0..count).map(|_| range(random, functions, splits)).collect()
}

/// One to three neighbouring functions. The last one may be traced in part.
fn range(random: &mut Random, functions: &[GeneratedFunction], splits: bool) -> Range<u64> {
    let first = random.below(functions.len());
    let last = &functions[(first + random.below(3)).min(functions.len() - 1)];
    let ends: Vec<u64> = if splits { inner_ends(last) } else { Vec::new() };
    let end = if ends.is_empty() { last.end } else { ends[random.below(ends.len())] };
    functions[first].start..end
}

/// Places that execution passes by branches only: behind jumps.
fn inner_ends(function: &GeneratedFunction) -> Vec<u64> {
    let jumps = |instruction: &&super::program::Instruction| {
        matches!(instruction.effect, Effect::Jump { .. })
            && instruction.address + instruction.length < function.end
    };
    function.instructions.iter().filter(jumps).map(|jump| jump.address + jump.length).collect()
}
