// SPDX-License-Identifier: Apache-2.0
//! The writer: takes events, adds up those of one row, and commits about once a second.
//!
//! It owns the file while it is written. It does not interpret events, and it omits nothing but the stalls
//! that the size budget folds into counts, which are counted as lost.

mod definitions;
mod stalls;
mod sums;
#[cfg(test)]
mod tests;
mod window;

use std::path::Path;

use wallprof_model::event::KernelDelay;
use wallprof_model::profile::KeptStall;
use wallprof_model::{ClockAnchor, Event, Forgotten, Loss, MonoNs, ThreadKey};

use crate::budget::SizeBudget;
use crate::database::Database;
use crate::error::Result;
use crate::file_sums::FileSums;
use crate::ids::{Ids, UNKNOWN_REFERENCE};
use crate::intern::{StackTree, Texts, clipped};
use crate::kept::KeptStalls;
use crate::new_file;
use crate::pending::{Overhead, Pending};
use crate::start::RecordingStart;
use crate::summary::Summary;
use crate::write::{self, Progress};
use window::Window;

/// The loss under which folded stalls are counted.
pub const STALLS_FOLDED: &str = Loss::StallsFolded.name();

pub struct Recorder {
    database: Database,
    start: MonoNs,
    /// The time of the last commit.
    last: MonoNs,
    /// The time at which the size budget was last applied.
    decided: MonoNs,
    budget: SizeBudget,
    ids: Ids,
    texts: Texts,
    tree: StackTree,
    next_stall: u64,
    pending: Pending,
    /// `None` in a recording of bounded size, where each commit has rows of its own.
    file_sums: Option<FileSums>,
    written: Summary,
    /// The last reading of both clocks.
    clock: Option<ClockAnchor>,
    /// `None`: everything is kept.
    window: Option<Window>,
    /// `None`: the source does not need the numbers of stalls.
    kept: Option<KeptStalls>,
}

impl Recorder {
    /// Creates the recording, in place of an earlier one but never of any other file.
    pub fn create(path: &Path, start: &RecordingStart) -> Result<Recorder> {
        let counted = start.retention.is_some();
        Ok(Recorder {
            database: Database::open(new_file::create(path, start)?, counted)?,
            start: start.start,
            last: start.start,
            decided: start.start,
            budget: start.budget,
            ids: Ids::new(counted),
            texts: Texts::new(counted),
            tree: StackTree::new(counted),
            next_stall: 1,
            pending: Pending::default(),
            file_sums: (!counted).then(FileSums::new),
            written: Summary::default(),
            clock: start.clock,
            window: start.retention.map(Window::new),
            kept: None,
        })
    }

    /// The path of the recording, with symbolic links resolved.
    pub fn path(&self) -> &Path {
        self.database.path()
    }

    /// Moves the start to the time from which the source counts. Called before the first commit.
    pub fn start_at(&mut self, start: MonoNs) -> Result<()> {
        let start_ns = i64::try_from(start.0).unwrap_or(i64::MAX);
        self.database
            .change(|to| to.execute("UPDATE recording SET start_ns = ?1, last_ns = ?1", [start_ns]))?;
        (self.start, self.last, self.decided) = (start, start, start);
        Ok(())
    }

    /// From now on waits and faults this long, ns, are stalls. Earlier ones stay.
    pub fn set_min_stall(&mut self, min_stall_ns: u64) -> Result<()> {
        let ns = i64::try_from(min_stall_ns).unwrap_or(i64::MAX);
        self.database.change(|to| to.execute("UPDATE recording SET min_stall_ns = ?1", [ns]))?;
        Ok(())
    }

