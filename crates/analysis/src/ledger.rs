// SPDX-License-Identifier: Apache-2.0
//! A thread's wall time as a partition into states, from the exact times and the samples that were recorded.
//!
//! On-CPU time outside interrupts and faults is exact; a trace divides it into `user` and `kernel` exactly,
//! samples by their proportion. What neither divides is unaccounted, and without sampling it is `cpu`. Nothing is computed as "the rest": what
//! the states leave of the wall time is `unaccounted`, and what they have too much is an [`Inconsistency`].

use std::fmt;

use wallprof_model::event::LedgerDelta;
use wallprof_model::{Reason, State};

/// Nanoseconds in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States {
    pub user: u64,
    pub kernel: u64,
    /// Running time that no sampling divides into `user` and `kernel`.
    pub cpu: u64,
    pub irq: u64,
    pub fault_minor: u64,
    pub fault_major: u64,
    pub runnable: u64,
    pub preempted: u64,
    /// Indexed by [`Reason::code`].
    pub blocked: [u64; Reason::COUNT],
}

impl States {
    /// Nanoseconds in one state.
    pub fn get(&self, state: State) -> u64 {
        match state {
            State::User => self.user,
            State::Kernel => self.kernel,
            State::Cpu => self.cpu,
            State::Irq => self.irq,
            State::FaultMinor => self.fault_minor,
            State::FaultMajor => self.fault_major,
            State::Runnable => self.runnable,
            State::Preempted => self.preempted,
            State::Blocked(reason) => self.blocked[usize::from(reason.code())],
        }
    }

    /// Every state with its nanoseconds, in the order of the contract.
    pub fn iter(&self) -> impl Iterator<Item = (State, u64)> + '_ {
        let fixed = [
            State::User,
            State::Kernel,
            State::Cpu,
            State::Irq,
            State::FaultMinor,
            State::FaultMajor,
            State::Runnable,
            State::Preempted,
        ];
        fixed.into_iter().chain(Reason::ALL.map(State::Blocked)).map(|state| (state, self.get(state)))
    }

    /// Nanoseconds in all states together; wider than a damaged file's numbers can overflow.
    pub fn total_ns(&self) -> u128 {
        self.iter().map(|(_, ns)| u128::from(ns)).sum()
    }
}

/// Samples of the ledger's clock: in which proportion on-CPU time divides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    pub user: u64,
    pub kernel: u64,
}

impl Samples {
    pub fn of(ledger: &LedgerDelta) -> Self {
        Samples { user: ledger.user_samples, kernel: ledger.kernel_samples }
    }

    pub fn count(self) -> u64 {
        self.user.saturating_add(self.kernel)
    }

    /// `ns` as (user, kernel); the two add up to `ns` exactly. Without any sample all of it is user time.
    pub fn divide(self, ns: u64) -> (u64, u64) {
        let (user, kernel) = (u128::from(self.user), u128::from(self.kernel));
        if user + kernel == 0 {
            return (ns, 0);
        }
        let user_ns = (u128::from(ns) * user / (user + kernel)) as u64;
        (user_ns, ns - user_ns)
    }
}

/// A ledger: the states, and how they fit the wall time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub wall_ns: u64,
    pub states: States,
    /// Wall time that no state claims.
    pub unaccounted_ns: u64,
    /// Running time as the scheduler counts it.
    pub on_cpu_ns: u64,
    /// Runnable and preempted.
    pub run_queue_ns: u64,
    pub samples: u64,
    /// Empty when the states and `unaccounted_ns` add up to `wall_ns`, as they should.
    pub inconsistencies: Vec<Inconsistency>,
}

/// A way in which recorded times contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Inconsistency {
    /// The states add up to more than the wall time.
    StatesExceedWall { by_ns: u64 },
    /// Interrupts and faults ran for longer than the thread did.
    InterruptsAndFaultsExceedOnCpu { by_ns: u64 },
}

impl Inconsistency {
    pub fn name(self) -> &'static str {
        match self {
            Inconsistency::StatesExceedWall { .. } => "states_exceed_wall",
            Inconsistency::InterruptsAndFaultsExceedOnCpu { .. } => "interrupts_and_faults_exceed_on_cpu",
        }
    }

    pub fn by_ns(self) -> u64 {
        match self {
            Inconsistency::StatesExceedWall { by_ns }
            | Inconsistency::InterruptsAndFaultsExceedOnCpu { by_ns } => by_ns,
        }
    }
}

impl fmt::Display for Inconsistency {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Inconsistency::StatesExceedWall { by_ns } => {
                write!(out, "the states add up to {by_ns} ns more than the wall time")
            }
            Inconsistency::InterruptsAndFaultsExceedOnCpu { by_ns } => {
                write!(out, "interrupts and faults ran {by_ns} ns longer than the thread did")
            }
        }
    }
}

