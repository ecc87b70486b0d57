// SPDX-License-Identifier: Apache-2.0
//! The values of a row.

use std::sync::Arc;

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Integer,
    Text,
    Flag,
    /// A number with a fraction.
    Real,
    /// Microseconds since the Unix epoch, UTC: Spark reads no nanoseconds.
    Time,
}

/// One value. Every column may be NULL.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Integer(i64),
    /// Shared: most texts are in many rows.
    Text(Arc<str>),
    Flag(bool),
    Real(f64),
    Time(i64),
}

impl Value {
    /// Above the largest signed number it is that.
    pub fn number(number: impl TryInto<i64>) -> Value {
        Value::Integer(number.try_into().unwrap_or(i64::MAX))
    }

    /// What rows are ordered by, NULL first.
    pub(crate) fn by_order(&self) -> Option<(i64, &str)> {
        match self {
            Value::Integer(number) | Value::Time(number) => Some((*number, "")),
            Value::Text(text) => Some((0, text)),
            Value::Flag(_) | Value::Real(_) | Value::Null => None,
        }
    }

    /// Memory that the value takes.
    pub(crate) fn bytes(&self) -> usize {
        let text = if let Value::Text(text) = self { text.len() } else { 0 };
        size_of::<Value>() + text
    }

    /// Infinities and what is no number are NULL.
    pub fn real(number: f64) -> Value {
        if number.is_finite() { Value::Real(number) } else { Value::Null }
    }

    /// Nanoseconds since the Unix epoch.
    pub fn time(epoch_ns: u64) -> Value {
        Value::Time((epoch_ns / 1_000) as i64)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text.into())
    }
}

impl From<Arc<str>> for Value {
    fn from(text: Arc<str>) -> Value {
        Value::Text(text)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Value {
        Value::Flag(flag)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::number(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Value {
        Value::number(number)
    }
}
