// SPDX-License-Identifier: Apache-2.0
//! The kernel side as a program of the host: host/host.c, which reads commands and prints records.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// One line of the program's output: what it is, and its fields.
pub struct Record {
    pub kind: String,
    fields: BTreeMap<String, String>,
}

impl Record {
    fn from_line(line: &str) -> Self {
        let mut words = line.split_whitespace();
        let kind = words.next().unwrap_or_default().to_owned();
        let fields = words.filter_map(|word| word.split_once('='));
        Record { kind, fields: fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect() }
    }

    pub fn text(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    pub fn number(&self, name: &str) -> i64 {
        self.text(name).parse().unwrap_or_else(|error| panic!("{} {name}: {error}", self.kind))
    }
}

/// The programs of `bpf/` as they are.
pub fn unchanged() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile(&bpf_folder(), "unchanged", "-O1"))
}

pub fn bpf_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf")
}

/// Compiles the programs of a folder.
pub fn compile(bpf: &Path, name: &str, optimised: &str) -> PathBuf {
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ledger/host");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("ledger_{name}"));
    let done = Command::new("clang-19")
        .args([optimised, "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-unused-function"])
        // Of bpf/include/kernel.h, and of the arguments of tracepoints.
        .args(["-Wno-unknown-attributes", "-Wno-int-conversion"])
        .arg("-I")
        .arg(&host)
        .arg("-I")
        .arg(bpf)
        .arg(host.join("host.c"))
        .arg("-o")
        .arg(&program)
        .status()
        .expect("clang-19, which bpf/ is built with");
    assert!(done.success(), "the kernel side compiles for the host");
    program
}

/// What the program prints. An error says how it ended.
pub fn run(program: &Path, commands: &str) -> Result<Vec<Record>, String> {
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut stdout = child.stdout.take().expect("a pipe");
    let commands = commands.to_owned();
    // A program that ended early reads no more; its status says so.
    let writer = std::thread::spawn(move || drop(stdin.write_all(commands.as_bytes())));
    let mut output = String::new();
    stdout.read_to_string(&mut output).map_err(|error| error.to_string())?;
    drop(writer.join());
    let status = child.wait().map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(format!("the kernel side ended with {status}"));
    }
    Ok(output.lines().map(Record::from_line).collect())
}
