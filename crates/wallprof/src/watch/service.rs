//! The service while it runs: seconds, signals and orders, one after the other on the thread that holds the probes.
//!
//! What goes wrong in a second is said and counted, and the next second is tried; only a failure that stays ends it.
//! In quiet times the rings, the counters and the clock are looked at every second, and the seconds are told a few at once.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wallprof_live::Untold;
use wallprof_model::event::Stall;
use wallprof_model::profile::KeptStall;
use wallprof_model::{Event, MonoNs};
use wallprof_probe::clock;
use wallprof_probe::facts::files::HostFiles;
use wallprof_watch::{Activity, Budget, Metrics, Notice, Notifier, Pace, Page, Quiet, Schedule};

use super::commands::{Asked, Command, Inbox, Reply};
use super::freshness::Freshness;
use super::settings::Settings;
use super::signals::Signals;
use super::snapshots::Snapshots;
use crate::args::WatchArgs;
use crate::failure::{Failure, say};
use crate::record::{Engine, Setup, ready};

/// The rings hold more than this many stalls; on a machine that makes as many they are emptied more often.
const BUSY: u64 = 2_000;
const BUSY_TICK: Duration = Duration::from_millis(100);
/// Who intrudes on a guarded CPU is told sooner than a second is over.
const GUARD_TICK: Duration = Duration::from_millis(250);
/// How long after a second's end it is complete.
const SETTLE_NS: u64 = 30_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Who is as late as this is in the recording when the second is over, also in a quiet time.
const LATE_NS: u64 = 10_000_000;
/// Seconds in a row that may fail.
const PATIENCE: u32 = 60;

/// What the events of a second have said to the service itself.
#[derive(Default)]
struct Seen {
    stalls: u64,
    /// The end of the first stall that is worth a snapshot.
    spike: Option<MonoNs>,
    cost_ns: u64,
    probe_runs: u64,
}

pub struct Service {
    args: WatchArgs,
    settings: Settings,
    engine: Engine,
    metrics: Arc<Mutex<Metrics>>,
    seen: Rc<RefCell<Seen>>,
    /// From which lateness on a stall makes a snapshot, ns.
    worth_ns: Rc<Cell<Option<u64>>>,
    notifier: Notifier,
    schedule: Schedule,
    budget: Budget,
    snapshots: Snapshots,
    quiet: Quiet,
    freshness: Arc<Freshness>,
    started: bool,
    failures: u32,
    /// When seconds were last told, and when that was last tried.
    last_tick: Instant,
    last_try: Instant,
    last_alive: Instant,
    busy: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service {
    /// Loads the probes and creates the recording. Nothing is counted yet.
    pub fn load(
        args: &WatchArgs,
        settings: Settings,
        metrics: Arc<Mutex<Metrics>>,
        notifier: Notifier,
    ) -> Result<Self, Failure> {
        let setup = Setup::new(&settings.record, &HostFiles)?;
        let mut engine = Engine::prepare(setup, None)?;
        engine.remember_kept_stalls();
        let seen = Rc::new(RefCell::new(Seen::default()));
        let worth_ns = Rc::new(Cell::new(worth_ns(&settings)));
        engine.observe(observer(Arc::clone(&metrics), Rc::clone(&seen), Rc::clone(&worth_ns)));
        let budget = Budget::new(settings.max_cpu, settings.record.min_stall_ns);
        let service = Service {
            args: args.clone(),
            schedule: Schedule::new(settings.hours),
            snapshots: Snapshots::new(engine.path(), settings.snapshots.clone()),
            budget,
            settings,
            engine,
            metrics,
            seen,
            worth_ns,
            notifier,
            quiet: Quiet::default(),
            freshness: Arc::default(),
            started: false,
            failures: 0,
            last_tick: Instant::now(),
            last_try: Instant::now(),
            last_alive: Instant::now(),
            busy: false,
        };
        service.show_pace(service.budget.pace());
        Ok(service)
    }

    /// What is watched, by name.
    pub fn target(&self) -> &str {
        self.engine.target()
    }

    pub fn recording(&self) -> PathBuf {
        self.engine.path()
    }

    /// How old what it has told is.
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

    /// Watches until a signal ends it.
    pub fn run(&mut self, signals: &Signals, inbox: &Inbox) -> Result<(), Failure> {
        self.follow_schedule()?;
        self.notifier.tell(Notice::Ready, &self.status_line());
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
            self.take_in(at_once)?;
            if arrived.reload {
                self.disturb();
                self.reload();
            }
            if arrived.snapshot {
                self.disturb();
                self.snapshots.by_hand(clock::mono_now(), None);
            }
            for command in commands {
                self.obey(command);
            }
            self.follow_schedule()?;
            self.stay_alive();
        }
    }

