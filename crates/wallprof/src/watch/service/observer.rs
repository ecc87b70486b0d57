// SPDX-License-Identifier: Apache-2.0
//! The totals of a flush that the service itself needs, collected from the events.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use wallprof_model::event::Stall;
use wallprof_model::{Event, MonoNs, ThreadKey};
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
    let mut spikes = Spikes::default();
    move |event| {
        lock(&metrics).take(event);
        match event {
            Event::Stall(stall) => {
                let mut totals = totals.borrow_mut();
                totals.stalls += 1;
                let triggers =
                    triggers_snapshot(stall, snapshot_ns.get()) && lock(&metrics).raises_severity(stall);
                if spikes.is_new(stall, triggers) && totals.spike.is_none() {
                    totals.spike = Some(stall.end);
                }
            }
            Event::ThreadEnd { thread, .. } => drop(spikes.open.remove(thread)),
            Event::Overhead { process_cpu_ns, probe_ns, probe_runs, .. } => {
                let mut totals = totals.borrow_mut();
                totals.cost_ns += process_cpu_ns + probe_ns;
                totals.probe_runs += probe_runs;
            }
            _ => {}
        }
    }
}

/// A long wait comes while it is open, and again when it has ended.
#[derive(Default)]
struct Spikes {
    /// The start of the wait of each thread that triggered while it was open.
    open: HashMap<ThreadKey, MonoNs>,
}

impl Spikes {
    fn is_new(&mut self, stall: &Stall, triggers: bool) -> bool {
        if self.open.get(&stall.thread) == Some(&stall.start) {
            if !stall.open {
                self.open.remove(&stall.thread);
            }
            return false;
        }
        if triggers && stall.open {
            self.open.insert(stall.thread, stall.start);
        }
        triggers
    }
}

fn triggers_snapshot(stall: &Stall, snapshot_ns: Option<u64>) -> bool {
    !stall.is_idle() && snapshot_ns.is_some_and(|shortest| stall.late_ns() >= shortest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_that_is_seen_open_triggers_once() {
        let lock = wallprof_model::StallReason::Blocked(wallprof_model::Reason::Lock);
        let wait = |ns| Stall::new(ThreadKey(1), lock, MonoNs(5), ns);
        let mut spikes = Spikes::default();
        let mut is_new = |stall: Stall| spikes.is_new(&stall, triggers_snapshot(&stall, Some(2_000_000_000)));
        assert!(!is_new(Stall { open: true, ..wait(1_500_000_000) }), "not yet late enough");
        assert!(is_new(Stall { open: true, ..wait(2_500_000_000) }));
        assert!(!is_new(wait(3_000_000_000)), "the same wait");
        assert!(is_new(wait(3_000_000_000)), "another one");
    }

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
