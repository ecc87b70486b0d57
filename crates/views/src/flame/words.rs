// SPDX-License-Identifier: Apache-2.0
//! The text of a box: its name, its time and its share of the whole.

use wallprof_analysis::weights::{Node, Role, Tree, Weights};

use crate::frame_name::KERNEL_SUFFIX;
use crate::style::Style;
use crate::units::{count, counted, time};
use crate::xml::xml_text;

/// Characters of a name; templates may be endless.
const LONGEST_NAME: usize = 500;

/// Pixels of all boxes together, and of a character, before the script adapts the picture to its window.
const BOXES_WIDTH: f64 = 1180.0;
const CHARACTER_WIDTH: f64 = 12.0 * 0.59;

/// The words of the boxes of one picture. A box that is `None` is the one that all others stand on.
pub(super) struct Words {
    all: String,
    total: u64,
    is_time: bool,
}

impl Words {
    pub fn new(weights: &Weights, tree: &Tree) -> Self {
        Words {
            all: counted(weights.threads.len() as u64, "thread", "threads"),
            total: tree.total(),
            is_time: weights.view.is_time(),
        }
    }

    /// `handle_tick (12.3 ms, 4.56 %)`. The script removes the last parentheses to label the box.
    pub fn title(&self, node: Option<&Node>) -> String {
        let weight = node.map_or(self.total, |node| node.weight);
        format!("{} ({}, {})", self.name(node), shown_weight(weight, self.is_time), share(weight, self.total))
    }

    /// As much of the name as a box of this share of the width has letters for.
    pub fn label(&self, node: Option<&Node>, width_percent: f64) -> String {
        let letters = (width_percent / 100.0 * BOXES_WIDTH / CHARACTER_WIDTH) as usize;
        let name = self.name(node);
        if name.chars().count() < letters {
            return name;
        }
        if letters < 3 { String::new() } else { name.chars().take(letters - 2).chain("..".chars()).collect() }
    }

    fn name(&self, node: Option<&Node>) -> String {
        match node {
            None => self.all.clone(),
            Some(node) if node.role == Role::Kernel => xml_text(&node.name, LONGEST_NAME) + KERNEL_SUFFIX,
            Some(node) => xml_text(&node.name, LONGEST_NAME),
        }
    }
}

/// `12.3 ms`, or a plain number.
pub(super) fn shown_weight(weight: u64, is_time: bool) -> String {
    if is_time { time(weight, &Style::plain()) } else { count(weight) }
}

/// `4.56 %`; a share above 0 that rounds to 0 is `<0.01 %`.
fn share(part: u64, whole: u64) -> String {
    let parts = u128::from(part) * 10_000 + u128::from(whole) / 2;
    let per_myriad = parts.checked_div(u128::from(whole)).unwrap_or(0);
    if per_myriad == 0 && part > 0 {
        return "<0.01 %".into();
    }
    format!("{}.{:02} %", per_myriad / 100, per_myriad % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Words {
        Words { all: "2 threads".into(), total: 1_000_000_000, is_time: true }
    }

    fn node(name: &str, role: Role, weight: u64) -> Node {
        Node { name: name.into(), role, waking: false, parent: None, weight, own: weight, state: None }
    }

    #[test]
    fn titles_say_how_long_and_how_much_of_all() {
        let tick = node("tick(int)", Role::User, 45_600_000);
        assert_eq!(words().title(Some(&tick)), "tick(int) (45.6 ms, 4.56 %)");
        let futex = node("futex_wait", Role::Kernel, 300);
        assert_eq!(words().title(Some(&futex)), "futex_wait_[k] (300 ns, <0.01 %)");
        assert_eq!(words().title(None), "2 threads (1.00 s, 100.00 %)");
        let counts = Words { is_time: false, ..words() };
        assert_eq!(counts.title(None), "2 threads (1,000,000,000, 100.00 %)");
    }

    #[test]
    fn labels_fit_their_box() {
        let tick = node("handle_tick", Role::User, 1);
        let label = |percent| words().label(Some(&tick), percent);
        assert_eq!(label(100.0), "handle_tick");
        assert_eq!(label(4.0), "hand..");
        assert_eq!(label(1.5), "");
        assert_eq!(words().label(Some(&node(&"x".repeat(10_000), Role::User, 1)), 100.0).len(), 166);
    }

    #[test]
    fn shares_of_nothing_are_nothing() {
        assert_eq!(share(0, 0), "0.00 %");
        assert_eq!(share(u64::MAX, u64::MAX), "100.00 %");
    }
}
