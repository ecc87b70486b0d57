// SPDX-License-Identifier: Apache-2.0
//! Which differences are news: large enough to matter, and too improbable for chance, however many were
//! tested.
//!
//! In at most a share of [`FALSE_NEWS`] of comparisons of equal sides is anything at all news, however the
//! tests depend on each other, as long as each test's p is right. Two ways lead to news, and each has half
//! of that share.
//!
//! *Waits first.* The states of involuntary waits (locks, disks …) are tested first. Of m states each has 1/m of
//! the half. The stacks in a state are tested only once the state is news, and share the part of their state. It is
//! right by cases that they are not corrected for all other stacks. A state that is equal on both sides is news
//! with probability 1/m of the half at most, and only then can a stack in it be. A state that differs has at
//! least one stack that differs. So of k stacks at most (k - 1) can be wrong, and each has 1/(k - 1) of the part
//! of the state (Meinshausen 2008; for the last step Shaffer 1986). So a change in one state is found however
//! many stacks there are elsewhere.
//!
//! *All at once*, with Holm's (1979) procedure: the other states, and all stacks. It finds changes that cancel
//! out in a state, and functions whose time differs in several states.

use std::collections::HashMap;

use super::evidence::Change;
use super::tree::NodeId;

/// Holds where windows are independent or drift mildly: of 1000 drawn pairs 0 to 8 were false up to a
/// correlation of neighbours of 0.5. At 0.8 it does not: 11 to 34 were. So few windows do not distinguish
/// such a slow drift from a difference.
pub const FALSE_NEWS: f64 = 0.01;

/// The share of each of the two ways.
const SHARE: f64 = FALSE_NEWS / 2.0;

/// Below this a difference is not news, however certain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// Nanoseconds per second of wall time.
    pub ns: f64,
    /// Share of the larger side.
    pub share: f64,
}

impl Default for Floor {
    /// A thousandth of a second per second, and a twentieth of what was there.
    fn default() -> Self {
        Floor { ns: 1e6, share: 0.05 }
    }
}

impl Floor {
    /// Whether so much time could differ by enough.
    pub fn could_be_reached(&self, change: &Change) -> bool {
        change.a_ns + change.b_ns >= self.ns
    }

    pub fn is_reached(&self, change: &Change) -> bool {
        let difference = change.difference_ns().abs();
        difference >= self.ns && difference >= self.share * change.a_ns.max(change.b_ns)
    }
}

/// Which of the states that are asked first are news.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WaitsRule {
    floor: Floor,
    /// Largest p that is not chance.
    most_p: f64,
}

impl WaitsRule {
    pub fn new(floor: Floor, asked: usize) -> Self {
        WaitsRule { floor, most_p: SHARE / asked.max(1) as f64 }
    }

    pub fn is_news(&self, change: &Change) -> bool {
        is_news(self.floor, change, self.most_p)
    }

    /// Largest p of a stack in a state that is news: `asked` are the state's stacks that are asked about,
    /// `others` says whether there are more.
    pub fn most_p_of_stack(&self, asked: usize, others: bool) -> f64 {
        let can_be_wrong = if others { asked } else { asked.saturating_sub(1) };
        self.most_p / can_be_wrong.max(1) as f64
    }
}

/// Which nodes of the tree, and which of the other states, are news.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeRule {
    floor: Floor,
    /// Largest p of anything that was asked that is not chance.
    most_p: f64,
    /// The same for leaves whose state is news.
    most_p_of_leaf: HashMap<NodeId, f64>,
}

impl NodeRule {
    /// Holm's step-down procedure on the p of everything that was asked.
    pub fn new(floor: Floor, mut asked: Vec<f64>, most_p_of_leaf: HashMap<NodeId, f64>) -> Self {
        asked.sort_by(f64::total_cmp);
        let count = asked.len();
        let limit = |rank: usize| SHARE / (count - rank).max(1) as f64;
        let rejected = asked.iter().enumerate().take_while(|(rank, p)| **p <= limit(*rank)).count();
        NodeRule { floor, most_p: limit(rejected.min(count)), most_p_of_leaf }
    }

    pub fn floor(&self) -> Floor {
        self.floor
    }

