// SPDX-License-Identifier: Apache-2.0
//! Finds a node's child by its frame: a hash table of node numbers, four bytes each. The nodes themselves
//! hold the keys.

/// An empty place, and one whose node was removed.
const FREE: u32 = u32::MAX;
const GONE: u32 = u32::MAX - 1;
const SMALLEST: usize = 8;

#[derive(Clone, Debug, Default)]
pub(super) struct ChildIndex {
    /// A power of two of places, at most three quarters full; none before the first node.
    places: Vec<u32>,
    /// Places that are not free.
    taken: usize,
    nodes: usize,
}

impl ChildIndex {
    /// The node with this hash for which `is_it` is true.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let mut at = self.start(hash)?;
        loop {
            match self.places[at] {
                FREE => return None,
                GONE => {}
                node if is_it(node) => return Some(node),
                _ => {}
            }
            at = self.after(at);
        }
    }

    /// Adds a node. `hash_of` returns a node's hash.
    pub(super) fn insert(&mut self, node: u32, hash_of: impl Fn(u32) -> u64) {
        if (self.taken + 1) * 4 > self.places.len() * 3 {
            self.grow(&hash_of);
        }
        self.put(node, hash_of(node));
        self.nodes += 1;
    }

    /// Removes a node with this hash, if it is in the table.
    pub(super) fn remove(&mut self, hash: u64, node: u32) {
        let Some(mut at) = self.start(hash) else { return };
        while self.places[at] != FREE {
            if self.places[at] == node {
                self.places[at] = GONE;
                self.nodes -= 1;
                return;
            }
            at = self.after(at);
        }
    }

    fn put(&mut self, node: u32, hash: u64) {
        let Some(mut at) = self.start(hash) else { return };
        while self.places[at] != FREE && self.places[at] != GONE {
            at = self.after(at);
        }
        self.taken += usize::from(self.places[at] == FREE);
        self.places[at] = node;
    }

    /// Grows to twice the number of nodes. Removed nodes leave their places.
    fn grow(&mut self, hash_of: &impl Fn(u32) -> u64) {
        let places = (self.nodes * 2 + 1).next_power_of_two().max(SMALLEST);
        let old = std::mem::replace(&mut self.places, vec![FREE; places]);
        self.taken = 0;
        old.into_iter().filter(|&node| node != FREE && node != GONE).for_each(|node| {
            self.put(node, hash_of(node));
        });
    }

    #[inline]
    fn start(&self, hash: u64) -> Option<usize> {
        let mask = self.places.len().checked_sub(1)?;
        Some(hash as usize & mask)
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few different hashes, so that many nodes share one.
    fn hash(node: u32) -> u64 {
        u64::from(node % 37) * 0x9e37_79b9
    }

    #[test]
    fn index_holds_inserted_nodes_until_they_are_removed() {
        let mut index = ChildIndex::default();
        assert_eq!(index.find(hash(5), |_| true), None);
        index.remove(hash(5), 5);
        let mut inside = std::collections::BTreeSet::new();
        let mut number = 1u32;
        for _ in 0..20_000 {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let node = (number >> 16) % 500;
            if inside.remove(&node) {
                index.remove(hash(node), node);
            } else {
                inside.insert(node);
                index.insert(node, hash);
            }
            let other = (number >> 8) % 500;
            let found = index.find(hash(other), |node| node == other);
            assert_eq!(found, inside.contains(&other).then_some(other));
        }
        assert!(index.places.len() <= 2_048, "{} places", index.places.len());
    }
}
