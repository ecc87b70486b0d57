// SPDX-License-Identifier: Apache-2.0
//! Reads of `/proc` for which the kernel takes the `mmap_lock` of the process that is read.
//!
//! A thread that waits for that lock owns it from the moment at which the one before released it
//! (kernel/locking/rwsem.c, rwsem_mark_wake()), and has yet to get a CPU. Meanwhile, for milliseconds where all CPUs
//! are busy, each thread of the process that maps memory waits. So the reader keeps the CPU, where it has a way.

use std::any::Any;
use std::io::{self, Read};
use std::sync::OnceLock;

/// The calling thread keeps the CPU for as long as the value lives.
pub type KeepCpu = fn() -> Box<dyn Any>;

static KEEP_CPU: OnceLock<KeepCpu> = OnceLock::new();

/// Gives the way in which threads keep the CPU. The first one that is given is used; without one, the scheduler
/// decides.
pub fn keep_cpu_by(way: KeepCpu) {
    let _ = KEEP_CPU.set(way);
}

/// The calling thread keeps the CPU until the value is dropped.
#[must_use]
pub fn kept_cpu() -> Option<Box<dyn Any>> {
    KEEP_CPU.get().map(|keep| keep())
}

/// A file in `/proc` about the memory of a process. Buffers of some KiB are read in less than a slice.
pub struct Undisturbed<R>(pub R);

impl<R: Read> Read for Undisturbed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let _kept = kept_cpu();
        self.0.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static HOLDERS: Cell<i32> = const { Cell::new(0) };
    }

    struct Holder;

    impl Holder {
        fn new() -> Self {
            HOLDERS.set(HOLDERS.get() + 1);
            Holder
        }
    }

    impl Drop for Holder {
        fn drop(&mut self) {
            HOLDERS.set(HOLDERS.get() - 1);
        }
    }

    struct Asked;

    impl Read for Asked {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            buffer[0] = HOLDERS.get() as u8;
            Ok(1)
        }
    }

    #[test]
    fn the_cpu_is_kept_for_a_read_and_no_longer() {
        keep_cpu_by(|| Box::new(Holder::new()));
        let mut buffer = [0; 4];
        assert_eq!(Undisturbed(Asked).read(&mut buffer).expect("it is read"), 1);
        assert_eq!((buffer[0], HOLDERS.get()), (1, 0));
    }
}
