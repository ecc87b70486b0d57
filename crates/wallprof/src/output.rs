//! What a command writes on stdout, or into a file.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;

use crate::failure::Failure;

/// Runs `write` on a buffered stdout. A reader that has seen enough (`| head`) is no failure.
pub fn to_stdout(write: impl FnOnce(&mut dyn Write) -> Result<(), WriteFailure>) -> Result<(), Failure> {
    let mut stdout = BufWriter::with_capacity(64 * 1024, io::stdout().lock());
    let written = write(&mut stdout).and_then(|()| Ok(stdout.flush()?));
    // What is still buffered after a failure is not tried again.
    let _ = stdout.into_parts();
    match written {
        Ok(()) => Ok(()),
        Err(WriteFailure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(WriteFailure::Output(error)) => Err(Failure::failed(format!(
            "cannot write to standard output: {error}: give it a place with room"
        ))),
        Err(WriteFailure::Input(failure)) => Err(failure),
    }
}

/// Runs `write` on a new file at `path`, or on stdout for `-`. Refuses to write over `recording`.
pub fn to_file(
    path: &Path,
    recording: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), WriteFailure>,
) -> Result<(), Failure> {
    if path == Path::new("-") {
        return to_stdout(write);
    }
    let shown = path.display();
    if is_same_file(path, recording) {
        return Err(Failure::usage(format!("-o {shown} is the recording itself: give it another name")));
    }
    let failed =
        |error| Failure::failed(format!("cannot write {shown}: {error}: choose another place with -o"));
    let mut file = BufWriter::with_capacity(64 * 1024, File::create(path).map_err(failed)?);
    match write(&mut file).and_then(|()| Ok(file.flush()?)) {
        Ok(()) => Ok(()),
        Err(WriteFailure::Output(error)) => Err(failed(error)),
        Err(WriteFailure::Input(failure)) => Err(failure),
    }
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// What went wrong while writing: the output, or what was being read for it.
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
