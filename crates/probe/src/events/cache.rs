// SPDX-License-Identifier: Apache-2.0
//! Hardware cache events: `L1-dcache-load-misses`, `dTLB-loads`, `node-prefetches` …
//!
//! perf writes them as cache, operation and result joined by `-`; the operation defaults to loads and the
//! result to accesses. Encoding: `cache | operation << 8 | result << 16` (perf_event_open(2),
//! PERF_TYPE_HW_CACHE).

use super::spec::{PerfEventSpec, Sampling, event_type};

/// One axis of the name: the spelling that perf prints first, then those it also reads.
struct Word {
    spellings: &'static [&'static str],
    code: u64,
}

/// A cache with its operations: bit 0 loads, 1 stores, 2 prefetches.
struct Cache {
    word: Word,
    operations: u8,
}

const LOADS: u8 = 1;
const STORES: u8 = 2;
const PREFETCHES: u8 = 4;

const CACHES: &[Cache] = &[
    cache(&["L1-dcache", "l1-d", "l1d", "L1-data"], 0, LOADS | STORES | PREFETCHES),
    cache(&["L1-icache", "l1-i", "l1i", "L1-instruction"], 1, LOADS | PREFETCHES),
    cache(&["LLC", "L2"], 2, LOADS | STORES | PREFETCHES),
    cache(&["dTLB", "d-tlb", "Data-TLB"], 3, LOADS | STORES | PREFETCHES),
    cache(&["iTLB", "i-tlb", "Instruction-TLB"], 4, LOADS),
    cache(&["branch", "branches", "bpu", "btb", "bpc"], 5, LOADS),
    cache(&["node"], 6, LOADS | STORES | PREFETCHES),
];

const OPERATIONS: &[Word] = &[
    word(&["load", "loads", "read"], 0),
    word(&["store", "stores", "write"], 1),
    word(&["prefetch", "prefetches", "speculative-read", "speculative-load"], 2),
];

const RESULTS: &[Word] = &[word(&["refs", "Reference", "ops", "access"], 0), word(&["misses", "miss"], 1)];

/// The event of this name, `None` if it is not one of these.
pub(super) fn cache_event(name: &str) -> Option<PerfEventSpec> {
    CACHES
        .iter()
        .find_map(|cache| {
            let rest = cache.word.spellings.iter().filter_map(|spelling| strip_word(name, spelling));
            rest.filter_map(|rest| config(cache, rest)).next()
        })
        .map(|config| PerfEventSpec::new(name, event_type::HW_CACHE, config, Sampling::Frequency))
}

/// The names that `perf list` shows, best known caches first.
pub(super) fn cache_names() -> impl Iterator<Item = String> {
    CACHES.iter().flat_map(|cache| {
        let operations = OPERATIONS.iter().filter(|operation| cache.operations & 1 << operation.code != 0);
        operations.flat_map(|operation| {
            let (cache, operation) = (cache.word.spellings[0], operation.spellings);
            [format!("{cache}-{}", operation[1]), format!("{cache}-{}-misses", operation[0])]
        })
    })
}

const fn word(spellings: &'static [&'static str], code: u64) -> Word {
    Word { spellings, code }
}

const fn cache(spellings: &'static [&'static str], code: u64, operations: u8) -> Cache {
    Cache { word: word(spellings, code), operations }
}

/// `rest` follows the cache's name: nothing, an operation, a result, or both in either order.
fn config(cache: &Cache, rest: &str) -> Option<u64> {
    let with_result = |rest: &str| match rest {
        "" => Some(0),
        rest => whole_word(RESULTS, rest),
    };
    let (operation, result) = OPERATIONS
        .iter()
        .find_map(|operation| {
            let rests = operation.spellings.iter().filter_map(|spelling| strip_word(rest, spelling));
            rests.filter_map(|rest| Some((operation.code, with_result(rest)?))).next()
        })
        .or_else(|| Some((0, with_result(rest)?)))?;
    let offered = cache.operations & 1 << operation != 0;
    offered.then_some(cache.word.code | operation << 8 | result << 16)
}

/// The rest of `text` after `word`, without the joining `-`. Case does not matter, as in perf.
fn strip_word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let head = text.get(..word.len())?;
    let rest = &text[word.len()..];
    if !head.eq_ignore_ascii_case(word) {
        return None;
    }
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('-').filter(|rest| !rest.is_empty()) }
}

fn whole_word(words: &[Word], text: &str) -> Option<u64> {
    let found = words.iter().find(|word| word.spellings.iter().any(|known| known.eq_ignore_ascii_case(text)));
    found.map(|word| word.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_of(name: &str) -> Option<u64> {
        cache_event(name).map(|spec| spec.config)
    }

    #[test]
    fn names_of_perf_list() {
        assert_eq!(config_of("L1-dcache-loads"), Some(0));
        assert_eq!(config_of("L1-dcache-load-misses"), Some(1 << 16));
        assert_eq!(config_of("L1-icache-load-misses"), Some(1 | 1 << 16));
        assert_eq!(config_of("LLC-stores"), Some(2 | 1 << 8));
        assert_eq!(config_of("dTLB-load-misses"), Some(3 | 1 << 16));
        assert_eq!(config_of("iTLB-loads"), Some(4));
        assert_eq!(config_of("branch-load-misses"), Some(5 | 1 << 16));
        assert_eq!(config_of("node-prefetch-misses"), Some(6 | 2 << 8 | 1 << 16));
    }

    #[test]
    fn spellings_that_perf_reads_too() {
        assert_eq!(config_of("l1d-read-miss"), Some(1 << 16));
        assert_eq!(config_of("llc-misses"), Some(2 | 1 << 16));
        assert_eq!(config_of("d-tlb-speculative-read-refs"), Some(3 | 2 << 8));
        assert_eq!(config_of("LLC"), Some(2));
    }

    #[test]
    fn operations_a_cache_does_not_have() {
        for name in ["L1-icache-stores", "iTLB-stores", "iTLB-prefetches", "branch-stores"] {
            assert_eq!(config_of(name), None, "{name}");
        }
    }

    #[test]
    fn other_texts_are_not_cache_events() {
        for name in
            ["", "-", "LLCloads", "LLC-", "LLC-loads-loads", "LLC-loads-misses-", "nöde", "L1-dcache-é"]
        {
            assert_eq!(config_of(name), None, "{name}");
        }
    }

    #[test]
    fn every_listed_name_is_read_and_means_something_else() {
        let mut configs: Vec<_> = cache_names().map(|name| config_of(&name).unwrap()).collect();
        let all = configs.len();
        configs.sort();
        configs.dedup();
        assert_eq!((configs.len(), all), (32, 32));
    }
}
