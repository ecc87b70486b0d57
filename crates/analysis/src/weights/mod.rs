// SPDX-License-Identifier: Apache-2.0
//! Weighted stacks: the input of flame graphs and exports.
//!
//! [`Gather`] takes a recording's samples and ledgers and gives [`Weights`]: stacks whose weights add up to
//! the threads' wall time exactly. [`Tree`] merges them into the boxes of a flame graph.

mod apportion;
mod calls;
mod fit;
mod frame;
mod gather;
mod interrupt;
mod paths;
mod pseudonyms;
mod stack;
mod tree;
mod view;
mod wait_parts;
mod within;

#[cfg(test)]
pub(crate) mod fixture;

pub use calls::{CallNames, Called, weights_of_calls};
pub use frame::{Frame, FrameId, Frames, Function, Mark, Role};
pub use gather::Gather;
pub use stack::{Step, WeightedStack, WeightedThread, Weights};
pub use tree::{Node, Tree};
pub use view::{NotAView, Side, View};
pub use within::threads_within;
