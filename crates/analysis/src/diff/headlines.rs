// SPDX-License-Identifier: Apache-2.0
//! The nodes that are reported, with what is not yet reported of them.

use super::comparison::Headline;
use super::news::NodeRule;
use super::nodes::{Passes, Stacks};
use super::place::site_of;
use super::sides::Sides;
use super::tree::Tree;
use crate::interest::Class;

/// From the leaves up: a node is reported when the part of it that is not reported yet is news. The rank is
/// the difference of the involuntary time: a thread that waits longer for a lock sleeps shorter by as much.
pub(super) fn headlines(tree: &Tree, stacks: Stacks, sides: &Sides<'_>, rule: &NodeRule) -> Vec<Headline> {
    let mut ranked: Vec<(f64, Headline)> = Vec::new();
    let mut is_above_one = vec![false; tree.len()];
    let mut involuntary_ns = vec![0.0; tree.len()];
    stacks.sum_up(tree, |node, both| {
        let change = sides.node_change(node, both);
        if tree.class(node).is_some_and(|class| class != Class::Voluntary) {
            involuntary_ns[node.index()] = change.difference_ns();
        }
        let involuntary = involuntary_ns[node.index()];
        let parent = tree.node(node).parent;
        if tree.step(node).is_none() || !rule.is_news(node, &change) {
            involuntary_ns[parent.index()] += involuntary;
            return Passes::On;
        }
        let is_rest = is_above_one[node.index()];
        ranked.push((involuntary.abs(), Headline { node, change, is_rest, site: site_of(tree, node) }));
        tree.upwards(parent).for_each(|above| is_above_one[above.index()] = true);
        Passes::Not
    });
    let size = |headline: &Headline| headline.change.difference_ns().abs();
    ranked.sort_by(|(x_involuntary, x), (y_involuntary, y)| {
        let by_size = || size(y).total_cmp(&size(x));
        y_involuntary.total_cmp(x_involuntary).then_with(by_size).then(x.node.cmp(&y.node))
    });
    ranked.into_iter().map(|(_, headline)| headline).collect()
}