/// The account of one ledger.
///
/// `fallback` divides the running time of a thread that was never sampled: a thread that runs for less than
/// a sampling period at a time may have run for long. [`crate::totals::accounts`] gives its process's
/// samples.
pub fn account(ledger: &LedgerDelta, fallback: Samples) -> Account {
    let mut inconsistencies = Vec::new();
    let claimed = u128::from(ledger.irq_ns) + u128::from(ledger.fault_on_cpu_ns);
    let running_ns = saturate(u128::from(ledger.on_cpu_ns).saturating_sub(claimed));
    let cpu = ledger.cpu_ns.min(running_ns);
    let twice_ns = saturate(claimed.saturating_sub(u128::from(ledger.on_cpu_ns)));
    if twice_ns > 0 {
        inconsistencies.push(Inconsistency::InterruptsAndFaultsExceedOnCpu { by_ns: twice_ns });
    }
    let own = Samples::of(ledger);
    let samples = if own.count() > 0 { own } else { fallback };
    let (user, kernel) = running(ledger, running_ns - cpu, samples);
    let states = States {
        user,
        kernel,
        cpu,
        // An interrupt inside a fault whose end was not recorded was counted as both. It counts once.
        irq: ledger.irq_ns.saturating_sub(twice_ns),
        fault_minor: ledger.fault_minor_ns,
        fault_major: ledger.fault_major_ns,
        runnable: ledger.runnable_ns,
        preempted: ledger.preempted_ns,
        blocked: ledger.blocked_ns,
    };
    let unaccounted = u128::from(ledger.wall_ns).checked_sub(states.total_ns()).unwrap_or_else(|| {
        let by_ns = saturate(states.total_ns() - u128::from(ledger.wall_ns));
        inconsistencies.push(Inconsistency::StatesExceedWall { by_ns });
        0
    });
    Account {
        wall_ns: ledger.wall_ns,
        states,
        unaccounted_ns: saturate(unaccounted),
        on_cpu_ns: ledger.on_cpu_ns,
        run_queue_ns: ledger.runnable_ns.saturating_add(ledger.preempted_ns),
        samples: own.count(),
        inconsistencies,
    }
}

/// Running time as (user, kernel): what a trace says, and of the rest what `samples` say. Together they are
/// at most `running_ns`, however damaged the numbers are.
fn running(ledger: &LedgerDelta, running_ns: u64, samples: Samples) -> (u64, u64) {
    let user = ledger.traced_user_ns.min(running_ns);
    let kernel = ledger.traced_kernel_ns.min(running_ns - user);
    let rest = (running_ns - user - kernel).saturating_sub(ledger.undivided_ns);
    let (more_user, more_kernel) = samples.divide(rest);
    (user + more_user, kernel + more_kernel)
}

