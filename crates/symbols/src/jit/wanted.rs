// SPDX-License-Identifier: Apache-2.0
//! Addresses whose names are collected while a source is read from start to end.
//!
//! Sources are not kept in memory, only the best name of each requested address.

use std::rc::Rc;

use wallprof_model::{MonoNs, SymbolLine};

use crate::demangle::readable_name;

/// A function may cover many requested addresses, but a source with a million functions that all cover
/// thousands of them was crafted to waste time.
const MAX_MATCHES: u64 = 1 << 24;

/// Addresses, each with the timestamp at which it was first seen, and the best name so far.
#[derive(Default)]
pub(super) struct Wanted {
    /// By address, then by timestamp.
    entries: Vec<Entry>,
    matches: u64,
}

struct Entry {
    address: u64,
    first_seen: MonoNs,
    found: Option<Found>,
}

struct Found {
    start: u64,
    name: Rc<[u8]>,
}

/// Code that a source names: `[start, start + size)`, and the timestamp of its load where that is known.
pub(super) struct Code<'a> {
    pub start: u64,
    pub size: u64,
    pub since: Option<MonoNs>,
    pub name: &'a [u8],
}

impl Wanted {
    pub(super) fn new(addresses: impl Iterator<Item = (u64, MonoNs)>) -> Self {
        let mut entries: Vec<Entry> =
            addresses.map(|(address, first_seen)| Entry { address, first_seen, found: None }).collect();
        entries.sort_unstable_by_key(Entry::key);
        entries.dedup_by_key(|entry| entry.key());
        Wanted { entries, matches: 0 }
    }

    /// Adds the next function of a source: of several at one address the last one is right. False when the
    /// limit of comparisons is reached.
    pub(super) fn see(&mut self, code: &Code<'_>) -> bool {
        let end = code.start.saturating_add(code.size);
        let from = self.entries.partition_point(|entry| entry.address < code.start);
        let covered = self.entries[from..].iter_mut().take_while(|entry| entry.address < end);
        let mut name = None;
        for entry in covered {
            self.matches += 1;
            if code.since.is_none_or(|since| since <= entry.first_seen) {
                let name = Rc::clone(name.get_or_insert_with(|| Rc::from(code.name)));
                entry.found = Some(Found { start: code.start, name });
            }
        }
        self.matches < MAX_MATCHES
    }

    /// The name of one requested address.
    pub(super) fn take(&mut self, address: u64, first_seen: MonoNs) -> Option<SymbolLine> {
        let at = self.entries.binary_search_by_key(&(address, first_seen), Entry::key).ok()?;
        let found = self.entries[at].found.as_ref()?;
        let symbol = readable_name(&String::from_utf8_lossy(&found.name))?;
        Some(SymbolLine {
            symbol: Some(symbol),
            offset: Some(address - found.start),
            ..SymbolLine::default()
        })
    }
}

impl Entry {
    fn key(&self) -> (u64, MonoNs) {
        (self.address, self.first_seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(start: u64, size: u64, since: Option<u64>, name: &str) -> Code<'_> {
        Code { start, size, since: since.map(MonoNs), name: name.as_bytes() }
    }

    fn taken(wanted: &mut Wanted, address: u64, first_seen: u64) -> Option<(String, u64)> {
        let line = wanted.take(address, MonoNs(first_seen))?;
        Some((line.symbol?, line.offset?))
    }

    #[test]
    fn the_last_function_at_an_address_wins() {
        let mut wanted =
            Wanted::new([(0x100, MonoNs(0)), (0x1ff, MonoNs(0)), (0x200, MonoNs(0))].into_iter());
        assert!(wanted.see(&code(0x100, 0x100, None, "old")));
        assert!(wanted.see(&code(0x180, 0x80, None, "new")));
        assert_eq!(taken(&mut wanted, 0x100, 0), Some(("old".into(), 0)));
        assert_eq!(taken(&mut wanted, 0x1ff, 0), Some(("new".into(), 0x7f)));
        assert_eq!(taken(&mut wanted, 0x200, 0), None);
    }

    #[test]
    fn code_loaded_after_the_sample_does_not_name_it() {
        let mut wanted = Wanted::new([(0x100, MonoNs(5)), (0x100, MonoNs(20))].into_iter());
        for (since, name) in [(1, "first"), (10, "second"), (30, "third")] {
            wanted.see(&code(0x100, 1, Some(since), name));
        }
        assert_eq!(taken(&mut wanted, 0x100, 5), Some(("first".into(), 0)));
        assert_eq!(taken(&mut wanted, 0x100, 20), Some(("second".into(), 0)));
    }

    #[test]
    fn code_to_the_end_of_memory_and_code_of_no_size() {
        let mut wanted = Wanted::new([(u64::MAX - 1, MonoNs(0))].into_iter());
        wanted.see(&code(u64::MAX - 1, 0, None, "nothing"));
        assert_eq!(taken(&mut wanted, u64::MAX - 1, 0), None);
        wanted.see(&code(1, u64::MAX, None, "everything"));
        assert_eq!(taken(&mut wanted, u64::MAX - 1, 0), Some(("everything".into(), u64::MAX - 2)));
    }

    #[test]
    fn source_with_too_many_overlaps_is_given_up() {
        let mut wanted = Wanted::new((0..1 << 16).map(|address| (address, MonoNs(0))));
        let read = (0..1 << 20).take_while(|_| wanted.see(&code(0, 1 << 16, None, "x"))).count();
        assert_eq!(read as u64, MAX_MATCHES / (1 << 16) - 1);
    }
}
