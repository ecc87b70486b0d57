// SPDX-License-Identifier: Apache-2.0
//! The files that a program will map when it starts, guessed without running it: itself, its interpreter, and
//! the libraries that those need.
//!
//! The unwind tables of these files are built early. A missing file is read when it is mapped; a superfluous
//! one costs memory. Formats: `elf(5)`, `ld.so(8)`.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_STRTAB, PT_DYNAMIC, PT_INTERP, ProgramType};

use crate::elf::{ElfFacts, ElfHeader};
use crate::elf_records::SegmentFields;
use crate::live_file::open_regular;
use crate::read_at::{ReadAt, read_bounded};

/// Files of one program.
const MAX_FILES: usize = 256;
/// A dynamic section is at most this long.
const MAX_DYNAMIC: u64 = 64 << 10;
/// `PATH_MAX`, which a name fits in; lists of folders are cut there.
const MAX_NAME: u64 = 4096;
/// The kernel reads no more of a script's first line.
const MAX_SHEBANG: usize = 256;
/// A script's interpreter may be a script.
const MAX_SCRIPTS: usize = 4;

/// The default search folders of the dynamic linker, on Debian and on other distributions.
const LIBRARY_DIRS: [&str; 8] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// The program at `path` and the files that it needs, each once, the program first. Empty when there is no
/// such file.
pub fn files_of_program(path: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut seen = HashSet::new();
    let mut next = vec![path.to_path_buf()];
    while let Some(path) = next.pop() {
        if files.len() == MAX_FILES || !seen.insert(path.clone()) {
            continue;
        }
        let Ok(file) = open_regular(&path) else { continue };
        next.extend(needs(&file, &path, seen.len() <= MAX_SCRIPTS));
        files.push(path);
    }
    files
}

/// Whether a file is linked dynamically, but needs neither an interpreter nor a library.
pub(crate) fn needs_nothing(file: &File) -> bool {
    let Some((header, segments)) = header_and_segments(file) else { return false };
    let entries = bytes_of(file, &segments, PT_DYNAMIC).map(|bytes| header.class.dynamic_entries(&bytes));
    let has_interpreter = segments.iter().any(|raw| raw.kind == PT_INTERP);
    !has_interpreter && entries.is_some_and(|entries| entries.iter().all(|(tag, _)| *tag != DT_NEEDED))
}

fn needs(file: &File, path: &Path, may_be_script: bool) -> Vec<PathBuf> {
    match Dynamic::read(file) {
        Some(dynamic) => dynamic.files(path),
        None if may_be_script => script_interpreter(file).into_iter().collect(),
        None => Vec::new(),
    }
}

/// `#!/usr/bin/env python3` needs env; which python it finds is not known here.
fn script_interpreter(file: &File) -> Option<PathBuf> {
    let mut line = [0; MAX_SHEBANG];
    let len = usize::try_from(file.size().ok()?).ok()?.min(MAX_SHEBANG);
    ReadAt::read_exact_at(file, &mut line[..len], 0).ok()?;
    let line = line[..len].strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let name = line.trim_ascii_start().split(u8::is_ascii_whitespace).next()?;
    name.starts_with(b"/").then(|| PathBuf::from(OsStr::from_bytes(name)))
}

/// The instructions for the dynamic linker in a file.
#[derive(Default)]
struct Dynamic {
    interpreter: Option<Vec<u8>>,
    libraries: Vec<Vec<u8>>,
    dirs: Vec<Vec<u8>>,
}

impl Dynamic {
    /// `None`: no ELF file.
    fn read(file: &File) -> Option<Self> {
        let (header, segments) = header_and_segments(file)?;
        let interpreter = bytes_of(file, &segments, PT_INTERP).map(|bytes| text(&bytes));
        let mut dynamic = Dynamic { interpreter, ..Dynamic::default() };
        let Some(bytes) = bytes_of(file, &segments, PT_DYNAMIC) else { return Some(dynamic) };
        let entries = header.class.dynamic_entries(&bytes);
        let facts = ElfFacts::read(file).ok()?;
        let Some((_, names)) = entries.iter().find(|(tag, _)| *tag == DT_STRTAB) else {
            return Some(dynamic);
        };
        for (tag, at) in &entries {
            let name = || text_in_memory(file, &facts, names.wrapping_add(*at)).unwrap_or_default();
            match *tag {
                DT_NEEDED => dynamic.libraries.push(name()),
                DT_RPATH | DT_RUNPATH => {
                    dynamic.dirs.extend(name().split(|&byte| byte == b':').map(<[u8]>::to_vec));
                }
                _ => {}
            }
        }
        Some(dynamic)
    }

