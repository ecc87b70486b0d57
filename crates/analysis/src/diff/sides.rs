// SPDX-License-Identifier: Apache-2.0
//! The windows, the floor and the single waits by which both sides are compared.

use std::collections::HashMap;

use super::collect::Side;
use super::evidence::{Amount, Change, judged, unjudged};
use super::news::Floor;
use super::series::Series;
use super::tree::NodeId;
use super::waits::Waits;
use super::windows::Windows;

/// The windows, the floor and the single waits of both sides.
pub(super) struct Sides<'s> {
    a: &'s Windows,
    b: &'s Windows,
    floor: Floor,
    /// The waits of each leaf, if both sides kept the same ones.
    leaves: HashMap<NodeId, [&'s Waits; 2]>,
    keeps_same_waits: bool,
}

impl<'s> Sides<'s> {
    pub fn of(a: &'s Side, b: &'s Side, floor: Floor) -> Self {
        let keeps_same_waits = a.min_stall_ns == b.min_stall_ns;
        let mut leaves = HashMap::new();
        for (group, time) in a.groups.iter().filter(|_| keeps_same_waits) {
            let Some(other) = b.groups.get(group) else { continue };
            let both = time.waits.iter();
            leaves.extend(both.filter_map(|(leaf, waits)| Some((*leaf, [waits, other.waits.get(leaf)?]))));
        }
        Sides { a: &a.windows, b: &b.windows, floor, leaves, keeps_same_waits }
    }

    pub fn change(&self, [a, b]: [&Series; 2], waits: Option<[&Waits; 2]>) -> Change {
        let a = Amount { series: a, waits: waits.map(|[a, _]| a), windows: self.a };
        let b = Amount { series: b, waits: waits.map(|[_, b]| b), windows: self.b };
        let change = unjudged(a, b);
        if self.floor.could_be_reached(&change) { judged(a, b) } else { change }
    }

    pub fn node_change(&self, node: NodeId, [a, b]: &[Series; 2]) -> Change {
        self.change([a, b], self.leaves.get(&node).copied())
    }

    /// `waits` are those of both sides, if both have some.
    pub fn part_change(&self, both: [&Series; 2], waits: Option<[&Waits; 2]>) -> Change {
        self.change(both, waits.filter(|_| self.keeps_same_waits))
    }
}
