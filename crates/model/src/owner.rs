// SPDX-License-Identifier: Apache-2.0
//! The user to whom memory and time of the recorder are charged.

/// The user for processes whose owner is not known: they ended before they could be looked at.
const UNKNOWN: u32 = u32::MAX;

/// A user with a quota, or the system without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// root, and everything that is no file and no process.
    System,
    /// The user with this id, which is not 0.
    User(u32),
}

impl Owner {
    /// All processes of unknown owners share one quota. The kernel gives no process this user id
    /// (`INVALID_UID`).
    pub const UNKNOWN: Owner = Owner::User(UNKNOWN);

    /// By the user id that owns a file or a process; 0 is [`Owner::System`].
    pub fn from_uid(uid: u32) -> Self {
        match uid {
            0 => Owner::System,
            uid => Owner::User(uid),
        }
    }
}
