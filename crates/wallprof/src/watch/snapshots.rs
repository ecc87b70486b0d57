// SPDX-License-Identifier: Apache-2.0
//! Snapshots of the flight recording: ordered by hand, or triggered by a stall that is too late.
//!
//! Owns the time and the extent of a snapshot; crates/recording writes it, on a separate thread. A failure is
//! reported to the client that ordered the snapshot, and does not end the service.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use wallprof_meaning::waits::Rules;
use wallprof_model::MonoNs;
use wallprof_recording::write_snapshot;

use super::commands::Reply;
use crate::failure::{Failure, say};

const SECOND_NS: u64 = 1_000_000_000;
/// The time before and after a spike that its snapshot covers.
const BEFORE_NS: u64 = 10 * SECOND_NS;
const AFTER_NS: u64 = 2 * SECOND_NS;
/// Spikes come in bursts: of those within this time, the first gets a snapshot.
const PAUSE_NS: u64 = 60 * SECOND_NS;

/// Snapshots that have ended since the last call of [`Snapshots::proceed`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub written: u64,
    pub failed: u64,
}

/// A late stall that waits for the end of its snapshot's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spike {
    at: MonoNs,
}

/// Writes one snapshot at a time.
pub struct Snapshots {
    recording: PathBuf,
    folder: PathBuf,
    rules: Arc<Rules>,
    running: Option<(JoinHandle<()>, Receiver<bool>)>,
    spike: Option<Spike>,
    last_spike: Option<MonoNs>,
}

impl Snapshots {
    pub fn new(recording: PathBuf, folder: PathBuf, rules: Arc<Rules>) -> Self {
        Snapshots { recording, folder, rules, running: None, spike: None, last_spike: None }
    }

    /// Sets the folder of later snapshots.
    pub fn set_folder(&mut self, folder: PathBuf) {
        self.folder = folder;
    }

    /// Plans the snapshot of a stall that ended at `at`. False if another spike was less than a minute
    /// before.
    pub fn spike(&mut self, at: MonoNs) -> bool {
        let is_first = self.last_spike.is_none_or(|last| at.0.saturating_sub(last.0) >= PAUSE_NS);
        if is_first {
            (self.spike, self.last_spike) = (Some(Spike { at }), Some(at));
        }
        is_first
    }

    /// Whether a snapshot is being written, or planned.
    pub fn is_pending(&self) -> bool {
        self.running.is_some() || self.spike.is_some()
    }

    /// Starts a snapshot of the whole flight recording, and reports it to `reply`.
    pub fn start_by_hand(&mut self, now: MonoNs, reply: Option<Sender<Reply>>) {
        match self.running {
            Some(_) => answer(reply, Reply::Refused("a snapshot is being written: try again later".into())),
            None => self.start(MonoNs(0)..now, reply),
        }
    }

    /// Starts a snapshot that is due, and returns the ended ones; the recording is complete up to `flushed`.
    pub fn proceed(&mut self, flushed: MonoNs) -> Outcome {
        let outcome = self.collect();
        if let Some(during) = self.spike.and_then(|spike| range_of_spike(spike, flushed))
            && self.running.is_none()
        {
            self.spike = None;
            self.start(during, None);
        }
        outcome
    }

    /// Waits for the snapshot that is being written.
    pub fn finish(&mut self) {
        if let Some((thread, _)) = self.running.take() {
            let _ = thread.join();
        }
    }

    fn collect(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        let Some((_, done)) = &self.running else { return outcome };
        match done.try_recv() {
            Err(TryRecvError::Empty) => return outcome,
            Ok(true) => outcome.written = 1,
            Ok(false) | Err(TryRecvError::Disconnected) => outcome.failed = 1,
        }
        self.finish();
        outcome
    }

