// SPDX-License-Identifier: Apache-2.0
//! Waits that a recording keeps one by one: when each began and how long it lasted.

use wallprof_model::profile::StallRecord;
use wallprof_model::{MonoNs, StallReason, State};

/// Waits in the order in which they began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    entries: Vec<(MonoNs, u64)>,
}

impl Waits {
    /// Takes a wait that began at `start` and lasted `ns`. Cheap when they come in order.
    pub fn add(&mut self, start: MonoNs, ns: u64) {
        let at = self.entries.partition_point(|(known, _)| *known <= start);
        self.entries.insert(at, (start, ns));
    }

    /// The waits of all of these.
    pub fn merged<'w>(all: impl Iterator<Item = &'w Waits>) -> Self {
        let mut entries: Vec<(MonoNs, u64)> = all.flat_map(Waits::iter).collect();
        entries.sort_unstable();
        Waits { entries }
    }

    pub fn count(&self) -> usize {
        self.entries.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (MonoNs, u64)> + '_ {
        self.entries.iter().copied()
    }

    pub fn total_ns(&self) -> u64 {
        self.entries.iter().fold(0, |sum: u64, (_, ns)| sum.saturating_add(*ns))
    }
}

/// The state of a stall whose length the program decides, and that length: up to the wakeup. `None` for
/// waits for a CPU, whose length depends on the other load of the machine, and for a wait that had not
/// ended.
pub(crate) fn wait_of(stall: &StallRecord) -> Option<(State, u64)> {
    match stall.reason {
        StallReason::Blocked(reason) if !stall.open && stall.blocked_ns > 0 => {
            Some((State::Blocked(reason), stall.blocked_ns))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_in_order_however_they_come() {
        let mut waits = Waits::default();
        [(5, 50), (2, 20), (9, u64::MAX)].into_iter().for_each(|(start, ns)| waits.add(MonoNs(start), ns));
        let starts: Vec<u64> = waits.iter().map(|(start, _)| start.0).collect();
        assert_eq!((starts, waits.count()), (vec![2, 5, 9], 3));
        assert_eq!(waits.total_ns(), u64::MAX, "hostile lengths saturate");
    }
}
