// SPDX-License-Identifier: Apache-2.0
//! The parent's side of a reader.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::time::{Duration, Instant};

use super::command::ReaderCommand;
use super::reaper;
use super::wire::{self, Setup};
use crate::debug_parser::Answer;
use crate::elf::ElfFacts;
use crate::read_limits::Deadline;

/// How often the deadline is looked at while the reader is busy.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// For one answer where nothing else limits the time: a read that never returns uses no CPU time.
const LONGEST_ANSWER: Duration = Duration::from_secs(60);
/// Received at a time.
const PART: usize = 64 << 10;

/// A running reader of one file.
pub(crate) struct ReaderProcess {
    /// `None` once it was killed.
    child: Option<Child>,
    socket: UnixStream,
}

impl ReaderProcess {
    pub(crate) fn start(command: &ReaderCommand, file: &File, setup: &Setup) -> io::Result<Self> {
        if !reaper::has_capacity() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let (mut socket, theirs) = UnixStream::pair()?;
        socket.set_read_timeout(Some(POLL_INTERVAL))?;
        // Requests are shorter than a socket's buffer, and the next one comes after the answer.
        socket.set_write_timeout(Some(POLL_INTERVAL))?;
        let mut reader =
            ReaderProcess { child: Some(command.spawn(file, theirs)?), socket: socket.try_clone()? };
        if let Err(error) = socket.write_all(&setup.encode()) {
            reader.kill();
            return Err(error);
        }
        Ok(reader)
    }

    /// At most [`wire::MAX_ADDRESSES`] addresses at once; `None` when the deadline is over or the reader has
    /// failed, from then on.
    pub(crate) fn functions(&mut self, addresses: &[u64], deadline: &Deadline) -> Option<Answer> {
        self.child.as_ref()?;
        let answer = self.exchange(addresses, deadline);
        if answer.is_none() {
            self.kill();
        }
        answer
    }

    /// The headers of the file; `None` when the deadline is over, or the file has none.
    pub(crate) fn headers(&mut self, deadline: &Deadline) -> Option<ElfFacts> {
        let bytes = self.receive_answer(deadline)?;
        wire::decode_headers(&bytes)
    }

    fn exchange(&mut self, addresses: &[u64], deadline: &Deadline) -> Option<Answer> {
        self.socket.write_all(&wire::encode_addresses(addresses)).ok()?;
        wire::decode_answer(&self.receive_answer(deadline)?, addresses.len())
    }

    fn receive_answer(&mut self, deadline: &Deadline) -> Option<Vec<u8>> {
        let end = Instant::now() + LONGEST_ANSWER;
        let is_late = || deadline.is_over() || Instant::now() >= end;
        let len: [u8; 4] = self.receive(4, &is_late)?.try_into().ok()?;
        let len = usize::try_from(u32::from_le_bytes(len)).ok().filter(|&len| len <= wire::MAX_ANSWER)?;
        self.receive(len, &is_late)
    }

    /// Memory grows with what has come, not with the announced length.
    fn receive(&mut self, len: usize, is_late: &dyn Fn() -> bool) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            if is_late() {
                return None;
            }
            let at = bytes.len();
            bytes.resize(len.min(at + PART), 0);
            let received = match self.socket.read(&mut bytes[at..]) {
                Ok(0) => return None,
                Ok(received) => received,
                Err(error) if is_temporary(&error) => 0,
                Err(_) => return None,
            };
            bytes.truncate(at + received);
        }
        Some(bytes)
    }

    fn kill(&mut self) {
        if let Some(child) = self.child.take() {
            reaper::kill(child);
        }
    }

    #[cfg(test)]
    fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }
}

impl Drop for ReaderProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_limits::{Budget, ReadLimits};
    use crate::reader::wire::Scope;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use wallprof_model::Owner;

    const SETUP: Setup =
        Setup { scope: Scope::DebugInformation, debug_limit: 1, unpacked_limit: 1, copy_limit: 1 };
    /// The answer to one address, which has no function.
    const SOUND: &str = r"printf '\002\000\000\000\000\000'";

    /// A reader that runs a line of shell. An error where it ends before it is sent its task.
    fn reader(script: &str) -> io::Result<ReaderProcess> {
        let command = ReaderCommand::new("/bin/sh", &["-c", script]);
        ReaderProcess::start(&command, &File::open("/dev/null")?, &SETUP)
    }

    fn answer(script: &str) -> Option<Answer> {
        let mut reader = reader(script).ok()?;
        let answer = reader.functions(&[0x1000], &Deadline::default());
        assert_eq!(reader.id().is_some(), answer.is_some(), "a reader that failed is killed");
        let again = reader.id().is_none().then(|| reader.functions(&[0x1000], &Deadline::default()));
        assert!(again.is_none_or(|again| again.is_none()), "and stays so");
        answer
    }

    #[test]
    fn sound_answer_is_read() {
        let expected = Answer { functions: vec![None], is_damaged: false };
        assert_eq!(answer(&format!("{SOUND}; exec sleep 1000")), Some(expected));
    }

    #[test]
    fn answer_that_is_garbage_too_long_or_cut_is_none() {
        let garbage = "head -c 100000 /dev/urandom";
        let too_long = r"printf '\377\377\377\377'; head -c 40000000 /dev/zero";
        let cut = r"printf '\002\000\000\000\000'";
        for script in [garbage, too_long, cut, "true"] {
            assert_eq!(answer(script), None, "{script}");
        }
    }

    #[test]
    fn reader_that_is_killed_is_none() {
        assert_eq!(answer("kill -9 $$"), None);
    }

    #[test]
    fn reader_that_hangs_ends_with_its_deadline() {
        let limits =
            ReadLimits { per_file: Duration::from_millis(1), in_all: Duration::from_secs(1), bytes: 1 };
        let mut reader = reader("exec sleep 1000").expect("it runs");
        let id = reader.id().expect("it runs");
        let mut budget = Budget::new(Some(limits));
        let mut file = budget.for_file(Owner::User(1000));
        let answer = file.spend(true, 0, |deadline| reader.functions(&[1], deadline));
        assert_eq!(answer, Some(None));
        while std::path::Path::new(&format!("/proc/{id}")).exists() {
            assert!(reaper::has_capacity());
            std::thread::yield_now();
        }
    }

    #[test]
    fn reader_that_hangs_ends_when_reading_is_stopped() {
        let stop = Arc::new(AtomicBool::new(false));
        let mut budget = Budget::new(None);
        budget.set_stop(Arc::clone(&stop));
        let mut reader = reader("exec sleep 1000").expect("it runs");
        let mut file = budget.for_file(Owner::User(1000));
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| file.spend(true, 0, |deadline| reader.functions(&[1], deadline)));
            stop.store(true, Ordering::Relaxed);
            assert!(matches!(asking.join().expect("it ends"), None | Some(None)));
        });
    }
}
