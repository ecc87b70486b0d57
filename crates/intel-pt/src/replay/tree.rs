// SPDX-License-Identifier: Apache-2.0
//! Call paths as a prefix tree. Each node has its numbers.

use super::child_index::ChildIndex;
use super::frame::{Frame, Side, Sides};
use super::limit::PathLimit;
use super::numbers::Numbers;

/// A call path in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(u32);

impl PathId {
    const NONE: PathId = PathId(u32::MAX);

    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Debug)]
struct Node {
    frame: Frame,
    parent: PathId,
    first_child: PathId,
    next_sibling: PathId,
    /// The two last requested children, the latest first.
    recent: [PathId; 2],
    numbers: Numbers,
}

/// Several trees in one arena. A thread's tree has one root.
#[derive(Clone, Debug, Default)]
pub struct CallTree {
    nodes: Vec<Node>,
    children: ChildIndex,
    /// Nodes that are in no tree any more, for reuse.
    free: Vec<PathId>,
    /// `None`: no limit.
    limit: Option<PathLimit>,
    folded: u64,
}

/// Paths that a tree may have regardless of others, so that late threads have some, too.
const OWN_PATHS: usize = 64;

impl CallTree {
    /// The root, which is the first node.
    pub const ROOT: PathId = PathId(0);

    /// A tree within a limit of paths. Further paths count as their last frame by itself.
    pub(super) fn within(limit: PathLimit) -> CallTree {
        CallTree { limit: Some(limit), ..CallTree::default() }
    }

    /// The number of requests for paths beyond the limit.
    pub fn folded(&self) -> u64 {
        self.folded
    }

    /// The number of nodes ever made.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the tree has no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The last frame of a path.
    pub fn frame(&self, path: PathId) -> Frame {
        self.nodes[path.index()].frame
    }

    /// The path without its last frame; `None` for a root.
    pub fn parent(&self, path: PathId) -> Option<PathId> {
        Some(self.nodes[path.index()].parent).filter(|&parent| parent != PathId::NONE)
    }

    /// The numbers of a path.
    #[inline]
    pub fn numbers(&self, path: PathId) -> &Numbers {
        &self.nodes[path.index()].numbers
    }

    #[inline]
    pub(super) fn numbers_mut(&mut self, path: PathId) -> &mut Numbers {
        &mut self.nodes[path.index()].numbers
    }

    /// Adds a complete call.
    #[inline]
    pub(super) fn complete(&mut self, path: PathId, ticks: u64, ns: u64) {
        let limit = self.limit.as_ref();
        let may_grow = || limit.is_none_or(PathLimit::take_latency);
        self.nodes[path.index()].numbers.complete(ticks, ns, may_grow);
    }

    fn merge(&mut self, path: PathId, numbers: &Numbers) {
        let limit = self.limit.as_ref();
        let may_grow = || limit.is_none_or(PathLimit::take_latency);
        self.nodes[path.index()].numbers.merge_within(numbers, may_grow);
    }

