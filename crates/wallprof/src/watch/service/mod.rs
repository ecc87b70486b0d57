// SPDX-License-Identifier: Apache-2.0
//! The running service: seconds, signals and orders, one after the other on the thread that holds the probes.
//!
//! A second that fails is reported and counted, and the next one is tried. Only a lasting failure ends the
//! service. With a long flush interval, the rings, the counters and the clock are still read every second,
//! and several seconds are flushed at once.

mod observer;
mod orders;
mod reload;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wallprof_live::Pending;
use wallprof_model::profile::KeptStall;
use wallprof_model::{Loss, MonoNs};
use wallprof_probe::clock;
use wallprof_probe::facts::files::HostFiles;
use wallprof_watch::{Activity, Budget, FlushInterval, Metrics, Notice, Notifier, Page, Schedule};

use super::commands::Inbox;
use super::freshness::Freshness;
use super::settings::Settings;
use super::signals::Signals;
use super::snapshots::Snapshots;
use super::tables::Tables;
use crate::args::WatchArgs;
use crate::failure::{Failure, say};
use crate::record::{Engine, Setup, ready};
use observer::{Totals, observer, snapshot_lateness_ns};
use orders::MarkTimes;

/// Above this many stalls a second, the rings are drained more often. Their capacity is larger.
const BUSY_STALLS: u64 = 2_000;
const BUSY_TICK: Duration = Duration::from_millis(100);
/// Intruders on guarded CPUs are reported before the second is over.
const GUARD_TICK: Duration = Duration::from_millis(250);
/// The time from the end of a second until all of its events have arrived.
const SETTLE_NS: u64 = 30_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// A stall that was late by this much is flushed at the end of its second, with every flush interval.
const LATE_NS: u64 = 10_000_000;
/// Limit on failed seconds in a row.
const MAX_FAILURES: u32 = 60;

pub struct Service {
    args: WatchArgs,
    settings: Settings,
    engine: Engine,
    metrics: Arc<Mutex<Metrics>>,
    totals: Rc<RefCell<Totals>>,
    /// The shortest lateness of a stall that triggers a snapshot, ns.
    snapshot_ns: Rc<Cell<Option<u64>>>,
    notifier: Notifier,
    schedule: Schedule,
    budget: Budget,
    snapshots: Snapshots,
    tables: Option<Tables>,
    flush_interval: FlushInterval,
    mark_times: MarkTimes,
    freshness: Arc<Freshness>,
    started: bool,
    failures: u32,
    /// The last flush, and the last attempt.
    last_flush: Instant,
    last_attempt: Instant,
    last_notification: Instant,
    busy: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service {
    /// Loads the probes and creates the recording. Nothing is measured yet.
    pub fn load(
        args: &WatchArgs,
        settings: Settings,
        metrics: Arc<Mutex<Metrics>>,
        notifier: Notifier,
    ) -> Result<Self, Failure> {
        let setup = Setup::new(&settings.record, &HostFiles)?;
        let mut engine = Engine::prepare(setup, None)?;
        engine.collect_kept_stalls();
        let totals = Rc::new(RefCell::new(Totals::default()));
        let snapshot_ns = Rc::new(Cell::new(snapshot_lateness_ns(&settings)));
        engine.observe(observer(Arc::clone(&metrics), Rc::clone(&totals), Rc::clone(&snapshot_ns)));
        let keep_ns = settings.record.retention.map_or(0, |kept| kept.keep_ns);
        let tables = settings.tables.clone();
        let tables = tables.map(|kept| Tables::new(kept, engine.path(), keep_ns, &args.meaning));
        let budget = Budget::new(settings.max_cpu, settings.record.min_stall_ns);
        let service = Service {
            args: args.clone(),
            schedule: Schedule::new(settings.hours),
            snapshots: Snapshots::new(
                engine.path(),
                settings.snapshots.clone(),
                settings.record.rules.clone(),
            ),
            tables,
            budget,
            settings,
            engine,
            metrics,
            totals,
            snapshot_ns,
            notifier,
            flush_interval: FlushInterval::default(),
            mark_times: MarkTimes::default(),
            freshness: Arc::default(),
            started: false,
            failures: 0,
            last_flush: Instant::now(),
            last_attempt: Instant::now(),
            last_notification: Instant::now(),
            busy: false,
        };
        service.show_pace(service.budget.pace());
        Ok(service)
    }

    /// The name of the target.
    pub fn target(&self) -> &str {
        self.engine.target()
    }

    pub fn recording(&self) -> PathBuf {
        self.engine.path()
    }

    /// The age of the flushed data.
    pub fn freshness(&self) -> Arc<Freshness> {
        Arc::clone(&self.freshness)
    }

    pub fn page(&self) -> Page {
        Page {
            version: env!("CARGO_PKG_VERSION"),
            target: self.target().to_string(),
            recording: self.recording().display().to_string(),
        }
    }

    /// Runs until a signal ends it.
    pub fn run(&mut self, signals: &Signals, inbox: &Inbox) -> Result<(), Failure> {
        self.follow_schedule()?;
        self.notifier.send(Notice::Ready, &self.status_line());
        loop {
            self.wait(signals, inbox).map_err(|error| {
                Failure::failed(format!("cannot wait for the probes: {error}: start it again"))
            })?;
            let arrived = signals.take();
            if arrived.stop {
                return Ok(());
            }
            let commands = inbox.take();
            let at_once = arrived.reload || arrived.snapshot || !commands.is_empty();
            self.drain(at_once)?;
            if arrived.reload {
                self.shorten_flush_interval();
                self.reload();
            }
            if arrived.snapshot {
                self.shorten_flush_interval();
                self.snapshots.start_by_hand(clock::mono_now(), None);
            }
            for command in commands {
                self.obey(command);
            }
            if let Err(failure) = self.follow_schedule() {
                self.count_failure(failure, "tries again")?;
            }
            self.notify_watchdog();
        }
    }

    /// Disarms, and completes the flight recording.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.notifier.send(Notice::Stopping, "completing the flight recording");
        self.snapshots.finish();
        let recording = self.recording();
        self.engine.finish()?;
        crate::findings::store(&recording, &self.settings.record.rules);
        if let Some(tables) = &mut self.tables {
            tables.finish();
        }
        Ok(())
    }

