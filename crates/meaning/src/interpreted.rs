// SPDX-License-Identifier: Apache-2.0
//! Programs whose functions an interpreter shows to profilers: those of Python and of JavaScript. A function of such a
//! program says more than the interpreter and the library of the language.

use crate::{node, python};

/// Whether it is a function of such a program or of its language's library.
pub fn is_function(symbol: &str) -> bool {
    python::is_function(symbol) || node::is_function(symbol)
}

/// Whether a function is of an interpreter or of its library, by its name and its file.
pub fn is_runtime(symbol: Option<&str>, module: Option<&str>) -> bool {
    python::is_runtime(symbol, module) || node::is_runtime(symbol, module)
}

/// Whether a function is one of the program.
pub fn is_of_program(symbol: Option<&str>) -> bool {
    python::is_of_program(symbol) || node::is_of_program(symbol)
}

/// The name as its programmers know it. `None`: it is no such function.
pub(crate) fn short_name(symbol: &str) -> Option<String> {
    python::short_name(symbol).or_else(|| node::short_name(symbol))
}
