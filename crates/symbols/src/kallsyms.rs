// SPDX-License-Identifier: Apache-2.0
//! The running kernel's functions by address, from `/proc/kallsyms`.
//!
//! Read once. The kernel's debug information is never read: it is large, and names are enough.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use wallprof_model::SymbolLine;

const KALLSYMS: &str = "/proc/kallsyms";

/// A kernel with everything built in has some 200,000 functions.
const MAX_SYMBOLS: usize = 1 << 20;
/// `KSYM_NAME_LEN` is 512 since 6.1, and module names have 56 bytes.
const MAX_LINE: u64 = 1024;
/// How far a function reaches at most where the kernel's own code has ended: gaps between modules and BPF
/// programs are empty, or belong to programs that were loaded later.
const MAX_OUTER_FUNCTION: u64 = 64 << 10;

/// Why there are no kernel symbols.
#[derive(Debug)]
pub enum KallsymsError {
    /// The file could not be read.
    Unreadable(io::Error),
    /// The kernel shows zeros instead of addresses.
    Hidden,
    /// There is no function in it.
    Empty,
}

impl fmt::Display for KallsymsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KallsymsError::Unreadable(cause) => {
                write!(
                    f,
                    "cannot read kernel symbols from {KALLSYMS} ({cause}); kernel frames stay without names"
                )
            }
            KallsymsError::Hidden => write!(
                f,
                "{KALLSYMS} hides kernel addresses; run as root or with CAP_SYSLOG, or set sysctl kernel.kptr_restrict=0"
            ),
            KallsymsError::Empty => write!(
                f,
                "{KALLSYMS} lists no functions; use a kernel with CONFIG_KALLSYMS to get names of kernel frames"
            ),
        }
    }
}

impl std::error::Error for KallsymsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            KallsymsError::Unreadable(cause) => Some(cause),
            _ => None,
        }
    }
}

/// A kernel function at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSymbol<'a> {
    /// As `/proc/kallsyms` has it.
    pub name: &'a str,
    /// Bytes from its start.
    pub offset: u64,
}

/// The code of one kernel function, `[start, end)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRange {
    /// As `/proc/kallsyms` has it.
    pub name: String,
    /// The first address.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
}

/// Function names in one string, with their addresses: 1.4 MiB for 64,000 functions.
pub struct KernelSymbols {
    /// Ascending; of several names of one address the one to show comes last.
    addresses: Vec<u64>,
    /// End of each name in `names`; a name starts at the end of the one before.
    name_ends: Vec<u32>,
    names: String,
    /// End of the kernel's own code; what follows is modules and BPF.
    text_end: Option<u64>,
}

/// One line, used while the table is built.
struct RawSymbol {
    address: u64,
    rank: u8,
    name_at: u32,
    name_len: u32,
}

impl KernelSymbols {
    /// The symbols of the running kernel.
    pub fn load() -> Result<Self, KallsymsError> {
        Self::from_path(Path::new(KALLSYMS))
    }

    /// The symbols in a file of the form of `/proc/kallsyms`.
    pub fn from_path(path: &Path) -> Result<Self, KallsymsError> {
        let file = File::open(path).map_err(KallsymsError::Unreadable)?;
        Self::from_reader(BufReader::with_capacity(64 << 10, file))
    }

    /// The symbols in text of the form of `/proc/kallsyms`.
    pub fn from_reader(mut reader: impl BufRead) -> Result<Self, KallsymsError> {
        let mut names = String::new();
        let mut raw = Vec::new();
        let mut line = Vec::new();
        let mut hidden = false;
        while raw.len() < MAX_SYMBOLS {
            line.clear();
            let read = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
            if read.map_err(KallsymsError::Unreadable)? == 0 {
                break;
            }
            let Some((address, kind, name)) = function_from_line(&line) else { continue };
            hidden |= address == 0;
            if address != 0 && names.len() + name.len() <= u32::MAX as usize {
                let (name_at, name_len) = (names.len() as u32, name.len() as u32);
                raw.push(RawSymbol { address, rank: rank(kind, name), name_at, name_len });
                names.push_str(name);
            }
        }
        match (raw.is_empty(), hidden) {
            (true, true) => Err(KallsymsError::Hidden),
            (true, false) => Err(KallsymsError::Empty),
            (false, _) => Ok(Self::from_raw(raw, &names)),
        }
    }

