//! What others ask of the service while it runs, and the way there: from the threads that serve clients to the one
//! that holds the probes.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// A snapshot of a large recording takes some seconds.
const PATIENCE: Duration = Duration::from_secs(55);

/// Who reads metrics gives up after some seconds; a second is told in milliseconds.
const READERS_PATIENCE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Arm,
    Disarm,
    Status,
    Snapshot,
    /// Somebody reads what is told, and shall be given what there is by now.
    Refresh,
    /// The same, and goes on reading for a while.
    Attend,
}

/// Whether it was done, and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Done(String),
    Refused(String),
    Failed(String),
}

/// A question with the way back.
pub struct Command {
    pub asked: Asked,
    pub reply: Sender<Reply>,
}

/// The end at which questions are asked.
pub struct Asker {
    commands: Sender<Command>,
    wake: UnixStream,
}

/// The end at which they arrive: readable when one has.
pub struct Inbox {
    commands: Receiver<Command>,
    woken: UnixStream,
}

/// Both ends.
pub fn commands() -> io::Result<(Asker, Inbox)> {
    let (wake, woken) = UnixStream::pair()?;
    woken.set_nonblocking(true)?;
    wake.set_nonblocking(true)?;
    let (sender, receiver) = channel();
    Ok((Asker { commands: sender, wake }, Inbox { commands: receiver, woken }))
}

impl Asker {
    /// Asks, and waits for the reply.
    pub fn ask(&self, asked: Asked) -> Reply {
        self.ask_within(PATIENCE, asked)
    }

    /// Has everything told that there is by now, unless that takes too long.
    pub fn refresh(&self, asked: Asked) {
        // Whoever reads is given what has been told, as of whenever that was.
        let _ = self.ask_within(READERS_PATIENCE, asked);
    }

    fn ask_within(&self, patience: Duration, asked: Asked) -> Reply {
        let (reply, answer) = channel();
        let ending = || Reply::Failed("the watcher is ending".into());
        if self.commands.send(Command { asked, reply }).is_err() {
            return ending();
        }
        // A full pair has woken it already.
        let _ = (&self.wake).write(b"x");
        match answer.recv_timeout(patience) {
            Ok(reply) => reply,
            Err(RecvTimeoutError::Timeout) => Reply::Failed("the watcher takes too long: ask again".into()),
            Err(RecvTimeoutError::Disconnected) => ending(),
        }
    }
}

impl Inbox {
    /// The questions that have arrived.
    pub fn take(&self) -> Vec<Command> {
        let mut bytes = [0; 64];
        while matches!((&self.woken).read(&mut bytes), Ok(count) if count > 0) {}
        self.commands.try_iter().collect()
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_finds_its_reply() {
        let (asker, inbox) = commands().unwrap();
        let asking = std::thread::spawn(move || asker.ask(Asked::Status));
        crate::record::ready(&[inbox.as_fd()], None).unwrap();
        let mut taken = inbox.take();
        let command = taken.pop().expect("one question");
        assert_eq!((command.asked, taken.len()), (Asked::Status, 0));
        command.reply.send(Reply::Done("fine".into())).unwrap();
        assert_eq!(asking.join().unwrap(), Reply::Done("fine".into()));
    }

    #[test]
    fn nobody_waits_for_a_service_that_is_gone() {
        let (asker, inbox) = commands().unwrap();
        drop(inbox);
        assert_eq!(asker.ask(Asked::Arm), Reply::Failed("the watcher is ending".into()));
    }
}
