// SPDX-License-Identifier: Apache-2.0
//! The boxes of a differential flame graph: the place, the width and the change of each frame.

use wallprof_analysis::diff::{Comparison, NodeChange, NodeId};

use crate::boxes::NARROWEST;

/// A frame of B, in shares of the whole width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Box {
    pub node: NodeId,
    pub x: f64,
    pub width: f64,
    /// 0 for the box of all threads.
    pub level: usize,
    pub found: NodeChange,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Picture {
    /// Parents first.
    pub boxes: Vec<Box>,
    /// Frames of B that are too narrow.
    pub pruned: usize,
    /// Stacks of A that B does not have, which have no width: their number, and their ns per second in A.
    pub went: (usize, f64),
    /// The largest difference of a frame that is news.
    pub largest_ns: f64,
}

impl Picture {
    pub fn of(comparison: &Comparison) -> Self {
        let mut picture = Picture::default();
        let whole = comparison.node(NodeId::ALL).map_or(0.0, |node| node.change.b_ns);
        let children = children(comparison);
        let mut left = vec![NodeId::ALL];
        let mut at = vec![0.0; comparison.tree.len()];
        while let Some(node) = left.pop() {
            let Some(found) = comparison.node(node) else { continue };
            let is_leaf = children[index(node)].is_empty();
            if is_leaf && found.change.went() {
                picture.went = (picture.went.0 + 1, picture.went.1 + found.change.a_ns);
            }
            let width = if whole > 0.0 { found.change.b_ns / whole } else { 0.0 };
            let x: f64 = at[index(node)];
            match width {
                _ if width >= NARROWEST => picture.add(comparison, Box { node, x, width, level: 0, found }),
                _ if width > 0.0 => picture.pruned += 1,
                _ => {}
            }
            let mut next = x;
            for &child in &children[index(node)] {
                at[index(child)] = next;
                next += comparison.node(child).map_or(0.0, |node| node.change.b_ns) / whole.max(1e-9);
                left.push(child);
            }
        }
        picture
    }

    fn add(&mut self, comparison: &Comparison, frame: Box) {
        if frame.found.is_news {
            self.largest_ns = self.largest_ns.max(frame.found.change.difference_ns().abs());
        }
        self.boxes.push(Box { level: level(comparison, frame.node), ..frame });
    }
}

fn index(node: NodeId) -> usize {
    node.number() as usize
}

fn level(comparison: &Comparison, node: NodeId) -> usize {
    if node == NodeId::ALL { 0 } else { comparison.tree.node(node).depth as usize + 1 }
}

/// The children of every node in the order of their names, so that equal recordings give equal pictures.
fn children(comparison: &Comparison) -> Vec<Vec<NodeId>> {
    let tree = &comparison.tree;
    let mut children = vec![Vec::new(); tree.len()];
    for id in tree.ids().skip(1).filter(|id| comparison.node(*id).is_some()) {
        children[index(tree.node(id).parent)].push(id);
    }
    for siblings in &mut children {
        siblings.sort_by_cached_key(|id| (tree.group(*id).cloned(), tree.step(*id).cloned()));
    }
    children
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_analysis::diff::{Collector, Floor, Tree, compare};
    use wallprof_analysis::weights::View;
    use wallprof_model::event::LedgerDelta;
    use wallprof_model::profile::{RecordingInfo, Thread};
    use wallprof_model::{EpochSecond, MonoNs, Reason, ThreadInfo, ThreadKey};

    fn thread() -> Thread {
        let info = ThreadInfo::new(ThreadKey(1), (1, "app"), (1, "t"));
        let ledger = LedgerDelta::new(info.key, EpochSecond(0));
        Thread { info, start: MonoNs(0), end: MonoNs(0), ledger, latency: Default::default(), stalls: 0 }
    }

    /// Ten seconds of a thread that is blocked for these ms of each.
    fn compared(a: &[(Reason, u64)], b: &[(Reason, u64)]) -> Comparison {
        let mut tree = Tree::default();
        let [a, b] = [a, b].map(|waits| {
            let mut collector = Collector::new(&[thread()]);
            for second in 0..10 {
                let mut row = LedgerDelta::new(ThreadKey(1), EpochSecond(second));
                row.wall_ns = 1_000_000_000;
                waits.iter().for_each(|(reason, ms)| {
                    row.blocked_ns[usize::from(reason.code())] = ms * 1_000_000;
                });
                collector.ledger(&row);
            }
            collector.finish(&RecordingInfo::default(), &mut tree)
        });
        compare(tree, &a, &b, &View::Wall, Floor::default())
    }

    #[test]
    fn boxes_lie_within_their_parents_and_fill_the_width() {
        let comparison = compared(&[(Reason::Lock, 20)], &[(Reason::Lock, 45), (Reason::Disk, 135)]);
        let picture = Picture::of(&comparison);
        let root = picture.boxes[0];
        assert_eq!((root.node, root.x, root.width, root.level), (NodeId::ALL, 0.0, 1.0, 0));
        for frame in &picture.boxes[1..] {
            let parent = comparison.tree.node(frame.node).parent;
            let above = picture.boxes.iter().find(|other| other.node == parent).unwrap();
            assert!(frame.x >= above.x - 1e-9 && frame.x + frame.width <= above.x + above.width + 1e-9);
            assert_eq!(frame.level, above.level + 1);
        }
        let widths: Vec<f64> =
            picture.boxes.iter().filter(|frame| frame.level == 3).map(|frame| frame.width).collect();
        assert_eq!(widths.iter().sum::<f64>(), 1.0);
        assert!(widths.contains(&0.25) && picture.largest_ns == 160e6);
    }

    #[test]
    fn frames_that_are_not_drawn_are_counted() {
        let comparison = compared(&[(Reason::Lock, 20)], &[(Reason::Disk, 135)]);
        assert_eq!(Picture::of(&comparison).went, (1, 20e6));
        let nothing = Picture::of(&compared(&[(Reason::Lock, 20)], &[]));
        assert!(nothing.boxes.is_empty());
    }
}
