//! Call paths as a prefix tree, each node with its numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use super::frame::Frame;
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
    /// The children that were asked for last, the latest first.
    recent: [PathId; 2],
    numbers: Numbers,
}

/// Several trees in one arena; a thread's has one root.
#[derive(Clone, Debug, Default)]
pub struct CallTree {
    nodes: Vec<Node>,
    children: HashMap<(PathId, Frame), PathId, BuildHasherDefault<PathHasher>>,
    /// 0: as many as there are.
    max_paths: usize,
    folded: u64,
}

impl CallTree {
    /// The roots come before all else.
    pub const ROOT: PathId = PathId(0);

    /// A tree that keeps about so many paths; further ones count as their last frame by itself.
    pub(super) fn with_room_for(max_paths: usize) -> CallTree {
        CallTree { max_paths, ..CallTree::default() }
    }

    /// How often a path was asked for that there was no room for.
    pub fn folded(&self) -> u64 {
        self.folded
    }

    /// Number of nodes ever made.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn frame(&self, path: PathId) -> Frame {
        self.nodes[path.index()].frame
    }

    /// The path without its last frame; `None` for a root.
    pub fn parent(&self, path: PathId) -> Option<PathId> {
        Some(self.nodes[path.index()].parent).filter(|&parent| parent != PathId::NONE)
    }

    #[inline]
    pub fn numbers(&self, path: PathId) -> &Numbers {
        &self.nodes[path.index()].numbers
    }

    #[inline]
    pub(super) fn numbers_mut(&mut self, path: PathId) -> &mut Numbers {
        &mut self.nodes[path.index()].numbers
    }

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

    /// The path that `frame` makes of `parent`.
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
        let child = match self.children.get(&(parent, frame)) {
            Some(&child) => child,
            None if self.is_full() && parent != CallTree::ROOT => return self.folded_child(frame),
            None => {
                let child = self.add(frame, parent);
                self.link(parent, child);
                child
            }
        };
        let [last, _] = self.nodes[parent.index()].recent;
        self.nodes[parent.index()].recent = [child, last];
        child
    }

    fn is_full(&self) -> bool {
        self.max_paths != 0 && self.nodes.len() >= self.max_paths
    }

    /// Stands for the paths that there is no room for: what ends in `frame`, whoever called it.
    fn folded_child(&mut self, frame: Frame) -> PathId {
        self.folded += 1;
        if let Some(&child) = self.children.get(&(CallTree::ROOT, frame)) {
            return child;
        }
        let child = self.add(frame, CallTree::ROOT);
        self.link(CallTree::ROOT, child);
        child
    }

    fn add(&mut self, frame: Frame, parent: PathId) -> PathId {
        let none = PathId::NONE;
        self.nodes.push(Node {
            frame,
            parent,
            first_child: none,
            next_sibling: none,
            recent: [none; 2],
            numbers: Numbers::default(),
        });
        PathId((self.nodes.len() - 1) as u32)
    }

    fn link(&mut self, parent: PathId, child: PathId) {
        self.nodes[child.index()].parent = parent;
        self.nodes[child.index()].next_sibling = self.nodes[parent.index()].first_child;
        self.nodes[parent.index()].first_child = child;
        self.children.insert((parent, self.nodes[child.index()].frame), child);
    }

    fn take_children(&mut self, path: PathId) -> Vec<PathId> {
        let children: Vec<PathId> = self.children(path).collect();
        for child in &children {
            let frame = self.frame(*child);
            self.children.remove(&(path, frame));
        }
        self.nodes[path.index()].first_child = PathId::NONE;
        self.nodes[path.index()].recent = [PathId::NONE; 2];
        children
    }

    /// Puts `frame` between `parent` and all that hangs below it.
    pub(super) fn insert_below(&mut self, parent: PathId, frame: Frame) -> PathId {
        let children = self.take_children(parent);
        let between = self.child(parent, frame);
        children.into_iter().for_each(|child| self.link(between, child));
        between
    }

    /// Hangs what is below `floor` to its parent, and takes `floor` away.
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
            self.numbers_mut(to).merge(&numbers);
            for child in self.take_children(from) {
                match self.children.get(&(to, self.frame(child))) {
                    Some(&same) => left.push((child, same)),
                    None => self.link(to, child),
                }
            }
        }
    }

    /// Adds the nodes `from..to` of `other`, of which `from` is a root, to the path `at`; returns where each went. The first
    /// `overlap` ticks of self time are known already, and not added.
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
            let numbers = self.numbers_mut(place);
            numbers.merge(&node.numbers);
            let known = node.numbers.self_ticks.min(*overlap);
            numbers.self_ticks = numbers.self_ticks.saturating_sub(known);
            *overlap -= known;
            places.push(place);
        }
        places
    }

    /// Where `path` went in a graft that started at `from`.
    pub(super) fn grafted(places: &[PathId], from: PathId, path: PathId) -> PathId {
        places[path.index() - from.index()]
    }
}

/// Mixes the few words of a path step; paths come from the trace, and colliding ones only cost time.
#[derive(Debug, Default)]
struct PathHasher(u64);

impl PathHasher {
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0xa076_1d64_78bd_642f;
        self.0 = ((product >> 64) as u64 ^ product as u64).wrapping_add(word.rotate_left(32));
    }
}

impl Hasher for PathHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.mix(u64::from(byte)));
    }

    fn write_u32(&mut self, word: u32) {
        self.mix(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_isize(&mut self, word: isize) {
        self.mix(word as u64);
    }
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
    fn the_same_frames_make_the_same_path() {
        let tree = grown(&[&[1, 2], &[1, 3], &[1, 2], &[1]]);
        assert_eq!(paths(&tree), ["1 1", "1;2 2", "1;3 1"]);
    }

    #[test]
    fn a_parent_found_later_takes_all_that_was_there() {
        let mut tree = grown(&[&[1, 2], &[3]]);
        tree.insert_below(CallTree::ROOT, function(9));
        let path = tree.child(CallTree::ROOT, function(9));
        let path = tree.child(path, function(3));
        tree.numbers_mut(path).spend(1);
        assert_eq!(paths(&tree), ["9 0", "9;1 0", "9;1;2 1", "9;3 2"]);
    }

    #[test]
    fn a_floor_dissolves_into_what_is_below_it() {
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
    fn a_full_tree_keeps_what_functions_did() {
        let mut tree = CallTree::with_room_for(4);
        tree.new_root(Frame::Unknown);
        for id in 1..100 {
            let first = tree.child(CallTree::ROOT, function(1));
            let second = tree.child(first, function(id % 7));
            let third = tree.child(second, function(id % 3));
            tree.numbers_mut(third).spend(1);
        }
        assert!(tree.len() < 4 + 7 && tree.folded() > 0, "{} paths", tree.len());
        let spent: u64 = tree.paths(CallTree::ROOT).iter().map(|&path| tree.numbers(path).self_ticks).sum();
        assert_eq!(spent, 99);
    }

    #[test]
    fn a_graft_merges_path_by_path() {
        let mut tree = grown(&[&[1, 2]]);
        let other = grown(&[&[2], &[2, 3], &[4]]);
        let at = tree.child(CallTree::ROOT, function(1));
        tree.graft(&other, CallTree::ROOT, other.len(), at, &mut 0);
        assert_eq!(paths(&tree), ["1 0", "1;2 2", "1;2;3 1", "1;4 1"]);
    }
}
