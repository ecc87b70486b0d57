// SPDX-License-Identifier: Apache-2.0
//! One Parquet file: rows are gathered by column, and written as row groups.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{
    Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as PhysicalType, ZstdLevel,
};
use parquet::column::writer::ColumnWriterImpl;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::{
    SerializedFileWriter, SerializedPageWriter, SerializedRowGroupWriter, TrackedWrite,
};
use parquet::schema::types::{ColumnDescPtr, ColumnPath, Type, TypePtr};

use crate::schema::{COUNTER_VALUE, Table};
use crate::value::{Kind, Value};

/// Writes the rows of one table to `W`.
pub(crate) struct TableFile<W: Write + Send> {
    table: &'static Table,
    writer: SerializedFileWriter<W>,
    /// A dictionary, the values as they are, their differences. Every reader has all three.
    encodings: [WriterPropertiesPtr; 3],
    columns: Vec<Vec<Value>>,
}

impl<W: Write + Send> TableFile<W> {
    pub fn new(table: &'static Table, out: W) -> Result<Self, ParquetError> {
        let level = ZstdLevel::try_new(3)?;
        let properties = |encoding: Option<Encoding>| {
            let mut properties = WriterProperties::builder();
            if let Some(encoding) = encoding {
                properties = properties.set_dictionary_enabled(false).set_encoding(encoding);
            }
            let properties = properties
                .set_compression(Compression::ZSTD(level))
                .set_statistics_enabled(EnabledStatistics::Chunk)
                // Its bits are written as an integer, and an integer's order is not that of negative numbers.
                .set_column_statistics_enabled(ColumnPath::from(COUNTER_VALUE), EnabledStatistics::None)
                .set_created_by(concat!("wallprof ", env!("CARGO_PKG_VERSION")).into());
            Arc::new(properties.build())
        };
        let encodings = [None, Some(Encoding::PLAIN), Some(Encoding::DELTA_BINARY_PACKED)].map(properties);
        let writer = SerializedFileWriter::new(out, schema(table)?, Arc::clone(&encodings[0]))?;
        Ok(TableFile { table, writer, encodings, columns: vec![Vec::new(); table.columns.len()] })
    }

    /// Adds a row with a value for each column, in their order.
    pub fn row(&mut self, row: Vec<Value>) -> Result<(), ParquetError> {
        if row.len() != self.columns.len() {
            return Err(ParquetError::General(format!(
                "a row of {} has {} values",
                self.table.name,
                row.len()
            )));
        }
        for (column, value) in self.columns.iter_mut().zip(row) {
            column.push(value);
        }
        Ok(())
    }

    /// Writes the gathered rows as a row group.
    pub fn flush(&mut self) -> Result<(), ParquetError> {
        if self.columns.first().is_none_or(Vec::is_empty) {
            return Ok(());
        }
        let order = self.order();
        let described = self.writer.schema_descr().columns().to_vec();
        let mut group = self.writer.next_row_group()?;
        let mut columns = Columns { group: &mut group, encodings: &self.encodings };
        for (((_, kind), column), values) in self.table.columns.iter().zip(described).zip(&mut self.columns) {
            let mut unordered = std::mem::take(values);
            let ordered = order.iter().map(|at| std::mem::replace(&mut unordered[*at], Value::Null));
            columns.write(column, *kind, &ordered.collect::<Vec<_>>())?;
        }
        group.close()?;
        Ok(())
    }

    /// The gathered rows by the table's order.
    fn order(&self) -> Vec<usize> {
        let at = |name: &&str| self.table.columns.iter().position(|(column, _)| column == name);
        let keys: Vec<&Vec<Value>> =
            self.table.order.iter().filter_map(at).map(|at| &self.columns[at]).collect();
        let mut order: Vec<usize> = (0..self.columns.first().map_or(0, Vec::len)).collect();
        order.sort_by(|x, y| {
            let unequal =
                keys.iter().map(|key| key[*x].by_order().cmp(&key[*y].by_order())).find(|o| o.is_ne());
            unequal.unwrap_or(std::cmp::Ordering::Equal)
        });
        order
    }

