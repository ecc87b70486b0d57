// SPDX-License-Identifier: Apache-2.0
//! The signals of the service: stop, reload the configuration, write a snapshot.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

/// Descriptors to poll, one for each meaning of signals.
pub struct Signals {
    stop: UnixStream,
    reload: UnixStream,
    snapshot: UnixStream,
}

/// The signals since the last call of [`Signals::take`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    pub stop: bool,
    pub reload: bool,
    pub snapshot: bool,
}

impl Signals {
    /// Installs the handlers: the signals no longer end the process.
    pub fn install() -> io::Result<Self> {
        Ok(Signals {
            stop: descriptor(&[SIGINT, SIGTERM])?,
            reload: descriptor(&[SIGHUP])?,
            snapshot: descriptor(&[SIGUSR1])?,
        })
    }

    /// Readable when a signal has arrived.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.stop.as_fd(), self.reload.as_fd(), self.snapshot.as_fd()]
    }

    pub fn take(&self) -> Arrived {
        Arrived { stop: taken(&self.stop), reload: taken(&self.reload), snapshot: taken(&self.snapshot) }
    }
}

/// Readable when one of these signals has arrived.
pub fn descriptor(signals: &[i32]) -> io::Result<UnixStream> {
    let (arrived, sender) = UnixStream::pair()?;
    arrived.set_nonblocking(true)?;
    for signal in signals {
        signal_hook::low_level::pipe::register(*signal, sender.try_clone()?)?;
    }
    Ok(arrived)
}

/// Whether a signal has arrived since the last call.
pub fn taken(mut arrived: &UnixStream) -> bool {
    let mut bytes = [0; 64];
    matches!(arrived.read(&mut bytes), Ok(count) if count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signal_has_its_meaning() {
        let signals = Signals::install().unwrap();
        assert_eq!(signals.take(), Arrived::default());
        for (signal, meaning) in [
            (SIGUSR1, Arrived { snapshot: true, ..Arrived::default() }),
            (SIGHUP, Arrived { reload: true, ..Arrived::default() }),
            (SIGTERM, Arrived { stop: true, ..Arrived::default() }),
        ] {
            signal_hook::low_level::raise(signal).unwrap();
            assert_eq!(signals.take(), meaning);
        }
    }
}
