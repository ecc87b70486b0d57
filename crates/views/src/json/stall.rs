// SPDX-License-Identifier: Apache-2.0
//! One stall in JSON.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use wallprof_analysis::counters::CounterMove;
use wallprof_analysis::{Holder, HolderFrom};
use wallprof_model::event::{Fault, Peer};
use wallprof_model::profile::{BoundAtFirstCall, LockRecord, StallRecord, WakerRecord};
use wallprof_model::{ClockMap, Meaning, StackEnd, ThreadRef, WaitWord};

use super::mark::MarkJson;
use super::span::SpanJson;
use super::stack::StackJson;
use super::{Hex, known, schema};
use crate::surroundings::Surroundings;

/// `wallprof stalls --json`: one object a line, oldest first.
#[derive(Serialize, JsonSchema)]
pub(crate) struct StallJson<'a> {
    id: u64,
    /// Unix epoch.
    start_ns: u64,
    end_ns: u64,
    duration_ns: u64,
    /// The time after the timeout where the thread overslept one, else the duration.
    late_ns: u64,
    /// It had not ended when the recording did.
    open: bool,
    /// The thread's id in the report.
    thread: u32,
    pid: u32,
    tid: u32,
    comm: &'a str,
    /// The id of the thread's container.
    container: Option<&'a str>,
    /// The container in Kubernetes: `NAMESPACE/POD/CONTAINER`.
    pod: Option<&'a str>,
    #[schemars(schema_with = "schema::stall_kinds")]
    kind: &'static str,
    #[schemars(schema_with = "schema::stall_reasons")]
    reason: &'static str,
    /// Waiting is the thread's job here: it is not late.
    voluntary: bool,
    /// What users of the software call this wait.
    meaning: Option<MeaningJson<'a>>,
    /// Equal for the time slices of one wait.
    wait_id: u64,
    syscall: Option<&'a str>,
    blocked_ns: u64,
    /// The end of the wait, in which the thread waited for a CPU.
    runnable_ns: u64,
    /// On which it came back.
    cpu: Option<u32>,
    user_stack: Option<StackJson<'a>>,
    kernel_stack: Option<StackJson<'a>>,
    /// Whether the user stack reaches the thread's start; nothing is known of a stack that was not taken.
    complete: Option<bool>,
    /// Who ended the wait.
    waker: Option<WakerJson<'a>>,
    lock: Option<LockJson<'a>>,
    /// The threads that had the CPU meanwhile.
    ran_instead: Vec<RanInsteadJson<'a>>,
    fault: Option<FaultJson<'a>>,
    binding: Option<BindingJson<'a>>,
    file: Option<FileJson<'a>>,
    peer: Option<PeerJson<'a>>,
    #[schemars(with = "Option<BTreeMap<String, CounterJson>>")]
    counters: Option<CountersJson<'a>>,
    /// Marks within a second of it.
    marks: Vec<MarkJson<'a>>,
    /// Those that were kept one by one and in which it began, the innermost first.
    spans: Vec<SpanJson<'a>>,
    /// The timeout that the thread had asked for.
    asked_ns: Option<u64>,
    /// The trace that the thread worked for, where its process publishes that (OpenTelemetry's OTEP 4947).
    trace_id: Option<String>,
    span_id: Option<String>,
}

