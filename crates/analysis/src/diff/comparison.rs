// SPDX-License-Identifier: Apache-2.0
//! The result of a comparison.

use wallprof_meaning::site::Site;
use wallprof_model::State;

use super::collect::Group;
use super::evidence::Change;
use super::meant::Meant;
use super::news::Floor;
use super::tree::{NodeId, Tree};
use crate::interest::Class;
use crate::weights::View;

#[derive(Clone, Debug)]
pub struct Comparison {
    pub view: View,
    pub floor: Floor,
    /// Seconds of wall time observed.
    pub wall_a_s: f64,
    pub wall_b_s: f64,
    /// Whether both sides have enough windows to distinguish news from noise.
    pub can_judge: bool,
    pub matched: Vec<Matched>,
    pub unmatched: Unmatched,
    /// By group, then by state.
    pub parts: Vec<PartChange>,
    /// Largest difference first, voluntary waits last.
    pub headlines: Vec<Headline>,
    pub tree: Tree,
    pub(super) nodes: Vec<Option<NodeChange>>,
}

impl Comparison {
    /// `None` for a node with no time on either side.
    pub fn node(&self, id: NodeId) -> Option<NodeChange> {
        self.nodes.get(id.index()).copied().flatten()
    }

    /// Neither a state nor a stack is news.
    pub fn has_no_news(&self) -> bool {
        self.headlines.is_empty() && self.parts.iter().all(|part| !part.is_news)
    }
}

/// A group that both sides have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matched {
    pub group: Group,
    pub threads_a: usize,
    pub threads_b: usize,
}

/// A group that only one side has, in ns per second of wall time: running, and late by
/// [`Class::Late`](crate::Class::Late).
#[derive(Clone, Debug, PartialEq)]
pub struct GroupRate {
    pub group: Group,
    pub threads: usize,
    pub running_ns: f64,
    pub late_ns: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unmatched {
    pub only_a: Vec<GroupRate>,
    pub only_b: Vec<GroupRate>,
}

/// A line of the ledger, whose waits are divided by their meanings.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// User and kernel together: measured, where their division is sampled.
    Running,
    /// Without a known meaning.
    State(State),
    /// Waits of one meaning in one state.
    Meant(State, Meant),
}

impl Part {
    /// `running`, or the name of the state.
    pub fn label(&self) -> String {
        match self {
            Part::Running => "running".into(),
            Part::State(state) | Part::Meant(state, _) => state.label(),
        }
    }

    /// What the waits mean, where that is known.
    pub fn meant(&self) -> Option<&Meant> {
        match self {
            Part::Meant(_, meant) => Some(meant),
            Part::Running | Part::State(_) => None,
        }
    }

    pub fn class(&self) -> Class {
        match self {
            Part::Running => Class::Running,
            Part::State(state) => Class::of(*state),
            Part::Meant(_, meant) => meant.class,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct PartChange {
    pub group: Group,
    pub part: Part,
    pub change: Change,
    pub is_news: bool,
}

/// A node that is reported: its time without its reported descendants is news.
#[derive(Clone, Debug, PartialEq)]
pub struct Headline {
    pub node: NodeId,
    /// Without the reported descendants.
    pub change: Change,
    /// Whether there are reported descendants.
    pub is_rest: bool,
    pub site: Option<Site>,
}

/// One node's change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeChange {
    pub change: Change,
    pub is_news: bool,
}
