// SPDX-License-Identifier: Apache-2.0
//! The numbers of unwind rules: the rule that each one stands for, its users, and the numbers that are free.
//!
//! Handles numbers only; the caller writes the kernel's array.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use wallprof_model::Owner;
use wallprof_unwind::Rule;

use crate::bpf::constants as c;
use crate::code_tables::NotPlaced;

/// A walk that started before a rule lost its last table is over after this time.
const REST: Duration = Duration::from_secs(2);
/// Distinct rules that the files of one user may use: libLLVM, with a million rows, has 990.
pub(crate) const RULES_PER_USER: usize = c::MAX_RULES as usize / 8;

struct Slot {
    rule: Rule,
    tables: u32,
    /// Whether it waits in `resting`.
    is_resting: bool,
}

/// The rules of all tables in the kernel.
pub(crate) struct RuleNumbers {
    slots: Vec<Slot>,
    numbers: HashMap<Rule, u32>,
    /// Numbers that no table used at that time, the oldest first. Some may be in use again.
    resting: VecDeque<(Instant, u32)>,
    /// By user and number: how many of the user's tables use it.
    uses: HashMap<(u32, u32), u32>,
    used_by: HashMap<u32, usize>,
    capacity: usize,
}

impl RuleNumbers {
    pub(crate) fn new(capacity: usize) -> Self {
        // The map starts as zeros, which is this rule, in every table and here. It is never freed.
        let uncovered = Slot { rule: Rule::UNCOVERED, tables: 1, is_resting: false };
        RuleNumbers {
            slots: vec![uncovered],
            numbers: HashMap::from([(Rule::UNCOVERED, 0)]),
            resting: VecDeque::new(),
            uses: HashMap::new(),
            used_by: HashMap::new(),
            capacity,
        }
    }

    /// Numbers for a table's rules, in their order. `write` gets the new ones. On an error no number is used.
    pub(crate) fn take(
        &mut self,
        rules: &[Rule],
        owner: Owner,
        now: Instant,
        mut write: impl FnMut(u32, &Rule),
    ) -> Result<Vec<u32>, NotPlaced> {
        if self.used_by_after(rules, owner) > RULES_PER_USER {
            return Err(NotPlaced::OverQuota);
        }
        let mut numbers = Vec::with_capacity(rules.len());
        for rule in rules {
            let Some(number) = self.number(rule, now, &mut write) else {
                numbers.iter().for_each(|&number| self.release(number, now));
                return Err(NotPlaced::TooManyRules);
            };
            self.slots[number as usize].tables += 1;
            numbers.push(number);
        }
        self.count(&numbers, owner);
        Ok(numbers)
    }

    /// Frees the numbers of a table that `take` returned, once the table is gone from the kernel.
    pub(crate) fn give_back(&mut self, numbers: &[u32], owner: Owner, now: Instant) {
        for &number in numbers {
            self.release(number, now);
            self.discount(number, owner);
        }
    }

    /// The number of distinct rules that the owner's tables would use with these.
    fn used_by_after(&self, rules: &[Rule], owner: Owner) -> usize {
        let Owner::User(uid) = owner else { return 0 };
        let is_used = |rule: &&Rule| {
            self.numbers.get(rule).is_some_and(|&number| self.uses.contains_key(&(uid, number)))
        };
        let new: HashSet<&Rule> = rules.iter().filter(|rule| !is_used(rule)).collect();
        self.used_by.get(&uid).copied().unwrap_or(0) + new.len()
    }

