//! Texts and stacks get their row numbers here, once each: what is already in the file is not written again.

use std::collections::HashMap;
use std::sync::Arc;

use wallprof_model::StackEnd;

use crate::schema::{FIRST_NODE, root_from_end};

/// Longer texts are cut: no path is longer (PATH_MAX is 4096), and a demangled name this long says no more.
pub(crate) const MAX_TEXT_BYTES: usize = 8192;

/// Deeper stacks lose their outermost frames. Walkers keep 127 frames at most; imported stacks may be anything.
pub(crate) const MAX_FRAMES: usize = 2048;

/// Texts by row id, counted from 1.
#[derive(Default)]
pub(crate) struct Texts {
    ids: HashMap<Arc<str>, u32>,
}

impl Texts {
    /// The row of `text`, and the row's content where it is new.
    pub fn intern(&mut self, text: &str) -> (u32, Option<Arc<str>>) {
        let text = clipped(text);
        if let Some(&id) = self.ids.get(text) {
            return (id, None);
        }
        let id = self.ids.len() as u32 + 1;
        let shared: Arc<str> = text.into();
        self.ids.insert(Arc::clone(&shared), id);
        (id, Some(shared))
    }
}

/// At most [`MAX_TEXT_BYTES`] of `text`, ending at a character.
pub(crate) fn clipped(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A node as it goes into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub id: u32,
    pub parent: u32,
    pub frame: u32,
}

/// The prefix tree of all stacks, outermost frame first.
#[derive(Default)]
pub(crate) struct StackTree {
    children: HashMap<(u32, u32), u32>,
}

impl StackTree {
    /// The node of the stack with these frame rows, leaf first; new nodes go to `fresh`.
    pub fn intern(&mut self, frames: &[u32], end: StackEnd, fresh: &mut Vec<Node>) -> u32 {
        let (frames, end) = match frames.get(..MAX_FRAMES) {
            Some(innermost) if frames.len() > MAX_FRAMES => (innermost, StackEnd::Truncated),
            _ => (frames, end),
        };
        let mut parent = root_from_end(end);
        for &frame in frames.iter().rev() {
            let next = FIRST_NODE + self.children.len() as u32;
            parent = *self.children.entry((parent, frame)).or_insert_with(|| {
                fresh.push(Node { id: next, parent, frame });
                next
            });
        }
        parent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_gets_one_row() {
        let mut texts = Texts::default();
        assert_eq!(texts.intern("a"), (1, Some("a".into())));
        assert_eq!(texts.intern(""), (2, Some("".into())));
        assert_eq!(texts.intern("a"), (1, None));
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let long = "ä".repeat(MAX_TEXT_BYTES);
        assert_eq!(clipped(&long).len(), MAX_TEXT_BYTES);
        let shifted = format!("x{long}");
        assert_eq!(clipped(&shifted).len(), MAX_TEXT_BYTES - 1);
    }

    #[test]
    fn stacks_share_their_outer_frames() {
        let (mut tree, mut fresh) = (StackTree::default(), Vec::new());
        let first = tree.intern(&[3, 2, 1], StackEnd::Complete, &mut fresh);
        let second = tree.intern(&[4, 2, 1], StackEnd::Complete, &mut fresh);
        assert_eq!(fresh.len(), 4);
        assert_eq!(tree.intern(&[3, 2, 1], StackEnd::Complete, &mut fresh), first);
        assert_eq!(fresh.len(), 4);
        assert_eq!(fresh.last(), Some(&Node { id: second, parent: FIRST_NODE + 1, frame: 4 }));
    }

    #[test]
    fn how_a_walk_ended_is_part_of_the_stack() {
        let (mut tree, mut fresh) = (StackTree::default(), Vec::new());
        let complete = tree.intern(&[1], StackEnd::Complete, &mut fresh);
        let failed = tree.intern(&[1], StackEnd::ReadFailed, &mut fresh);
        assert_ne!(complete, failed);
        assert_eq!(tree.intern(&[], StackEnd::ReadFailed, &mut fresh), root_from_end(StackEnd::ReadFailed));
    }

    #[test]
    fn a_stack_too_deep_keeps_its_leaf_and_says_so() {
        let (mut tree, mut fresh) = (StackTree::default(), Vec::new());
        let frames: Vec<u32> = (1..=MAX_FRAMES as u32 + 5).collect();
        tree.intern(&frames, StackEnd::Complete, &mut fresh);
        assert_eq!(fresh.len(), MAX_FRAMES);
        assert_eq!(fresh[0].parent, root_from_end(StackEnd::Truncated));
        assert_eq!(fresh.last().unwrap().frame, 1);
    }
}
