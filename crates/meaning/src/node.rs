// SPDX-License-Identifier: Apache-2.0
//! The functions of a JavaScript program where Node.js shows them to profilers (`--perf-basic-prof`):
//! `JS:~NAME FILE:LINE:COLUMN`, among those of V8, of libuv and of Node's own JavaScript.

use std::borrow::Cow;

use crate::site::base_name;

/// What V8 writes before the name of a function (src/objects/code-kind.cc, CodeKindToMarker), and before it in older versions.
const KINDS: [&str; 4] = ["JS:", "LazyCompile:", "Function:", "Script:"];
/// Interpreted code, and that of V8's compilers.
const TIERS: [char; 4] = ['~', '^', '+', '*'];

/// What a regular expression is compiled to.
const REGULAR_EXPRESSION: &str = "RegExp:";
/// Of such an expression more is not shown, letters.
const LONGEST_EXPRESSION: usize = 40;

/// Files begin so: those of the program, Node's own, and texts that are evaluated.
const FILES: [&str; 5] = [" /", " node:", " file:", " [", " internal/"];
/// Files of Node's own JavaScript.
const LIBRARIES: [&str; 2] = ["node:", "internal/"];

/// The name of a function, empty where it has none, and its file with line and column.
fn parts(symbol: &str) -> Option<(&str, &str)> {
    let rest = KINDS.iter().find_map(|kind| symbol.strip_prefix(kind))?.trim_start_matches(TIERS);
    let at = FILES.iter().filter_map(|file| rest.find(file)).min()?;
    Some((&rest[..at], &rest[at + 1..]))
}

/// The same function, however V8 has compiled it: `JS:~price /srv/shop.js:1:1` is `JS:price /srv/shop.js:1:1`.
pub fn without_tier(symbol: &str) -> Cow<'_, str> {
    let of_kind = |kind: &&str| {
        let rest = symbol.strip_prefix(*kind)?.strip_prefix(TIERS)?;
        is_function(symbol).then(|| Cow::Owned(format!("{kind}{rest}")))
    };
    KINDS.iter().find_map(of_kind).unwrap_or(Cow::Borrowed(symbol))
}

/// Whether it is a function of a JavaScript program or of Node's own JavaScript.
pub fn is_function(symbol: &str) -> bool {
    parts(symbol).is_some()
}

/// Whether it is one of Node's own JavaScript: streams, `http`, `fs`.
pub fn is_library(symbol: &str) -> bool {
    parts(symbol).is_some_and(|(_, file)| LIBRARIES.iter().any(|library| file.starts_with(library)))
}

/// Whether a function is of Node.js, by its name and its file: no function of the program, where that has some in
/// JavaScript.
pub fn is_runtime(symbol: Option<&str>, module: Option<&str>) -> bool {
    match symbol {
        Some(symbol) if is_function(symbol) => is_library(symbol),
        // V8 has its built-in functions in memory that compiled code has, too. A regular expression is the program's.
        Some(symbol) if symbol.starts_with("Builtin") => true,
        _ => module.is_some_and(is_machine),
    }
}

/// Whether a function is one of the program in JavaScript.
pub fn is_of_program(symbol: Option<&str>) -> bool {
    symbol.is_some_and(|symbol| is_function(symbol) && !is_library(symbol))
}

/// Whether a file is Node.js, or its library.
fn is_machine(path: &str) -> bool {
    let name = base_name(path);
    matches!(name, "node" | "nodejs") || name.starts_with("libnode.so") || name.starts_with("libuv.so")
}

/// `parseBig`; `server.js:13` for a function without a name. `None`: it is no function of JavaScript.
pub(crate) fn short_name(symbol: &str) -> Option<String> {
    if let Some(expression) = symbol.strip_prefix(REGULAR_EXPRESSION) {
        let shown: String = expression.chars().take(LONGEST_EXPRESSION).collect();
        let more = if shown.len() < expression.len() { "…" } else { "" };
        return Some(format!("{REGULAR_EXPRESSION}{shown}{more}"));
    }
    let (name, file) = parts(symbol)?;
    if !name.is_empty() {
        return Some(name.to_owned());
    }
    let without_column = file.rsplit_once(':').map_or(file, |(place, _)| place);
    Some(base_name(without_column).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_source() {
        for (symbol, short) in [
            ("JS:~parseBig /srv/shop/server.js:11:19", Some("parseBig")),
            ("JS:*Orders.price /srv/my shop/orders.js:7:3", Some("Orders.price")),
            ("JS:+get size file:///srv/shop/list.mjs:7:3", Some("get size")),
            ("JS:^ /srv/shop/server.js:13:20", Some("server.js:13")),
            ("LazyCompile:*emit node:events:471:44", Some("emit")),
            ("RegExp:^(a+)+$", Some("RegExp:^(a+)+$")),
            ("JS:no file", None),
            ("node::fs::Read(v8::FunctionCallbackInfo<v8::Value> const&)", None),
            ("Function: a title", None),
        ] {
            assert_eq!(short_name(symbol).as_deref(), short, "{symbol}");
        }
        assert_eq!(without_tier("JS:*emit node:events:471:44"), "JS:emit node:events:471:44");
        assert_eq!(without_tier("JS:emit node:events:471:44"), "JS:emit node:events:471:44");
        assert_eq!(without_tier("uv_run"), "uv_run");
        let long = short_name(&format!("RegExp:{}", "ä".repeat(50))).unwrap();
        assert_eq!(long, format!("RegExp:{}…", "ä".repeat(40)));
    }

    #[test]
    fn nodes_own_functions_are_not_the_program() {
        for (symbol, module, is_runtime_of) in [
            ("JS:^emit node:events:471:44", "[jit]", true),
            ("JS:^doWrite node:internal/streams/writable:587:17", "[jit]", true),
            ("uv__io_poll", "/usr/bin/node", true),
            ("uv_run", "/usr/lib/x86_64-linux-gnu/libuv.so.1.0.0", true),
            ("Builtins_JSEntry", "[jit]", true),
            ("RegExp:a+", "[jit]", false),
            ("JS:^get /srv/shop/node_modules/express/app.js:1:1", "[jit]", false),
            ("JS:~parseBig /srv/shop/server.js:11:19", "/usr/bin/node", false),
            ("sqlite3_step", "/srv/shop/node_modules/sqlite3/sqlite3.node", false),
        ] {
            assert_eq!(is_runtime(Some(symbol), Some(module)), is_runtime_of, "{symbol}");
            assert_eq!(is_of_program(Some(symbol)), symbol.contains(" /srv"), "{symbol}");
        }
    }
}
