// SPDX-License-Identifier: Apache-2.0
//! What the kernel itself counts about a thread: the second measurement of the ledger.

use std::fs;
use std::time::Instant;

use crate::lines::TIMEOUT;

/// One reading of a thread's counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    pub on_cpu_ns: u64,
    pub run_queue_ns: u64,
    pub voluntary: u64,
    pub involuntary: u64,
}

impl Counters {
    /// From `/proc/PID/task/TID/schedstat` and `status`.
    pub fn of(pid: u32, tid: u32) -> Self {
        let task = format!("/proc/{pid}/task/{tid}");
        let schedstat = read(&format!("{task}/schedstat"));
        let mut fields = schedstat.split_whitespace().map(number);
        let status = read(&format!("{task}/status"));
        Counters {
            on_cpu_ns: fields.next().expect("running time"),
            run_queue_ns: fields.next().expect("waiting time"),
            voluntary: field(&status, "voluntary_ctxt_switches:"),
            involuntary: field(&status, "nonvoluntary_ctxt_switches:"),
        }
    }

    pub fn since(self, before: Self) -> Self {
        Counters {
            on_cpu_ns: self.on_cpu_ns - before.on_cpu_ns,
            run_queue_ns: self.run_queue_ns - before.run_queue_ns,
            voluntary: self.voluntary - before.voluntary,
            involuntary: self.involuntary - before.involuntary,
        }
    }

    pub fn switches(self) -> u64 {
        self.voluntary + self.involuntary
    }
}

/// Page faults that the kernel has counted for a thread so far, minor and major.
pub fn faults(pid: u32, tid: u32) -> u64 {
    let stat = read(&format!("/proc/{pid}/task/{tid}/stat"));
    let behind_the_name = &stat[stat.rfind(')').expect("a name") + 1..];
    // Fields 10 and 12 of proc_pid_stat(5); the state, behind the name, is the third.
    let fields: Vec<_> = behind_the_name.split_whitespace().collect();
    number(fields[7]) + number(fields[9])
}

/// `/proc/stat` shows whole ticks. Between two readings there may be one tick more.
pub const STEAL_TICK_NS: u64 = 10_000_000;

/// Steal time of all CPUs since boot, ns, in whole ticks.
pub fn steal_ns() -> u64 {
    let stat = read("/proc/stat");
    let total = stat.lines().next().expect("the line of all CPUs");
    total.split_whitespace().nth(8).map_or(0, number) * STEAL_TICK_NS
}

/// Context switches of the process' living threads so far.
pub fn process_switches(pid: u32) -> u64 {
    threads(pid).into_iter().map(|tid| Counters::of(pid, tid).switches()).sum()
}

/// Returns when every thread of the process sleeps in the kernel.
pub fn wait_until_asleep(pid: u32) {
    let deadline = Instant::now() + TIMEOUT;
    while !threads(pid).into_iter().all(|tid| state(pid, tid) == Some('S')) {
        assert!(Instant::now() < deadline, "the threads of {pid} do not all sleep");
        std::thread::yield_now();
    }
}

fn threads(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
    tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The letter after the name, which may itself contain anything.
fn state(pid: u32, tid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    stat[stat.rfind(')')? + 1..].trim_start().chars().next()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    number(line.unwrap_or_else(|| panic!("a line {name}")).trim())
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("'{text}' is a number"))
}
