// SPDX-License-Identifier: Apache-2.0
//! Opens an input that the user names, without waiting forever.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::OFlags;

/// How long a FIFO may lack a writer. Opening one waits for the writer.
const WRITER_WAIT: Duration = Duration::from_secs(5);

/// Opens a file, a device, or a FIFO that something writes to.
///
/// # Errors
/// Those of open(2); `TimedOut` for a FIFO that nothing writes to for five seconds.
pub fn open_input(path: &Path) -> io::Result<File> {
    open_within(path, WRITER_WAIT)
}

fn open_within(path: &Path, wait: Duration) -> io::Result<File> {
    if path.metadata()?.file_type().is_fifo() {
        return open_fifo(path.to_owned(), wait);
    }
    // If a FIFO takes the file's place meanwhile, it opens at once and is empty.
    File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)
}

/// Opens on a thread of its own. If nothing ever writes, the thread stays until the error ends the program.
fn open_fifo(path: PathBuf, wait: Duration) -> io::Result<File> {
    let (opened, opening) = mpsc::channel();
    thread::spawn(move || opened.send(File::open(path)));
    opening
        .recv_timeout(wait)
        .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "nothing writes to this FIFO")))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    #[test]
    fn fifo_without_a_writer_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let fifo = folder.path().join("fifo");
        mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).expect("a FIFO");
        let refused = open_within(&fifo, Duration::from_millis(10)).expect_err("nothing writes");
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn fifo_with_a_writer_and_plain_files_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let fifo = folder.path().join("fifo");
        mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).expect("a FIFO");
        let to = fifo.clone();
        let writer = thread::spawn(move || {
            File::options().write(true).open(to).and_then(|mut file| file.write_all(b"data"))
        });
        let read = |path: &Path| {
            let mut text = String::new();
            open_input(path).and_then(|mut file| file.read_to_string(&mut text)).map(|_| text)
        };
        assert_eq!(read(&fifo).expect("read"), "data");
        writer.join().expect("the writer").expect("written");
        std::fs::write(folder.path().join("file"), "plain").expect("a file");
        assert_eq!(read(&folder.path().join("file")).expect("read"), "plain");
        assert_eq!(read(&folder.path().join("none")).expect_err("none").kind(), io::ErrorKind::NotFound);
    }
}
