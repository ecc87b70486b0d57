// SPDX-License-Identifier: Apache-2.0
//! Real programs for tests: compiled on the spot, started, and stopped at a known place. Each test program
//! uses a part of this.
#![allow(dead_code)]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use wallprof_model::{Frame, SymbolLine};
use wallprof_symbols::{ProcessKey, Processes, Resolver, ResolverOptions};

/// Prints the address of `wanted`, and of `printed` functions, then waits for its input to end.
pub const C_PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
static volatile int sink;
static inline __attribute__((always_inline)) int inlined_part(int value) {
    sink = value;
    return value * 3;
}
__attribute__((noinline)) int wanted(int value) {
    int result = inlined_part(value) + 1;
    sink = result;
    return result;
}
int main(void) {
    printf("%p %p\n", (void *)wanted, (void *)getenv);
    fflush(stdout);
    while (getchar() != EOF) {
        wanted(1);
    }
    return 0;
}
"#;

/// A program file in its own scratch folder.
pub struct Program {
    pub folder: tempfile::TempDir,
    pub path: PathBuf,
}

pub fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Compiles `source` with gcc, g++ or rustc, depending on the file's `suffix`.
pub fn compile(suffix: &str, source: &str, arguments: &[&str]) -> Program {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let source_path = folder.path().join(format!("program.{suffix}"));
    std::fs::write(&source_path, source).expect("written");
    let path = folder.path().join("program");
    let compiler = match suffix {
        "c" => "gcc",
        "cc" => "g++",
        _ => "rustc",
    };
    run(Command::new(compiler).arg(&source_path).arg("-o").arg(&path).args(arguments));
    Program { folder, path }
}

pub fn compile_c(arguments: &[&str]) -> Program {
    compile("c", C_PROGRAM, &[&["-O2", "-fno-omit-frame-pointer"], arguments].concat())
}

/// A program that has printed its addresses and waits; it ends when this is dropped.
pub struct Running {
    pub child: Child,
    pub addresses: Vec<u64>,
}

impl Running {
    pub fn start(program: impl AsRef<OsStr>) -> Self {
        Self::of(&mut Command::new(program))
    }

    pub fn of(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("a line of addresses");
        let address =
            |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an address");
        let addresses = line.split_whitespace().map(address).collect();
        Running { child, addresses }
    }

    pub fn key(&self) -> ProcessKey {
        key(self.child.id())
    }

    pub fn end(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().expect("the program ends");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Already ended programs cannot be killed, and that is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn key(pid: u32) -> ProcessKey {
    ProcessKey { pid, generation: 0 }
}

/// Normalises one leaf address.
pub fn frame(processes: &mut Processes, process: ProcessKey, address: u64) -> Frame {
    let mut frames = Vec::new();
    processes.normalise_user(process, &[address], &mut frames);
    frames[0]
}

/// Resolves one frame with debug information from `debug_dirs` only.
pub fn lines(processes: &mut Processes, frame: Frame, debug_dirs: &[&Path]) -> Vec<SymbolLine> {
    let file = frame.module.and_then(|id| processes.module_file(id)).expect("a module");
    let debug_dirs = debug_dirs.iter().map(|dir| dir.to_path_buf()).collect();
    let mut resolver = Resolver::new(ResolverOptions { debug_dirs, ..ResolverOptions::default() });
    resolver.resolve(&file, &[frame.address]).remove(0)
}

/// The function at an address of a running program, by the program's own symbols.
pub fn symbol(processes: &mut Processes, process: ProcessKey, address: u64) -> Option<String> {
    let frame = frame(processes, process, address);
    lines(processes, frame, &[]).pop().and_then(|line| line.symbol)
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
