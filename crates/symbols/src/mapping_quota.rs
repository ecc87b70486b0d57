//! How many mappings of how many processes are kept for one user.
//!
//! A charge lies beside the mappings that it is for and ends with them, so that memory which processes share is
//! counted once, for as long as one of them is there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wallprof_model::Owner;

/// Executable mappings of all processes of one user, each 40 bytes here and as many in the list for the kernel. A browser
/// has some 20,000.
const PER_USER: usize = 1 << 18;
/// Of all users but root.
const OF_USERS: usize = 1 << 20;

/// The mappings that are charged to each user.
#[derive(Default)]
pub(crate) struct MappingQuota {
    users: HashMap<u32, Arc<AtomicUsize>>,
    of_users: Arc<AtomicUsize>,
}

impl MappingQuota {
    /// An account for memory of a process of this owner, with nothing on it yet.
    pub(crate) fn account(&mut self, owner: Owner) -> Charge {
        let Owner::User(uid) = owner else { return Charge::default() };
        // Users without memory have no entry for long.
        self.users.retain(|_, user| Arc::strong_count(user) > 1);
        let user = Arc::clone(self.users.entry(uid).or_default());
        Charge { owner, accounts: Some([user, Arc::clone(&self.of_users)]), count: 0 }
    }
}

/// So many mappings are charged to an owner. A copy is charged as well.
#[derive(Debug)]
pub(crate) struct Charge {
    owner: Owner,
    /// The user's own and that of all users; `None` for the system, which has no quota.
    accounts: Option<[Arc<AtomicUsize>; 2]>,
    count: usize,
}

impl Charge {
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Charges this many mappings in place of those before. False, and as before, where there would be more of them
    /// than the owner gets.
    pub(crate) fn set(&mut self, count: usize) -> bool {
        if count > self.count && !self.may_have(count - self.count) {
            return false;
        }
        self.force(count);
        true
    }

    /// The same, whatever the owner has.
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
    fn one_user_cannot_use_up_what_others_get() {
        let mut quota = MappingQuota::default();
        let mut processes: Vec<Charge> = (0..4).map(|_| quota.account(Owner::User(1000))).collect();
        assert!(processes.iter_mut().all(|charge| charge.set(PER_USER / 4)));
        assert!(!processes[0].set(PER_USER / 4 + 1), "the user has all there is");
        assert!(quota.account(Owner::User(1001)).set(PER_USER));
        assert!(quota.account(Owner::System).set(usize::MAX), "root has no quota");
        processes.pop();
        assert!(processes[0].set(PER_USER / 2), "what is gone counts no more");
    }

    #[test]
    fn users_together_have_a_quota() {
        let mut quota = MappingQuota::default();
        let users = 0..(OF_USERS / PER_USER) as u32 + 1;
        let mut charges: Vec<Charge> = users.map(|uid| quota.account(Owner::User(1000 + uid))).collect();
        let fit: Vec<bool> = charges.iter_mut().map(|charge| charge.set(PER_USER)).collect();
        assert_eq!(fit.iter().filter(|fits| **fits).count(), OF_USERS / PER_USER);
    }

    #[test]
    fn copies_are_charged_until_they_are_gone() {
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