    /// The paths with one frame more.
    pub fn children(&self, path: PathId) -> impl Iterator<Item = PathId> + '_ {
        let some = |path: PathId| Some(path).filter(|&path| path != PathId::NONE);
        let first = some(self.nodes[path.index()].first_child);
        std::iter::successors(first, move |child| some(self.nodes[child.index()].next_sibling))
    }

    /// All paths below `root` and itself, parents before children.
    pub fn paths(&self, root: PathId) -> Vec<PathId> {
        let mut found = vec![root];
        let mut next = 0;
        while next < found.len() {
            let path = found[next];
            found.extend(self.children(path));
            next += 1;
        }
        found
    }

    pub(super) fn new_root(&mut self, frame: Frame) -> PathId {
        self.add(frame, PathId::NONE)
    }

    /// The path of `frame` below `parent`.
    #[inline]
    pub(super) fn child(&mut self, parent: PathId, frame: Frame) -> PathId {
        let [last, before] = self.nodes[parent.index()].recent;
        if self.is(last, frame) {
            return last;
        }
        if self.is(before, frame) {
            self.nodes[parent.index()].recent = [before, last];
            return before;
        }
        self.other_child(parent, frame)
    }

    #[inline]
    fn is(&self, path: PathId, frame: Frame) -> bool {
        path != PathId::NONE && self.nodes[path.index()].frame == frame
    }

    fn other_child(&mut self, parent: PathId, frame: Frame) -> PathId {
        let child = match self.find(parent, frame) {
            Some(child) => child,
            None if self.may_grow() => self.new_child(parent, frame),
            // Nodes below a floor move with the floor in the end.
            None if matches!(frame, Frame::Floor(_)) => self.new_child(parent, frame),
            None => return self.folded_child(frame),
        };
        let [last, _] = self.nodes[parent.index()].recent;
        self.nodes[parent.index()].recent = [child, last];
        child
    }

    fn find(&self, parent: PathId, frame: Frame) -> Option<PathId> {
        let is_it = |node: u32| {
            let node = &self.nodes[node as usize];
            node.parent == parent && node.frame == frame
        };
        self.children.find(hash(parent, frame), is_it).map(PathId)
    }

    fn may_grow(&self) -> bool {
        !self.free.is_empty()
            || self.nodes.len() <= OWN_PATHS
            || self.limit.as_ref().is_none_or(PathLimit::take_path)
    }

    fn new_child(&mut self, parent: PathId, frame: Frame) -> PathId {
        let child = self.add(frame, parent);
        self.link(parent, child);
        child
    }

    /// Stands for all paths beyond the limit that end in `frame`. If that limit is reached as well, for all
    /// further paths.
    fn folded_child(&mut self, frame: Frame) -> PathId {
        self.folded += 1;
        let known = self.find(CallTree::ROOT, frame);
        let may_add = || self.limit.as_ref().is_none_or(PathLimit::take_function);
        let frame = if known.is_some() || may_add() { frame } else { Frame::Unknown };
        let known = known.or_else(|| self.find(CallTree::ROOT, frame));
        known.unwrap_or_else(|| self.new_child(CallTree::ROOT, frame))
    }

    fn add(&mut self, frame: Frame, parent: PathId) -> PathId {
        let none = PathId::NONE;
        let numbers = Numbers::default();
        let node = Node { frame, parent, first_child: none, next_sibling: none, recent: [none; 2], numbers };
        if let Some(free) = self.free.pop() {
            self.nodes[free.index()] = node;
            return free;
        }
        self.nodes.push(node);
        PathId((self.nodes.len() - 1) as u32)
    }

    fn link(&mut self, parent: PathId, child: PathId) {
        self.nodes[child.index()].parent = parent;
        self.nodes[child.index()].next_sibling = self.nodes[parent.index()].first_child;
        self.nodes[parent.index()].first_child = child;
        let nodes = &self.nodes;
        let hash_of = |node: u32| hash(nodes[node as usize].parent, nodes[node as usize].frame);
        self.children.insert(child.0, hash_of);
    }

    fn take_children(&mut self, path: PathId) -> Vec<PathId> {
        let children: Vec<PathId> = self.children(path).collect();
        for child in &children {
            let frame = self.frame(*child);
            self.children.remove(hash(path, frame), child.0);
        }
        self.nodes[path.index()].first_child = PathId::NONE;
        self.nodes[path.index()].recent = [PathId::NONE; 2];
        children
    }

    /// Inserts `frame` between `parent` and all its children.
    pub(super) fn insert_below(&mut self, parent: PathId, frame: Frame) -> PathId {
        let children = self.take_children(parent);
        let between = self.child(parent, frame);
        children.into_iter().for_each(|child| self.link(between, child));
        between
    }

    /// Moves the children of `floor` to its parent, and removes `floor`.
    pub(super) fn dissolve(&mut self, floor: PathId) {
        let Some(parent) = self.parent(floor) else { return };
        self.unlink(parent, floor);
        self.merge_into(floor, parent);
    }

    fn unlink(&mut self, parent: PathId, child: PathId) {
        let siblings = self.take_children(parent);
        siblings.into_iter().filter(|&sibling| sibling != child).for_each(|child| self.link(parent, child));
    }

    /// Adds the numbers and children of `from`, which is in no tree any more, to `to`.
    fn merge_into(&mut self, from: PathId, to: PathId) {
        let mut left = vec![(from, to)];
        while let Some((from, to)) = left.pop() {
            let numbers = std::mem::take(self.numbers_mut(from));
            self.merge(to, &numbers);
            for child in self.take_children(from) {
                match self.find(to, self.frame(child)) {
                    Some(same) => left.push((child, same)),
                    None => self.link(to, child),
                }
            }
            self.free.push(from);
        }
    }

    /// Adds the nodes `from..to` of `other`, of which `from` is a root, to the path `at`. Returns the new
    /// path of each. The first `overlap` ticks of self time are counted already, and not added.
    pub(super) fn graft(
        &mut self,
        other: &CallTree,
        from: PathId,
        to: usize,
        at: PathId,
        overlap: &mut u64,
    ) -> Vec<PathId> {
        let mut places = Vec::with_capacity(to - from.index());
        for node in &other.nodes[from.index()..to] {
            let place = match node.parent {
                PathId::NONE => at,
                parent => self.child(places[parent.index() - from.index()], node.frame),
            };
            self.merge(place, &node.numbers);
            let numbers = self.numbers_mut(place);
            let known = node.numbers.self_ticks.min(*overlap);
            numbers.self_ticks = numbers.self_ticks.saturating_sub(known);
            *overlap -= known;
            places.push(place);
        }
        places
    }

    /// The time by side in the nodes `from..to`, of which `from` is a root that stands for a frame of side
    /// `top`.
    pub(super) fn sides(&self, from: PathId, to: usize, top: Option<Side>) -> Sides {
        let mut sides = Sides::default();
        for (index, node) in self.nodes[from.index()..to].iter().enumerate() {
            sides.spend(if index == 0 { top } else { node.frame.side() }, node.numbers.self_ticks);
        }
        sides
    }

    /// The new path of `path` in a graft that started at `from`.
    pub(super) fn grafted(places: &[PathId], from: PathId, path: PathId) -> PathId {
        places[path.index() - from.index()]
    }
}

