// SPDX-License-Identifier: Apache-2.0
//! Dividing a whole number in given proportions without losing any of it.

/// Replaces `weights` by parts of `total` in the same proportions, which add up to `total` exactly: every
/// part is rounded down, and what is left goes one by one to those that lost most (the method of largest
/// remainders). Where all weights are 0 they stay so.
pub fn apportion(weights: &mut [u64], total: u64) {
    let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    if sum == 0 {
        return;
    }
    let mut left = total;
    let mut remainders = Vec::with_capacity(weights.len());
    for (at, weight) in weights.iter_mut().enumerate() {
        let product = u128::from(*weight) * u128::from(total);
        // At most `total`, as no weight is above the sum.
        *weight = (product / sum) as u64;
        left -= *weight;
        remainders.push((product % sum, at));
    }
    remainders.sort_unstable_by(|(a, a_at), (b, b_at)| b.cmp(a).then(a_at.cmp(b_at)));
    for (_, at) in remainders.into_iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
        weights[at] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn apportioned<const N: usize>(mut weights: [u64; N], total: u64) -> [u64; N] {
        apportion(&mut weights, total);
        weights
    }

    #[test]
    fn the_largest_remainder_is_served_first_and_then_the_earlier_one() {
        assert_eq!(apportioned([1, 1, 1], 100), [34, 33, 33]);
        assert_eq!(apportioned([10, 20, 70], 9), [1, 2, 6]);
        assert_eq!(apportioned([0, 5], 7), [0, 7]);
        assert_eq!(apportioned([3, 3], 0), [0, 0]);
        assert_eq!(apportioned([0, 0], 9), [0, 0]);
    }

    proptest! {
        #[test]
        fn sums_are_exact_and_no_part_is_off_by_one_or_more(
            mut weights in proptest::collection::vec(prop_oneof![0..1_000u64, any::<u64>()], 1..50),
            total in prop_oneof![0..1_000u64, any::<u64>()]
        ) {
            let before = weights.clone();
            let sum: u128 = before.iter().map(|weight| u128::from(*weight)).sum();
            prop_assume!(sum > 0);
            apportion(&mut weights, total);
            prop_assert_eq!(weights.iter().map(|weight| u128::from(*weight)).sum::<u128>(), u128::from(total));
            for (part, weight) in weights.iter().zip(before) {
                // |part/total - weight/sum| < 1/total, without divisions: total * weight fits, part * sum may not.
                let exact = u128::from(weight) * u128::from(total) / sum;
                prop_assert!(u128::from(*part).abs_diff(exact) <= 1);
            }
        }
    }
}
