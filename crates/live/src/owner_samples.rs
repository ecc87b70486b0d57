// SPDX-License-Identifier: Apache-2.0
//! Samples of threads that held a lock for which others waited. A wait gets the first sample of the lock's
//! owner between its start and its wakeup: one that was taken later could be after the release.

use std::collections::HashMap;
use std::ops::Range;

use wallprof_model::event::OwnerSample;
use wallprof_model::{MonoNs, StackId, ThreadKey};
use wallprof_probe::bpf::holder_sample_record;

/// A wait is emitted within a second of its end, or after it has lasted for one second.
const KEPT_NS: u64 = 10_000_000_000;

/// Time and stack of each sample, by thread and ascending.
#[derive(Default)]
pub struct OwnerSamples {
    by_thread: HashMap<u32, Vec<(u64, StackId)>>,
}

impl OwnerSamples {
    /// Adds samples whose stacks are emitted.
    pub fn add(&mut self, records: Vec<holder_sample_record>, stack: impl Fn(u64) -> Option<StackId>) {
        for record in records {
            if let Some(stack) = stack(record.user_stack) {
                self.by_thread.entry(record.key).or_default().push((record.now, stack));
            }
        }
        // Each CPU has a ring of its own.
        self.by_thread.values_mut().for_each(|samples| samples.sort_unstable());
    }

    /// The first sample of a thread in a range of time.
    pub fn first_in(&self, thread: ThreadKey, range: Range<u64>) -> Option<OwnerSample> {
        let samples = self.by_thread.get(&thread.0)?;
        let (at, user) = *samples.get(samples.partition_point(|(at, _)| *at < range.start))?;
        (at < range.end).then_some(OwnerSample { at: MonoNs(at), user })
    }

    /// Deletes samples that no wait will ask for.
    pub fn forget_before(&mut self, now: u64) {
        let oldest = now.saturating_sub(KEPT_NS);
        self.by_thread.retain(|_, samples| {
            samples.drain(..samples.partition_point(|(at, _)| *at < oldest));
            !samples.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(key: u32, now: u64, user_stack: u64) -> holder_sample_record {
        holder_sample_record { key, now, user_stack, ..Default::default() }
    }

    fn samples() -> OwnerSamples {
        let mut samples = OwnerSamples::default();
        // The rings of two CPUs, one after the other.
        let records = vec![sample(7, 300, 3), sample(8, 210, 9), sample(7, 200, 2), sample(7, 250, 0)];
        samples.add(records, |id| (id != 0).then_some(StackId(id)));
        samples
    }

    #[test]
    fn first_sample_within_the_wait_is_found() {
        let found = |range| samples().first_in(ThreadKey(7), range).map(|found| (found.at.0, found.user.0));
        assert_eq!(found(100..400), Some((200, 2)));
        assert_eq!(found(201..400), Some((300, 3)), "the one without a stack is none");
        assert_eq!(found(200..201), Some((200, 2)));
    }

    #[test]
    fn sample_before_the_wait_or_after_its_wakeup_is_none() {
        let found = |range| samples().first_in(ThreadKey(7), range);
        assert_eq!((found(301..400), found(210..300), found(100..200)), (None, None, None));
        assert_eq!(samples().first_in(ThreadKey(6), 0..1_000), None);
    }

    #[test]
    fn old_samples_are_forgotten() {
        let mut samples = samples();
        samples.forget_before(KEPT_NS + 250);
        assert_eq!(samples.first_in(ThreadKey(7), 0..400).map(|found| found.at.0), Some(300));
        assert!(!samples.by_thread.contains_key(&8));
    }
}
