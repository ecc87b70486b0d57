// SPDX-License-Identifier: Apache-2.0
//! One Parquet file: rows are gathered by column, and written as row groups.
//!
//! Each column is in the encoding that takes the fewest bytes. Of a long one a sample says which that is.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{
    Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as PhysicalType, ZstdLevel,
};
use parquet::column::writer::{ColumnCloseResult, ColumnWriterImpl};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::{
    SerializedFileWriter, SerializedPageWriter, SerializedRowGroupWriter, TrackedWrite,
};
use parquet::schema::types::{ColumnDescPtr, ColumnPath, Type, TypePtr};

use wallprof_model::FastSet;

use crate::column::{Column, order};
use crate::schema::{COUNTER_VALUE, Table};
use crate::value::{Kind, Value};

/// A sample of a column has pieces of consecutive values: differences and repetitions are between neighbours.
const PIECES: usize = 8;
const PIECE: usize = 512;

/// Writes the rows of one table to `W`.
pub(crate) struct TableFile<W: Write + Send> {
    table: &'static Table,
    writer: SerializedFileWriter<W>,
    /// Every reader has all three.
    encodings: Encodings,
    columns: Vec<Column>,
    rows: usize,
}

struct Encodings {
    dictionary: WriterPropertiesPtr,
    plain: WriterPropertiesPtr,
    differences: WriterPropertiesPtr,
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
        let encodings = Encodings {
            dictionary: properties(None),
            plain: properties(Some(Encoding::PLAIN)),
            differences: properties(Some(Encoding::DELTA_BINARY_PACKED)),
        };
        let writer = SerializedFileWriter::new(out, schema(table)?, Arc::clone(&encodings.dictionary))?;
        let columns = table.columns.iter().map(|(_, kind)| Column::new(*kind)).collect();
        Ok(TableFile { table, writer, encodings, columns, rows: 0 })
    }

    /// Adds a row with a value for each column, in their order.
    pub fn row(&mut self, row: Vec<Value<'_>>) -> Result<(), ParquetError> {
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
        self.rows += 1;
        Ok(())
    }

    /// Writes the gathered rows as a row group.
    pub fn flush(&mut self) -> Result<(), ParquetError> {
        if self.rows == 0 {
            return Ok(());
        }
        let at = |name: &&str| self.table.columns.iter().position(|(column, _)| column == name);
        let keys = self.table.order.iter().filter_map(at).map(|at| &self.columns[at]);
        let order = order(self.rows, keys);
        let described = self.writer.schema_descr().columns().to_vec();
        let mut group = self.writer.next_row_group()?;
        let mut columns = Columns { group: &mut group, encodings: &self.encodings };
        for (((_, kind), described), column) in
            self.table.columns.iter().zip(described).zip(&mut self.columns)
        {
            let column = std::mem::replace(column, Column::new(*kind));
            columns.write(described, *kind, &column, &order)?;
        }
        group.close()?;
        self.rows = 0;
        Ok(())
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
    encodings: &'g Encodings,
}

/// A column chunk, and what its file says of it.
type Encoded = (Vec<u8>, ColumnCloseResult);

impl<W: Write + Send> Columns<'_, '_, W> {
    /// Writes the column's rows in this order.
    fn write(
        &mut self,
        described: ColumnDescPtr,
        kind: Kind,
        column: &Column,
        order: &[u32],
    ) -> Result<(), ParquetError> {
        let in_order = order.iter().map(|row| *row as usize);
        let (bytes, closed) = match column {
            // Encodings copy the eight bytes of a number, whatever they mean: the writer of integers serves for
            // DOUBLE, whose own would be in the binary beside it.
            Column::Numbers(numbers) => {
                let (present, levels) = split(in_order.map(|row| numbers[row]));
                self.encodings.numbers(&described, kind, &present, &levels)?
            }
            Column::Flags(flags) => {
                let (present, levels) = split(in_order.map(|row| flags[row]));
                encoded::<BoolType>(&described, &self.encodings.dictionary, &present, &levels)?
            }
            Column::Texts(texts) => {
                // Rows share the bytes of a text.
                let distinct: Vec<ByteArray> =
                    texts.distinct().iter().map(|text| ByteArray::from(text.as_ref())).collect();
                let (present, levels) =
                    split(in_order.map(|row| Some(distinct[texts.number(row)? as usize].clone())));
                encoded::<ByteArrayType>(&described, &self.encodings.dictionary, &present, &levels)?
            }
        };
        self.group.append_column(&Bytes::from(bytes), closed)
    }
}