    /// The function whose code holds `address`.
    pub fn symbol(&self, address: u64) -> Option<KernelSymbol<'_>> {
        let index = self.addresses.partition_point(|&start| start <= address).checked_sub(1)?;
        let start = self.addresses[index];
        let offset = address - start;
        let inside_text = self.text_end.is_some_and(|end| address < end);
        let name = self.name(index);
        let known = inside_text || (offset < MAX_OUTER_FUNCTION && !is_section_mark(name));
        known.then_some(KernelSymbol { name, offset })
    }

    /// The functions whose names match, by address, each with the number of the first pattern that it matches. A
    /// pattern is a name, or its beginning and a `*`. What compilers append (`.isra.0`, `.constprop.0`, `.cold`) does
    /// not count.
    pub fn text_ranges(&self, patterns: &[&str]) -> Vec<(usize, KernelRange)> {
        let candidates = by_first_byte(patterns);
        let range = |index: usize| {
            let start = self.addresses[index];
            let after = self.addresses.partition_point(|&known| known <= start);
            let end = self.addresses.get(after).copied().unwrap_or(start.saturating_add(MAX_OUTER_FUNCTION));
            KernelRange { name: self.name(index).to_owned(), start, end }
        };
        let mut ranges = Vec::new();
        let mut from = 0;
        for (index, &to) in self.name_ends.iter().enumerate() {
            let name = &self.names[from as usize..to as usize];
            from = to;
            let Some(&first) = name.as_bytes().first() else { continue };
            let mut numbers = candidates[usize::from(first)].iter();
            let found = numbers.find(|&&number| matches(name, patterns[number]));
            ranges.extend(found.map(|&number| (number, range(index))));
        }
        ranges
    }

    /// The functions at kernel addresses, one list for each; a list of one unknown symbol where none is
    /// known.
    pub fn resolve(&self, addresses: &[u64]) -> Vec<Vec<SymbolLine>> {
        let line = |&address: &u64| {
            let symbol = self.symbol(address);
            vec![SymbolLine {
                symbol: symbol.map(|symbol| symbol.name.to_owned()),
                offset: symbol.map(|symbol| symbol.offset),
                ..SymbolLine::default()
            }]
        };
        addresses.iter().map(line).collect()
    }

    /// How many functions there are.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Whether there is no function; [`KernelSymbols::load`] returns an error then.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Bytes of memory the table takes.
    pub fn memory(&self) -> usize {
        self.addresses.capacity() * size_of::<u64>()
            + self.name_ends.capacity() * size_of::<u32>()
            + self.names.capacity()
    }

    fn name(&self, index: usize) -> &str {
        let from = index.checked_sub(1).map_or(0, |before| self.name_ends[before]);
        &self.names[from as usize..self.name_ends[index] as usize]
    }

    fn from_raw(mut raw: Vec<RawSymbol>, unsorted: &str) -> Self {
        let name = |symbol: &RawSymbol| {
            let from = symbol.name_at as usize;
            &unsorted[from..from + symbol.name_len as usize]
        };
        raw.sort_by(|one, other| {
            let key = |symbol: &RawSymbol| (symbol.address, symbol.rank);
            key(one).cmp(&key(other)).then_with(|| name(other).cmp(name(one)))
        });
        let mut table = KernelSymbols {
            addresses: raw.iter().map(|symbol| symbol.address).collect(),
            name_ends: Vec::with_capacity(raw.len()),
            names: String::with_capacity(unsorted.len()),
            text_end: raw.iter().find(|symbol| name(symbol) == "_etext").map(|symbol| symbol.address),
        };
        for symbol in &raw {
            table.names.push_str(name(symbol));
            table.name_ends.push(table.names.len() as u32);
        }
        table
    }
}

