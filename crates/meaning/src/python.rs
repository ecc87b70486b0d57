// SPDX-License-Identifier: Apache-2.0
//! The functions of a Python program where CPython shows them to profilers (`-X perf`): `py::NAME:FILE`, each above the
//! interpreter that runs it.

use crate::site::base_name;

/// What CPython writes before the name of a function (Python/perf_trampoline.c).
const PREFIX: &str = "py::";

/// The folders of the standard library, and of modules in the interpreter itself.
const LIBRARIES: [&str; 2] = ["/lib/python3.", "<frozen "];
/// A folder in that of the standard library, with the packages that users have installed.
const PACKAGES: [&str; 2] = ["/site-packages/", "/dist-packages/"];

/// The qualified name of a function and its file.
fn parts(symbol: &str) -> Option<(&str, &str)> {
    let rest = symbol.strip_prefix(PREFIX)?;
    // Names have no colon, files may. A namespace of C++ may have this name, too.
    let is_file = |file: &str| file.starts_with(['/', '<']) || file.ends_with(".py");
    rest.split_once(':').filter(|(name, file)| !name.is_empty() && is_file(file))
}

/// Whether it is a function of a Python program or of one of its libraries.
pub fn is_function(symbol: &str) -> bool {
    parts(symbol).is_some()
}

/// Whether it is one of the standard library: asyncio, threading, socket.
pub fn is_library(symbol: &str) -> bool {
    parts(symbol).is_some_and(|(_, file)| {
        LIBRARIES.iter().any(|folder| file.contains(folder))
            && !PACKAGES.iter().any(|folder| file.contains(folder))
    })
}

/// Whether a function is of the interpreter or of the standard library, by its name and its file: no function of the
/// program, where that has some in Python.
pub fn is_runtime(symbol: Option<&str>, module: Option<&str>) -> bool {
    symbol.is_some_and(is_library) || module.is_some_and(is_machine)
}

/// Whether a function is one of the program in Python.
pub fn is_of_program(symbol: Option<&str>) -> bool {
    symbol.is_some_and(|symbol| is_function(symbol) && !is_library(symbol))
}

/// Whether a file is the interpreter, or one of its own modules in C.
pub fn is_machine(path: &str) -> bool {
    let name = base_name(path);
    name.starts_with("libpython3.") || name.starts_with("python3") || path.contains("/lib-dynload/")
}

/// `orders.Book.update`, as a program that imports the file would call it. `None`: it is no function of Python.
pub(crate) fn short_name(symbol: &str) -> Option<String> {
    let (name, file) = parts(symbol)?;
    let frozen = file.strip_prefix("<frozen ").and_then(|name| name.strip_suffix('>'));
    let module = frozen.unwrap_or_else(|| base_name(file));
    Some(format!("{}.{name}", module.strip_suffix(".py").unwrap_or(module)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_modules() {
        for (symbol, short) in [
            ("py::price_order:/srv/shop/orders.py", Some("orders.price_order")),
            ("py::Book.update.<locals>.one:/srv/a:b/book.py", Some("book.Book.update.<locals>.one")),
            ("py::_find_and_load:<frozen importlib._bootstrap>", Some("importlib._bootstrap._find_and_load")),
            ("py::<module>:<string>", Some("<string>.<module>")),
            ("py::parse(std::string)", None),
            ("py::", None),
            ("price_order", None),
        ] {
            assert_eq!(short_name(symbol).as_deref(), short, "{symbol}");
        }
    }

    #[test]
    fn standard_library_is_not_the_program() {
        for (symbol, expected) in [
            ("py::Handle._run:/usr/lib/python3.13/asyncio/events.py", true),
            ("py::_find_and_load:<frozen importlib._bootstrap>", true),
            ("py::get:/usr/local/lib/python3.12/site-packages/requests/api.py", false),
            ("py::get:/usr/lib/python3/dist-packages/requests/api.py", false),
            ("py::price_order:/srv/shop/orders.py", false),
            ("Handle._run:/usr/lib/python3.13/asyncio/events.py", false),
        ] {
            assert_eq!(is_library(symbol), expected, "{symbol}");
            assert_eq!(is_runtime(Some(symbol), None), expected, "{symbol}");
            assert_eq!(is_of_program(Some(symbol)), !expected && is_function(symbol), "{symbol}");
        }
    }
}
