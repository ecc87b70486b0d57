//! Snapshots of the flight recording: asked for by hand, or by a stall that is too long.
//!
//! Owns when one may be made and what it holds; crates/recording makes it, on a thread of its own. Whoever asked is told;
//! nothing that goes wrong here ends the service.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use wallprof_model::MonoNs;
use wallprof_recording::write_snapshot;

use super::commands::Reply;
use crate::failure::{Failure, say};

const SECOND_NS: u64 = 1_000_000_000;
/// What a snapshot of a spike holds: so much before it, and after.
const BEFORE_NS: u64 = 10 * SECOND_NS;
const AFTER_NS: u64 = 2 * SECOND_NS;
/// Spikes come in swarms: of those within this time the first is kept.
const PAUSE_NS: u64 = 60 * SECOND_NS;

/// What became of snapshots since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub written: u64,
    pub failed: u64,
}

/// A spike whose time after is not over yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spike {
    at: MonoNs,
}

/// Makes one snapshot at a time.
pub struct Snapshots {
    recording: PathBuf,
    folder: PathBuf,
    under_way: Option<(JoinHandle<()>, Receiver<bool>)>,
    spike: Option<Spike>,
    last_spike: Option<MonoNs>,
}

impl Snapshots {
    pub fn new(recording: PathBuf, folder: PathBuf) -> Self {
        Snapshots { recording, folder, under_way: None, spike: None, last_spike: None }
    }

    /// From now on snapshots go there.
    pub fn set_folder(&mut self, folder: PathBuf) {
        self.folder = folder;
    }

    /// A stall ended at `at` that is worth a snapshot. False when there has been one just now.
    pub fn spike(&mut self, at: MonoNs) -> bool {
        let free = self.last_spike.is_none_or(|last| at.0.saturating_sub(last.0) >= PAUSE_NS);
        if free {
            (self.spike, self.last_spike) = (Some(Spike { at }), Some(at));
        }
        free
    }

    /// Whether one is being written, or waits for what follows its spike.
    pub fn is_pending(&self) -> bool {
        self.under_way.is_some() || self.spike.is_some()
    }

    /// Keeps all of the flight recording there is, for somebody who asked.
    pub fn by_hand(&mut self, now: MonoNs, reply: Option<Sender<Reply>>) {
        match self.under_way {
            Some(_) => {
                answer(reply, Reply::Refused("a snapshot is being written: ask again in a moment".into()))
            }
            None => self.begin(MonoNs(0)..now, reply),
        }
    }

    /// Begins what is due, and tells what is done; everything up to `told` is in the recording.
    pub fn proceed(&mut self, told: MonoNs) -> Outcome {
        let outcome = self.collect();
        if let Some(during) = self.spike.and_then(|spike| range_of_spike(spike, told))
            && self.under_way.is_none()
        {
            self.spike = None;
            self.begin(during, None);
        }
        outcome
    }

    /// Waits for the one that is being written.
    pub fn finish(&mut self) {
        if let Some((thread, _)) = self.under_way.take() {
            let _ = thread.join();
        }
    }

    fn collect(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        let Some((_, done)) = &self.under_way else { return outcome };
        match done.try_recv() {
            Err(TryRecvError::Empty) => return outcome,
            Ok(true) => outcome.written = 1,
            Ok(false) | Err(TryRecvError::Disconnected) => outcome.failed = 1,
        }
        self.finish();
        outcome
    }

    fn begin(&mut self, during: Range<MonoNs>, reply: Option<Sender<Reply>>) {
        let (done, is_done) = channel();
        let (recording, folder) = (self.recording.clone(), self.folder.clone());
        let thread = std::thread::Builder::new().name("wallprof-keep".into()).spawn(move || {
            let written = write(&recording, during, &folder);
            let is_written = written.is_ok();
            match written {
                Ok(path) => answer(reply, Reply::Done(path.display().to_string())),
                Err(failure) => answer(reply, Reply::Failed(failure.message)),
            }
            let _ = done.send(is_written);
        });
        match thread {
            Ok(thread) => self.under_way = Some((thread, is_done)),
            Err(error) => say(&format!("no snapshot was written: no thread could be started: {error}")),
        }
    }
}

/// A spike's snapshot is due when what follows the spike has been recorded.
fn range_of_spike(spike: Spike, told: MonoNs) -> Option<Range<MonoNs>> {
    let end = spike.at.0.saturating_add(AFTER_NS);
    (told.0 >= end).then(|| MonoNs(spike.at.0.saturating_sub(BEFORE_NS))..MonoNs(end))
}

fn write(recording: &Path, during: Range<MonoNs>, folder: &Path) -> Result<PathBuf, Failure> {
    let path = write_snapshot(recording, during, folder)?;
    crate::findings::store(&path);
    Ok(path)
}

/// Tells whoever asked; of what nobody asked for by a connection, stderr.
fn answer(reply: Option<Sender<Reply>>, text: Reply) {
    match reply {
        // Gone meanwhile: nobody to tell.
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
    fn a_spike_is_kept_with_what_surrounds_it() {
        let spike = Spike { at: at(100) };
        assert_eq!(range_of_spike(spike, at(101)), None, "what follows is not recorded yet");
        assert_eq!(range_of_spike(spike, at(102)), Some(at(90)..at(102)));
        assert_eq!(range_of_spike(Spike { at: at(3) }, at(9)), Some(at(0)..at(5)));
    }

    #[test]
    fn of_a_swarm_the_first_is_kept() {
        let mut snapshots = Snapshots::new("no recording".into(), "nowhere".into());
        assert!(snapshots.spike(at(100)));
        assert!(!snapshots.spike(at(101)) && !snapshots.spike(at(159)));
        assert!(snapshots.spike(at(160)));
    }

    #[test]
    fn a_failure_is_told_and_the_next_one_may_be_tried() {
        let folder = tempfile::tempdir().unwrap();
        let recording = folder.path().join("missing.db");
        let mut snapshots = Snapshots::new(recording, folder.path().into());
        for _ in 0..2 {
            let (reply, answer) = channel();
            snapshots.by_hand(at(5), Some(reply));
            assert!(matches!(answer.recv().unwrap(), Reply::Failed(why) if why.contains("missing.db")));
            snapshots.finish();
        }
    }

    #[test]
    fn one_at_a_time() {
        let mut snapshots = Snapshots::new("no recording".into(), "nowhere".into());
        let (hold, held) = channel::<()>();
        let (_done, is_done) = channel();
        let thread = std::thread::spawn(move || {
            let _ = held.recv();
        });
        snapshots.under_way = Some((thread, is_done));
        let (reply, answer) = channel();
        snapshots.by_hand(at(5), Some(reply));
        assert!(matches!(answer.recv().unwrap(), Reply::Refused(_)));
        assert_eq!(snapshots.proceed(at(6)), Outcome::default());
        drop(hold);
        snapshots.finish();
    }
}
