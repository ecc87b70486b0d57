// SPDX-License-Identifier: Apache-2.0
//! The output of a command on stdout, or in a file.

use std::fs::{self, Metadata, Permissions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use tempfile::NamedTempFile;
use wallprof_recording::{PlaceError, output_place};

use crate::failure::Failure;
use crate::open;
use crate::stages;

const BUFFER_BYTES: usize = 64 * 1024;
/// The permission bits that a picture takes over from its recording.
const READ_AND_WRITE: u32 = 0o666;

/// Runs `write` on a buffered stdout. A closed pipe (`| head`) is no failure.
pub fn to_stdout(write: impl FnOnce(&mut dyn Write) -> Result<(), WriteFailure>) -> Result<(), Failure> {
    let mut stdout = BufWriter::with_capacity(BUFFER_BYTES, EndsStages(io::stdout().lock()));
    let written = write(&mut stdout).and_then(|()| Ok(stdout.flush()?));
    // Bytes that are still buffered after a failure are dropped.
    let _ = stdout.into_parts();
    match written {
        Ok(()) => Ok(()),
        Err(WriteFailure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(WriteFailure::Output(error)) => Err(Failure::failed(format!(
            "cannot write to standard output: {error}: write to a place with enough space"
        ))),
        Err(WriteFailure::Input(failure)) => Err(failure),
    }
}

/// What is written here may be on the terminal that shows what is read: the line ends before it.
struct EndsStages<W>(W);

impl<W: Write> Write for EndsStages<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        stages::end();
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Checks the name of a picture that a command writes beside its text.
///
/// # Errors
/// It does not end in `.svg`, or is one of `recordings`.
pub fn check_picture(file: &Path, recordings: &[&Path]) -> Result<(), Failure> {
    let is_svg = file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg"));
    if !is_svg {
        return Err(Failure::usage(format!(
            "-o {} is not an SVG file: use a name that ends in .svg; --json prints on standard output",
            file.display()
        )));
    }
    if recordings.iter().any(|recording| file == *recording || is_same_file(file, recording)) {
        return Err(Failure::usage(format!(
            "-o {} is one of the recordings: give it another name",
            file.display()
        )));
    }
    Ok(())
}

/// Runs `write` on a new file at `path`, or on stdout for `-`. Refuses to overwrite one of `recordings`. The
/// file gets the mode and owner of the recordings, because its content is as private, and gets its name when
/// it is complete.
pub fn to_file(
    path: &Path,
    recordings: &[&Path],
    write: impl FnOnce(&mut dyn Write) -> Result<(), WriteFailure>,
) -> Result<(), Failure> {
    if path == Path::new("-") {
        return to_stdout(write);
    }
    if recordings.iter().any(|recording| is_same_file(path, recording)) {
        let shown = path.display();
        return Err(Failure::usage(format!("-o {shown} is the recording itself: give it another name")));
    }
    let written = match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => into_device(path, write),
        _ => into_new_file(path, recordings, write),
    };
    stages::erase();
    written.map_err(|failure| match failure {
        WriteFailure::Input(failure) => failure,
        WriteFailure::Output(error) => {
            Failure::failed(format!("cannot write {}: {error}: choose another place with -o", path.display()))
        }
    })
}

/// A FIFO, a terminal, `/dev/null`: a rename would replace it.
fn into_device(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), WriteFailure>,
) -> Result<(), WriteFailure> {
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, EndsStages(open::device(path)?));
    write(&mut out)?;
    Ok(out.flush()?)
}

fn into_new_file(
    path: &Path,
    recordings: &[&Path],
    write: impl FnOnce(&mut dyn Write) -> Result<(), WriteFailure>,
) -> Result<(), WriteFailure> {
    let place = output_place(path).map_err(error_from_place)?;
    let aside = tempfile::Builder::new()
        .prefix(".wallprof-")
        .tempfile_in(place.parent().unwrap_or(Path::new("/")))?;
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, aside);
    write(&mut out)?;
    let aside = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    give_to_owner(&aside, recordings)?;
    aside.persist(&place).map_err(|error| error.error)?;
    Ok(())
}

