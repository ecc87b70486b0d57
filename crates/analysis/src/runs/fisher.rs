// SPDX-License-Identifier: Apache-2.0
//! Fisher's exact test: whether something is there in more runs of one group than of the other.

/// The two-sided probability of a table at least as uneven, given its margins: `a` of `of_a` runs and `b` of
/// `of_b`. (Fisher, *Statistical Methods for Research Workers*, 21.02.)
pub(super) fn p_of_counts(a: usize, of_a: usize, b: usize, of_b: usize) -> f64 {
    let (with, all) = (a + b, of_a + of_b);
    let log_p = |a: usize| ln_choose(of_a, a) + ln_choose(of_b, with - a) - ln_choose(all, with);
    let found = log_p(a);
    let possible = with.saturating_sub(of_b)..=with.min(of_a);
    // Tables that are exactly as probable differ by rounding.
    possible.map(log_p).filter(|log_p| *log_p <= found + 1e-9).map(f64::exp).sum::<f64>().min(1.0)
}

fn ln_choose(of: usize, taken: usize) -> f64 {
    (0..taken).map(|at| ((of - at) as f64).ln() - ((at + 1) as f64).ln()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked by hand: C(10, 5) = 252, and both extremes are as uneven.
    #[test]
    fn counts_of_small_groups() {
        let near = |p: f64, expected: f64| assert!((p - expected).abs() < 1e-9, "{p} {expected}");
        near(p_of_counts(0, 5, 5, 5), 2.0 / 252.0);
        near(p_of_counts(1, 5, 5, 5), 10.0 / 210.0);
        near(p_of_counts(0, 3, 3, 3), 0.1);
        near(p_of_counts(2, 5, 2, 5), 1.0);
        near(p_of_counts(0, 5, 0, 5), 1.0);
    }
}
