// SPDX-License-Identifier: Apache-2.0
//! `wallprof top`: the watcher with a screen in place of its port.
//!
//! The same engine, flight recording and snapshots as `watch`. The screen has each second at its end, the
//! flight recording several at once: nothing but `w` reads it. While little happens, the sums that the screen does
//! not show stay in the kernel side's maps for as long as `watch` lets whole seconds wait. The recording is a file in
//! a temporary folder, which is removed at the end.

mod activity;
mod keys;
mod names;
mod screen;
mod terminal;

use std::cell::RefCell;
use std::env;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, channel};

use wallprof_live::Pending;
use wallprof_model::Event;
use wallprof_probe::clock;
use wallprof_probe::facts::files::HostFiles;
use wallprof_watch::{Activity, FlushInterval};

use super::commands::Reply;
use super::service::until_next_second;
use super::settings::Settings;
use super::signals::{Signals, descriptor, taken};
use super::snapshots::Snapshots;
use crate::args::{TopArgs, WatchArgs};
use crate::descriptors;
use crate::failure::Failure;
use crate::record::{Engine, Setup, check_exists, check_permitted, ready};
use activity::ThreadsNow;
use keys::Key;
use names::Names;
use screen::{Choice, Shown, selected};
use terminal::Screen;

const NO_TARGET: &str =
    "no target was given: give processes (-p PID), names (--name GLOB) or everything (-a)";
/// The time that a written recording covers.
const KEEP: &str = "1m";

/// What the events have said so far.
#[derive(Default)]
struct Live {
    threads: ThreadsNow,
    names: Names,
    /// Since the sums were read.
    activity: Activity,
}

struct Top {
    engine: Engine,
    live: Rc<RefCell<Live>>,
    snapshots: Snapshots,
    /// How long the sums stay in the kernel side's maps.
    sums: FlushInterval,
    /// A key was typed since the last flush: the user sees what there is by now.
    typed: bool,
    written: Option<Receiver<Reply>>,
    choice: Choice,
    /// What a frozen screen shows. Recording goes on.
    frozen: Option<ThreadsNow>,
    screen: Screen,
    /// The bytes of the last screen.
    drawn: Vec<u8>,
    colour: bool,
    failures: u32,
}

/// Runs the command.
pub fn run(args: TopArgs) -> Result<ExitCode, Failure> {
    if !args.all && args.pids.is_empty() && args.names.is_empty() {
        return Err(Failure::usage(NO_TARGET));
    }
    let term = env::var("TERM").ok();
    terminal::check(term.as_deref())?;
    let folder = tempfile::tempdir().map_err(|error| {
        let parent = env::temp_dir();
        Failure::failed(format!("cannot create a folder in {}: {error}: set TMPDIR", parent.display()))
    })?;
    let settings = Settings::read(&watch_args(args, folder.path().join("top.db")))?;
    check_exists(&settings.record, &HostFiles)?;
    check_permitted(&HostFiles)?;
    descriptors::raise_limit();
    let signals = Signals::install().map_err(|error| lost_terminal(&error))?;
    let resized = descriptor(&[signal_hook::consts::SIGWINCH]).map_err(|error| lost_terminal(&error))?;
    let mut engine = Engine::prepare(Setup::new(&settings.record, &HostFiles)?, None)?;
    let live = Rc::new(RefCell::new(Live::default()));
    engine.observe(observer(Rc::clone(&live)));
    let here = PathBuf::from(".");
    let snapshots = Snapshots::new(engine.path(), here, settings.record.rules.clone());
    engine.arm();
    engine.report_existing_threads()?;
    let colour = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && !term.is_some_and(|term| term.starts_with("vt"));
    let screen = Screen::enter().map_err(|error| lost_terminal(&error))?;
    let mut top = Top {
        engine,
        live,
        snapshots,
        sums: FlushInterval::default(),
        typed: false,
        written: None,
        choice: Choice::default(),
        frozen: None,
        screen,
        drawn: Vec::new(),
        colour,
        failures: 0,
    };
    let ended = top.show(&signals, &resized);
    let Top { engine, mut snapshots, screen, .. } = top;
    drop(screen);
    snapshots.finish();
    engine.finish()?;
    ended.map(|()| ExitCode::SUCCESS)
}

/// The watcher that measures the same.
fn watch_args(args: TopArgs, recording: PathBuf) -> WatchArgs {
    WatchArgs {
        pids: args.pids,
        names: args.names,
        all: args.all,
        output: Some(recording.to_string_lossy().into_owned()),
        keep: Some(KEEP.into()),
        meaning: args.meaning,
        ..WatchArgs::default()
    }
}

fn observer(live: Rc<RefCell<Live>>) -> impl FnMut(&Event) + 'static {
    move |event| {
        let mut live = live.borrow_mut();
        live.names.take(event);
        live.threads.take(event);
        match event {
            Event::Stall(_) => live.activity.stalls += 1,
            Event::Overhead { probe_runs, .. } => live.activity.probe_runs += probe_runs,
            _ => {}
        }
    }
}

impl Top {
    /// Until a key or a signal ends it.
    fn show(&mut self, signals: &Signals, resized: &UnixStream) -> Result<(), Failure> {
        let stdin = io::stdin();
        loop {
            self.draw()?;
            let mut waiting = signals.descriptors().to_vec();
            waiting.extend([resized.as_fd(), stdin.as_fd()]);
            let tick = until_next_second(clock::anchor().epoch.0);
            let arrived = ready(&waiting, Some(tick)).map_err(|error| lost_terminal(&error))?;
            let signal = signals.take();
            // SIGHUP: the terminal is gone.
            if signal.stop || signal.reload {
                return Ok(());
            }
            if signal.snapshot {
                self.write_recording();
            }
            taken(resized);
            if arrived.last() == Some(&true) && !self.read_keys()? {
                return Ok(());
            }
            self.drain()?;
        }
    }

