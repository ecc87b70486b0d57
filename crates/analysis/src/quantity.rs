// SPDX-License-Identifier: Apache-2.0
//! A decimal number with a unit, read exactly: what durations and sizes have in common.

use std::error::Error;
use std::fmt;

use crate::timepoint::clipped;

/// Why a duration or size could not be read. The message names the text and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantityError {
    pub text: String,
    pub fact: QuantityFact,
    /// `duration` or `size`.
    pub what: &'static str,
    /// Examples of what can be written.
    pub examples: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantityFact {
    NumberMissing,
    UnitUnknown,
    TooLarge,
    /// Not a whole number of nanoseconds or bytes.
    TooFine,
}

impl fmt::Display for QuantityError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fact = match self.fact {
            QuantityFact::NumberMissing => "does not start with a number",
            QuantityFact::UnitUnknown => "has an unknown unit",
            QuantityFact::TooLarge => "is too large",
            QuantityFact::TooFine => "is finer than can be measured",
        };
        let text = clipped(self.text.as_str());
        write!(out, "the {} {text:?} {fact}: write it like {}", self.what, self.examples)
    }
}

impl Error for QuantityError {}

/// The syntax of a kind of quantity: unit names with their factors, and the factor of a bare number.
pub(crate) struct Units {
    pub what: &'static str,
    pub examples: &'static str,
    pub bare: u64,
    pub table: &'static [(&'static str, u64)],
}

/// `text` in the smallest unit, exactly.
pub(crate) fn parse(text: &str, units: &Units) -> Result<u64, QuantityError> {
    let error = |fact| QuantityError { text: text.into(), fact, what: units.what, examples: units.examples };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let factor = factor_from_unit(unit.trim_start(), units).ok_or(QuantityFact::UnitUnknown);
    // A text without a number has no unit to complain about.
    if !number.contains(|c: char| c.is_ascii_digit()) {
        return Err(error(QuantityFact::NumberMissing));
    }
    factor.and_then(|factor| scale(number, factor)).map_err(error)
}

fn factor_from_unit(unit: &str, units: &Units) -> Option<u64> {
    if unit.is_empty() {
        return Some(units.bare);
    }
    units.table.iter().find(|(name, _)| *name == unit).map(|&(_, factor)| factor)
}

/// `number` (digits with at most one dot) times `factor`.
fn scale(number: &str, factor: u64) -> Result<u64, QuantityFact> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') {
        return Err(QuantityFact::NumberMissing);
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| QuantityFact::TooLarge)? };
    let whole = whole.checked_mul(factor).ok_or(QuantityFact::TooLarge)?;
    whole.checked_add(scale_fraction(fraction, factor)?).ok_or(QuantityFact::TooLarge)
}

/// `0.fraction` times `factor`, which must come out whole.
fn scale_fraction(fraction: &str, factor: u64) -> Result<u64, QuantityFact> {
    let digits = fraction.trim_end_matches('0');
    if digits.is_empty() {
        return Ok(0);
    }
    let numerator: u128 = digits.parse().map_err(|_| QuantityFact::TooFine)?;
    let divisor = u32::try_from(digits.len()).ok().and_then(|places| 10u128.checked_pow(places));
    let product = numerator.checked_mul(u128::from(factor)).ok_or(QuantityFact::TooFine)?;
    match divisor {
        Some(divisor) if product % divisor == 0 => Ok((product / divisor) as u64),
        _ => Err(QuantityFact::TooFine),
    }
}
