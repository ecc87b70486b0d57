//! Student's t distribution: how probable a deviation is when it is known only from a few windows.
//!
//! By the regularised incomplete beta function and its continued fraction (DLMF 8.17.22, evaluated by Lentz's
//! method); the logarithm of the gamma function by Stirling's series (DLMF 5.11.1).

/// The probability of a |t| at least this large by chance, with `degrees` of freedom.
pub(crate) fn two_sided_p(t: f64, degrees: f64) -> f64 {
    if t.is_infinite() {
        return 0.0;
    }
    incomplete_beta(degrees / (degrees + t * t), degrees / 2.0, 0.5)
}

/// The |t| that is exceeded with probability `p` by chance: the inverse of [`two_sided_p`].
///
/// By Newton's method from 0: the probability falls ever more slowly, so that no step goes too far.
pub(crate) fn critical_t(p: f64, degrees: f64) -> f64 {
    let mut t = 0.0;
    for _ in 0..200 {
        let step = (two_sided_p(t, degrees) - p) / (2.0 * density(t, degrees));
        t += step;
        if step <= 1e-12 * t {
            break;
        }
    }
    t
}

/// The derivative of the probability of a smaller t.
fn density(t: f64, degrees: f64) -> f64 {
    let log_front = ln_gamma(f64::midpoint(degrees, 1.0)) - ln_gamma(degrees / 2.0);
    let log_tail = f64::midpoint(degrees, 1.0) * (t * t / degrees).ln_1p();
    (log_front - log_tail).exp() / (degrees * std::f64::consts::PI).sqrt()
}

/// I_x(a, b).
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    // The fraction converges fast on one side of the mean; the other side follows by symmetry.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let log_front = ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p();
    log_front.exp() / (a * beta_fraction(x, a, b))
}

/// 1 + d1/(1 + d2/(1 + …)).
fn beta_fraction(x: f64, a: f64, b: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let (mut value, mut c, mut d) = (1.0, 1.0, 0.0);
    for step in 1..500u32 {
        let m = f64::from(step / 2);
        let coefficient = if step % 2 == 0 {
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        } else {
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        };
        d = 1.0 / not_zero(1.0 + coefficient * d, TINY);
        c = not_zero(1.0 + coefficient / c, TINY);
        value *= c * d;
        if (c * d - 1.0).abs() < 1e-15 {
            break;
        }
    }
    value
}

fn not_zero(value: f64, tiny: f64) -> f64 {
    if value.abs() < tiny { tiny } else { value }
}

/// ln Γ(x) for x > 0: shifted up to where the series is exact.
fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut shift) = (x, 0.0);
    while x < 12.0 {
        shift += x.ln();
        x += 1.0;
    }
    let inverse = 1.0 / x;
    let square = inverse * inverse;
    let series = inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0)));
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - shift
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * b.abs().max(1e-300)
    }

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

    #[test]
    fn factorials() {
        for (x, factorial) in [(1.0f64, 1.0f64), (2.0, 1.0), (5.0, 24.0), (11.0, 3_628_800.0)] {
            assert!((ln_gamma(x) - factorial.ln()).abs() < 1e-12);
        }
        assert!(close(ln_gamma(0.5), std::f64::consts::PI.sqrt().ln()));
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

    #[test]
    fn limits() {
        assert_eq!(two_sided_p(0.0, 5.0), 1.0);
        assert_eq!(two_sided_p(f64::INFINITY, 5.0), 0.0);
        assert!(two_sided_p(1e9, 3.0) < 1e-20);
    }
}
