// SPDX-License-Identifier: Apache-2.0
//! The events that a source can emit. Nothing downstream knows which source emitted them.

mod binding;
mod fault;
mod interrupt;
mod kernel_delay;
mod latency;
mod ledger;
mod peer;
mod sample;
mod stall;
mod throttled;

pub use binding::Binding;
pub use fault::{Access, Fault, Mapping};
pub use interrupt::{CrossCallDelta, InterruptDelta, InterruptKind};
pub use kernel_delay::{DelayKind, KernelDelay};
pub use latency::{LatencyDelta, OffCpuDelta};
pub use ledger::LedgerDelta;
pub use peer::{Awaited, Peer, PeerKind, PeerProcess, Role};
pub use sample::{SampleDelta, WakerStacks, Weighted};
pub use stall::{Lock, OwnerSample, PlaceVerdict, RanInstead, Stall, WaitedFile, Waker};
pub use throttled::Throttled;

use crate::calls::CallPath;
use crate::counter::{Counter, CounterKey, Mark};
use crate::guard::IntrusionDelta;
use crate::loss::Loss;
use crate::span::{LateSample, Span, SpanDelta};
use crate::stack::{Frame, FrameId, MissingFile, Module, ModuleId, StackEnd, StackId, SymbolLine};
use crate::thread::{ThreadInfo, ThreadKey};
use crate::time::{ClockAnchor, MonoNs};

/// What a source sends to the recorder. An id (thread key, stack, frame, module) is defined by its own
/// event before anything refers to it.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Clock(ClockAnchor),
    /// A thread appears, or one of its names changed.
    Thread(ThreadInfo),
    /// The time from which on the thread was observed: the start of the recording or of the thread.
    ThreadSeen {
        thread: ThreadKey,
        from: MonoNs,
    },
    /// The thread ended; without this event it lived to the end of the recording.
    ThreadEnd {
        thread: ThreadKey,
        at: MonoNs,
    },
    Module {
        id: ModuleId,
        module: Module,
    },
    /// The file of a module without a build id was not found, but what it was is known.
    MissingFile {
        module: ModuleId,
        file: MissingFile,
    },
    Frame {
        id: FrameId,
        frame: Frame,
    },
    /// The functions at a frame, innermost first; sent when resolved, which may be long after the frame.
    Symbol {
        frame: FrameId,
        lines: Vec<SymbolLine>,
    },
    /// Leaf first.
    Stack {
        id: StackId,
        frames: Vec<FrameId>,
        end: StackEnd,
    },
    Binding(Binding),
    Ledger(LedgerDelta),
    Latency(LatencyDelta),
    OffCpu(OffCpuDelta),
    Sample(SampleDelta),
    /// Names the extra event number `index` of [`Weighted::Event`].
    EventName {
        index: u16,
        name: String,
    },
    Stall(Box<Stall>),
    /// Operations of the application, added up.
    Spans(Box<SpanDelta>),
    /// One of them, as an example.
    Span(Box<Span>),
    Late(LateSample),
    /// An event of the application, on the time axis.
    Mark(Mark),
    Interrupt(InterruptDelta),
    /// Noise on a guarded CPU, and its allowed threads.
    Intrusion(Box<IntrusionDelta>),
    KernelDelay(KernelDelay),
    CrossCalls(CrossCallDelta),
    Throttled(Throttled),
    /// The resolution of times of calls, in ns; of several the coarsest counts.
    CallResolution(u64),
    CallPath(Box<CallPath>),
    Counter {
        key: CounterKey,
        counter: Counter,
    },
    /// A counter's value; for one that does not change the first and the last reading are enough.
    CounterValue {
        key: CounterKey,
        at: MonoNs,
        value: f64,
    },
    /// Something that is not recorded; the reason is a name of [`Loss`].
    Loss {
        reason: String,
        count: u64,
    },
    /// The cost of wallprof itself since the last such event.
    Overhead {
        process_cpu_ns: u64,
        probe_ns: u64,
        probe_runs: u64,
        /// That recorded threads waited for a CPU on which a thread of wallprof ran.
        behind_ns: u64,
        /// Kernel memory of unwind tables now, bytes.
        table_bytes: u64,
    },
}

impl Event {
    pub fn loss(loss: Loss, count: u64) -> Self {
        Event::Loss { reason: loss.name().into(), count }
    }
}
