// SPDX-License-Identifier: Apache-2.0
//! The bytes of files that are compared with others of the same build id, by the users who map them.
//!
//! Files are compared while the table of processes is locked. Any user can map copies of one large file without
//! end; beyond the quota a copy is a module of its own.

use std::collections::HashMap;
use std::time::Instant;

use wallprof_model::Owner;

/// Bytes that can be compared at once: the largest libraries have 130 MB.
const BURST: u64 = 256 << 20;
/// Bytes a second after that: less than 2 % of a CPU.
const A_SECOND: u64 = 16 << 20;

#[derive(Default)]
pub(crate) struct CompareQuota {
    /// What is left of the quota, and when that was, by user. Without an entry: all of it.
    users: HashMap<u32, (u64, Instant)>,
}

impl CompareQuota {
    /// Whether a file of `bytes` may be compared, which is charged then.
    pub(crate) fn charge(&mut self, owner: Owner, bytes: u64, now: Instant) -> bool {
        let Owner::User(uid) = owner else { return true };
        self.users.retain(|_, (left, at)| refilled(*left, *at, now) < BURST);
        let left = self.users.get(&uid).map_or(BURST, |&(left, at)| refilled(left, at, now));
        let fits = bytes <= left;
        if fits {
            self.users.insert(uid, (left - bytes, now));
        }
        fits
    }
}

fn refilled(left: u64, at: Instant, now: Instant) -> u64 {
    let millis = u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX);
    left.saturating_add((A_SECOND / 1_000).saturating_mul(millis)).min(BURST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn copies_of_one_user_are_compared_at_a_bounded_rate_and_those_of_others_are() {
        let (mut quota, start) = (CompareQuota::default(), Instant::now());
        let alice = Owner::User(1000);
        let size = 20 << 20;
        let compared =
            (0..60_000).filter(|&millis| quota.charge(alice, size, start + Duration::from_millis(millis)));
        let bytes = compared.count() as u64 * size;
        assert!(bytes <= BURST + 60 * A_SECOND, "{bytes}");
        assert!(bytes > BURST + 58 * A_SECOND, "{bytes}");
        let now = start + Duration::from_secs(60);
        assert!(!quota.charge(alice, BURST, now) && quota.charge(Owner::User(1001), BURST, now));
        assert!(quota.charge(Owner::System, u64::MAX, now) && quota.charge(Owner::System, u64::MAX, now));
        assert!(quota.charge(alice, BURST, now + Duration::from_secs(17)));
        quota.charge(Owner::System, 0, now + Duration::from_secs(100));
        quota.charge(Owner::User(1002), 1, now + Duration::from_secs(100));
        assert_eq!(quota.users.len(), 1, "full quotas are not kept");
    }
}
