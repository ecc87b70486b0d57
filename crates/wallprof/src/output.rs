//! What a command writes on stdout.

use std::io::{self, BufWriter, ErrorKind, Write};

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
