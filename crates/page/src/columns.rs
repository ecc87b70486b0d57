// SPDX-License-Identifier: Apache-2.0
//! Columns of numbers as bytes, small after compression: variable-length integers, and differences of
//! neighbours where neighbours are alike. `web/data.js` reads them.

use std::collections::BTreeMap;

use serde::Serialize;

/// The largest integer that a number of JavaScript holds exactly.
const MOST: u64 = (1 << 53) - 1;

/// How the bytes of a column are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Coding {
    /// LEB128.
    Unsigned,
    /// Differences to the value before, the sign in the lowest bit, as LEB128.
    Delta,
    /// Eight bytes, little endian.
    Float,
}

/// Where a column is.
#[derive(Clone, Copy, Debug, Serialize)]
struct Place(Coding, usize, usize);

/// Named columns in one block of bytes.
#[derive(Debug, Default)]
pub struct Columns {
    bytes: Vec<u8>,
    places: BTreeMap<String, Place>,
}

impl Columns {
    pub fn unsigned(&mut self, name: &str, values: impl Iterator<Item = u64>) {
        self.add(name, Coding::Unsigned, values, |bytes, value| push(bytes, value.min(MOST)));
    }

    /// Values of which neighbours are alike.
    pub fn deltas(&mut self, name: &str, values: impl Iterator<Item = i64>) {
        let mut last = 0i64;
        self.add(name, Coding::Delta, values, |bytes, value| {
            let value = value.clamp(-(MOST as i64), MOST as i64);
            let delta = value - last;
            last = value;
            push(bytes, ((delta << 1) ^ (delta >> 63)).cast_unsigned());
        });
    }

    pub fn floats(&mut self, name: &str, values: impl Iterator<Item = f64>) {
        self.add(name, Coding::Float, values, |bytes, value| bytes.extend(value.to_le_bytes()));
    }

    fn add<T>(
        &mut self,
        name: &str,
        coding: Coding,
        values: impl Iterator<Item = T>,
        mut write: impl FnMut(&mut Vec<u8>, T),
    ) {
        let start = self.bytes.len();
        let mut count = 0;
        for value in values {
            write(&mut self.bytes, value);
            count += 1;
        }
        self.places.insert(name.to_owned(), Place(coding, count, start));
    }

    /// The length of `head` in four bytes, `head` with the places of the columns, and the columns.
    ///
    /// # Errors
    /// `head` is not JSON.
    pub fn with_head(&self, head: &impl Serialize) -> serde_json::Result<Vec<u8>> {
        #[derive(Serialize)]
        struct Whole<'a, H> {
            #[serde(flatten)]
            head: &'a H,
            columns: &'a BTreeMap<String, Place>,
        }
        let head = serde_json::to_vec(&Whole { head, columns: &self.places })?;
        let length = u32::try_from(head.len()).unwrap_or(u32::MAX).to_le_bytes();
        Ok([&length[..], &head, &self.bytes].concat())
    }
}

fn push(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(write: impl Fn(&mut Columns)) -> Vec<u8> {
        let mut columns = Columns::default();
        write(&mut columns);
        columns.bytes
    }

    #[test]
    fn small_numbers_take_a_byte() {
        assert_eq!(bytes(|columns| columns.unsigned("a", [0, 127, 128].into_iter())), [0, 127, 0x80, 1]);
        assert_eq!(bytes(|columns| columns.deltas("a", [100, 99, 101].into_iter())), [0xc8, 1, 1, 4]);
        assert_eq!(bytes(|columns| columns.floats("a", [1.0].into_iter())), 1.0f64.to_le_bytes());
    }

    #[test]
    fn numbers_beyond_those_of_javascript_are_its_largest() {
        let most = bytes(|columns| columns.unsigned("a", [MOST].into_iter()));
        assert_eq!(bytes(|columns| columns.unsigned("a", [u64::MAX].into_iter())), most);
        let wide = bytes(|columns| columns.deltas("a", [i64::MIN, i64::MAX].into_iter()));
        assert!(wide.len() <= 2 * 10, "{wide:?}");
    }

    #[test]
    fn head_names_the_places() {
        let mut columns = Columns::default();
        columns.unsigned("a", [7].into_iter());
        columns.deltas("b", [-1, -1].into_iter());
        #[derive(Serialize)]
        struct Head {
            x: u32,
        }
        let whole = columns.with_head(&Head { x: 3 }).unwrap();
        let length = u32::from_le_bytes(whole[..4].try_into().unwrap()) as usize;
        let head = std::str::from_utf8(&whole[4..4 + length]).unwrap();
        assert_eq!(head, r#"{"x":3,"columns":{"a":["unsigned",1,0],"b":["delta",2,1]}}"#);
        assert_eq!(whole[4 + length..], [7, 1, 0]);
    }
}