/// Hashes a step of a path. Steps come from the trace; collisions only cost time.
#[inline]
fn hash(parent: PathId, frame: Frame) -> u64 {
    let (kind, value) = frame.code();
    let mix = |word: u64, with: u64| {
        let product = u128::from(word ^ with) * 0xa076_1d64_78bd_642f;
        (product >> 64) as u64 ^ product as u64
    };
    mix(mix(u64::from(parent.0) << 8 | kind, 0x9e37_79b9_7f4a_7c15), value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::FunctionId;

    fn function(id: u32) -> Frame {
        Frame::Function(FunctionId(id))
    }

    /// Paths as text with their self time, sorted.
    fn paths(tree: &CallTree) -> Vec<String> {
        let mut found: Vec<String> = tree
            .paths(CallTree::ROOT)
            .into_iter()
            .skip(1)
            .map(|path| {
                let mut frames = Vec::new();
                let mut at = Some(path).filter(|&path| path != CallTree::ROOT);
                while let Some(path) = at {
                    if let Frame::Function(FunctionId(id)) = tree.frame(path) {
                        frames.insert(0, id.to_string());
                    }
                    at = tree.parent(path).filter(|&parent| parent != CallTree::ROOT);
                }
                format!("{} {}", frames.join(";"), tree.numbers(path).self_ticks)
            })
            .collect();
        found.sort();
        found
    }

    fn grown(steps: &[&[u32]]) -> CallTree {
        let mut tree = CallTree::default();
        tree.new_root(Frame::Unknown);
        for step in steps {
            let path = step.iter().fold(CallTree::ROOT, |path, &id| tree.child(path, function(id)));
            tree.numbers_mut(path).spend(1);
        }
        tree
    }

    #[test]
    fn same_frames_make_the_same_path() {
        let tree = grown(&[&[1, 2], &[1, 3], &[1, 2], &[1]]);
        assert_eq!(paths(&tree), ["1 1", "1;2 2", "1;3 1"]);
    }

    #[test]
    fn parent_found_later_gets_all_children() {
        let mut tree = grown(&[&[1, 2], &[3]]);
        tree.insert_below(CallTree::ROOT, function(9));
        let path = tree.child(CallTree::ROOT, function(9));
        let path = tree.child(path, function(3));
        tree.numbers_mut(path).spend(1);
        assert_eq!(paths(&tree), ["9 0", "9;1 0", "9;1;2 1", "9;3 2"]);
    }

    #[test]
    fn dissolved_floor_merges_into_its_parent() {
        let mut tree = grown(&[&[1, 2], &[1, 4]]);
        let path = tree.child(CallTree::ROOT, function(1));
        let floor = tree.child(path, Frame::Floor(0));
        let above = tree.child(floor, function(2));
        let leaf = tree.child(above, function(5));
        tree.numbers_mut(above).spend(10);
        tree.numbers_mut(leaf).spend(1);
        tree.child(floor, function(6));
        tree.dissolve(floor);
        assert_eq!(paths(&tree), ["1 0", "1;2 11", "1;2;5 1", "1;4 1", "1;6 0"]);
    }

    #[test]
    fn full_tree_keeps_the_numbers_of_functions() {
        let limit = PathLimit::for_paths(100);
        let mut trees = [CallTree::within(limit.clone()), CallTree::within(limit)];
        for tree in &mut trees {
            tree.new_root(Frame::Unknown);
            for id in 1..4_000 {
                let first = tree.child(CallTree::ROOT, function(1));
                let second = tree.child(first, function(id % 700));
                let third = tree.child(second, function(id % 31));
                tree.numbers_mut(third).spend(1);
            }
            assert!(tree.folded() > 0 && tree.len() > OWN_PATHS);
        }
        let paths: usize = trees.iter().map(CallTree::len).sum();
        assert!(paths <= 2 * (OWN_PATHS + 2) + 100 + 25, "{paths} paths");
        for tree in &trees {
            let own = |&path: &PathId| tree.numbers(path).self_ticks;
            let spent: u64 = tree.paths(CallTree::ROOT).iter().map(own).sum();
            assert_eq!((spent, own(&CallTree::ROOT)), (3_999, 0));
        }
    }

    #[test]
    fn dissolved_nodes_are_reused() {
        let mut tree = grown(&[&[1, 2]]);
        for turn in 0..1_000 {
            let at = tree.child(CallTree::ROOT, function(1));
            let floor = tree.child(at, Frame::Floor(turn));
            let above = tree.child(floor, function(2));
            tree.numbers_mut(above).spend(1);
            tree.dissolve(floor);
        }
        assert_eq!(paths(&tree), ["1 0", "1;2 1001"]);
        assert!(tree.len() <= 5, "{} nodes", tree.len());
    }

    #[test]
    fn graft_merges_path_by_path() {
        let mut tree = grown(&[&[1, 2]]);
        let other = grown(&[&[2], &[2, 3], &[4]]);
        let at = tree.child(CallTree::ROOT, function(1));
        tree.graft(&other, CallTree::ROOT, other.len(), at, &mut 0);
        assert_eq!(paths(&tree), ["1 0", "1;2 2", "1;2;3 1", "1;4 1"]);
    }
}