    /// The files named, where they are found, for the file at `path`.
    fn files(&self, path: &Path) -> Vec<PathBuf> {
        let origin = path.canonicalize().ok().and_then(|path| path.parent().map(Path::to_path_buf));
        let dir = |dir: &Vec<u8>| match dir.strip_prefix(b"$ORIGIN") {
            Some(rest) => origin
                .as_ref()
                .map(|origin| origin.join(OsStr::from_bytes(rest.strip_prefix(b"/").unwrap_or(rest)))),
            None => Some(PathBuf::from(OsStr::from_bytes(dir))),
        };
        let own: Vec<PathBuf> = self.dirs.iter().filter_map(dir).collect();
        let dirs = || own.iter().map(PathBuf::as_path).chain(LIBRARY_DIRS.iter().map(Path::new));
        let library = |name: &Vec<u8>| {
            let name = Path::new(OsStr::from_bytes(name));
            dirs().map(|dir| dir.join(name)).find(|path| path.is_file())
        };
        let interpreter = self.interpreter.iter().map(|name| PathBuf::from(OsStr::from_bytes(name)));
        self.libraries.iter().filter_map(library).chain(interpreter).collect()
    }
}

pub(crate) fn header_and_segments(file: &File) -> Option<(ElfHeader, Vec<SegmentFields>)> {
    let header = ElfHeader::read(file).ok()?;
    let segments = header.segment_table(file).ok()?;
    Some((header, segments))
}

/// The first segment of a kind.
pub(crate) fn bytes_of(file: &File, segments: &[SegmentFields], kind: ProgramType) -> Option<Vec<u8>> {
    let found = segments.iter().find(|raw| raw.kind == kind)?;
    read_bounded(file, found.offset, found.file_size, MAX_DYNAMIC)
}

/// The text at an ELF virtual address.
fn text_in_memory(file: &File, facts: &ElfFacts, address: u64) -> Option<Vec<u8>> {
    let holds = |segment: &&crate::elf::Segment| address.wrapping_sub(segment.address) < segment.file_size;
    let segment = facts.segments.iter().find(holds)?;
    let skip = address - segment.address;
    let len = (segment.file_size - skip).min(MAX_NAME);
    read_bounded(file, segment.offset.checked_add(skip)?, len, MAX_NAME).map(|bytes| text(&bytes))
}

/// Bytes up to their NUL.
fn text(bytes: &[u8]) -> Vec<u8> {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_needs_its_linker_and_the_libraries_of_its_libraries() {
        let own = std::env::current_exe().expect("a test has a file");
        let files = files_of_program(&own);
        assert_eq!(files[0], own);
        let has = |name: &str| files.iter().any(|path| path.to_string_lossy().contains(name));
        assert!(has("libc.so") && has("ld-linux"), "{files:?}");
    }

    #[test]
    fn the_dynamic_linker_needs_nothing() {
        let needs_nothing = |path: &str| needs_nothing(&File::open(path).expect("Debian has it"));
        assert!(needs_nothing("/lib64/ld-linux-x86-64.so.2"));
        assert!(!needs_nothing("/lib/x86_64-linux-gnu/libc.so.6") && !needs_nothing("/bin/true"));
        assert!(!needs_nothing("/etc/passwd"));
    }

    #[test]
    fn a_script_needs_its_interpreter() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let script = folder.path().join("script");
        std::fs::write(&script, "#! /bin/sh -e\nexit\n").expect("written");
        let files = files_of_program(&script);
        assert_eq!(files[..2], [script, PathBuf::from("/bin/sh")]);
    }

    #[test]
    fn damaged_files_need_nothing() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = folder.path().join("file");
        let image = std::fs::read("/bin/true").expect("a small program");
        for len in (0..4096.min(image.len())).step_by(7) {
            std::fs::write(&path, &image[..len]).expect("written");
            assert!(files_of_program(&path).len() <= MAX_FILES);
        }
        std::fs::write(&path, b"#!").expect("written");
        assert_eq!(files_of_program(&path), std::slice::from_ref(&path));
        assert!(files_of_program(Path::new("/nowhere")).is_empty());
    }
}
