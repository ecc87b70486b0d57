// SPDX-License-Identifier: Apache-2.0
//! All threads at one look: groups of equal stacks and the tree of waits for people, one object a thread for
//! programs.

mod json;
mod text;
mod tree;

pub(crate) use json::ThreadJson;
pub use json::threads_json;
pub use text::threads_text;
pub use tree::waits_text;

use wallprof_analysis::Class;
use wallprof_model::{Activity, Since, StallReason, ThreadNow};

use crate::function::meaning_name;
use crate::style::{Ink, Style};
use crate::units::time;

/// `row lock of postgresql (poll)`, `running`.
fn doing(thread: &ThreadNow, style: &Style) -> String {
    let name = match thread.activity {
        Activity::Blocked(reason) => reason.name(),
        other => other.name(),
    };
    match &thread.meaning {
        Some(meaning) => format!("{} ({name})", meaning_name(meaning, style)),
        None => name.into(),
    }
}

fn ink(thread: &ThreadNow) -> Ink {
    let idle = thread.meaning.as_ref().map(|meaning| meaning.idle);
    match thread.activity {
        Activity::Running => Ink::Strong,
        Activity::Runnable => Ink::Of(Class::of_stall(StallReason::Runnable, false, None)),
        Activity::Blocked(reason) => {
            let voluntary = idle.unwrap_or_else(|| reason.is_voluntary());
            Ink::Of(Class::of_stall(StallReason::Blocked(reason), voluntary, None))
        }
    }
}

/// `for 3.21 s`; `None` where nothing is known.
fn duration(since: Since, style: &Style) -> Option<String> {
    match since {
        Since::For(ns) => Some(format!("for {}", time(ns, style))),
        Since::AtLeast(ns) => Some(format!("for at least {}", time(ns, style))),
        Since::Unknown => None,
    }
}

#[cfg(test)]
mod fixture {
    use std::sync::Arc;

    use wallprof_model::profile::{LockRecord, ResolvedFrame, ResolvedStack};
    use wallprof_model::{Activity, FrameKind, Reason, Since, StackEnd, SymbolLine, ThreadNow, ThreadRef};

    pub fn stack(kind: FrameKind, functions: &[&str]) -> ResolvedStack {
        let frame = |(name, address): (&&str, u64)| {
            Arc::new(ResolvedFrame {
                kind,
                module: (kind == FrameKind::Native).then(|| "/opt/server".into()),
                build_id: None,
                address,
                lines: vec![SymbolLine {
                    symbol: Some((*name).into()),
                    offset: Some(4),
                    ..SymbolLine::default()
                }],
            })
        };
        ResolvedStack { frames: functions.iter().zip(0x10..).map(frame).collect(), end: StackEnd::Complete }
    }

    pub fn thread(tid: u32, comm: &str, activity: Activity, ns: u64) -> ThreadNow {
        ThreadNow {
            pid: 7,
            tid,
            comm: comm.into(),
            process: "server".into(),
            kernel_thread: false,
            activity,
            since: Since::For(ns),
            syscall: None,
            meaning: None,
            user: None,
            kernel: None,
            lock: None,
            moved: false,
        }
    }

    /// Three workers of which two wait for the third, which writes.
    pub fn threads() -> Vec<ThreadNow> {
        let waiter = |tid, ns| {
            let owner = ThreadRef { tid: 10, pid: 7, comm: "keeper".into(), ..ThreadRef::default() };
            ThreadNow {
                syscall: Some("futex".into()),
                user: Some(stack(FrameKind::Native, &["lock_wait", "take_order"])),
                kernel: Some(stack(FrameKind::Kernel, &["futex_wait"])),
                lock: Some(LockRecord { address: 0x7f00, owner: Some(owner) }),
                ..thread(tid, "worker", Activity::Blocked(Reason::Lock), ns)
            }
        };
        let keeper = ThreadNow {
            syscall: Some("fdatasync".into()),
            user: Some(stack(FrameKind::Native, &["fdatasync", "sweep_registry"])),
            since: Since::AtLeast(3_000_000),
            ..thread(10, "keeper", Activity::Blocked(Reason::Disk), 0)
        };
        vec![
            waiter(11, 2_000_000),
            keeper,
            waiter(12, 2_500_000),
            thread(13, "busy", Activity::Running, 1_000),
        ]
    }

    pub fn circle() -> Vec<ThreadNow> {
        let waits = |tid: u32, owner: u32| {
            let comm = format!("ring-{owner}");
            let owner = ThreadRef { tid: owner, pid: 7, comm, ..ThreadRef::default() };
            ThreadNow {
                lock: Some(LockRecord { address: 0x7f00, owner: Some(owner) }),
                ..thread(tid, &format!("ring-{tid}"), Activity::Blocked(Reason::Lock), 5_000_000_000)
            }
        };
        vec![waits(1, 2), waits(2, 3), waits(3, 1), waits(4, 1)]
    }
}
