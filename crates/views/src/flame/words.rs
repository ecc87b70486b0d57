// SPDX-License-Identifier: Apache-2.0
//! The words of a box: its name, its time and its share of the whole.

use wallprof_analysis::weights::{Node, Role, Tree, Weights};

use crate::boxes::LONGEST_NAME;
use crate::frame_name::KERNEL_SUFFIX;
use crate::style::Style;
use crate::units::{count, counted, time};

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

    /// ` (12.3 ms, 4.56 %)`.
    pub fn about(&self, node: Option<&Node>) -> String {
        let weight = node.map_or(self.total, |node| node.weight);
        format!(" ({}, {})", shown_weight(weight, self.is_time), share(weight, self.total))
    }

    /// The name, with the mark of kernel functions.
    pub fn name(&self, node: Option<&Node>) -> String {
        let Some(node) = node else { return self.all.clone() };
        if node.role != Role::Kernel {
            return node.name.clone();
        }
        // The mark must not be cut off with the end of a long name.
        let kept: String = node.name.chars().take(LONGEST_NAME - KERNEL_SUFFIX.len()).collect();
        kept + KERNEL_SUFFIX
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
    fn boxes_say_how_long_and_how_much_of_all() {
        let titled = |words: &Words, node: Option<&Node>| words.name(node) + &words.about(node);
        let tick = node("tick(int)", Role::User, 45_600_000);
        assert_eq!(titled(&words(), Some(&tick)), "tick(int) (45.6 ms, 4.56 %)");
        let futex = node("futex_wait", Role::Kernel, 300);
        assert_eq!(titled(&words(), Some(&futex)), "futex_wait_[k] (300 ns, <0.01 %)");
        assert_eq!(titled(&words(), None), "2 threads (1.00 s, 100.00 %)");
        let counts = Words { is_time: false, ..words() };
        assert_eq!(titled(&counts, None), "2 threads (1,000,000,000, 100.00 %)");
        let endless = node(&"x".repeat(10_000), Role::Kernel, 1);
        assert!(words().name(Some(&endless)).ends_with("x_[k]"));
    }

    #[test]
    fn shares_of_nothing_are_nothing() {
        assert_eq!(share(0, 0), "0.00 %");
        assert_eq!(share(u64::MAX, u64::MAX), "100.00 %");
    }
}
