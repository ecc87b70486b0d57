// SPDX-License-Identifier: Apache-2.0
//! `--anonymize`: no name of the program is in the output.

use std::io::Read;

use crate::fixture::Fixture;

const NAMES: [&str; 9] =
    ["engine", "stuck", "server", "main", "tick", "take_lock", "wait_forever", "release", "abab"];

#[test]
fn no_export_holds_a_name() {
    let fixture = Fixture::new();
    for (format, view) in
        [("folded", "wall"), ("folded", "wakers"), ("speedscope", "wakers"), ("pprof", "wakers")]
    {
        let named = text(&fixture.output(&["export", "--to", format, "--view", view]));
        let anonymous = text(&fixture.output(&["export", "--to", format, "--view", view, "--anonymize"]));
        for name in NAMES {
            assert!(!anonymous.contains(name), "{format} {view}: {name}");
        }
        assert!(named.contains("take_lock"), "{format}");
        assert!(anonymous.contains("[blocked:lock]") || format == "pprof", "{format}: states stay");
    }
}

/// Decompressed if it is compressed.
fn text(bytes: &[u8]) -> String {
    let mut plain = Vec::new();
    if bytes.starts_with(&[0x1f, 0x8b]) {
        flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
    } else {
        plain.extend_from_slice(bytes);
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[test]
fn the_structure_stays() {
    let fixture = Fixture::new();
    let named = fixture.output(&["export", "--to", "folded"]);
    let anonymous = String::from_utf8(fixture.output(&["export", "--to", "folded", "--anonymize"])).unwrap();
    let shape = |text: &str| -> Vec<(usize, u64)> {
        let line = |line: &str| {
            let (path, weight) = line.rsplit_once(' ').unwrap();
            (path.split(';').count(), weight.parse().unwrap())
        };
        let mut lines: Vec<_> = text.lines().map(line).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(shape(&anonymous), shape(std::str::from_utf8(&named).unwrap()));
    assert!(anonymous.contains("t2;f1;"), "stuck is the second thread, main the first function: {anonymous}");
}
