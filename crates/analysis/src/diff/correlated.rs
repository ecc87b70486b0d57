// SPDX-License-Identifier: Apache-2.0
//! Numbers in a row that resemble their neighbours hold less information than independent ones.
//!
//! They count as the number of independent ones that says as much (Bayley and Hammersley 1946), as if each
//! depended on the one before; the correlation is corrected for its bias in short series (Marriott and Pope
//! 1954).

/// Numbers can resemble each other so much that together they hold little more information than one.
const MOST_CORRELATED: f64 = 0.95;

/// The correlation of neighbours on both sides, each given as what it is beyond its mean: they are taken to
/// drift alike, as each alone is too short to know. Never negative: that would make noise smaller.
pub(crate) fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let (mut numbers, mut weighted) = (0.0, 0.0);
    for residuals in [a, b] {
        let squares = products(residuals, 0);
        if squares > 0.0 {
            let count = residuals.len() as f64;
            // Measured from their own mean, n independent numbers seem correlated by -1/n.
            weighted += products(residuals, 1) / squares * count + 1.0;
            numbers += count;
        }
    }
    if numbers == 0.0 { 0.0 } else { (weighted / numbers).clamp(0.0, MOST_CORRELATED) }
}

/// How much larger the variance of their mean is than that of independent ones.
pub(crate) fn inflation(correlation: f64) -> f64 {
    (1.0 + correlation) / (1.0 - correlation)
}

/// Degrees of freedom of a variance known from `count` of them; about itself it says more than about the
/// mean.
pub(crate) fn degrees(count: f64, correlation: f64) -> f64 {
    let square = correlation * correlation;
    ((count - 1.0) * (1.0 - square) / (1.0 + square)).max(1.0)
}

/// The sum of the products of each with the one `lag` after it.
pub(crate) fn products(residuals: &[f64], lag: usize) -> f64 {
    residuals.iter().zip(residuals.iter().skip(lag)).map(|(left, right)| left * right).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_correlated_and_jumps_are_not() {
        let drifting = [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0];
        let jumping = [-3.0, 3.0, -2.0, 2.0, -1.0, 1.0, 0.0];
        assert!(correlation(&drifting, &drifting) > 0.6);
        assert_eq!(correlation(&jumping, &jumping), 0.0);
        assert_eq!(correlation(&[], &[0.0; 4]), 0.0);
        assert!(correlation(&[1.0; 9], &[1.0; 9]) <= MOST_CORRELATED);
    }

    #[test]
    fn correlated_numbers_count_for_fewer() {
        assert_eq!((inflation(0.0), inflation(0.5)), (1.0, 3.0));
        assert_eq!((degrees(11.0, 0.0), degrees(11.0, 0.5)), (10.0, 6.0));
        assert_eq!(degrees(1.0, 0.9), 1.0);
    }
}
