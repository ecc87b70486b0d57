// SPDX-License-Identifier: Apache-2.0
//! The documents and scripts name tests that exist: a test that is renamed or removed leaves no promise without
//! a test.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The documents that name the test of each promise.
const DOCUMENTS: [&str; 3] = ["docs/reliability.md", "docs/truth.md", "SECURITY.md"];
/// Other names in these documents: of the kernel, and ends of stacks.
const OTHER_NAMES: [&str; 4] = ["pid_max", "finish_task_switch", "no_table", "no_mappings"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The Rust files below `folder`, without build output.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The names of functions, test files and losses.
fn known_names() -> HashSet<String> {
    let mut names: HashSet<String> = OTHER_NAMES.map(str::to_owned).into();
    names.extend(code_spans(&read("docs/losses.md")).map(str::to_owned));
    for path in ["crates", "fuzz"].iter().flat_map(|folder| sources(&root().join(folder))) {
        let text = fs::read_to_string(&path).expect("a source in UTF-8");
        names.extend(functions(&text).map(str::to_owned));
        names.extend(path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned));
    }
    names
}

fn functions(source: &str) -> impl Iterator<Item = &str> {
    let lines = source.lines().map(str::trim_start);
    let after_fn = lines.filter_map(|line| line.strip_prefix("fn ").or(line.strip_prefix("pub fn ")));
    after_fn.filter_map(|text| text.split(['(', '<']).next())
}

/// The texts between backticks, outside of code blocks.
fn code_spans(markdown: &str) -> impl Iterator<Item = &str> {
    let mut in_block = false;
    let lines = markdown.lines().filter(move |line| {
        let is_fence = line.starts_with("```");
        in_block ^= is_fence;
        !is_fence && !in_block
    });
    lines.flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// The names in snake case between backticks that are unknown. Of a path, `module::name`, the last part counts.
fn unknown_names(markdown: &str, known: &HashSet<String>) -> Vec<String> {
    let is_name = |name: &str| {
        name.contains('_') && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let names = code_spans(markdown).filter_map(|text| text.rsplit("::").next());
    names.filter(|name| is_name(name) && !known.contains(*name)).map(str::to_owned).collect()
}

/// The targets and modules of a line of attacks.sh that do not exist: `attack 'TITLE' PACKAGE --lib MODULE…` or
/// `attack 'TITLE' PACKAGE '--test TARGET' MODULE…`.
fn unknown_modules(line: &str) -> Vec<String> {
    let Some(("", rest)) = line.trim_start().split_once("attack '") else { return Vec::new() };
    let (_, rest) = rest.split_once('\'').expect("a title in quotes");
    let rest = rest.replace('\'', "");
    let mut words = rest.split_whitespace();
    let package = words.next().expect("a package");
    let folder = root().join("crates").join(package.strip_prefix("wallprof-").unwrap_or(package));
    let (folder, mut unknown) = match words.next().expect("a cargo target") {
        "--lib" => (folder.join("src"), Vec::new()),
        _ => {
            let target = words.next().expect("the name of a test target");
            let tests = folder.join("tests");
            let is_known = tests.join(target).is_dir() || tests.join(format!("{target}.rs")).is_file();
            let unknown = if is_known { vec![] } else { vec![target.to_owned()] };
            (tests.join(target), unknown)
        }
    };
    let is_known = |module: &str| {
        let is_module = |path: &PathBuf| {
            path.ends_with(format!("{module}.rs")) || path.ends_with(format!("{module}/mod.rs"))
        };
        sources(&folder).iter().any(is_module)
    };
    unknown.extend(words.filter(|module| !is_known(module)).map(str::to_owned));
    unknown
}

#[test]
fn tests_that_documents_name_exist() {
    let known = known_names();
    for document in DOCUMENTS {
        assert_eq!(unknown_names(&read(document), &known), [""; 0], "{document}");
    }
}

#[test]
fn modules_of_the_list_of_attacks_exist() {
    let script = read("tests/neighbours/attacks.sh");
    let unknown: Vec<String> = script.lines().flat_map(unknown_modules).collect();
    assert_eq!(unknown, [""; 0]);
    assert!(script.lines().filter(|line| line.trim_start().starts_with("attack '")).count() > 10);
}

#[test]
fn names_without_a_test_are_found() {
    let known = known_names();
    let text = "| a row | `losses` | `names_without_a_test_are_found`, `module::no_such_test` |\n\
                ```\n`not_looked_at`\n```\n`modules_full`, `--lib`";
    assert_eq!(unknown_names(text, &known), ["no_such_test"]);
    assert_eq!(unknown_modules("attack 'a title' wallprof-views '--test hostile'"), [""; 0]);
    assert_eq!(unknown_modules("    attack 'a title' wallprof '--test cli' promises gone"), ["gone"]);
    assert_eq!(unknown_modules("attack 'a title' wallprof '--test no_such_target'"), ["no_such_target"]);
    assert_eq!(unknown_modules("attack 'a title' wallprof-symbols --lib module gone"), ["gone"]);
}
