// SPDX-License-Identifier: Apache-2.0
//! Typed values out of rows. SQLite has one integer type, and any column may hold anything: a value that does
//! not fit is an error, never a wrapped number.
//!
//! Rows of which there are few are read by column name. Where there may be millions, [`columns`] makes the
//! statement and the positions out of one list.

use rusqlite::types::{FromSql, FromSqlError, Type, ValueRef};
use rusqlite::{Error, Result, Row, RowIndex};

/// A module with the columns of a SELECT: `LIST`, their text for the statement, and the position of each.
/// With `from other::END` they follow the columns of another module.
macro_rules! columns {
    ($(#[$doc:meta])* mod $name:ident $(from $other:ident::END)? { $first:ident = $first_sql:literal $(, $column:ident = $sql:literal)* $(,)? }) => {
        $(#[$doc])*
        mod $name {
            pub const LIST: &str = concat!($first_sql $(, ", ", $sql)*);
            const START: usize = 0 $(+ super::$other::END)?;

            #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "they become the constants below")]
            enum Position { $first $(, $column)*, END }

            pub const $first: usize = START + Position::$first as usize;
            $(pub const $column: usize = START + Position::$column as usize;)*
            #[allow(dead_code, reason = "few lists follow another")]
            pub const END: usize = START + Position::END as usize;
        }
    };
}
pub(crate) use columns;

/// Times, sums and counts.
pub(crate) fn unsigned(row: &Row<'_>, column: impl RowIndex) -> Result<u64> {
    Ok(row.get::<_, Unsigned>(column)?.0)
}

pub(crate) fn optional_unsigned(row: &Row<'_>, column: impl RowIndex) -> Result<Option<u64>> {
    Ok(row.get::<_, Option<Unsigned>>(column)?.map(|value| value.0))
}

/// All 64 bits: an address.
pub(crate) fn bits(row: &Row<'_>, column: impl RowIndex) -> Result<u64> {
    Ok(row.get::<_, i64>(column)?.cast_unsigned())
}

pub(crate) fn optional_bits(row: &Row<'_>, column: impl RowIndex) -> Result<Option<u64>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(i64::cast_unsigned))
}

/// A row id in a key, where 0 is none.
pub(crate) fn nonzero(row: &Row<'_>, column: impl RowIndex) -> Result<Option<u32>> {
    let id: u32 = row.get(column)?;
    Ok((id != 0).then_some(id))
}

/// A value that is stored as its code; the error names the code.
pub(crate) fn coded<T>(row: &Row<'_>, column: impl RowIndex, from_code: fn(u8) -> Option<T>) -> Result<T> {
    let code: u8 = row.get(column)?;
    from_code(code).ok_or(Error::IntegralValueOutOfRange(column.idx(row.as_ref())?, code.into()))
}

/// A value that is stored as its name.
pub(crate) fn named<T>(row: &Row<'_>, column: impl RowIndex, from_name: fn(&str) -> Option<T>) -> Result<T> {
    let name: String = row.get(column)?;
    match from_name(&name) {
        Some(value) => Ok(value),
        None => {
            let unknown = format!("unknown name {name}").into();
            Err(Error::FromSqlConversionFailure(column.idx(row.as_ref())?, Type::Text, unknown))
        }
    }
}

/// A value that was found by a number; the error names the number.
pub(crate) fn decoded<C: Into<i64>, T>(code: C, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| Error::IntegralValueOutOfRange(0, code.into()))
}

struct Unsigned(u64);

impl FromSql for Unsigned {
    fn column_result(value: ValueRef<'_>) -> std::result::Result<Self, FromSqlError> {
        let signed = value.as_i64()?;
        u64::try_from(signed).map(Unsigned).map_err(|_| FromSqlError::OutOfRange(signed))
    }
}

#[cfg(test)]
mod tests {
    columns! {
        mod of_two { ID = "stall.id", START_NS = "start_ns" }
    }

    columns! {
        mod rest from of_two::END { COMM = "comm", CPU = "cpu" }
    }

    #[test]
    fn one_list_is_the_statement_and_the_positions() {
        assert_eq!(of_two::LIST, "stall.id, start_ns");
        assert_eq!([of_two::ID, of_two::START_NS], [0, 1]);
        assert_eq!((rest::LIST, [rest::COMM, rest::CPU, rest::END]), ("comm, cpu", [2, 3, 4]));
    }
}
