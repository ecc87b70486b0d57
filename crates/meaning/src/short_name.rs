// SPDX-License-Identifier: Apache-2.0
//! A function's name shortened for one line or one sentence, and as lists of functions have it.

use std::borrow::Cow;

use crate::{interpreted, node};

/// A demangled name without what does not help to find it: parameters, the contents of generics,
/// symbol versions, compiler suffixes and Rust's hashes.
pub fn short_name(symbol: &str) -> String {
    if let Some(short) = interpreted::short_name(symbol) {
        return short;
    }
    let symbol = stable_name(symbol);
    let symbol = without_result(without_suffix(&symbol));
    let mut short = String::new();
    let mut brackets = Brackets::default();
    let mut rest = symbol;
    while let Some(c) = rest.chars().next() {
        let next = &rest[c.len_utf8()..];
        let before = &symbol[..symbol.len() - rest.len()];
        match c {
            _ if !brackets.is_empty() => brackets.pass(before, c),
            '<' if opens_generics(&short) => {
                short.push_str("<>");
                brackets.pass(before, c);
            }
            '(' if opens_parameters(&short, rest) => return short,
            c => short.push(c),
        }
        rest = next;
    }
    short
}

/// The length of what begins with a bracket, up to the one that closes it.
fn after_brackets(text: &str) -> Option<usize> {
    let mut brackets = Brackets::default();
    text.char_indices().find_map(|(at, c)| {
        brackets.pass(&text[..at], c);
        brackets.is_empty().then_some(at + c.len_utf8())
    })
}

/// The brackets that are open at a place in a name. `>` compares in parentheses, and closes nothing there.
#[derive(Default)]
struct Brackets(Vec<char>);

impl Brackets {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn pass(&mut self, before: &str, c: char) {
        match c {
            '<' | '(' | '{' | '[' => self.0.push(c),
            '>' if !before.ends_with('-') && self.0.last() == Some(&'<') => {
                self.0.pop();
            }
            ')' => self.close('('),
            '}' => self.close('{'),
            ']' => self.close('['),
            _ => {}
        }
    }

    /// Closes the last such bracket, and what is a `<` that compares behind it.
    fn close(&mut self, open: char) {
        if let Some(at) = self.0.iter().rposition(|&one| one == open) {
            self.0.truncate(at);
        }
    }
}

/// A name that is the same in another run. Java's lambdas and other hidden classes have an address in their names, and
/// a number by their turn: `Orders$$Lambda$2+0x00007f6144001000.run` is `Orders$$Lambda.run`.
pub fn stable_name(symbol: &str) -> Cow<'_, str> {
    const LAMBDA: &str = "$$Lambda";
    let is_digit = |c: char| c.is_ascii_digit();
    let mut stable = node::without_tier(symbol);
    for mark in ["+0x", "/0x"] {
        while let Some(at) = stable.find(mark) {
            let (class, address) = stable.split_at(at);
            let method = address[mark.len()..].trim_start_matches(|c: char| c.is_ascii_hexdigit());
            let class = match class.trim_end_matches(is_digit).strip_suffix('$') {
                Some(lambda) if lambda.ends_with(LAMBDA) => lambda,
                _ => class,
            };
            if !method.starts_with('.') || !class.contains('$') {
                break;
            }
            stable = Cow::Owned(format!("{class}{method}"));
        }
    }
    stable
}

/// A demangled name as lists of functions have it. That of a C++ template begins with what the function returns:
/// `void std::f<int>()` is `std::f<int>()`. Rust's newer mangling has the type of a method in brackets:
/// `<std::sync::Barrier>::wait` is `std::sync::Barrier::wait`.
pub(crate) fn plain_name(symbol: &str) -> Cow<'_, str> {
    let name = without_result(symbol);
    match type_in_brackets(name) {
        Some((of, method)) => Cow::Owned(format!("{of}{method}")),
        None => Cow::Borrowed(name),
    }
}

/// `shop.Orders.take(int)` of `java.util.List shop.Orders.take(int)`. A name without parameters has no result either:
/// `py::run:/opt/two words/run.py`.
fn without_result(symbol: &str) -> &str {
    let (mut brackets, mut start, mut known) = (Brackets::default(), 0, 0);
    for (at, c) in symbol.char_indices() {
        let (before, rest) = (&symbol[..at], &symbol[at..]);
        if at < known {
            continue;
        }
        match c {
            _ if !brackets.is_empty() => brackets.pass(before, c),
            _ if ends_with_operator(before) && !is_of_word(c) => return &symbol[start..],
            '(' if is_decltype(before) => known = at + after_brackets(rest).unwrap_or(rest.len()),
            '(' if !rest.starts_with("(anonymous namespace)") => {
                // Behind a space it begins no parameters: `StubRoutines (1)` of Java's virtual machine.
                return if before.ends_with(' ') { symbol } else { &symbol[start..] };
            }
            ' ' if !before.ends_with("decltype") => start = at + 1,
            _ => brackets.pass(before, c),
        }
    }
    symbol
}

