// SPDX-License-Identifier: Apache-2.0
//! Debug information of one file: functions, inlined functions, files and lines. The one home of blazesym.
//!
//! Owns no limits: a crafted file can make a parser allocate without end or keep it busy. The files of others
//! are parsed in a process of their own ([`crate::reader`]), all others on a thread
//! ([`crate::debug_reader`]).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolizer};
use wallprof_model::SymbolLine;

use crate::demangle::readable_name;

/// Addresses that are looked up before parsing starts over. The memory of a parser grows with the compilation
/// units of the addresses (a thousand scattered addresses of a Rust program: 27 MiB).
pub(crate) const ADDRESSES_A_PARSE: usize = 128;
/// `PATH_MAX`.
const MAX_PATH: usize = 4096;

/// The function at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DebugFunction {
    /// Innermost first, at least one. The last one has no offset where `start` is not known.
    pub lines: Vec<SymbolLine>,
    /// 0 for a function in several parts: `DW_AT_ranges` lists the parts, and blazesym gives none of them.
    pub start: u64,
    /// Whether it is known to reach to the address.
    pub sized: bool,
}

/// One entry for each address that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub functions: Vec<Option<DebugFunction>>,
    pub is_damaged: bool,
}

pub(crate) struct Parser {
    symbolizer: Symbolizer,
    path: PathBuf,
    debug_dirs: Vec<PathBuf>,
    /// Addresses looked up since the last start.
    asked: usize,
}

impl Parser {
    /// Nothing is read before the first address is asked for.
    pub(crate) fn new(path: PathBuf, debug_dirs: Vec<PathBuf>) -> Self {
        Parser { symbolizer: symbolizer(&debug_dirs), path, debug_dirs, asked: 0 }
    }

    /// At most [`ADDRESSES_A_PARSE`] addresses at once.
    pub(crate) fn answer(&mut self, addresses: &[u64]) -> Answer {
        if self.asked + addresses.len() > ADDRESSES_A_PARSE {
            self.asked = 0;
            self.symbolizer = symbolizer(&self.debug_dirs);
        }
        self.asked += addresses.len();
        let found: Vec<_> = addresses.iter().map(|&address| self.function(address)).collect();
        let is_damaged = found.iter().any(Result::is_err);
        Answer { functions: found.into_iter().map(|found| found.unwrap_or(None)).collect(), is_damaged }
    }

    /// A damaged file must not end the recorder: blazesym's arithmetic on untrusted sizes is checked in debug
    /// builds only, and there it panics.
    fn function(&self, address: u64) -> Result<Option<DebugFunction>, Damaged> {
        let source = Source::Elf(Elf::new(&self.path));
        let attempt = || self.symbolizer.symbolize_single(&source, Input::VirtOffset(address));
        let symbolized = catch_unwind(AssertUnwindSafe(attempt)).ok().and_then(Result::ok);
        Ok(symbolized.ok_or(Damaged)?.as_sym().map(function_from_symbol))
    }
}

struct Damaged;

fn symbolizer(debug_dirs: &[PathBuf]) -> Symbolizer {
    Symbolizer::builder()
        .enable_auto_reload(false)
        .enable_code_info(true)
        .enable_inlined_fns(true)
        .enable_demangling(false)
        .set_debug_dirs(Some(debug_dirs))
        .build()
}

fn function_from_symbol(symbol: &Sym<'_>) -> DebugFunction {
    let in_parts = is_in_parts(symbol);
    let sized = in_parts || symbol.size.is_some_and(|size| symbol.offset < size);
    let offset = (!in_parts).then_some(symbol.offset as u64);
    DebugFunction { lines: lines_from_symbol(symbol, offset), start: symbol.addr, sized }
}

/// Whether the function has `DW_AT_ranges`, one of which has the address: gcc moves cold code out of a
/// function from `-O2` on. blazesym 0.2.7 gives it no size and the start 0. A label at 0 of the symbol table
/// looks the same, but has no line.
fn is_in_parts(symbol: &Sym<'_>) -> bool {
    symbol.size.is_none() && symbol.addr == 0 && symbol.code_info.is_some()
}

/// blazesym lists the physical function first and inlined ones outermost first.
fn lines_from_symbol(symbol: &Sym<'_>, offset: Option<u64>) -> Vec<SymbolLine> {
    let inlined = symbol.inlined.iter().rev().map(|inlined| SymbolLine {
        symbol: readable_name(&inlined.name),
        offset: None,
        inlined: true,
        ..line_from_code(inlined.code_info.as_ref())
    });
    let physical = SymbolLine {
        symbol: readable_name(&symbol.name),
        offset,
        inlined: false,
        ..line_from_code(symbol.code_info.as_deref())
    };
    inlined.chain([physical]).collect()
}

fn line_from_code(code: Option<&CodeInfo<'_>>) -> SymbolLine {
    let path = |code: &CodeInfo<'_>| {
        let path = code.to_path();
        let bytes = path.as_os_str().as_encoded_bytes();
        String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_PATH)]).into_owned()
    };
    SymbolLine { file: code.map(path), line: code.and_then(|code| code.line), ..SymbolLine::default() }
}
