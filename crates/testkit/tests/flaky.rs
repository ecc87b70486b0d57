// SPDX-License-Identifier: Apache-2.0
//! `tests/flaky.toml`: few entries, complete, and mended in time.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use jiff::civil::Date;
use jiff::{ToSpan, Zoned};

const MOST_ENTRIES: usize = 5;
const DAYS_TO_MEND: i64 = 30;
const KEYS: [&str; 5] = ["cause", "failed", "first_seen", "mended_by", "test"];

type Entry = BTreeMap<String, String>;

/// The tables `[[flaky]]` in the two forms of TOML that the file has: `key = "text"` and `key = 2026-11-25`.
fn entries(text: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if line == "[[flaky]]" {
            entries.push(Entry::new());
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("`{line}` is no `key = value`"));
        let entry = entries.last_mut().unwrap_or_else(|| panic!("`{line}` is outside of [[flaky]]"));
        entry.insert(key.trim().to_owned(), value.trim().trim_matches('"').to_owned());
    }
    entries
}

fn faults(text: &str, today: Date) -> Vec<String> {
    let entries = entries(text);
    let mut faults = Vec::new();
    if entries.len() > MOST_ENTRIES {
        faults.push(format!("{} entries: at most {MOST_ENTRIES} may be", entries.len()));
    }
    for entry in &entries {
        if !entry.keys().eq(KEYS) {
            faults.push(format!("{entry:?} has other keys than {KEYS:?}"));
            continue;
        }
        let date = |key: &str| entry[key].parse::<Date>().unwrap_or_else(|error| panic!("{key}: {error}"));
        let (seen, mended) = (date("first_seen"), date("mended_by"));
        if mended > seen + DAYS_TO_MEND.days() {
            faults.push(format!("{}: more than {DAYS_TO_MEND} days to mend it", entry["test"]));
        }
        if mended < today {
            faults.push(format!("{}: it was to be mended by {mended}", entry["test"]));
        }
    }
    faults
}

#[test]
fn flaky_tests_are_mended_in_time() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/flaky.toml");
    let text = fs::read_to_string(path).expect("tests/flaky.toml");
    let faults = faults(&text, Zoned::now().date());
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn entries_that_are_late_many_or_incomplete_are_refused() {
    let entry = |seen, mended| {
        format!(
            "[[flaky]]\ntest = \"a b\"\nfirst_seen = {seen}\nfailed = \"1 of 9 runs\"\ncause = \"load\"\n\
             mended_by = {mended}\n"
        )
    };
    let today = "2026-11-25".parse().expect("a date");
    let sound = entry("2026-11-20", "2026-12-20");
    assert_eq!(faults(&sound, today), Vec::<String>::new());
    assert_eq!(faults(&sound.repeat(MOST_ENTRIES), today), Vec::<String>::new());
    assert_eq!(faults(&sound.repeat(MOST_ENTRIES + 1), today).len(), 1);
    assert_eq!(faults(&entry("2026-11-20", "2026-12-21"), today).len(), 1);
    assert_eq!(faults(&entry("2026-11-01", "2026-11-24"), today).len(), 1);
    assert_eq!(faults(&sound.replace("cause = \"load\"\n", ""), today).len(), 1);
}
