// SPDX-License-Identifier: Apache-2.0
//! Orders to the service, and the hours of measuring.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use wallprof_model::Mark;
use wallprof_probe::clock;
use wallprof_watch::Notice;

use super::{Service, lock};
use crate::failure::{Failure, say};
use crate::watch::commands::{Command, Order, Reply};

/// Marks of a minute: any client of the port may send them.
const MOST_MARKS: usize = 100;

/// When the last marks came.
#[derive(Default)]
pub(super) struct MarkTimes(VecDeque<Instant>);

impl MarkTimes {
    fn may_mark(&mut self, now: Instant) -> bool {
        while self.0.front().is_some_and(|at| now.duration_since(*at) >= Duration::from_secs(60)) {
            self.0.pop_front();
        }
        let may = self.0.len() < MOST_MARKS;
        if may {
            self.0.push_back(now);
        }
        may
    }
}

impl Service {
    /// Arms or disarms, as the hours and orders say.
    pub(super) fn follow_schedule(&mut self) -> Result<(), Failure> {
        let wanted = self.schedule.is_armed(jiff::Zoned::now().time());
        if wanted == self.is_armed() {
            return Ok(());
        }
        let now = clock::mono_now();
        let changed = if wanted { self.arm() } else { self.disarm() };
        self.shorten_flush_interval();
        // Also where what came before could not be written.
        if wanted == self.is_armed() {
            if let Some(tables) = &mut self.tables {
                tables.set_armed(wanted, now);
            }
            self.show_armed();
        }
        changed
    }

    fn is_armed(&self) -> bool {
        self.started && !self.engine.is_paused()
    }

    fn arm(&mut self) -> Result<(), Failure> {
        if self.started {
            self.engine.resume()
        } else {
            self.engine.arm();
            self.engine.report_existing_threads()?;
            self.started = true;
            Ok(())
        }
    }

    fn disarm(&mut self) -> Result<(), Failure> {
        if self.started { self.engine.pause() } else { Ok(()) }
    }

    fn show_armed(&self) {
        let armed = self.is_armed();
        lock(&self.metrics).set_armed(armed);
        let state = if armed { "armed" } else { "disarmed" };
        say(state);
        self.notifier.send(Notice::Watchdog, &self.status_line());
    }

    /// Carries out an order. All complete seconds have been flushed before.
    pub(super) fn obey(&mut self, command: Command) {
        if command.order != Order::Refresh {
            self.shorten_flush_interval();
        }
        let wanted = match command.order {
            Order::Refresh | Order::RefreshAndStayFresh => {
                return drop(command.reply.send(Reply::Done(String::new())));
            }
            Order::Arm => true,
            Order::Disarm => false,
            Order::Status => return drop(command.reply.send(Reply::Done(self.status()))),
            Order::Mark(mark) => {
                let reply = self.mark(mark);
                return drop(command.reply.send(reply));
            }
            Order::Snapshot => return self.snapshots.start_by_hand(clock::mono_now(), Some(command.reply)),
        };
        self.schedule.override_until_change(wanted, jiff::Zoned::now().time());
        let reply = match self.follow_schedule() {
            Ok(()) => Reply::Done(self.status_line()),
            Err(failure) => Reply::Failed(failure.message),
        };
        // An error means that the client has closed the connection.
        let _ = command.reply.send(reply);
    }

    fn mark(&mut self, mark: Mark) -> Reply {
        if !self.is_armed() {
            return Reply::Refused("disarmed: there is nothing to mark".into());
        }
        if !self.mark_times.may_mark(Instant::now()) {
            return Reply::Refused("more than 100 marks in a minute: this one was left out".into());
        }
        match self.engine.mark(mark) {
            Ok(()) => Reply::Done("marked".into()),
            Err(failure) => Reply::Failed(failure.message),
        }
    }

    pub(super) fn status_line(&self) -> String {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_a_minute_are_limited() {
        let (mut times, start) = (MarkTimes::default(), Instant::now());
        assert!((0..MOST_MARKS).all(|_| times.may_mark(start)));
        assert!(!times.may_mark(start + Duration::from_secs(59)));
        assert!(times.may_mark(start + Duration::from_secs(60)));
    }
}