impl<'a> StallJson<'a> {
    pub fn of(stall: &'a StallRecord, surroundings: &'a Surroundings, clock: &ClockMap) -> Self {
        StallJson {
            id: stall.id,
            start_ns: clock.epoch_from_mono(stall.start).0,
            end_ns: clock.epoch_from_mono(stall.end).0,
            duration_ns: stall.duration_ns(),
            late_ns: stall.late_ns(),
            open: stall.open,
            thread: stall.thread.0,
            pid: stall.pid,
            tid: stall.tid,
            comm: &stall.comm,
            container: surroundings.container.as_deref(),
            pod: surroundings.pod.as_deref(),
            kind: stall.kind.name(),
            reason: stall.reason.name(),
            voluntary: stall.voluntary,
            meaning: stall.meaning.as_deref().map(|meaning| MeaningJson::of(meaning, stall.word.as_ref())),
            wait_id: stall.wait_id.unwrap_or(stall.id),
            syscall: stall.syscall.as_deref(),
            blocked_ns: stall.blocked_ns,
            runnable_ns: stall.runnable_ns,
            cpu: stall.cpu,
            user_stack: stall.user.as_ref().map(StackJson),
            kernel_stack: stall.kernel.as_ref().map(StackJson),
            complete: stall.user.as_ref().map(|stack| stack.end == StackEnd::Complete),
            waker: stall.waker.as_ref().map(WakerJson::of),
            lock: match &stall.lock {
                Some(lock) => Some(LockJson::of(lock, surroundings.holder.as_ref())),
                None => LockJson::inferred(stall),
            },
            ran_instead: stall.ran_instead.iter().map(RanInsteadJson::of).collect(),
            fault: stall.fault.as_ref().map(FaultJson::of),
            binding: stall.binding.as_ref().map(BindingJson::of),
            peer: stall.peer.as_deref().map(PeerJson::of),
            file: stall.file.as_ref().map(|file| FileJson { path: &file.path, offset: file.offset }),
            counters: surroundings.counters.as_deref().map(CountersJson),
            marks: surroundings.marks.iter().map(|mark| MarkJson::of(mark, clock)).collect(),
            spans: surroundings.spans.iter().map(|span| SpanJson::of(span, clock)).collect(),
            asked_ns: stall.asked_ns,
            trace_id: stall.trace.map(|ids| ids.trace_id()),
            span_id: stall.trace.map(|ids| ids.span_id()),
        }
    }
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct MeaningJson<'a> {
    name: &'a str,
    software: Option<&'a str>,
    idle: bool,
    /// A rule about the stack, the software's memory, who ends the waits, or a rule of the user.
    #[schemars(schema_with = "schema::meaning_sources")]
    source: &'static str,
    /// What the software itself calls it, from its memory.
    detail: Option<&'a str>,
}

impl<'a> MeaningJson<'a> {
    pub(crate) fn of(meaning: &'a Meaning, word: Option<&'a WaitWord>) -> Self {
        MeaningJson {
            name: &meaning.name,
            software: meaning.software.as_deref(),
            idle: meaning.idle,
            source: meaning.source.name(),
            detail: word.and_then(|word| word.text.as_deref()),
        }
    }
}

#[derive(Serialize, JsonSchema)]
pub(super) struct WakerJson<'a> {
    #[schemars(schema_with = "schema::contexts")]
    context: &'static str,
    thread: Option<u32>,
    pid: Option<u32>,
    tid: Option<u32>,
    comm: Option<&'a str>,
    title: Option<&'a str>,
    user_stack: Option<StackJson<'a>>,
    kernel_stack: Option<StackJson<'a>>,
}

impl<'a> WakerJson<'a> {
    pub fn of(waker: &'a WakerRecord) -> Self {
        let thread = waker.thread.as_ref();
        WakerJson {
            context: if thread.is_some() { "task" } else { "interrupt" },
            thread: thread.and_then(row),
            pid: thread.map(|thread| thread.pid),
            tid: thread.map(|thread| thread.tid),
            comm: thread.and_then(|thread| known(&thread.comm)),
            title: thread.and_then(|thread| thread.title.as_deref()),
            user_stack: waker.user.as_ref().map(StackJson),
            kernel_stack: waker.kernel.as_ref().map(StackJson),
        }
    }
}

#[derive(Serialize, JsonSchema)]
pub(super) struct LockJson<'a> {
    /// `null`: only the threads know of the lock.
    address: Option<Hex>,
    owner: Option<OwnerJson<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct OwnerJson<'a> {
    thread: Option<u32>,
    tid: u32,
    comm: Option<&'a str>,
    title: Option<&'a str>,
    /// What it did for the longest part of the wait.
    state: Option<&'a str>,
    user_stack: Option<StackJson<'a>>,
    /// Where the stack is from.
    #[schemars(schema_with = "schema::holder_sources")]
    from: Option<&'static str>,
}

impl<'a> LockJson<'a> {
    pub fn of(lock: &'a LockRecord, holder: Option<&'a Holder>) -> Self {
        let user = holder.and_then(|holder| holder.user.as_ref());
        let owner = |owner: &'a ThreadRef| OwnerJson {
            thread: row(owner),
            tid: owner.tid,
            comm: known(&owner.comm),
            title: owner.title.as_deref(),
            state: holder.map(|holder| holder.state.as_str()),
            user_stack: user.map(|(_, stack)| StackJson(stack)),
            from: user.map(|(from, _)| from.name()),
        };
        LockJson {
            address: (lock.address != 0).then_some(Hex(lock.address)),
            owner: lock.owner.as_ref().map(owner),
        }
    }
}

