// SPDX-License-Identifier: Apache-2.0
//! From events to call paths: one stack for each thread, kept across CPUs and gaps, with frames matched by
//! return address.
//!
//! [`replay_segment`] replays a segment alone into [`Stretch`]es, on any thread. A [`ThreadReplay`] merges
//! those of one thread in the order of time. The result is the same for any division into segments.

mod child_index;
mod frame;
mod functions;
mod limit;
mod numbers;
mod stack;
mod stretch;
mod thread;
mod tree;

pub use frame::{Frame, Sides};
pub use functions::{FunctionNumbers, functions};
pub use limit::PathLimit;
pub use numbers::Numbers;
pub use stretch::{Recorder, Stretch};
pub use thread::{ThreadCalls, ThreadReplay};
pub use tree::{CallTree, PathId};

use crate::code::Code;
use crate::flow::{Decoded, Segment, Trace, decode_segment};
use crate::run_cache::RunCache;
use crate::time_conv::TimeConv;

/// Decodes `segment` and replays it as far as it allows by itself.
pub fn replay_segment<C: Code>(
    trace: &Trace<'_, C>,
    segment: Segment,
    time_conv: TimeConv,
    cache: &mut RunCache,
) -> (Decoded, Vec<Stretch>) {
    let mut recorder = Recorder::new(time_conv);
    let decoded = decode_segment(trace, segment, cache, &mut recorder);
    (decoded, recorder.finish(decoded.last_ticks))
}

#[cfg(test)]
mod tests;