impl Encodings {
    /// The column in the encoding that takes the fewest bytes, as far as a sample says.
    fn numbers(
        &self,
        described: &ColumnDescPtr,
        kind: Kind,
        present: &[i64],
        levels: &[i16],
    ) -> Result<Encoded, ParquetError> {
        let Encodings { dictionary, plain, differences } = self;
        // The smallest encoding depends on the rows: lengths of waits repeat in some programs, in others never.
        let candidates = match kind {
            _ if present.windows(2).all(|pair| pair[0] == pair[1]) => vec![plain],
            // Differences are for integers.
            Kind::Real => vec![dictionary, plain],
            _ => vec![dictionary, plain, differences],
        };
        let all = |candidates: &[&WriterPropertiesPtr]| {
            let chunks = candidates.iter().map(|of| encoded::<Int64Type>(described, of, present, levels));
            let chunks = chunks.collect::<Result<Vec<_>, _>>()?;
            let smallest = chunks.into_iter().min_by_key(|(bytes, _)| bytes.len());
            smallest.ok_or_else(|| ParquetError::General("a column has no encoding".into()))
        };
        if candidates.len() == 1 || present.len() <= 2 * PIECES * PIECE {
            return all(&candidates);
        }
        let sample = Sample::of(present);
        let levels_of_sample = vec![1; sample.values.len()];
        let mut sizes = Vec::new();
        for candidate in &candidates {
            let chunk = encoded::<Int64Type>(described, candidate, &sample.values, &levels_of_sample)?;
            sizes.push(sample.size_of_all(&chunk));
        }
        let best = candidates.iter().zip(sizes).min_by(|(_, one), (_, other)| one.total_cmp(other));
        all(best.map(|(of, _)| *of).as_slice())
    }
}

fn distinct(values: &[i64]) -> usize {
    values.chunk_by(|one, next| one == next).map(|equal| equal[0]).collect::<FastSet<i64>>().len()
}

/// Which values are present, and for each row its level: 0 for NULL, 1 for a value.
fn split<T>(values: impl Iterator<Item = Option<T>>) -> (Vec<T>, Vec<i16>) {
    let (mut present, mut levels) = (Vec::with_capacity(values.size_hint().0), Vec::new());
    for value in values {
        levels.push(i16::from(value.is_some()));
        present.extend(value);
    }
    (present, levels)
}

fn encoded<T: DataType>(
    described: &ColumnDescPtr,
    properties: &WriterPropertiesPtr,
    present: &[T::T],
    levels: &[i16],
) -> Result<Encoded, ParquetError> {
    let mut bytes = TrackedWrite::new(Vec::new());
    let pages = Box::new(SerializedPageWriter::new(&mut bytes));
    let mut writer = ColumnWriterImpl::<T>::new(described.clone(), properties.clone(), pages);
    writer.write_batch(present, Some(levels), None)?;
    let closed = writer.close()?;
    Ok((bytes.into_inner()?, closed))
}

/// Values from all parts of a column.
struct Sample {
    values: Vec<i64>,
    /// How many values the column has for each one of the sample.
    times: f64,
    /// How many different values the column has for each different one of the sample.
    times_distinct: f64,
}

impl Sample {
    /// Of a column with more values than that.
    fn of(column: &[i64]) -> Sample {
        let apart = (column.len() - PIECE) / (PIECES - 1);
        let pieces = (0..PIECES).map(|piece| &column[piece * apart..piece * apart + PIECE]);
        let values: Vec<i64> = pieces.flatten().copied().collect();
        let times = column.len() as f64 / values.len() as f64;
        Sample { times, times_distinct: distinct(column) as f64 / distinct(&values) as f64, values }
    }

