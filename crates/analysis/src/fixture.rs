//! Invented stalls and stacks for the tests of all folders. What a test does not say of a stall is absent.

use std::sync::Arc;

use wallprof_model::profile::{ResolvedFrame, ResolvedStack, StallRecord};
use wallprof_model::{FrameKind, MonoNs, StackEnd, StallReason, SymbolLine, ThreadKey};

/// A wait of `ns` that a thread of process 100 did not choose, unless its reason is one that is chosen.
pub(crate) fn stall(id: u64, thread: u32, reason: StallReason, start: MonoNs, ns: u64) -> StallRecord {
    let wait = StallRecord::new(id, ThreadKey(thread), reason, start, ns);
    StallRecord { pid: 100, tid: 100 + thread, comm: format!("thread-{thread}"), ..wait }
}

/// A stack of these functions, leaf first, all of the program `app`.
pub(crate) fn stack(symbols: &[&str]) -> ResolvedStack {
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
