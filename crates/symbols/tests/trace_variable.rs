// SPDX-License-Identifier: Apache-2.0
//! Where programs and libraries that gcc has built find the variable by which threads publish their traces.

mod support;

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use support::run;
use wallprof_model::Module;
use wallprof_symbols::{ModuleFile, TraceVariable, build_id_of_path, trace_variable};

const PUBLISHES: &str = "__thread char before[24] __attribute__((aligned(64))) = {1};
__thread void *otel_thread_ctx_v1;
void attach(void *record) { otel_thread_ctx_v1 = record; before[0]++; }
#ifdef MAIN
#include <stdio.h>
int main(void) {
    char *thread;
    __asm__(\"mov %%fs:0, %0\" : \"=r\"(thread));
    attach(thread);
    printf(\"%ld\", (long)((char *)&otel_thread_ctx_v1 - thread));
    return 0;
}
#endif
";

fn built(folder: &Path, source: &str, flags: &[&str]) -> ModuleFile {
    let (from, to) = (folder.join("source.c"), folder.join("module"));
    std::fs::write(&from, source).expect("written");
    run(Command::new("gcc").args(["-O1", "-Wl,--build-id", "-o"]).args([&to, &from]).args(flags));
    let path = to.to_string_lossy().into_owned();
    ModuleFile::locate(&Module { path, build_id: build_id_of_path(&to) })
}

/// What readelf says: the slots of the variable's relocations, by their types.
fn slots(folder: &Path) -> Vec<(String, u64)> {
    let listing =
        Command::new("readelf").arg("-rW").arg(folder.join("module")).output().expect("readelf runs");
    let listing = String::from_utf8(listing.stdout).expect("text");
    let of_tls = listing
        .lines()
        .filter(|line| ["TLSDESC", "TPOFF64", "DTPMOD64"].iter().any(|kind| line.contains(kind)));
    of_tls
        .map(|line| {
            let mut fields = line.split_whitespace();
            let slot = u64::from_str_radix(fields.next().expect("a slot"), 16).expect("hexadecimal");
            (fields.nth(1).expect("a type").trim_start_matches("R_X86_64_").to_owned(), slot)
        })
        .collect()
}

#[test]
fn library_has_the_variable_where_its_relocation_says() {
    type Expected = fn(u64) -> TraceVariable;
    let models: [(&[&str], Expected); 6] = [
        (&["-mtls-dialect=gnu2"], TraceVariable::Descriptor),
        (&["-mtls-dialect=gnu"], TraceVariable::IndexAt),
        (&["-ftls-model=initial-exec"], TraceVariable::OffsetAt),
        // Without the symbol in the relocation.
        (&["-mtls-dialect=gnu2", "-Wl,-Bsymbolic"], TraceVariable::Descriptor),
        (&["-mtls-dialect=gnu", "-Wl,-Bsymbolic"], TraceVariable::IndexAt),
        (&["-ftls-model=initial-exec", "-Wl,-Bsymbolic"], TraceVariable::OffsetAt),
    ];
    for (flags, expected) in models {
        let folder = tempfile::tempdir().expect("a folder");
        let module = built(folder.path(), PUBLISHES, &[&["-fPIC", "-shared"], flags].concat());
        let found = trace_variable(&module).unwrap_or_else(|| panic!("the variable, {flags:?}"));
        let slots = slots(folder.path());
        assert!(slots.iter().any(|(_, slot)| found == expected(*slot)), "{found:?}, {flags:?}: {slots:?}");
    }
}

#[test]
fn program_has_the_variable_below_the_thread_pointer() {
    for flags in [&["-rdynamic"][..], &["-rdynamic", "-no-pie"], &["-static"], &["-static-pie"]] {
        let folder = tempfile::tempdir().expect("a folder");
        let module = built(folder.path(), PUBLISHES, &[&["-DMAIN"], flags].concat());
        let said = Command::new(folder.path().join("module")).output().expect("it runs").stdout;
        let distance = String::from_utf8(said).expect("text").parse().expect("a number");
        assert_eq!(trace_variable(&module), Some(TraceVariable::Offset(distance)), "{flags:?}");
        assert!(distance < 0);
    }
}

#[test]
fn other_files_have_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let without = PUBLISHES.replace("otel_thread_ctx_v1", "otel_thread_ctx_v2");
    let module = built(folder.path(), &without, &["-DMAIN", "-rdynamic"]);
    assert_eq!(trace_variable(&module), None);
    // Not thread-local.
    let global = PUBLISHES.replace("__thread void", "void");
    let module = built(folder.path(), &global, &["-DMAIN", "-rdynamic"]);
    assert_eq!(trace_variable(&module), None);
    // A library whose code reaches the variable in no known way: its place is not known.
    let unused = "__thread void *otel_thread_ctx_v1;";
    let module = built(folder.path(), unused, &["-fPIC", "-shared"]);
    assert_eq!(trace_variable(&module), None);
    let libc = "/lib/x86_64-linux-gnu/libc.so.6";
    let build_id = build_id_of_path(libc.as_ref());
    assert_eq!(trace_variable(&ModuleFile::locate(&Module { path: libc.into(), build_id })), None);
}

static LIBRARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    built(folder.path(), PUBLISHES, &["-fPIC", "-shared", "-nostdlib"]);
    std::fs::read(folder.path().join("module")).expect("readable")
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn damaged_file_has_another_place_or_none(damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20)) {
        let mut image = LIBRARY.clone();
        for (at, byte) in damage {
            let at = at.index(image.len());
            image[at] = byte;
        }
        let mut file = tempfile::tempfile().expect("a scratch file");
        file.write_all(&image).expect("written");
        let module = Module { path: "/hostile".into(), build_id: None };
        let _ = trace_variable(&ModuleFile { module, file: Some(Arc::new(file)) });
    }
}
