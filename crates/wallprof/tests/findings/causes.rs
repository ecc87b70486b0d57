// SPDX-License-Identifier: Apache-2.0
//! Recordings of real software with a planted cause, and of its healthy twins: the findings are those that a person
//! has read (`tests/stored/causes`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use wallprof_testkit::stored;

const READERS: [&str; 2] = ["report", "blame"];

fn folder() -> PathBuf {
    stored::folder().join("causes")
}

fn with_extension(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end == extension)).collect();
    paths.sort();
    paths
}

#[test]
fn findings_of_real_causes_are_those_that_were_read() {
    let recordings = with_extension(&folder(), "zst");
    assert!(recordings.len() > 40, "{recordings:?}");
    let goldens = with_extension(&folder(), "txt");
    let (left, differences) = (Mutex::new(recordings.clone()), Mutex::new(Vec::new()));
    let work = || {
        while let Some(path) = { left.lock().expect("no panic").pop() } {
            let text = stored::text_of(&stored::file(&path), &READERS);
            let found = stored::difference(&path.with_extension("txt"), &text);
            differences.lock().expect("no panic").extend(found);
        }
    };
    thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    let differences = differences.into_inner().expect("no panic");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    let without = goldens.iter().filter(|golden| !golden.with_extension("zst").exists());
    assert_eq!(without.count(), 0, "a golden without its recording among {goldens:?}");
}

/// `make rerecord-causes`: the recordings that `tests/causes/run.sh -k` has kept in the folder `WALLPROF_CAUSES`.
#[test]
#[ignore = "it writes to the tree"]
fn store_causes() {
    let kept = PathBuf::from(std::env::var_os("WALLPROF_CAUSES").expect("WALLPROF_CAUSES is a folder"));
    fs::create_dir_all(folder()).expect("a folder");
    for case in fs::read_dir(&kept).expect("the folder") {
        let case = case.expect("an entry").path();
        let name = case.file_name().and_then(|name| name.to_str()).expect("a UTF-8 name").to_owned();
        if !case.join("right").exists() {
            continue;
        }
        for run in ["cause", "twin"] {
            let path = folder().join(format!("{name}.{run}.zst"));
            stored::store(&path, &case.join(format!("{run}.db")));
            let text = stored::text_of(&stored::file(&path), &READERS);
            fs::write(path.with_extension("txt"), text).expect("a golden is written");
        }
    }
}
