//! The nodes that are reported, with what is not yet reported of them.

use super::comparison::Headline;
use super::news::NodeRule;
use super::nodes::{Passes, Stacks};
use super::place::site_of;
use super::sides::Sides;
use super::step::Step;
use super::tree::Tree;
use crate::interest::Class;

/// From the leaves up: a node is reported when what is not yet reported of it is news. Ranked by how much the
/// time differs that threads did not choose; a thread that waits longer for a lock sleeps shorter by as much.
pub(super) fn headlines(tree: &Tree, stacks: Stacks, sides: &Sides<'_>, rule: &NodeRule) -> Vec<Headline> {
    let mut ranked: Vec<(f64, Headline)> = Vec::new();
    let mut is_above_one = vec![false; tree.len()];
    let mut unchosen_ns = vec![0.0; tree.len()];
    stacks.sum_up(tree, |node, both| {
        let change = sides.node_change(node, both);
        if tree.step(node).is_some_and(is_unchosen) {
            unchosen_ns[node.index()] = change.difference_ns();
        }
        let unchosen = unchosen_ns[node.index()];
        let parent = tree.node(node).parent;
        if tree.step(node).is_none() || !rule.is_news(node, &change) {
            unchosen_ns[parent.index()] += unchosen;
            return Passes::On;
        }
        let is_rest = is_above_one[node.index()];
        ranked.push((unchosen.abs(), Headline { node, change, is_rest, site: site_of(tree, node) }));
        tree.upwards(parent).for_each(|above| is_above_one[above.index()] = true);
        Passes::Not
    });
    let size = |headline: &Headline| headline.change.difference_ns().abs();
    ranked.sort_by(|(x_unchosen, x), (y_unchosen, y)| {
        let by_size = || size(y).total_cmp(&size(x));
        y_unchosen.total_cmp(x_unchosen).then_with(by_size).then(x.node.cmp(&y.node))
    });
    ranked.into_iter().map(|(_, headline)| headline).collect()
}

fn is_unchosen(step: &Step) -> bool {
    matches!(step, Step::State(state) if Class::of(*state) != Class::Voluntary)
}
