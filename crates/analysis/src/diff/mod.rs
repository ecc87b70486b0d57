// SPDX-License-Identifier: Apache-2.0
//! Two recordings compared in absolute time: the states and stacks that take longer or shorter, appeared or
//! vanished.
//!
//! Every number is nanoseconds per second of wall time, and the second is the recording's: a recording of
//! ten seconds and one of a minute compare, eight busy workers count as eight, and nothing is divided by a
//! count of samples. Threads are matched by the names of their process and their own; all of one name are
//! one [`Group`]. Threads that only one recording has are named, and not compared with nothing.
//!
//! A difference is news when two things hold. It is larger than [`Floor`]: a smaller one would lead to no
//! action. And it stands out of the noise that each recording shows within itself: its one-second windows
//! are compared by Welch's t-test, and so are the lengths of single waits where they are known; corrected
//! for how many states and stacks are looked at (see [`evidence`], `lengths` and `news`). A change from run
//! to run that does not show from second to second (another machine, another load) is a difference.

#[cfg(test)]
mod chance;
mod collect;
mod compare;
mod comparison;
mod correlated;
pub mod evidence;
#[cfg(test)]
mod fixture;
mod headlines;
mod kinds;
mod lengths;
mod meant;
mod news;
mod nodes;
#[cfg(test)]
mod noise;
mod parts;
mod place;
mod series;
mod sides;
mod step;
mod student;
mod tree;
mod waits;
pub(crate) mod welch;
mod windows;

pub use collect::{Collector, Group, Side};
pub use compare::compare;
pub use comparison::{Comparison, GroupRate, Headline, Matched, NodeChange, Part, PartChange, Unmatched};
pub use evidence::{Change, LEAST_WINDOWS, Uncertainty};
pub use kinds::{Kind, KindChange, Kinds, PercentileChange, compare_kinds};
pub use meant::Meant;
pub use news::{FALSE_NEWS, Floor};
pub use step::Step;
pub use tree::{Node, NodeId, Tree};
