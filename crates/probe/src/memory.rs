// SPDX-License-Identifier: Apache-2.0
//! Memory that is freed and not returned to the kernel yet.

/// An allocation of at least this many bytes returns to the kernel as soon as it is freed.
const LARGE: libc::c_int = 256 << 10;
/// Free memory at the end of the heap does so too, from this many bytes on.
const FREE_END: libc::c_int = 1 << 20;

/// For a process that runs for long: from now on large allocations return to the kernel when they are freed.
/// By default the C library adapts to the first of them and keeps up to 32 MiB, in each thread that had one
/// (mallopt(3)).
pub fn keep_little() {
    // SAFETY: takes no pointers, and may be called at any time from any thread; glibc, which this program
    // needs, has it.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, FREE_END);
    }
}

/// Returns free memory to the kernel. Reading symbols takes tens of megabytes for a short time, which the C
/// library would keep (malloc_trim(3)).
pub fn give_back() {
    // SAFETY: takes no pointers, and may be called at any time from any thread; glibc, which this program
    // needs, has it.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn resident_pages() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("procfs");
        statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number")
    }

    /// Fills memory with `pieces`, frees them and returns how many of their pages are still resident.
    fn pages_left(pieces: Vec<Vec<u8>>, give_back: impl Fn()) -> u64 {
        let before = resident_pages();
        let barrier = Box::new([1u8; 64]);
        let pages = pieces.iter().map(Vec::len).sum::<usize>() as u64 / 4096;
        drop(pieces);
        give_back();
        assert_eq!(barrier[0], 1);
        pages.saturating_sub(before.saturating_sub(resident_pages()))
    }

    /// Set in a process that runs this test alone: the pages are those of the whole process.
    const ALONE: &str = "WALLPROF_MEMORY_TEST_ALONE";

    #[test]
    fn freed_memory_is_returned() {
        if std::env::var_os(ALONE).is_none() {
            let own = std::env::current_exe().expect("this test");
            let name = "memory::tests::freed_memory_is_returned";
            let alone = Command::new(own).args(["--exact", name, "--nocapture"]).env(ALONE, "1").output();
            let alone = alone.expect("this test runs again");
            let said = String::from_utf8_lossy(&alone.stdout);
            assert!(alone.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        // First: large pieces would find a place in what the small ones leave free.
        keep_little();
        let large = (0..16).map(|_| vec![1; 1 << 20]).collect();
        let left = pages_left(large, || {});
        assert!(left < 100, "{left} pages of large pieces left");
        let small = (0..4_000).map(|_| vec![1; 8 * 1024]).collect();
        let left = pages_left(small, give_back);
        assert!(left < 4_000, "{left} pages of small pieces left");
    }
}
