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
    /// A reading of both clocks. Each later time of day follows from it, until the next reading.
    Clock(ClockAnchor),
    /// A thread appears, or one of its names changed.
    Thread(ThreadInfo),
    /// The start of a thread's observation: the start of the recording, or of the thread if that is later.
    ThreadSeen {
        /// The thread; [`Event::Thread`] has defined it.
        thread: ThreadKey,
        /// Monotonic clock, ns.
        from: MonoNs,
    },
    /// The thread ended; without this event it lived to the end of the recording.
    ThreadEnd {
        /// The thread; [`Event::Thread`] has defined it.
        thread: ThreadKey,
        /// The thread's end, or the last time at which the source observed it. Monotonic clock, ns.
        at: MonoNs,
    },
    /// A file that frames refer to.
    Module {
        /// A number that the source has not used for another file.
        id: ModuleId,
        /// The path and the build id of the file.
        module: Module,
    },
    /// The identity of a file that was not found, for its module, which has no build id.
    MissingFile {
        /// The module; [`Event::Module`] has defined it.
        module: ModuleId,
        /// The build id that the profiler had recorded, and where the code begins in the file.
        file: MissingFile,
    },
    /// A code address in a stack.
    Frame {
        /// The number by which [`Event::Stack`] and [`Event::CallPath`] refer to the frame.
        id: FrameId,
        /// The address, with its module, which [`Event::Module`] has defined.
        frame: Frame,
    },
    /// The functions at a frame, innermost first; sent when resolved, which may be long after the frame.
    Symbol {
        /// The frame; [`Event::Frame`] has defined it.
        frame: FrameId,
        /// These lines replace earlier lines of the frame, unless only the earlier lines have a symbol.
        lines: Vec<SymbolLine>,
    },
    /// A stack, its leaf frame first.
    Stack {
        /// A number that the source may use for another stack later: the newest definition counts.
        id: StackId,
        /// The frames; [`Event::Frame`] has defined each frame.
        frames: Vec<FrameId>,
        /// How the walk of the stack ended.
        end: StackEnd,
    },
    /// What the dynamic linker bound in a user stack; [`Event::Stack`] has defined the stack.
    Binding(Binding),
    /// Time of a thread by state, to be added to a second of its ledger.
    Ledger(LedgerDelta),
    /// Lengths of intervals, to be added to a distribution of a thread.
    Latency(LatencyDelta),
    /// Off-CPU intervals by reason, for monitors. [`Event::Latency`] has the same intervals for recordings.
    OffCpu(OffCpuDelta),
    /// Weight on a pair of stacks, to be added to a second of a thread.
    Sample(SampleDelta),
    /// Names the extra event number `index` of [`Weighted::Event`].
    EventName {
        /// The first extra event has the index 0.
        index: u16,
        /// As the profiler printed it, such as `cache-misses`.
        name: String,
    },
    /// A single interval off the CPU, or a page fault. A later stall of the thread with the same start
    /// replaces an open stall.
    Stall(Box<Stall>),
    /// Operations of the application, added up.
    Spans(Box<SpanDelta>),
    /// One operation of the application, as an example.
    Span(Box<Span>),
    /// A sample or a short wait late in a span or a busy period.
    Late(LateSample),
    /// An event of the application, on the time axis.
    Mark(Mark),
    /// Interrupt time on one CPU, to be added up.
    Interrupt(InterruptDelta),
    /// Noise on a guarded CPU, and its allowed threads.
    Intrusion(Box<IntrusionDelta>),
    /// An interval in which the kernel did something on a thread's behalf.
    KernelDelay(KernelDelay),
    /// Functions that a thread had called on other CPUs, to be added up.
    CrossCalls(CrossCallDelta),
    /// A quota that was used up, once for each recorded process of the control group.
    Throttled(Throttled),
    /// The resolution of times of calls, in ns; of several the coarsest counts.
    CallResolution(u64),
    /// Calls that were counted for a call path, to be added up.
    CallPath(Box<CallPath>),
    /// Defines a counter, before the first value of it.
    Counter {
        /// The number by which [`Event::CounterValue`] refers to the counter.
        key: CounterKey,
        /// The name, the unit and the process of the counter.
        counter: Counter,
    },
    /// A counter's value; for one that does not change the first and the last reading are enough.
    CounterValue {
        /// The counter; [`Event::Counter`] has defined it.
        key: CounterKey,
        /// When the value was read: monotonic clock, ns.
        at: MonoNs,
        /// In the unit of the counter. A value that is not finite is left out.
        value: f64,
    },
    /// Something that is not recorded.
    Loss {
        /// A name of [`Loss`]: see [`Event::loss`].
        reason: String,
        /// Lost things since the last event with this reason.
        count: u64,
    },
    /// The cost of wallprof itself since the last such event.
    Overhead {
        /// CPU time of the recorder's process, ns.
        process_cpu_ns: u64,
        /// Time in the probes on all CPUs, ns: estimated, because a part of the runs is timed.
        probe_ns: u64,
        /// Runs of the probes on all CPUs.
        probe_runs: u64,
        /// How long recorded threads waited for a CPU on which a thread of wallprof ran, ns.
        behind_ns: u64,
        /// Kernel memory of unwind tables now, bytes.
        table_bytes: u64,
    },
}

impl Event {
    /// The event for `count` lost things.
    pub fn loss(loss: Loss, count: u64) -> Self {
        Event::Loss { reason: loss.name().into(), count }
    }
}