    /// Disarms, and completes the flight recording.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.notifier.tell(Notice::Stopping, "completing the flight recording");
        self.snapshots.finish();
        let recording = self.recording();
        self.engine.finish()?;
        crate::findings::store(&recording);
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

    /// Takes in what has come; when seconds are complete and due, or `at_once`, does what is done with complete seconds.
    fn take_in(&mut self, at_once: bool) -> Result<(), Failure> {
        let (quiet, worth_ns) = (&self.quiet, self.worth_ns.get());
        // Nobody sees other stalls sooner than they look, and then they are told; but whoever reads the file is not seen.
        let is_due = |untold: &Untold| {
            at_once
                || quiet.is_due(activity_from(untold))
                || untold.late_ns >= LATE_NS
                || worth_ns.is_some_and(|worth| untold.late_ns >= worth)
        };
        match self.engine.take_in_when(&is_due) {
            Ok(None) => {}
            Ok(Some(told)) => {
                self.failures = 0;
                self.end_seconds(told);
            }
            Err(failure) => self.fail(failure)?,
        }
        Ok(())
    }

    /// What follows is done once for all seconds that were told at once: cost and stalls are averaged over them, a spike's
    /// snapshot and the text for readers come no later than with a telling each second, because those end the quiet.
    fn end_seconds(&mut self, told: MonoNs) {
        let kept: Vec<KeptStall> = self.engine.take_kept_stalls();
        let clock = self.engine.clock();
        let seen = self.seen.take();
        let seconds = whole_seconds(self.last_tick);
        {
            let mut metrics = lock(&self.metrics);
            metrics.keep(&kept, |mono| clock.epoch_from_mono(mono));
            metrics.end_seconds(seconds.max(1));
        }
        self.busy = seen.stalls > BUSY;
        (self.last_tick, self.last_try) = (Instant::now(), Instant::now());
        if let Some(pace) = self.budget.spend(seen.cost_ns, seconds) {
            self.change_pace(pace);
        }
        lock(&self.metrics).set_cost(self.budget.cost());
        if let Some(at) = seen.spike
            && !self.snapshots.spike(at)
        {
            lock(&self.metrics).lose("snapshots_of_a_swarm", 1);
        }
        self.follow_snapshots(told);
        self.quiet.told(Activity { seconds, stalls: seen.stalls, probe_runs: seen.probe_runs });
        self.follow_quiet(told);
    }

    fn follow_snapshots(&mut self, told: MonoNs) {
        let outcome = self.snapshots.proceed(told);
        let mut metrics = lock(&self.metrics);
        (0..outcome.written).for_each(|_| metrics.count_snapshot());
        if outcome.failed > 0 {
            metrics.lose("snapshots_failed", outcome.failed);
        }
    }

    /// Lets seconds wait from now on, if nothing needs each of them.
    fn follow_quiet(&mut self, told: MonoNs) {
        let guards = !self.settings.record.guarded.cpus.is_empty();
        if guards || self.busy || self.snapshots.is_pending() {
            self.quiet.end();
        }
        let is_quiet = self.quiet.is_quiet();
        self.engine.let_seconds_wait(is_quiet);
        self.freshness.set(is_quiet.then_some(MonoNs(told.0 + SECOND_NS + SETTLE_NS)));
    }

    /// Somebody is at it, or something changes: for a while each second is told when it is over.
    fn disturb(&mut self) {
        self.quiet.end();
        self.engine.let_seconds_wait(false);
        self.freshness.set(None);
    }