/// Address, type and name of a function. `__pfx_` and `__cfi_` mark the padding before functions, which
/// is never executed and doubles the table; `[__builtin__ftrace]` marks pages, not functions.
fn function_from_line(line: &[u8]) -> Option<(u64, u8, &str)> {
    let mut fields = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let address = u64::from_str_radix(fields.next()?, 16).ok()?;
    let &[kind] = fields.next()?.as_bytes() else { return None };
    let name = fields.next()?;
    let padding = name.starts_with("__pfx_") || name.starts_with("__cfi_");
    let pages = fields.next().is_some_and(|module| module.starts_with("[__builtin__"));
    (matches!(kind, b't' | b'T' | b'w' | b'W') && !padding && !pages).then_some((address, kind, name))
}

/// Rank of a name among several of one address: functions before section marks, global before weak before
/// local, and fewer underscores before more.
fn rank(kind: u8, name: &str) -> u8 {
    let mark = is_section_mark(name);
    let binding = match kind {
        b'T' => 2,
        b'W' | b'w' => 1,
        _ => 0,
    };
    let underscores = name.bytes().take_while(|&byte| byte == b'_').count().min(15) as u8;
    u8::from(!mark) << 7 | binding << 4 | (15 - underscores)
}

/// Linker scripts define these at the start and end of sections.
fn is_section_mark(name: &str) -> bool {
    matches!(name, "_text" | "_stext" | "_etext" | "_sinittext" | "_einittext")
        || name.ends_with("_text_start")
        || name.ends_with("_text_end")
}

/// For each byte the numbers of the patterns that a name with this first byte may match: few, since each of 200,000
/// names is compared with them.
fn by_first_byte(patterns: &[&str]) -> Vec<Vec<usize>> {
    let is_first =
        |pattern: &str, byte: u8| pattern.bytes().next().is_some_and(|first| first == byte || first == b'*');
    let numbers = |byte| (0..patterns.len()).filter(|&number| is_first(patterns[number], byte)).collect();
    (0..=u8::MAX).map(numbers).collect()
}