impl<'a> LockJson<'a> {
    /// Of a lock that only the threads know: the one that ended the wait held it, and let go in that stack.
    fn inferred(stall: &'a StallRecord) -> Option<Self> {
        let is_held = stall.meaning.as_ref().is_some_and(|meaning| meaning.holder && !meaning.idle);
        let waker = stall.waker.as_ref().filter(|_| is_held)?;
        let thread = waker.thread.as_ref()?;
        let owner = OwnerJson {
            thread: row(thread),
            tid: thread.tid,
            comm: known(&thread.comm),
            title: thread.title.as_deref(),
            state: None,
            user_stack: waker.user.as_ref().map(StackJson),
            from: waker.user.as_ref().map(|_| HolderFrom::Release.name()),
        };
        Some(LockJson { address: None, owner: Some(owner) })
    }
}

#[derive(Serialize, JsonSchema)]
struct RanInsteadJson<'a> {
    thread: Option<u32>,
    pid: u32,
    tid: u32,
    comm: Option<&'a str>,
    ns: u64,
}

impl<'a> RanInsteadJson<'a> {
    fn of((thread, ns): &'a (ThreadRef, u64)) -> Self {
        RanInsteadJson {
            thread: row(thread),
            pid: thread.pid,
            tid: thread.tid,
            comm: known(&thread.comm),
            ns: *ns,
        }
    }
}

#[derive(Serialize, JsonSchema)]
struct FaultJson<'a> {
    address: Hex,
    access: Option<&'static str>,
    major: bool,
    mapping: Option<&'static str>,
    file: Option<&'a str>,
    file_offset: Option<u64>,
}

impl<'a> FaultJson<'a> {
    fn of(fault: &'a Fault) -> Self {
        FaultJson {
            address: Hex(fault.address),
            access: fault.access.map(|access| access.name()),
            major: fault.major,
            mapping: fault.mapping.map(|mapping| mapping.name()),
            file: fault.file.as_deref(),
            file_offset: fault.file_offset,
        }
    }
}

/// The function that the dynamic linker bound at its first call.
#[derive(Serialize, JsonSchema)]
struct BindingJson<'a> {
    symbol: Option<&'a str>,
    library: Option<&'a str>,
}

impl<'a> BindingJson<'a> {
    fn of(binding: &'a BoundAtFirstCall) -> Self {
        BindingJson { symbol: binding.symbol.as_deref(), library: binding.library.as_deref() }
    }
}

/// The other end of the socket or pipe that the system call waited on.
#[derive(Serialize, JsonSchema)]
struct PeerJson<'a> {
    kind: &'static str,
    awaited: &'static str,
    role: Option<&'static str>,
    /// Whether something was sent since the thread waited there the last time.
    asked: Option<bool>,
    local: Option<String>,
    remote: Option<String>,
    inode: u64,
    pid: Option<u32>,
    comm: Option<&'a str>,
}

impl<'a> PeerJson<'a> {
    fn of(peer: &'a Peer) -> Self {
        PeerJson {
            kind: peer.kind.name(),
            awaited: peer.awaited.name(),
            role: peer.role.map(|role| role.name()),
            asked: peer.asked,
            local: peer.local.map(|end| end.to_string()),
            remote: peer.remote.map(|end| end.to_string()),
            inode: peer.inode,
            pid: peer.process.as_ref().and_then(|process| process.pid),
            comm: peer.process.as_ref().and_then(|process| known(&process.comm)),
        }
    }
}

#[derive(Serialize, JsonSchema)]
struct FileJson<'a> {
    path: &'a str,
    offset: Option<u64>,
}

/// An object with a member for each counter.
struct CountersJson<'a>(&'a [CounterMove]);

/// A counter's values around a stall.
#[derive(Serialize, JsonSchema)]
struct CounterJson {
    before: f64,
    at: f64,
    after: Option<f64>,
}

impl Serialize for CountersJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for CounterMove { name, before, at, after, .. } in self.0 {
            map.serialize_entry(name, &CounterJson { before: *before, at: *at, after: *after })?;
        }
        map.end()
    }
}

fn row(thread: &ThreadRef) -> Option<u32> {
    thread.key.map(|key| key.0)
}
