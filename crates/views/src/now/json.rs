// SPDX-License-Identifier: Apache-2.0
//! One thread a line, the longest wait first:
//!
//! ```text
//! { "pid", "tid", "comm", "process", "state": "running|runnable|blocked", "since_ns": null|N,
//!   "since_at_least_ns": null|N, "reason", "meaning", "syscall", "user_stack", "kernel_stack", "complete",
//!   "moved",
//!   "lock": null | { "address": null|HEX, "owner": null | { "tid", "comm", "state", "reason", "user_stack" } } }
//! ```
//! `address`: `null` for a lock of the kernel, whose holder can be of another process.
//! `moved`: the thread ran during each walk of its stacks, which are `null`.

use std::collections::HashMap;
use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;
use wallprof_analysis::now::by_length;
use wallprof_model::profile::LockRecord;
use wallprof_model::{Since, StackEnd, ThreadNow};

use crate::json::{Hex, MeaningJson, StackJson, known, schema, write_line};

/// Writes each thread for which `is_shown` as one line that holds one object. Holders of locks can be among
/// the others.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn threads_json(
    out: &mut impl Write,
    threads: &[ThreadNow],
    is_shown: &dyn Fn(&ThreadNow) -> bool,
) -> io::Result<()> {
    let by_tid: HashMap<u32, &ThreadNow> = threads.iter().map(|thread| (thread.tid, thread)).collect();
    let shown = by_length(threads).into_iter().filter(|thread| is_shown(thread));
    shown.map(|thread| ThreadJson::of(thread, &by_tid)).try_for_each(|thread| write_line(out, &thread))
}

/// `wallprof stacks --json`: one object a line, the longest wait first.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ThreadNow")]
pub(crate) struct ThreadJson<'a> {
    pid: u32,
    tid: u32,
    comm: &'a str,
    process: &'a str,
    #[schemars(schema_with = "schema::activities")]
    state: &'static str,
    since_ns: Option<u64>,
    since_at_least_ns: Option<u64>,
    reason: Option<&'static str>,
    meaning: Option<MeaningJson<'a>>,
    syscall: Option<&'a str>,
    user_stack: Option<StackJson<'a>>,
    kernel_stack: Option<StackJson<'a>>,
    complete: Option<bool>,
    /// It ran during each walk of its stacks, which are `null`.
    moved: bool,
    lock: Option<LockJson<'a>>,
}

impl<'a> ThreadJson<'a> {
    fn of(thread: &'a ThreadNow, by_tid: &HashMap<u32, &'a ThreadNow>) -> Self {
        let (since_ns, since_at_least_ns) = match thread.since {
            Since::For(ns) => (Some(ns), None),
            Since::AtLeast(ns) => (None, Some(ns)),
            Since::Unknown => (None, None),
        };
        ThreadJson {
            pid: thread.pid,
            tid: thread.tid,
            comm: &thread.comm,
            process: &thread.process,
            state: thread.activity.name(),
            since_ns,
            since_at_least_ns,
            reason: thread.activity.reason().map(|reason| reason.name()),
            meaning: thread.meaning.as_deref().map(|meaning| MeaningJson::of(meaning, None)),
            syscall: thread.syscall.as_deref(),
            user_stack: thread.user.as_ref().map(StackJson),
            kernel_stack: thread.kernel.as_ref().map(StackJson),
            complete: thread.user.as_ref().map(|stack| stack.end == StackEnd::Complete),
            moved: thread.moved,
            lock: thread.lock.as_ref().map(|lock| LockJson::of(lock, by_tid)),
        }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LockNow")]
struct LockJson<'a> {
    /// `null`: a lock of the kernel.
    address: Option<Hex>,
    owner: Option<OwnerJson<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OwnerNow")]
struct OwnerJson<'a> {
    tid: u32,
    comm: Option<&'a str>,
    state: Option<&'static str>,
    reason: Option<&'static str>,
    user_stack: Option<StackJson<'a>>,
    /// Of the holder of a lock of the kernel.
    kernel_stack: Option<StackJson<'a>>,
}

impl<'a> LockJson<'a> {
    fn of(lock: &'a LockRecord, by_tid: &HashMap<u32, &'a ThreadNow>) -> Self {
        let owner = lock.owner.as_ref().map(|owner| {
            let thread = by_tid.get(&owner.tid);
            OwnerJson {
                tid: owner.tid,
                comm: known(&owner.comm),
                state: thread.map(|thread| thread.activity.name()),
                reason: thread.and_then(|thread| thread.activity.reason()).map(|reason| reason.name()),
                user_stack: thread.and_then(|thread| thread.user.as_ref()).map(StackJson),
                kernel_stack: thread
                    .filter(|_| lock.address == 0)
                    .and_then(|thread| thread.kernel.as_ref())
                    .map(StackJson),
            }
        });
        LockJson { address: (lock.address != 0).then_some(Hex(lock.address)), owner }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    fn objects(threads: &[ThreadNow]) -> Vec<serde_json::Value> {
        let mut out = Vec::new();
        threads_json(&mut out, threads, &|_| true).expect("memory is writable");
        let text = String::from_utf8(out).expect("UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect()
    }

    #[test]
    fn owner_has_its_state_and_its_stack() {
        let objects = objects(&fixture::threads());
        let waiter = objects.iter().find(|object| object["tid"] == 12).expect("the worker");
        assert_eq!((&waiter["state"], &waiter["reason"]), (&"blocked".into(), &"lock".into()));
        assert_eq!((&waiter["since_ns"], &waiter["complete"]), (&2_500_000.into(), &true.into()));
        let owner = &waiter["lock"]["owner"];
        assert_eq!((&owner["tid"], &owner["reason"]), (&10.into(), &"disk".into()));
        assert_eq!(owner["user_stack"][1]["symbol"], "sweep_registry");
        assert_eq!(waiter["lock"]["address"], "0x7f00");
    }

    #[test]
    fn longest_wait_is_first_and_unknown_facts_are_null() {
        let objects = objects(&fixture::threads());
        let tids: Vec<_> = objects.iter().map(|object| object["tid"].as_u64()).collect();
        assert_eq!(tids, [10, 12, 11, 13].map(Some));
        let (keeper, busy) = (&objects[0], &objects[3]);
        assert_eq!((&keeper["since_ns"], &keeper["since_at_least_ns"]), (&().into(), &3_000_000.into()));
        for key in ["user_stack", "kernel_stack", "complete", "reason", "lock", "meaning", "syscall"] {
            assert!(busy[key].is_null(), "{key}");
        }
    }
}
