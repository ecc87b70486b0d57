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
/// Of a test that the gate does not run live.
const KEYS_OF_STORED: [&str; 4] = ["cause", "failed", "first_seen", "test"];

type Entry = BTreeMap<String, String>;

/// The tables `[[flaky]]` and `[[confirm]]` in the two forms of TOML that the file has: `key = "text"` and
/// `key = 2026-11-25`.
fn entries(text: &str) -> Vec<(&str, Entry)> {
    let mut entries: Vec<(&str, Entry)> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(table) = line.strip_prefix("[[").and_then(|line| line.strip_suffix("]]")) {
            entries.push((table, Entry::new()));
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("`{line}` is no `key = value`"));
        let (_, entry) = entries.last_mut().unwrap_or_else(|| panic!("`{line}` is outside of a table"));
        entry.insert(key.trim().to_owned(), value.trim().trim_matches('"').to_owned());
    }
    entries
}

/// Whether the gate reads a stored run for the test `wallprof::PROGRAM NAME`.
fn is_stored(test: &str) -> bool {
    let named = test.strip_prefix("wallprof::").and_then(|test| test.split_once(' '));
    named.is_some_and(|(program, name)| {
        let run = format!("../../tests/stored/{program}/{}.zst", name.replace("::", "."));
        Path::new(env!("CARGO_MANIFEST_DIR")).join(run).exists()
    })
}

fn faults(text: &str, today: Date, is_stored: impl Fn(&str) -> bool) -> Vec<String> {
    let entries = entries(text);
    let mut faults = Vec::new();
    let flaky = entries.iter().filter(|(table, _)| *table == "flaky").count();
    if flaky > MOST_ENTRIES {
        faults.push(format!("{flaky} entries: at most {MOST_ENTRIES} may be"));
    }
    for (table, entry) in &entries {
        let (keys, is_of_stored) = match *table {
            "flaky" => (&KEYS[..], false),
            "confirm" => (&KEYS_OF_STORED[..], true),
            _ => panic!("[[{table}]] is neither [[flaky]] nor [[confirm]]"),
        };
        if !entry.keys().eq(keys) {
            faults.push(format!("{entry:?} has other keys than {keys:?}"));
            continue;
        }
        if is_stored(&entry["test"]) != is_of_stored {
            faults.push(format!("{} is in the wrong table, [[{table}]]", entry["test"]));
        }
        if is_of_stored {
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
    let faults = faults(&text, Zoned::now().date(), is_stored);
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
    let faults = |text: &str, today| faults(text, today, |test| test == "a stored");
    let sound = entry("2026-11-20", "2026-12-20");
    assert_eq!(faults(&sound, today), Vec::<String>::new());
    assert_eq!(faults(&sound.repeat(MOST_ENTRIES), today), Vec::<String>::new());
    assert_eq!(faults(&sound.repeat(MOST_ENTRIES + 1), today).len(), 1);
    assert_eq!(faults(&entry("2026-11-20", "2026-12-21"), today).len(), 1);
    assert_eq!(faults(&entry("2026-11-01", "2026-11-24"), today).len(), 1);
    assert_eq!(faults(&sound.replace("cause = \"load\"\n", ""), today).len(), 1);
    assert_eq!(faults(&sound.replace("a b", "a stored"), today).len(), 1, "the gate does not run it");
    let stored =
        "[[confirm]]\ntest = \"a stored\"\nfirst_seen = 2026-11-20\nfailed = \"1 of 9\"\ncause = \"load\"\n";
    assert_eq!(faults(&stored.repeat(MOST_ENTRIES + 1), today), Vec::<String>::new());
    assert_eq!(faults(&stored.replace("a stored", "a live"), today).len(), 1);
}
