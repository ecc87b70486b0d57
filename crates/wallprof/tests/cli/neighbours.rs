// SPDX-License-Identifier: Apache-2.0
//! Other users of the machine: FIFOs and links in the place of files, and pictures of a private recording.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, XattrFlags, mkfifoat};
use tempfile::TempDir;
use wallprof_testkit::program::{refused, run};
use wallprof_testkit::recorder::binary;
use wallprof_testkit::skip;

use crate::fixture;

const ANOTHER_USER: u32 = 12_345;

fn prepared() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("fixture.db");
    fixture::write(&recording, 1);
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
    fixture::write(&other, 1);
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

/// The binary as setcap(8) would make it, with CAP_DAC_READ_SEARCH, in a folder that every user may enter.
fn binary_that_may_read_everything(folder: &Path) -> Option<PathBuf> {
    const DAC_READ_SEARCH: u32 = 1 << 2;
    // struct vfs_cap_data of include/uapi/linux/capability.h: revision 2, effective; then permitted and
    // inheritable.
    let words = [0x0200_0001, DAC_READ_SEARCH, 0, 0, 0];
    let attribute: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let copy = folder.join("wallprof");
    fs::copy(binary(), &copy).unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let set = rustix::fs::setxattr(&copy, "security.capability", &attribute, XattrFlags::empty());
    let test = "capabilities_of_the_binary_open_no_files_for_its_caller";
    set.map(|()| copy).inspect_err(|error| skip(test, &format!("no capabilities for files: {error}"))).ok()
}

#[test]
fn capabilities_of_the_binary_open_no_files_for_its_caller() {
    if !rustix::process::geteuid().is_root() {
        let test = "capabilities_of_the_binary_open_no_files_for_its_caller";
        return skip(test, "a binary with capabilities takes root to make");
    }
    let (folder, recording) = prepared();
    let Some(binary) = binary_that_may_read_everything(folder.path()) else { return };
    let secret = folder.path().join("secret");
    fs::write(&secret, "root:$y$j9T$secret:20000:0:99999:7:::\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let own = folder.path().join("own.db");
    fs::copy(&recording, &own).unwrap();
    std::os::unix::fs::chown(&own, Some(ANOTHER_USER), None).unwrap();
    let as_other = |arguments: &[&str]| {
        let mut command = std::process::Command::new(&binary);
        command.args(arguments).stdin(std::process::Stdio::null()).current_dir(&folder).uid(ANOTHER_USER);
        command.output().unwrap()
    };
    for arguments in [
        &["report", text(&recording)][..],
        &["import", "--marks", text(&secret), text(&own)],
        &["import", text(&secret), "-o", "imported.db"],
        &["watch", "-a", "--config", text(&secret)],
        &["record", "-d", "10ms", "-o", text(&recording), "--", "true"],
    ] {
        let output = as_other(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{arguments:?}");
        assert!(output.stdout.is_empty() && !said.contains("j9T"), "{arguments:?}: {said}");
        // `record` lacks the capabilities to record, and reports that before it opens anything.
        assert!(said.contains("ermission denied") || said.contains("needs cap_bpf"), "{arguments:?}: {said}");
    }
    assert!(as_other(&["report", text(&own)]).status.success(), "what the caller may read is read");
}

#[test]
fn links_of_others_in_a_sticky_folder_are_not_followed() {
    if !rustix::process::geteuid().is_root() {
        let test = "links_of_others_in_a_sticky_folder_are_not_followed";
        return skip(test, "links of other users take root to make");
    }
    let (outer, recording) = prepared();
    let shared = outer.path().join("tmp");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    // A recording and a picture of root's, elsewhere, which the links' owner wants to be replaced.
    let (precious, picture) = (outer.path().join("precious.db"), outer.path().join("precious.svg"));
    fixture::write(&precious, 1);
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
