//! Other users of the machine: FIFOs and links in the place of files, and what a picture of a private recording may show.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, mkfifoat};
use tempfile::TempDir;

use crate::program::{refused, run};
use crate::story;

const ANOTHER_USER: u32 = 12_345;

fn prepared() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("story.db");
    story::write(&recording, 1);
    (folder, recording)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn fifos_in_the_place_of_files_are_refused() {
    let (folder, recording) = prepared();
    let fifo = folder.path().join("fifo");
    mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
    let (fifo, recording) = (text(&fifo), text(&recording));
    let cases: [(&[&str], i32); 5] = [
        (&["report", fifo], 1),
        (&["import", "--marks", fifo, recording], 1),
        (&["import", fifo, "-o", "/nonexistent/a.db"], 1),
        (&["flame", recording, "-o", &format!("{fifo}.svg")], 1),
        (&["watch", "-a", "--config", fifo], 2),
    ];
    mkfifoat(CWD, format!("{fifo}.svg"), Mode::RUSR | Mode::WUSR).unwrap();
    for (arguments, code) in cases {
        let sentence = refused(arguments, code);
        assert!(sentence.contains(fifo), "{arguments:?}: {sentence}");
    }
}

#[test]
fn pictures_are_as_private_as_their_recording() {
    let (folder, recording) = prepared();
    let other = folder.path().join("other.db");
    story::write(&other, 1);
    fs::set_permissions(&other, fs::Permissions::from_mode(0o644)).unwrap();
    let out = |name: &str| folder.path().join(name);
    let (flame, folded, diff) = (out("a.svg"), out("a.folded"), out("diff.svg"));
    for arguments in [
        &["flame", text(&recording), "-o", text(&flame)][..],
        &["export", text(&recording), "--to", "folded", "-o", text(&folded)],
        &["diff", text(&other), text(&recording), "-o", text(&diff)],
    ] {
        let output = run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        let written = fs::metadata(arguments.last().unwrap()).unwrap();
        assert_eq!(written.mode() & 0o777, 0o600, "{arguments:?}");
    }
}

#[test]
fn links_of_others_in_a_sticky_folder_are_not_followed() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: links of other users take root to make");
    }
    let (outer, recording) = prepared();
    let shared = outer.path().join("tmp");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    // A recording and a picture of root's, elsewhere, which the links' owner wants replaced.
    let (precious, picture) = (outer.path().join("precious.db"), outer.path().join("precious.svg"));
    story::write(&precious, 1);
    fs::write(&picture, "precious").unwrap();
    let before = fs::read(&precious).unwrap();
    for (target, link) in [(&precious, "wallprof.db"), (&picture, "wall.svg")] {
        symlink(target, shared.join(link)).unwrap();
        lchown(shared.join(link), Some(ANOTHER_USER), None).unwrap();
    }
    let (database, svg) = (shared.join("wallprof.db"), shared.join("wall.svg"));
    for arguments in [
        &["flame", text(&recording), "-o", text(&svg)][..],
        &["record", "-o", text(&database), "-d", "10ms", "--", "true"],
    ] {
        let output = run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("link of another user"), "{arguments:?}: {said}");
    }
    assert_eq!(fs::read(&precious).unwrap(), before);
    assert_eq!(fs::read_to_string(&picture).unwrap(), "precious");
}