    /// Reads what was typed. False if that ends the program.
    fn read_keys(&mut self) -> Result<bool, Failure> {
        let mut bytes = [0; 256];
        let count = match rustix::io::read(io::stdin(), &mut bytes) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => return Ok(true),
            Err(error) => return Err(lost_terminal(&error.into())),
        };
        self.typed = true;
        Ok(keys::keys(&bytes[..count]).into_iter().all(|key| self.obey(key)))
    }

    /// False if the key ends the program.
    fn obey(&mut self, key: Key) -> bool {
        if self.choice.types_filter && key != Key::Interrupt {
            self.type_filter(key);
            return true;
        }
        self.choice.message = None;
        match key {
            Key::Char('q') | Key::Interrupt => return false,
            Key::Char('s') => self.choice.order = self.choice.order.next(),
            Key::Char('/') => self.choice.types_filter = true,
            Key::Char('f' | ' ') => self.freeze(),
            Key::Char('k') => self.choice.kernel = !self.choice.kernel,
            Key::Char('h' | '?') => self.choice.help = !self.choice.help,
            Key::Char('w') => self.write_recording(),
            Key::Up => self.select(|at| at.saturating_sub(1)),
            Key::Down => self.select(|at| at + 1),
            Key::Escape => self.choice.help = false,
            Key::Char(_) | Key::Enter | Key::Backspace => {}
        }
        true
    }

    fn type_filter(&mut self, key: Key) {
        let Choice { filter, types_filter, .. } = &mut self.choice;
        match key {
            Key::Char(typed) => filter.push(typed),
            Key::Backspace => drop(filter.pop()),
            Key::Enter => *types_filter = false,
            Key::Escape => {
                filter.clear();
                *types_filter = false;
            }
            Key::Up | Key::Down | Key::Interrupt => {}
        }
    }

    fn select(&mut self, moved: impl Fn(usize) -> usize) {
        let live = self.live.borrow();
        let threads = self.frozen.as_ref().unwrap_or(&live.threads);
        let sorted = threads.sorted(self.choice.order, &self.choice.filter);
        if let Some((at, _)) = selected(&sorted, &self.choice) {
            let to = moved(at).min(sorted.len() - 1);
            self.choice.selected = sorted.get(to).map(|thread| thread.key);
        }
    }

    /// Starts to write the last minute, up to the last flush.
    fn write_recording(&mut self) {
        if self.written.is_some() {
            self.choice.message = Some("A recording is being written: wait for it.".into());
            return;
        }
        if let Err(failure) = self.engine.commit_flushed() {
            self.choice.message = Some(failure.message);
            return;
        }
        let (reply, written) = channel();
        self.snapshots.start_by_hand(clock::mono_now(), Some(reply));
        self.written = Some(written);
        self.choice.message = Some("Writing a recording of the last minute".into());
    }

    /// Drains the rings, flushes the complete seconds, and looks whether a recording was written.
    fn drain(&mut self) -> Result<(), Failure> {
        const MAX_FAILURES: u32 = 60;
        let before = self.live.borrow().activity;
        let is_due = |pending: &Pending| self.typed || self.sums.is_due(with(before, pending));
        match self.engine.drain_and_observe(&is_due) {
            Ok(None) => {}
            Ok(Some(flushed)) => {
                (self.failures, self.typed) = (0, false);
                let mut live = self.live.borrow_mut();
                live.activity.seconds += flushed.seconds;
                if flushed.sums {
                    self.sums.flushed(std::mem::take(&mut live.activity));
                    self.engine.keep_seconds_pending(self.sums.is_long());
                }
                live.threads.flushed(flushed.until);
                self.snapshots.proceed(flushed.until);
            }
            Err(failure) if self.failures >= MAX_FAILURES => return Err(failure),
            Err(failure) => {
                self.failures += 1;
                self.choice.message = Some(failure.message);
            }
        }
        if let Some(reply) = self.written.as_ref().and_then(|written| written.try_recv().ok()) {
            self.written = None;
            self.choice.message = Some(match reply {
                Reply::Done(path) => format!("Written: {path}"),
                Reply::Refused(why) | Reply::Failed(why) => format!("No recording was written: {why}"),
            });
        }
        Ok(())
    }
}

impl Top {
    fn freeze(&mut self) {
        self.frozen = match self.frozen {
            Some(_) => None,
            None => Some(self.live.borrow().threads.clone()),
        };
        self.choice.frozen = self.frozen.is_some();
    }

    /// Draws the screen if it has changed.
    fn draw(&mut self) -> Result<(), Failure> {
        let (width, height) = self.screen.size();
        let live = self.live.borrow();
        let shown = Shown {
            target: self.engine.target(),
            threads: self.frozen.as_ref().unwrap_or(&live.threads),
            names: &live.names,
            choice: &self.choice,
        };
        let bytes = screen::bytes(&screen::lines(&shown, width, height), self.colour);
        if bytes == self.drawn {
            return Ok(());
        }
        self.screen.write(&bytes).map_err(|error| lost_terminal(&error))?;
        self.drawn = bytes;
        Ok(())
    }
}

/// The activity since the sums were read, with what is pending.
fn with(before: Activity, pending: &Pending) -> Activity {
    Activity {
        seconds: before.seconds + pending.seconds,
        stalls: before.stalls + pending.stalls,
        probe_runs: before.probe_runs + pending.runs,
    }
}

fn lost_terminal(error: &io::Error) -> Failure {
    Failure::failed(format!("cannot use the terminal: {error}: start it again"))
}
