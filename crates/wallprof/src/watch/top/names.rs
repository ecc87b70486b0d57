// SPDX-License-Identifier: Apache-2.0
//! Names of functions for the stacks of live events.
//!
//! Keeps stacks, frames and symbols as a session emits them: each once, symbols often later than their frame.

use std::collections::HashMap;
use std::sync::Arc;

use wallprof_meaning::Site;
use wallprof_model::profile::{ResolvedFrame, ResolvedStack};
use wallprof_model::{Event, Frame, FrameId, ModuleId, StackEnd, StackId, SymbolLine};

/// Limit on stacks. The session emits a stack again only after the flight recording has dropped it, so older
/// ones lose their names until then.
const MAX_STACKS: usize = 50_000;

#[derive(Default)]
pub struct Names {
    modules: HashMap<ModuleId, String>,
    frames: HashMap<FrameId, Frame>,
    symbols: HashMap<FrameId, Vec<SymbolLine>>,
    stacks: HashMap<StackId, (Vec<FrameId>, StackEnd)>,
}

impl Names {
    pub fn take(&mut self, event: &Event) {
        match event {
            Event::Module { id, module } => {
                self.modules.insert(*id, module.path.clone());
            }
            Event::Frame { id, frame } => {
                self.frames.insert(*id, *frame);
            }
            Event::Symbol { frame, lines } => {
                self.symbols.insert(*frame, lines.clone());
            }
            Event::Stack { id, frames, end } => {
                if self.stacks.len() >= MAX_STACKS {
                    self.stacks.clear();
                }
                self.stacks.insert(*id, (frames.clone(), *end));
            }
            _ => {}
        }
    }

    /// The program's function in which the thread waited, and its caller: `work < main`. Empty if no stack is
    /// known.
    pub fn place(&self, user: Option<StackId>, kernel: Option<StackId>) -> String {
        let (user, kernel) = (self.stack(user), self.stack(kernel));
        let Some(site) = Site::of(user.as_ref(), kernel.as_ref()) else { return String::new() };
        site.functions.iter().take(2).map(ToString::to_string).collect::<Vec<_>>().join(" < ")
    }

    /// All functions of a stack, leaf first.
    pub fn functions(&self, id: Option<StackId>) -> String {
        let Some(stack) = self.stack(id) else { return String::new() };
        let lines = stack.frames.iter().flat_map(|frame| &frame.lines);
        let names: Vec<_> = lines.map(|line| line.symbol.as_deref().unwrap_or("?")).collect();
        names.join(" < ")
    }

    fn stack(&self, id: Option<StackId>) -> Option<ResolvedStack> {
        let (frames, end) = self.stacks.get(&id?)?;
        let frames = frames.iter().filter_map(|id| self.frame(*id)).map(Arc::new).collect();
        Some(ResolvedStack { frames, end: *end })
    }

    fn frame(&self, id: FrameId) -> Option<ResolvedFrame> {
        let frame = self.frames.get(&id)?;
        let lines = self.symbols.get(&id).filter(|lines| !lines.is_empty());
        Some(ResolvedFrame {
            kind: frame.kind,
            module: frame.module.and_then(|id| self.modules.get(&id)).cloned(),
            build_id: None,
            address: frame.address,
            lines: lines.cloned().unwrap_or_else(|| vec![SymbolLine::default()]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::FrameKind;

    fn names() -> Names {
        let mut names = Names::default();
        for (id, symbol) in [(1, Some("release_order")), (2, Some("main")), (3, None)] {
            let frame = Frame { kind: FrameKind::Native, module: None, address: 0x10 * u64::from(id) };
            names.take(&Event::Frame { id: FrameId(id), frame });
            if let Some(symbol) = symbol {
                let line = SymbolLine { symbol: Some(symbol.into()), ..SymbolLine::default() };
                names.take(&Event::Symbol { frame: FrameId(id), lines: vec![line] });
            }
        }
        let frames = [1, 2].map(FrameId).to_vec();
        names.take(&Event::Stack { id: StackId(0), frames, end: StackEnd::Complete });
        let frames = vec![FrameId(3)];
        names.take(&Event::Stack { id: StackId(7), frames, end: StackEnd::Complete });
        names
    }

    #[test]
    fn functions_are_named_leaf_first() {
        assert_eq!(names().place(Some(StackId(0)), None), "release_order < main");
        assert_eq!(names().functions(Some(StackId(0))), "release_order < main");
    }

    #[test]
    fn frame_without_a_symbol_is_its_address() {
        assert_eq!(names().place(Some(StackId(7)), None), "0x30");
        assert_eq!(names().place(Some(StackId(9)), None), "", "the stack is not known");
    }
}
