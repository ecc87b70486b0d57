// SPDX-License-Identifier: Apache-2.0
//! The limits on modules: of all users together and of each user.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use wallprof_model::Owner;

/// A search for modules to evict reads the mappings of all processes. After a search without a result, new
/// modules are refused without another search for this time.
const PAUSE: Duration = Duration::from_secs(1);

/// Numbers of modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModuleLimits {
    pub in_all: usize,
    /// Mapped by the processes of one user other than root.
    pub per_user: usize,
    /// Mapped by the processes of all users other than root.
    pub of_users: usize,
    /// Evicted modules with frames that have no names yet.
    pub unnamed: usize,
}

impl Default for ModuleLimits {
    /// A module costs some 500 bytes; a machine runs a few thousand different files.
    fn default() -> Self {
        let in_all = 1 << 14;
        ModuleLimits { in_all, per_user: in_all / 4, of_users: in_all / 4 * 3, unnamed: 1 << 17 }
    }
}

/// The owners whose modules may be evicted for a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scope {
    All,
    /// All owners but root.
    Users,
    Only(Owner),
}

impl Scope {
    pub(crate) fn contains(self, owner: Owner) -> bool {
        match self {
            Scope::All => true,
            Scope::Users => owner != Owner::System,
            Scope::Only(only) => owner == only,
        }
    }
}

/// The modules that are charged to each owner.
#[derive(Default)]
pub(crate) struct ModuleQuota {
    pub limits: ModuleLimits,
    charged: HashMap<Owner, usize>,
    in_all: usize,
    /// Scopes in which no module could be evicted, and the time of the next search.
    exhausted: HashMap<Scope, Instant>,
}

impl ModuleQuota {
    /// The scopes that are full for `owner`: one module of each must be evicted first. The smallest scope is
    /// first.
    pub(crate) fn full_scopes(&self, owner: Owner) -> impl Iterator<Item = Scope> + use<> {
        let is_user = owner != Owner::System;
        let of_users = self.in_all - self.charged_to(Owner::System);
        let full = [
            (Scope::Only(owner), is_user && self.charged_to(owner) >= self.limits.per_user),
            (Scope::Users, is_user && of_users >= self.limits.of_users),
            (Scope::All, self.in_all >= self.limits.in_all),
        ];
        full.into_iter().filter(|(_, is_full)| *is_full).map(|(scope, _)| scope)
    }

    /// The number of modules that one search evicts, so that searches are rare.
    pub(crate) fn batch(&self, scope: Scope) -> usize {
        let limit = match scope {
            Scope::All => self.limits.in_all,
            Scope::Users => self.limits.of_users,
            Scope::Only(_) => self.limits.per_user,
        };
        (limit / 8).max(1)
    }

    pub(crate) fn charge(&mut self, owner: Owner) {
        *self.charged.entry(owner).or_default() += 1;
        self.in_all += 1;
    }

    pub(crate) fn discharge(&mut self, owner: Owner) {
        self.in_all -= 1;
        if let Some(count) = self.charged.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.charged.remove(&owner);
            }
        }
    }

    pub(crate) fn is_exhausted(&mut self, scope: Scope, now: Instant) -> bool {
        self.exhausted.retain(|_, until| now < *until);
        self.exhausted.contains_key(&scope)
    }

    pub(crate) fn exhaust(&mut self, scope: Scope, now: Instant) {
        self.exhausted.insert(scope, now + PAUSE);
    }

    fn charged_to(&self, owner: Owner) -> usize {
        self.charged.get(&owner).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Owner = Owner::User(1000);

    fn quota() -> ModuleQuota {
        let limits = ModuleLimits { in_all: 8, per_user: 2, of_users: 4, unnamed: 8 };
        ModuleQuota { limits, ..ModuleQuota::default() }
    }

    fn full(quota: &ModuleQuota, owner: Owner) -> Vec<Scope> {
        quota.full_scopes(owner).collect()
    }

    #[test]
    fn each_user_has_a_quota_and_all_users_share_one() {
        let mut quota = quota();
        quota.charge(ALICE);
        assert_eq!(full(&quota, ALICE), []);
        quota.charge(ALICE);
        assert_eq!(full(&quota, ALICE), [Scope::Only(ALICE)]);
        assert_eq!(full(&quota, Owner::User(1)), []);
        (1..3).for_each(|uid| quota.charge(Owner::User(uid)));
        assert_eq!(full(&quota, Owner::User(9)), [Scope::Users]);
        assert_eq!(full(&quota, Owner::System), []);
        (0..4).for_each(|_| quota.charge(Owner::System));
        assert_eq!(full(&quota, Owner::System), [Scope::All]);
        quota.discharge(ALICE);
        assert_eq!(full(&quota, ALICE), []);
    }

    #[test]
    fn failed_search_is_not_repeated_at_once() {
        let (mut quota, now) = (quota(), Instant::now());
        assert!(!quota.is_exhausted(Scope::Users, now));
        quota.exhaust(Scope::Users, now);
        assert!(quota.is_exhausted(Scope::Users, now) && !quota.is_exhausted(Scope::All, now));
        assert!(!quota.is_exhausted(Scope::Users, now + PAUSE));
    }
}
