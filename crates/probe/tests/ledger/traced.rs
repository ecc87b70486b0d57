// SPDX-License-Identifier: Apache-2.0
//! The trace that a thread publishes, by each way in which code finds a thread-local variable.

use crate::kernel::unchanged;
use crate::timeline::{Outcome, Timeline};

/// Numbers of `enum trace_access` in bpf/include/records.h.
const OFFSET: u64 = 1 | GLIBC;
const OFFSET_AT: u64 = 2 | GLIBC;
const INDEX_AT: u64 = 3 | GLIBC;
const DESCRIPTOR: u64 = 4 | GLIBC;
/// Bytes of an entry in a thread's vector of blocks.
const GLIBC: u64 = 16 << 8;
const MUSL: u64 = 8 << 8;

/// The variable is 16 bytes below the thread pointer, or in the block of module 2, and leads to a record.
const MEMORY: [(u64, i64); 19] = [
    (99_984, 5_000),
    (5_000, 0xaa),
    (5_008, 0xbb),
    (5_016, 0xcc),
    (5_024, 1), // valid
    // What the dynamic linker writes: a distance, and the second word of a descriptor with one.
    (7_000, -16),
    (7_008, -16),
    // Module, offset, and the generation in which the module was loaded; and the second word of a descriptor that
    // leads there.
    (8_000, 2),
    (8_008, 24),
    (8_016, 7),
    (8_108, 8_000),
    // The thread's vector: behind its pointer to itself; its length; its generation, which is musl's length; blocks of
    // module 2 as glibc and musl have them.
    (100_008, 9_000),
    (8_984, 2),
    (8_992, 0),
    (9_000, 7),
    (9_032, 6_000),
    (9_008, 0),
    (9_016, 6_000),
    (6_024, 5_000),
];

/// The traces of the stalls of a thread: `-` for one without. They are the same where the stacks are taken at the start
/// of waits.
fn traces(timeline: &str, access: u64, at: i64, changes: &[(u64, i64)], more: &[&str]) -> Vec<String> {
    let changed = |address: u64| changes.iter().find(|(at, _)| *at == address).map(|(_, value)| *value);
    let memory = MEMORY.iter().map(|(address, value)| (*address, changed(*address).unwrap_or(*value)));
    let mut lines =
        vec!["at 1 field 0 thread_pointer 100000".to_owned(), format!("at 1 trace 0 {access} {at}")];
    lines.extend(memory.map(|(address, value)| format!("at 1 memory {address} {value}")));
    lines.extend(more.iter().map(|line| (*line).to_owned()));
    let [at_the_end, at_the_start] = ["0", "1"].map(|stacks| {
        let settings = format!("set stacks_at_switch_out {stacks}\n{}", lines.join("\n"));
        let outcome = Outcome::of(unchanged(), &Timeline::new(timeline).with(&settings));
        let outcome = outcome.unwrap_or_else(|error| panic!("{error}"));
        let shown = outcome.records("stall").map(|stall| stall.text("trace").to_owned());
        shown.map(|trace| if trace.is_empty() { "-".into() } else { trace }).collect::<Vec<String>>()
    });
    assert_eq!(at_the_end, at_the_start);
    at_the_end
}

/// Flags of tasks: linux/sched.h.
const PF_IO_WORKER: u64 = 0x10;
const PF_USER_WORKER: u64 = 0x4000;

const LOCK: &str = "a: RRLLLLwRRRR";

#[test]
fn variable_is_found_by_each_way() {
    let descriptor_of_musl = DESCRIPTOR ^ GLIBC ^ MUSL;
    for (access, at) in [
        (OFFSET, -16),
        (OFFSET_AT, 7_000),
        (INDEX_AT, 8_000),
        (DESCRIPTOR, 7_000),
        (DESCRIPTOR, 8_100),
        (descriptor_of_musl, 7_000),
        (descriptor_of_musl, 8_100),
        (INDEX_AT ^ GLIBC ^ MUSL, 8_000),
    ] {
        assert_eq!(traces(LOCK, access, at, &[], &[]), ["aa-bb-cc"], "{access} {at}");
    }
}

