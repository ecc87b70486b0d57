// SPDX-License-Identifier: Apache-2.0
//! The totals of a flush that the service itself needs, collected from the events.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use wallprof_model::event::Stall;
use wallprof_model::{Event, MonoNs};
use wallprof_watch::Metrics;

use super::lock;
use crate::watch::settings::Settings;

/// Totals since the last flush.
#[derive(Default)]
pub(super) struct Totals {
    pub stalls: u64,
    /// The end of the first stall that is late enough for a snapshot.
    pub spike: Option<MonoNs>,
    /// CPU time of the process and of the BPF programs.
    pub cost_ns: u64,
    pub probe_runs: u64,
}

/// The shortest lateness of a stall that triggers a snapshot, ns.
pub(super) fn snapshot_lateness_ns(settings: &Settings) -> Option<u64> {
    settings.on.as_deref().and_then(|name| settings.severities.least_ns(name))
}

/// Passes each event to the metrics, and adds it to the totals.
pub(super) fn observer(
    metrics: Arc<Mutex<Metrics>>,
    totals: Rc<RefCell<Totals>>,
    snapshot_ns: Rc<Cell<Option<u64>>>,
) -> impl FnMut(&Event) + 'static {
    move |event| {
        lock(&metrics).take(event);
        match event {
            Event::Stall(stall) => {
                let mut totals = totals.borrow_mut();
                totals.stalls += 1;
                let is_spike = triggers_snapshot(stall, snapshot_ns.get());
                if totals.spike.is_none() && is_spike && lock(&metrics).raises_severity(stall) {
                    totals.spike = Some(stall.end);
                }
            }
            Event::Overhead { process_cpu_ns, probe_ns, probe_runs, .. } => {
                let mut totals = totals.borrow_mut();
                totals.cost_ns += process_cpu_ns + probe_ns;
                totals.probe_runs += probe_runs;
            }
            _ => {}
        }
    }
}

fn triggers_snapshot(stall: &Stall, snapshot_ns: Option<u64>) -> bool {
    !stall.is_idle() && snapshot_ns.is_some_and(|shortest| stall.late_ns() >= shortest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_is_triggered_by_lateness() {
        let reason = |reason| wallprof_model::StallReason::Blocked(reason);
        let (sleep, lock) = (reason(wallprof_model::Reason::Sleep), reason(wallprof_model::Reason::Lock));
        let waited = |reason| Stall::new(wallprof_model::ThreadKey(1), reason, MonoNs(5), 20_060_000);
        let overslept = Stall { voluntary: false, asked_ns: Some(20_000_000), ..waited(sleep) };
        assert!(!triggers_snapshot(&overslept, Some(500_000)) && triggers_snapshot(&overslept, Some(60_000)));
        let timed_lock = Stall { asked_ns: Some(20_000_000), ..waited(lock) };
        assert!(triggers_snapshot(&timed_lock, Some(500_000)));
    }
}