    /// A second that could not be read or written. The recording tries again what is not written yet.
    fn fail(&mut self, failure: Failure) -> Result<(), Failure> {
        self.failures += 1;
        let seconds = whole_seconds(std::mem::replace(&mut self.last_try, Instant::now())).max(1);
        // What waits is told with the next second; until then the kernel side goes on as it is.
        self.quiet.end();
        self.freshness.set(None);
        if self.failures == 1 {
            say(&format!("{}; it goes on, and the next second is tried", failure.message));
        }
        let mut metrics = lock(&self.metrics);
        metrics.lose("seconds_not_written", seconds);
        metrics.end_seconds(seconds);
        if self.failures > PATIENCE { Err(failure) } else { Ok(()) }
    }

    fn follow_schedule(&mut self) -> Result<(), Failure> {
        let wanted = self.schedule.is_armed(jiff::Zoned::now().time());
        match wanted == self.is_armed() {
            true => Ok(()),
            false if wanted => self.arm(),
            false => self.disarm(),
        }
    }

    fn is_armed(&self) -> bool {
        self.started && !self.engine.is_paused()
    }

    fn arm(&mut self) -> Result<(), Failure> {
        if self.started {
            self.engine.resume()?;
        } else {
            self.engine.arm()?;
            self.engine.look_around()?;
            self.started = true;
        }
        self.disturb();
        self.show_armed(true);
        Ok(())
    }

    fn disarm(&mut self) -> Result<(), Failure> {
        if self.started {
            self.engine.pause()?;
        }
        self.disturb();
        self.show_armed(false);
        Ok(())
    }

    fn show_armed(&self, armed: bool) {
        lock(&self.metrics).set_armed(armed);
        let state = if armed { "armed" } else { "disarmed" };
        say(state);
        self.notifier.tell(Notice::Watchdog, &self.status_line());
    }

    /// What is over has been told by now.
    fn obey(&mut self, command: Command) {
        if command.asked != Asked::Refresh {
            self.disturb();
        }
        let wanted = match command.asked {
            Asked::Refresh | Asked::Attend => return drop(command.reply.send(Reply::Done(String::new()))),
            Asked::Arm => true,
            Asked::Disarm => false,
            Asked::Status => return drop(command.reply.send(Reply::Done(self.status()))),
            Asked::Snapshot => return self.snapshots.by_hand(clock::mono_now(), Some(command.reply)),
        };
        self.schedule.say(wanted, jiff::Zoned::now().time());
        let reply = match self.follow_schedule() {
            Ok(()) => Reply::Done(self.status_line()),
            Err(failure) => Reply::Failed(failure.message),
        };
        // Gone meanwhile: nobody to tell.
        let _ = command.reply.send(reply);
    }

    fn status_line(&self) -> String {
        let state = if self.is_armed() { "armed" } else { "disarmed" };
        format!("{state}, watching {}", self.target())
    }

    fn status(&self) -> String {
        let metrics = lock(&self.metrics);
        let stalls: Vec<_> =
            metrics.stalls_by_severity().into_iter().map(|(name, count)| format!("{count} {name}")).collect();
        let stalls = if stalls.is_empty() { "none".to_string() } else { stalls.join(", ") };
        format!(
            "{}\nstalls: {stalls}\ncost: {:.3} % of one CPU\npace: {}\nrecording: {}",
            self.status_line(),
            self.budget.cost() * 100.0,
            self.budget.pace(),
            self.recording().display(),
        )
    }

    /// Reads the configuration again. A wrong one changes nothing.
    fn reload(&mut self) {
        self.notifier.tell(Notice::Reloading(clock::mono_now()), "reading the configuration");
        match Settings::read(&self.args) {
            Ok(new) => self.change(new),
            Err(failure) => say(&format!("{}; everything stays as it was", failure.message)),
        }
        self.notifier.tell(Notice::Ready, &self.status_line());
    }

    fn change(&mut self, new: Settings) {
        let fixed = self.settings.fixed_differences(&new);
        if !fixed.is_empty() {
            say(&format!("{} stays as it was until a restart", fixed.join(", ")));
        }
        lock(&self.metrics).set_severities(new.severities.clone());
        self.worth_ns.set(worth_ns(&new));
        if new.record.min_stall_ns != self.settings.record.min_stall_ns {
            self.engine.set_min_stall(new.record.min_stall_ns);
        }
        self.budget.change(new.max_cpu, new.record.min_stall_ns);
        self.apply_pace(self.budget.pace());
        self.schedule.set_hours(new.hours);
        self.snapshots.set_folder(new.snapshots.clone());
        let Settings { listen, socket, record, max_series, .. } = self.settings.clone();
        let min_stall_ns = new.record.min_stall_ns;
        let record = crate::record::RecordOptions { min_stall_ns, ..record };
        self.settings = Settings { listen, socket, record, max_series, ..new };
        say("the configuration is in force");
    }

