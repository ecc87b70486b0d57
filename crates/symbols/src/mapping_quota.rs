// SPDX-License-Identifier: Apache-2.0
//! The limits on mappings: of the processes of each user, and of all users together.
//!
//! A charge is stored with the mappings that it counts and ends with them. A list of mappings that processes
//! share is therefore charged once, until the last of them ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wallprof_model::Owner;

/// Executable mappings of all processes of one user. Each takes 40 bytes here and 40 in the kernel's list. A
/// browser has some 20,000.
const PER_USER: usize = 1 << 18;
/// Executable mappings of all users but root.
const OF_USERS: usize = 1 << 20;

/// The mappings that are charged to each user.
#[derive(Default)]
pub(crate) struct MappingQuota {
    users: HashMap<u32, Arc<AtomicUsize>>,
    of_users: Arc<AtomicUsize>,
}

impl MappingQuota {
    /// An empty charge for the mappings of a process of this owner.
    pub(crate) fn account(&mut self, owner: Owner) -> Charge {
        let Owner::User(uid) = owner else { return Charge::default() };
        // Removes users without a charge.
        self.users.retain(|_, user| Arc::strong_count(user) > 1);
        let user = Arc::clone(self.users.entry(uid).or_default());
        Charge { owner, accounts: Some([user, Arc::clone(&self.of_users)]), count: 0 }
    }
}

/// A number of mappings that are charged to an owner. A clone is charged, too.
#[derive(Debug)]
pub(crate) struct Charge {
    owner: Owner,
    /// The counters of the user and of all users; `None` for the system, which has no quota.
    accounts: Option<[Arc<AtomicUsize>; 2]>,
    count: usize,
}

impl Charge {
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Replaces the number of charged mappings. Returns false and changes nothing where the quota would be
    /// exceeded.
    pub(crate) fn set(&mut self, count: usize) -> bool {
        if count > self.count && !self.may_have(count - self.count) {
            return false;
        }
        self.force(count);
        true
    }

    /// Replaces the number of charged mappings without regard to the quota.
    pub(crate) fn force(&mut self, count: usize) {
        for account in self.accounts.iter().flatten() {
            account.fetch_add(count, Ordering::Relaxed);
            account.fetch_sub(self.count, Ordering::Relaxed);
        }
        self.count = count;
    }

    fn may_have(&self, more: usize) -> bool {
        let Some(accounts) = &self.accounts else { return true };
        let fits = |(account, limit): (&Arc<AtomicUsize>, usize)| {
            account.load(Ordering::Relaxed).saturating_add(more) <= limit
        };
        accounts.iter().zip([PER_USER, OF_USERS]).all(fits)
    }
}

impl Default for Charge {
    fn default() -> Self {
        Charge { owner: Owner::System, accounts: None, count: 0 }
    }
}

impl Clone for Charge {
    fn clone(&self) -> Self {
        let mut copy = Charge { owner: self.owner, accounts: self.accounts.clone(), count: 0 };
        copy.force(self.count);
        copy
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.force(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_cannot_use_the_quota_of_others() {
        let mut quota = MappingQuota::default();
        let mut processes: Vec<Charge> = (0..4).map(|_| quota.account(Owner::User(1000))).collect();
        assert!(processes.iter_mut().all(|charge| charge.set(PER_USER / 4)));
        assert!(!processes[0].set(PER_USER / 4 + 1), "the user's quota is used");
        assert!(quota.account(Owner::User(1001)).set(PER_USER));
        assert!(quota.account(Owner::System).set(usize::MAX), "root has no quota");
        processes.pop();
        assert!(processes[0].set(PER_USER / 2), "a dropped charge is not counted");
    }

    #[test]
    fn all_users_share_a_quota() {
        let mut quota = MappingQuota::default();
        let users = 0..(OF_USERS / PER_USER) as u32 + 1;
        let mut charges: Vec<Charge> = users.map(|uid| quota.account(Owner::User(1000 + uid))).collect();
        let fit: Vec<bool> = charges.iter_mut().map(|charge| charge.set(PER_USER)).collect();
        assert_eq!(fit.iter().filter(|fits| **fits).count(), OF_USERS / PER_USER);
    }

    #[test]
    fn clones_are_charged_until_they_are_dropped() {
        let mut quota = MappingQuota::default();
        let mut charge = quota.account(Owner::User(1000));
        assert!(charge.set(10));
        let copy = charge.clone();
        let user = Arc::clone(&quota.users[&1000]);
        assert_eq!(user.load(Ordering::Relaxed), 20);
        drop(charge);
        assert_eq!((user.load(Ordering::Relaxed), copy.owner()), (10, Owner::User(1000)));
        drop((user, copy));
        quota.account(Owner::User(1));
        assert!(!quota.users.contains_key(&1000));
        assert_eq!(quota.of_users.load(Ordering::Relaxed), 0);
    }
}
