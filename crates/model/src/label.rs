// SPDX-License-Identifier: Apache-2.0
//! Labels of a recording: what its user says about it, such as `version=1.4`.
//!
//! They are bounded, because each run of a fleet carries them into every table and every page.

use std::collections::BTreeMap;

/// By key.
pub type Labels = BTreeMap<String, String>;

/// Limit on the labels of a recording.
pub const MAX_LABELS: usize = 32;
/// Limit on a key, bytes.
pub const MAX_LABEL_KEY: usize = 64;
/// Limit on a value, bytes.
pub const MAX_LABEL_VALUE: usize = 256;

/// Why a text is no label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelError {
    /// The text has no `=` between key and value.
    HasNoEqualsSign,
    /// A key begins with a letter or `_`, and has letters, digits, `_`, `.` and `-`.
    KeyIsNoName,
    /// The key has more than [`MAX_LABEL_KEY`] bytes.
    KeyIsTooLong,
    /// The value has more than [`MAX_LABEL_VALUE`] bytes.
    ValueIsTooLong,
}

/// Splits `KEY=VALUE`. The value may be empty and may have more equals signs.
///
/// # Errors
/// See [`LabelError`].
pub fn label_from_text(text: &str) -> Result<(String, String), LabelError> {
    let (key, value) = text.split_once('=').ok_or(LabelError::HasNoEqualsSign)?;
    let starts_well = key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !starts_well || !key.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)) {
        return Err(LabelError::KeyIsNoName);
    }
    if key.len() > MAX_LABEL_KEY {
        return Err(LabelError::KeyIsTooLong);
    }
    if value.len() > MAX_LABEL_VALUE {
        return Err(LabelError::ValueIsTooLong);
    }
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_may_hold_anything_short() {
        let label = |key: &str, value: &str| Ok((key.to_owned(), value.to_owned()));
        assert_eq!(label_from_text("version=1.4"), label("version", "1.4"));
        assert_eq!(label_from_text("a.b-c_1=x=y'; DROP\n"), label("a.b-c_1", "x=y'; DROP\n"));
        assert_eq!(label_from_text("empty="), label("empty", ""));
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, error) in [
            ("version".to_owned(), LabelError::HasNoEqualsSign),
            ("=1".to_owned(), LabelError::KeyIsNoName),
            ("1a=1".to_owned(), LabelError::KeyIsNoName),
            ("a b=1".to_owned(), LabelError::KeyIsNoName),
            (format!("{}=1", "k".repeat(65)), LabelError::KeyIsTooLong),
            (format!("k={}", "v".repeat(10_000)), LabelError::ValueIsTooLong),
        ] {
            assert_eq!(label_from_text(&text), Err(error), "{text:.20}");
        }
    }
}
