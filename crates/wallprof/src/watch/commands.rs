// SPDX-License-Identifier: Apache-2.0
//! Orders to the running service, and their channel: from the threads that serve clients to the one that
//! holds the probes.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use wallprof_model::Mark;

/// Limit on the time of an order: a snapshot of a large recording takes some seconds.
const ORDER_TIMEOUT: Duration = Duration::from_secs(55);

/// Limit on the time of a flush for a reader. Scrapers give up after some seconds; a flush takes
/// milliseconds.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    Arm,
    Disarm,
    Status,
    Snapshot,
    /// Put an event on the time axis.
    Mark(Mark),
    /// Flush the pending seconds, for a reader.
    Refresh,
    /// The same, for a reader that will read more: flush each second for some time.
    RefreshAndStayFresh,
}

/// The outcome of an order, with a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Done(String),
    Refused(String),
    Failed(String),
}

/// An order, and the channel for its reply.
pub struct Command {
    pub order: Order,
    pub reply: Sender<Reply>,
}

/// The sending end.
pub struct OrderSender {
    commands: Sender<Command>,
    wake: UnixStream,
}

/// The receiving end: its descriptor is readable when an order has arrived.
pub struct Inbox {
    commands: Receiver<Command>,
    woken: UnixStream,
}

/// Both ends.
pub fn commands() -> io::Result<(OrderSender, Inbox)> {
    let (wake, woken) = UnixStream::pair()?;
    woken.set_nonblocking(true)?;
    wake.set_nonblocking(true)?;
    let (sender, receiver) = channel();
    Ok((OrderSender { commands: sender, wake }, Inbox { commands: receiver, woken }))
}

impl OrderSender {
    /// Sends an order and waits for the reply.
    pub fn send(&self, order: Order) -> Reply {
        self.send_within(ORDER_TIMEOUT, order)
    }

    /// Has the pending seconds flushed, unless that takes too long.
    pub fn refresh(&self, order: Order) {
        // Without a flush, the reader gets the data of the last one.
        let _ = self.send_within(REFRESH_TIMEOUT, order);
    }

    fn send_within(&self, timeout: Duration, order: Order) -> Reply {
        let (reply, answer) = channel();
        let ending = || Reply::Failed("the watcher is stopping".into());
        if self.commands.send(Command { order, reply }).is_err() {
            return ending();
        }
        // A full socket has woken the service already.
        let _ = (&self.wake).write(b"x");
        match answer.recv_timeout(timeout) {
            Ok(reply) => reply,
            Err(RecvTimeoutError::Timeout) => Reply::Failed("the watcher takes too long: try again".into()),
            Err(RecvTimeoutError::Disconnected) => ending(),
        }
    }
}

impl Inbox {
    /// The orders that have arrived.
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
    fn order_gets_its_reply() {
        let (sender, inbox) = commands().unwrap();
        let waiting = std::thread::spawn(move || sender.send(Order::Status));
        crate::record::ready(&[inbox.as_fd()], None).unwrap();
        let mut taken = inbox.take();
        let command = taken.pop().expect("one order");
        assert_eq!((command.order, taken.len()), (Order::Status, 0));
        command.reply.send(Reply::Done("fine".into())).unwrap();
        assert_eq!(waiting.join().unwrap(), Reply::Done("fine".into()));
    }

    #[test]
    fn order_to_an_ended_service_fails_at_once() {
        let (sender, inbox) = commands().unwrap();
        drop(inbox);
        assert_eq!(sender.send(Order::Arm), Reply::Failed("the watcher is stopping".into()));
    }
}