    fn wait(&self, signals: &Signals, inbox: &Inbox) -> io::Result<()> {
        let mut waiting = signals.descriptors().to_vec();
        waiting.push(inbox.as_fd());
        let guards = !self.settings.record.guarded.cpus.is_empty();
        let usual = if guards { GUARD_TICK } else { Duration::MAX };
        let tick = if self.busy { BUSY_TICK } else { until_next_second(clock::anchor().epoch.0).min(usual) };
        ready(&waiting, Some(tick)).map(drop)
    }

    /// Drains the rings. Flushes the complete seconds if that is due, or `at_once`.
    fn drain(&mut self, at_once: bool) -> Result<(), Failure> {
        let (interval, snapshot_ns) = (&self.flush_interval, self.snapshot_ns.get());
        // Other stalls may stay pending: a client that reads them causes a flush. Readers of the file itself
        // are not noticed; they find late stalls by LATE_NS.
        let is_due = |pending: &Pending| {
            at_once
                || interval.is_due(activity_from(pending))
                || pending.late_ns >= LATE_NS
                || snapshot_ns.is_some_and(|shortest| pending.late_ns >= shortest)
        };
        match self.engine.drain_and_flush_if(&is_due) {
            Ok(None) => {}
            Ok(Some(flushed)) => {
                self.failures = 0;
                self.end_seconds(flushed);
            }
            Err(failure) => self.fail(failure)?,
        }
        Ok(())
    }

    /// Runs once for all seconds of a flush, up to `flushed`. Cost and stalls are averaged over them. The
    /// snapshot of a spike and the text for clients are not later than with a flush each second, because both
    /// cause a flush.
    fn end_seconds(&mut self, flushed: MonoNs) {
        let kept: Vec<KeptStall> = self.engine.take_kept_stalls();
        let clock = self.engine.clock();
        let totals = self.totals.take();
        let seconds = whole_seconds(self.last_flush);
        {
            let mut metrics = lock(&self.metrics);
            metrics.add_exemplars(&kept, |mono| clock.epoch_from_mono(mono));
            metrics.end_seconds(seconds.max(1));
        }
        self.busy = totals.stalls > BUSY_STALLS;
        (self.last_flush, self.last_attempt) = (Instant::now(), Instant::now());
        if let Some(pace) = self.budget.spend(totals.cost_ns, seconds) {
            self.change_pace(pace);
        }
        lock(&self.metrics).set_cost(self.budget.cost());
        if let Some(at) = totals.spike
            && !self.snapshots.spike(at)
        {
            lock(&self.metrics).count_loss(Loss::SnapshotsOfASwarm.name(), 1);
        }
        self.proceed_with_snapshots(flushed);
        self.proceed_with_tables(flushed);
        self.flush_interval.flushed(Activity {
            seconds,
            stalls: totals.stalls,
            probe_runs: totals.probe_runs,
        });
        self.apply_flush_interval(flushed);
    }

