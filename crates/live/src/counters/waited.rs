// SPDX-License-Identifier: Apache-2.0
//! Requests or connections that waited at one address: how many, for how long, and the counters of these.

use std::fmt::Display;

use wallprof_model::{CounterKind, CounterUnit, MonoNs};

use super::Reading;

/// A wait for less than this is not counted.
pub const LEAST_NS: u64 = 10_000_000;

/// What has waited.
#[derive(Debug, Default)]
pub struct Waited {
    pub count: u64,
    pub total_ns: u64,
    pub longest_ns: u64,
    /// Its counters have started.
    is_known: bool,
}

/// The names of the counters, before the address.
pub struct Names {
    pub total: &'static str,
    pub count: &'static str,
    pub longest: &'static str,
}

impl Waited {
    /// A wait has lasted until `end`, of which `counted_ns` are here already.
    pub fn add(&mut self, start: u64, end: u64, counted_ns: &mut u64) {
        let waited_ns = end.saturating_sub(start);
        if waited_ns < LEAST_NS {
            return;
        }
        self.count += u64::from(*counted_ns == 0);
        self.total_ns += waited_ns.saturating_sub(*counted_ns);
        self.longest_ns = self.longest_ns.max(waited_ns);
        *counted_ns = waited_ns.max(*counted_ns);
    }

    pub fn pass(
        &mut self,
        names: &Names,
        address: &dyn Display,
        at: MonoNs,
        take: &mut dyn FnMut(MonoNs, Reading<'_>),
    ) {
        let mut sum = |at, name: &str, unit, value| {
            take(at, Reading { name: &format!("{name} {address}"), kind: CounterKind::Sum, unit, value });
        };
        // A sum counts from its first value on.
        if !std::mem::replace(&mut self.is_known, true) {
            let before = MonoNs(at.0.saturating_sub(1));
            sum(before, names.total, CounterUnit::Ns, 0);
            sum(before, names.count, CounterUnit::Count, 0);
        }
        sum(at, names.total, CounterUnit::Ns, self.total_ns);
        sum(at, names.count, CounterUnit::Count, self.count);
        let (kind, unit, value) = (CounterKind::Level, CounterUnit::Ns, self.longest_ns);
        take(at, Reading { name: &format!("{} {address}", names.longest), kind, unit, value });
    }
}
