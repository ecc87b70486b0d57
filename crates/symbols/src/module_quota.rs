//! How many modules are kept, and how many of them may be charged to one user.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use wallprof_model::Owner;

/// A search for modules to evict looks at everything that all processes have mapped. After one that found nothing,
/// further modules are refused this long without a search.
const PAUSE: Duration = Duration::from_secs(1);

/// Numbers of modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModuleLimits {
    pub in_all: usize,
    /// Of the processes of one user other than root.
    pub per_user: usize,
    /// Of the processes of all users other than root.
    pub of_users: usize,
    /// Evicted modules whose frames wait for names.
    pub unnamed: usize,
}

impl Default for ModuleLimits {
    /// A module costs some 500 bytes; a machine runs a few thousand different files.
    fn default() -> Self {
        let in_all = 1 << 14;
        ModuleLimits { in_all, per_user: in_all / 4, of_users: in_all / 4 * 3, unnamed: 1 << 17 }
    }
}

/// Whose modules may be evicted for a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scope {
    Everybody,
    /// All but root.
    Users,
    Only(Owner),
}

impl Scope {
    pub(crate) fn contains(self, owner: Owner) -> bool {
        match self {
            Scope::Everybody => true,
            Scope::Users => owner != Owner::System,
            Scope::Only(only) => owner == only,
        }
    }
}

/// How many modules are charged to whom.
#[derive(Default)]
pub(crate) struct ModuleQuota {
    pub limits: ModuleLimits,
    charged: HashMap<Owner, usize>,
    in_all: usize,
    /// Scopes in which nothing could be evicted, and until when that is taken for granted.
    exhausted: HashMap<Scope, Instant>,
}

impl ModuleQuota {
    /// What has to become smaller before `owner` gets one module more, the smallest scope first.
    pub(crate) fn full_scopes(&self, owner: Owner) -> impl Iterator<Item = Scope> + use<> {
        let is_user = owner != Owner::System;
        let of_users = self.in_all - self.charged_to(Owner::System);
        let full = [
            (Scope::Only(owner), is_user && self.charged_to(owner) >= self.limits.per_user),
            (Scope::Users, is_user && of_users >= self.limits.of_users),
            (Scope::Everybody, self.in_all >= self.limits.in_all),
        ];
        full.into_iter().filter(|(_, is_full)| *is_full).map(|(scope, _)| scope)
    }

    /// How many are evicted at once, so that the search is worth it.
    pub(crate) fn batch(&self, scope: Scope) -> usize {
        let limit = match scope {
            Scope::Everybody => self.limits.in_all,
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
    fn users_have_a_quota_each_and_one_together() {
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
        assert_eq!(full(&quota, Owner::System), [Scope::Everybody]);
        quota.discharge(ALICE);
        assert_eq!(full(&quota, ALICE), []);
    }

    #[test]
    fn failed_search_is_not_repeated_at_once() {
        let (mut quota, now) = (quota(), Instant::now());
        assert!(!quota.is_exhausted(Scope::Users, now));
        quota.exhaust(Scope::Users, now);
        assert!(quota.is_exhausted(Scope::Users, now) && !quota.is_exhausted(Scope::Everybody, now));
        assert!(!quota.is_exhausted(Scope::Users, now + PAUSE));
    }
}
