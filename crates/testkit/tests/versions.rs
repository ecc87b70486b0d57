// SPDX-License-Identifier: Apache-2.0
//! One version: what users install by the documents, the manifests of a cluster and the workflows is that of Cargo.toml.

use std::fs;
use std::path::Path;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What follows each mark in a text: digits and points.
fn numbers_after(text: &str, mark: &str) -> Vec<String> {
    let digits =
        |rest: &str| rest.chars().take_while(|letter| letter.is_ascii_digit() || *letter == '.').collect();
    text.split(mark)
        .skip(1)
        .map(digits)
        .map(|number: String| number.trim_end_matches('.').to_owned())
        .collect()
}

#[test]
fn documents_and_manifests_are_of_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    for (file, marks) in [
        ("README.md", &["wallprof-", "wallprof_"][..]),
        ("docs/install.md", &["wallprof-", "wallprof_", "wallprof:"]),
        ("contrib/kubernetes/daemonset.yaml", &["image: wallprof:"]),
        ("contrib/kubernetes/chart/Chart.yaml", &["\nversion: ", "\nappVersion: "]),
        ("CHANGELOG.md", &["\n## "]),
    ] {
        let text = read(file);
        for mark in marks {
            let numbers: Vec<_> =
                numbers_after(&text, mark).into_iter().filter(|number| number.contains('.')).collect();
            // The newest release is the first of the change log.
            let newest = if file == "CHANGELOG.md" { &numbers[..numbers.len().min(1)] } else { &numbers };
            assert!(!newest.is_empty(), "{file} names no version after `{mark}`");
            assert!(
                newest.iter().all(|number| number == version),
                "{file} has {newest:?} after `{mark}`, not {version}"
            );
        }
    }
}

#[test]
fn oldest_compiler_is_tried_by_the_workflow() {
    let manifest = read("Cargo.toml");
    let oldest = numbers_after(&manifest, "rust-version = \"");
    let tried = numbers_after(&read(".github/workflows/ci.yml"), "container: rust:");
    assert_eq!(oldest.len(), 1, "Cargo.toml names the oldest compiler once");
    assert!(tried.contains(&oldest[0]), "ci.yml tries {tried:?}, not {}", oldest[0]);
}
