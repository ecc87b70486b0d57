// SPDX-License-Identifier: Apache-2.0
//! Knots of the graph of who waits for whom: groups that wait for each other and for nobody else. Everything
//! else waits for them in the end, so they bound the throughput (wPerf, OSDI 2018).

use std::collections::{BTreeMap, BTreeSet};

/// An edge that carries less than this part of all waiting is left out: every thread waits a little for
/// everything.
const SMALLEST_PART: u64 = 100;

/// The knots of a graph of (waiter, culprit, ns), those first for which most is waited. A group for which
/// itself alone waits is a knot only if others wait for it.
pub(super) fn knots(edges: impl Iterator<Item = (u32, u32, u64)>) -> Vec<Vec<u32>> {
    let mut sums: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for (waiter, culprit, ns) in edges {
        let sum = sums.entry((waiter, culprit)).or_default();
        *sum = sum.saturating_add(ns);
    }
    let total = sums.values().fold(0u64, |sum, ns| sum.saturating_add(*ns));
    sums.retain(|_, ns| *ns >= (total / SMALLEST_PART).max(1));
    let mut next: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for &(waiter, culprit) in sums.keys() {
        next.entry(waiter).or_default().insert(culprit);
        next.entry(culprit).or_default();
    }
    let mut found: Vec<(u64, Vec<u32>)> = Vec::new();
    for component in components(&next) {
        let leaves = component.iter().any(|node| next[node].iter().any(|to| !component.contains(to)));
        let into = sums.iter().filter(|((from, to), _)| component.contains(to) && from != to);
        let waited_ns = into.fold(0u64, |sum, (_, ns)| sum.saturating_add(*ns));
        if !leaves && waited_ns > 0 {
            found.push((waited_ns, component.into_iter().collect()));
        }
    }
    found.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    found.into_iter().map(|(_, knot)| knot).collect()
}

/// The strongly connected components: Kosaraju's two searches, without recursion.
fn components(next: &BTreeMap<u32, BTreeSet<u32>>) -> Vec<BTreeSet<u32>> {
    let mut before: BTreeMap<u32, BTreeSet<u32>> = next.keys().map(|node| (*node, BTreeSet::new())).collect();
    for (from, all) in next {
        for to in all {
            before.entry(*to).or_default().insert(*from);
        }
    }
    let mut seen = BTreeSet::new();
    let mut order = Vec::new();
    for &node in next.keys() {
        order.extend(search(node, next, &mut seen));
    }
    let mut seen = BTreeSet::new();
    let mut components = Vec::new();
    for &node in order.iter().rev() {
        let component: BTreeSet<u32> = search(node, &before, &mut seen).into_iter().collect();
        if !component.is_empty() {
            components.push(component);
        }
    }
    components
}

/// The nodes that are reached from `start` and not in `seen`, in the order in which they are left.
fn search(start: u32, next: &BTreeMap<u32, BTreeSet<u32>>, seen: &mut BTreeSet<u32>) -> Vec<u32> {
    let mut left = Vec::new();
    if !seen.insert(start) {
        return left;
    }
    let mut stack = vec![(start, next[&start].iter())];
    while let Some((node, following)) = stack.last_mut() {
        match following.next() {
            Some(&to) => {
                if seen.insert(to) {
                    stack.push((to, next[&to].iter()));
                }
            }
            None => {
                left.push(*node);
                stack.pop();
            }
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(edges: &[(u32, u32, u64)]) -> Vec<Vec<u32>> {
        knots(edges.iter().copied())
    }

    #[test]
    fn last_group_of_a_chain_is_a_knot() {
        assert_eq!(of(&[(1, 2, 50), (2, 3, 40)]), [[3]]);
        assert_eq!(of(&[(1, 2, 50), (1, 3, 90)]), [[3], [2]], "most waited for first");
    }

    #[test]
    fn groups_that_wait_for_each_other_are_one_knot() {
        assert_eq!(of(&[(1, 2, 50), (2, 3, 40), (3, 2, 40)]), [[2, 3]]);
        assert_eq!(of(&[(1, 2, 50), (2, 1, 40), (2, 4, 30)]), [[4]], "a way out of the circle");
    }

    #[test]
    fn small_edges_and_waits_for_oneself_make_no_knot() {
        assert_eq!(of(&[(1, 2, 5_000), (2, 3, 10)]), [[2]]);
        assert_eq!(of(&[(1, 1, 50)]), Vec::<Vec<u32>>::new());
        assert_eq!(of(&[]), Vec::<Vec<u32>>::new());
    }
}
