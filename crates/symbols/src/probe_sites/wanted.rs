// SPDX-License-Identifier: Apache-2.0
//! Whether a symbol is the function that a user names.
//!
//! A user writes a symbol as it is (`_ZN4shop4Cart5totalEi`, `memcpy@@GLIBC_2.14`), as wallprof prints it
//! (`shop::Cart::total(int)`), without what a caller does not know (`shop::Cart::total`, `memcpy`), or as the
//! address of the symbol (`0x1139`).

use crate::demangle::readable_name;

/// Symbols that are decoded for one search. A decoding takes some microseconds.
const MAX_DECODED: usize = 1 << 20;

/// A function that a user names.
pub(super) struct Wanted<'a> {
    text: &'a str,
    /// A part of the name that the encoded name contains as well. `None`: nothing is certain.
    key: Option<&'a str>,
    address: Option<u64>,
    decoded: usize,
}

/// How well a symbol fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fit {
    /// The symbol as it is readable is the name, or begins with it.
    Readable,
    /// The name is the symbol or its address.
    Exact,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let digits = text.strip_prefix("0x");
        let address = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        Wanted { text, key: key(text), address, decoded: 0 }
    }

    /// How well the symbol fits; `None`: not at all.
    pub(super) fn fit(&mut self, symbol: &str, address: u64) -> Option<Fit> {
        let unversioned = symbol.split('@').next().unwrap_or_default();
        if symbol == self.text || unversioned == self.text || self.address == Some(address) {
            return Some(Fit::Exact);
        }
        let may_fit = is_encoded(symbol) && self.key.is_none_or(|key| symbol.contains(key));
        if !may_fit || self.decoded == MAX_DECODED {
            return None;
        }
        self.decoded += 1;
        let readable = readable_name(unversioned)?;
        is_name_of(self.text, &readable, is_special(symbol)).then_some(Fit::Readable)
    }

    /// Whether the symbol's name is alike, for the message that no symbol fits.
    pub(super) fn is_near(&self, symbol: &str) -> bool {
        self.key.is_some_and(|key| symbol.contains(key))
    }
}

fn is_encoded(symbol: &str) -> bool {
    symbol.starts_with("_Z") || symbol.starts_with("_R")
}

/// Thunks, tables and guards: they are named after a function and are no part of it.
fn is_special(symbol: &str) -> bool {
    symbol.starts_with("_ZT") || symbol.starts_with("_ZG")
}

/// The last identifier of the path before template arguments and parameters. Operators, constructors of the
/// standard library and closures are encoded in other words: they have no key.
fn key(text: &str) -> Option<&str> {
    let path = without_group(without_parameters(text), '<', '>');
    let start = path
        .rfind(|c: char| !is_of_identifier(c))
        .map_or(0, |at| at + path[at..].chars().next().map_or(1, char::len_utf8));
    let (outer, key) = path.split_at(start);
    let class = outer.strip_suffix("::").and_then(|outer| outer.rsplit("::").next());
    let is_operator = path.rsplit("::").next().is_some_and(|last| last.starts_with("operator"));
    (!key.is_empty() && key.is_ascii() && !is_operator && class != Some(key)).then_some(key)
}

