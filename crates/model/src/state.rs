// SPDX-License-Identifier: Apache-2.0
//! The states of the ledger and the reasons a thread is blocked for.

// `Reason`, its numbers and its names: generated from bpf/include/reasons.h.
include!(concat!(env!("OUT_DIR"), "/reason.rs"));

impl Reason {
    /// By the number in recordings. `None`: no reason has this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The number in recordings and in records of the kernel side. It is below [`Self::COUNT`].
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// One state of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Running in user mode.
    User,
    /// Running in the kernel, outside of interrupts and page faults.
    Kernel,
    /// Interrupts while the thread was current.
    Irq,
    /// Page faults that needed no I/O, on and off the CPU.
    FaultMinor,
    /// Page faults that read a page in or waited for one, on and off the CPU.
    FaultMajor,
    /// Woken or new, and waiting for a CPU.
    Runnable,
    /// Off the CPU although it could have run on.
    Preempted,
    /// Running, in user space or in the kernel: nothing divides it.
    Cpu,
    /// Off the CPU until a wakeup.
    Blocked(Reason),
}

impl State {
    /// A small stable number: the recording's encoding. Blocked reasons follow from 16 on.
    pub fn code(self) -> u8 {
        match self {
            State::User => 0,
            State::Kernel => 1,
            State::Irq => 2,
            State::FaultMinor => 3,
            State::FaultMajor => 4,
            State::Runnable => 5,
            State::Preempted => 6,
            State::Cpu => 7,
            State::Blocked(reason) => 16 + reason.code(),
        }
    }

    /// `None`: no state has this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => State::User,
            1 => State::Kernel,
            2 => State::Irq,
            3 => State::FaultMinor,
            4 => State::FaultMajor,
            5 => State::Runnable,
            6 => State::Preempted,
            7 => State::Cpu,
            16.. => State::Blocked(Reason::from_code(code - 16)?),
            _ => return None,
        })
    }

    /// `user`, `preempted`, `blocked:lock`, `fault:major` …: the name used in views and in the leaf frame
    /// `[…]`.
    pub fn label(self) -> String {
        match self {
            State::User => "user".into(),
            State::Kernel => "kernel".into(),
            State::Irq => "irq".into(),
            State::FaultMinor => "fault:minor".into(),
            State::FaultMajor => "fault:major".into(),
            State::Runnable => "runnable".into(),
            State::Preempted => "preempted".into(),
            State::Cpu => "cpu".into(),
            State::Blocked(reason) => format!("blocked:{}", reason.name()),
        }
    }
}

/// The intervals of a latency distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Metric {
    /// Whole off-CPU intervals, switch-out to switch-in.
    OffCpu,
    /// Wakeup or preemption to switch-in.
    RunQueue,
    /// Page faults of both kinds, from start to end.
    Fault,
    /// The blocked part of off-CPU intervals of one reason.
    Blocked(Reason),
}

impl Metric {
    /// A small stable number: the recording's encoding. Blocked reasons follow from 16 on.
    pub fn code(self) -> u8 {
        match self {
            Metric::OffCpu => 0,
            Metric::RunQueue => 1,
            Metric::Fault => 2,
            Metric::Blocked(reason) => 16 + reason.code(),
        }
    }

    /// `None`: no metric has this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Metric::OffCpu,
            1 => Metric::RunQueue,
            2 => Metric::Fault,
            16.. => Metric::Blocked(Reason::from_code(code - 16)?),
            _ => return None,
        })
    }

    /// `off_cpu`, `run_queue`, `blocked.lock` …: as it is in recordings and in JSON.
    pub fn name(self) -> String {
        match self {
            Metric::OffCpu => "off_cpu".into(),
            Metric::RunQueue => "run_queue".into(),
            Metric::Fault => "fault".into(),
            Metric::Blocked(reason) => format!("blocked.{}", reason.name()),
        }
    }
}

/// What a stall is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StallKind {
    /// An interval from switch-out to switch-in.
    OffCpu,
    /// A page fault, with all waits in it.
    Fault,
}

impl StallKind {
    /// Each variant once, in the order of their declaration.
    pub const ALL: [StallKind; 2] = [StallKind::OffCpu, StallKind::Fault];

    /// The name in recordings and in JSON, which [`Self::from_name`] reads.
    pub fn name(self) -> &'static str {
        match self {
            StallKind::OffCpu => "off-cpu",
            StallKind::Fault => "fault",
        }
    }

    /// `None`: no name is equal to the text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// The reason of a stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StallReason {
    /// Another thread got the CPU although this one could have run on.
    Preempted,
    /// Woken or new, and waiting for a CPU: for longer than it was blocked, or as the late return from a
    /// voluntary wait.
    Runnable,
    /// A page fault without I/O.
    Minor,
    /// A page fault that read a page in or waited for one.
    Major,
    /// A wait for a wakeup.
    Blocked(Reason),
}

impl StallReason {
    /// Every reason, those of blocked threads last.
    pub const ALL: [StallReason; 4 + Reason::COUNT] = {
        let mut all = [StallReason::Preempted; 4 + Reason::COUNT];
        [all[1], all[2], all[3]] = [StallReason::Runnable, StallReason::Minor, StallReason::Major];
        let mut at = 0;
        while at < Reason::COUNT {
            all[4 + at] = StallReason::Blocked(Reason::ALL[at]);
            at += 1;
        }
        all
    };

    /// A small stable number: the recording's encoding. Blocked reasons follow from 16 on.
    pub fn code(self) -> u8 {
        match self {
            StallReason::Preempted => 0,
            StallReason::Runnable => 1,
            StallReason::Minor => 2,
            StallReason::Major => 3,
            StallReason::Blocked(reason) => 16 + reason.code(),
        }
    }

    /// `None`: no reason has this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => StallReason::Preempted,
            1 => StallReason::Runnable,
            2 => StallReason::Minor,
            3 => StallReason::Major,
            16.. => StallReason::Blocked(Reason::from_code(code - 16)?),
            _ => return None,
        })
    }

    /// The name in recordings and in JSON, which [`Self::from_name`] reads.
    pub fn name(self) -> &'static str {
        match self {
            StallReason::Preempted => "preempted",
            StallReason::Runnable => "runnable",
            StallReason::Minor => "minor",
            StallReason::Major => "major",
            StallReason::Blocked(reason) => reason.name(),
        }
    }

    /// `None`: no name is equal to the text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tool that edits files in place replaces a link by a copy, which then stays as it is.
    #[test]
    fn reasons_are_read_from_the_header_of_the_kernel_side() {
        let header = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("reasons.h");
        let link = std::fs::read_link(header).expect("reasons.h is a link");
        assert_eq!(link, std::path::Path::new("../../bpf/include/reasons.h"));
    }

    #[test]
    fn codes_come_back() {
        for code in 0..=u8::MAX {
            assert!(State::from_code(code).is_none_or(|state| state.code() == code));
            assert!(Metric::from_code(code).is_none_or(|metric| metric.code() == code));
            assert!(StallReason::from_code(code).is_none_or(|reason| reason.code() == code));
        }
        let coded: Vec<StallReason> = (0..=u8::MAX).filter_map(StallReason::from_code).collect();
        assert_eq!(coded, StallReason::ALL);
        for reason in StallReason::ALL {
            assert_eq!(StallReason::from_name(reason.name()), Some(reason));
        }
        for kind in StallKind::ALL {
            assert_eq!(StallKind::from_name(kind.name()), Some(kind));
        }
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(reason.code()), index);
        }
    }
}
