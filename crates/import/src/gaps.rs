// SPDX-License-Identifier: Apache-2.0
//! Gaps in traces, counted by cause and named as losses of a recording.

use std::collections::BTreeMap;

use wallprof_intel_pt::GapCause;
use wallprof_model::Loss;

/// Gaps by their cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gaps {
    by_cause: BTreeMap<GapCause, u64>,
    /// Parts of the input that were left out.
    pub left_out: u64,
    /// Pieces of traces without a synchronisation point.
    pub unsynchronised: u64,
    /// Pieces of traces without a time.
    pub untimed: u64,
    /// Cycle counts that were implausible.
    pub corrected_times: u64,
}

impl Gaps {
    pub(crate) fn add(&mut self, cause: GapCause, count: u64) {
        *self.by_cause.entry(cause).or_default() += count;
    }

    pub(crate) fn merge(&mut self, other: &Gaps) {
        other.by_cause.iter().for_each(|(&cause, &count)| self.add(cause, count));
        self.left_out += other.left_out;
        self.unsynchronised += other.unsynchronised;
        self.untimed += other.untimed;
        self.corrected_times += other.corrected_times;
    }

    /// As losses of a recording.
    pub(crate) fn losses(&self) -> impl Iterator<Item = (Loss, u64)> + '_ {
        let by_cause = self.by_cause.iter().map(move |(&cause, &count)| (reason(cause), count));
        let others = [
            (Loss::TracePartsLeftOut, self.left_out),
            (Loss::TraceWithoutSynchronisation, self.unsynchronised),
            (Loss::TraceWithoutTime, self.untimed),
            (Loss::TraceTimesCorrected, self.corrected_times),
        ];
        by_cause.chain(others.into_iter().filter(|(_, count)| *count > 0))
    }
}

/// The loss that a cause is.
fn reason(cause: GapCause) -> Loss {
    match cause {
        GapCause::Overflow => Loss::TraceOverflows,
        GapCause::LostData => Loss::TraceDataLost,
        GapCause::BadPacket => Loss::TraceBadPackets,
        GapCause::NoCode => Loss::TraceWithoutCode,
        GapCause::Mismatch => Loss::TraceAndCodeDiffer,
        GapCause::UnknownReturn => Loss::TraceUnknownReturns,
        GapCause::Endless => Loss::TraceEndlessCode,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_a_loss_of_its_own() {
        let mut gaps = Gaps::default();
        gaps.add(GapCause::Overflow, 2);
        let mut all = Gaps { left_out: 1, unsynchronised: 4, ..Gaps::default() };
        all.add(GapCause::Overflow, 1);
        all.add(GapCause::NoCode, 5);
        all.merge(&gaps);
        let losses: BTreeMap<_, _> = all.losses().collect();
        let expected = [
            (Loss::TracePartsLeftOut, 1),
            (Loss::TraceOverflows, 3),
            (Loss::TraceWithoutCode, 5),
            (Loss::TraceWithoutSynchronisation, 4),
        ];
        assert_eq!(losses.into_iter().collect::<Vec<_>>(), expected);
        assert_eq!(Gaps::default().losses().count(), 0);
    }
}