    fn change_pace(&mut self, pace: Pace) {
        say(&format!("watching costs {:.2} % of one CPU: from now on {pace}", self.budget.cost() * 100.0));
        self.apply_pace(pace);
    }

    fn apply_pace(&mut self, pace: Pace) {
        self.engine.set_pace(pace.stride, pace.stack_ns);
        self.show_pace(pace);
    }

    fn show_pace(&self, pace: Pace) {
        let hertz = f64::from(self.settings.record.sample_hz) / f64::from(pace.stride);
        lock(&self.metrics).set_pace(hertz, pace.stack_ns);
    }

    fn stay_alive(&mut self) {
        if let Some(interval) = self.notifier.watchdog_interval()
            && self.last_alive.elapsed() >= interval.saturating_sub(Duration::from_secs(1))
        {
            self.last_alive = Instant::now();
            self.notifier.tell(Notice::Watchdog, &self.status_line());
        }
    }
}

/// From which lateness on a stall makes a snapshot, ns.
fn worth_ns(settings: &Settings) -> Option<u64> {
    settings.on.as_deref().and_then(|name| settings.severities.least_ns(name))
}

fn observer(
    metrics: Arc<Mutex<Metrics>>,
    seen: Rc<RefCell<Seen>>,
    worth_ns: Rc<Cell<Option<u64>>>,
) -> impl FnMut(&Event) + 'static {
    move |event| {
        lock(&metrics).take(event);
        match event {
            Event::Stall(stall) => {
                let mut seen = seen.borrow_mut();
                seen.stalls += 1;
                if seen.spike.is_none() && is_worth_it(stall, worth_ns.get()) {
                    seen.spike = Some(stall.end);
                }
            }
            Event::Overhead { process_cpu_ns, probe_ns, probe_runs, .. } => {
                let mut seen = seen.borrow_mut();
                seen.cost_ns += process_cpu_ns + probe_ns;
                seen.probe_runs += probe_runs;
            }
            _ => {}
        }
    }
}

fn is_worth_it(stall: &Stall, worth_ns: Option<u64>) -> bool {
    !stall.voluntary && worth_ns.is_some_and(|worth| stall.late_ns() >= worth)
}

fn activity_from(untold: &Untold) -> Activity {
    Activity { seconds: untold.seconds, stalls: untold.stalls, probe_runs: untold.runs }
}

fn whole_seconds(since: Instant) -> u64 {
    since.elapsed().as_secs_f64().round() as u64
}

/// To the moment when the second under way is over and told.
fn until_next_second(epoch_ns: u64) -> Duration {
    let into = epoch_ns.wrapping_sub(SETTLE_NS) % SECOND_NS;
    Duration::from_nanos(SECOND_NS - into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_is_taken_by_lateness() {
        let reason = |reason| wallprof_model::StallReason::Blocked(reason);
        let (sleep, lock) = (reason(wallprof_model::Reason::Sleep), reason(wallprof_model::Reason::Lock));
        let waited = |reason| Stall::new(wallprof_model::ThreadKey(1), reason, MonoNs(5), 20_060_000);
        let overslept = Stall { voluntary: false, asked_ns: Some(20_000_000), ..waited(sleep) };
        assert!(!is_worth_it(&overslept, Some(500_000)) && is_worth_it(&overslept, Some(60_000)));
        let timed_lock = Stall { asked_ns: Some(20_000_000), ..waited(lock) };
        assert!(is_worth_it(&timed_lock, Some(500_000)));
    }

    #[test]
    fn a_tick_comes_when_a_second_is_complete() {
        assert_eq!(until_next_second(5_000_000_000), Duration::from_nanos(SETTLE_NS));
        assert_eq!(until_next_second(5_000_000_000 + SETTLE_NS), Duration::from_secs(1));
        assert_eq!(until_next_second(5_500_000_000), Duration::from_nanos(530_000_000));
    }
}