/// Whether a type of C++ by an expression begins behind `before`: `decltype (a + b) sum<int>(int)`.
fn is_decltype(before: &str) -> bool {
    let name = before.strip_suffix(' ').unwrap_or(before).strip_suffix("decltype");
    name.is_some_and(|before| !before.ends_with(is_of_word))
}

fn ends_with_operator(before: &str) -> bool {
    before.strip_suffix("operator").is_some_and(|before| !before.ends_with(is_of_word))
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// `T` and `::method` of `<T>::method`; not of `<T as Trait>::method`.
fn type_in_brackets(name: &str) -> Option<(&str, &str)> {
    let inside = name.strip_prefix('<')?;
    let mut depth = 1usize;
    let end = inside.char_indices().find(|&(at, c)| {
        match c {
            '<' => depth += 1,
            '>' if !inside[..at].ends_with('-') => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    let (of, method) = inside.split_at(end?.0);
    let method = &method[1..];
    (!of.contains(" as ") && method.starts_with("::")).then_some((of, method))
}

fn without_suffix(symbol: &str) -> &str {
    let symbol = symbol.split('@').next().filter(|name| !name.is_empty()).unwrap_or(symbol);
    match symbol.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => name,
        _ => symbol,
    }
}

/// `vector<`, `collect::<`, `operator==<` and `operator< <`, but neither `operator<` nor `operator<<` nor Rust's leading
/// `<T as Trait>`.
fn opens_generics(before: &str) -> bool {
    if ends_with_operator(before.strip_suffix('<').unwrap_or(before)) {
        return false;
    }
    let of_operator = before.ends_with("operator()") || is_operator(before.trim_end_matches(' '));
    of_operator || before.ends_with(|c: char| is_of_word(c) || c == ':')
}

/// `operator<<`, `operator==`: an operator that is no word.
fn is_operator(name: &str) -> bool {
    const SIGNS: [char; 14] = ['<', '>', '=', '+', '-', '*', '/', '%', '&', '|', '^', '!', '~', ','];
    let word = name.trim_end_matches(SIGNS);
    word.len() < name.len() && ends_with_operator(word)
}

fn opens_parameters(before: &str, rest: &str) -> bool {
    let is_in_lambda = before.matches('{').count() > before.matches('}').count();
    // `os.(*File).Sync`
    let is_method_of_go = before.ends_with('.') && rest.starts_with("(*");
    let begins_a_name = rest.starts_with("(anonymous namespace)") || is_method_of_go;
    !before.is_empty()
        && !ends_with_operator(before)
        && !is_in_lambda
        && !begins_a_name
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
            ("main::{lambda(int)#1}::operator()(int) const", "main::{lambda(int)#1}::operator()"),
            ("main::{lambda(Row<int>)#1}::operator()() const", "main::{lambda(Row<>)#1}::operator()"),
            ("run(bool)::{lambda()#1}::operator()() const", "run"),
            ("run::{lambda()#2}::operator()<int>(int)", "run::{lambda()#2}::operator()<>"),
            (
                "decltype (::new ((void*)(0)) std::thread(((declval<void (&)()>)())...)) \
                 std::construct_at<std::thread, void (&)()>(std::thread*, void (&)())",
                "std::construct_at<>",
            ),
            ("decltype(auto) std::visit<Show, Item&>(Show&&, Item&)", "std::visit<>"),
            ("decltype (({parm#1})<({parm#2})) md::less<int, char>(int, char)", "md::less<>"),
            ("std::enable_if<((4)>(2)), int>::type md::sum<int>(int)", "md::sum<>"),
            ("auto md::sum<int>(int)", "md::sum<>"),
            (
                "std::__detail::_Map<int, std::pair<int, int> >::operator[](int const&)",
                "std::__detail::_Map<>::operator[]",
            ),
            ("std::ostream& std::operator<< <char>(char)", "std::operator<< <>"),
            ("bool operator> <Key>(Key const&, Key const&)", "operator> <>"),
            ("bool operator==<Key>(Key const&, Key const&)", "operator==<>"),
            ("Key::operator->() const", "Key::operator->"),
            ("Key::operator bool() const", "Key::operator bool"),
            ("void* operator new[](unsigned long, std::nothrow_t const&)", "operator new[]"),
            ("unsigned long operator\"\"_ms(unsigned long long)", "operator\"\"_ms"),
            ("my_operator(int)", "my_operator"),
            ("internal/poll.(*FD).Fsync", "internal/poll.(*FD).Fsync"),
            ("main.(*Queue[go.shape.int]).Push.func1", "main.(*Queue[go.shape.int]).Push.func1"),
            ("net/http.(*conn).serve", "net/http.(*conn).serve"),
            ("<engine::Book as core::fmt::Debug>::fmt", "<engine::Book as core::fmt::Debug>::fmt"),
            ("engine::run::<engine::Live>", "engine::run::<>"),
            ("void Book::take<Order>(Order const&)", "Book::take<>"),
            ("engine::run::h0123456789abcdef", "engine::run"),
            ("pthread_cond_wait@@GLIBC_2.3.2", "pthread_cond_wait"),
            ("void shop.Orders.take(int, java.lang.String)", "shop.Orders.take"),
            ("java.util.List[] shop.Orders$Row.<init>()", "shop.Orders$Row.<init>"),
            ("void shop.Orders$$Lambda$2+0x00007f6144001000.run()", "shop.Orders$$Lambda.run"),
            ("StubRoutines (1)", "StubRoutines (1)"),
            ("apply<decltype(a->b)>(int)", "apply<>"),
            ("", ""),
        ] {
            assert_eq!(short_name(symbol), short);
        }
    }

    #[test]
    fn plain_names_begin_with_their_own() {
        for (symbol, plain) in [
            ("void std::this_thread::sleep_for<long>(int)", "std::this_thread::sleep_for<long>(int)"),
            ("std::vector<int, char> parse<char>(std::string)", "parse<char>(std::string)"),
            (
                "unsigned long md::(anonymous namespace)::sum<int>(int)",
                "md::(anonymous namespace)::sum<int>(int)",
            ),
            ("std::ostream& std::operator<< <char>(char)", "std::operator<< <char>(char)"),
            ("bool operator> <Key>(Key const&)", "operator> <Key>(Key const&)"),
            ("decltype (a<b) less<int>(int)", "less<int>(int)"),
            ("operator new(unsigned long)", "operator new(unsigned long)"),
            (
                "bool main::{lambda(int)#1}::operator()<int>(int) const",
                "main::{lambda(int)#1}::operator()<int>(int) const",
            ),
            ("(anonymous namespace)::parse(char const*)", "(anonymous namespace)::parse(char const*)"),
            ("<std::sync::barrier::Barrier>::wait", "std::sync::barrier::Barrier::wait"),
            ("<a::Channel<fn(u8) -> u8>>::send", "a::Channel<fn(u8) -> u8>::send"),
            ("<engine::Book as core::fmt::Debug>::fmt", "<engine::Book as core::fmt::Debug>::fmt"),
            ("net/http.(*conn).serve", "net/http.(*conn).serve"),
            ("StubRoutines (continuation stubs)", "StubRoutines (continuation stubs)"),
            ("void shop.Orders.take(int)", "shop.Orders.take(int)"),
            ("py::run:/opt/two words/run.py", "py::run:/opt/two words/run.py"),
            ("LazyCompile:*parse file:///opt/app.js:1:2", "LazyCompile:*parse file:///opt/app.js:1:2"),
            (
                "LazyCompile:~(anonymous) /opt/two words.js:1:2",
                "LazyCompile:~(anonymous) /opt/two words.js:1:2",
            ),
            ("type:.eq.struct { a int; b string }", "type:.eq.struct { a int; b string }"),
            ("pthread_cond_wait@@GLIBC_2.3.2", "pthread_cond_wait@@GLIBC_2.3.2"),
            ("", ""),
        ] {
            assert_eq!(plain_name(symbol), plain);
        }
    }

    #[test]
    fn hidden_class_of_java_has_no_address() {
        for (name, stable) in [
            ("void L$$Lambda$1+0x00007f24f0000a08.run()", "void L$$Lambda.run()"),
            ("L$$Lambda/0x00007f24f0000a08.run()", "L$$Lambda.run()"),
            (
                "java.lang.invoke.LambdaForm$MH+0x00007f.invoke(Object)",
                "java.lang.invoke.LambdaForm$MH.invoke(Object)",
            ),
            ("libfoo.so+0x1234", "libfoo.so+0x1234"),
            ("T$1.handle()", "T$1.handle()"),
        ] {
            assert_eq!(stable_name(name), stable);
        }
    }

    proptest! {
        #[test]
        fn any_name_is_made_plain_without_panic(symbol in "[a-z<>():@{}& -]{0,40}|.{0,20}") {
            prop_assert!(plain_name(&symbol).len() <= symbol.len());
        }

        #[test]
        fn any_name_is_shortened_without_panic(symbol in "[a-z<>():@{}& -]{0,40}|.{0,20}") {
            prop_assert!(short_name(&symbol).len() <= symbol.len() + 2);
        }
    }
}
