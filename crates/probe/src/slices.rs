// SPDX-License-Identifier: Apache-2.0
//! The time slice of the recorder's threads, which run beside the threads that they record.

/// The least that the kernel grants, ns (sched(7), `sched_runtime` of a thread without real-time priority).
const SLICE_NS: u64 = 100_000;

/// From now on the calling thread, and the threads and processes that it starts, have a time slice of a tenth
/// of a millisecond. A thread that wakes up waits for them at most that long. Their share of the CPU does not
/// change. Kernels before 6.12 have no such slices, and threads of real-time or idle priority need none:
/// nothing changes there.
pub fn shorten() {
    let mut attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: `attributes` has the size that is given, and outlives the call; 0 is the calling thread.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if got != 0 || attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attributes.sched_runtime = SLICE_NS;
    // SAFETY: as above. A kernel that refuses leaves the thread as it was.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
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
