// SPDX-License-Identifier: Apache-2.0
//! Work that holds a lock for which the threads of other processes may wait.
//!
//! The kernel reads another process's memory under that process's `mmap_lock` (mm/memory.c, access_remote_vm()), and
//! lets others have the CPU before it has read a page (mm/gup.c, `__get_user_pages`). A reader of ordinary priority
//! that loses its CPU there keeps the lock meanwhile, for milliseconds on a busy machine: each thread of the process
//! that maps memory waits for it.

/// The calling thread has real-time priority for as long as this lives, or what it had before where the kernel
/// refuses: without CAP_SYS_NICE, or in a cgroup that grants no real-time. A thread that has a better one keeps it.
pub struct KeptCpu {
    before: Option<libc::sched_attr>,
}

impl KeptCpu {
    /// Whether the kernel grants that priority to a thread of this process.
    pub fn is_granted() -> bool {
        let ask = || attributes().is_some_and(|own| !is_ordinary(&own)) || set(&REAL_TIME);
        std::thread::Builder::new().spawn(ask).is_ok_and(|asking| asking.join().unwrap_or(false))
    }

    /// No thread of ordinary priority gets the CPU of the calling thread from now on: for less than a slice.
    #[must_use]
    pub fn take() -> Self {
        let before = attributes().filter(is_ordinary);
        let kept = before.filter(|_| set(&REAL_TIME));
        KeptCpu { before: kept }
    }
}

impl Drop for KeptCpu {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            set(before);
        }
    }
}

const NOTHING: libc::sched_attr = libc::sched_attr {
    size: size_of::<libc::sched_attr>() as u32,
    sched_policy: 0,
    sched_flags: 0,
    sched_nice: 0,
    sched_priority: 0,
    sched_runtime: 0,
    sched_deadline: 0,
    sched_period: 0,
};

const REAL_TIME: libc::sched_attr =
    libc::sched_attr { sched_policy: libc::SCHED_FIFO as u32, sched_priority: 1, ..NOTHING };

/// Whether threads of ordinary priority can take the CPU.
fn is_ordinary(attributes: &libc::sched_attr) -> bool {
    [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].contains(&(attributes.sched_policy as i32))
}

/// Of the calling thread: policy, priority and slice.
pub(crate) fn attributes() -> Option<libc::sched_attr> {
    let mut attributes = NOTHING;
    let size = size_of::<libc::sched_attr>();
    // SAFETY: `attributes` has the size that is given, and outlives the call; 0 is the calling thread.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    (got == 0).then_some(attributes)
}

/// False where the kernel refuses, which leaves the calling thread as it was.
pub(crate) fn set(attributes: &libc::sched_attr) -> bool {
    // SAFETY: `attributes` has the size that it says, and outlives the call; 0 is the calling thread.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, std::ptr::from_ref(attributes), 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slices;

    fn of_thread(attributes: &libc::sched_attr) -> (u32, u32, i32, u64) {
        let libc::sched_attr { sched_policy, sched_priority, sched_nice, sched_runtime, .. } = *attributes;
        (sched_policy, sched_priority, sched_nice, sched_runtime)
    }

    fn own() -> libc::sched_attr {
        attributes().expect("a thread has attributes")
    }

    /// Policy and priority of a thread with these attributes, or of one of the recorder's, while it keeps its CPU.
    fn kept_as(given: Option<libc::sched_attr>) -> (i32, u32) {
        let keep = move || {
            match &given {
                Some(given) => assert!(set(given)),
                None => slices::shorten(),
            }
            let before = own();
            let kept = KeptCpu::take();
            let meanwhile = own();
            drop(kept);
            assert_eq!(of_thread(&own()), of_thread(&before));
            (meanwhile.sched_policy as i32, meanwhile.sched_priority)
        };
        std::thread::spawn(keep).join().expect("a thread that keeps its CPU")
    }

    #[test]
    fn real_time_priority_where_the_kernel_grants_it_and_then_what_was_before() {
        let expected = if KeptCpu::is_granted() { (libc::SCHED_FIFO, 1) } else { (libc::SCHED_OTHER, 0) };
        assert_eq!(kept_as(None), expected);
    }

    #[test]
    fn a_thread_that_nobody_disturbs_keeps_its_priority() {
        let own = libc::sched_attr { sched_policy: libc::SCHED_RR as u32, sched_priority: 7, ..NOTHING };
        if std::thread::spawn(move || set(&own)).join().expect("a thread that asks") {
            assert_eq!(kept_as(Some(own)), (libc::SCHED_RR, 7));
        }
    }

    #[test]
    fn a_batch_thread_is_one_again() {
        let batch = libc::sched_attr { sched_policy: libc::SCHED_BATCH as u32, sched_nice: 5, ..NOTHING };
        let (policy, _) = kept_as(Some(batch));
        assert!([libc::SCHED_FIFO, libc::SCHED_BATCH].contains(&policy), "{policy}");
    }
}
