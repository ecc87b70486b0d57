//! What a call path is made of: functions, and frames that say where time went outside the traced code.

use crate::code::FunctionId;
use crate::event::{EndCause, Event};
use crate::schedule::Departure;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Frame {
    Function(FunctionId),
    /// Code without a symbol that was called at this address.
    Address(u64),
    /// Code without a symbol.
    Unknown,
    SystemCall,
    Interrupt,
    PageFault,
    /// Tracing was off, for no reason that the trace tells.
    Untraced,
    /// What ran is not known: the trace has a gap.
    Lost,
    Blocked,
    Preempted,
    /// Off the CPU, and it is not known why.
    OffCpu,
    /// The floor of a stack whose lower part is not known: dissolved before anyone sees it.
    Floor(u32),
}

impl Frame {
    /// The frame that a call's target opens.
    pub fn of_target(event: &Event) -> Frame {
        match event.function {
            FunctionId::UNKNOWN => Frame::Address(event.to),
            function => Frame::Function(function),
        }
    }

    /// The frame of code that goes on somewhere in its middle.
    pub fn of_place(event: &Event) -> Frame {
        match event.function {
            FunctionId::UNKNOWN => Frame::Unknown,
            function => Frame::Function(function),
        }
    }

    pub fn of_end(cause: EndCause) -> Frame {
        const PAGE_FAULT: u8 = 14;
        match cause {
            EndCause::SystemCall => Frame::SystemCall,
            EndCause::Interrupt { vector: Some(PAGE_FAULT) } => Frame::PageFault,
            EndCause::Interrupt { .. } => Frame::Interrupt,
            EndCause::SystemReturn | EndCause::Other => Frame::Untraced,
        }
    }

    pub fn of_departure(departure: Departure) -> Frame {
        match departure {
            Departure::Blocked => Frame::Blocked,
            Departure::Preempted => Frame::Preempted,
            Departure::Unknown => Frame::OffCpu,
        }
    }

    /// The function, if it is one with a symbol.
    pub fn function(self) -> Option<FunctionId> {
        match self {
            Frame::Function(function) => Some(function),
            _ => None,
        }
    }

    /// Whether it stands for time outside the traced code.
    pub fn is_outside(self) -> bool {
        !matches!(self, Frame::Function(_) | Frame::Address(_) | Frame::Unknown | Frame::Floor(_))
    }

    /// The name of a frame that is not code.
    pub fn label(self) -> Option<&'static str> {
        Some(match self {
            Frame::Function(_) | Frame::Address(_) | Frame::Floor(_) => return None,
            Frame::Unknown => "[unknown]",
            Frame::SystemCall => "[syscall]",
            Frame::Interrupt => "[interrupt]",
            Frame::PageFault => "[page fault]",
            Frame::Untraced => "[untraced]",
            Frame::Lost => "[lost]",
            Frame::Blocked => "[blocked]",
            Frame::Preempted => "[preempted]",
            Frame::OffCpu => "[off-cpu]",
        })
    }
}
