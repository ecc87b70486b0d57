// SPDX-License-Identifier: Apache-2.0
//! What the waits in a stack mean: `row lock of postgresql`, and whether the thread is idle in them.
//!
//! A stack has one meaning on both sides: the one that most of its time has on both together. So a place at which
//! threads wait now for this and now for that does not change its name from one recording to the next.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use wallprof_model::{Meaning, StallReason, State};

use crate::interest::Class;

/// A meaning as a diff knows it: however it was found, the same name is the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Meant {
    /// `row lock`.
    pub name: Arc<str>,
    /// `postgresql`; `None`: the meaning holds for every program.
    pub software: Option<Arc<str>>,
    pub(crate) class: Class,
}

impl Meant {
    /// `None`: the state is no wait, and means nothing else than its name.
    pub(crate) fn of(meaning: &Meaning, state: State) -> Option<Self> {
        let State::Blocked(reason) = state else { return None };
        Some(Meant {
            name: meaning.name.as_str().into(),
            software: meaning.software.as_deref().map(Arc::from),
            class: Class::of_stall(StallReason::Blocked(reason), meaning.idle, Some(meaning)),
        })
    }
}

/// `row lock of postgresql`.
impl fmt::Display for Meant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.software.as_ref().map_or(Ok(()), |software| write!(f, " of {software}"))
    }
}

/// The time of one stack by what it is said to mean.
#[derive(Clone, Debug, Default)]
pub(crate) struct Votes {
    /// All of its time, by the meaning of the place.
    places: BTreeMap<Option<Meant>, u64>,
    /// The waits that are known one by one. Words and other ends tell of each what it is for.
    waits: BTreeMap<Option<Meant>, u64>,
}

impl Votes {
    pub fn add_place(&mut self, meant: Option<Meant>, ns: u64) {
        add(&mut self.places, meant, ns);
    }

    pub fn add_wait(&mut self, meant: Option<Meant>, ns: u64) {
        add(&mut self.waits, meant, ns);
    }

    /// The waits one by one know best where they are at least half of the time.
    pub fn most(&self) -> Option<&Meant> {
        let total = |votes: &BTreeMap<_, u64>| votes.values().fold(0, |sum: u64, ns| sum.saturating_add(*ns));
        let knows_best = total(&self.waits) >= total(&self.places) / 2 && !self.waits.is_empty();
        let votes = if knows_best { &self.waits } else { &self.places };
        votes.iter().max_by_key(|(_, ns)| **ns).and_then(|(meant, _)| meant.as_ref())
    }
}

fn add(votes: &mut BTreeMap<Option<Meant>, u64>, meant: Option<Meant>, ns: u64) {
    let sum = votes.entry(meant).or_default();
    *sum = sum.saturating_add(ns);
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{MeaningSource, Reason};

    fn meaning(name: &str, idle: bool) -> Meaning {
        let software = Some("postgresql".into());
        Meaning { name: name.into(), software, idle, holder: true, source: MeaningSource::Stack }
    }

    fn meant(name: &str, idle: bool, reason: Reason) -> Option<Meant> {
        Meant::of(&meaning(name, idle), State::Blocked(reason))
    }

    #[test]
    fn meaning_decides_whether_a_wait_is_voluntary() {
        let class = |idle, reason| meant("m", idle, reason).unwrap().class;
        assert_eq!(class(false, Reason::Poll), Class::Late, "a row lock is a poll of postgresql");
        assert_eq!(class(true, Reason::Network), Class::Voluntary, "a client that is idle");
        assert_eq!(class(false, Reason::Network), Class::Peer);
        assert_eq!(Meant::of(&meaning("m", true), State::Runnable), None);
        assert_eq!(meant("row lock", false, Reason::Poll).unwrap().to_string(), "row lock of postgresql");
    }

    #[test]
    fn most_of_the_time_decides_and_single_waits_know_best() {
        let (row, idle) = (meant("row lock", false, Reason::Poll), meant("client", true, Reason::Poll));
        let mut votes = Votes::default();
        assert_eq!(votes.most(), None);
        votes.add_place(None, 100);
        votes.add_place(row.clone(), 120);
        assert_eq!(votes.most(), row.as_ref());
        votes.add_wait(idle.clone(), 60);
        assert_eq!(votes.most(), row.as_ref(), "60 of 220 ns are too few");
        votes.add_wait(None, 20);
        votes.add_wait(idle.clone(), 40);
        assert_eq!(votes.most(), idle.as_ref());
        votes.add_wait(None, u64::MAX);
        assert_eq!(votes.most(), None);
    }
}
