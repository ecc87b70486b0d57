// SPDX-License-Identifier: Apache-2.0
//! `/tmp/perf-PID.map`: one function a line, `START SIZE NAME`, the numbers in hexadecimal (linux:
//! tools/perf/Documentation/jit-interface.txt). Some writers put `0x` before the numbers.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};

use super::Reading;
use super::wanted::{Code, Wanted};

/// Bytes of one map; a large Java server writes 20 MiB.
const MAX_BYTES: u64 = 64 << 20;
const MAX_SYMBOLS: usize = 1 << 20;
/// The rest of a longer line is skipped: names are cut at this length in every view.
const MAX_LINE: u64 = 8192;

/// Reads a map from its start.
pub(super) fn read(mut file: &File, wanted: &mut Wanted) -> io::Result<Reading> {
    file.rewind()?;
    read_text(BufReader::with_capacity(1 << 16, file), wanted)
}

fn read_text(reader: impl BufRead, wanted: &mut Wanted) -> io::Result<Reading> {
    let mut reader = reader.take(MAX_BYTES);
    let mut line = Vec::new();
    for _ in 0..MAX_SYMBOLS {
        line.clear();
        if reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(if reader.limit() == 0 { Reading::Cut } else { Reading::Whole });
        }
        // An incomplete last line is read once it is complete; a line over the limit is cut.
        let is_whole = line.ends_with(b"\n");
        if !is_whole && (line.len() as u64) < MAX_LINE {
            continue;
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        if code_from_line(text).is_some_and(|code| !wanted.see(&code)) {
            break;
        }
        if !is_whole {
            reader.skip_until(b'\n')?;
        }
    }
    Ok(Reading::Cut)
}

fn code_from_line(line: &[u8]) -> Option<Code<'_>> {
    let mut fields = line.splitn(3, |&byte| byte == b' ');
    let start = number(fields.next()?)?;
    let size = number(fields.next()?)?;
    let name = fields.next().filter(|name| !name.is_empty())?;
    Some(Code { start, size, since: None, name })
}

fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wallprof_model::MonoNs;

    /// The name a map gives to an address, with the offset.
    fn named(map: &[u8], address: u64) -> (Option<String>, Option<u64>, Reading) {
        let mut wanted = Wanted::new([(address, MonoNs(0))].into_iter());
        let reading = read_text(map, &mut wanted).expect("memory is readable");
        let line = wanted.take(address, MonoNs(0)).unwrap_or_default();
        (line.symbol, line.offset, reading)
    }

    #[test]
    fn each_writers_form_is_read() {
        let map = b"7f10 20 LazyCompile:*busy loop /srv/app.js:3:14\n\
            0x00007f0000001000 0x10 int java.lang.String.hashCode()\n\
            5000 8 _ZN4core3ptr4read17h0123456789abcdefE\n";
        let whole = |name: &str, offset| (Some(name.to_owned()), Some(offset), Reading::Whole);
        assert_eq!(named(map, 0x7f2f), whole("LazyCompile:*busy loop /srv/app.js:3:14", 0x1f));
        assert_eq!(named(map, 0x7f00_0000_1000), whole("int java.lang.String.hashCode()", 0));
        assert_eq!(named(map, 0x5001), whole("core::ptr::read", 1));
        assert_eq!(named(map, 0x7f30), (None, None, Reading::Whole));
    }

    #[test]
    fn lines_of_another_form_are_skipped() {
        let map = b"\n100\n100 10\n100 10 \nzz 10 f\n100 -1 f\n100 10 \xff\xfe\n";
        assert_eq!(named(map, 0x100), (Some("\u{fffd}\u{fffd}".into()), Some(0), Reading::Whole));
        assert_eq!(named(&map[..map.len() - 1], 0x100).0, None, "a line that is being written");
    }

    #[test]
    fn a_name_that_never_ends_is_cut_and_the_next_line_read() {
        let mut map = b"100 10 ".to_vec();
        map.extend(vec![b'x'; 3 * MAX_LINE as usize]);
        map.extend(b"\n200 10 after\n");
        assert_eq!(named(&map, 0x200).0.as_deref(), Some("after"));
        assert!(named(&map, 0x100).0.is_some_and(|name| name.starts_with("xxx") && name.len() < 8192));
    }

    #[test]
    fn maps_are_read_up_to_a_limit() {
        let lines = b"1 1 a\n".repeat(MAX_SYMBOLS);
        assert_eq!(named(&lines, 0x100).2, Reading::Cut);
        let line = [b"1 1 ".as_slice(), &[b'a'; 4000], b"\n"].concat();
        let large = line.repeat((MAX_BYTES as usize).div_ceil(line.len()));
        assert_eq!(named(&large, 0x100).2, Reading::Cut);
    }

    proptest! {
        #[test]
        fn any_text_is_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in "[0-9a-fx \n-]{0,80}") {
            named(&bytes, 0x10);
            named(text.as_bytes(), 0x10);
        }
    }
}