    /// Writes what is gathered and the footer.
    pub fn finish(mut self) -> Result<W, ParquetError> {
        self.flush()?;
        self.writer.into_inner()
    }
}

fn schema(table: &Table) -> Result<TypePtr, ParquetError> {
    let field = |(name, kind): &(&str, Kind)| {
        let (physical, logical) = match kind {
            Kind::Integer => (PhysicalType::INT64, None),
            Kind::Text => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
            Kind::Flag => (PhysicalType::BOOLEAN, None),
            Kind::Real => (PhysicalType::DOUBLE, None),
            Kind::Time => (PhysicalType::INT64, Some(LogicalType::timestamp(true, TimeUnit::MICROS))),
        };
        let builder = Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
        builder.with_logical_type(logical).build().map(Arc::new)
    };
    let fields = table.columns.iter().map(field).collect::<Result<_, _>>()?;
    Ok(Arc::new(Type::group_type_builder(table.name).with_fields(fields).build()?))
}

/// Writes the columns of one row group, each with the writer of its own type: the crate's writer of any column
/// would bring the code of the types that no table has.
struct Columns<'g, 'f, W: Write + Send> {
    group: &'g mut SerializedRowGroupWriter<'f, W>,
    encodings: &'g [WriterPropertiesPtr; 3],
}

impl<W: Write + Send> Columns<'_, '_, W> {
    fn write(&mut self, column: ColumnDescPtr, kind: Kind, values: &[Value]) -> Result<(), ParquetError> {
        // The smallest encoding depends on the rows: lengths of waits repeat in some programs, in others never.
        let encodings = match kind {
            Kind::Integer | Kind::Time => &self.encodings[..],
            // Differences are for integers.
            Kind::Real => &self.encodings[..2],
            Kind::Flag | Kind::Text => &self.encodings[..1],
        };
        match kind {
            // Encodings copy the eight bytes of a number, whatever they mean: the writer of integers serves for
            // DOUBLE, whose own would be in the binary beside it.
            Kind::Integer | Kind::Time | Kind::Real => {
                self.write_as::<Int64Type>(column, encodings, values, |value| match value {
                    Value::Integer(number) | Value::Time(number) => Some(*number),
                    Value::Real(number) => Some(number.to_bits().cast_signed()),
                    _ => None,
                })
            }
            Kind::Flag => self.write_as::<BoolType>(column, encodings, values, |value| match value {
                Value::Flag(flag) => Some(*flag),
                _ => None,
            }),
            Kind::Text => self.write_as::<ByteArrayType>(column, encodings, values, |value| match value {
                Value::Text(text) => Some(ByteArray::from(text.as_ref())),
                _ => None,
            }),
        }
    }

    /// Writes the column in the encoding that takes the fewest bytes. NULLs are a level of 0, other values a
    /// level of 1 and the value.
    fn write_as<T: DataType>(
        &mut self,
        column: ColumnDescPtr,
        encodings: &[WriterPropertiesPtr],
        values: &[Value],
        of: impl Fn(&Value) -> Option<T::T>,
    ) -> Result<(), ParquetError> {
        let typed: Vec<Option<T::T>> = values.iter().map(of).collect();
        let levels: Vec<i16> = typed.iter().map(|value| i16::from(value.is_some())).collect();
        let present: Vec<T::T> = typed.into_iter().flatten().collect();
        let mut smallest = None;
        for properties in encodings {
            let mut bytes = TrackedWrite::new(Vec::new());
            let pages = Box::new(SerializedPageWriter::new(&mut bytes));
            let mut writer = ColumnWriterImpl::<T>::new(column.clone(), properties.clone(), pages);
            writer.write_batch(&present, Some(&levels), None)?;
            let closed = writer.close()?;
            let bytes = bytes.into_inner()?;
            if smallest.as_ref().is_none_or(|(smallest, _): &(Vec<u8>, _)| bytes.len() < smallest.len()) {
                smallest = Some((bytes, closed));
            }
        }
        let (bytes, closed) =
            smallest.ok_or_else(|| ParquetError::General("a column has no encoding".into()))?;
        self.group.append_column(&Bytes::from(bytes), closed)
    }
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    use super::*;
    use crate::schema::STALLS;

