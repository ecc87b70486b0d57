// SPDX-License-Identifier: Apache-2.0
//! The JSON of `report --json` and `stalls --json` as docs/recording.md promises it. A field that is missing
//! or of another type fails the test that reads it.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub struct Report {
    pub schema: u32,
    pub recording: Recording,
    pub threads: Vec<Thread>,
    pub findings: Vec<Finding>,
    pub losses: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Finding {
    pub rule: String,
    pub cause: Cause,
    pub title: String,
    pub advice: String,
    pub threads: Vec<u64>,
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
    pub stalls: Vec<u64>,
}

/// Whose doing a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    Program,
    Machine,
}

#[derive(Debug, Deserialize)]
pub struct Recording {
    pub start_ns: u64,
    pub end_ns: u64,
    pub duration_ns: u64,
    pub clock: String,
    pub source: String,
}

#[derive(Debug, Deserialize)]
pub struct Thread {
    pub id: u64,
    pub pid: u32,
    pub tid: u32,
    pub ns_pid: u32,
    pub comm: String,
    pub process: String,
    pub start_ns: u64,
    pub end_ns: u64,
    pub wall_ns: u64,
    pub states: States,
    pub unaccounted_ns: u64,
    pub on_cpu_ns: u64,
    pub run_queue_ns: u64,
    pub samples: u64,
    pub switches: Switches,
    pub faults: Faults,
    pub latency: Latencies,
    pub stalls: u64,
}

#[derive(Debug, Deserialize)]
pub struct States {
    pub user: u64,
    pub kernel: u64,
    pub irq: u64,
    pub fault_minor: u64,
    pub fault_major: u64,
    pub runnable: u64,
    pub preempted: u64,
    pub blocked: BTreeMap<String, u64>,
}

impl States {
    pub fn sum(&self) -> u64 {
        self.user
            + self.kernel
            + self.irq
            + self.fault_minor
            + self.fault_major
            + self.runnable
            + self.preempted
            + self.blocked.values().sum::<u64>()
    }
}

#[derive(Debug, Deserialize)]
pub struct Switches {
    pub voluntary: u64,
    pub involuntary: u64,
}

/// Page faults that ended, by kind.
#[derive(Debug, Deserialize)]
pub struct Faults {
    pub minor: u64,
    pub major: u64,
    pub failed: u64,
}

#[derive(Debug, Deserialize)]
pub struct Latencies {
    pub off_cpu: Latency,
    pub run_queue: Latency,
    pub fault: Latency,
}

#[derive(Debug, Deserialize)]
pub struct Latency {
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
    pub histogram: Vec<Bucket>,
}

#[derive(Debug, Deserialize)]
pub struct Bucket {
    pub from_ns: u64,
    pub to_ns: u64,
    pub count: u64,
    pub total_ns: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Stall {
    pub id: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    pub duration_ns: u64,
    pub late_ns: u64,
    pub open: bool,
    pub thread: u64,
    pub pid: u32,
    pub tid: u32,
    pub comm: String,
    pub kind: String,
    pub reason: String,
    pub voluntary: bool,
    pub meaning: Option<Meaning>,
    /// Equal for the time slices of one wait.
    pub wait_id: u64,
    pub syscall: Option<String>,
    pub blocked_ns: u64,
    pub runnable_ns: u64,
    pub asked_ns: Option<u64>,
    pub user_stack: Option<Vec<Frame>>,
    pub kernel_stack: Option<Vec<Frame>>,
    pub waker: Option<Waker>,
    pub lock: Option<Lock>,
    pub ran_instead: Option<Vec<RanInstead>>,
    pub fault: Option<Fault>,
    pub counters: Option<BTreeMap<String, Counter>>,
    pub trace_id: Option<String>,
    pub span_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Meaning {
    pub name: String,
    pub software: Option<String>,
    pub idle: bool,
    pub source: String,
    pub detail: Option<String>,
}

impl Stall {
    pub fn overlaps(&self, start_ns: u64, end_ns: u64) -> bool {
        self.start_ns < end_ns && start_ns < self.end_ns
    }

    pub fn user_stack_has(&self, function: &str) -> bool {
        has_function(&self.user_stack, function)
    }
}

/// A counter that moved: sums are rates, per second.
#[derive(Clone, Debug, Deserialize)]
pub struct Counter {
    pub before: f64,
    pub at: f64,
    pub after: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Frame {
    pub symbol: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Waker {
    pub context: String,
    pub tid: Option<u32>,
    pub comm: Option<String>,
    pub user_stack: Option<Vec<Frame>>,
    pub kernel_stack: Option<Vec<Frame>>,
}

impl Owner {
    pub fn user_stack_has(&self, function: &str) -> bool {
        has_function(&self.user_stack, function)
    }
}

impl Waker {
    pub fn user_stack_has(&self, function: &str) -> bool {
        has_function(&self.user_stack, function)
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct Lock {
    pub address: Option<String>,
    pub owner: Option<Owner>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Owner {
    pub tid: u32,
    pub comm: String,
    pub state: Option<String>,
    pub user_stack: Option<Vec<Frame>>,
    pub from: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Fault {
    pub address: String,
    pub access: Option<String>,
    pub major: bool,
    pub mapping: Option<String>,
    pub file: Option<String>,
    pub file_offset: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct RanInstead {
    pub tid: u32,
    /// `null` for a thread that ended before its name was read.
    pub comm: Option<String>,
    pub ns: u64,
}

fn has_function(stack: &Option<Vec<Frame>>, function: &str) -> bool {
    stack.iter().flatten().any(|frame| frame.symbol.as_deref() == Some(function))
}
