// SPDX-License-Identifier: Apache-2.0
//! CPU time of the recorder that is charged to users: a token bucket for each user.
//!
//! There are three kinds of work that a user's files and processes cause, each with accounts of its own: a
//! flood of one kind does not delay the others. A single expensive step may take more than is left: its
//! owner's bucket becomes negative and must be refilled before the next one.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wallprof_model::Owner;
use wallprof_probe::clock;
use wallprof_symbols::Payer;

/// The size of a bucket, and how fast it is refilled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// The size of a bucket, ns.
    burst: i64,
    /// The bucket is refilled by this part of a CPU.
    refill_part: u32,
    /// The lowest balance, ns.
    deepest: i64,
}

/// Unwind tables: at most 5 % of a CPU in any minute. The burst is enough for some thousand tables of small
/// programs, and one file may take 15 s.
pub(crate) const BUILDING: Rate = Rate { burst: 1_500_000_000, refill_part: 40, deepest: -13_500_000_000 };
/// Names while probes run: at most 1.75 % of a CPU in any minute, and one file more. A program of 1 MB takes
/// 0.2 ms, and the largest table of symbols that is read 0.3 s.
pub(crate) const NAMING: Rate = Rate { burst: 300_000_000, refill_part: 80, deepest: i64::MIN };
/// Names of the functions that identify waits, for files of all owners together: 2 % of a CPU. The burst is
/// enough for the programs that run when a recording starts.
pub(crate) const NAMING_WAITS: Rate = Rate { burst: 1_000_000_000, refill_part: 50, deepest: i64::MIN };
/// News of processes: their mappings, headers of mapped files, and lists for the walker. With two CPUs at
/// most 3 % of a CPU in any minute. The more CPUs a machine has, the more programs a user can run: a
/// program with some libraries takes 0.5 ms.
pub(crate) fn following(cpus: usize) -> Rate {
    let cpus = u32::try_from(cpus).unwrap_or(u32::MAX).max(1);
    Rate { burst: 300_000_000, refill_part: (80 / cpus).max(1), deepest: i64::MIN }
}

/// The accounts of all users for one kind of work. Root is not charged.
pub(crate) struct CpuAccounts {
    rate: Rate,
    users: Mutex<HashMap<u32, Account>>,
}

#[derive(Clone, Copy)]
struct Account {
    /// ns of CPU time.
    balance: i64,
    at: Instant,
}

impl Account {
    fn refilled(self, rate: Rate, now: Instant) -> Self {
        let back = now.saturating_duration_since(self.at) / rate.refill_part;
        let back = i64::try_from(back.as_nanos()).unwrap_or(i64::MAX);
        Account { balance: self.balance.saturating_add(back).min(rate.burst), at: now.max(self.at) }
    }
}

impl CpuAccounts {
    pub(crate) fn new(rate: Rate) -> Self {
        CpuAccounts { rate, users: Mutex::default() }
    }

    /// Whether work for this user may start now.
    pub(crate) fn may_start(&self, owner: Owner, now: Instant) -> bool {
        self.time_to_wait(owner, now).is_zero()
    }

    /// The time until work for this user may start.
    pub(crate) fn time_to_wait(&self, owner: Owner, now: Instant) -> Duration {
        let Owner::User(uid) = owner else { return Duration::ZERO };
        let rate = self.rate;
        let balance = self.lock().get(&uid).map_or(rate.burst, |account| account.refilled(rate, now).balance);
        // A balance of one nanosecond is enough to start.
        let missing = u64::try_from(1i64.saturating_sub(balance)).unwrap_or(0);
        Duration::from_nanos(missing.saturating_mul(rate.refill_part.into()))
    }

