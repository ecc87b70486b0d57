// SPDX-License-Identifier: Apache-2.0
//! The frames of call paths: functions, and frames for time outside of the traced code.

use crate::code::FunctionId;
use crate::event::{EndCause, Event};
use crate::schedule::Departure;

/// The side on which code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    User,
    Kernel,
    /// In the kernel, whose code is not traced.
    Entered,
}

/// A thread's time by side, in ticks. All other time is of unknown side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sides {
    /// In user code that the trace shows.
    pub user: u64,
    /// In code of the kernel that the trace shows.
    pub kernel: u64,
    /// In a system call, an interrupt or a fault whose code is not traced: in the kernel as long as the
    /// thread had a CPU.
    pub entered: u64,
}

impl Sides {
    pub(super) fn spend(&mut self, side: Option<Side>, ticks: u64) {
        let sum = match side {
            Some(Side::User) => &mut self.user,
            Some(Side::Kernel) => &mut self.kernel,
            Some(Side::Entered) => &mut self.entered,
            None => return,
        };
        *sum = sum.saturating_add(ticks);
    }

    /// Adds the times of `other`.
    pub fn add(&mut self, other: Sides) {
        self.spend(Some(Side::User), other.user);
        self.spend(Some(Side::Kernel), other.kernel);
        self.spend(Some(Side::Entered), other.entered);
    }
}

/// A frame of a call path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Frame {
    /// A function with a symbol.
    Function(FunctionId),
    /// Code without a symbol that was called at this address.
    Address(u64),
    /// Code without a symbol.
    Unknown,
    /// A system call that is not traced.
    SystemCall,
    /// An interrupt that is not traced.
    Interrupt,
    /// A page fault that is not traced.
    PageFault,
    /// Tracing was off for an unknown reason.
    Untraced,
    /// The executed code is not known: the trace has a gap.
    Lost,
    /// Off the CPU, blocked.
    Blocked,
    /// Off the CPU, preempted.
    Preempted,
    /// Off the CPU for an unknown reason.
    OffCpu,
    /// The floor of a stack whose lower part is not known. It is removed before a result is returned.
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

    /// The frame of code that continues somewhere in its middle.
    pub fn of_place(event: &Event) -> Frame {
        match event.function {
            FunctionId::UNKNOWN => Frame::Unknown,
            function => Frame::Function(function),
        }
    }

    /// The frame of the time after an end of tracing.
    pub fn of_end(cause: EndCause) -> Frame {
        const PAGE_FAULT: u8 = 14;
        match cause {
            EndCause::SystemCall => Frame::SystemCall,
            EndCause::Interrupt { vector: Some(PAGE_FAULT) } => Frame::PageFault,
            EndCause::Interrupt { .. } => Frame::Interrupt,
            EndCause::SystemReturn | EndCause::Return | EndCause::Jump | EndCause::Gap | EndCause::Other => {
                Frame::Untraced
            }
        }
    }

    /// The frame of the time off the CPU.
    pub fn of_departure(departure: Departure) -> Frame {
        match departure {
            Departure::Blocked => Frame::Blocked,
            Departure::Preempted => Frame::Preempted,
            Departure::Unknown => Frame::OffCpu,
        }
    }

    /// The side of the processor; `None`: off the CPU, or not known.
    pub(super) fn side(self) -> Option<Side> {
        match self {
            Frame::Function(function) if function >= FunctionId::FIRST_OF_KERNEL => Some(Side::Kernel),
            Frame::Address(address) if address >> 63 != 0 => Some(Side::Kernel),
            Frame::Function(_) | Frame::Address(_) => Some(Side::User),
            Frame::SystemCall | Frame::Interrupt | Frame::PageFault => Some(Side::Entered),
            Frame::Unknown | Frame::Floor(_) | Frame::Untraced | Frame::Lost => None,
            Frame::Blocked | Frame::Preempted | Frame::OffCpu => None,
        }
    }

    /// Two numbers that identify the frame.
    pub(super) fn code(self) -> (u64, u64) {
        match self {
            Frame::Function(function) => (0, function.0.into()),
            Frame::Address(address) => (1, address),
            Frame::Floor(number) => (2, number.into()),
            Frame::Unknown => (3, 0),
            Frame::SystemCall => (4, 0),
            Frame::Interrupt => (5, 0),
            Frame::PageFault => (6, 0),
            Frame::Untraced => (7, 0),
            Frame::Lost => (8, 0),
            Frame::Blocked => (9, 0),
            Frame::Preempted => (10, 0),
            Frame::OffCpu => (11, 0),
        }
    }

    /// The function, if it is one with a symbol.
    pub fn function(self) -> Option<FunctionId> {
        match self {
            Frame::Function(function) => Some(function),
            _ => None,
        }
    }

    /// Whether it stands for time outside of the traced code.
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