#[test]
fn preempted_thread_has_its_trace() {
    assert_eq!(traces("a: RRPPPPRRLLLLwRR", OFFSET, -16, &[], &[]), ["aa-bb-cc", "aa-bb-cc"]);
}

/// It has the thread pointer of the thread that created it.
#[test]
fn worker_of_the_kernel_has_no_trace() {
    for flag in [PF_IO_WORKER, PF_USER_WORKER] {
        assert_eq!(traces(LOCK, OFFSET, -16, &[], &[&format!("at 1 field 0 flags {flag}")]), ["-"]);
    }
}

#[test]
fn block_of_a_module_that_had_the_number_before_is_not_followed() {
    assert_eq!(traces(LOCK, DESCRIPTOR, 8_100, &[(9_000, 6)], &[]), ["-"]);
}

#[test]
fn what_is_no_record_is_no_trace() {
    let of = |changes: &[(u64, i64)]| traces(LOCK, OFFSET, -16, changes, &[]);
    assert_eq!(of(&[(99_984, 0)]), ["-"], "detached");
    assert_eq!(of(&[(99_984, 4_096)]), ["-"], "not mapped");
    assert_eq!(of(&[(5_024, 0)]), ["-"], "being changed");
    assert_eq!(of(&[(5_024, 2)]), ["-"], "reserved");
    assert_eq!(of(&[(5_000, 0), (5_008, 0)]), ["-"], "no trace");
    assert_eq!(of(&[(5_016, 0)]), ["-"], "no span");
    assert_eq!(of(&[(5_024, 0x0101)]), ["aa-bb-cc"], "sampled");
}

#[test]
fn variable_that_the_thread_does_not_have_is_no_trace() {
    let of = |changes: &[(u64, i64)]| traces(LOCK, INDEX_AT, 8_000, changes, &[]);
    assert_eq!(of(&[(8_984, 1)]), ["-"], "its vector is shorter: the module came later");
    assert_eq!(of(&[(9_032, -1)]), ["-"], "it has not used the module yet");
    assert_eq!(of(&[(9_032, 0)]), ["-"]);
    assert_eq!(of(&[(100_008, 0)]), ["-"]);
    assert_eq!(traces(LOCK, DESCRIPTOR, 7_000, &[(7_008, 0)], &[]), ["-"], "not bound yet");
    assert_eq!(traces(LOCK, OFFSET_AT, 7_000, &[(7_000, 16)], &[]), ["-"], "never above the thread pointer");
    assert_eq!(traces(LOCK, OFFSET_AT, 1_000, &[], &[]), ["-"], "not mapped");
}

/// Recording pauses, and begins again while the thread waits.
#[test]
fn wait_over_a_pause_has_no_trace_of_the_wait_before() {
    let pause = ["at 8 memory 99984 0", "at 13 set armed_at 50013000000"];
    let found = traces("a: RRLLLLwRRRRLLLLLLwRR", OFFSET, -16, &[], &pause);
    assert_eq!(found, ["aa-bb-cc", "-"]);
}

#[test]
fn trace_is_that_of_its_own_wait() {
    let text = "a: RRLLLLwRRRRLLLLwRR";
    let changed = ["at 8 memory 5000 17", "at 8 memory 5016 18"];
    assert_eq!(traces(text, OFFSET, -16, &[], &changed), ["aa-bb-cc", "11-bb-12"]);
    assert_eq!(traces(text, OFFSET, -16, &[], &["at 8 memory 99984 0"]), ["aa-bb-cc", "-"]);
    assert_eq!(
        traces(text, OFFSET, -16, &[], &["at 8 field 0 exec_id 9"]),
        ["aa-bb-cc", "-"],
        "another program"
    );
}