    /// Takes one event. Undefined ids are counted as a loss and are no error. An error comes from writing,
    /// which happens here only when memory holds more pending rows than it should. After an error the event
    /// has not been taken.
    pub fn take(&mut self, event: Event) -> Result<()> {
        if self.pending.is_full() {
            self.flush(self.last)?;
        }
        match event {
            Event::Clock(anchor) => {
                self.clock = Some(anchor);
                self.pending.clock.push(anchor);
            }
            Event::Thread(info) => self.thread(&info),
            Event::ThreadSeen { thread, from } => {
                if let Some(row) = self.ids.thread(thread) {
                    self.pending.threads.entry(row).or_default().start = Some(from);
                }
            }
            Event::ThreadEnd { thread, at } => {
                if let Some(row) = self.ids.thread(thread) {
                    self.pending.threads.entry(row).or_default().end = Some(at);
                    self.close_stalls_of(row);
                }
            }
            Event::Module { id, module } => self.module(id, module),
            Event::MissingFile { module, file } => self.missing_file(module, file),
            Event::Frame { id, frame } => self.frame(id, frame),
            Event::Symbol { frame, lines } => self.symbol(frame, &lines),
            Event::Stack { id, frames, end } => self.stack(id, &frames, end),
            Event::Binding(binding) => self.binding(&binding),
            Event::Ledger(delta) => self.ledger(delta),
            Event::Latency(delta) => self.latency(&delta),
            // The same waits are in the latencies that come with it.
            Event::OffCpu(_) => {}
            Event::Sample(delta) => self.sample(delta),
            Event::EventName { index, name } => {
                self.pending.events.insert(index, clipped(&name).to_owned());
            }
            Event::Stall(stall) => self.stall(stall),
            Event::Interrupt(delta) => self.interrupt(delta),
            Event::Intrusion(delta) => self.intrusion(&delta),
            Event::KernelDelay(work) => {
                if let Some(row) = self.ids.thread(work.thread) {
                    self.pending.kernel_delays.push(KernelDelay { thread: ThreadKey(row), ..work });
                }
            }
            Event::CrossCalls(delta) => self.cross_calls(&delta),
            Event::Throttled(throttled) => {
                let cgroup = self.text(&throttled.cgroup);
                self.pending.throttled.push((throttled, cgroup));
            }
            Event::Spans(delta) => self.spans(&delta),
            Event::Span(span) => self.span(*span),
            Event::Late(sample) => self.late(sample),
            Event::Mark(mark) => self.pending.marks.push(mark),
            Event::CallResolution(ns) => {
                let known = &mut self.pending.call_resolution_ns;
                *known = Some(known.map_or(ns, |known| known.max(ns)));
            }
            Event::CallPath(path) => self.call_path(*path),
            Event::Counter { key, counter } => self.counter(key, counter),
            Event::CounterValue { key, at, value } => {
                if let Some(row) = self.ids.counter(key).filter(|_| value.is_finite()) {
                    self.pending.counter_values.push((row, at, value));
                }
            }
            Event::Loss { reason, count } => self.pending.lose(clipped(&reason), count),
            Event::Overhead { process_cpu_ns, probe_ns, probe_runs, behind_ns, table_bytes } => {
                let cost = Overhead { process_cpu_ns, probe_ns, probe_runs, behind_ns, table_bytes };
                self.pending.add_overhead(cost);
            }
        }
        Ok(())
    }

    /// Writes all pending events, as of `now`, in one transaction. After an error none of them is in the
    /// file, the recorder still holds them, and the next commit tries again. A bounded recording then deletes
    /// some outdated rows in a second transaction. After an error there, the next commit deletes them.
    pub fn commit(&mut self, now: MonoNs) -> Result<()> {
        self.flush(now.max(self.last))
    }

    /// The ids that a bounded recording has deleted since the last call. The source defines them again when
    /// it uses them.
    pub fn take_forgotten(&mut self) -> Forgotten {
        self.window.as_mut().map(|window| std::mem::take(&mut window.forgotten)).unwrap_or_default()
    }

    /// From now on the recorder keeps the numbers of stalls for [`Self::take_kept_stalls`].
    pub fn keep_stall_numbers(&mut self) {
        self.kept = Some(KeptStalls::default());
    }

    /// The stalls that were written since the last call, with their numbers in the file.
    pub fn take_kept_stalls(&mut self) -> Vec<KeptStall> {
        self.kept.as_mut().map(KeptStalls::take).unwrap_or_default()
    }

    /// Commits the rest, marks the recording as ended and leaves one plain file. After an error the file is
    /// as the last successful commit left it, like that of a killed recorder.
    pub fn finish(mut self, end: MonoNs) -> Result<Summary> {
        self.last = end.max(self.last);
        self.settle();
        self.write(Some(self.last))?;
        let one_file = self.database.leave_one_file();
        let mut summary = std::mem::take(&mut self.written);
        summary.duration_ns = self.last.0.saturating_sub(self.start.0);
        summary.threads = u64::from(self.ids.threads.defined());
        summary.file_bytes = self.database.file_bytes();
        summary.one_file = one_file;
        Ok(summary)
    }

    fn flush(&mut self, now: MonoNs) -> Result<()> {
        self.last = now;
        self.settle();
        self.write(None)?;
        self.retain()
    }

    fn write(&mut self, end: Option<MonoNs>) -> Result<()> {
        // References of the last stalls that could not be resolved are counted in the same commit.
        let unknown = std::mem::take(&mut self.ids.unknown);
        self.pending.lose(UNKNOWN_REFERENCE, unknown);
        let progress = Progress { last: self.last, end, flush_second: self.flush_second() };
        self.database.change(|to| write::write(to, &self.pending, self.file_sums.as_ref(), progress))?;
        let pending = std::mem::take(&mut self.pending);
        if let Some(sums) = &mut self.file_sums {
            sums.add(&pending);
            let ended = pending.threads.iter().filter(|(_, change)| change.end.is_some());
            ended.for_each(|(thread, _)| sums.end(*thread));
        }
        if let Some(window) = &mut self.window {
            window.generations.wrote_second(progress.flush_second);
            let seconds =
                pending.ledger.keys().map(|key| key.0).chain(pending.samples.keys().map(|key| key.second));
            seconds.for_each(|second| window.generations.wrote_second(second));
        }
        for (reason, count) in pending.losses {
            let sum = self.written.losses.entry(reason).or_default();
            *sum = sum.saturating_add(count);
        }
        Ok(())
    }
}
