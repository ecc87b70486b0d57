// SPDX-License-Identifier: Apache-2.0
//! Events of control flow: calls, returns, jumps between functions, changes between user code and the kernel,
//! starts, ends and gaps. Errors are events, too: a gap has its place and cause, and a resumption has the
//! place of its end.

use crate::code::FunctionId;
use crate::schedule::Switch;

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Ticks of the time-stamp counter, at the resolution of the trace: events of equal times cannot be
    /// separated.
    pub ticks: u64,
    /// The address of the instruction; for a gap, the last known address.
    pub from: u64,
    /// The address at which execution continued; 0 if it did not.
    pub to: u64,
    /// The function around `to`.
    pub function: FunctionId,
    /// Whether `to` is that function's entry.
    pub at_entry: bool,
    /// The kind of the event.
    pub kind: EventKind,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A call.
    Call {
        /// The address behind the call.
        return_to: u64,
    },
    /// A near return.
    Return,
    /// A jump into another function.
    Jump {
        /// The target was not in the instruction.
        indirect: bool,
    },
    /// A system call or another far call whose callee is traced, too.
    SystemCall {
        /// The address behind the call.
        return_to: u64,
    },
    /// `sysret`, `iret` and similar instructions.
    SystemReturn,
    /// An interrupt or fault at `from`, whose handler is traced.
    Interrupt {
        /// The vector, if the processor traces events.
        vector: Option<u8>,
    },
    /// The trace starts, or continues after an `End`.
    Start,
    /// The next code is not traced.
    End {
        /// The reason for the end.
        cause: EndCause,
        /// The address at which the trace is expected to continue; 0 if none is.
        return_to: u64,
    },
    /// From here on the executed code is not known.
    Gap(GapCause),
    /// The end of a gap.
    Resume,
    /// A transaction starts.
    TransactionStart,
    /// A transaction is committed.
    TransactionEnd,
    /// A transaction is rolled back. Execution continues at `to`.
    TransactionAbort,
    /// Another thread runs on the CPU.
    Switch(Switch),
}

/// The reason why the trace ends for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndCause {
    /// A system call.
    SystemCall,
    /// `sysret`, `iret` and similar instructions: from the kernel to user code that is not traced.
    SystemReturn,
    /// An interrupt or fault.
    Interrupt {
        /// The vector, if the processor traces events.
        vector: Option<u8>,
    },
    /// A return to code that is not traced. `return_to` is its target, or 0 if that is not known.
    Return,
    /// A jump to another function, which is not traced. The event before it names that function.
    Jump,
    /// Tracing was turned off inside a gap of kernel code.
    Gap,
    /// Another branch to code that is not traced, or an end without a reason. A call has an event before it.
    Other,
}

/// The reason why the executed code is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GapCause {
    /// The processor's buffer overflowed.
    Overflow,
    /// Bytes of the trace are missing, or its kernel buffer was full.
    LostData,
    /// Bytes that are not a packet.
    BadPacket,
    /// No image has the code.
    NoCode,
    /// The trace contradicts the code: the image is not the executed code, or packets are missing.
    Mismatch,
    /// A return to a call from before the readable part of the trace.
    UnknownReturn,
    /// The trace left a loop that the code cannot leave.
    Endless,
}

impl GapCause {
    /// Whether packets are missing. Otherwise the trace still shows the return from the kernel to user code.
    pub fn loses_packets(self) -> bool {
        matches!(self, GapCause::Overflow | GapCause::LostData | GapCause::BadPacket)
    }

    /// The cause as text for users.
    pub fn text(self) -> &'static str {
        match self {
            GapCause::Overflow => "the processor's trace buffer overflowed",
            GapCause::LostData => "trace data was lost",
            GapCause::BadPacket => "bytes are not a trace packet",
            GapCause::NoCode => "the executed code is in no known image",
            GapCause::Mismatch => "the trace does not fit the code",
            GapCause::UnknownReturn => "a return went to a call from before the readable part of the trace",
            GapCause::Endless => "the trace left a loop that the code cannot leave",
        }
    }
}

/// Receives events in the order of execution.
pub trait Sink {
    /// A segment starts at `ticks`, on a CPU that runs the thread of `current`.
    fn join(&mut self, _ticks: u64, _current: Switch) {}

    /// Takes one event.
    fn event(&mut self, event: &Event);
}

impl Sink for Vec<Event> {
    fn event(&mut self, event: &Event) {
        self.push(*event);
    }
}

impl<F: FnMut(&Event)> Sink for F {
    fn event(&mut self, event: &Event) {
        self(event);
    }
}
