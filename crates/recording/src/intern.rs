// SPDX-License-Identifier: Apache-2.0
//! Gives texts and stacks their row numbers, once each, so that no text or stack is written twice.

use std::collections::HashMap;
use std::sync::Arc;

use wallprof_model::StackEnd;

use crate::schema::{FIRST_NODE, root_from_end};
use crate::uses::Uses;

/// Longer texts are cut. No path is longer (PATH_MAX is 4096), and longer demangled names carry no further
/// information.
pub(crate) const MAX_TEXT_BYTES: usize = 8192;

/// Deeper stacks lose their outermost frames. Walkers keep at most 255 frames. Imported stacks may have any
/// depth.
pub(crate) const MAX_FRAMES: usize = 2048;

/// Limit on the functions that are inlined at one frame.
pub(crate) const MAX_LINES: usize = 256;

/// Texts by row id, counted from 1.
#[derive(Default)]
pub(crate) struct Texts {
    ids: HashMap<Arc<str>, u32>,
    used: u32,
    pub uses: Uses<u32, Arc<str>>,
}

impl Texts {
    /// With `counted`, unused rows can be found and removed.
    pub fn new(counted: bool) -> Self {
        Texts { uses: Uses::new(counted), ..Texts::default() }
    }

    /// The row of `text`, and its content if the row is new.
    pub fn intern(&mut self, text: &str) -> (u32, Option<Arc<str>>) {
        let text = clipped(text);
        if let Some(&id) = self.ids.get(text) {
            self.uses.touch(id);
            return (id, None);
        }
        self.used += 1;
        let shared: Arc<str> = text.into();
        self.ids.insert(Arc::clone(&shared), self.used);
        self.uses.define(self.used, Arc::clone(&shared));
        (self.used, Some(shared))
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.ids.len() + self.uses.len()
    }

    pub fn remove(&mut self, id: u32) {
        if let Some(text) = self.uses.remove(id) {
            self.ids.remove(&text);
        }
    }
}

/// At most [`MAX_TEXT_BYTES`] of `text`, cut at a character boundary.
pub(crate) fn clipped(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A node as it is written into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub id: u32,
    pub parent: u32,
    pub frame: u32,
}

/// The prefix tree of all stacks, outermost frame first. A node holds its parent.
pub(crate) struct StackTree {
    children: HashMap<(u32, u32), u32>,
    next: u32,
    /// A node's parent and frame.
    pub uses: Uses<u32, (u32, u32)>,
}

impl StackTree {
    /// With `counted`, unused rows can be found and removed.
    pub fn new(counted: bool) -> Self {
        StackTree { children: HashMap::new(), next: FIRST_NODE, uses: Uses::new(counted) }
    }

    /// The node of the stack with these frame rows, leaf first. New nodes are added to `fresh`.
    pub fn intern(&mut self, frames: &[u32], end: StackEnd, fresh: &mut Vec<Node>) -> u32 {
        let (frames, end) = match frames.get(..MAX_FRAMES) {
            Some(innermost) if frames.len() > MAX_FRAMES => (innermost, StackEnd::Truncated),
            _ => (frames, end),
        };
        let mut parent = root_from_end(end);
        for &frame in frames.iter().rev() {
            parent = match self.children.get(&(parent, frame)) {
                Some(&known) => known,
                None => self.grow(parent, frame, fresh),
            };
        }
        parent
    }

    fn grow(&mut self, parent: u32, frame: u32, fresh: &mut Vec<Node>) -> u32 {
        let id = self.next;
        self.next += 1;
        self.children.insert((parent, frame), id);
        self.uses.define(id, (parent, frame));
        self.uses.hold(parent);
        fresh.push(Node { id, parent, frame });
        id
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.children.len() + self.uses.len()
    }

    /// Removes a node and releases its parent. Returns the row of its frame.
    pub fn remove(&mut self, id: u32) -> Option<u32> {
        let (parent, frame) = self.uses.remove(id)?;
        self.children.remove(&(parent, frame));
        self.uses.release(parent);
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_gets_one_row() {
        let mut texts = Texts::default();
        assert_eq!(texts.intern("a"), (1, Some("a".into())));
        assert_eq!(texts.intern(""), (2, Some("".into())));
        assert_eq!(texts.intern("a"), (1, None));
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        let long = "ä".repeat(MAX_TEXT_BYTES);
        assert_eq!(clipped(&long).len(), MAX_TEXT_BYTES);
        let shifted = format!("x{long}");
        assert_eq!(clipped(&shifted).len(), MAX_TEXT_BYTES - 1);
    }

    #[test]
    fn stacks_share_their_outer_frames() {
        let (mut tree, mut fresh) = (StackTree::new(false), Vec::new());
        let first = tree.intern(&[3, 2, 1], StackEnd::Complete, &mut fresh);
        let second = tree.intern(&[4, 2, 1], StackEnd::Complete, &mut fresh);
        assert_eq!(fresh.len(), 4);
        assert_eq!(tree.intern(&[3, 2, 1], StackEnd::Complete, &mut fresh), first);
        assert_eq!(fresh.len(), 4);
        assert_eq!(fresh.last(), Some(&Node { id: second, parent: FIRST_NODE + 1, frame: 4 }));
    }

    #[test]
    fn end_of_a_walk_is_part_of_the_stack() {
        let (mut tree, mut fresh) = (StackTree::new(false), Vec::new());
        let complete = tree.intern(&[1], StackEnd::Complete, &mut fresh);
        let failed = tree.intern(&[1], StackEnd::ReadFailed, &mut fresh);
        assert_ne!(complete, failed);
        assert_eq!(tree.intern(&[], StackEnd::ReadFailed, &mut fresh), root_from_end(StackEnd::ReadFailed));
    }

    #[test]
    fn too_deep_stack_keeps_its_leaf_and_is_truncated() {
        let (mut tree, mut fresh) = (StackTree::new(false), Vec::new());
        let frames: Vec<u32> = (1..=MAX_FRAMES as u32 + 5).collect();
        tree.intern(&frames, StackEnd::Complete, &mut fresh);
        assert_eq!(fresh.len(), MAX_FRAMES);
        assert_eq!(fresh[0].parent, root_from_end(StackEnd::Truncated));
        assert_eq!(fresh.last().unwrap().frame, 1);
    }

    #[test]
    fn removed_stack_gets_new_nodes() {
        let (mut tree, mut fresh) = (StackTree::new(true), Vec::new());
        let leaf = tree.intern(&[2, 1], StackEnd::Complete, &mut fresh);
        assert_eq!(tree.uses.idle(1, 10), [leaf], "its parent is held");
        assert_eq!(tree.remove(leaf), Some(2));
        assert_eq!(tree.uses.idle(1, 10), [leaf - 1]);
        assert_eq!(tree.remove(leaf - 1), Some(1));
        fresh.clear();
        assert_eq!(tree.intern(&[2, 1], StackEnd::Complete, &mut fresh), leaf + 2);
        assert_eq!(fresh.len(), 2);
    }

    #[test]
    fn removed_text_is_written_again() {
        let mut texts = Texts::new(true);
        assert_eq!(texts.intern("a").0, 1);
        texts.remove(1);
        assert_eq!(texts.intern("a"), (2, Some("a".into())));
    }
}
