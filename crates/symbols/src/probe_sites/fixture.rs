// SPDX-License-Identifier: Apache-2.0
//! Compiled programs for tests, and what binutils says about them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A program in its own scratch folder.
pub(super) struct Program {
    pub folder: tempfile::TempDir,
    pub path: PathBuf,
}

/// An instruction as `objdump -d` prints it.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub address: u64,
    pub text: String,
}

impl Program {
    /// Compiles the sources with gcc, or with g++ where their `suffix` is `cc`.
    pub(super) fn compile(suffix: &str, sources: &[&str], arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = folder.path().join("program");
        let mut command = Command::new(if suffix == "cc" { "g++" } else { "gcc" });
        command.args(["-O2", "-fcf-protection=full"]).args(arguments).arg("-o").arg(&path);
        for (number, source) in sources.iter().enumerate() {
            let source_path = folder.path().join(format!("source{number}.{suffix}"));
            std::fs::write(&source_path, source).expect("written");
            command.arg(source_path);
        }
        output(&mut command);
        Program { folder, path }
    }

    /// The output of a tool of binutils for this program.
    pub(super) fn output_of(&self, tool: &str, arguments: &[&str]) -> String {
        output(Command::new(tool).args(arguments).arg(&self.path))
    }

    /// A copy that `objcopy` has changed.
    pub(super) fn copy(&self, name: &str, arguments: &[&str]) -> PathBuf {
        let copy = self.folder.path().join(name);
        output(Command::new("objcopy").args(arguments).arg(&self.path).arg(&copy));
        copy
    }

    /// The instructions of a symbol; none where there is no such symbol.
    pub(super) fn code_of(&self, symbol: &str) -> Vec<Line> {
        let listing = self.output_of("objdump", &["-d", "--no-show-raw-insn"]);
        let head = format!(" <{symbol}>:\n");
        let Some((_, code)) = listing.split_once(&head) else { return Vec::new() };
        let lines = code.lines().take_while(|line| !line.is_empty());
        lines.filter_map(|line| line.split_once(':')).map(|(at, text)| Line::new(at, text)).collect()
    }

    /// The address of a symbol.
    pub(super) fn address_of(&self, symbol: &str) -> u64 {
        self.code_of(symbol).first().expect("code").address
    }
}

impl Line {
    fn new(address: &str, text: &str) -> Self {
        let address = u64::from_str_radix(address.trim(), 16).expect("an address");
        Line { address, text: text.trim().to_owned() }
    }

    pub(super) fn is_return(&self) -> bool {
        self.text == "ret" || self.text.ends_with(" ret")
    }

    /// Whether it is a direct jump to a place outside of all of these symbols.
    pub(super) fn leaves(&self, symbols: &[&str]) -> bool {
        let Some((_, target)) = self.text.split_once('<').filter(|_| self.text.starts_with('j')) else {
            return false;
        };
        let target = target.trim_end_matches('>').split('+').next().unwrap_or_default();
        !symbols.contains(&target)
    }
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Options that find debug files in this folder only.
pub(super) fn options_with(debug_dir: Option<&Path>) -> crate::ResolverOptions {
    let debug_dirs = debug_dir.map(Path::to_path_buf).into_iter().collect();
    crate::ResolverOptions { debug_dirs, ..crate::ResolverOptions::default() }
}
