// SPDX-License-Identifier: Apache-2.0
//! The program of the scenarios, which the binary contains, as a temporary executable file.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use rustix::fs::{StatVfsMountFlags, statvfs};

/// A statically linked program of 1 MB, compressed to less than half.
const PROGRAM_GZ: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/scenarios.gz"));

/// A private folder with the program in it; dropped with it.
pub struct ShippedProgram {
    folder: PathBuf,
    path: PathBuf,
}

impl ShippedProgram {
    /// Writes the program into the first of `places` where programs may be executed. Its file name selects
    /// the scenario.
    pub fn write(name: &str, places: &[PathBuf]) -> io::Result<Self> {
        let place = places.iter().find(|place| runs_programs(place)).ok_or(io::ErrorKind::NotFound)?;
        // Fails if the folder exists, so that another user's folder is never used.
        let folder = place.join(format!("wallprof-demo-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&folder)?;
        let program = ShippedProgram { path: folder.join(name), folder };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o700).open(&program.path)?;
        io::copy(&mut GzDecoder::new(PROGRAM_GZ), &mut file)?;
        Ok(program)
    }

    pub fn path(&self) -> OsString {
        self.path.clone().into()
    }
}

impl Drop for ShippedProgram {
    fn drop(&mut self) {
        // A file that cannot be removed stays in the folder for temporary files.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Folders for temporary programs, the usual one first.
pub fn places() -> Vec<PathBuf> {
    let here = std::env::current_dir().unwrap_or_default();
    vec![std::env::temp_dir(), "/var/tmp".into(), "/run".into(), here]
}

fn runs_programs(place: &Path) -> bool {
    statvfs(place)
        .is_ok_and(|mount| !mount.f_flag.intersects(StatVfsMountFlags::NOEXEC | StatVfsMountFlags::RDONLY))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn program_runs_the_scenario_of_its_name_and_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let program = ShippedProgram::write("spinning", &["/nowhere".into(), place.path().into()]).unwrap();
        let folder = program.folder.clone();
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        let unknown = Command::new(program.path()).output().unwrap();
        assert_eq!(unknown.status.code(), Some(2), "no scenario is called spinning");
        assert!(
            ShippedProgram::write("lock", &[place.path().into()]).is_err(),
            "the folder is there already"
        );
        drop(program);
        assert!(!folder.exists());
        let lock = ShippedProgram::write("lock", &[place.path().into()]).unwrap();
        let usage = Command::new(lock.path()).arg("-?").output().unwrap();
        assert!(String::from_utf8_lossy(&usage.stderr).contains("usage: lock"), "{usage:?}");
    }

    #[test]
    fn nothing_is_written_where_programs_cannot_run() {
        assert!(ShippedProgram::write("lock", &["/proc".into(), "/nowhere".into()]).is_err());
    }
}
