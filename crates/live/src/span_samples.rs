// SPDX-License-Identifier: Apache-2.0
//! Samples of a thread in spans: which of them are late is known when the span has ended.

use wallprof_model::histogram::range_from_bucket;
use wallprof_model::span::{LateSample, SpanSource};

/// Of more, each second one stands for two.
const MOST: usize = 1 << 10;

/// The length, in ns, that nineteen of twenty spans do not exceed, from their counts by bucket.
pub(crate) fn late_length(counts: impl Iterator<Item = u64> + Clone) -> u64 {
    let all = counts.clone().fold(0u64, u64::saturating_add);
    let mut longer = all;
    let shorter = counts.take_while(|count| {
        longer = longer.saturating_sub(*count);
        longer > all / 20
    });
    range_from_bucket(shorter.count() as u16).1
}

/// Samples of one thread in spans that may not have ended, by time.
#[derive(Default)]
pub(crate) struct SpanSamples(Vec<Kept>);

struct Kept {
    sample: LateSample,
    /// The sources of spans in which it is late and for which it was emitted, a bit each.
    emitted: u8,
}

impl SpanSamples {
    pub fn take(&mut self, sample: LateSample) {
        let samples = &mut self.0;
        if samples.len() >= MOST {
            let mut is_second = true;
            samples.retain_mut(|kept| {
                is_second = !is_second;
                kept.sample.ns = kept.sample.ns.saturating_mul(2);
                is_second
            });
        }
        let after = samples.partition_point(|other| other.sample.at <= sample.at);
        samples.insert(after, Kept { sample, emitted: 0 });
    }

    /// Emits the samples between two times, ns by the kernel's clock, that were not emitted for this source before.
    pub fn emit_late(&mut self, source: SpanSource, from: u64, to: u64, late: &mut Vec<LateSample>) {
        let bit = 1 << source as u8;
        let first = self.0.partition_point(|kept| kept.sample.at.0 < from);
        for kept in self.0[first..].iter_mut().take_while(|kept| kept.sample.at.0 <= to) {
            if kept.emitted & bit == 0 {
                kept.emitted |= bit;
                late.push(LateSample { source, ..kept.sample });
            }
        }
    }

    /// Forgets those before this time.
    pub fn forget(&mut self, before: u64) {
        self.0.retain(|kept| kept.sample.at.0 >= before);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use wallprof_model::{MonoNs, State, ThreadKey};

    use super::*;

    fn sample(at: u64) -> LateSample {
        let (thread, state) = (ThreadKey(7), State::User);
        let source = SpanSource::Busy;
        LateSample { thread, source, at: MonoNs(at), state, ns: 100, user: None, kernel: None }
    }

    #[test]
    fn samples_are_emitted_once_for_each_source() {
        let mut samples = SpanSamples::default();
        [53_000, 50_000, 58_000, 60_000].into_iter().for_each(|at| samples.take(sample(at)));
        let mut late = Vec::new();
        samples.emit_late(SpanSource::Code, 52_000, 59_000, &mut late);
        samples.emit_late(SpanSource::Code, 51_000, 60_000, &mut late);
        samples.emit_late(SpanSource::Usdt, 58_000, 58_000, &mut late);
        let found: Vec<_> = late.iter().map(|sample| (sample.source, sample.at.0)).collect();
        let (code, usdt) = (SpanSource::Code, SpanSource::Usdt);
        assert_eq!(found, [(code, 53_000), (code, 58_000), (code, 60_000), (usdt, 58_000)]);
        samples.forget(60_001);
        assert!(samples.is_empty());
    }

    #[test]
    fn samples_of_a_span_without_an_end_are_limited_and_keep_their_weight() {
        let mut samples = SpanSamples::default();
        (0..3 * MOST as u64).for_each(|at| samples.take(sample(at)));
        assert!(samples.0.len() <= MOST, "{}", samples.0.len());
        let weight: u64 = samples.0.iter().map(|kept| kept.sample.ns).sum();
        assert!(weight.abs_diff(3 * MOST as u64 * 100) <= 400, "{weight}");
    }
}
