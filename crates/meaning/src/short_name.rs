// SPDX-License-Identifier: Apache-2.0
//! A function's name shortened for one line or one sentence.

/// A demangled name without what does not help to find it: parameters, the contents of generics,
/// symbol versions, compiler suffixes and Rust's hashes.
pub fn short_name(symbol: &str) -> String {
    let symbol = without_suffix(symbol);
    let symbol = java_method(symbol).unwrap_or(symbol);
    let mut short = String::new();
    let mut depth = 0usize;
    let mut rest = symbol;
    while let Some(c) = rest.chars().next() {
        let next = &rest[c.len_utf8()..];
        match c {
            '<' | '(' if depth > 0 => depth += 1,
            '>' if depth > 0 && !symbol[..symbol.len() - rest.len()].ends_with('-') => depth -= 1,
            ')' if depth > 0 => depth -= 1,
            '<' if opens_generics(&short) => {
                short.push_str("<>");
                depth = 1;
            }
            '(' if opens_parameters(&short, rest) => return short,
            c if depth == 0 => short.push(c),
            _ => {}
        }
        rest = next;
    }
    short
}

fn without_suffix(symbol: &str) -> &str {
    let symbol = symbol.split('@').next().filter(|name| !name.is_empty()).unwrap_or(symbol);
    match symbol.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => name,
        _ => symbol,
    }
}

/// `shop.Orders.take(int)` of `java.util.List shop.Orders.take(int)`.
fn java_method(symbol: &str) -> Option<&str> {
    let (result, method) = symbol.split_once(' ')?;
    let name = method.split_once('(')?.0;
    let is_plain = |text: &str| !text.contains([' ', ':', '<']);
    (is_plain(result)
        && name.contains('.')
        && is_plain(name.trim_end_matches("<init>").trim_end_matches("<clinit>")))
    .then_some(method)
}

/// `vector<` and `collect::<`, but neither `operator<` nor Rust's leading `<T as Trait>`.
fn opens_generics(before: &str) -> bool {
    let operator = before.ends_with("operator") || before.ends_with("operator<");
    !operator && before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
}

fn opens_parameters(before: &str, rest: &str) -> bool {
    !before.is_empty()
        && !before.ends_with("operator")
        && !before.contains('{')
        && !rest.starts_with("(anonymous namespace)")
        && !before.ends_with([':', ' '])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn short_names_still_find_their_function() {
        for (symbol, short) in [
            ("release_order", "release_order"),
            ("Book::update(Order const&, int)", "Book::update"),
            ("std::vector<int, std::allocator<int> >::push_back(int&&)", "std::vector<>::push_back"),
            ("(anonymous namespace)::parse(char const*)", "(anonymous namespace)::parse"),
            ("md::(anonymous namespace)::parse(int)", "md::(anonymous namespace)::parse"),
            ("operator new(unsigned long)", "operator new"),
            ("Key::operator<(Key const&) const", "Key::operator<"),
            ("Key::operator()(int) const", "Key::operator()"),
            ("main::{lambda(int)#1}::operator()(int) const", "main::{lambda(int)#1}::operator()(int) const"),
            ("<engine::Book as core::fmt::Debug>::fmt", "<engine::Book as core::fmt::Debug>::fmt"),
            ("engine::run::<engine::Live>", "engine::run::<>"),
            ("engine::run::h0123456789abcdef", "engine::run"),
            ("pthread_cond_wait@@GLIBC_2.3.2", "pthread_cond_wait"),
            ("void shop.Orders.take(int, java.lang.String)", "shop.Orders.take"),
            ("java.util.List[] shop.Orders$Row.<init>()", "shop.Orders$Row.<init>"),
            (
                "void shop.Orders$$Lambda$2+0x00007f6144001000.run()",
                "shop.Orders$$Lambda$2+0x00007f6144001000.run",
            ),
            ("StubRoutines (1)", "StubRoutines (1)"),
            ("apply<decltype(a->b)>(int)", "apply<>"),
            ("", ""),
        ] {
            assert_eq!(short_name(symbol), short);
        }
    }

    proptest! {
        #[test]
        fn any_name_is_shortened_without_panic(symbol in "[a-z<>():@{}& -]{0,40}|.{0,20}") {
            prop_assert!(short_name(&symbol).len() <= symbol.len() + 2);
        }
    }
}