    fn number(&mut self, rule: &Rule, now: Instant, write: &mut impl FnMut(u32, &Rule)) -> Option<u32> {
        if let Some(&number) = self.numbers.get(rule) {
            return Some(number);
        }
        let slot = Slot { rule: *rule, tables: 0, is_resting: false };
        let number = match self.rested(now) {
            Some(number) => {
                self.numbers.remove(&self.slots[number as usize].rule);
                self.slots[number as usize] = slot;
                number
            }
            None if self.slots.len() < self.capacity => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).ok()?
            }
            None => return None,
        };
        self.numbers.insert(*rule, number);
        write(number, rule);
        Some(number)
    }

    /// A number that no table and no walk uses any more.
    fn rested(&mut self, now: Instant) -> Option<u32> {
        while let Some(&(since, number)) = self.resting.front() {
            if now.duration_since(since) < REST {
                return None;
            }
            self.resting.pop_front();
            let slot = &mut self.slots[number as usize];
            slot.is_resting = false;
            if slot.tables == 0 {
                return Some(number);
            }
        }
        None
    }

    fn release(&mut self, number: u32, now: Instant) {
        let slot = &mut self.slots[number as usize];
        slot.tables -= 1;
        if slot.tables > 0 {
            return;
        }
        if slot.is_resting {
            // It was used again since: its rest starts again.
            self.resting.retain(|&(_, other)| other != number);
        }
        self.slots[number as usize].is_resting = true;
        self.resting.push_back((now, number));
    }

    fn count(&mut self, numbers: &[u32], owner: Owner) {
        let Owner::User(uid) = owner else { return };
        for &number in numbers {
            let uses = self.uses.entry((uid, number)).or_default();
            *uses += 1;
            *self.used_by.entry(uid).or_default() += usize::from(*uses == 1);
        }
    }

    fn discount(&mut self, number: u32, owner: Owner) {
        let Owner::User(uid) = owner else { return };
        let Some(uses) = self.uses.get_mut(&(uid, number)) else { return };
        *uses -= 1;
        if *uses > 0 {
            return;
        }
        self.uses.remove(&(uid, number));
        if let Some(used) = self.used_by.get_mut(&uid) {
            *used -= 1;
            if *used == 0 {
                self.used_by.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_unwind::RuleKind;

    const ALICE: Owner = Owner::User(1000);

    fn rules(offsets: std::ops::Range<i32>) -> Vec<Rule> {
        let rule = |offset| Rule { kind: RuleKind::Sp, cfa_offset: offset, ra: -1, ..Rule::default() };
        [Rule::UNCOVERED].into_iter().chain(offsets.map(rule)).collect()
    }

    /// Takes, and returns the numbers with how many were written.
    fn take(
        rules_of_all: &mut RuleNumbers,
        rules: &[Rule],
        owner: Owner,
        now: Instant,
    ) -> Result<(Vec<u32>, usize), NotPlaced> {
        let mut written = 0;
        rules_of_all.take(rules, owner, now, |_, _| written += 1).map(|numbers| (numbers, written))
    }

    #[test]
    fn equal_rules_share_a_number_and_uncovered_is_0() {
        let (mut all, now) = (RuleNumbers::new(100), Instant::now());
        let (first, written) = take(&mut all, &rules(0..10), ALICE, now).expect("they fit");
        assert_eq!((first[0], written), (0, 10));
        let (second, written) = take(&mut all, &rules(5..15), Owner::System, now).expect("they fit");
        assert_eq!((&second[1..6], written), (&first[6..], 5));
    }

    #[test]
    fn rules_of_removed_and_refused_tables_are_free_again_after_their_rest() {
        let (mut all, now) = (RuleNumbers::new(101), Instant::now());
        let (flood, _) = take(&mut all, &rules(0..100), Owner::System, now).expect("they fit");
        let other = rules(200..300);
        assert_eq!(take(&mut all, &other, Owner::System, now), Err(NotPlaced::TooManyRules));
        all.give_back(&flood, Owner::System, now);
        assert_eq!(take(&mut all, &other, Owner::System, now), Err(NotPlaced::TooManyRules), "walks go on");
        let later = now + REST;
        let too_many = rules(300..500);
        assert_eq!(take(&mut all, &too_many, Owner::System, later), Err(NotPlaced::TooManyRules));
        let (numbers, written) = take(&mut all, &other, Owner::System, later + REST).expect("all free again");
        assert_eq!((numbers.len(), written), (101, 100));
        assert!(numbers.iter().all(|&number| number <= 100));
    }

    #[test]
    fn rule_that_rests_is_used_again_as_it_is() {
        let (mut all, now) = (RuleNumbers::new(11), Instant::now());
        let (numbers, _) = take(&mut all, &rules(0..10), ALICE, now).expect("they fit");
        all.give_back(&numbers, ALICE, now);
        assert_eq!(take(&mut all, &rules(0..10), ALICE, now + REST), Ok((numbers.clone(), 0)));
        // In use, so none of them goes to another rule.
        let full = take(&mut all, &rules(20..21), ALICE, now + 2 * REST);
        assert_eq!(full, Err(NotPlaced::TooManyRules));
        all.give_back(&numbers, ALICE, now + 2 * REST);
        let early = take(&mut all, &rules(20..21), ALICE, now + 2 * REST);
        assert_eq!(early, Err(NotPlaced::TooManyRules), "the last use counts");
        assert!(take(&mut all, &rules(20..21), ALICE, now + 3 * REST).is_ok());
    }

    #[test]
    fn files_of_one_user_leave_rules_to_others() {
        let (mut all, now) = (RuleNumbers::new(c::MAX_RULES as usize), Instant::now());
        let quota = RULES_PER_USER as i32;
        let flood = rules(0..quota - 1);
        let (taken, _) = take(&mut all, &flood, ALICE, now).expect("within the quota");
        assert_eq!(take(&mut all, &rules(quota..quota + 1), ALICE, now), Err(NotPlaced::OverQuota));
        assert!(take(&mut all, &flood, ALICE, now).is_ok(), "the same rules cost nothing more");
        assert!(take(&mut all, &rules(quota..2 * quota - 1), Owner::User(1001), now).is_ok());
        assert!(take(&mut all, &rules(0..quota + 1), Owner::System, now).is_ok());
        all.give_back(&taken, ALICE, now);
        all.give_back(&taken, ALICE, now);
        assert!(
            take(&mut all, &rules(quota..quota + 1), ALICE, now).is_ok(),
            "what was given back counts no more"
        );
        assert_eq!(all.used_by.get(&1000), Some(&2));
    }
}