    /// Numbers that look random, the same in each run.
    struct Draw(u64);

    impl Draw {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.0 >> 33
        }

        /// From a microsecond to a second, each order of magnitude equally often.
        fn duration(&mut self) -> i64 {
            (1_000.0 * 10f64.powf(6.0 * self.next() as f64 / (1u64 << 31) as f64)) as i64
        }
    }

    /// Stalls of ten threads, a hundred a second, in the order in which they ended.
    fn stalls(count: i64) -> Vec<Vec<Value>> {
        let mut draw = Draw(7);
        let row = |id: i64| {
            let thread = (draw.next() % 10) as i64;
            let kind = draw.next() % 5;
            let start = 1_795_248_000_000_000_000 + id * 10_000_000 + (draw.next() % 10_000_000) as i64;
            let late = draw.duration();
            STALLS
                .columns
                .iter()
                .map(|(name, of)| match (*name, of) {
                    ("id", _) => Value::Integer(id),
                    ("start_ns", _) => Value::Integer(start),
                    ("late_ns", _) => Value::Integer(late),
                    ("asked_ns", _) => Value::Integer(0),
                    ("runnable_ns", _) => Value::Integer(draw.duration() / 100),
                    ("thread" | "pid" | "tid", _) => Value::Integer(thread),
                    ("time", _) => Value::time((start - start % 1_000_000_000) as u64),
                    (name, Kind::Text) => format!("{name} {kind} as long as a hash").into(),
                    _ => Value::Null,
                })
                .collect()
        };
        (1..=count).map(row).collect()
    }

    fn written(rows: &[Vec<Value>]) -> Bytes {
        let mut file = TableFile::new(&STALLS, Vec::new()).unwrap();
        rows.iter().for_each(|row| file.row(row.clone()).unwrap());
        file.finish().unwrap().into()
    }

    fn column(name: &str) -> usize {
        STALLS.columns.iter().position(|(column, _)| *column == name).unwrap()
    }

    #[test]
    fn every_row_is_read_back_whatever_its_columns_are_encoded_as() {
        let mut rows = stalls(3_000);
        for (at, extreme) in [i64::MAX, i64::MIN, 0, -1].into_iter().enumerate() {
            rows[at][column("late_ns")] = Value::Integer(extreme);
        }
        rows[7][column("start_ns")] = Value::Null;
        let reader = SerializedFileReader::new(written(&rows)).unwrap();
        let number =
            |row: &parquet::record::Row, name| match row.get_column_iter().nth(column(name)).unwrap().1 {
                Field::Long(number) => Some(*number),
                _ => None,
            };
        let names = ["id", "start_ns", "asked_ns", "late_ns", "runnable_ns", "thread"];
        let read = reader.get_row_iter(None).unwrap().map(Result::unwrap);
        let mut found: Vec<_> = read.map(|row| names.map(|name| number(&row, name))).collect();
        found.sort_unstable();
        let of_row = |row: &Vec<Value>| {
            names.map(|name| match row[column(name)] {
                Value::Integer(number) => Some(number),
                _ => None,
            })
        };
        assert_eq!(found, rows.iter().map(of_row).collect::<Vec<_>>());
        let group = reader.metadata().row_group(0);
        let encodings = |name: &str| group.column(column(name)).encodings().collect::<Vec<_>>();
        assert!(encodings("reason").contains(&Encoding::RLE_DICTIONARY));
        assert!(encodings("id").contains(&Encoding::DELTA_BINARY_PACKED), "each id is near the one before");
        assert!(!encodings("late_ns").contains(&Encoding::RLE_DICTIONARY), "hardly one repeats");
    }

    /// 10 MB a host-hour at a hundred stalls a second are 28 bytes for a stall and all else. These rows take
    /// 13.02.
    #[test]
    fn stall_takes_few_bytes() {
        let rows = stalls(20_000);
        let bytes = written(&rows).len() as f64 / rows.len() as f64;
        assert!(bytes <= BYTES_OF_STALL, "{bytes} bytes a row");
    }

    const BYTES_OF_STALL: f64 = 13.1;
}