    fn proceed_with_snapshots(&mut self, flushed: MonoNs) {
        let outcome = self.snapshots.proceed(flushed);
        let mut metrics = lock(&self.metrics);
        (0..outcome.written).for_each(|_| metrics.count_snapshot());
        if outcome.failed > 0 {
            metrics.count_loss(Loss::SnapshotsFailed.name(), outcome.failed);
        }
    }

    /// The cost of a part is in the metrics, but not in the budget, which is a mean over ten seconds.
    fn proceed_with_tables(&mut self, flushed: MonoNs) {
        let clock = self.engine.clock();
        let Some(written) = self.tables.as_mut().and_then(|tables| tables.proceed(flushed, clock)) else {
            return;
        };
        let mut metrics = lock(&self.metrics);
        metrics.add_cpu_time(written.cpu_ns);
        if written.lost_seconds > 0 {
            metrics.count_loss(Loss::SecondsNotInTables.name(), written.lost_seconds);
        }
    }

    /// Lets later seconds stay pending, unless guarded CPUs, a high rate of stalls or a snapshot need each of
    /// them.
    fn apply_flush_interval(&mut self, flushed: MonoNs) {
        let guards = !self.settings.record.guarded.cpus.is_empty();
        if guards || self.busy || self.snapshots.is_pending() {
            self.flush_interval.shorten();
        }
        let is_long = self.flush_interval.is_long();
        self.engine.keep_seconds_pending(is_long);
        self.freshness.set(is_long.then_some(MonoNs(flushed.0 + SECOND_NS + SETTLE_NS)));
    }

    /// An operator is active, or the state changes: each second is flushed at its end for some time.
    fn shorten_flush_interval(&mut self) {
        self.flush_interval.shorten();
        self.engine.keep_seconds_pending(false);
        self.freshness.set(None);
    }

    /// The failure itself after too many in a row. `goes_on`: what wallprof does with the next second.
    fn count_failure(&mut self, failure: Failure, goes_on: &str) -> Result<(), Failure> {
        self.failures += 1;
        if self.failures == 1 {
            say(&format!("{}; wallprof {goes_on} with the next second", failure.message));
        }
        if self.failures > MAX_FAILURES { Err(failure) } else { Ok(()) }
    }

    /// Counts a second that could not be read or written. The recording retries the rows that are not written
    /// yet.
    fn fail(&mut self, failure: Failure) -> Result<(), Failure> {
        let seconds = whole_seconds(std::mem::replace(&mut self.last_attempt, Instant::now())).max(1);
        // Pending seconds are flushed with the next one; until then the BPF programs continue unchanged.
        self.flush_interval.shorten();
        self.freshness.set(None);
        {
            let mut metrics = lock(&self.metrics);
            metrics.count_loss(Loss::SecondsNotWritten.name(), seconds);
            metrics.end_seconds(seconds);
        }
        self.count_failure(failure, "continues")
    }

    fn notify_watchdog(&mut self) {
        if let Some(interval) = self.notifier.watchdog_interval()
            && self.last_notification.elapsed() >= interval.saturating_sub(Duration::from_secs(1))
        {
            self.last_notification = Instant::now();
            self.notifier.send(Notice::Watchdog, &self.status_line());
        }
    }
}

fn activity_from(pending: &Pending) -> Activity {
    Activity { seconds: pending.seconds, stalls: pending.stalls, probe_runs: pending.runs }
}

fn whole_seconds(since: Instant) -> u64 {
    since.elapsed().as_secs_f64().round() as u64
}

/// The time until the current second is complete.
pub fn until_next_second(epoch_ns: u64) -> Duration {
    let into = epoch_ns.wrapping_sub(SETTLE_NS) % SECOND_NS;
    Duration::from_nanos(SECOND_NS - into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tick_comes_when_a_second_is_complete() {
        assert_eq!(until_next_second(5_000_000_000), Duration::from_nanos(SETTLE_NS));
        assert_eq!(until_next_second(5_000_000_000 + SETTLE_NS), Duration::from_secs(1));
        assert_eq!(until_next_second(5_500_000_000), Duration::from_nanos(530_000_000));
    }
}
