// SPDX-License-Identifier: Apache-2.0
//! The time slice of the recorder's threads, which run beside the threads that they record.

use crate::undisturbed::{attributes, set};

/// The least that the kernel grants, ns (sched(7), `sched_runtime` of a thread without real-time priority).
const SLICE_NS: u64 = 100_000;

/// From now on the calling thread, and the threads and processes that it starts, have a time slice of a tenth
/// of a millisecond. A thread that wakes up waits for them at most that long. Their share of the CPU does not
/// change. Kernels before 6.12 have no such slices, and threads of real-time or idle priority need none:
/// nothing changes there.
pub fn shorten() {
    let Some(mut attributes) = attributes() else { return };
    if attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attributes.sched_runtime = SLICE_NS;
    // A kernel that refuses leaves the thread as it was.
    let _ = set(&attributes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_this_thread(field: &str) -> Option<String> {
        let text = std::fs::read_to_string("/proc/thread-self/sched").ok()?;
        let line = text.lines().find(|line| line.starts_with(field))?;
        Some(line.rsplit(':').next()?.trim().to_owned())
    }

    #[test]
    fn a_shortened_slice_changes_no_priority_and_is_inherited() {
        std::thread::spawn(|| {
            let (priority, before) = (of_this_thread("prio"), of_this_thread("se.slice"));
            shorten();
            assert_eq!(of_this_thread("prio"), priority);
            let slice = of_this_thread("se.slice");
            assert!(slice.as_deref() == Some("100000") || slice == before, "{slice:?}, before {before:?}");
            let inherited = std::thread::spawn(|| of_this_thread("se.slice"));
            assert_eq!(inherited.join().expect("a thread that reads"), slice);
        })
        .join()
        .expect("a thread of its own");
    }
}
