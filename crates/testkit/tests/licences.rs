// SPDX-License-Identifier: Apache-2.0
//! Each source file says under which licence it is, THIRD-PARTY has the libraries of Cargo.lock, and NOTICE those that
//! are not Rust libraries.

mod files;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use files::add_files;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// The ends of the names of sources. Scripts have any name, and begin with `#!`.
const SOURCES: [&str; 20] = [
    "Makefile", "c", "cc", "css", "go", "h", "html", "java", "jq", "js", "mjs", "py", "rb", "rs", "service",
    "sh", "sql", "toml", "yaml", "yml",
];
const FOLDERS: [&str; 12] = [
    ".cargo",
    ".ci",
    ".github",
    "benches",
    "bpf",
    "contrib",
    "crates",
    "fuzz",
    "include",
    "packaging",
    "scenarios",
    "tests",
];
const HEAD_LINES: usize = 2;

/// `None`: not a source of wallprof's own.
fn expected_licence(name: &str, text: &[u8]) -> Option<&'static str> {
    let last = name.rsplit('/').next()?;
    let is_source = SOURCES.contains(&last.rsplit('.').next()?) || text.starts_with(b"#!");
    if !is_source || name.contains("/vendor/") {
        return None;
    }
    let is_in = |folders: &[&str]| folders.iter().any(|folder| name.starts_with(folder));
    if is_in(&["bpf/"]) {
        return Some("MIT OR GPL-2.0-only");
    }
    Some(if is_in(&["include/", "crates/span/"]) { "Apache-2.0 OR MIT" } else { "Apache-2.0" })
}

/// docs/licences.md.
#[test]
fn each_source_file_names_its_licence() {
    let root = root();
    let mut files = Vec::new();
    for folder in FOLDERS {
        add_files(&root.join(folder), &mut files);
    }
    let beside = fs::read_dir(&root).expect("the repository").map(|entry| entry.expect("an entry").path());
    files.extend(beside.filter(|path| path.is_file()));
    let (mut seen, mut without) = (0, Vec::new());
    for file in files {
        let name = file.strip_prefix(&root).expect("a file of the repository").to_str().expect("UTF-8");
        let bytes = fs::read(&file).expect("a file");
        let Some(licence) = expected_licence(name, &bytes) else { continue };
        let text = String::from_utf8(bytes).expect("a source is text");
        let expected = format!("SPDX-License-Identifier: {licence}");
        let names_it =
            |line: &str| line.trim_end_matches(" */").trim_end_matches(" -->").ends_with(&expected);
        seen += 1;
        if !text.lines().take(HEAD_LINES).any(names_it) {
            without.push(name.to_owned());
        }
    }
    assert!(seen > 1_400, "only {seen} files under {}", root.display());
    assert!(without.is_empty(), "their first lines do not name the licence that they have: {without:#?}");
}

/// `name version` of the packages that come from elsewhere.
fn locked(text: &str) -> BTreeSet<String> {
    let packages = text.split("[[package]]").skip(1).filter(|package| package.contains("\nsource = "));
    let value = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(key));
        line.expect("a package has both").trim_matches('"').to_owned()
    };
    packages
        .map(|package| format!("{} {}", value(package, "name = "), value(package, "version = ")))
        .collect()
}

/// The lines of THIRD-PARTY that name a library: two spaces, its name, its version.
fn named(text: &str) -> BTreeSet<String> {
    let (above, below) = ("=".repeat(80), "-".repeat(80));
    let heads = text.split(&above).skip(1).filter_map(|part| part.split_once(&below));
    let lines = heads.flat_map(|(head, _)| head.lines());
    lines.filter_map(|line| line.strip_prefix("  ")).map(str::to_owned).collect()
}

#[test]
fn third_party_is_of_the_libraries_in_the_lock_file() {
    let read = |name: &str| fs::read_to_string(root().join(name)).expect(name);
    let (locked, named) = (locked(&read("Cargo.lock")), named(&read("THIRD-PARTY")));
    assert!(named.len() > 100, "only {} libraries in THIRD-PARTY", named.len());
    let stale: Vec<&String> = named.difference(&locked).collect();
    assert!(stale.is_empty(), "run `make third-party`: Cargo.lock has other versions than {stale:#?}");
    // What the binary uses itself, and not one of its libraries.
    let manifest = read("Cargo.toml");
    let direct = manifest.split("[workspace.dependencies]").nth(1).expect("the dependencies of the crates");
    let direct =
        direct.split("\n[").next().expect("their table").lines().filter_map(|line| line.split_once(" = "));
    let is_named = |name: &str| named.iter().any(|line| line.starts_with(&format!("{name} ")));
    let direct = direct.map(|(name, _)| name).filter(|name| !name.starts_with("wallprof-"));
    let missing: Vec<&str> = direct.filter(|name| !is_named(name)).collect();
    assert_eq!(missing, NOT_IN_THE_BINARY, "run `make third-party`, or say that it is not in the binary");
}

#[test]
fn notice_has_the_notice_of_vendored_javascript_and_names_texts_that_exist() {
    let read = |name: &str| fs::read_to_string(root().join(name)).expect(name);
    let (notice, vendored) = (read("NOTICE"), read("crates/page/web/vendor/uplot/LICENSE"));
    assert!(notice.contains(vendored.trim()), "NOTICE has another notice than uPlot's LICENSE");
    let words = notice.split_whitespace().filter(|word| word.starts_with("LICENSES/"));
    let texts: BTreeSet<&str> = words.map(|word| word.trim_end_matches(['.', ',', ':'])).collect();
    assert!(texts.len() >= 4, "NOTICE names only {texts:?}");
    let missing: Vec<&&str> = texts.iter().filter(|name| !root().join(name).is_file()).collect();
    assert!(missing.is_empty(), "NOTICE names texts that are not there: {missing:?}");
}

/// What builds and tests alone use.
const NOT_IN_THE_BINARY: [&str; 6] =
    ["criterion", "proptest", "libbpf-cargo", "sha2", "roxmltree", "framehop"];
