// SPDX-License-Identifier: Apache-2.0
//! Children that were killed and have not ended yet.
//!
//! A child that waits for a disk or a server (state D) ends when that wait does, SIGKILL or not. Nothing
//! waits for it: it is kept here and looked at each time that another child starts or ends.

use std::process::Child;
use std::sync::{Mutex, PoisonError};

/// With so many killed children that do not end, no further one is started.
const MAX_LEFT: usize = 16;

static LEFT: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// Kills a child. It is reaped now if it has ended, else at a later call.
pub(super) fn kill(mut child: Child) {
    // A child that has ended already cannot be killed.
    let _ = child.kill();
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.push(child);
    reap(&mut left);
}

/// Whether another child may be started.
pub(super) fn has_capacity() -> bool {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    reap(&mut left);
    left.len() < MAX_LEFT
}

fn reap(left: &mut Vec<Child>) {
    left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn killed_child_is_reaped_at_a_later_look() {
        let child = Command::new("sleep").arg("1000").spawn().expect("sleep");
        let process = format!("/proc/{}", child.id());
        kill(child);
        while std::path::Path::new(&process).exists() {
            assert!(has_capacity());
            std::thread::yield_now();
        }
    }
}
