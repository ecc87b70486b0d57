// SPDX-License-Identifier: Apache-2.0
//! Who costs whom: waiting time, charged to its cause along the chain of waits.
//!
//! A waits for B, and B itself waits for C meanwhile: that part of A's waiting is C's. This is the cascaded
//! redistribution of wPerf (Zhou et al., OSDI 2018), done interval by interval on single waits instead of on
//! sums, so that each nanosecond of waiting ends at exactly one culprit and none is lost.
//!
//! ```text
//! waiter   ········[============== waits for holder ==============]··
//! holder   ----running----[==== disk ====]-runnable-----running----
//! charged          running  disk: device   to who     running:
//!                  holder                  had the    holder
//!                                          CPU
//! ```
//!
//! Waits that were too short to be recorded one by one count as running.

mod chain;
mod holds;
mod knots;
#[cfg(test)]
mod tests;
mod waits;
mod what_if;

use std::sync::Arc;

use wallprof_model::StallReason;

pub use waits::{PlainWait, Waits};
pub use what_if::{Change, ChangeError, Estimate, KindEstimate, Operation, Operations, WhatIf};

/// A group of threads with equal names, or something that is no thread.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    Threads {
        process: Arc<str>,
        thread: Arc<str>,
    },
    Device,
    Network,
    Timer,
    /// Nothing in this machine had the CPU that a thread waited for.
    Host,
    /// The wakeup was not seen, or came from an interrupt that says nothing.
    Unknown,
}

impl Group {
    /// The name of a group that is not of threads.
    pub fn name(&self) -> Option<&'static str> {
        Some(match self {
            Group::Threads { .. } => return None,
            Group::Device => "device",
            Group::Network => "network",
            Group::Timer => "timer",
            Group::Host => "host",
            Group::Unknown => "unknown",
        })
    }
}

/// What the culprit did meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Doing {
    /// It ran, or waited too shortly to be recorded.
    Running,
    /// It had the CPU that a thread of the chain waited for.
    HadCpu,
    /// The last thread of the chain waited for it in this way.
    Waiting(StallReason),
    /// The threads of the chain wait for each other.
    Circle,
}

impl Doing {
    /// `running`, `cpu`, `circle`, or the reason of the last wait of the chain.
    pub fn name(self) -> &'static str {
        match self {
            Doing::Running => "running",
            Doing::HadCpu => "cpu",
            Doing::Waiting(reason) => reason.name(),
            Doing::Circle => "circle",
        }
    }
}

/// Waiting time of one group that another one caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Shared, as places are: hundreds of thousands of edges lie between a few hundred groups.
    pub waiter: Arc<Group>,
    pub culprit: Arc<Group>,
    pub doing: Doing,
    /// What the last wait of the chain means, as in findings: `row lock`.
    pub meaning: Option<Arc<str>>,
    /// The last thread of the chain, where it is not the culprit: the one that waited for the device.
    pub last: Option<Arc<Group>>,
    /// The function in which the culprit, or the last thread of the chain, was. `None`: not known.
    pub place: Option<Arc<str>>,
    pub ns: u64,
    /// Waits that contributed.
    pub count: u64,
}

/// All waiting time by who caused it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blame {
    /// Most time first.
    pub edges: Vec<Edge>,
    /// Groups that wait for each other and for nobody else: they bound the throughput. Most time first.
    pub knots: Vec<Vec<Group>>,
    /// The sum of all edges.
    pub waiting_ns: u64,
    /// The part of it in chains that were longer than is followed.
    pub cut_ns: u64,
}
