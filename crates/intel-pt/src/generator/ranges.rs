//! Filters of an invented program: which of its functions are traced.

use std::ops::Range;

use super::machine::Tracing;
use super::program::{Deed, InventedFunction, Program};
use super::random::Random;

impl Program {
    /// Sets what is traced.
    pub(super) fn invent_ranges(&mut self, random: &mut Random, tracing: Tracing) {
        let Tracing { ranges, kernel_ranges, splits, .. } = tracing;
        self.traced = invent(random, &self.functions, ranges, splits);
        if let Some(kernel) = &self.kernel {
            self.traced.extend(invent(random, &kernel.functions, kernel_ranges, splits));
        }
    }
}

fn invent(
    random: &mut Random,
    functions: &[InventedFunction],
    count: usize,
    splits: bool,
) -> Vec<Range<u64>> {
    (0..count).map(|_| range(random, functions, splits)).collect()
}

/// One to three functions side by side; the last one may be traced in part.
fn range(random: &mut Random, functions: &[InventedFunction], splits: bool) -> Range<u64> {
    let first = random.below(functions.len());
    let last = &functions[(first + random.below(3)).min(functions.len() - 1)];
    let ends: Vec<u64> = if splits { inner_ends(last) } else { Vec::new() };
    let end = if ends.is_empty() { last.end } else { ends[random.below(ends.len())] };
    functions[first].start..end
}

/// Where execution never goes from one side to the other without a branch: behind jumps.
fn inner_ends(function: &InventedFunction) -> Vec<u64> {
    let jumps = |instruction: &&super::program::Instruction| {
        matches!(instruction.deed, Deed::Jump { .. })
            && instruction.address + instruction.length < function.end
    };
    function.instructions.iter().filter(jumps).map(|jump| jump.address + jump.length).collect()
}
