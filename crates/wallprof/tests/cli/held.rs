// SPDX-License-Identifier: Apache-2.0
//! The process as which a recorded command starts: it waits, takes its standard input, and becomes the
//! command.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use wallprof_testkit::program::wallprof;

/// A held command and the socket that releases it.
fn hold(command: &[&str]) -> (Child, UnixStream) {
    let (socket, theirs) = UnixStream::pair().unwrap();
    let child = wallprof(&["__held", "--"])
        .args(command)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    (child, socket)
}

fn release(socket: &UnixStream, stdin: impl AsFd) {
    let descriptors = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    rustix::net::sendmsg(socket, &[IoSlice::new(b"g")], &mut control, SendFlags::empty()).unwrap();
}

fn answer(mut socket: UnixStream) -> String {
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn it_becomes_the_command_with_the_standard_input_it_is_given() {
    let (child, socket) = hold(&["sh", "-c", "echo $$; cat; exit 7"]);
    let pid = child.id();
    let (mut input, stdin) = UnixStream::pair().unwrap();
    release(&socket, &stdin);
    drop(stdin);
    assert_eq!(answer(socket), "", "exec closes the socket");
    input.write_all(b"through").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{pid}\nthrough"));
}

#[test]
fn it_leaves_the_command_no_descriptor_of_its_own() {
    let (child, socket) = hold(&["ls", "/proc/self/fd"]);
    release(&socket, std::fs::File::open("/dev/null").unwrap());
    assert_eq!(answer(socket), "");
    let listed = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    // The caller of this test may leave descriptors open, which every process here inherits.
    let direct = Command::new("ls").arg("/proc/self/fd").stdin(Stdio::null()).output().unwrap();
    assert_eq!(listed, String::from_utf8(direct.stdout).unwrap());
}

#[test]
fn it_ends_with_a_recorder_that_dies() {
    let (child, socket) = hold(&["sh", "-c", "echo ran"]);
    drop(socket);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "the command never ran");
}

#[test]
fn reason_is_reported_when_the_command_cannot_run() {
    let (mut child, socket) = hold(&["/proc/no such program"]);
    release(&socket, std::fs::File::open("/dev/null").unwrap());
    assert_eq!(answer(socket), "2", "ENOENT");
    assert_eq!(child.wait().unwrap().code(), Some(127));
}
