// SPDX-License-Identifier: Apache-2.0
//! Every node of the tree of stacks: its sums on both sides, its change, and whether that is news.

use super::comparison::NodeChange;
use super::evidence::Change;
use super::news::NodeRule;
use super::parts::Pair;
use super::series::Series;
use super::sides::Sides;
use super::tree::{NodeId, Tree};
use crate::weights::View;

/// Each node's own time on both sides: leaves have some, the others none yet.
#[derive(Clone)]
pub(super) struct Stacks(Vec<[Series; 2]>);

impl Stacks {
    pub fn of(tree: &Tree, pairs: &[Pair<'_>], view: &View) -> Self {
        let mut own = vec![<[Series; 2]>::default(); tree.len()];
        for (_, a, b) in pairs {
            for (side, time) in [a, b].into_iter().enumerate() {
                for (node, _, series) in time.stacks.iter().filter(|(_, state, _)| view.includes(*state)) {
                    own[node.index()][side].add_all(series);
                }
            }
        }
        Stacks(own)
    }

    /// Visits every node that has time, after its children, with the sum of its own time and theirs. A node
    /// for which `visit` returns `Passes::Not` adds nothing to its parent.
    pub fn sum_up(mut self, tree: &Tree, mut visit: impl FnMut(NodeId, &[Series; 2]) -> Passes) {
        for id in tree.ids().rev() {
            let sum = std::mem::take(&mut self.0[id.index()]);
            if sum.iter().all(|series| series.total_ns() == 0) {
                continue;
            }
            if visit(id, &sum) == Passes::On && id != NodeId::ALL {
                let parent = &mut self.0[tree.node(id).parent.index()];
                parent.iter_mut().zip(&sum).for_each(|(parent, child)| parent.add_all(child));
            }
        }
    }
}

#[derive(PartialEq, Eq)]
pub(super) enum Passes {
    On,
    Not,
}

/// Every node's change, and the p of everything that was asked.
pub(super) struct NodeChanges {
    pub changes: Vec<Option<Change>>,
    pub asked: Vec<f64>,
}

/// A node with one child only says the same as the child: it is not asked again.
pub(super) fn node_changes(tree: &Tree, stacks: Stacks, sides: &Sides<'_>) -> NodeChanges {
    let mut changes: Vec<Option<Change>> = vec![None; tree.len()];
    let mut only_child: Vec<Option<Change>> = vec![None; tree.len()];
    let mut children = vec![0u32; tree.len()];
    let mut asked = Vec::new();
    stacks.sum_up(tree, |id, both| {
        let repeated = only_child[id.index()].filter(|_| children[id.index()] == 1);
        let change = repeated.unwrap_or_else(|| sides.node_change(id, both));
        if repeated.is_none() {
            asked.extend(change.uncertainty.map(|found| found.p));
        }
        changes[id.index()] = Some(change);
        let parent = tree.node(id).parent.index();
        children[parent] += 1;
        only_child[parent] = Some(change);
        Passes::On
    });
    NodeChanges { changes, asked }
}

/// Every node with whether it is news: by itself, or because nearly all of it is a child that is.
pub(super) fn judged_nodes(
    tree: &Tree,
    changes: &[Option<Change>],
    rule: &NodeRule,
) -> Vec<Option<NodeChange>> {
    let mut judged: Vec<Option<NodeChange>> = vec![None; tree.len()];
    let mut follows = vec![false; tree.len()];
    for id in tree.ids().rev() {
        let Some(change) = changes[id.index()] else { continue };
        let is_news = follows[id.index()] || rule.is_news(id, &change);
        judged[id.index()] = Some(NodeChange { change, is_news });
        let parent = tree.node(id).parent.index();
        let is_parent = |above: &Change| rule.floor().is_reached(above) && is_nearly(above, &change);
        follows[parent] |= is_news && changes[parent].as_ref().is_some_and(is_parent);
    }
    judged
}

/// Whether at least nine tenths of a node are one child, on both sides; and neither differs the other way.
fn is_nearly(node: &Change, child: &Change) -> bool {
    let is_most = |node: f64, child: f64| child >= 0.9 * node;
    is_most(node.a_ns, child.a_ns)
        && is_most(node.b_ns, child.b_ns)
        && node.difference_ns() * child.difference_ns() > 0.0
}
