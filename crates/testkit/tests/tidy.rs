// SPDX-License-Identifier: Apache-2.0
//! Test code reports a test that cannot run through `wallprof_testkit::skip`, which counts it. It does not print
//! the word itself: a printed line is captured by the test harness, and no total has it.

mod files;

use std::fs;
use std::path::{Path, PathBuf};

use files::add_files;

/// Ends of the names of printing macros: `print!` is also the end of `eprint!`.
const PRINTING: [&str; 4] = ["print!", "println!", "write!", "writeln!"];

#[test]
fn test_code_prints_no_skips_of_its_own() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository");
    let files = rust_files(&root);
    assert!(files.len() > 100, "only {} files under {}", files.len(), root.display());
    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file");
        let name = file.strip_prefix(&root).expect("a file of the repository");
        let lines = printed_skips(test_code(name, &text));
        found.extend(lines.into_iter().map(|line| format!("{}:{line}", name.display())));
    }
    assert!(found.is_empty(), "call wallprof_testkit::skip in place of printing: {found:#?}");
}

/// The sources and tests of all crates but this one, and the Rust files of the folder `tests`. Benchmarks are
/// not run by `make test`.
fn rust_files(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(root.join("crates")).expect("the crates") {
        let folder = entry.expect("a crate").path();
        if !folder.ends_with("testkit") {
            add_files(&folder.join("src"), &mut files);
            add_files(&folder.join("tests"), &mut files);
        }
    }
    add_files(&root.join("tests"), &mut files);
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    files
}

/// The part of a file that only tests run, with empty lines in place of the others.
fn test_code(name: &Path, text: &str) -> String {
    let is_test = name.iter().any(|part| part == "tests" || part == "tests.rs");
    let start = if is_test { 0 } else { text.find("#[cfg(test)]").unwrap_or(text.len()) };
    "\n".repeat(text[..start].matches('\n').count()) + &text[start..]
}

/// The lines in which a printing macro with the word "skipped" begins.
fn printed_skips(text: impl AsRef<str>) -> Vec<usize> {
    let text = text.as_ref();
    let mut lines = Vec::new();
    for name in PRINTING {
        for (at, _) in text.match_indices(name) {
            let call = arguments(&text[at + name.len()..]);
            if call.to_lowercase().contains("skipped") {
                lines.push(1 + text[..at].matches('\n').count());
            }
        }
    }
    lines.sort_unstable();
    lines
}

/// What stands between the parentheses with which `text` begins. Parentheses in literal texts do not count.
fn arguments(text: &str) -> &str {
    let (mut depth, mut in_literal, mut escaped) = (0u32, false, false);
    for (at, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' if in_literal => escaped = true,
            '"' => in_literal = !in_literal,
            _ if in_literal => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return &text[..at];
        }
    }
    text
}

#[test]
fn printed_skip_is_found_at_its_line() {
    for fault in [
        r#"eprintln!("skipped: no perf");"#,
        r#"println!("SKIPPED: needs root");"#,
        r#"let Some(program) = program else { return eprintln!("skipped {name}: no gdb") };"#,
        "eprintln!(\n    \"(of 3) \\\" {name}\\n\\\n    skipped\"\n);",
        r#"let _ = writeln!(std::io::stderr(), "skipped {}", name());"#,
        r#"eprint!["skipped"];"#,
    ] {
        assert_eq!(printed_skips(format!("use a::b;\n\n{fault}\nend();\n")), [3], "{fault}");
    }
}

#[test]
fn other_uses_of_the_word_are_allowed() {
    for twin in [
        r#"wallprof_testkit::skip("test", "skipped");"#,
        r#"eprintln!("{name}: {count} rows"); let skipped = 1;"#,
        "eprintln!(\"a \\\" ) (\"); // skipped",
        r#"assert!(printed.contains("skipped"), "{printed}");"#,
        "/// Lines are skipped.\nfn lines_are_skipped() { println!(\"{}\", 1) }",
    ] {
        assert_eq!(printed_skips(twin), [0usize; 0], "{twin}");
    }
}

#[test]
fn lines_of_the_product_are_not_test_code() {
    let text = "println!(\"skipped\");\n#[cfg(test)]\nmod tests {\n    println!(\"skipped\");\n}\n";
    assert_eq!(printed_skips(test_code(Path::new("crates/a/src/b.rs"), text)), [4]);
    for all in ["crates/a/src/b/tests.rs", "crates/a/src/b/tests/c.rs", "tests/causes/a.rs"] {
        assert_eq!(printed_skips(test_code(Path::new(all), text)), [1, 4], "{all}");
    }
}
