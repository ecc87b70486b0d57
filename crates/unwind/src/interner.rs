// SPDX-License-Identifier: Apache-2.0
//! Numbers distinct rules in the order in which they are found.

use std::collections::HashMap;

use crate::rule::Rule;

/// The kernel side has this many for all files. A row has 24 bits for one.
const MAX_RULES: usize = 1 << 16;
/// The last rules, by a hash of their bits: most rows repeat one of a few. A power of two.
const RECENT: usize = 256;

pub(crate) struct Interner {
    rules: Vec<Rule>,
    numbers: HashMap<u128, u32>,
    recent: Vec<(u128, u32)>,
}

impl Interner {
    /// Rule 0 is no rule.
    pub(crate) const UNCOVERED: u32 = 0;
    pub(crate) const UNSUPPORTED: u32 = 1;

    pub(crate) fn new() -> Self {
        let mut interner = Interner {
            rules: vec![Rule::UNCOVERED],
            numbers: HashMap::from([(0, Interner::UNCOVERED)]),
            recent: vec![(0, Interner::UNCOVERED); RECENT],
        };
        interner.number(Rule::UNSUPPORTED);
        interner
    }

    /// `None` if there are no numbers left.
    #[inline]
    pub(crate) fn number(&mut self, rule: Rule) -> Option<u32> {
        let bits = u128::from_le_bytes(rule.to_bytes());
        let slot = &mut self.recent[slot_of(bits)];
        if slot.0 != bits {
            let next = self.rules.len();
            let number = match self.numbers.get(&bits) {
                Some(&number) => number,
                None if next == MAX_RULES => return None,
                None => {
                    self.rules.push(rule);
                    self.numbers.insert(bits, next as u32);
                    next as u32
                }
            };
            *slot = (bits, number);
        }
        Some(slot.1)
    }

    pub(crate) fn into_rules(self) -> Vec<Rule> {
        self.rules
    }
}

fn slot_of(bits: u128) -> usize {
    let mixed = ((bits ^ (bits >> 64)) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as usize % RECENT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::RuleKind;

    #[test]
    fn equal_rules_share_a_number_and_number_0_is_uncovered() {
        let mut interner = Interner::new();
        let rule = |offset| Rule { kind: RuleKind::Sp, cfa_offset: offset, ra: -1, ..Rule::default() };
        // More rules than the cache of recent ones has.
        let numbers: Vec<u32> =
            (0..1000).map(|offset| interner.number(rule(offset)).expect("a number")).collect();
        for (offset, &number) in numbers.iter().enumerate() {
            assert_eq!(interner.number(rule(offset as i32)), Some(number));
        }
        assert_eq!(interner.number(Rule::UNCOVERED), Some(Interner::UNCOVERED));
        assert_eq!(interner.number(Rule::UNSUPPORTED), Some(Interner::UNSUPPORTED));
        let rules = interner.into_rules();
        assert_eq!(rules.len(), 1002);
        assert_eq!(rules[0], Rule::UNCOVERED);
        assert_eq!(rules[numbers[7] as usize], rule(7));
    }
}
