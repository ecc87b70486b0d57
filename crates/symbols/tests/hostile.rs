// SPDX-License-Identifier: Apache-2.0
//! Damaged and hostile ELF files: fewer names, never a crash.

mod support;

use std::fs::File;
use std::io::Write;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use support::{compile_c, run};
use wallprof_model::{Module, SymbolLine};
use wallprof_symbols::{ModuleFile, Resolver, ResolverOptions};

/// A small program with a symbol table and debug information.
static IMAGE: LazyLock<Vec<u8>> = LazyLock::new(|| std::fs::read(compile_c(&["-g"]).path).expect("readable"));

fn module(image: &[u8]) -> ModuleFile {
    let mut file = tempfile::tempfile().expect("a scratch file");
    file.write_all(image).expect("written");
    ModuleFile { module: Module { path: "/hostile".into(), build_id: None }, file: Some(Arc::new(file)) }
}

fn resolve(image: &[u8]) -> Vec<Vec<SymbolLine>> {
    let addresses: Vec<u64> = (0..0x2000).step_by(64).chain([u64::MAX, 1 << 63]).collect();
    let options = ResolverOptions { debug_dirs: vec![], ..ResolverOptions::default() };
    let lines = Resolver::new(options).resolve(&module(image), &addresses);
    assert_eq!(lines.len(), addresses.len());
    assert!(lines.iter().all(|lines| !lines.is_empty()));
    lines
}

fn names(lines: &[Vec<SymbolLine>]) -> usize {
    lines.iter().flatten().filter(|line| line.symbol.is_some()).count()
}

#[test]
fn the_whole_file_has_names() {
    assert!(names(&resolve(&IMAGE)) > 0);
}

#[test]
fn a_truncated_file_has_none() {
    let word = |at: usize| u64::from_le_bytes(IMAGE[at..at + 8].try_into().expect("8 bytes")) as usize;
    let (segments_at, sections_at) = (word(32), word(40));
    let cuts = [0, 4, 16, 63, 64, segments_at + 1, segments_at + 56, 4096, sections_at, sections_at + 64];
    for cut in cuts.into_iter().chain([IMAGE.len() - 1]) {
        assert_eq!(names(&resolve(&IMAGE[..cut])), 0, "cut to {cut} bytes");
    }
}

#[test]
fn links_to_other_files_are_not_followed() {
    // If it were opened, the FIFO would block this test for ever.
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (program, fifo, section) =
        (folder.path().join("program"), folder.path().join("fifo"), folder.path().join("section"));
    std::fs::write(&program, &*IMAGE).expect("written");
    run(std::process::Command::new("mkfifo").arg(&fifo));
    let mut link = fifo.to_string_lossy().into_owned().into_bytes();
    link.push(0);
    link.resize(link.len().next_multiple_of(4) + 4, 0);
    std::fs::write(&section, link).expect("written");
    let argument = format!(".gnu_debuglink={}", section.display());
    run(std::process::Command::new("objcopy").args(["--add-section", &argument]).arg(&program));
    assert!(names(&resolve(&std::fs::read(&program).expect("readable"))) > 0);
}

#[test]
fn a_module_without_a_file_has_no_names() {
    let module = ModuleFile { module: Module { path: "/gone".into(), build_id: None }, file: None };
    let lines = Resolver::new(ResolverOptions::default()).resolve(&module, &[1, 2]);
    assert_eq!(lines, [[SymbolLine::default()], [SymbolLine::default()]]);
    let null = File::open("/dev/null").expect("readable");
    let module = ModuleFile { file: Some(Arc::new(null)), ..module };
    assert_eq!(Resolver::new(ResolverOptions::default()).resolve(&module, &[1])[0], [SymbolLine::default()]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damage_anywhere_is_survived(damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..64)) {
        let mut image = IMAGE.clone();
        for (at, value) in damage {
            let at = at.index(image.len());
            image[at] = value;
        }
        resolve(&image);
    }

    #[test]
    fn damaged_symbols_and_sections_are_survived(damage in proptest::collection::vec((0usize..6144, any::<u8>()), 1..64)) {
        let mut image = IMAGE.clone();
        let from = image.len() - 6144;
        for (at, value) in damage {
            image[from + at] = value;
        }
        resolve(&image);
    }
}
