// SPDX-License-Identifier: Apache-2.0
//! The end of a recording: a signal, the duration, the end of the command or of the last target.
//!
//! One `poll` waits for all of these, so that none is delayed by a timer.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::held::pidfd_from_pid;

/// SIGINT, SIGTERM and SIGHUP as a descriptor to poll.
pub struct StopSignals {
    arrived: UnixStream,
}

/// Targets whose end ends the recording.
pub enum Watched {
    /// All of these together.
    Given {
        /// pidfds of processes; readable when the process has ended.
        processes: Vec<OwnedFd>,
        /// tids: kernels before 6.9 have no pidfd of a thread.
        threads: Vec<u32>,
    },
    /// Never ends by itself.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    Signal,
    Duration,
    CommandEnded,
    TargetsGone,
}

/// The reason why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The time is over.
    Tick,
    End(EndReason),
}

/// Waits for the end of one recording.
pub struct Ending<'a> {
    pub signals: &'a StopSignals,
    pub deadline: Option<Instant>,
    /// The command's pidfd.
    pub command: Option<BorrowedFd<'a>>,
    pub watched: Watched,
}

impl StopSignals {
    /// Installs the handlers: the signals end the recording instead of the process. An ignored SIGHUP stays
    /// ignored (`nohup wallprof record …`).
    pub fn install() -> io::Result<Self> {
        let (arrived, sender) = UnixStream::pair()?;
        arrived.set_nonblocking(true)?;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            if signal != SIGHUP || !ignores(&status, SIGHUP) {
                signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
            }
        }
        Ok(StopSignals { arrived })
    }

    /// Whether one has arrived since the last call.
    pub fn take(&self) -> bool {
        let mut bytes = [0; 64];
        matches!((&self.arrived).read(&mut bytes), Ok(count) if count > 0)
    }
}

impl AsFd for StopSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.arrived.as_fd()
    }
}

impl Watched {
    /// Processes that are gone already are left out.
    pub fn given(pids: &[u32], tids: &[u32]) -> Self {
        let processes = pids.iter().filter_map(|pid| pidfd_from_pid(*pid).ok()).collect();
        Watched::Given { processes, threads: tids.to_vec() }
    }

    fn processes(&self) -> &[OwnedFd] {
        match self {
            Watched::Given { processes, .. } => processes,
            Watched::Nothing => &[],
        }
    }

    /// Removes the ended targets; true if there were targets and all have ended.
    fn all_gone(&mut self) -> io::Result<bool> {
        let Watched::Given { processes, threads } = self else { return Ok(false) };
        threads.retain(|tid| Path::new(&format!("/proc/{tid}")).exists());
        let ready = ready(&processes.iter().map(AsFd::as_fd).collect::<Vec<_>>(), Some(Duration::ZERO))?;
        let mut ready = ready.into_iter();
        processes.retain(|_| !ready.next().unwrap_or(false));
        Ok(processes.is_empty() && threads.is_empty())
    }
}

impl Ending<'_> {
    /// Waits until the recording must end, at most until `until`.
    pub fn wait(&mut self, until: Instant) -> io::Result<Wake> {
        let until = self.deadline.map_or(until, |deadline| deadline.min(until));
        let mut waiting = vec![self.signals.as_fd()];
        waiting.extend(self.command);
        waiting.extend(self.watched.processes().iter().map(AsFd::as_fd));
        let ready = ready(&waiting, Some(until.saturating_duration_since(Instant::now())))?;
        if self.signals.take() {
            return Ok(Wake::End(EndReason::Signal));
        }
        if self.command.is_some() && ready[1] {
            return Ok(Wake::End(EndReason::CommandEnded));
        }
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Ok(Wake::End(EndReason::Duration));
        }
        if self.watched.all_gone()? {
            return Ok(Wake::End(EndReason::TargetsGone));
        }
        Ok(Wake::Tick)
    }
}

/// Waits until a descriptor is readable or closed; returns a flag for each. After an interrupted wait, none
/// is set.
pub fn ready(descriptors: &[BorrowedFd], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
    let mut polled: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect()),
        Err(rustix::io::Errno::INTR) => Ok(vec![false; descriptors.len()]),
        Err(error) => Err(error.into()),
    }
}

/// Whether the text of `/proc/PID/status` says that the signal is ignored.
fn ignores(status: &str, signal: i32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (signal - 1) != 0
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Signals, and the socket by which a test sends one.
    fn signals() -> (StopSignals, UnixStream) {
        let (arrived, sender) = UnixStream::pair().unwrap();
        arrived.set_nonblocking(true).unwrap();
        (StopSignals { arrived }, sender)
    }

    fn now() -> Instant {
        Instant::now()
    }

    #[test]
    fn signal_has_priority() {
        let (signals, mut sender) = signals();
        let mut ending =
            Ending { signals: &signals, deadline: Some(now()), command: None, watched: Watched::Nothing };
        sender.write_all(b"X").unwrap();
        assert_eq!(ending.wait(now()).unwrap(), Wake::End(EndReason::Signal));
        assert_eq!(ending.wait(now()).unwrap(), Wake::End(EndReason::Duration));
    }

    #[test]
    fn end_of_the_command_is_distinguished_from_a_tick() {
        let (signals, _sender) = signals();
        let (command_end, command) = UnixStream::pair().unwrap();
        let mut ending = Ending {
            signals: &signals,
            deadline: None,
            command: Some(command.as_fd()),
            watched: Watched::Nothing,
        };
        assert_eq!(ending.wait(now()).unwrap(), Wake::Tick);
        drop(command_end);
        let forever = now() + Duration::from_secs(3600);
        assert_eq!(ending.wait(forever).unwrap(), Wake::End(EndReason::CommandEnded));
    }

    #[test]
    fn end_of_the_last_process_ends_the_recording() {
        let (signals, _sender) = signals();
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let watched = Watched::given(&[child.id()], &[]);
        let mut ending = Ending { signals: &signals, deadline: None, command: None, watched };
        assert_eq!(ending.wait(now()).unwrap(), Wake::Tick);
        drop(child.stdin.take());
        let forever = now() + Duration::from_secs(3600);
        assert_eq!(ending.wait(forever).unwrap(), Wake::End(EndReason::TargetsGone));
        child.wait().unwrap();
    }

    #[test]
    fn end_of_the_last_thread_is_noticed_at_a_tick() {
        let mut watched = Watched::given(&[], &[std::process::id()]);
        assert!(!watched.all_gone().unwrap());
        let mut gone = Watched::given(&[], &[u32::MAX]);
        assert!(gone.all_gone().unwrap());
        assert!(!Watched::Nothing.all_gone().unwrap());
    }

    #[test]
    fn all_processes_and_threads_must_have_ended() {
        let own = std::process::id();
        let gone = |pids: &[u32], tids: &[u32]| Watched::given(pids, tids).all_gone().unwrap();
        assert!(!gone(&[own], &[u32::MAX]));
        assert!(!gone(&[u32::MAX], &[own]));
        assert!(gone(&[u32::MAX], &[u32::MAX]));
    }

    #[test]
    fn ignored_signal_is_recognised() {
        assert!(ignores("SigIgn:\t0000000000001001\n", SIGHUP));
        assert!(!ignores("SigIgn:\t0000000000001000\n", SIGHUP));
        assert!(!ignores("", SIGHUP));
    }
}
