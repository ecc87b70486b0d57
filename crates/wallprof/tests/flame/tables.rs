// SPDX-License-Identifier: Apache-2.0
//! `export --to parquet`: which files a reader finds.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wallprof_testkit::program::wallprof;

use crate::fixture::Fixture;

/// Moments of an export at which it is killed.
const KILLS: u32 = 20;

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

/// Those that a reader finds.
fn tables(folder: &Path) -> Vec<PathBuf> {
    files(folder).into_iter().filter(|file| file.extension().is_some_and(|end| end == "parquet")).collect()
}

fn export(fixture: &Fixture, folder: &Path) -> std::process::Command {
    wallprof(&["export", fixture.path(), "--to", "parquet", "-o", folder.to_str().unwrap()])
}

#[test]
fn tables_are_in_folders_by_host_date_and_hour_and_the_same_in_each_export() {
    let fixture = Fixture::new();
    let folder = fixture.folder.path().join("it's here");
    let exported = || {
        let output = export(&fixture, &folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        files(&folder).into_iter().map(|file| (fs::read(&file).unwrap(), file)).collect::<Vec<_>>()
    };
    let first = exported();
    let tables: Vec<_> = first
        .iter()
        .map(|(_, file)| {
            let inside = file.strip_prefix(&folder).unwrap().to_str().unwrap();
            let (table, rest) = inside.split_once('/').unwrap();
            assert!(rest.starts_with("host=unknown/date=2026-11-21/hour=08/"), "{inside}");
            table.to_owned()
        })
        .collect();
    for table in ["ledger", "recordings", "samples", "stacks", "stalls"] {
        assert_eq!(tables.iter().filter(|found| *found == table).count(), 1, "{table} in {tables:?}");
    }
    assert_eq!(exported(), first);
}

/// As a watcher writes the last part of its recording.
fn write_part(fixture: &Fixture, folder: &Path) -> std::process::Command {
    let end = u64::MAX.to_string();
    let part = ["--from", "0", "--until", &end, "--started", "1", "--keep-bytes", "1000000000"];
    let files = [fixture.path(), folder.to_str().unwrap()];
    let mut writer = wallprof(&[&["__tables"][..], &part, &files].concat());
    writer.stdout(std::process::Stdio::null());
    writer
}

/// Kills the writer at moments of its run. A reader finds whole files, and the next writer replaces them.
fn check_killed(writer: impl Fn(&Fixture, &Path) -> std::process::Command) {
    let fixture = Fixture::new();
    let folder = fixture.folder.path().join("tables");
    let started = Instant::now();
    assert!(writer(&fixture, &folder).status().unwrap().success());
    let (whole, expected) = (started.elapsed(), files(&folder));
    for kill in 0..KILLS {
        let folder = fixture.folder.path().join(format!("killed-{kill}"));
        let mut running = writer(&fixture, &folder).spawn().unwrap();
        std::thread::sleep(Duration::from_secs_f64(whole.as_secs_f64() * f64::from(kill) / f64::from(KILLS)));
        running.kill().unwrap();
        running.wait().unwrap();
        for file in files(&folder) {
            let name = file.file_name().unwrap().to_str().unwrap();
            let bytes = fs::read(&file).unwrap();
            let is_whole = bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1");
            let is_hidden = name.starts_with('.') && !name.ends_with(".parquet");
            assert!(
                is_hidden || name.ends_with(".parquet") && is_whole,
                "killed at {kill}: {}",
                file.display()
            );
        }
        assert!(writer(&fixture, &folder).status().unwrap().success());
        assert_eq!(files(&folder).len(), expected.len(), "the next writer replaces what was left");
    }
}

#[test]
fn killed_export_leaves_no_unfinished_file_that_a_reader_finds() {
    check_killed(export);
}

#[test]
fn killed_part_of_a_watcher_leaves_no_unfinished_file_that_a_reader_finds() {
    check_killed(write_part);
}

#[test]
fn part_that_finds_no_space_leaves_nothing_and_the_next_attempt_has_all() {
    let fixture = Fixture::new();
    let folder = fixture.folder.path().join("tables");
    let mut shell = std::process::Command::new("sh");
    // Files may not be larger than this, as on a full disk.
    shell.args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh"]);
    let full = write_part(&fixture, &folder);
    let output = shell.arg(full.get_program()).args(full.get_args()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.starts_with("wallprof: cannot write ") && error.lines().count() == 1, "{error}");
    assert_eq!(files(&folder), Vec::<PathBuf>::new());
    assert!(write_part(&fixture, &folder).status().unwrap().success());
    let found = tables(&folder);
    assert!(!found.is_empty() && found.iter().all(|file| file.to_str().unwrap().contains("/watch-")));
}

/// Pages of the file system on which a disk becomes full.
const PAGES: u32 = 64;

/// Runs the writer on a file system with this many free pages, in a mount namespace of its own. Prints the files that
/// a reader finds.
fn with_free_pages(free: u32, folder: &Path, writer: &std::process::Command) -> std::process::Output {
    let script = format!(
        "mount -t tmpfs -o size={}k none \"$0\" || exit 9
         dd if=/dev/zero of=\"$0/full\" bs=4096 count={} status=none || exit 9
         \"$@\" > /dev/null; code=$?
         find \"$0\" -name '*.parquet'; exit $code",
        4 * PAGES,
        PAGES - free
    );
    let mut shell = std::process::Command::new("unshare");
    shell.args(["--mount", "sh", "-c", &script]).arg(folder);
    shell.arg(writer.get_program()).args(writer.get_args()).output().unwrap()
}

#[test]
fn disk_that_becomes_full_at_any_page_is_one_sentence_and_no_file_that_a_reader_finds() {
    if !rustix::process::geteuid().is_root() {
        let test = "disk_that_becomes_full_at_any_page_is_one_sentence_and_no_file_that_a_reader_finds";
        return wallprof_testkit::skip(test, "only root can mount a small file system");
    }
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    for writer in [export(&fixture, folder.path()), write_part(&fixture, folder.path())] {
        let mut failed = 0;
        for free in 0..PAGES {
            let output = with_free_pages(free, folder.path(), &writer);
            let error = String::from_utf8_lossy(&output.stderr);
            let found = String::from_utf8_lossy(&output.stdout);
            if output.status.success() {
                assert!(found.lines().count() >= 5, "{free} pages: {found}");
                break;
            }
            assert_eq!(output.status.code(), Some(1), "{free} pages: {error}");
            assert!(error.contains("No space left on device"), "{free} pages: {error}");
            assert!(error.starts_with("wallprof: ") && error.lines().count() == 1, "{free} pages: {error}");
            assert_eq!(found, "", "{free} pages");
            failed += 1;
        }
        assert!((5..PAGES).contains(&failed), "it failed {failed} times");
    }
}

#[test]
fn two_watchers_write_into_one_folder() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    let mut other = write_part(&fixture, folder.path());
    assert!(write_part(&fixture, folder.path()).status().unwrap().success());
    let before = tables(folder.path());
    // The start of a watcher is part of its identity.
    let arguments: Vec<_> = other.get_args().map(|text| text.to_owned()).collect();
    let mut second = std::process::Command::new(other.get_program());
    second.args(arguments.iter().map(|text| if text == "1" { "2".as_ref() } else { text.as_os_str() }));
    let (mut first, mut second) = (other.spawn().unwrap(), second.spawn().unwrap());
    assert!(first.wait().unwrap().success() && second.wait().unwrap().success());
    assert_eq!(tables(folder.path()).len(), 2 * before.len());
}
