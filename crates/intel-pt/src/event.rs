//! What control flow tells: calls, returns, jumps between functions, changes between user and kernel, beginnings, ends
//! and gaps. Errors are events among the others: a gap says from where and why, a resumption says where it ended.

use crate::code::FunctionId;
use crate::schedule::Switch;

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Ticks of the time-stamp counter. The resolution is that of the trace: equal times mean that it could not tell.
    pub ticks: u64,
    /// The address of the instruction that did it; for a gap the last address known.
    pub from: u64,
    /// Where execution went on; 0 where it did not.
    pub to: u64,
    /// The function that `to` lies in.
    pub function: FunctionId,
    /// Whether `to` is that function's entry.
    pub at_entry: bool,
    pub kind: EventKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A call; it returns to `return_to`.
    Call {
        return_to: u64,
    },
    Return,
    /// A jump into another function.
    Jump {
        indirect: bool,
    },
    /// A system call or another far call, with the callee in the trace too.
    SystemCall {
        return_to: u64,
    },
    /// `sysret`, `iret` and their like.
    SystemReturn,
    /// An interrupt or fault at `from`, its handler in the trace.
    Interrupt {
        vector: Option<u8>,
    },
    /// The trace begins, or goes on after an `End`.
    Begin,
    /// What runs next is not traced; it is expected back at `return_to`.
    End {
        cause: EndCause,
        return_to: u64,
    },
    /// From here on it is not known what ran.
    Gap(GapCause),
    /// The end of a gap.
    Resume,
    TransactionBegin,
    TransactionEnd,
    /// The transaction never happened; execution goes on at `to`.
    TransactionAbort,
    /// Another thread has the CPU.
    Switch(Switch),
}

/// Why the trace ends, for the time being.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndCause {
    SystemCall,
    /// `sysret`, `iret` and their like: from the kernel to user code that is not traced.
    SystemReturn,
    /// An interrupt or fault; the vector is known where the processor traces events.
    Interrupt {
        vector: Option<u8>,
    },
    /// A return out of what is traced: what returned has ended. `return_to` is where it went, 0 where that is not known.
    Return,
    /// A jump out of what is traced, to another function: the event before it names that function.
    Jump,
    /// Tracing was turned off inside a gap of kernel code.
    Gap,
    /// Another branch out of what is traced, or an end without a reason. A call is an event before it.
    Other,
}

/// Why it is not known what ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GapCause {
    /// The processor's buffer overflowed.
    Overflow,
    /// Bytes of the trace are missing, or its kernel buffer was full.
    LostData,
    /// Bytes that are no packet.
    BadPacket,
    /// No image has the code.
    NoCode,
    /// The trace says something that the code cannot do: the image is not what ran, or packets are missing.
    Mismatch,
    /// A return went back to a call that happened before the trace was readable.
    UnknownReturn,
    /// The code cannot leave a loop that the trace says it left.
    Endless,
}

impl GapCause {
    /// Whether packets are missing. Where none are, the trace still shows when the kernel goes back to user
    /// code.
    pub fn loses_packets(self) -> bool {
        matches!(self, GapCause::Overflow | GapCause::LostData | GapCause::BadPacket)
    }

    /// What happened, for people.
    pub fn text(self) -> &'static str {
        match self {
            GapCause::Overflow => "the processor's trace buffer overflowed",
            GapCause::LostData => "trace data was lost",
            GapCause::BadPacket => "bytes that are no trace packet",
            GapCause::NoCode => "the code that ran is in no known image",
            GapCause::Mismatch => "the trace does not fit the code",
            GapCause::UnknownReturn => "a return went back to a call that was not seen",
            GapCause::Endless => "the code has no way out of a loop that the trace left",
        }
    }
}

/// Takes events, in the order they happened.
pub trait Sink {
    /// A segment starts at `ticks`, on a CPU that runs what `current` says.
    fn join(&mut self, _ticks: u64, _current: Switch) {}

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
