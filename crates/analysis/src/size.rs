// SPDX-License-Identifier: Apache-2.0
//! Sizes as users write them: `64MiB`, `1.5G`, `512kB`; a bare number is bytes.

use crate::quantity::{QuantityError, Units, parse};

/// Units with an `i`, and single letters as perf has them, are powers of 1024; `kB`, `MB`, `GB` of 1000.
const UNITS: Units = Units {
    what: "size",
    examples: "64MiB, 1.5GiB or 512kB (a bare number is bytes)",
    bare: 1,
    table: &[
        ("B", 1),
        ("k", 1 << 10),
        ("K", 1 << 10),
        ("KiB", 1 << 10),
        ("M", 1 << 20),
        ("MiB", 1 << 20),
        ("G", 1 << 30),
        ("GiB", 1 << 30),
        ("T", 1 << 40),
        ("TiB", 1 << 40),
        ("kB", 1_000),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
    ],
};

/// Bytes of a written size.
///
/// # Errors
/// A text that is not a number with a known unit, is above `u64::MAX`, or is not a whole number of bytes.
pub fn bytes_from_size(text: &str) -> Result<u64, QuantityError> {
    parse(text, &UNITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::QuantityFact;

    #[test]
    fn binary_and_decimal_units() {
        assert_eq!(bytes_from_size("64MiB"), Ok(64 << 20));
        assert_eq!(bytes_from_size("1.5G"), Ok(3 << 29));
        assert_eq!(bytes_from_size("512kB"), Ok(512_000));
        assert_eq!(bytes_from_size("4096"), Ok(4096));
        assert_eq!(bytes_from_size("0.5B").unwrap_err().fact, QuantityFact::TooFine);
        assert_eq!(bytes_from_size("64mib").unwrap_err().fact, QuantityFact::UnitUnknown);
        assert_eq!(bytes_from_size("99999999999TiB").unwrap_err().fact, QuantityFact::TooLarge);
    }
}
