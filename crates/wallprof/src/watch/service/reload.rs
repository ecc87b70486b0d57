// SPDX-License-Identifier: Apache-2.0
//! A changed configuration and a changed pace of stacks.

use wallprof_probe::clock;
use wallprof_watch::{Notice, Pace};

use super::observer::snapshot_lateness_ns;
use super::{Service, lock};
use crate::failure::say;
use crate::record::RecordOptions;
use crate::watch::settings::Settings;

impl Service {
    /// Reads the configuration again. A wrong one changes nothing.
    pub(super) fn reload(&mut self) {
        self.notifier.send(Notice::Reloading(clock::mono_now()), "reading the configuration");
        match Settings::read(&self.args) {
            Ok(new) => self.change(new),
            Err(failure) => say(&format!("{}; everything stays as it was", failure.message)),
        }
        self.notifier.send(Notice::Ready, &self.status_line());
    }

    fn change(&mut self, new: Settings) {
        let fixed = self.settings.fixed_differences(&new);
        if !fixed.is_empty() {
            say(&format!("{} stays as it was until a restart", fixed.join(", ")));
        }
        lock(&self.metrics).set_severities(new.severities.clone());
        self.snapshot_ns.set(snapshot_lateness_ns(&new));
        if new.record.min_stall_ns != self.settings.record.min_stall_ns {
            let said = self.engine.set_min_stall(new.record.min_stall_ns);
            said.unwrap_or_else(|failure| say(&failure.message));
        }
        self.budget.change(new.max_cpu, new.record.min_stall_ns);
        self.apply_pace(self.budget.pace());
        self.schedule.set_hours(new.hours);
        self.snapshots.set_folder(new.snapshots.clone());
        let Settings { listen, socket, record, max_series, label_containers, .. } = self.settings.clone();
        let min_stall_ns = new.record.min_stall_ns;
        let record = RecordOptions { min_stall_ns, ..record };
        self.settings = Settings { listen, socket, record, max_series, label_containers, ..new };
        say("the configuration is in force");
    }

    pub(super) fn change_pace(&mut self, pace: Pace) {
        say(&format!("watching uses {:.2} % of one CPU: from now on {pace}", self.budget.cost() * 100.0));
        self.apply_pace(pace);
    }

    fn apply_pace(&mut self, pace: Pace) {
        self.engine.set_pace(pace.stride, pace.stack_ns);
        self.show_pace(pace);
    }

    pub(super) fn show_pace(&self, pace: Pace) {
        let hertz = f64::from(self.settings.record.sample_hz) / f64::from(pace.stride);
        lock(&self.metrics).set_pace(hertz, pace.stack_ns);
    }
}
