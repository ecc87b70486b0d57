// SPDX-License-Identifier: Apache-2.0
//! Small stacks and threads for the tests of this folder.

use std::collections::BTreeMap;
use std::sync::Arc;

use wallprof_model::event::LedgerDelta;
use wallprof_model::profile::{ResolvedFrame, ResolvedStack, Thread};
use wallprof_model::{EpochSecond, FrameKind, MonoNs, StackEnd, SymbolLine, ThreadInfo, ThreadKey};

pub(crate) fn unnamed(module: Option<&str>, kind: FrameKind, address: u64) -> Arc<ResolvedFrame> {
    let lines = vec![SymbolLine::default()];
    Arc::new(ResolvedFrame { kind, module: module.map(Into::into), build_id: None, address, lines })
}

fn named(kind: FrameKind, module: Option<&str>, symbols: &[&str]) -> Arc<ResolvedFrame> {
    let lines = symbols.iter().enumerate().map(|(at, symbol)| SymbolLine {
        symbol: Some((*symbol).into()),
        file: Some(format!("/src/{symbol}.c")),
        line: Some(7),
        inlined: at + 1 < symbols.len(),
        ..SymbolLine::default()
    });
    let lines = lines.collect();
    Arc::new(ResolvedFrame {
        kind,
        module: module.map(Into::into),
        build_id: Some(vec![0xab, 0xcd]),
        address: 0x1000,
        lines,
    })
}

/// A frame of the program: its functions, innermost first.
pub(crate) fn code(symbols: &[&str]) -> Arc<ResolvedFrame> {
    named(FrameKind::Native, Some("/opt/engine"), symbols)
}

pub(crate) fn kernel_code(symbol: &str) -> Arc<ResolvedFrame> {
    named(FrameKind::Kernel, None, &[symbol])
}

/// Leaf first.
pub(crate) fn stack(frames: &[&Arc<ResolvedFrame>]) -> ResolvedStack {
    ResolvedStack { frames: frames.iter().map(|frame| Arc::clone(frame)).collect(), end: StackEnd::Complete }
}

/// A thread of process `engine` that has lived for nothing yet.
pub(crate) fn thread(key: u32, comm: &str) -> Thread {
    Thread {
        info: ThreadInfo::new(ThreadKey(key), (100, "engine"), (key.wrapping_add(100), comm)),
        start: MonoNs(0),
        end: MonoNs(1_000),
        ledger: LedgerDelta::new(ThreadKey(key), EpochSecond(0)),
        latency: BTreeMap::new(),
        stalls: 0,
    }
}
