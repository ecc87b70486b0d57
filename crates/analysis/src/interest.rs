// SPDX-License-Identifier: Apache-2.0
//! Which states made a thread late, and which threads a report shows first.

use wallprof_model::profile::Thread;
use wallprof_model::{Meaning, Reason, StallReason, State};

use crate::ledger::{Account, States};

/// A state's relation to lateness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// User and kernel code of its own.
    Running,
    /// Time that the thread did not ask for: the run queue, locks, disks, memory, faults, interrupts, stops.
    Late,
    /// Waits for data or an answer of others, which is lateness or idleness: network, pipe, ipc, other.
    Peer,
    /// Voluntary waits.
    Voluntary,
}

impl Class {
    pub const ALL: [Class; 4] = [Class::Running, Class::Late, Class::Peer, Class::Voluntary];

    pub fn of(state: State) -> Self {
        match state {
            State::User | State::Kernel | State::Cpu => Class::Running,
            State::Irq | State::FaultMinor | State::FaultMajor | State::Runnable | State::Preempted => {
                Class::Late
            }
            State::Blocked(reason) => Class::of_reason(reason),
        }
    }

    /// A wait for a voluntary reason that is not `voluntary` is lateness: the thread overslept. A poll until the other
    /// end of a connection has answered is a wait for that end, as a read is.
    pub fn of_stall(reason: StallReason, voluntary: bool, meaning: Option<&Meaning>) -> Self {
        match reason {
            _ if voluntary => Class::Voluntary,
            StallReason::Preempted | StallReason::Runnable | StallReason::Minor | StallReason::Major => {
                Class::Late
            }
            StallReason::Blocked(_) if meaning.is_some_and(Meaning::is_for_the_other_end) => Class::Peer,
            StallReason::Blocked(reason) if reason.is_voluntary() => Class::Late,
            StallReason::Blocked(reason) => Class::of_reason(reason),
        }
    }

    fn of_reason(reason: Reason) -> Self {
        match reason {
            Reason::Lock | Reason::Disk | Reason::Memory | Reason::Stopped => Class::Late,
            Reason::Network | Reason::Pipe | Reason::Ipc | Reason::Other => Class::Peer,
            Reason::Wait | Reason::Poll | Reason::Sleep | Reason::Child => Class::Voluntary,
        }
    }
}

/// Nanoseconds in all states of one class.
pub fn class_ns(states: &States, class: Class) -> u64 {
    let of_class = states.iter().filter(|(state, _)| Class::of(*state) == class);
    of_class.fold(0, |sum, (_, ns)| sum.saturating_add(ns))
}

/// Indices into `threads`, the most interesting first: most lateness, then most running time, then
/// by tid. `accounts` are those of `threads`.
pub fn order(threads: &[Thread], accounts: &[Account]) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..threads.len().min(accounts.len())).collect();
    indices.sort_by_cached_key(|&index| {
        let (info, states) = (&threads[index].info, &accounts[index].states);
        let late = class_ns(states, Class::Late);
        (std::cmp::Reverse((late, accounts[index].on_cpu_ns)), info.pid, info.tid, info.key)
    });
    indices
}

/// Whether a thread was idle: less than a thousandth of its time running or late, and late for less than a
/// millisecond.
pub fn is_idle(account: &Account) -> bool {
    let late_ns = class_ns(&account.states, Class::Late);
    let active_ns = late_ns.saturating_add(class_ns(&account.states, Class::Running));
    active_ns < account.wall_ns / 1_000 && late_ns < 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Samples, account};
    use wallprof_model::event::LedgerDelta;
    use wallprof_model::{EpochSecond, ThreadKey};

    const SECOND: u64 = 1_000_000_000;

    fn account_with(change: impl Fn(&mut LedgerDelta)) -> Account {
        let mut ledger = LedgerDelta::new(ThreadKey(0), EpochSecond(0));
        ledger.wall_ns = 10 * SECOND;
        change(&mut ledger);
        account(&ledger, Samples::default())
    }

    #[test]
    fn voluntary_agrees_with_the_vocabulary() {
        for reason in Reason::ALL {
            let voluntary = Class::of(State::Blocked(reason)) == Class::Voluntary;
            assert_eq!(voluntary, reason.is_voluntary(), "{}", reason.name());
            let overslept = if voluntary { Class::Late } else { Class::of(State::Blocked(reason)) };
            assert_eq!(Class::of_stall(StallReason::Blocked(reason), false, None), overslept);
            assert_eq!(Class::of_stall(StallReason::Blocked(reason), true, None), Class::Voluntary);
        }
    }

    #[test]
    fn classes_partition_the_states() {
        let account = account_with(|ledger| {
            ledger.on_cpu_ns = 1_000;
            ledger.irq_ns = 100;
            ledger.preempted_ns = 20;
            ledger.blocked_ns = std::array::from_fn(|index| 1 << index);
        });
        let sum: u64 = Class::ALL.iter().map(|&class| class_ns(&account.states, class)).sum();
        assert_eq!(u128::from(sum), account.states.total_ns());
        assert_eq!(class_ns(&account.states, Class::Running), 900);
        let late = Reason::ALL.into_iter().filter(|&reason| Class::of_reason(reason) == Class::Late);
        let blocked: u64 = late.map(|reason| 1 << reason.code()).sum();
        assert_eq!(class_ns(&account.states, Class::Late), 100 + 20 + blocked);
        assert_eq!(Class::of_reason(Reason::Lock), Class::Late);
    }

    #[test]
    fn a_worker_that_only_waits_is_idle_and_one_late_millisecond_is_not() {
        assert!(is_idle(&account_with(|ledger| ledger.on_cpu_ns = SECOND / 1_000)));
        assert!(!is_idle(&account_with(|ledger| ledger.on_cpu_ns = SECOND / 50)));
        assert!(!is_idle(&account_with(|ledger| ledger.blocked_ns[0] = SECOND / 1_000)));
        assert!(is_idle(&account_with(|ledger| ledger.blocked_ns[3] = 9 * SECOND)));
    }
}