    /// The bytes of the whole column, by those of the sample. A dictionary has each value once.
    fn size_of_all(&self, (bytes, closed): &Encoded) -> f64 {
        let data_at = closed.metadata.data_page_offset();
        let dictionary = closed.metadata.dictionary_page_offset().map_or(0, |at| data_at - at) as f64;
        dictionary * self.times_distinct + (bytes.len() as f64 - dictionary) * self.times
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
    fn stalls(count: i64) -> Vec<Vec<Value<'static>>> {
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

    fn written(rows: &[Vec<Value<'_>>]) -> Bytes {
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
        let of_row = |row: &Vec<Value<'_>>| {
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

    #[test]
    fn sample_chooses_the_encoding_that_is_smallest_or_nearly_so() {
        let mut draw = Draw(3);
        let columns: [(&str, Vec<i64>); 8] = [
            ("durations", (0..30_000).map(|_| draw.duration()).collect()),
            ("ascending", (0..30_000).map(|at| at * 7 + (draw.next() % 5) as i64).collect()),
            ("few values", (0..30_000).map(|_| 40_000 + (draw.next() % 90) as i64 * 13).collect()),
            ("sorted threads", (0..30_000).map(|at| 2_000_000 + at / 60 * 17).collect()),
            ("mostly 0", (0..30_000).map(|at| if at % 40 == 0 { draw.duration() } else { 0 }).collect()),
            ("rarely changes", (0..30_000).map(|at| at / 9_000).collect()),
            ("seconds", (0..30_000).map(|_| (draw.next() % 300) as i64 * 1_000_000).collect()),
            ("thousands of values", (0..30_000).map(|_| (draw.next() % 9_000) as i64 * 999).collect()),
        ];
        let file = TableFile::new(&STALLS, Vec::new()).unwrap();
        let described = file.writer.schema_descr().column(column("late_ns"));
        let Encodings { dictionary, plain, differences } = &file.encodings;
        for (name, values) in columns {
            let levels = vec![1; values.len()];
            let size = |of| encoded::<Int64Type>(&described, of, &values, &levels).unwrap().0.len();
            let sizes = [dictionary, plain, differences].map(size);
            let chosen = file.encodings.numbers(&described, Kind::Integer, &values, &levels).unwrap().0.len();
            assert!(sizes.contains(&chosen), "{name}: {chosen}, {sizes:?}");
            let smallest = *sizes.iter().min().unwrap();
            // Of a column of a kilobyte, headers count for more than values.
            assert!(chosen as f64 <= smallest as f64 * 1.05 + 1_024.0, "{name}: {chosen}, {sizes:?}");
        }
    }

    #[test]
    fn column_of_one_value_takes_nothing() {
        let mut file = TableFile::new(&STALLS, Vec::new()).unwrap();
        (0..20_000).for_each(|_| file.row(vec![Value::Null; STALLS.columns.len()]).unwrap());
        let nulls = file.finish().unwrap().len();
        let mut file = TableFile::new(&STALLS, Vec::new()).unwrap();
        for _ in 0..20_000 {
            let mut row = vec![Value::Null; STALLS.columns.len()];
            row[column("asked_ns")] = Value::Integer(0);
            file.row(row).unwrap();
        }
        let with_zeros = file.finish().unwrap().len();
        assert!(with_zeros < nulls + 100, "{with_zeros}, {nulls}");
    }

    /// 10 MB a host-hour at a hundred stalls a second are 28 bytes for a stall and all else. These rows take
    /// 13.10.
    #[test]
    fn stall_takes_few_bytes() {
        let rows = stalls(20_000);
        let bytes = written(&rows).len() as f64 / rows.len() as f64;
        assert!(bytes <= BYTES_OF_STALL, "{bytes} bytes a row");
    }

    const BYTES_OF_STALL: f64 = 13.2;
}
