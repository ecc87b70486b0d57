//! Memory that is free and not the kernel's yet.

/// Gives free memory back to the kernel. Reading symbols takes tens of megabytes for a moment, which the C library would
/// keep for the next time (malloc_trim(3)).
pub fn give_back() {
    // SAFETY: takes no pointers, and may be called at any time from any thread; glibc, which this program needs, has it.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_pages() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("procfs");
        statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number")
    }

    #[test]
    fn what_was_freed_is_not_kept() {
        let chunks: Vec<Vec<u8>> = (0..4_000).map(|_| vec![1; 8 * 1024]).collect();
        let barrier = Box::new([1u8; 64]);
        let full = resident_pages();
        drop(chunks);
        give_back();
        assert!(resident_pages() + 4_000 < full, "{} of {full} pages left", resident_pages());
        assert_eq!(barrier[0], 1);
    }
}
