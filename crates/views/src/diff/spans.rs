// SPDX-License-Identifier: Apache-2.0
//! The slowest spans minus those in the middle as a flame graph, in nanoseconds a span.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use wallprof_analysis::spans::{Cause, KindTail};
use wallprof_analysis::weights::Frame;
use wallprof_model::profile::ResolvedStack;

use super::colour::colour;
use crate::boxes::{Caption, Drawn, NARROWEST, draw};
use crate::frame_name::{marked_name, shown_comm};
use crate::style::Style;
use crate::units::{counted, percent, time};

const LEGEND: &str = "Width: time of a slow span beyond one in the middle. Deeper red: a larger part of it.";
/// Boxes of a picture.
const MOST_NODES: usize = 100_000;

/// Writes the kinds that have a difference.
///
/// # Errors
/// The error of `out`.
pub fn tail_svg(out: &mut impl Write, kinds: &[KindTail]) -> io::Result<()> {
    let mut tree = Tree::default();
    let (mut compared, mut less_ns) = (0, 0u64);
    for kind in kinds {
        let Some(group) = &kind.difference else { continue };
        compared += 1;
        for cause in &group.causes {
            match u64::try_from(cause.ns) {
                Ok(ns) => tree.add(path_of(kind, cause), ns),
                Err(_) => less_ns = less_ns.saturating_add(cause.ns.unsigned_abs()),
            }
        }
    }
    let style = Style::plain();
    let mut notes = Vec::new();
    if compared < kinds.len() {
        let left_out = counted((kinds.len() - compared) as u64, "kind", "kinds");
        notes.push(format!("too few slow spans to compare: {left_out}"));
    }
    if less_ns > 0 {
        notes.push(format!("less than in the middle and not drawn: {}", time(less_ns, &style)));
    }
    if tree.is_full {
        notes.push(format!("stacks beyond {MOST_NODES} frames are cut"));
    }
    let title = format!("Why the slow spans are slow: {} a span", time(tree.whole_ns(), &style));
    let lines = vec![LEGEND.into(), notes.join("; ")];
    draw(out, &Caption { title, lines, footer: Vec::new() }, &tree.boxes())
}

/// From the kind to the state, the root of the stack first.
fn path_of(kind: &KindTail, cause: &Cause) -> Vec<String> {
    let mut path = vec![format!("{} of {}", kind.kind, shown_comm(&kind.process))];
    for stack in [&cause.user, &cause.kernel].into_iter().flatten() {
        path.extend(names(stack));
    }
    path.extend(cause.meaning.as_ref().map(|meaning| format!("[{meaning}]")));
    path.push(format!("[{}]", cause.state.label()));
    path
}

fn names(stack: &ResolvedStack) -> Vec<String> {
    let mut names = Vec::new();
    for frame in stack.frames.iter().rev() {
        let frame = Frame::Code(Arc::clone(frame));
        names.extend(frame.functions().iter().map(|function| marked_name(function).into_owned()));
    }
    names
}

/// The frames, parents before children.
#[derive(Default)]
struct Tree {
    nodes: Vec<Node>,
    /// By parent and name, so that equal differences give equal pictures. Roots have no parent.
    children: BTreeMap<(Option<usize>, String), usize>,
    is_full: bool,
}

struct Node {
    name: String,
    ns: u64,
    level: usize,
}

impl Tree {
    fn add(&mut self, path: Vec<String>, ns: u64) {
        let mut parent = None;
        for (level, name) in path.into_iter().enumerate() {
            let key = (parent, name);
            let at = match self.children.get(&key) {
                Some(&at) => at,
                None if self.nodes.len() >= MOST_NODES => {
                    self.is_full = true;
                    return;
                }
                None => {
                    self.nodes.push(Node { name: key.1.clone(), ns: 0, level });
                    self.children.insert(key, self.nodes.len() - 1);
                    self.nodes.len() - 1
                }
            };
            self.nodes[at].ns = self.nodes[at].ns.saturating_add(ns);
            parent = Some(at);
        }
    }

    fn children(&self, parent: Option<usize>) -> impl Iterator<Item = usize> + '_ {
        let from = self.children.range((parent, String::new())..);
        from.take_while(move |((of, _), _)| *of == parent).map(|(_, at)| *at)
    }

    fn whole_ns(&self) -> u64 {
        self.children(None).fold(0, |sum: u64, at| sum.saturating_add(self.nodes[at].ns))
    }

    fn boxes(&self) -> Vec<Drawn> {
        let whole_ns = self.whole_ns().max(1);
        let share = |ns: u64| ns as f64 / whole_ns as f64;
        let style = Style::plain();
        let mut drawn = Vec::new();
        let mut left = vec![(None, 0.0)];
        while let Some((parent, start)) = left.pop() {
            let mut x = start;
            for at in self.children(parent) {
                let Node { name, ns, level } = &self.nodes[at];
                let width = share(*ns);
                if width >= NARROWEST {
                    let about = format!(": {} a span, {}", time(*ns, &style), percent(*ns, whole_ns));
                    let (name, fill) = (name.clone(), colour(width, true));
                    drawn.push(Drawn { x, width, level: *level, name, about, fill });
                    left.push((Some(at), x));
                }
                x += width;
            }
        }
        drawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(names: &str) -> Vec<String> {
        names.split(';').map(str::to_owned).collect()
    }

    #[test]
    fn frames_lie_on_their_callers_and_are_as_wide_as_their_time() {
        let mut tree = Tree::default();
        tree.add(path("order of server;main;take<Lock>;[blocked:lock]"), 600);
        tree.add(path("order of server;main;read;[blocked:disk]"), 300);
        tree.add(path("order of server;[cpu]"), 100);
        assert_eq!(tree.whole_ns(), 1_000);
        let boxes = tree.boxes();
        let of = |name: &str| boxes.iter().find(|drawn| drawn.name == name).expect(name);
        assert_eq!((of("main").x, of("main").width, of("main").level), (0.1, 0.9, 1));
        let (read, take) = (of("read"), of("take<Lock>"));
        assert_eq!((read.x, read.width), (0.1, 0.3));
        assert!((take.x - 0.4).abs() < 1e-9 && (take.width - 0.6).abs() < 1e-9, "{take:?}");
        assert_eq!(boxes.len(), 7);
        assert!(take.about.contains("600 ns a span"), "{}", take.about);
    }
}
