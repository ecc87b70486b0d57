// SPDX-License-Identifier: Apache-2.0
//! Symbol names as people write them: C++ and Rust paths instead of their encoded forms.
//!
//! Names come from foreign files. A short encoded name can expand to one of exponential length, so the result
//! is cut at a limit.

use std::fmt::{self, Write};

/// Template-heavy C++ has names of some thousand bytes; longer ones are cut and end in `…`.
const MAX_NAME: usize = 4096;
/// Encoded names longer than this stay as they are, cut.
const MAX_ENCODED: usize = 16 << 10;

/// The suffix of names of PLT stubs.
const STUB: &str = "@plt";

/// The readable form of a symbol; `None` for an empty one.
pub fn readable_name(symbol: &str) -> Option<String> {
    match symbol.strip_suffix(STUB) {
        Some(function) if !function.is_empty() => readable(function).map(|name| name + STUB),
        _ => readable(symbol),
    }
}

fn readable(symbol: &str) -> Option<String> {
    if symbol.is_empty() {
        return None;
    }
    let mut text = LimitedText::default();
    let written =
        if symbol.len() > MAX_ENCODED { text.write_str(symbol) } else { write_readable(symbol, &mut text) };
    if written.is_err() && !text.is_cut {
        // The decoder gave up in the middle.
        text = LimitedText::default();
        let _ = text.write_str(symbol);
    }
    Some(text.finish())
}

fn write_readable(symbol: &str, text: &mut LimitedText) -> fmt::Result {
    if is_rust(symbol)
        && let Ok(path) = rustc_demangle::try_demangle(symbol)
    {
        return write!(text, "{path:#}");
    }
    if symbol.starts_with("_Z")
        && let Ok(parsed) = cpp_demangle::BorrowedSymbol::new(symbol.as_bytes())
    {
        return parsed.structured_demangle(text, &cpp_demangle::DemangleOptions::new());
    }
    text.write_str(symbol)
}

/// Rust's v0 names begin with `_R`; its older ones look like C++ and end in a hash of 16 digits.
fn is_rust(symbol: &str) -> bool {
    // A suffix of the linker (`.llvm.123`) comes after the hash; dots before it belong to the path.
    let old = || {
        let rest = symbol.rsplit_once("17h").map_or("", |(_, rest)| rest);
        let hash = rest.as_bytes().get(..16).unwrap_or_default();
        let ends = rest.get(16..).is_some_and(|tail| tail == "E" || tail.starts_with("E."));
        ends && hash.iter().all(u8::is_ascii_hexdigit)
    };
    symbol.starts_with("_R") || (symbol.starts_with("_ZN") && old())
}

/// Text that refuses to grow beyond the limit. The refusal is an error, which ends the demangler as well.
#[derive(Default)]
struct LimitedText {
    text: String,
    is_cut: bool,
}

impl LimitedText {
    fn finish(mut self) -> String {
        if self.is_cut {
            self.text.push('…');
        }
        self.text
    }
}

impl Write for LimitedText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let left = MAX_NAME - self.text.len();
        if part.len() <= left && !self.is_cut {
            self.text.push_str(part);
            return Ok(());
        }
        if !self.is_cut {
            let fits = |&at: &usize| at <= left;
            let end = part.char_indices().map(|(at, _)| at).take_while(fits).last().unwrap_or(0);
            self.text.push_str(&part[..end]);
            self.is_cut = true;
        }
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_encoding_is_read() {
        let cases = [
            (
                "_ZN79_$LT$core..result..Result$LT$T$C$E$GT$$u20$as$u20$core..ops..try_trait..Try$GT$6branch17hcf5d50659f6a3217E",
                "<core::result::Result<T,E> as core::ops::try_trait::Try>::branch",
            ),
            ("main", "main"),
            ("_ZN4shop4Cart5totalEi", "shop::Cart::total(int)"),
            ("_ZN4shop4Cart5totalEv.cold", "shop::Cart::total() [clone .cold]"),
            ("_ZNSt6vectorIiSaIiEE9push_backEOi", "std::vector<int, std::allocator<int> >::push_back(int&&)"),
            ("_ZN4core3ptr4read17h0123456789abcdefE", "core::ptr::read"),
            ("_ZN4core3ptr4read17h0123456789abcdefE.llvm.123", "core::ptr::read"),
            ("_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar"),
            ("_ZN4shop4Cart5totalEi@plt", "shop::Cart::total(int)@plt"),
            ("_ZN4core3ptr4read17h0123456789abcdefE@plt", "core::ptr::read@plt"),
            ("write@plt", "write@plt"),
            ("_Znot a name@plt", "_Znot a name@plt"),
            ("@plt", "@plt"),
            ("_Znot a name", "_Znot a name"),
            ("_R", "_R"),
        ];
        for (symbol, expected) in cases {
            assert_eq!(readable_name(symbol).as_deref(), Some(expected));
        }
        assert_eq!(readable_name(""), None);
    }

    #[test]
    fn names_are_cut_at_the_limit() {
        let long = "é".repeat(MAX_ENCODED);
        let cut = readable_name(&long).expect("a name");
        assert_eq!(cut, "é".repeat(MAX_NAME / 2) + "…");
        // Each parameter is a pair of the one before: 2^24 names from 200 bytes.
        let digits = "0123456789ABCDEFGHIJKLMN".chars();
        let doubling: String = digits.map(|before| format!("S_IS{before}_S{before}_E")).collect();
        let name = readable_name(&format!("_Z1f1aIiiE{doubling}")).expect("a name");
        assert!(name.starts_with("f(a<int, int>, a<a<int, int>, a<int, int> >, ") && name.ends_with('…'));
        assert!(name.len() <= MAX_NAME + '…'.len_utf8());
    }

    proptest! {
        #[test]
        fn any_symbol_is_harmless(symbol in "(_ZN|_Z|_R)?[A-Za-z0-9_$.]{0,120}", any_text in "\\PC{0,60}") {
            for symbol in [format!("{symbol}@plt@plt"), symbol, any_text] {
                let name = readable_name(&symbol);
                prop_assert_eq!(name.is_none(), symbol.is_empty());
                let longest = MAX_NAME + '…'.len_utf8() + 2 * STUB.len();
                prop_assert!(name.is_none_or(|name| name.len() <= longest));
            }
        }
    }
}