fn saturate(ns: u128) -> u64 {
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wallprof_model::{EpochSecond, ThreadKey};

    fn ledger() -> LedgerDelta {
        LedgerDelta::new(ThreadKey(1), EpochSecond(0))
    }

    #[test]
    fn running_time_is_divided_by_samples_and_stays_whole() {
        let ledger = LedgerDelta {
            wall_ns: 1_000,
            on_cpu_ns: 700,
            irq_ns: 100,
            fault_minor_ns: 60,
            fault_on_cpu_ns: 50,
            preempted_ns: 40,
            runnable_ns: 30,
            user_samples: 2,
            kernel_samples: 1,
            ..ledger()
        };
        let account = account(&ledger, Samples::default());
        assert_eq!((account.states.user, account.states.kernel), (366, 184));
        assert_eq!(account.states.irq, 100);
        assert_eq!(account.run_queue_ns, 70);
        assert_eq!(account.unaccounted_ns, 1_000 - 550 - 100 - 60 - 70);
        assert_eq!(account.inconsistencies, []);
    }

    #[test]
    fn the_fallback_serves_only_threads_without_samples() {
        let unsampled = LedgerDelta { wall_ns: 100, on_cpu_ns: 100, ..ledger() };
        let fallback = Samples { user: 1, kernel: 3 };
        assert_eq!(account(&unsampled, fallback).states.kernel, 75);
        assert_eq!(account(&unsampled, Samples::default()).states.user, 100);
        let sampled = LedgerDelta { user_samples: 1, ..unsampled };
        assert_eq!(account(&sampled, fallback).states.user, 100);
    }

    #[test]
    fn contradictions_are_named_and_not_hidden() {
        let states = LedgerDelta { wall_ns: 10, preempted_ns: 12, ..ledger() };
        let too_much = account(&states, Samples::default());
        assert_eq!(too_much.unaccounted_ns, 0);
        assert_eq!(too_much.inconsistencies, [Inconsistency::StatesExceedWall { by_ns: 2 }]);
        let irq = LedgerDelta { wall_ns: 10, on_cpu_ns: 3, irq_ns: 5, ..ledger() };
        let too_long = account(&irq, Samples::default());
        assert_eq!(too_long.inconsistencies, [Inconsistency::InterruptsAndFaultsExceedOnCpu { by_ns: 2 }]);
        assert_eq!((too_long.states.user + too_long.states.kernel, too_long.states.irq), (0, 3));
    }

    /// A time for each reason.
    fn blocked(time: impl Strategy<Value = u64>) -> impl Strategy<Value = [u64; Reason::COUNT]> {
        proptest::collection::vec(time, Reason::COUNT)
            .prop_map(|times| times.try_into().expect("as many times as reasons"))
    }

    prop_compose! {
        fn any_ledger()(times in proptest::array::uniform8(prop_oneof![0..2_000_000_000u64, any::<u64>()]),
                        blocked in blocked(prop_oneof![0..2_000_000_000u64, any::<u64>()]),
                        samples in any::<[u64; 2]>()) -> LedgerDelta {
            LedgerDelta {
                wall_ns: times[0], on_cpu_ns: times[1], irq_ns: times[2], fault_minor_ns: times[3],
                fault_major_ns: times[4], fault_on_cpu_ns: times[5], runnable_ns: times[6],
                preempted_ns: times[7], blocked_ns: blocked, user_samples: samples[0], kernel_samples: samples[1],
                traced_user_ns: times[0] / 2, traced_kernel_ns: times[3], undivided_ns: times[4],
                cpu_ns: times[6], ..ledger()
            }
        }
    }

    #[test]
    fn traced_time_is_exact_and_the_rest_is_unaccounted() {
        // 0.75 ms of user code is less than one sample of a millisecond.
        let traced = LedgerDelta {
            wall_ns: 5_000_000,
            on_cpu_ns: 1_000_000,
            traced_user_ns: 750_000,
            traced_kernel_ns: 50_001,
            undivided_ns: 199_999,
            ..ledger()
        };
        let account = account(&traced, Samples { user: 0, kernel: 9 });
        assert_eq!((account.states.user, account.states.kernel), (750_000, 50_001));
        assert_eq!((account.on_cpu_ns, account.unaccounted_ns), (1_000_000, 4_199_999));
        assert_eq!(account.inconsistencies, []);
        // Samples divide what the trace does not.
        let both = LedgerDelta { undivided_ns: 0, user_samples: 1, kernel_samples: 1, ..traced };
        let account = super::account(&both, Samples::default());
        assert_eq!((account.states.user, account.states.kernel), (849_999, 150_001));
    }

    #[test]
    fn running_time_without_sampling_is_one_state() {
        let unsampled = LedgerDelta { wall_ns: 100, on_cpu_ns: 90, irq_ns: 10, cpu_ns: 80, ..ledger() };
        let account = account(&unsampled, Samples { user: 3, kernel: 1 });
        let States { user, kernel, cpu, irq, .. } = account.states;
        assert_eq!((user, kernel, cpu, irq, account.unaccounted_ns), (0, 0, 80, 10, 10));
    }

    proptest! {
        #[test]
        fn states_and_unaccounted_are_the_wall_time(
            parts in proptest::array::uniform8(0..5_000_000_000u64),
            blocked_ns in blocked(0..5_000_000_000u64), samples in any::<[u32; 2]>(),
            traced in proptest::array::uniform3(0..1_000u64),
        ) {
            let [irq_ns, off_cpu_fault, on_cpu_fault, running, runnable_ns, preempted_ns, gap, _] = parts;
            let ledger = LedgerDelta {
                wall_ns: parts[..7].iter().chain(&blocked_ns).sum(),
                on_cpu_ns: running + irq_ns + on_cpu_fault,
                irq_ns,
                fault_major_ns: off_cpu_fault + on_cpu_fault,
                fault_on_cpu_ns: on_cpu_fault,
                runnable_ns,
                preempted_ns,
                blocked_ns,
                user_samples: samples[0].into(),
                kernel_samples: samples[1].into(),
                traced_user_ns: running / 4_000 * traced[0],
                traced_kernel_ns: running / 4_000 * traced[1],
                undivided_ns: running / 4_000 * traced[2],
                ..ledger()
            };
            let account = account(&ledger, Samples::default());
            let unknown = gap + ledger.undivided_ns;
            prop_assert_eq!(account.unaccounted_ns, unknown);
            prop_assert_eq!(account.states.user + account.states.kernel, running - ledger.undivided_ns);
            prop_assert!(account.states.user >= ledger.traced_user_ns);
            prop_assert!(account.states.kernel >= ledger.traced_kernel_ns);
            prop_assert_eq!(account.inconsistencies, vec![]);
            prop_assert_eq!(account.states.total_ns() + u128::from(unknown), u128::from(ledger.wall_ns));
        }

        #[test]
        fn any_numbers_add_up_or_say_that_they_do_not(ledger in any_ledger()) {
            let account = account(&ledger, Samples { user: 1, kernel: 1 });
            let sum = account.states.total_ns() + u128::from(account.unaccounted_ns);
            let excess = account.inconsistencies.iter().find_map(|found| match found {
                Inconsistency::StatesExceedWall { by_ns } => Some(*by_ns),
                Inconsistency::InterruptsAndFaultsExceedOnCpu { .. } => None,
            });
            match excess {
                None => prop_assert_eq!(sum, u128::from(ledger.wall_ns)),
                Some(by) => prop_assert_eq!(by, saturate(sum - u128::from(ledger.wall_ns))),
            }
        }
    }
}
