// SPDX-License-Identifier: Apache-2.0
//! Welch's t-test: two numbers, each with its variance and how well that is known.

use super::student::{critical_t, two_sided_p};

/// The variance of a number, and its degrees of freedom.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Variance {
    pub of: f64,
    pub degrees: f64,
}

/// The distribution of the difference of two independent numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Welch(Variance);

impl Welch {
    /// Satterthwaite's degrees of freedom.
    pub fn new(a: Variance, b: Variance) -> Self {
        let of = a.of + b.of;
        let spread = a.of.powi(2) / a.degrees + b.of.powi(2) / b.degrees;
        // Underflow makes 0/0 of two tiny variances; the smaller side's degrees are the least there can be.
        let degrees = match of.powi(2) / spread {
            degrees if degrees.is_finite() => degrees,
            _ => a.degrees.min(b.degrees),
        };
        Welch(Variance { of, degrees })
    }

    pub fn variance(&self) -> f64 {
        self.0.of
    }

    /// The probability of a difference at least this large between equals.
    pub fn p(&self, difference: f64) -> f64 {
        match difference {
            0.0 => 1.0,
            _ if self.0.of == 0.0 => 0.0,
            _ => two_sided_p(difference.abs() / self.0.of.sqrt(), self.0.degrees),
        }
    }

    /// The true difference lies within this of the measured one, with probability `confidence`.
    pub fn margin(&self, confidence: f64) -> f64 {
        match self.0.of {
            0.0 => 0.0,
            of => critical_t(1.0 - confidence, self.0.degrees) * of.sqrt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variance(of: f64, degrees: f64) -> Variance {
        Variance { of, degrees }
    }

    /// Worked by hand from Satterthwaite's formula.
    #[test]
    fn degrees_lie_between_the_smaller_side_and_both_together() {
        let welch = Welch::new(variance(0.5, 4.0), variance(5.0 / 3.0, 3.0));
        let degrees = (0.5 + 5.0f64 / 3.0).powi(2) / (0.25 / 4.0 + 25.0 / 27.0);
        assert_eq!(welch.p(3.0), two_sided_p(3.0 / welch.variance().sqrt(), degrees));
        assert!((3.0..7.0).contains(&degrees));
        assert_eq!(Welch::new(variance(2.0, 5.0), variance(2.0, 5.0)).0, variance(4.0, 10.0));
    }

    #[test]
    fn constants_are_certain() {
        let certain = Welch::new(variance(0.0, 4.0), variance(0.0, 4.0));
        assert_eq!((certain.p(0.0), certain.p(1e-9), certain.margin(0.95)), (1.0, 0.0, 0.0));
    }

    #[test]
    fn tiny_variances_do_not_underflow_to_nothing() {
        let tiny = Welch::new(variance(1e-200, 4.0), variance(1e-200, 6.0));
        assert_eq!(tiny.0.degrees, 4.0);
        assert!(tiny.margin(0.95) > 0.0);
    }
}
