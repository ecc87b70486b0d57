//! CPU time for building unwind tables, by the owner of the files: a token bucket for each user.
//!
//! The distinct files of a user take at most 5 % of a CPU in any minute. A single expensive file may take
//! more: its owner's bucket becomes negative and must be refilled before the next build.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wallprof_model::Owner;

/// The size of a bucket, ns: enough for some thousand tables of small programs. It is full after a minute.
const BURST: i64 = 1_500_000_000;
/// The bucket is refilled by a fortieth of a CPU. With the burst that is a twentieth over the worst minute.
const REFILL_PART: u32 = 40;
/// The lowest balance, ns: one file may take this much beyond the burst.
const DEEPEST: i64 = -13_500_000_000;

/// The accounts of all users. Files of root and of the recorder's own user are not charged.
#[derive(Default)]
pub(crate) struct BuildAccounts {
    users: Mutex<HashMap<u32, Account>>,
}

#[derive(Clone, Copy)]
struct Account {
    /// ns of CPU time.
    balance: i64,
    at: Instant,
}

impl Account {
    fn full(at: Instant) -> Self {
        Account { balance: BURST, at }
    }

    fn refilled(self, now: Instant) -> Self {
        let back = now.saturating_duration_since(self.at) / REFILL_PART;
        let back = i64::try_from(back.as_nanos()).unwrap_or(i64::MAX);
        Account { balance: self.balance.saturating_add(back).min(BURST), at: now.max(self.at) }
    }
}

impl BuildAccounts {
    /// Whether a table of the owner's files may be built now.
    pub(crate) fn may_start(&self, owner: Owner, now: Instant) -> bool {
        self.time_to_wait(owner, now).is_zero()
    }

    /// The time until the owner's files may be built.
    pub(crate) fn time_to_wait(&self, owner: Owner, now: Instant) -> Duration {
        let Owner::User(uid) = owner else { return Duration::ZERO };
        let balance = self.lock().get(&uid).map_or(BURST, |account| account.refilled(now).balance);
        // A balance of one nanosecond is enough to start.
        let missing = u64::try_from(1 - balance).unwrap_or(0);
        Duration::from_nanos(missing.saturating_mul(REFILL_PART.into()))
    }

    /// Charges CPU time of a build. False: the balance is at its lowest and the build must end.
    pub(crate) fn charge(&self, owner: Owner, cpu_ns: u64, now: Instant) -> bool {
        let Owner::User(uid) = owner else { return true };
        let mut users = self.lock();
        let cpu_ns = i64::try_from(cpu_ns).unwrap_or(i64::MAX);
        let account = users.entry(uid).or_insert(Account::full(now));
        *account = account.refilled(now);
        account.balance = account.balance.saturating_sub(cpu_ns);
        let goes_on = account.balance > DEEPEST;
        // A full account equals no account.
        users.retain(|_, account| account.refilled(now).balance < BURST);
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
        let (accounts, start) = (BuildAccounts::default(), Instant::now());
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
        let (accounts, now) = (BuildAccounts::default(), Instant::now());
        assert!(accounts.charge(ALICE, 2_000_000_000, now));
        assert!(!accounts.may_start(ALICE, now) && accounts.may_start(Owner::User(1001), now));
        assert!(accounts.charge(Owner::System, u64::MAX, now) && accounts.may_start(Owner::System, now));
        let wait = accounts.time_to_wait(ALICE, now);
        assert!(wait > Duration::from_secs(20) && wait < Duration::from_secs(21), "{wait:?}");
        assert!(accounts.may_start(ALICE, now + wait));
    }

    #[test]
    fn one_file_may_overdraw_the_account_of_its_owner() {
        let (accounts, now) = (BuildAccounts::default(), Instant::now());
        assert!(accounts.charge(ALICE, 14_900_000_000, now));
        assert!(!accounts.charge(ALICE, 200_000_000, now), "15 s are the most");
        assert!(!accounts.may_start(ALICE, now + Duration::from_secs(500)));
        assert!(accounts.may_start(ALICE, now + Duration::from_secs(545)));
    }

    #[test]
    fn full_accounts_are_removed() {
        let (accounts, now) = (BuildAccounts::default(), Instant::now());
        (1..1_000).for_each(|uid| _ = accounts.charge(Owner::User(uid), 1_000, now));
        accounts.charge(ALICE, 1_000, now + Duration::from_secs(1));
        assert_eq!(accounts.lock().len(), 1);
    }
}