fn matches(name: &str, pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name.strip_prefix(pattern).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SAMPLE: &str = "\
ffffffff81000000 T _stext
ffffffff81000000 t __local_alias
ffffffff81000000 T first
ffffffff81000100 t __pfx_mutex_lock
ffffffff81000110 T mutex_lock
ffffffff81000180 t __mutex_lock.constprop.0
ffffffff81000200 D some_data
ffffffff81000210 W weak_one
ffffffff81000300 T _etext
ffffffffc0200000 t in_module\t[some_module]
ffffffffc0200100 t bpf_prog_1234_ours\t[bpf]
";

    fn sample() -> KernelSymbols {
        KernelSymbols::from_reader(SAMPLE.as_bytes()).expect("symbols")
    }

    fn name_at(symbols: &KernelSymbols, address: u64) -> Option<(&str, u64)> {
        symbols.symbol(address).map(|symbol| (symbol.name, symbol.offset))
    }

    #[test]
    fn addresses_get_the_best_of_their_names() {
        let symbols = sample();
        assert_eq!(name_at(&symbols, 0xffff_ffff_8100_0004), Some(("first", 4)));
        assert_eq!(name_at(&symbols, 0xffff_ffff_8100_0111), Some(("mutex_lock", 1)));
        assert_eq!(name_at(&symbols, 0xffff_ffff_8100_02ff), Some(("weak_one", 0xef)));
        assert_eq!(name_at(&symbols, 0xffff_ffff_c020_0008), Some(("in_module", 8)));
        assert_eq!(name_at(&symbols, 0xffff_ffff_c020_0108), Some(("bpf_prog_1234_ours", 8)));
    }

    #[test]
    fn memory_outside_known_code_has_no_name() {
        let symbols = sample();
        for address in [0, 0xffff_ffff_80ff_ffff, 0xffff_ffff_8100_0300, 0xffff_ffff_c010_0010, u64::MAX] {
            assert_eq!(name_at(&symbols, address), None, "{address:#x}");
        }
    }

    #[test]
    fn patterns_match_names_beginnings_and_clones() {
        let ranges = sample().text_ranges(&["mutex_lock", "__mutex_lock"]);
        let range = |number, name: &str, start, end| (number, KernelRange { name: name.into(), start, end });
        let expected = [
            range(0, "mutex_lock", 0xffff_ffff_8100_0110, 0xffff_ffff_8100_0180),
            range(1, "__mutex_lock.constprop.0", 0xffff_ffff_8100_0180, 0xffff_ffff_8100_0210),
        ];
        assert_eq!(ranges, expected);
        assert_eq!(sample().text_ranges(&["mutex"]), []);
        assert_eq!(sample().text_ranges(&["bpf_prog_*"])[0].1.end, 0xffff_ffff_c021_0100);
    }

    #[test]
    fn a_function_has_the_first_pattern_that_it_matches() {
        let numbers = |patterns: &[&str]| -> Vec<usize> {
            sample().text_ranges(patterns).into_iter().map(|(number, _)| number).collect()
        };
        assert_eq!(numbers(&["fi*", "first", "__mutex*"]), [0, 2]);
        assert_eq!(numbers(&["first", "fi*", "mu*", "mutex_lock"]), [0, 2]);
    }

    #[test]
    fn hidden_addresses_and_an_empty_table_are_different_errors() {
        let hidden =
            KernelSymbols::from_reader(b"0000000000000000 T _stext\n".as_slice()).err().expect("hidden");
        assert!(matches!(hidden, KallsymsError::Hidden));
        assert!(hidden.to_string().contains("CAP_SYSLOG"));
        let empty = KernelSymbols::from_reader(b"ffffffff81000000 D data\n".as_slice()).err().expect("empty");
        assert!(matches!(empty, KallsymsError::Empty));
        let missing = KernelSymbols::from_path(Path::new("/nonexistent")).err().expect("missing");
        assert!(matches!(missing, KallsymsError::Unreadable(_)));
    }

    #[test]
    fn the_running_kernel_is_read_in_bounded_memory() {
        let symbols = match KernelSymbols::load() {
            Ok(symbols) => symbols,
            Err(hidden) => {
                let test = "the_running_kernel_is_read_in_bounded_memory";
                return wallprof_testkit::skip(test, &hidden.to_string());
            }
        };
        let (_, schedule) = &symbols.text_ranges(&["schedule"])[0];
        assert_eq!(name_at(&symbols, schedule.start + 1), Some(("schedule", 1)));
        let lines = symbols.resolve(&[schedule.start, 1]);
        assert_eq!(lines[0][0].symbol.as_deref(), Some("schedule"));
        assert_eq!(lines[1], [SymbolLine::default()]);
        assert!(symbols.memory() / symbols.len() < 80, "12 MiB for 150,000 functions");
    }

    proptest! {
        #[test]
        fn any_text_is_harmless(lines in proptest::collection::vec("[0-9a-f]{0,17} [tTwWDq]{0,2} \\PC{0,20}\n?", 0..40), address in any::<u64>()) {
            if let Ok(symbols) = KernelSymbols::from_reader(lines.concat().as_bytes()) {
                let _ = symbols.symbol(address);
                prop_assert!(symbols.text_ranges(&["*"]).iter().all(|(_, range)| range.start <= range.end));
            }
        }
    }
}
