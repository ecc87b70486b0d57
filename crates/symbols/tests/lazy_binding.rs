// SPDX-License-Identifier: Apache-2.0
//! The function that a call binds, in programs that gcc has built.

mod support;

use std::process::Command;

use support::{Program, compile_c, run};
use wallprof_model::Module;
use wallprof_symbols::{LazyCalls, ModuleFile, build_id_of_path, exports_function};

/// The last byte of the first call in the program's code whose target objdump names `stub`.
fn call_to(program: &Program, stub: &str) -> u64 {
    let listing = Command::new("objdump").args(["-d", "-j", ".text"]).arg(&program.path).output();
    let listing = String::from_utf8(listing.expect("objdump runs").stdout).expect("text");
    let line = listing.lines().find(|line| line.contains("call") && line.ends_with(stub));
    let address = line.and_then(|line| line.trim_start().split(':').next()).expect("a call");
    u64::from_str_radix(address, 16).expect("an address") + 4
}

fn module(program: &Program) -> ModuleFile {
    let path = program.path.to_string_lossy().into_owned();
    ModuleFile::locate(&Module { path, build_id: build_id_of_path(&program.path) })
}

fn bound(program: &Program, call: u64) -> Option<String> {
    let module = module(program);
    LazyCalls::read(&module).expect("an ELF file").bound_by(call).map(|function| function.name)
}

#[test]
fn a_call_through_a_stub_names_its_function_with_and_without_symbols() {
    for protection in ["-fcf-protection=none", "-fcf-protection=full"] {
        let program = compile_c(&["-Wl,-z,lazy", protection, "-Wl,-z,ibtplt"]);
        let call = call_to(&program, "<fflush@plt>");
        assert_eq!(bound(&program, call).as_deref(), Some("fflush"), "{protection}");
        run(Command::new("strip").arg("--strip-all").arg(&program.path));
        assert_eq!(bound(&program, call).as_deref(), Some("fflush"), "{protection}, stripped");
        for elsewhere in [call - 1, call + 1, 0, u64::MAX] {
            assert_eq!(bound(&program, elsewhere), None, "{elsewhere:#x}");
        }
    }
}

#[test]
fn a_call_without_a_stub_binds_nothing() {
    let program = compile_c(&["-Wl,-z,lazy"]);
    assert_eq!(bound(&program, call_to(&program, "<wanted>")), None);
}

#[test]
fn library_that_defines_a_function_exports_it() {
    let path = "/lib/x86_64-linux-gnu/libc.so.6";
    let build_id = build_id_of_path(path.as_ref());
    let libc = ModuleFile::locate(&Module { path: path.into(), build_id });
    let exports = |module: &ModuleFile, symbol: &str| exports_function(module, module.payer(), symbol);
    assert!(exports(&libc, "fflush") && exports(&libc, "memcpy"));
    assert!(!exports(&libc, "fflus") && !exports(&libc, "fflush_") && !exports(&libc, ""));
    assert!(!exports(&module(&compile_c(&[])), "fflush"), "it asks for it");
}
