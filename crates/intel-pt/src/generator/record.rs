// SPDX-License-Identifier: Apache-2.0
//! Bytes of perf.data: integers, texts, records and event attributes. All tests that need records build them
//! here.
//!
//! Layouts: `tools/perf/Documentation/perf.data-file-format.txt` and perf_event_open(2).

/// perf pads texts in a file's header to a multiple of this.
const HEADER_TEXT_UNIT: usize = 64;

/// Little-endian integers of 8 bytes.
pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Little-endian integers of 4 bytes.
pub fn halves(halves: &[u32]) -> Vec<u8> {
    halves.iter().flat_map(|half| half.to_le_bytes()).collect()
}

/// Two integers of 4 bytes in one of 8, such as a pid and a tid. `low` is the first one in memory.
pub fn pair(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// A text at the end of a record: a NUL follows it, and it is padded to 8 bytes.
pub fn text(text: &[u8]) -> Vec<u8> {
    let mut bytes = text.to_vec();
    bytes.resize((bytes.len() + 1).next_multiple_of(8), 0);
    bytes
}

/// A text of a file's header: its padded length, and the text with NULs behind it.
pub fn header_text(text: &str) -> Vec<u8> {
    let padded = (text.len() + 1).next_multiple_of(HEADER_TEXT_UNIT);
    let mut bytes = halves(&[padded as u32]);
    bytes.extend(text.as_bytes());
    bytes.resize(4 + padded, 0);
    bytes
}

/// A record with its header of 8 bytes.
pub fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let size = (8 + body.len()) as u16;
    [&kind.to_le_bytes()[..], &misc.to_le_bytes(), &size.to_le_bytes(), body].concat()
}

/// A `perf_event_attr` of `size` bytes. Each field is its offset and its value of up to 8 bytes.
pub fn attr(size: usize, fields: &[(usize, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; size];
    bytes[4..8].copy_from_slice(&(size as u32).to_le_bytes());
    for (at, value) in fields {
        let width = (size - at).min(8);
        bytes[*at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }
    bytes
}

/// A function in a jitdump file: the time at which it was made, its address, its name and its code.
pub type JitFunction<'a> = (u64, u64, &'a str, &'a [u8]);

/// A jitdump file of the process `pid` (`tools/perf/Documentation/jitdump-specification.txt`). A record of
/// another kind precedes the functions.
pub fn jit_dump(pid: u32, flags: u64, functions: &[JitFunction<'_>]) -> Vec<u8> {
    const MAGIC: u32 = 0x4a69_5444;
    const X86_64: u32 = 62;
    const HEADER: u32 = 40;
    const PREFIX_AND_FIELDS: usize = 56;
    const LOAD: u32 = 0;
    const DEBUG_INFO: u32 = 2;
    let mut bytes = halves(&[MAGIC, 1, HEADER, X86_64, 0, pid]);
    bytes.extend(words(&[9, flags]));
    bytes.extend(halves(&[DEBUG_INFO, 24]));
    bytes.extend([0; 16]);
    for (number, (time, address, name, code)) in functions.iter().enumerate() {
        let size = PREFIX_AND_FIELDS + name.len() + 1 + code.len();
        bytes.extend(halves(&[LOAD, size as u32]));
        bytes.extend(words(&[*time, pair(pid, pid), *address, *address, code.len() as u64, number as u64]));
        bytes.extend(name.as_bytes());
        bytes.push(0);
        bytes.extend(*code);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_has_its_size_in_its_header() {
        assert_eq!(record(3, 5, b"ab"), [3, 0, 0, 0, 5, 0, 10, 0, b'a', b'b']);
        assert_eq!(words(&[pair(1, 2)]), halves(&[1, 2]));
    }

    #[test]
    fn texts_end_with_a_nul() {
        assert_eq!(text(b"abcdefg"), b"abcdefg\0");
        assert_eq!(text(b"abcdefgh"), b"abcdefgh\0\0\0\0\0\0\0\0");
        assert_eq!((header_text("").len(), header_text(&"x".repeat(64)).len()), (68, 132));
    }

    #[test]
    fn last_field_of_an_attr_may_be_cut() {
        assert_eq!(attr(10, &[(8, 0x0102_0304)]), [0, 0, 0, 0, 10, 0, 0, 0, 4, 3]);
    }
}
