// SPDX-License-Identifier: Apache-2.0
//! A program that a test compiles, in the forms that distributions ship.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;
use wallprof_symbols::{build_id_of_path, hex_build_id};

/// Computes for some 0.2 s in each function. `exported` is a dynamic symbol with -rdynamic; `hidden` is none. It sleeps at
/// random: bursts and sleeps of constant length, four of which took one period of the sampling clock, met no sample at
/// all in one run of forty.
const SOURCE: &str = r#"
#include <stdlib.h>
#include <unistd.h>
static volatile long sink;
static inline __attribute__((always_inline)) long inlined_part(long value) { sink = value; return value * 3; }
__attribute__((noinline)) long exported(long value) {
    for (long i = 0; i < 200000; i++) sink = value * i;
    return value + 1;
}
static __attribute__((noinline)) long hidden(long value) {
    for (long i = 0; i < 200000; i++) sink += inlined_part(value + i);
    return value + 2;
}
int main(void) {
    for (int i = 0; i < 2000; i++) { exported(i); hidden(i); if (rand() % 10 == 0) usleep(rand() % 2000); }
    return 0;
}
"#;

pub struct Split {
    folder: TempDir,
    pub build_id: Vec<u8>,
}

impl Split {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("split.c"), SOURCE).expect("written");
        let options = ["-O1", "-g", "-rdynamic", "-fno-toplevel-reorder", "-Wl,--build-id=sha1"];
        run(Command::new("gcc").args(options).arg(path("split.c")).arg("-o").arg(path("whole")));
        run(Command::new("objcopy").arg("--only-keep-debug").args([path("whole"), path("debug")]));
        run(Command::new("strip").arg("-o").args([path("stripped"), path("whole")]));
        let build_id = build_id_of_path(&path("whole")).expect("a build id");
        Split { folder, build_id }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn whole(&self) -> PathBuf {
        self.folder().join("whole")
    }

    pub fn stripped(&self) -> PathBuf {
        self.folder().join("stripped")
    }

    pub fn debug(&self) -> PathBuf {
        self.folder().join("debug")
    }

    pub fn hex(&self) -> String {
        hex_build_id(&self.build_id)
    }

    /// A new folder with one file: a copy of `from` under this name.
    pub fn copy_in(&self, folder: &str, name: &str, from: &Path) -> PathBuf {
        let folder = self.folder().join(folder);
        let place = folder.join(name);
        std::fs::create_dir_all(place.parent().expect("a folder")).expect("folders");
        std::fs::copy(from, place).expect("copied");
        folder
    }

    /// The stripped program with MiniDebugInfo, made as gdb's manual makes it.
    pub fn with_mini_debug_info(&self) -> PathBuf {
        let path = |name: &str| self.folder().join(name);
        std::fs::write(path("keep"), "hidden\n").expect("written");
        run(Command::new("objcopy")
            .args(["-S", "--remove-section=.gdb_index", "--remove-section=.comment"])
            .arg(format!("--keep-symbols={}", path("keep").display()))
            .args([self.debug(), path("mini")]));
        std::fs::write(path("mini.xz"), xz(&std::fs::read(path("mini")).expect("readable")))
            .expect("written");
        run(Command::new("objcopy")
            .arg(format!("--add-section=.gnu_debugdata={}", path("mini.xz").display()))
            .args([self.stripped(), path("with-mini")]));
        path("with-mini")
    }

    /// The address of a function.
    pub fn address_of(&self, function: &str) -> u64 {
        let output = Command::new("nm").arg(self.whole()).output().expect("nm");
        let text = String::from_utf8(output.stdout).expect("text");
        let line = text.lines().find(|line| line.ends_with(&format!(" {function}"))).expect("a symbol");
        u64::from_str_radix(line.split(' ').next().expect("an address"), 16).expect("hex")
    }
}

pub fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let child = Command::new("xz").arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("xz");
    let mut input = child.stdin.take().expect("a pipe");
    std::thread::scope(|scope| {
        scope.spawn(move || input.write_all(bytes).expect("written"));
        child.wait_with_output().expect("xz ends").stdout
    })
}
