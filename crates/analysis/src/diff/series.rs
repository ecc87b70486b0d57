// SPDX-License-Identifier: Apache-2.0
//! Time by second, sparse: the time of a stack or a state in each second in which it has any.

use wallprof_model::EpochSecond;

/// Nanoseconds by second, and the uncertainty of their sum that sampling alone causes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Series {
    /// In order, each second once.
    entries: Vec<(EpochSecond, u64)>,
    /// Variance of the sum, in ns², if each sample is one of independent ones: the sum of the squares of
    /// their weights. Intervals that were measured whole add nothing.
    sampling_variance: f64,
}

impl Series {
    pub fn add(&mut self, second: EpochSecond, ns: u64) {
        if ns == 0 {
            return;
        }
        match self.entries.last_mut() {
            Some((last, sum)) if *last == second => *sum = sum.saturating_add(ns),
            Some((last, _)) if *last > second => self.insert(second, ns),
            _ => self.entries.push((second, ns)),
        }
    }

    fn insert(&mut self, second: EpochSecond, ns: u64) {
        match self.entries.binary_search_by_key(&second, |(at, _)| *at) {
            Ok(at) => self.entries[at].1 = self.entries[at].1.saturating_add(ns),
            Err(at) => self.entries.insert(at, (second, ns)),
        }
    }

    /// Adds `count` samples that weigh `ns` together.
    pub fn add_samples(&mut self, second: EpochSecond, ns: u64, count: u64) {
        self.add(second, ns);
        self.sampling_variance += (ns as f64).powi(2) / count.max(1) as f64;
    }

    pub fn add_all(&mut self, other: &Series) {
        self.sampling_variance += other.sampling_variance;
        if self.entries.is_empty() {
            self.entries.clone_from(&other.entries);
            return;
        }
        let mut merged = Vec::with_capacity(self.entries.len().max(other.entries.len()));
        let (mut own, mut others) = (self.entries.iter().peekable(), other.entries.iter().peekable());
        loop {
            let (left, right) = (own.peek(), others.peek());
            let next = match (left, right) {
                (Some(left), Some(right)) if left.0 == right.0 => {
                    let sum = (left.0, left.1.saturating_add(right.1));
                    own.next();
                    others.next();
                    Some(sum)
                }
                (Some(left), Some(right)) if left.0 > right.0 => others.next().copied(),
                (None, _) => others.next().copied(),
                _ => own.next().copied(),
            };
            let Some(next) = next else { break };
            merged.push(next);
        }
        self.entries = merged;
    }

    /// Every second times `of` / `whole`.
    pub fn scaled(&self, of: u64, whole: u64) -> Series {
        let factor = of as f64 / whole.max(1) as f64;
        let scale = |ns: u64| {
            let scaled = u128::from(ns) * u128::from(of) / u128::from(whole.max(1));
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        Series {
            entries: self.entries.iter().map(|&(second, ns)| (second, scale(ns))).collect(),
            sampling_variance: self.sampling_variance * factor * factor,
        }
    }

    /// Marks the division of this time as a guess: as uncertain as one sample.
    pub fn guessed(mut self) -> Series {
        self.sampling_variance = (self.total_ns() as f64).powi(2);
        self
    }

    /// The rest without `part`. A second in which the part is larger takes from the seconds after it: a
    /// stack may carry time of the second before. The sum is exact, or nothing.
    pub fn without(&self, part: &Series) -> Series {
        let mut rest = Series::default();
        let mut owed: u128 = 0;
        let mut parts = part.entries.iter().peekable();
        for &(second, ns) in &self.entries {
            while let Some((_, taken)) = parts.next_if(|(at, _)| *at <= second) {
                owed += u128::from(*taken);
            }
            let left = u128::from(ns).saturating_sub(owed);
            owed = owed.saturating_sub(u128::from(ns));
            rest.add(second, left as u64);
        }
        owed += parts.map(|(_, taken)| u128::from(*taken)).sum::<u128>();
        rest.take_from_end(owed);
        rest
    }

    fn take_from_end(&mut self, mut owed: u128) {
        while let Some((_, ns)) = self.entries.last_mut().filter(|_| owed > 0) {
            let taken = u128::from(*ns).min(owed);
            *ns -= taken as u64;
            owed -= taken;
            if *ns == 0 {
                self.entries.pop();
            }
        }
    }

    pub fn entries(&self) -> &[(EpochSecond, u64)] {
        &self.entries
    }

    pub fn sampling_variance(&self) -> f64 {
        self.sampling_variance
    }

    pub fn total_ns(&self) -> u64 {
        self.entries.iter().fold(0, |sum: u64, (_, ns)| sum.saturating_add(*ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn series(entries: &[(u32, u64)]) -> Series {
        let mut series = Series::default();
        entries.iter().for_each(|&(second, ns)| series.add(EpochSecond(second), ns));
        series
    }

    #[test]
    fn time_carried_over_is_taken_from_the_next_second() {
        let whole = series(&[(1, 100), (2, 100), (3, 100)]);
        assert_eq!(whole.without(&series(&[(1, 40), (2, 120), (3, 60)])), series(&[(1, 60), (3, 20)]));
        assert_eq!(whole.without(&series(&[(3, 150)])), series(&[(1, 100), (2, 50)]));
        assert_eq!(whole.without(&series(&[(9, 500)])), Series::default());
        assert_eq!(whole.without(&Series::default()), whole);
    }

    #[test]
    fn samples_are_uncertain_and_intervals_are_not() {
        let mut sampled = Series::default();
        sampled.add_samples(EpochSecond(1), 40, 4);
        assert_eq!(sampled.sampling_variance(), 400.0);
        assert_eq!(sampled.scaled(20, 40).sampling_variance(), 100.0);
        assert_eq!(series(&[(1, 40)]).sampling_variance(), 0.0);
        assert_eq!(series(&[(1, 30), (2, 10)]).guessed().sampling_variance(), 1600.0);
    }

    #[test]
    fn damaged_numbers_saturate() {
        let mut huge = series(&[(1, u64::MAX), (1, 5), (2, u64::MAX)]);
        huge.add_all(&huge.clone());
        assert_eq!(huge.total_ns(), u64::MAX);
        assert_eq!(huge.scaled(u64::MAX, 1).total_ns(), u64::MAX);
        assert_eq!(huge.scaled(1, 0).total_ns(), u64::MAX);
        assert_eq!(series(&[(1, 5)]).without(&huge), Series::default());
    }

    proptest! {
        #[test]
        fn sums_and_rests_are_exact(
            a in proptest::collection::vec((0..9u32, 0..1_000u64), 0..20),
            b in proptest::collection::vec((0..9u32, 0..1_000u64), 0..20),
        ) {
            let (a, b) = (series(&a), series(&b));
            let mut sum = a.clone();
            sum.add_all(&b);
            prop_assert_eq!(sum.total_ns(), a.total_ns() + b.total_ns());
            prop_assert!(sum.entries().windows(2).all(|pair| pair[0].0 < pair[1].0));
            prop_assert_eq!(a.without(&b).total_ns(), a.total_ns().saturating_sub(b.total_ns()));
            prop_assert_eq!(sum.without(&b).total_ns(), a.total_ns());
        }
    }
}