    /// Runs work for this user and charges its time. `None`: the user has no time left.
    pub(crate) fn spend<T>(&self, payer: Payer, work: impl FnOnce() -> T) -> Option<T> {
        let started = Instant::now();
        if !self.may_start(payer.owner, started) {
            return None;
        }
        let cpu_before = clock::thread_cpu_ns();
        let outcome = work();
        let cpu_ns = clock::thread_cpu_ns().saturating_sub(cpu_before);
        let now = Instant::now();
        // A file that may block is read by another process, for which this thread waits.
        let waited = if payer.may_block { now.saturating_duration_since(started) } else { Duration::ZERO };
        self.charge(payer.owner, cpu_ns.max(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX)), now);
        Some(outcome)
    }

    /// Charges CPU time. False: the balance is at its lowest and the work must end.
    pub(crate) fn charge(&self, owner: Owner, cpu_ns: u64, now: Instant) -> bool {
        let Owner::User(uid) = owner else { return true };
        let rate = self.rate;
        let mut users = self.lock();
        let cpu_ns = i64::try_from(cpu_ns).unwrap_or(i64::MAX);
        let account = users.entry(uid).or_insert(Account { balance: rate.burst, at: now });
        *account = account.refilled(rate, now);
        account.balance = account.balance.saturating_sub(cpu_ns);
        let goes_on = account.balance > rate.deepest;
        // A full account equals no account.
        users.retain(|_, account| account.refilled(rate, now).balance < rate.burst);
        goes_on
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Account>> {
        // A panic between the statements above leaves every account consistent.
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Owner = Owner::User(1000);

    #[test]
    fn stream_of_files_takes_a_twentieth_of_a_cpu_in_the_worst_minute() {
        let (accounts, start) = (CpuAccounts::new(BUILDING), Instant::now());
        let table_ns = 1_000_000;
        let mut built = Vec::new();
        for millis in 0..300_000 {
            let now = start + Duration::from_millis(millis);
            if accounts.may_start(ALICE, now) {
                accounts.charge(ALICE, table_ns, now);
                built.push(millis);
            }
        }
        let worst = built.iter().map(|&from| {
            built.iter().filter(|&&at| (from..from + 60_000).contains(&at)).count() as u64 * table_ns
        });
        let worst = worst.max().expect("tables");
        assert!(worst <= 3_000_000_000 + table_ns, "{worst} ns of CPU time in a minute");
        assert!(built.len() > 8_900, "{} tables in five minutes", built.len());
    }

    #[test]
    fn each_user_has_an_account_and_the_system_has_none() {
        let (accounts, now) = (CpuAccounts::new(BUILDING), Instant::now());
        assert!(accounts.charge(ALICE, 2_000_000_000, now));
        assert!(!accounts.may_start(ALICE, now) && accounts.may_start(Owner::User(1001), now));
        assert!(accounts.charge(Owner::System, u64::MAX, now) && accounts.may_start(Owner::System, now));
        let wait = accounts.time_to_wait(ALICE, now);
        assert!(wait > Duration::from_secs(20) && wait < Duration::from_secs(21), "{wait:?}");
        assert!(accounts.may_start(ALICE, now + wait));
    }

    #[test]
    fn one_file_may_overdraw_the_account_of_its_owner() {
        let (accounts, now) = (CpuAccounts::new(BUILDING), Instant::now());
        assert!(accounts.charge(ALICE, 14_900_000_000, now));
        assert!(!accounts.charge(ALICE, 200_000_000, now), "15 s are the most");
        assert!(!accounts.may_start(ALICE, now + Duration::from_secs(500)));
        assert!(accounts.may_start(ALICE, now + Duration::from_secs(545)));
    }

    #[test]
    fn work_is_charged_with_its_cpu_time_or_the_time_that_it_waited() {
        let accounts = CpuAccounts::new(NAMING);
        let payer = |uid, may_block| Payer { owner: Owner::User(uid), may_block };
        let balance = |uid| accounts.lock().get(&uid).map(|account| account.balance);
        let wait = || std::thread::sleep(Duration::from_millis(20));
        assert_eq!(accounts.spend(payer(1, true), wait), Some(()));
        assert!(balance(1).is_some_and(|left| left <= NAMING.burst - 20_000_000), "{:?}", balance(1));
        assert_eq!(accounts.spend(payer(2, false), wait), Some(()));
        assert!(balance(2) > balance(1), "waiting costs no CPU time");
        accounts.charge(Owner::User(1), 1_000_000_000, Instant::now());
        assert_eq!(accounts.spend(payer(1, true), || ()), None);
        assert_eq!(accounts.spend(Payer { owner: Owner::System, may_block: false }, || ()), Some(()));
    }

    #[test]
    fn names_take_less_than_a_fiftieth_of_a_cpu_in_the_worst_minute() {
        let (accounts, start) = (CpuAccounts::new(NAMING), Instant::now());
        let file_ns = 10_000_000;
        let named = (0..60_000).map(|millis| start + Duration::from_millis(millis)).filter(|&now| {
            let may_start = accounts.may_start(ALICE, now);
            may_start && accounts.charge(ALICE, file_ns, now)
        });
        let spent = named.count() as u64 * file_ns;
        assert!(spent <= 60_000_000_000 / 50 && spent > 1_000_000_000, "{spent} ns");
    }

    #[test]
    fn full_accounts_are_removed() {
        let (accounts, now) = (CpuAccounts::new(BUILDING), Instant::now());
        (1..1_000).for_each(|uid| _ = accounts.charge(Owner::User(uid), 1_000, now));
        accounts.charge(ALICE, 1_000, now + Duration::from_secs(1));
        assert_eq!(accounts.lock().len(), 1);
    }
}
