// SPDX-License-Identifier: Apache-2.0
//! The values of a row.

use std::borrow::Cow;

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
pub enum Value<'v> {
    Null,
    Integer(i64),
    /// Borrowed where the caller has it: a table keeps a text of many rows once.
    Text(Cow<'v, str>),
    Flag(bool),
    Real(f64),
    Time(i64),
}

impl Value<'_> {
    /// Above the largest signed number it is that.
    pub fn number(number: impl TryInto<i64>) -> Value<'static> {
        Value::Integer(number.try_into().unwrap_or(i64::MAX))
    }

    /// The same value without a copy of its text.
    pub(crate) fn borrowed(&self) -> Value<'_> {
        match self {
            Value::Text(text) => Value::Text(Cow::Borrowed(text)),
            Value::Null => Value::Null,
            Value::Integer(number) => Value::Integer(*number),
            Value::Flag(flag) => Value::Flag(*flag),
            Value::Real(number) => Value::Real(*number),
            Value::Time(time) => Value::Time(*time),
        }
    }

    /// Memory that the value would take by itself.
    pub(crate) fn bytes(&self) -> usize {
        let text = if let Value::Text(text) = self { text.len() } else { 0 };
        size_of::<Value<'_>>() + text
    }

    /// Infinities and what is no number are NULL.
    pub fn real(number: f64) -> Value<'static> {
        if number.is_finite() { Value::Real(number) } else { Value::Null }
    }

    /// Nanoseconds since the Unix epoch.
    pub fn time(epoch_ns: u64) -> Value<'static> {
        Value::Time((epoch_ns / 1_000) as i64)
    }
}

impl<'v> From<&'v str> for Value<'v> {
    fn from(text: &'v str) -> Value<'v> {
        Value::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Value::Text(Cow::Owned(text))
    }
}

impl From<bool> for Value<'_> {
    fn from(flag: bool) -> Self {
        Value::Flag(flag)
    }
}

impl<'v, T: Into<Value<'v>>> From<Option<T>> for Value<'v> {
    fn from(value: Option<T>) -> Value<'v> {
        value.map_or(Value::Null, Into::into)
    }
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Value::number(number)
    }
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Value::number(number)
    }
}
