// SPDX-License-Identifier: Apache-2.0
//! Which program is executed to read the files of other users.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// The hidden first argument that makes the program a reader.
pub const READER_ARGUMENT: &str = "__read-symbols";

/// Set by a program that dispatches the argument.
static IS_DISPATCHED: AtomicBool = AtomicBool::new(false);

/// How a reader is started. The reader gets the file as its standard input and a socket as its standard
/// output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderCommand(Way);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    Execute {
        program: PathBuf,
        arguments: Vec<OsString>,
    },
    /// This process is the reader.
    Here,
}

impl ReaderCommand {
    /// Executes `program`, which must call [`crate::run_reader`].
    pub fn new(program: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(OsString::from).collect();
        ReaderCommand(Way::Execute { program: program.into(), arguments })
    }

    /// This program once more; `None` unless its `main` calls [`crate::dispatch_reader`].
    pub fn of_this_program() -> Option<Self> {
        let is_dispatched = IS_DISPATCHED.load(Ordering::Relaxed);
        is_dispatched.then(|| ReaderCommand::new("/proc/self/exe", &[READER_ARGUMENT]))
    }

    pub(super) fn register_this_program() {
        IS_DISPATCHED.store(true, Ordering::Relaxed);
    }

    /// For the reader itself, which starts no further process.
    pub(super) fn here() -> Self {
        ReaderCommand(Way::Here)
    }

    pub(crate) fn is_here(&self) -> bool {
        self.0 == Way::Here
    }

    pub(super) fn spawn(&self, file: &File, socket: UnixStream) -> io::Result<Child> {
        let Way::Execute { program, arguments } = &self.0 else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        Command::new(program)
            .arg0("wallprof")
            .args(arguments)
            .env_clear()
            .stdin(Stdio::from(file.try_clone()?))
            .stdout(OwnedFd::from(socket))
            .stderr(Stdio::null())
            .spawn()
    }
}
