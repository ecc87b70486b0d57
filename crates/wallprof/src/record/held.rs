// SPDX-License-Identifier: Apache-2.0
//! A command that is held before its first instruction until the probes are armed.
//!
//! The recorder starts itself under a hidden subcommand, so that the pid of the command is known before it
//! runs. That process has a socket in place of its standard input, and waits on it. The recorder sends the
//! real standard input over the socket as the signal to start, and the process executes the command. The
//! socket closes on exec: end of file means success, other bytes are an error number.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::failure::Failure;

/// The hidden subcommand that holds the command.
pub const SUBCOMMAND: &str = "__held";

/// A started process that has not executed the command yet.
pub struct HeldCommand {
    program: OsString,
    child: Child,
    socket: UnixStream,
}

/// The command, running.
pub struct RunningCommand {
    child: Child,
    pidfd: OwnedFd,
}

/// Why a command could not be started.
#[derive(Debug)]
pub struct StartError {
    program: OsString,
    source: io::Error,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let hint = match self.source.kind() {
            io::ErrorKind::NotFound => "check its name and PATH",
            io::ErrorKind::PermissionDenied => "it must be an executable file",
            _ => "run it without wallprof first",
        };
        write!(f, "cannot run {}: {}: {hint}", self.program.display(), self.source)
    }
}

impl HeldCommand {
    /// Starts the process that will execute `command`, which must not be empty.
    pub fn start(command: &[OsString]) -> Result<Self, StartError> {
        let program = command.first().cloned().unwrap_or_default();
        let failed = |source| StartError { program: program.clone(), source };
        find_program(&program).map_err(failed)?;
        let (socket, theirs) = UnixStream::pair().map_err(failed)?;
        let child = Command::new("/proc/self/exe")
            .arg0("wallprof")
            .args([SUBCOMMAND, "--"])
            .args(command)
            .stdin(OwnedFd::from(theirs))
            .spawn()
            .map_err(failed)?;
        Ok(HeldCommand { program: program.clone(), child, socket })
    }

    /// The pid of the command.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets the process execute the command. Returns after the exec, or its failure.
    pub fn release(mut self) -> Result<RunningCommand, StartError> {
        let (program, mut child) = (self.program, self.child);
        let failed = |source| StartError { program: program.clone(), source };
        let pidfd = pidfd_from_pid(child.id()).map_err(failed)?;
        send_descriptor(&self.socket, io::stdin().as_fd()).map_err(failed)?;
        let mut answer = String::new();
        self.socket.read_to_string(&mut answer).map_err(failed)?;
        match answer.parse() {
            Ok(error_number) => {
                let _ = child.wait();
                Err(failed(io::Error::from_raw_os_error(error_number)))
            }
            Err(_) => Ok(RunningCommand { child, pidfd }),
        }
    }
}

impl RunningCommand {
    /// Becomes readable when the command has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// The status of a command that has ended.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Sends a signal to the command, not to its children. A command that has already ended is no error.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process(pid, signal);
        }
    }
}

/// The exit code as a shell shows it: that of the command, or 128 + the signal that ended it.
pub fn code_from_status(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// The held process: waits for its standard input, then executes `command`. Ends silently if the recorder has
/// ended. Returns only if the command could not be executed.
pub fn hold(command: Vec<OsString>) -> Result<ExitCode, Failure> {
    let socket = io::stdin().as_fd().try_clone_to_owned();
    let mut socket = UnixStream::from(socket.map_err(|error| not_held(&error))?);
    let Some(stdin) = receive_descriptor(&socket).map_err(|error| not_held(&error))? else {
        return Ok(ExitCode::FAILURE);
    };
    let Some((program, arguments)) = command.split_first() else {
        return Ok(ExitCode::FAILURE);
    };
    let error = Command::new(program).args(arguments).stdin(Stdio::from(stdin)).exec();
    let _ = write!(socket, "{}", error.raw_os_error().unwrap_or(Errno::NOENT.raw_os_error()));
    Ok(ExitCode::from(127))
}

/// A pidfd of the process; it becomes readable when the process has ended.
pub fn pidfd_from_pid(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

fn not_held(error: &io::Error) -> Failure {
    Failure::usage(format!("{SUBCOMMAND} is started by `wallprof record -- CMD` only: {error}"))
}

/// Finds the program of a command, as exec would: errors appear before the recording is created.
pub fn find_program(program: &OsString) -> io::Result<PathBuf> {
    let path = Path::new(program);
    if path.components().count() > 1 || program.as_encoded_bytes().contains(&b'/') {
        return check_executable(path).map(|()| path.to_path_buf());
    }
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut last = Err(Errno::NOENT.into());
    for directory in std::env::split_paths(&search) {
        let found = directory_or_here(directory).join(path);
        match check_executable(&found) {
            Ok(()) => return Ok(found),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => last = Err(error),
            Err(_) => {}
        }
    }
    last
}

/// An empty entry of PATH is the working directory.
fn directory_or_here(directory: PathBuf) -> PathBuf {
    if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory }
}

fn check_executable(path: &Path) -> io::Result<()> {
    let metadata = path.metadata()?;
    match metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 {
        true => Ok(()),
        false => Err(Errno::ACCESS.into()),
    }
}

fn send_descriptor(socket: &UnixStream, descriptor: BorrowedFd) -> io::Result<()> {
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(socket, &[IoSlice::new(b"g")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// `None` if the other end is closed.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.flatten().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(program: &str) -> String {
        match HeldCommand::start(&[program.into()]) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{program} started"),
        }
    }

    #[test]
    fn program_that_cannot_run_is_refused_before_the_start() {
        assert!(refusal("no such program").contains("check its name and PATH"));
        assert!(refusal("/proc/self/no such file").contains("check its name and PATH"));
        assert!(refusal("/etc/passwd").contains("executable file"));
        assert!(refusal("/").contains("executable file"));
        assert!(refusal("").starts_with("cannot run"));
        assert!(find_program(&"sh".into()).is_ok() && find_program(&"/bin/sh".into()).is_ok());
    }

    #[test]
    fn descriptor_is_sent_over_a_socket() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut writer, reader) = UnixStream::pair().unwrap();
        send_descriptor(&one, reader.as_fd()).unwrap();
        let mut received = UnixStream::from(receive_descriptor(&other).unwrap().unwrap());
        writer.write_all(b"x").unwrap();
        let mut byte = [0];
        received.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        drop(one);
        assert!(receive_descriptor(&other).unwrap().is_none());
    }

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!(code_from_status(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(code_from_status(ExitStatus::from_raw(9)), 137);
        assert_eq!(code_from_status(ExitStatus::from_raw(0)), 0);
    }
}
