// SPDX-License-Identifier: Apache-2.0
//! A CSV file as rows with their line numbers. A row is one line: an open quote ends with its line. Memory is
//! bounded by the limit on a line.

use std::io::{self, BufRead, Read};

use csv::{ReaderBuilder, StringRecord, Trim};

/// Limit on a line.
const MAX_LINE_BYTES: u64 = 64 << 10;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The rows of a file. Empty lines and lines that start with `#` are skipped.
pub struct Table<R> {
    reader: R,
    line: u64,
    bytes: Vec<u8>,
}

/// The fields of a line, or its error.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    pub line: u64,
    pub fields: Result<StringRecord, &'static str>,
}

impl<R: BufRead> Table<R> {
    pub fn new(reader: R) -> Self {
        Table { reader, line: 0, bytes: Vec::new() }
    }

    pub fn next(&mut self) -> io::Result<Option<Row>> {
        loop {
            self.bytes.clear();
            self.line += 1;
            let read = (&mut self.reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut self.bytes)?;
            if read == 0 {
                return Ok(None);
            }
            if read as u64 == MAX_LINE_BYTES && self.bytes.last() != Some(&b'\n') {
                self.skip_line()?;
                return Ok(Some(self.row(Err("the line is longer than 64 KiB"))));
            }
            let mut text = self.bytes.trim_ascii();
            if self.line == 1 {
                text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
            }
            if !text.is_empty() && !text.starts_with(b"#") {
                let fields = fields_from_line(text);
                return Ok(Some(self.row(fields)));
            }
        }
    }

    fn row(&self, fields: Result<StringRecord, &'static str>) -> Row {
        Row { line: self.line, fields }
    }

    /// Skips the rest of a line that is too long.
    fn skip_line(&mut self) -> io::Result<()> {
        self.reader.skip_until(b'\n').map(drop)
    }
}

fn fields_from_line(line: &[u8]) -> Result<StringRecord, &'static str> {
    let mut reader = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(Trim::All)
        .buffer_capacity(line.len().max(1))
        .from_reader(line);
    match reader.records().next() {
        Some(Ok(record)) => Ok(record),
        _ => Err("the line is not UTF-8 text"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &[u8]) -> Vec<(u64, Result<Vec<String>, &'static str>)> {
        let mut table = Table::new(text);
        let mut rows = Vec::new();
        while let Some(row) = table.next().unwrap() {
            let fields = row.fields.map(|record| record.iter().map(str::to_owned).collect());
            rows.push((row.line, fields));
        }
        rows
    }

    fn fields(texts: &[&str]) -> Result<Vec<String>, &'static str> {
        Ok(texts.iter().map(|text| (*text).to_owned()).collect())
    }

    #[test]
    fn rows_keep_their_line_numbers() {
        let text = b"\xef\xbb\xbftime,name\r\n\r\n# a remark\r\n1,\"a, b\", x \n2";
        assert_eq!(
            rows(text),
            [(1, fields(&["time", "name"])), (4, fields(&["1", "a, b", "x"])), (5, fields(&["2"]))]
        );
    }

    #[test]
    fn bad_line_is_one_bad_row() {
        let mut text = b"1,\xff\n2,\"open\n3,c\n".to_vec();
        text.extend(vec![b'x'; 3 * MAX_LINE_BYTES as usize]);
        text.extend(b"\n5,e\n");
        let rows = rows(&text);
        assert_eq!(rows.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert!(rows[0].1.is_err() && rows[3].1.is_err());
        assert_eq!((&rows[2].1, &rows[4].1), (&fields(&["3", "c"]), &fields(&["5", "e"])));
    }
}
