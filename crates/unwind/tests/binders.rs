// SPDX-License-Identifier: Apache-2.0
//! The binding functions that are found by unwind entries are the target of a program's table at a first
//! call: the address that the dynamic linker has written into `.got.plt[2]`.

use std::process::Command;

use wallprof_unwind::binders_from_elf;

const PROGRAM: &str = r#"
#include <stdio.h>
#include <sys/auxv.h>
extern void *_GLOBAL_OFFSET_TABLE_[] __attribute__((visibility("hidden")));
int main(void) {
    printf("%lx\n", (unsigned long)_GLOBAL_OFFSET_TABLE_[2] - getauxval(AT_BASE));
    return 0;
}
"#;

const LINKER: &str = "/lib64/ld-linux-x86-64.so.2";

#[test]
fn table_of_a_lazily_bound_program_points_to_a_binding_function() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let [source, program] = ["program.c", "program"].map(|name| folder.path().join(name));
    std::fs::write(&source, PROGRAM).expect("written");
    let compiled = Command::new("gcc").args(["-Wl,-z,lazy", "-o"]).args([&program, &source]).status();
    assert!(compiled.expect("gcc runs").success());
    let output = Command::new(&program).env_remove("LD_BIND_NOW").output().expect("the program runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let resolver = u64::from_str_radix(text.trim(), 16).expect("an address in the linker");
    let binders = binders_from_elf(&std::fs::read(LINKER).expect("the linker"));
    assert!(binders.iter().any(|range| range.start == resolver), "{resolver:#x} is none of {binders:x?}");
}