    fn start(&mut self, during: Range<MonoNs>, reply: Option<Sender<Reply>>) {
        let (done, is_done) = channel();
        let (recording, folder, rules) = (self.recording.clone(), self.folder.clone(), self.rules.clone());
        let thread = std::thread::Builder::new().name("wallprof-keep".into()).spawn(move || {
            let written = write(&recording, during, &folder, &rules);
            let is_written = written.is_ok();
            match written {
                Ok(path) => answer(reply, Reply::Done(path.display().to_string())),
                Err(failure) => answer(reply, Reply::Failed(failure.message)),
            }
            let _ = done.send(is_written);
        });
        match thread {
            Ok(thread) => self.running = Some((thread, is_done)),
            Err(error) => say(&format!("no snapshot was written: no thread could be started: {error}")),
        }
    }
}

/// The snapshot of a spike is due when the time after the spike has been recorded.
fn range_of_spike(spike: Spike, flushed: MonoNs) -> Option<Range<MonoNs>> {
    let end = spike.at.0.saturating_add(AFTER_NS);
    (flushed.0 >= end).then(|| MonoNs(spike.at.0.saturating_sub(BEFORE_NS))..MonoNs(end))
}

fn write(recording: &Path, during: Range<MonoNs>, folder: &Path, rules: &Rules) -> Result<PathBuf, Failure> {
    let path = write_snapshot(recording, during, folder)?;
    crate::findings::store(&path, rules);
    Ok(path)
}

/// Reports the outcome to the client that ordered the snapshot, else on stderr.
fn answer(reply: Option<Sender<Reply>>, text: Reply) {
    match reply {
        // An error means that the client has closed the connection.
        Some(reply) => drop(reply.send(text)),
        None => match text {
            Reply::Done(path) => say(&format!("snapshot: {path}")),
            Reply::Refused(why) | Reply::Failed(why) => say(&format!("no snapshot was written: {why}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> MonoNs {
        MonoNs(seconds * SECOND_NS)
    }

    #[test]
    fn snapshot_of_a_spike_covers_the_time_around_it() {
        let spike = Spike { at: at(100) };
        assert_eq!(range_of_spike(spike, at(101)), None, "the time after it is not recorded yet");
        assert_eq!(range_of_spike(spike, at(102)), Some(at(90)..at(102)));
        assert_eq!(range_of_spike(Spike { at: at(3) }, at(9)), Some(at(0)..at(5)));
    }

    #[test]
    fn first_spike_of_a_burst_gets_a_snapshot() {
        let mut snapshots = Snapshots::new("no recording".into(), "nowhere".into(), Arc::default());
        assert!(snapshots.spike(at(100)));
        assert!(!snapshots.spike(at(101)) && !snapshots.spike(at(159)));
        assert!(snapshots.spike(at(160)));
    }

    #[test]
    fn failure_is_reported_and_the_next_snapshot_is_tried() {
        let folder = tempfile::tempdir().unwrap();
        let recording = folder.path().join("missing.db");
        let mut snapshots = Snapshots::new(recording, folder.path().into(), Arc::default());
        for _ in 0..2 {
            let (reply, answer) = channel();
            snapshots.start_by_hand(at(5), Some(reply));
            assert!(matches!(answer.recv().unwrap(), Reply::Failed(why) if why.contains("missing.db")));
            snapshots.finish();
        }
    }

    #[test]
    fn snapshots_are_written_one_at_a_time() {
        let mut snapshots = Snapshots::new("no recording".into(), "nowhere".into(), Arc::default());
        let (hold, held) = channel::<()>();
        let (_done, is_done) = channel();
        let thread = std::thread::spawn(move || {
            let _ = held.recv();
        });
        snapshots.running = Some((thread, is_done));
        let (reply, answer) = channel();
        snapshots.start_by_hand(at(5), Some(reply));
        assert!(matches!(answer.recv().unwrap(), Reply::Refused(_)));
        assert_eq!(snapshots.proceed(at(6)), Outcome::default());
        drop(hold);
        snapshots.finish();
    }
}
