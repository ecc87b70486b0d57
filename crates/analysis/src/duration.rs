//! Durations as users write them: `50us`, `1.5ms`, `30s`, `2m`; a bare number is seconds.

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::QuantityFact;

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
    fn what_is_wrong_is_said() {
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
