// SPDX-License-Identifier: Apache-2.0
//! The place of an output file after its symbolic links are followed.
//!
//! Links are followed by the rule of `fs.protected_symlinks` (proc_sys_fs(5)), whatever its setting is: a
//! recorder with root's rights may be asked to write into `/tmp`, where another user may have made a link of
//! that name.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// As the kernel's MAXSYMLINKS.
const MAX_LINKS: usize = 40;
const STICKY: u32 = 0o1000;
const WRITABLE_BY_OTHERS: u32 = 0o002;

/// Why a path cannot be an output file.
#[derive(Debug)]
pub enum PlaceError {
    /// The path ends in `..` or `/`, or leads through more links than the kernel follows.
    NoFile,
    /// The link's target does not exist.
    DanglingLink,
    /// A link of another user in a folder in which every user may create files.
    LinkOfAnotherUser {
        link: PathBuf,
    },
    Io(io::Error),
}

/// The absolute path of the file that `path` names, with the final links followed. The folder must exist, the
/// file need not.
pub fn output_place(path: &Path) -> Result<PathBuf, PlaceError> {
    let user = rustix::process::geteuid().as_raw();
    let mut place = in_its_folder(path)?;
    for followed in 0..MAX_LINKS {
        let link = match fs::symlink_metadata(&place) {
            Ok(metadata) if metadata.is_symlink() => metadata,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(PlaceError::Io(error)),
            Err(_) if followed > 0 => return Err(PlaceError::DanglingLink),
            _ => return Ok(place),
        };
        let folder = place.parent().unwrap_or(Path::new("/"));
        if !may_follow(&fs::metadata(folder).map_err(PlaceError::Io)?, &link, user) {
            return Err(PlaceError::LinkOfAnotherUser { link: place });
        }
        let target = fs::read_link(&place).map_err(PlaceError::Io)?;
        place = in_its_folder(&folder.join(target)).map_err(|error| match error {
            PlaceError::Io(error) if error.kind() == io::ErrorKind::NotFound => PlaceError::DanglingLink,
            error => error,
        })?;
    }
    Err(PlaceError::NoFile)
}

/// `may_follow_link` of the kernel's fs/namei.c.
fn may_follow(folder: &Metadata, link: &Metadata, user: u32) -> bool {
    let shared = STICKY | WRITABLE_BY_OTHERS;
    folder.mode() & shared != shared || link.uid() == user || link.uid() == folder.uid()
}

fn in_its_folder(path: &Path) -> Result<PathBuf, PlaceError> {
    let name = path.file_name().ok_or(PlaceError::NoFile)?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok(folder.canonicalize().map_err(PlaceError::Io)?.join(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use super::*;

    const ANOTHER_USER: u32 = 12_345;

    /// A folder of root's like /tmp, with a file `precious` beside it. `None`, and `test` is skipped, unless the
    /// caller is root.
    fn shared_folder(test: &str) -> Option<(tempfile::TempDir, PathBuf)> {
        if !rustix::process::geteuid().is_root() {
            wallprof_testkit::skip(test, "links of other users take root to make");
            return None;
        }
        let outer = tempfile::tempdir().unwrap();
        let shared = outer.path().canonicalize().unwrap().join("tmp");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(outer.path().join("precious"), "").unwrap();
        Some((outer, shared))
    }

    #[test]
    fn link_of_another_user_in_a_sticky_folder_is_refused() {
        let test = "link_of_another_user_in_a_sticky_folder_is_refused";
        let Some((outer, shared)) = shared_folder(test) else { return };
        let link = shared.join("a.db");
        symlink(outer.path().join("precious"), &link).unwrap();
        assert!(output_place(&link).is_ok(), "a link of the same user is followed");
        lchown(&link, Some(ANOTHER_USER), None).unwrap();
        assert!(
            matches!(output_place(&link), Err(PlaceError::LinkOfAnotherUser { link: named }) if named == link)
        );
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(output_place(&link).is_ok(), "only root can make links in its own folder");
    }

    #[test]
    fn each_link_of_a_chain_is_judged() {
        let test = "each_link_of_a_chain_is_judged";
        let Some((outer, shared)) = shared_folder(test) else { return };
        let (own, foreign) = (shared.join("own"), shared.join("foreign"));
        symlink(outer.path().join("precious"), &foreign).unwrap();
        lchown(&foreign, Some(ANOTHER_USER), None).unwrap();
        symlink(&foreign, &own).unwrap();
        assert!(matches!(output_place(&own), Err(PlaceError::LinkOfAnotherUser { link }) if link == foreign));
    }

    #[test]
    fn link_of_the_folder_owner_is_followed() {
        let test = "link_of_the_folder_owner_is_followed";
        let Some((outer, shared)) = shared_folder(test) else { return };
        let link = shared.join("a.db");
        symlink(outer.path().join("precious"), &link).unwrap();
        lchown(&link, Some(ANOTHER_USER), None).unwrap();
        std::os::unix::fs::chown(&shared, Some(ANOTHER_USER), None).unwrap();
        assert!(output_place(&link).is_ok());
    }

    #[test]
    fn paths_without_a_file_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        symlink("b", folder.path().join("a")).unwrap();
        symlink("a", folder.path().join("b")).unwrap();
        symlink("missing", folder.path().join("dangling")).unwrap();
        assert!(matches!(output_place(&folder.path().join("..")), Err(PlaceError::NoFile)));
        assert!(matches!(output_place(&folder.path().join("a")), Err(PlaceError::NoFile)));
        assert!(matches!(output_place(&folder.path().join("dangling")), Err(PlaceError::DanglingLink)));
        let new = output_place(&folder.path().join("new")).unwrap();
        assert_eq!(new, folder.path().canonicalize().unwrap().join("new"));
    }
}
