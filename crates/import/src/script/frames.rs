// SPDX-License-Identifier: Apache-2.0
//! Functions and threads of a text as events of the model.

use std::collections::{HashMap, HashSet};

use wallprof_intel_pt::replay::{Frame as CallTreeFrame, ThreadCalls};
use wallprof_model::event::LedgerDelta;
use wallprof_model::{
    CallFrame, EpochSecond, Event, Frame, FrameId, FrameKind, Module, ModuleId, MonoNs, Outside, SymbolLine,
    ThreadInfo, ThreadKey,
};

use wallprof_symbols::readable_name;

use super::merge::Thread;
use super::names::Named;
use crate::calls;

const SECOND: u64 = 1_000_000_000;
/// A thread's time is divided into seconds for a day.
const LONGEST_SPAN: u64 = 86_400 * SECOND;

/// The emitted frames, by the replay's frames.
#[derive(Default)]
pub(super) struct Frames<'a> {
    functions: &'a [Named],
    known: HashMap<CallTreeFrame, FrameId>,
    modules: HashMap<&'a [u8], ModuleId>,
    /// The places of emitted functions. Each function has its own.
    taken: HashSet<(FrameKind, Option<ModuleId>, u64)>,
}

impl<'a> Frames<'a> {
    pub(super) fn new(functions: &'a [Named]) -> Self {
        Frames { functions, ..Frames::default() }
    }

    pub(super) fn of(&mut self, frame: CallTreeFrame, out: &mut Vec<Event>) -> CallFrame<FrameId> {
        let (address, named) = match frame {
            CallTreeFrame::Function(function) => {
                match self.functions.get((function.0 as usize).wrapping_sub(1)) {
                    Some(named) => (named.entry, Some(named)),
                    None => return CallFrame::Outside(Outside::Unknown),
                }
            }
            CallTreeFrame::Address(address) => (address, None),
            other => return CallFrame::Outside(calls::outside(other).unwrap_or(Outside::Unknown)),
        };
        if let Some(&known) = self.known.get(&frame) {
            return CallFrame::Code(known);
        }
        let module = named.and_then(|named| self.module(&named.module, out));
        let kind = if address >> 63 != 0 { FrameKind::Kernel } else { FrameKind::Native };
        // Programs mapped at the same address have different functions there, which the text distinguishes by
        // name.
        let mut address = address;
        while !self.taken.insert((kind, module, address)) {
            address = address.wrapping_add(1);
        }
        let id = FrameId(self.known.len() as u32);
        self.known.insert(frame, id);
        out.push(Event::Frame { id, frame: Frame { kind, module, address } });
        if let Some(named) = named {
            // perf prints the names of stubs as they are in the file.
            let symbol = readable_name(&String::from_utf8_lossy(&named.symbol));
            let lines = vec![SymbolLine { symbol, offset: Some(0), ..SymbolLine::default() }];
            out.push(Event::Symbol { frame: id, lines });
        }
        CallFrame::Code(id)
    }

    fn module(&mut self, path: &'a [u8], out: &mut Vec<Event>) -> Option<ModuleId> {
        if path.is_empty() || path.starts_with(b"[kernel") {
            return None;
        }
        let next = ModuleId(self.modules.len() as u32);
        Some(*self.modules.entry(path).or_insert_with(|| {
            let path = String::from_utf8_lossy(path).into_owned();
            out.push(Event::Module { id: next, module: Module { path, build_id: None } });
            next
        }))
    }
}

/// Emits the thread, the interval in which it was seen, and that time as unaccounted.
pub(super) fn emit_thread(key: ThreadKey, thread: &Thread, out: &mut Vec<Event>) {
    let ThreadCalls { first, last, .. } = thread.calls;
    out.push(Event::Thread(info(key, thread)));
    out.push(Event::ThreadSeen { thread: key, from: MonoNs(first) });
    out.push(Event::ThreadEnd { thread: key, at: MonoNs(last) });
    let limit = first.saturating_add(LONGEST_SPAN);
    let mut from = first;
    while from < last {
        // A damaged time must not make the recording grow.
        let next = if from < limit { (from / SECOND + 1) * SECOND } else { last };
        let second = u32::try_from(from / SECOND).unwrap_or(u32::MAX);
        let mut ledger = LedgerDelta::new(key, EpochSecond(second));
        ledger.wall_ns = next.min(last) - from;
        out.push(Event::Ledger(ledger));
        from = next;
    }
}

fn info(key: ThreadKey, thread: &Thread) -> ThreadInfo {
    let tid = u32::try_from(thread.id.tid).unwrap_or(0);
    let pid = thread.identity.pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(tid);
    let comm = match (&thread.identity.comm[..], thread.id.cpu) {
        // perf's form for threads without a name.
        ([], _) if tid > 0 => format!(":{tid}"),
        ([], Some(cpu)) => format!("unknown on CPU {cpu}"),
        ([], None) => "unknown".to_owned(),
        (comm, _) => String::from_utf8_lossy(comm).into_owned(),
    };
    let process = if tid == pid { comm.clone() } else { String::new() };
    ThreadInfo::new(key, (pid, process), (tid, comm))
}
