// SPDX-License-Identifier: Apache-2.0
//! Each file of bpf/ includes what it uses: it compiles by itself, whatever the object includes before it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The compiler of crates/probe/build.rs.
const CLANG: &str = "clang-19";

/// The compiler's complaints about one file, alone; empty if there are none.
fn complaints(file: &Path) -> String {
    let answer = Command::new(CLANG)
        .args(["-target", "bpf", "-mcpu=v3", "-fsyntax-only", "-x", "c"])
        .args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-missing-declarations"])
        // A header's inline functions have no callers in it, and here it is the main file.
        .args(["-Wno-unused-function", "-Wno-pragma-once-outside-header"])
        .args(["-D__TARGET_ARCH_x86", "-I", env!("LIBBPF_HEADERS")])
        .arg(file)
        .output()
        .expect("clang-19, which bpf/ is built with");
    match answer.status.success() {
        true => String::new(),
        false => format!("{}:\n{}", file.display(), String::from_utf8_lossy(&answer.stderr)),
    }
}

fn c_files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let files =
        fs::read_dir(folder).expect("the folder is there").map(|entry| entry.expect("an entry").path());
    files.filter(|file| file.extension().is_some_and(|extension| extension == "h" || extension == "c"))
}

#[test]
fn each_file_compiles_by_itself() {
    let bpf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf");
    let files: Vec<PathBuf> = c_files(&bpf).chain(c_files(&bpf.join("include"))).collect();
    assert!(files.len() > 40, "{files:?}");
    let wrong: Vec<String> =
        files.iter().map(|file| complaints(file)).filter(|complaint| !complaint.is_empty()).collect();
    assert!(wrong.is_empty(), "{}", wrong.concat());
}

#[test]
fn a_file_without_its_includes_is_found() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("without_includes.h");
    fs::write(&file, "static inline u64 twice(u64 value) { return 2 * value; }\n")
        .expect("a writable folder");
    assert!(complaints(&file).contains("unknown type name 'u64'"));
}
