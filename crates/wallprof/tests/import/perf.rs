// SPDX-License-Identifier: Apache-2.0
//! Runs perf to record, and to print its recordings.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A perf.data file in its own scratch folder.
pub struct Recorded {
    pub folder: TempDir,
    pub path: PathBuf,
}

/// The stack of one sample, as `perf script` prints it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Printed {
    pub tid: u32,
    /// Offset in the file, or the address if there is no file; and the file. Leaf first, the thread's own
    /// frames.
    pub user: Vec<(u64, String)>,
    pub kernel: usize,
}

/// Whether perf can sample here; else `test` is skipped. If it is required and installed, a failure to sample
/// fails the test.
pub fn works(test: &str) -> bool {
    let Ok(version) = Command::new("perf").arg("--version").output() else {
        wallprof_testkit::skip(test, "perf is not installed (Debian: linux-perf)");
        return false;
    };
    let probe = record(&["-e", "cpu-clock"], &["true"]);
    let works = version.status.success() && probe.is_some();
    let required = std::env::var_os("WALLPROF_REQUIRE_BPF").is_some_and(|value| value == "1");
    assert!(works || !required, "perf is installed and cannot record");
    if !works {
        wallprof_testkit::skip(test, "perf does not work here");
    }
    works
}

/// Records `command`. Build ids are left to the mappings: perf 6.1 misreads them on newer kernels, and ends,
/// when another recording asks for them at the same time.
pub fn record(options: &[&str], command: &[&str]) -> Option<Recorded> {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("perf.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-B", "-N", "-o"]).arg(&path).args(options).arg("--").args(command);
    let output = perf.stdin(Stdio::null()).output().ok()?;
    path.is_file()
        .then_some(())
        .filter(|()| output.status.success() || path.metadata().is_ok_and(|file| file.len() > 0))?;
    Some(Recorded { folder, path })
}

impl Recorded {
    /// All samples of threads, in the order of time.
    pub fn script(&self) -> Vec<Printed> {
        let sane = self.folder.path().join("sane.data");
        std::fs::write(&sane, without_build_id_marks(&std::fs::read(&self.path).expect("readable")))
            .expect("written");
        let mut perf = Command::new("perf");
        perf.arg("script").arg("-i").arg(&sane);
        perf.args(["--no-inline", "--max-stack", "2000", "-F", "tid,time,event,ip,dso"]);
        let output: Output = perf.stdin(Stdio::null()).output().expect("perf runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        printed(&String::from_utf8_lossy(&output.stdout))
    }
}

/// Lines such as ` 9040 12533.862009: cpu-clock: `, then lines of an address and a file, then an empty one.
fn printed(text: &str) -> Vec<Printed> {
    let mut samples: Vec<Printed> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (first, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        if !line.starts_with('\t') {
            samples.push(Printed { tid: first.parse().unwrap_or(u32::MAX), ..Printed::default() });
            continue;
        }
        let Some(sample) = samples.last_mut() else { continue };
        let file = rest.trim().trim_start_matches('(').trim_end_matches(')');
        let address = u64::from_str_radix(first, 16).expect("an address");
        if address >= 1 << 63 { sample.kernel += 1 } else { sample.user.push((address, file.to_owned())) }
    }
    samples
}

/// Clears the marks that mappings carry build ids, because they carry inodes here (see [`record`]).
fn without_build_id_marks(file: &[u8]) -> Vec<u8> {
    const MMAP2: u32 = 10;
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().expect("8 bytes")) as usize;
    let mut bytes = file.to_vec();
    let (mut at, end) = (word(40), word(40) + word(48));
    while at + 8 <= end {
        let kind = u32::from_le_bytes(file[at..at + 4].try_into().expect("4 bytes"));
        let size = usize::from(u16::from_le_bytes([file[at + 6], file[at + 7]]));
        if kind == MMAP2 {
            bytes[at + 5] &= !0x40;
        }
        at += size.max(8);
    }
    bytes
}

/// Whether both paths have the same file name. perf may print another path of the same file.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    a.file_name() == b.file_name()
}
