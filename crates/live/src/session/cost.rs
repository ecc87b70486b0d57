// SPDX-License-Identifier: Apache-2.0
//! Losses by reason, and what the recording itself costs.

use std::sync::atomic::Ordering;

use wallprof_model::{Event, Loss};

use super::{Session, SessionError};
use crate::descriptors;
use crate::kernel_side::KernelSide;

impl<K: KernelSide> Session<K> {
    /// Emits what was lost and used since the last call.
    pub(super) fn emit_cost(&mut self, emit: &mut dyn FnMut(Event)) -> Result<(), SessionError> {
        let counts = self.kernel.counts()?;
        let mut losses = counts.losses_since(&self.counts);
        losses.push((Loss::RecordsUnknown, std::mem::take(&mut self.pending.unknown)));
        losses.extend(self.follower.known().take_full());
        losses.push((Loss::MappingsRingFull, self.follower.known().take_losses()));
        losses.extend(self.follower.counts().take_losses());
        losses.push((Loss::FileDescriptorsExhausted, descriptors::are_exhausted().into()));
        for (loss, count) in losses.into_iter().filter(|(_, count)| *count > 0) {
            emit(Event::loss(loss, count));
        }
        let cpu_ns = self.kernel.own_cpu_ns();
        emit(Event::Overhead {
            process_cpu_ns: cpu_ns - self.cpu_ns,
            probe_ns: counts.probe_ns.saturating_sub(self.counts.probe_ns),
            probe_runs: counts.probe_runs.saturating_sub(self.counts.probe_runs),
            behind_ns: counts.behind_ns.saturating_sub(self.counts.behind_ns),
            table_bytes: self.follower.counts().bytes.load(Ordering::Relaxed),
        });
        (self.counts, self.cpu_ns) = (counts, cpu_ns);
        Ok(())
    }
}
