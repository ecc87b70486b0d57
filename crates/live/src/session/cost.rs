//! Losses by reason, and what the recording itself costs.

use std::sync::atomic::Ordering;

use wallprof_model::Event;
use wallprof_probe::LOSS_NAMES;

use super::{Session, SessionError};
use crate::descriptors;
use crate::kernel_side::KernelSide;

impl<K: KernelSide> Session<K> {
    /// Emits what was lost and used since the last call.
    pub(super) fn emit_cost(&mut self, emit: &mut dyn FnMut(Event)) -> Result<(), SessionError> {
        let counts = self.kernel.counts()?;
        for (index, name) in LOSS_NAMES.iter().enumerate() {
            let count = counts.losses[index].saturating_sub(self.counts.losses[index]);
            if count > 0 {
                emit(Event::Loss { reason: (*name).to_string(), count });
            }
        }
        let full = self.follower.known().take_full();
        for (reason, count) in full.into_iter().filter(|(_, count)| *count > 0) {
            emit(Event::Loss { reason: reason.into(), count });
        }
        let mappings = self.follower.known().take_losses();
        if mappings > 0 {
            emit(Event::Loss { reason: "mappings_ring_full".into(), count: mappings });
        }
        let tables = self.follower.counts();
        for (reason, count) in [
            ("unwind_tables_refused", &tables.refused),
            ("unwind_tables_over_quota", &tables.over_quota),
            ("process_mappings_over_quota", &tables.mappings_over_quota),
            ("unwind_tables_evicted", &tables.evicted),
            ("unwind_files_unreadable", &tables.unreadable),
            ("unwind_tables_over_budget", &tables.over_budget),
        ] {
            let count = count.swap(0, Ordering::Relaxed);
            if count > 0 {
                emit(Event::Loss { reason: reason.into(), count });
            }
        }
        if descriptors::are_exhausted() {
            emit(Event::Loss { reason: descriptors::EXHAUSTED.into(), count: 1 });
        }
        let cpu_ns = self.kernel.own_cpu_ns();
        emit(Event::Overhead {
            process_cpu_ns: cpu_ns - self.cpu_ns,
            probe_ns: counts.probe_ns.saturating_sub(self.counts.probe_ns),
            probe_runs: counts.probe_runs.saturating_sub(self.counts.probe_runs),
            table_bytes: self.follower.counts().bytes.load(Ordering::Relaxed),
        });
        (self.counts, self.cpu_ns) = (counts, cpu_ns);
        Ok(())
    }
}
