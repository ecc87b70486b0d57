// SPDX-License-Identifier: Apache-2.0
//! Student's t distribution: how probable a deviation is when it is known only from a few windows. The
//! formulas are those of `statrs`.

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// Above this, the inverse in `statrs` stops before it converges: at 10⁶ degrees it is off by 6e-5, at 10⁷
/// by 0.07. The normal distribution is off by 1e-5 here, and by less for more degrees.
const MOST_DEGREES: f64 = 1e5;

/// The probability of a |t| at least this large by chance, with `degrees` of freedom. NaN for a NaN, and
/// without a positive number of degrees.
pub(crate) fn two_sided_p(t: f64, degrees: f64) -> f64 {
    match StudentsT::new(0.0, 1.0, degrees) {
        Ok(student) if !t.is_nan() => 2.0 * student.sf(t.abs()),
        _ => f64::NAN,
    }
}

/// The |t| that is exceeded with probability `p` by chance: the inverse of [`two_sided_p`].
pub(crate) fn critical_t(p: f64, degrees: f64) -> f64 {
    if degrees > MOST_DEGREES {
        return -Normal::standard().inverse_cdf(p / 2.0);
    }
    StudentsT::new(0.0, 1.0, degrees).map_or(f64::NAN, |student| -student.inverse_cdf(p / 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With one and two degrees of freedom the distribution has a closed form.
    #[test]
    fn closed_forms() {
        for t in [0.1f64, 0.5, 1.0, 3.0, 12.0, 300.0] {
            let cauchy = 1.0 - 2.0 / std::f64::consts::PI * t.atan();
            assert!((two_sided_p(t, 1.0) - cauchy).abs() < 1e-12, "{t}");
            let two = 1.0 - t / (2.0 + t * t).sqrt();
            assert!((two_sided_p(t, 2.0) - two).abs() < 1e-12, "{t}");
        }
    }

    /// The 97.5 % column of the printed tables.
    #[test]
    fn printed_tables() {
        for (degrees, t) in [(1.0, 12.706), (4.0, 2.776), (10.0, 2.228), (30.0, 2.042), (1e6, 1.960)] {
            assert!((critical_t(0.05, degrees) - t).abs() < 6e-4, "{degrees}");
        }
    }

    #[test]
    fn critical_values_are_exceeded_as_often_as_they_say() {
        for degrees in [1.0, 1.7, 3.0, 16.0, 1e3] {
            for p in [0.5, 0.05, 1e-3, 1e-6] {
                assert!(
                    (two_sided_p(critical_t(p, degrees), degrees) / p - 1.0).abs() < 1e-9,
                    "{p} {degrees}"
                );
            }
        }
    }

    /// A recording of a season has ten million windows.
    #[test]
    fn critical_values_change_smoothly_up_to_many_degrees() {
        let steps = [1e4, MOST_DEGREES, MOST_DEGREES * 1.01, 1e6, 1e7, 1e300];
        for pair in steps.windows(2) {
            let [fewer, more] = [pair[0], pair[1]].map(|degrees| critical_t(0.05, degrees));
            assert!((fewer - more).abs() < 3e-4, "{pair:?}: {fewer} and {more}");
        }
    }

    #[test]
    fn limits() {
        assert_eq!(two_sided_p(0.0, 5.0), 1.0);
        assert_eq!(two_sided_p(-3.0, 5.0), two_sided_p(3.0, 5.0));
        assert_eq!(two_sided_p(f64::INFINITY, 5.0), 0.0);
        assert!(two_sided_p(1e9, 3.0) < 1e-20);
        for [t, degrees] in [[f64::NAN, 5.0], [1.0, f64::NAN], [1.0, 0.0], [1.0, -1.0]] {
            assert!(two_sided_p(t, degrees).is_nan(), "{t} {degrees}");
        }
        assert!(critical_t(0.05, f64::NAN).is_nan());
    }
}
