// SPDX-License-Identifier: Apache-2.0
//! The address filters of a recording: text that perf writes behind the words of AUXTRACE_INFO. `perf record
//! --filter` has turned names into addresses before.
//!
//! A filter is `ACTION ADDRESS[/SIZE][@FILE]`, where ACTION is `filter`, `start`, `stop` or `tracestop`, and
//! numbers are written as in C. Blanks and commas separate filters. With FILE the address is an offset in
//! that file, without it a kernel address (perf-record(1), `--filter`).

use std::ops::Range;

/// Processors have four ranges.
const MAX_FILTERS: usize = 1 << 10;

/// One filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    /// Code in the range is traced; `false`: reaching it stops the trace.
    pub is_traced: bool,
    /// Offsets in the file, or addresses of the kernel.
    pub range: Range<u64>,
    pub file: Option<Vec<u8>>,
}

/// The text is not a list of filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoFilters;

/// The filters that `text` lists.
pub(crate) fn parse(text: &[u8]) -> Result<Vec<Filter>, NoFilters> {
    let mut rest = Text(text);
    let mut filters = Vec::new();
    rest.skip(b" ,");
    while !rest.0.is_empty() {
        if filters.len() == MAX_FILTERS {
            return Err(NoFilters);
        }
        filters.push(rest.filter()?);
        rest.skip(b" ,");
    }
    Ok(filters)
}

/// The rest of the text.
struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    fn filter(&mut self) -> Result<Filter, NoFilters> {
        let (is_traced, needs_size) = match self.until(b" ") {
            b"filter" => (true, true),
            b"start" => (true, false),
            b"tracestop" => (false, true),
            b"stop" => (false, false),
            _ => return Err(NoFilters),
        };
        self.skip(b" ");
        let from = self.number()?;
        self.skip(b" ");
        let size = if self.take(b'/') { Some(self.sized()?) } else { None };
        self.skip(b" ");
        let file = if self.take(b'@') { Some(self.file()?) } else { None };
        if needs_size && size.is_none() || !self.is_at_end_of_filter() {
            return Err(NoFilters);
        }
        let to = from.checked_add(size.unwrap_or(0)).ok_or(NoFilters)?;
        Ok(Filter { is_traced, range: from..to, file })
    }

    fn sized(&mut self) -> Result<u64, NoFilters> {
        self.skip(b" ");
        self.number()
    }

    fn file(&mut self) -> Result<Vec<u8>, NoFilters> {
        match self.until(b" ,") {
            b"" => Err(NoFilters),
            file => Ok(file.to_vec()),
        }
    }

    fn number(&mut self) -> Result<u64, NoFilters> {
        let word = str::from_utf8(self.until(b" ,/@")).map_err(|_| NoFilters)?;
        let (digits, radix) = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
            Some(digits) => (digits, 16),
            None if word.len() > 1 && word.starts_with('0') => (&word[1..], 8),
            None => (word, 10),
        };
        if digits.starts_with('+') {
            return Err(NoFilters);
        }
        u64::from_str_radix(digits, radix).map_err(|_| NoFilters)
    }

    /// A filter ends at a comma, at blanks before a comma, before the next action, or with a file's name.
    fn is_at_end_of_filter(&self) -> bool {
        self.0.first().is_none_or(|byte| b" ,".contains(byte) || byte.is_ascii_lowercase())
    }

    fn until(&mut self, ends: &[u8]) -> &'a [u8] {
        let end = self.0.iter().position(|byte| ends.contains(byte)).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        word
    }

    fn skip(&mut self, bytes: &[u8]) {
        let start = self.0.iter().position(|byte| !bytes.contains(byte)).unwrap_or(self.0.len());
        self.0 = &self.0[start..];
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.0.first() == Some(&byte);
        if is_next {
            self.0 = &self.0[1..];
        }
        is_next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(is_traced: bool, from: u64, to: u64, file: Option<&str>) -> Filter {
        Filter { is_traced, range: from..to, file: file.map(|file| file.as_bytes().to_vec()) }
    }

    #[test]
    fn every_action_is_read() {
        let text =
            b"filter 0x1040/0x20@/usr/bin/prog,stop 4096/0x10@/lib/x.so tracestop 010/1@/a start 0x9@/b";
        assert_eq!(
            parse(text).as_deref(),
            Ok(&[
                filter(true, 0x1040, 0x1060, Some("/usr/bin/prog")),
                filter(false, 4096, 4112, Some("/lib/x.so")),
                filter(false, 8, 9, Some("/a")),
                filter(true, 9, 9, Some("/b")),
            ][..])
        );
    }

    #[test]
    fn blanks_and_commas_separate_filters() {
        let kernel = 0xffff_ffff_8100_0000;
        let expected = [filter(true, kernel, kernel + 16, None), filter(true, 1, 3, Some("/a"))];
        for text in [
            "filter 0xffffffff81000000/16,filter 1/2@/a",
            "  filter 0xffffffff81000000/16 filter 1/2@/a, ",
            "filter 0xffffffff81000000 / 16 , filter 1 / 2 @/a",
        ] {
            assert_eq!(parse(text.as_bytes()).as_deref(), Ok(&expected[..]), "{text}");
        }
        assert_eq!(parse(b"").as_deref(), Ok(&[][..]));
        assert_eq!(parse(b" , ").as_deref(), Ok(&[][..]));
    }

    #[test]
    fn malformed_filters_are_refused() {
        for text in [
            "filter",
            "filter ",
            "filter main",
            "filter 1",
            "filter 1@/a",
            "filter 1/",
            "filter 1/2@",
            "filter 1/2/3",
            "filter 1/x",
            "filter -1/2",
            "filter +1/2",
            "filter 0x/2",
            "filter 0x+1/2",
            "trace 1/2",
            "filter 1/2 7",
            "filter 0xffffffffffffffff/2",
            "filter 0x10000000000000000/2",
            "tracestop 1",
            "1/2@/a",
            "filter 1/2@/a@/b\0 x",
        ] {
            assert_eq!(parse(text.as_bytes()), Err(NoFilters), "{text}");
        }
        assert_eq!(parse(b"filter \xff/2"), Err(NoFilters));
        assert_eq!(parse(&b"stop 1 ".repeat(MAX_FILTERS + 1)), Err(NoFilters));
    }

    #[test]
    fn damaged_text_does_not_panic() {
        let whole = b"filter 0x1040/0x20@/usr/bin/prog,stop 4096/0x10@/lib/x.so";
        for at in 0..whole.len() {
            let _ = parse(&whole[..at]);
            for byte in 0..=255 {
                let mut damaged = whole.to_vec();
                damaged[at] = byte;
                let _ = parse(&damaged);
            }
        }
    }
}
