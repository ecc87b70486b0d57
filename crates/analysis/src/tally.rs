// SPDX-License-Identifier: Apache-2.0
//! Weights by key, with a bound on the number of keys: what the stalls of a group share.

use std::hash::Hash;

use wallprof_model::FastMap;

/// Distinct keys kept; further ones only count in the total.
const MOST_KEYS: usize = 256;

/// Sums of weights by key.
#[derive(Clone, Debug)]
pub struct Tally<K> {
    weights: FastMap<K, u64>,
    total: u64,
}

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Tally { weights: FastMap::default(), total: 0 }
    }
}

impl<K: Eq + Hash + Ord> Tally<K> {
    pub fn add(&mut self, key: K, weight: u64) {
        self.total = self.total.saturating_add(weight);
        if self.weights.len() < MOST_KEYS || self.weights.contains_key(&key) {
            let sum = self.weights.entry(key).or_default();
            *sum = sum.saturating_add(weight);
        }
    }

    /// As [`Tally::add`], for a key that is most often known.
    pub fn add_ref(&mut self, key: &K, weight: u64)
    where
        K: Clone,
    {
        match self.weights.get_mut(key) {
            Some(sum) => {
                *sum = sum.saturating_add(weight);
                self.total = self.total.saturating_add(weight);
            }
            None => self.add(key.clone(), weight),
        }
    }

    /// All weight ever added, that of keys beyond the bound included.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Distinct keys seen, at most the bound.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Whether it has as many keys as it keeps.
    pub fn is_full(&self) -> bool {
        self.weights.len() >= MOST_KEYS
    }

    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// Heaviest first, equal ones in the order of their keys.
    pub fn ranked(&self) -> Vec<(&K, u64)> {
        let mut ranked: Vec<(&K, u64)> = self.weights.iter().map(|(key, &weight)| (key, weight)).collect();
        ranked.sort_by(|(key_a, a), (key_b, b)| b.cmp(a).then_with(|| key_a.cmp(key_b)));
        ranked
    }

    /// The heaviest key.
    pub fn top(&self) -> Option<(&K, u64)> {
        self.weights
            .iter()
            .map(|(key, &weight)| (key, weight))
            .max_by(|(key_a, a), (key_b, b)| a.cmp(b).then_with(|| key_b.cmp(key_a)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_by_weight_then_key() {
        let mut tally = Tally::default();
        for (key, weight) in [("b", 2), ("a", 2), ("c", 1), ("c", 4)] {
            tally.add(key, weight);
        }
        assert_eq!(tally.ranked(), [(&"c", 5), (&"a", 2), (&"b", 2)]);
        assert_eq!(tally.top(), Some((&"c", 5)));
        assert!(tally.total() == 9 && !tally.is_full());
        assert_eq!(Tally::<u8>::default().top(), None);
    }

    #[test]
    fn keys_are_bounded_and_the_total_is_not() {
        let mut tally = Tally::default();
        (0..10_000u32).for_each(|key| tally.add(key, 1));
        tally.add(0, 5);
        assert!(tally.len() == MOST_KEYS && tally.is_full());
        assert_eq!(tally.total(), 10_005);
        assert_eq!(tally.top(), Some((&0, 6)));
    }
}