    pub fn is_news(&self, node: NodeId, change: &Change) -> bool {
        let most_p = self.most_p_of_leaf.get(&node).map_or(self.most_p, |leaf| leaf.max(self.most_p));
        is_news(self.floor, change, most_p)
    }

    /// Of what was asked with the nodes and is none.
    pub fn is_other_news(&self, change: &Change) -> bool {
        is_news(self.floor, change, self.most_p)
    }
}

fn is_news(floor: Floor, change: &Change, most_p: f64) -> bool {
    floor.is_reached(change) && change.uncertainty.is_some_and(|found| found.p <= most_p)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::evidence::Uncertainty;

    fn change(a_ms: f64, b_ms: f64, p: f64) -> Change {
        let uncertainty = Some(Uncertainty { margin_ns: 0.0, p });
        Change { a_ns: a_ms * 1e6, b_ns: b_ms * 1e6, uncertainty }
    }

    /// Of a node that has no rule of its own.
    fn any_node(asked: Vec<f64>) -> impl Fn(&Change) -> bool {
        let rule = NodeRule::new(Floor::default(), asked, HashMap::new());
        move |change| rule.is_news(NodeId::ALL, change)
    }

    #[test]
    fn small_differences_are_no_news_however_certain() {
        let is_news = any_node(vec![0.0; 3]);
        assert!(is_news(&change(10.0, 11.1, 0.0)));
        assert!(!is_news(&change(1.0, 1.9, 0.0)), "under a thousandth");
        assert!(!is_news(&change(100.0, 104.0, 0.0)), "under a twentieth");
        assert!(!is_news(&Change { uncertainty: None, ..change(0.0, 100.0, 0.0) }));
        assert!(!WaitsRule::new(Floor::default(), 1).is_news(&change(100.0, 104.0, 0.0)));
    }

    #[test]
    fn more_tests_demand_a_smaller_p() {
        let news = |p: f64, others: usize| {
            let mut asked = vec![0.5; others];
            asked.push(p);
            any_node(asked)(&change(10.0, 20.0, p))
        };
        assert!(news(0.0049, 0) && !news(0.0049, 1));
        assert!(news(0.000_049, 100) && !news(0.000_051, 100));
        let state = |p: f64, asked| WaitsRule::new(Floor::default(), asked).is_news(&change(10.0, 20.0, p));
        assert!(state(0.0049, 1) && !state(0.0049, 2) && state(0.000_49, 10) && !state(0.000_51, 10));
    }

    /// With five asked, the limits are 1/1000, 1/800, 1/600 …: the third p stops the procedure.
    #[test]
    fn holms_steps() {
        let is_news = any_node(vec![0.0012, 0.0009, 0.0017, 0.0015, 0.9]);
        let at = |p: f64| is_news(&change(10.0, 20.0, p));
        assert!(at(0.0009) && at(0.0012) && at(0.0015));
        assert!(at(0.0017), "4th limit is 1/400");
        assert!(!at(0.9));
        let stopped = any_node(vec![0.0009, 0.0013, 0.0013, 0.9, 0.9]);
        assert!(!stopped(&change(10.0, 20.0, 0.0013)));
    }

    #[test]
    fn a_stack_has_the_share_of_its_state() {
        let rule = WaitsRule::new(Floor::default(), 10);
        assert_eq!(rule.most_p_of_stack(1, false), 0.0005, "it is the state");
        assert_eq!(rule.most_p_of_stack(2, false), 0.0005, "one of them differs");
        assert_eq!(rule.most_p_of_stack(2, true), 0.000_25, "or one that was not asked");
        assert_eq!(rule.most_p_of_stack(5, false), 0.000_125);
        assert_eq!(rule.most_p_of_stack(0, true), 0.0005);
    }

    #[test]
    fn a_leaf_of_a_state_that_is_news_is_not_asked_with_all_others() {
        let levels = HashMap::from([(NodeId::ALL, 0.0005)]);
        let many = vec![0.5; 1_000];
        let change = change(10.0, 20.0, 0.0004);
        assert!(NodeRule::new(Floor::default(), many.clone(), levels).is_news(NodeId::ALL, &change));
        assert!(!NodeRule::new(Floor::default(), many, HashMap::new()).is_news(NodeId::ALL, &change));
    }
}