fn is_of_identifier(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn without_parameters(text: &str) -> &str {
    without_group(text, '(', ')')
}

/// The text without the brackets at its end and what is between them.
fn without_group(text: &str, open: char, close: char) -> &str {
    if !text.ends_with(close) {
        return text;
    }
    let mut depth = 0usize;
    for (at, c) in text.char_indices().rev() {
        if c == close {
            depth += 1;
        } else if c == open {
            depth = depth.saturating_sub(1);
            if depth == 0 {
                return &text[..at];
            }
        }
    }
    text
}

/// Whether `wanted` is all of the readable name, or all but the type of its result and its parameters.
fn is_name_of(wanted: &str, readable: &str, is_special: bool) -> bool {
    if readable == wanted {
        return true;
    }
    if is_special || wanted.is_empty() {
        return false;
    }
    let starts = readable.match_indices(wanted).filter(|&(at, _)| is_behind_result(&readable[..at]));
    let mut rests = starts.map(|(at, _)| &readable[at + wanted.len()..]);
    rests.any(|rest| rest.is_empty() || is_parameters(rest))
}

/// Whether the text before a name is empty, or a type and a space.
fn is_behind_result(before: &str) -> bool {
    let opened = before.chars().filter(|c| matches!(c, '<' | '(' | '[' | '{')).count();
    let closed = before.chars().filter(|c| matches!(c, '>' | ')' | ']' | '}')).count();
    before.is_empty() || before.ends_with(' ') && opened == closed
}

/// `(int, char)`, with the qualifiers of a member function behind it.
fn is_parameters(rest: &str) -> bool {
    let mut group = rest;
    loop {
        let shorter = [" const", " volatile", "&", " noexcept", " "];
        let Some(less) = shorter.iter().find_map(|end| group.strip_suffix(end)) else { break };
        group = less;
    }
    group.starts_with('(') && group.ends_with(')') && without_parameters(group).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fit(wanted: &str, symbol: &str) -> Option<Fit> {
        Wanted::new(wanted).fit(symbol, 0x1139)
    }

    #[test]
    fn function_is_named_in_each_form() {
        let exact = [
            ("main", "main"),
            ("memcpy", "memcpy@@GLIBC_2.14"),
            ("memcpy@@GLIBC_2.14", "memcpy@@GLIBC_2.14"),
            ("_ZN4shop4Cart5totalEi", "_ZN4shop4Cart5totalEi"),
            ("0x1139", "any"),
        ];
        let readable = [
            ("shop::Cart::total(int)", "_ZN4shop4Cart5totalEi"),
            ("shop::Cart::total", "_ZN4shop4Cart5totalEi"),
            ("shop::Cart::total", "_ZNK4shop4Cart5totalEi"),
            ("shop::Cart::Cart", "_ZN4shop4CartC1Ev"),
            ("shop::Cart::operator==", "_ZN4shop4CarteqERKS0_"),
            ("shop::Cart::operator()", "_ZN4shop4CartclEi"),
            ("twice<int>", "_Z5twiceIiET_S0_"),
            ("int twice<int>(int)", "_Z5twiceIiET_S0_"),
            ("core::ptr::read", "_ZN4core3ptr4read17h0123456789abcdefE"),
            ("mycrate::foo::bar", "_RNvNtCs1234_7mycrate3foo3bar"),
            (
                "<core::result::Result<T,E> as core::ops::try_trait::Try>::branch",
                "_ZN79_$LT$core..result..Result$LT$T$C$E$GT$$u20$as$u20$core..ops..try_trait..Try$GT$6branch17hcf5d50659f6a3217E",
            ),
        ];
        for (wanted, symbol) in exact {
            assert_eq!(fit(wanted, symbol), Some(Fit::Exact), "{wanted}");
        }
        for (wanted, symbol) in readable {
            let found = fit(wanted, symbol);
            assert_eq!(found, Some(Fit::Readable), "{wanted}: {:?}", readable_name(symbol));
        }
    }

    #[test]
    fn other_functions_do_not_fit() {
        let cases = [
            ("mai", "main"),
            ("main.cold", "main"),
            ("main", "main.cold"),
            ("total", "_ZN4shop4Cart5totalEi"),
            ("Cart::total", "_ZN4shop4Cart5totalEi"),
            ("shop::Cart::tot", "_ZN4shop4Cart5totalEi"),
            ("shop::Cart::total(int, int)", "_ZN4shop4Cart5totalEi"),
            ("shop::Cart::total", "_ZN4shop4Cart5totalEi.cold"),
            ("shop::Cart::total", "_ZThn8_N4shop4Cart5totalEi"),
            ("shop::Cart::operator", "_ZN4shop4CartclEi"),
            ("f", "_ZZ1fiENKUlvE_clEv"),
            ("0x113a", "any"),
            ("0x", "any"),
            ("", "_Z1fv"),
        ];
        for (wanted, symbol) in cases {
            assert_eq!(fit(wanted, symbol), None, "{wanted}: {:?}", readable_name(symbol));
        }
    }

    #[test]
    fn key_is_the_last_identifier() {
        let cases = [
            ("main", Some("main")),
            ("a::b::c(int (*)(char))", Some("c")),
            ("a::b::c<std::vector<int>>", Some("c")),
            ("a::b::operator new", None),
            ("a::B::B", None),
            ("a::B::~B", Some("B")),
            ("a::{{closure}}", None),
            ("größe", None),
            ("", None),
            ("(", None),
        ];
        for (text, expected) in cases {
            assert_eq!(key(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_names_are_harmless(wanted in "[a-zé:<>() &]{0,30}", symbol in "(_Z|_R)?[A-Za-z0-9_@é]{0,30}") {
            let _ = fit(&wanted, &symbol);
            let _ = is_name_of(&wanted, &symbol, false);
        }
    }
}
