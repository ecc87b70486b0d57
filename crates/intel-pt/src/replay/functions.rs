// SPDX-License-Identifier: Apache-2.0
//! Numbers of functions, from those of paths.

use std::collections::HashMap;

use super::frame::Frame;
use super::numbers::Numbers;
use super::tree::{CallTree, PathId};

/// All calls of one function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionNumbers {
    /// The sums over its paths. With recursion, a call counts within the call that made it, too.
    pub numbers: Numbers,
    /// Time during which at least one call of it was open.
    pub total_ticks: u64,
}

/// The numbers of each frame in `tree`.
pub fn functions(tree: &CallTree) -> HashMap<Frame, FunctionNumbers> {
    let mut found: HashMap<Frame, FunctionNumbers> = HashMap::new();
    let mut depth: HashMap<Frame, u32> = HashMap::new();
    let mut left: Vec<(PathId, bool)> = tree.children(CallTree::ROOT).map(|path| (path, false)).collect();
    while let Some((path, entered)) = left.pop() {
        let frame = tree.frame(path);
        let open = depth.entry(frame).or_default();
        if entered {
            *open -= 1;
            continue;
        }
        let function = found.entry(frame).or_default();
        function.numbers.merge(tree.numbers(path));
        if *open == 0 {
            function.total_ticks = function.total_ticks.saturating_add(tree.numbers(path).total_ticks());
        }
        *open += 1;
        left.push((path, true));
        left.extend(tree.children(path).map(|child| (child, false)));
    }
    found
}
