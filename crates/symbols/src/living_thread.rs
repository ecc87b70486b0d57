// SPDX-License-Identifier: Apache-2.0
//! Where `/proc` shows the memory of a process whose first thread has ended.

use std::path::Path;

use rustix::io::Errno;

/// The number by which `/proc` shows the memory, the program and the root folder of process `pid`: its own, or that of
/// another thread where its first one has ended. `/proc/PID` shows nothing of these then (proc(5)), and the
/// process works on. Its own where no thread has them.
pub fn living_thread(pid: u32) -> u32 {
    if has_program(&format!("/proc/{pid}/exe")) {
        return pid;
    }
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return pid };
    let numbers = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok());
    let mut others = numbers.filter(|tid| *tid != pid);
    others.find(|tid| has_program(&format!("/proc/{pid}/task/{tid}/exe"))).unwrap_or(pid)
}

/// Whether the link is there, or may not be read.
fn has_program(link: &str) -> bool {
    rustix::fs::readlink(Path::new(link), Vec::new()).map_or_else(|error| error != Errno::NOENT, |_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_number_while_the_first_thread_lives() {
        assert_eq!(living_thread(std::process::id()), std::process::id());
        assert_eq!(living_thread(0), 0, "there is no such process");
        assert_eq!(living_thread(2), 2, "a thread of the kernel has no program");
    }
}
