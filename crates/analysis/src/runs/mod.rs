// SPDX-License-Identifier: Apache-2.0
//! Many recordings of one program: the figures of each, and groups of equal runs compared with each other.
//!
//! `diff` compares two recordings by the noise *within* each. Here the noise is that *between* equal runs: each
//! run is one observation of each figure. So what changes from run to run (another machine, another load) is
//! noise, and needs several runs a group to be known.

mod collect;
mod compare;
mod figures;
mod fisher;
mod limits;

pub use collect::RunCollector;
pub use compare::{
    Comparison, Difference, FALSE_DIFFERENCES, FindingChange, LEAST_RUNS, RunGroup, compare_groups,
};
pub use figures::{Figure, FoundInRun, Place, Run, Sum, ThreadTime, Unit, What};
pub use limits::{Excess, Limit, LimitError, Limited, exceeded, may_exceed};
