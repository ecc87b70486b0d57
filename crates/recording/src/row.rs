//! Typed values out of rows. SQLite has one integer type and any column may hold anything: what does not
//! fit is an error that says so, never a wrapped number.

use rusqlite::types::{FromSql, FromSqlError, ValueRef};
use rusqlite::{Result, Row};

/// Times, sums and counts.
pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> Result<u64> {
    Ok(row.get::<_, Unsigned>(column)?.0)
}

pub(crate) fn optional_unsigned(row: &Row<'_>, column: usize) -> Result<Option<u64>> {
    Ok(row.get::<_, Option<Unsigned>>(column)?.map(|value| value.0))
}

/// All 64 bits: an address.
pub(crate) fn bits(row: &Row<'_>, column: usize) -> Result<u64> {
    Ok(row.get::<_, i64>(column)? as u64)
}

pub(crate) fn optional_bits(row: &Row<'_>, column: usize) -> Result<Option<u64>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(|value| value as u64))
}

/// A row id in a key, where 0 is none.
pub(crate) fn nonzero(row: &Row<'_>, column: usize) -> Result<Option<u32>> {
    let id: u32 = row.get(column)?;
    Ok((id != 0).then_some(id))
}

/// A value decoded from a code; the error names the code.
pub(crate) fn decoded<C: Into<i64>, T>(column: usize, code: C, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| rusqlite::Error::IntegralValueOutOfRange(column, code.into()))
}

struct Unsigned(u64);

impl FromSql for Unsigned {
    fn column_result(value: ValueRef<'_>) -> std::result::Result<Self, FromSqlError> {
        let signed = value.as_i64()?;
        u64::try_from(signed).map(Unsigned).map_err(|_| FromSqlError::OutOfRange(signed))
    }
}