/// The same as an error of the operating system.
pub fn error_from_place(error: PlaceError) -> io::Error {
    match error {
        PlaceError::NoFile => io::Error::other("this names no file"),
        PlaceError::DanglingLink => io::Error::other("this is a symbolic link to nothing"),
        PlaceError::LinkOfAnotherUser { link } => io::Error::other(format!(
            "{} is a symbolic link of another user in a folder that everybody may write to",
            link.display()
        )),
        PlaceError::Io(error) => error,
    }
}

/// Sets the owner of the first recording, and the permissions that all recordings have. A caller without the
/// right to change the owner keeps the file.
fn give_to_owner(file: &NamedTempFile, recordings: &[&Path]) -> io::Result<()> {
    let recordings: Vec<Metadata> = recordings.iter().filter_map(|path| fs::metadata(path).ok()).collect();
    let mode = recordings.iter().fold(READ_AND_WRITE, |mode, recording| mode & recording.mode());
    if let Some(owner) = recordings.first() {
        let _ = fchown(file.as_file(), Some(owner.uid()), Some(owner.gid()));
    }
    file.as_file().set_permissions(Permissions::from_mode(mode))
}

/// Whether both paths are the same existing file.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Why writing failed: an error of the output, or of its input.
#[derive(Debug)]
pub enum WriteFailure {
    Output(io::Error),
    Input(Failure),
}

impl From<io::Error> for WriteFailure {
    fn from(error: io::Error) -> Self {
        WriteFailure::Output(error)
    }
}

impl From<Failure> for WriteFailure {
    fn from(failure: Failure) -> Self {
        WriteFailure::Input(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(out: &mut dyn Write) -> Result<(), WriteFailure> {
        Ok(out.write_all(b"picture")?)
    }

    fn recording(folder: &Path, name: &str, mode: u32) -> std::path::PathBuf {
        let path = folder.join(name);
        fs::write(&path, "recording").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn picture_does_not_replace_a_recording() {
        let [a, b, svg] = ["a.svg", "b.db", "c.SVG"].map(Path::new);
        assert!(check_picture(svg, &[a, b]).is_ok());
        assert!(check_picture(a, &[a, b]).unwrap_err().message.contains("one of the recordings"));
        assert!(check_picture(b, &[a, b]).unwrap_err().message.contains(".svg"));
    }

    #[test]
    fn output_has_mode_and_owner_of_its_recordings() {
        let folder = tempfile::tempdir().unwrap();
        let (private, shared) =
            (recording(folder.path(), "a.db", 0o600), recording(folder.path(), "b.db", 0o644));
        let out = folder.path().join("out.svg");
        fs::write(&out, "readable by all").unwrap();
        to_file(&out, &[&shared, &private], picture).unwrap();
        assert_eq!((mode(&out), fs::read_to_string(&out).unwrap().as_str()), (0o600, "picture"));
        to_file(&out, &[&shared], picture).unwrap();
        assert_eq!(mode(&out), 0o644);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&private, Some(1), Some(1)).unwrap();
            to_file(&out, &[&private], picture).unwrap();
            let owner = fs::metadata(&out).unwrap();
            assert_eq!((owner.uid(), owner.gid(), mode(&out)), (1, 1, 0o600));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "nothing is left beside it");
    }

    #[test]
    fn failed_output_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let recording = recording(folder.path(), "a.db", 0o600);
        let out = folder.path().join("out.svg");
        fs::write(&out, "before").unwrap();
        let failed = to_file(&out, &[&recording], |out| {
            out.write_all(b"half")?;
            Err(io::Error::other("no more").into())
        });
        assert!(failed.unwrap_err().message.contains("no more"));
        assert_eq!(fs::read_to_string(&out).unwrap(), "before");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn fifo_without_a_reader_is_refused_and_devices_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let recording = recording(folder.path(), "a.db", 0o600);
        let fifo = folder.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .unwrap();
        let refused = to_file(&fifo, &[&recording], picture).unwrap_err();
        assert!(refused.message.contains("nothing reads this FIFO"), "{}", refused.message);
        to_file(Path::new("/dev/null"), &[&recording], picture).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
