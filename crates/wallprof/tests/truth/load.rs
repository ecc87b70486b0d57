// SPDX-License-Identifier: Apache-2.0
//! Load beside a scenario: what a busy machine does to its threads.

use std::fs;
use std::io::ErrorKind;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use wallprof_testkit::lines::TIMEOUT;

/// A running `stress-ng`. Ended with its workers when dropped.
pub struct Load {
    child: Child,
}

impl Load {
    /// One CPU hog a CPU and one that allocates. `None` where `stress-ng` is not installed.
    pub fn stress() -> Option<Self> {
        let child = Command::new("stress-ng")
            .args(["--cpu", "2", "--vm", "1", "--vm-bytes", "64M", "--timeout", "600"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => Some(Load { child }.wait_for_workers(3)),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => panic!("stress-ng does not start: {error}"),
        }
    }

    fn wait_for_workers(self, count: usize) -> Self {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let deadline = Instant::now() + TIMEOUT;
        while fs::read_to_string(&children).is_ok_and(|pids| pids.split_whitespace().count() < count) {
            assert!(Instant::now() < deadline, "stress-ng starts no workers");
            std::thread::yield_now();
        }
        self
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}
