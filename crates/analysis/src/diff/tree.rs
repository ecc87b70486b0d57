// SPDX-License-Identifier: Apache-2.0
//! The stacks of both recordings as one tree of names: all, groups of threads, functions from the outermost
//! inwards, states.

use std::collections::{BTreeMap, HashMap};

use wallprof_model::State;

use super::collect::Group;
use super::comparison::Part;
use super::meant::{Meant, Votes};
use super::step::{Step, Walked};
use crate::interest::Class;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);

impl NodeId {
    /// All matched threads together.
    pub const ALL: NodeId = NodeId(0);

    /// Its place among [`Tree::ids`].
    pub fn number(self) -> u32 {
        self.0
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The root is its own.
    pub parent: NodeId,
    /// Frames below the group: 0 for [`NodeId::ALL`] and for groups.
    pub depth: u32,
    label: Label,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    All,
    Group(u32),
    Step(u32),
}

/// A parent comes before its children: walks up end, and sums go down the ids.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    groups: Vec<Group>,
    group_nodes: BTreeMap<Group, NodeId>,
    steps: Vec<Walked>,
    step_ids: HashMap<Step, u32>,
    children: HashMap<(NodeId, u32), NodeId>,
    /// Of leaves: what their waits mean.
    votes: HashMap<NodeId, Votes>,
}

impl Default for Tree {
    fn default() -> Self {
        Tree {
            nodes: vec![Node { parent: NodeId::ALL, depth: 0, label: Label::All }],
            groups: Vec::new(),
            group_nodes: BTreeMap::new(),
            steps: Vec::new(),
            step_ids: HashMap::new(),
            children: HashMap::new(),
            votes: HashMap::new(),
        }
    }
}

impl Tree {
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: the root is always there.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// All nodes, parents first.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The frame of a node; `None` for [`NodeId::ALL`] and for groups.
    pub fn step(&self, id: NodeId) -> Option<&Step> {
        self.walked(id).map(|(step, _)| step)
    }

    pub(crate) fn walked(&self, id: NodeId) -> Option<&Walked> {
        match self.node(id).label {
            Label::Step(step) => Some(&self.steps[step as usize]),
            Label::All | Label::Group(_) => None,
        }
    }

    /// The threads that a node belongs to; `None` for [`NodeId::ALL`].
    pub fn group(&self, id: NodeId) -> Option<&Group> {
        let mut at = id;
        while let Label::Step(_) = self.node(at).label {
            at = self.node(at).parent;
        }
        match self.node(at).label {
            Label::Group(group) => Some(&self.groups[group as usize]),
            Label::All | Label::Step(_) => None,
        }
    }

    /// The node and those above it up to its group, which is left out.
    pub fn upwards(&self, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let has_step = |id: &NodeId| self.step(*id).is_some();
        std::iter::successors(Some(id), |id| Some(self.node(*id).parent)).take_while(has_step)
    }

    /// The steps from the outermost function to the node.
    pub fn path(&self, id: NodeId) -> Vec<&Step> {
        let mut path: Vec<&Step> = self.upwards(id).filter_map(|id| self.step(id)).collect();
        path.reverse();
        path
    }

    /// The names of [`Tree::path`] as in folded stacks, with the meaning of a leaf's waits before its state.
    pub fn names(&self, id: NodeId) -> Vec<String> {
        let mut names: Vec<String> = self.path(id).iter().map(ToString::to_string).collect();
        if let Some(meant) = self.meant(id) {
            names.insert(names.len().saturating_sub(1), format!("[{meant}]"));
        }
        names
    }

    /// What the waits of a leaf mean. `None`: the leaf's waits have no meaning, or the node is no leaf.
    pub fn meant(&self, leaf: NodeId) -> Option<&Meant> {
        self.votes.get(&leaf)?.most()
    }

    pub(crate) fn votes(&mut self, leaf: NodeId) -> &mut Votes {
        self.votes.entry(leaf).or_default()
    }

    /// The line of the ledger that the time of a leaf in this state belongs to.
    pub(crate) fn part_of(&self, leaf: NodeId, state: State) -> Part {
        self.meant(leaf).map_or(Part::State(state), |meant| Part::Meant(state, meant.clone()))
    }

    /// `None` for a node that is no leaf.
    pub(crate) fn class(&self, id: NodeId) -> Option<Class> {
        match self.step(id)? {
            Step::State(state) => Some(self.part_of(id, *state).class()),
            _ => None,
        }
    }

    pub(crate) fn group_node(&mut self, group: &Group) -> NodeId {
        if let Some(&known) = self.group_nodes.get(group) {
            return known;
        }
        let label = Label::Group(self.groups.len() as u32);
        self.groups.push(group.clone());
        let id = self.push(Node { parent: NodeId::ALL, depth: 0, label });
        self.group_nodes.insert(group.clone(), id);
        id
    }

    pub(crate) fn leaf(&mut self, group: NodeId, steps: Vec<Walked>) -> NodeId {
        steps.into_iter().fold(group, |parent, step| self.child(parent, step))
    }

    fn child(&mut self, parent: NodeId, (step, is_plumbing): Walked) -> NodeId {
        let step = match self.step_ids.get(&step) {
            Some(&known) => known,
            None => {
                let id = self.steps.len() as u32;
                self.steps.push((step.clone(), is_plumbing));
                self.step_ids.insert(step, id);
                id
            }
        };
        if let Some(&known) = self.children.get(&(parent, step)) {
            return known;
        }
        let id = self.push(Node { parent, depth: self.node(parent).depth + 1, label: Label::Step(step) });
        self.children.insert((parent, step), id);
        id
    }

    fn push(&mut self, node: Node) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(node);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(names: &[&str]) -> Vec<Walked> {
        names.iter().map(|name| (Step::Function((*name).into()), false)).collect()
    }

    #[test]
    fn equal_paths_are_one_node_and_groups_are_apart() {
        let mut tree = Tree::default();
        let group = |thread: &str| Group { process: "app".into(), thread: thread.into() };
        let (one, two) = (tree.group_node(&group("one")), tree.group_node(&group("two")));
        assert_eq!(tree.group_node(&group("one")), one);
        let leaf = tree.leaf(one, steps(&["main", "work"]));
        assert_eq!(tree.leaf(one, steps(&["main", "work"])), leaf);
        assert_ne!(tree.leaf(two, steps(&["main", "work"])), leaf);
        assert_eq!(tree.group(leaf), Some(&group("one")));
        assert_eq!(tree.path(leaf).iter().map(ToString::to_string).collect::<Vec<_>>(), ["main", "work"]);
        assert_eq!((tree.node(leaf).depth, tree.node(one).depth), (2, 0));
        assert_eq!((tree.path(one).len(), tree.group(NodeId::ALL)), (0, None));
        assert!(tree.ids().skip(1).all(|id| tree.node(id).parent < id), "parents come first");
    }
}
