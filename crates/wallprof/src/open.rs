// SPDX-License-Identifier: Apache-2.0
//! Opens files that a user names, without waiting for the other end of a FIFO.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file for reading.
///
/// # Errors
/// Those of open(2); `InvalidInput` for a folder, a FIFO or a device.
pub fn regular_file(path: &Path) -> io::Result<File> {
    let file = without_waiting(File::options().read(true)).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// Opens a FIFO, a terminal or another device for writing. Writes to it wait as usual.
///
/// # Errors
/// Those of open(2); a FIFO that no process reads.
pub fn device(path: &Path) -> io::Result<File> {
    let file = without_waiting(File::options().write(true)).open(path).map_err(|error| {
        match rustix::io::Errno::from_io_error(&error) {
            Some(rustix::io::Errno::NXIO) => io::Error::other("nothing reads this FIFO"),
            _ => error,
        }
    })?;
    rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags(OFlags::NONBLOCK.bits().cast_signed())
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    #[test]
    fn fifo_without_another_end_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(regular_file(&fifo).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(device(&fifo).unwrap_err().to_string().contains("nothing reads this FIFO"));
        assert!(regular_file(folder.path()).is_err() && device(Path::new("/dev/null")).is_ok());
    }

    #[test]
    fn regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "text").unwrap();
        assert_eq!(io::read_to_string(regular_file(&path).unwrap()).unwrap(), "text");
        assert_eq!(regular_file(&folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
