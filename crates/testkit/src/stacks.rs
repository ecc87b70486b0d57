// SPDX-License-Identifier: Apache-2.0
//! Stalls and stacks of few functions. A fact that a test does not set is absent.

use std::sync::Arc;

use wallprof_model::profile::{ResolvedFrame, ResolvedStack, StallRecord};
use wallprof_model::{FrameKind, MonoNs, StackEnd, StallReason, SymbolLine, ThreadKey};

/// A wait of `ns` of a thread of process 100: voluntary if its reason is.
pub fn stall(id: u64, thread: u32, reason: StallReason, start: MonoNs, ns: u64) -> StallRecord {
    let wait = StallRecord::new(id, ThreadKey(thread), reason, start, ns);
    StallRecord { pid: 100, tid: 100 + thread, comm: format!("thread-{thread}").into(), ..wait }
}

/// A stack of these functions, leaf first, all of the program `app`.
pub fn stack(symbols: &[&str]) -> ResolvedStack {
    let frame = |symbol: &&str| {
        Arc::new(ResolvedFrame {
            kind: FrameKind::Native,
            module: Some("/opt/app".into()),
            build_id: None,
            address: 0x1234,
            lines: vec![SymbolLine { symbol: Some(symbol.to_string()), ..SymbolLine::default() }],
        })
    };
    ResolvedStack { frames: symbols.iter().map(frame).collect(), end: StackEnd::Complete }
}

/// Takes the name of a frame away.
pub fn strip(stack: &mut ResolvedStack, at: usize) {
    let stripped = |(place, frame): (usize, &Arc<ResolvedFrame>)| match place == at {
        true => Arc::new(ResolvedFrame { lines: vec![SymbolLine::default()], ..ResolvedFrame::clone(frame) }),
        false => frame.clone(),
    };
    stack.frames = stack.frames.iter().enumerate().map(stripped).collect();
}

/// A stack of the kernel's functions, leaf first.
pub fn kernel_stack(symbols: &[&str]) -> ResolvedStack {
    let stack = stack(symbols);
    let kernel = |frame: &Arc<ResolvedFrame>| {
        Arc::new(ResolvedFrame { kind: FrameKind::Kernel, module: None, ..ResolvedFrame::clone(frame) })
    };
    ResolvedStack { frames: stack.frames.iter().map(kernel).collect(), ..stack }
}
