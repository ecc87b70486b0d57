// SPDX-License-Identifier: Apache-2.0
//! Durations as users write them: `50us`, `1.5ms`, `30s`, `2m`; a bare number is seconds. And as users read
//! them, in the one format of every text: `50.0 µs`, `1.21 s`.

use crate::quantity::{QuantityError, Units, parse};

const UNITS: Units = Units {
    what: "duration",
    examples: "50us, 1.5ms, 30s or 2m (a bare number is seconds)",
    bare: 1_000_000_000,
    table: &[
        ("ns", 1),
        ("us", 1_000),
        ("µs", 1_000),
        ("μs", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("min", 60_000_000_000),
        ("h", 3_600_000_000_000),
        ("d", 86_400_000_000_000),
    ],
};

/// Nanoseconds of a written duration.
///
/// # Errors
/// A text that is not a number with a known unit, is above `u64::MAX` ns (584 years), or is not a
/// whole number of nanoseconds.
pub fn ns_from_duration(text: &str) -> Result<u64, QuantityError> {
    parse(text, &UNITS)
}

/// A duration in at most 7 columns, with three significant digits: `812 ns`, `12.3 µs`, `1.00 ms`, `9.99 s`,
/// `1,234 s`, `12.5 h`. `micro` is the unit of microseconds: `µs`, or `us` where only ASCII can be shown.
pub fn text_from_ns(ns: u64, micro: &str) -> String {
    if ns < 1_000 {
        return format!("{ns} ns");
    }
    for (unit, name) in [(1_000, micro), (1_000_000, "ms"), (1_000_000_000, "s")] {
        if let Some(digits) = three_digits(ns, unit) {
            return format!("{digits} {name}");
        }
    }
    let seconds = ns.saturating_add(500_000_000) / 1_000_000_000;
    if seconds < 10_000 {
        return format!("{} s", with_commas(seconds));
    }
    for (unit, name) in [(3_600_000_000_000, "h"), (86_400_000_000_000, "d")] {
        if let Some(digits) = three_digits(ns, unit) {
            return format!("{digits} {name}");
        }
    }
    format!("{} d", with_commas(seconds / 86_400))
}

/// `ns` in `unit` with three significant digits, rounded; `None` from 1000 units on.
fn three_digits(ns: u64, unit: u64) -> Option<String> {
    [(10, 2usize), (100, 1), (1_000, 0)].into_iter().find_map(|(limit, decimals)| {
        let scale = 10u128.pow(decimals as u32);
        let rounded = (u128::from(ns) * scale + u128::from(unit / 2)) / u128::from(unit);
        let digits = match decimals {
            0 => rounded.to_string(),
            _ => format!("{}.{:0decimals$}", rounded / scale, rounded % scale),
        };
        (rounded < limit * scale).then_some(digits)
    })
}

/// A number of at most six digits.
fn with_commas(number: u64) -> String {
    match number {
        ..1_000 => number.to_string(),
        _ => format!("{},{:03}", number / 1_000, number % 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::QuantityFact;

    #[test]
    fn times_have_three_digits_and_round_over_the_unit() {
        for (ns, shown) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 µs"),
            (12_345, "12.3 µs"),
            (50_000, "50.0 µs"),
            (999_499, "999 µs"),
            (999_500, "1.00 ms"),
            (9_995_000, "10.0 ms"),
            (62_149_999, "62.1 ms"),
            (10_000_000_000, "10.0 s"),
            (1_234_500_000_000, "1,235 s"),
            (36_000_000_000_000, "10.0 h"),
            (u64::MAX, "213,503 d"),
        ] {
            assert_eq!(text_from_ns(ns, "µs"), shown);
        }
        assert_eq!(text_from_ns(50_000, "us"), "50.0 us");
    }

    #[test]
    fn units_and_fractions_are_exact() {
        for (text, ns) in [
            ("50us", 50_000),
            ("50 µs", 50_000),
            ("1.5ms", 1_500_000),
            ("30s", 30_000_000_000),
            ("30", 30_000_000_000),
            ("0.1", 100_000_000),
            (".25s", 250_000_000),
            ("2m", 120_000_000_000),
            ("1h", 3_600_000_000_000),
            ("7ns", 7),
            ("1.000000000s", 1_000_000_000),
            ("0", 0),
            (" 3ms ", 3_000_000),
            ("18446744073709551615ns", u64::MAX),
        ] {
            assert_eq!(ns_from_duration(text), Ok(ns), "{text}");
        }
    }

    #[test]
    fn errors_name_the_fact() {
        for (text, fact) in [
            ("", QuantityFact::NumberMissing),
            ("ms", QuantityFact::NumberMissing),
            ("-1s", QuantityFact::NumberMissing),
            (".", QuantityFact::NumberMissing),
            ("1.2.3s", QuantityFact::NumberMissing),
            ("1fortnight", QuantityFact::UnitUnknown),
            ("1MS", QuantityFact::UnitUnknown),
            ("0.5ns", QuantityFact::TooFine),
            ("18446744073709551616ns", QuantityFact::TooLarge),
            ("99999999999h", QuantityFact::TooLarge),
        ] {
            assert_eq!(ns_from_duration(text).unwrap_err().fact, fact, "{text}");
        }
        let long = format!("0.{}1s", "0".repeat(5_000));
        assert_eq!(ns_from_duration(&long).unwrap_err().fact, QuantityFact::TooFine);
        assert_eq!(
            ns_from_duration("1x").unwrap_err().to_string(),
            "the duration \"1x\" has an unknown unit: write it like 50us, 1.5ms, 30s or 2m (a bare number is seconds)"
        );
    }
}
