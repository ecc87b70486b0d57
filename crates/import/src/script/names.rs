// SPDX-License-Identifier: Apache-2.0
//! The functions in a text, each with one number for all parsing threads.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, PoisonError};

use wallprof_intel_pt::FunctionId;

use super::line::Place;

/// The limit of distinct functions, more than any program has.
const MOST: usize = 1 << 20;
/// The limit of bytes of all names.
const MOST_BYTES: usize = 512 << 20;

/// A function as it was first printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub symbol: Vec<u8>,
    /// Empty if unknown.
    pub module: Vec<u8>,
    /// Its start, in the first process with it.
    pub entry: u64,
}

/// All functions.
#[derive(Default)]
pub(super) struct Names {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    numbers: HashMap<(Vec<u8>, Vec<u8>), FunctionId>,
    named: Vec<Named>,
    bytes: usize,
    refused: u64,
}

impl Names {
    fn number(&self, symbol: &[u8], place: &Place<'_>) -> FunctionId {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (symbol.to_vec(), place.module.to_vec());
        if let Some(&known) = table.numbers.get(&key) {
            return known;
        }
        let bytes = symbol.len() + place.module.len();
        if table.named.len() >= MOST || table.bytes + bytes > MOST_BYTES {
            table.refused += 1;
            return FunctionId::UNKNOWN;
        }
        table.bytes += bytes;
        let entry = place.address.wrapping_sub(place.offset);
        table.named.push(Named { symbol: key.0.clone(), module: key.1.clone(), entry });
        // Number 0 is that of unknown functions.
        let number = FunctionId(table.named.len() as u32);
        table.numbers.insert(key, number);
        number
    }

    /// Whether the function's name is that of a stub of the procedure linkage table.
    pub fn is_stub(&self, function: FunctionId) -> bool {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let named = (function.0 as usize).checked_sub(1).and_then(|index| table.named.get(index));
        named.is_some_and(|named| named.symbol.ends_with(b"@plt"))
    }

    /// All functions by their numbers less one, and the count of those beyond the limit.
    pub fn into_all(self) -> (Vec<Named>, u64) {
        let table = self.table.into_inner().unwrap_or_else(PoisonError::into_inner);
        (table.named, table.refused)
    }
}

/// A function in the cache of one parsing thread.
struct Cached {
    symbol: Box<[u8]>,
    module: Box<[u8]>,
    function: FunctionId,
    cold: bool,
}

/// The cache that one parsing thread has of [`Names`], without locks.
pub(super) struct LocalNames<'a> {
    all: &'a Names,
    known: HashMap<u64, Cached, BuildHasherDefault<Hashed>>,
}

/// The function around a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Around {
    pub function: FunctionId,
    pub at_entry: bool,
}

impl<'a> LocalNames<'a> {
    pub fn new(all: &'a Names) -> Self {
        LocalNames { all, known: HashMap::default() }
    }

    /// A part that the compiler split off belongs to its function, but is not its entry.
    #[inline]
    pub fn around(&mut self, place: &Place<'_>) -> Around {
        if place.symbol.is_empty() {
            return Around::default();
        }
        let hash = mixed(mixed(0, place.symbol), place.module);
        let all = self.all;
        let known = self.known.entry(hash).or_insert_with(|| cached(all, place));
        let other;
        let known = if is_same(&known.symbol, place.symbol) && is_same(&known.module, place.module) {
            known
        } else {
            other = cached(all, place);
            &other
        };
        Around { function: known.function, at_entry: place.offset == 0 && !known.cold }
    }
}

/// Texts of no length are not compared: glibc's `memcmp` for AVX-512 reads from the pointers all the same,
/// behind a mask, and the processor takes some 150 ns to find that an empty slice's points nowhere.
#[inline]
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && (one.is_empty() || one == other)
}

fn cached(all: &Names, place: &Place<'_>) -> Cached {
    let whole = without_cold(place.symbol);
    Cached {
        symbol: place.symbol.into(),
        module: place.module.into(),
        function: all.number(whole, place),
        cold: whole.len() < place.symbol.len(),
    }
}

/// `f.cold`, `f.cold.7` and `f() [clone .cold]` without the suffix of a part.
fn without_cold(symbol: &[u8]) -> &[u8] {
    let digits = symbol.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let numberless = symbol[..symbol.len() - digits].strip_suffix(b".").unwrap_or(symbol);
    for text in [symbol, numberless] {
        for suffix in [&b".cold"[..], b" [clone .cold]"] {
            if let Some(whole) = text.strip_suffix(suffix).filter(|whole| !whole.is_empty()) {
                return whole;
            }
        }
    }
    symbol
}

/// Eight bytes at a time. Names that collide cost time and still get different numbers.
#[inline]
fn mixed(mut state: u64, bytes: &[u8]) -> u64 {
    let mut mix = |word: u64| {
        let product = u128::from(state ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xa076_1d64_78bd_642f;
        state = (product >> 64) as u64 ^ product as u64;
    };
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().for_each(|word| mix(u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(u64::from_le_bytes(last));
    mix(bytes.len() as u64);
    state
}

/// Keys that are hashes already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = mixed(self.0, bytes);
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(symbol: &'static str, offset: u64, module: &'static str) -> Place<'static> {
        Place { address: 0x1000 + offset, symbol: symbol.as_bytes(), offset, module: module.as_bytes() }
    }

    #[test]
    fn function_has_one_number_for_all_threads() {
        let names = Names::default();
        let (mut one, mut other) = (LocalNames::new(&names), LocalNames::new(&names));
        let main = one.around(&place("main", 0, "a"));
        assert_eq!(main, Around { function: FunctionId(1), at_entry: true });
        assert_eq!(other.around(&place("main", 7, "a")), Around { at_entry: false, ..main });
        assert_ne!(other.around(&place("main", 0, "b")).function, main.function);
        assert_eq!(other.around(&place("", 0, "b")), Around::default());
        let (named, refused) = names.into_all();
        assert_eq!((named.len(), refused), (2, 0));
        assert_eq!(named[0], Named { symbol: b"main".into(), module: b"a".into(), entry: 0x1000 });
    }

    #[test]
    fn cold_parts_belong_to_their_function() {
        let names = Names::default();
        let mut names = LocalNames::new(&names);
        let main = names.around(&place("main", 8, ""));
        for part in ["main.cold", "main.cold.12", "main [clone .cold]"] {
            assert_eq!(names.around(&place(part, 0, "")), main, "{part}");
        }
        for other in ["main.part.0", ".cold", "main.cold2", "12"] {
            assert_ne!(names.around(&place(other, 8, "")).function, main.function, "{other}");
        }
    }

    #[test]
    fn names_with_equal_hashes_are_distinguished() {
        let names = Names::default();
        let mut local = LocalNames::new(&names);
        let hash = mixed(mixed(0, b"main"), b"");
        local.known.insert(hash, cached(&names, &place("other", 0, "")));
        assert_eq!(local.around(&place("main", 0, "")).function, FunctionId(2));
    }
}
