// SPDX-License-Identifier: Apache-2.0
//! All stacks of the page as one tree of functions, outermost first. A stack is the node of its leaf.

use std::collections::HashMap;
use std::sync::Arc;

use wallprof_analysis::weights::{Frame, FrameId, Frames, Role};
use wallprof_model::profile::{ResolvedFrame, ResolvedStack};

use crate::columns::Columns;
use crate::names::Names;

/// Node 0 is the root: no stack.
pub const ROOT: u32 = 0;

/// Limit on nodes, some 4 bytes each in the page. Longer stacks end at the last node that they share.
pub const MOST_NODES: usize = 400_000;

/// A function's kind, as a number of the page. States are 32 and their code.
const USER: u8 = 0;
const KERNEL: u8 = 1;
const MARK: u8 = 2;
const FIRST_STATE: u8 = 32;

/// The functions at one frame, outermost first.
type Functions = Arc<[u32]>;

#[derive(Clone, Debug)]
struct Node {
    parent: u32,
    function: u32,
}

#[derive(Debug, PartialEq, Eq, Hash, Clone, Copy)]
struct Function {
    name: u32,
    module: u32,
    kind: u8,
}

#[derive(Clone, Debug)]
pub struct Stacks {
    nodes: Vec<Node>,
    children: HashMap<(u32, u32), u32>,
    functions: Vec<Function>,
    numbers: HashMap<Function, u32>,
    /// By the address of the frame, which the map keeps alive.
    frames: HashMap<usize, (Arc<ResolvedFrame>, Functions)>,
    /// By the addresses of both stacks, which the map keeps alive.
    pairs: HashMap<(usize, usize), (Held, Held, u32)>,
    most_nodes: usize,
    /// How many stacks were cut.
    pub cut: u64,
}

type Held = Option<Arc<[Arc<ResolvedFrame>]>>;

impl Stacks {
    pub fn with_room_for(most_nodes: usize) -> Self {
        Stacks {
            nodes: vec![Node { parent: ROOT, function: 0 }],
            children: HashMap::new(),
            functions: vec![Function { name: 0, module: 0, kind: MARK }],
            numbers: HashMap::new(),
            frames: HashMap::new(),
            pairs: HashMap::new(),
            most_nodes,
            cut: 0,
        }
    }

    /// The node of a user stack with the kernel stack on top of it.
    pub fn pair(
        &mut self,
        user: Option<&ResolvedStack>,
        kernel: Option<&ResolvedStack>,
        names: &mut Names,
    ) -> u32 {
        let held = |stack: Option<&ResolvedStack>| stack.map(|stack| Arc::clone(&stack.frames));
        let address = |held: &Held| held.as_ref().map_or(0, |frames| frames.as_ptr() as usize);
        let (user, kernel) = (held(user), held(kernel));
        let key = (address(&user), address(&kernel));
        if let Some((.., node)) = self.pairs.get(&key) {
            return *node;
        }
        let mut at = Some(ROOT);
        let mut last = ROOT;
        for frame in user
            .iter()
            .flat_map(|frames| frames.iter().rev())
            .chain(kernel.iter().flat_map(|f| f.iter().rev()))
        {
            // A function that is in no node would only add its name to the page.
            if at.is_none() {
                break;
            }
            for function in self.code(frame, names).iter() {
                at = at.and_then(|node| self.child(node, *function));
                last = at.unwrap_or(last);
            }
        }
        self.cut += u64::from(at.is_none());
        self.pairs.insert(key, (user, kernel, last));
        last
    }

    /// The node of a weighted stack, whose last frame is its state.
    pub fn weighted(&mut self, ids: &[FrameId], frames: &Frames, names: &mut Names) -> u32 {
        let (mut at, mut last) = (Some(ROOT), ROOT);
        for id in ids {
            if at.is_none() {
                break;
            }
            for function in self.of_frame(frames.get(*id), names).iter() {
                at = at.and_then(|node| self.child(node, *function));
                last = at.unwrap_or(last);
            }
        }
        self.cut += u64::from(at.is_none());
        last
    }

    fn of_frame(&mut self, frame: &Frame, names: &mut Names) -> Functions {
        match frame {
            Frame::Code(code) => self.code(code, names),
            other => self.named(other, 0, names),
        }
    }

    fn code(&mut self, frame: &Arc<ResolvedFrame>, names: &mut Names) -> Functions {
        let address = Arc::as_ptr(frame) as usize;
        if let Some((_, functions)) = self.frames.get(&address) {
            return Arc::clone(functions);
        }
        let module = names.optional(frame.module.as_deref());
        let functions = self.named(&Frame::Code(Arc::clone(frame)), module, names);
        self.frames.insert(address, (Arc::clone(frame), Arc::clone(&functions)));
        functions
    }

    fn named(&mut self, frame: &Frame, module: u32, names: &mut Names) -> Functions {
        let functions = frame.functions();
        let numbers = functions.iter().map(|function| {
            let kind = match function.role {
                Role::User => USER,
                Role::Kernel => KERNEL,
                Role::State(state) => FIRST_STATE + state.code(),
                Role::Thread | Role::Process | Role::Mark => MARK,
            };
            self.function(Function { name: names.number(&function.name), module, kind })
        });
        numbers.collect()
    }

    fn function(&mut self, function: Function) -> u32 {
        let functions = &mut self.functions;
        *self.numbers.entry(function).or_insert_with(|| {
            functions.push(function);
            (functions.len() - 1) as u32
        })
    }

    /// `None` where no more nodes fit.
    fn child(&mut self, parent: u32, function: u32) -> Option<u32> {
        if let Some(node) = self.children.get(&(parent, function)) {
            return Some(*node);
        }
        if self.nodes.len() >= self.most_nodes {
            return None;
        }
        let node = self.nodes.len() as u32;
        self.nodes.push(Node { parent, function });
        self.children.insert((parent, function), node);
        Some(node)
    }

    pub fn write(&self, columns: &mut Columns) {
        // Most nodes are children of the node before.
        let ups = self.nodes.iter().enumerate().map(|(at, node)| (at as u64) - u64::from(node.parent));
        columns.unsigned("node_up", ups);
        columns.deltas("node_function", self.nodes.iter().map(|node| i64::from(node.function)));
        columns.deltas("function_name", self.functions.iter().map(|function| i64::from(function.name)));
        columns.unsigned("function_module", self.functions.iter().map(|function| u64::from(function.module)));
        columns.unsigned("function_kind", self.functions.iter().map(|function| u64::from(function.kind)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{FrameKind, StackEnd, SymbolLine};

    fn frame(symbol: &str, kind: FrameKind) -> Arc<ResolvedFrame> {
        let lines = vec![SymbolLine { symbol: Some(symbol.into()), ..SymbolLine::default() }];
        Arc::new(ResolvedFrame { kind, module: None, build_id: None, address: 0, lines })
    }

    fn stack(frames: &[&Arc<ResolvedFrame>]) -> ResolvedStack {
        ResolvedStack {
            frames: frames.iter().map(|frame| Arc::clone(frame)).collect(),
            end: StackEnd::Complete,
        }
    }

    #[test]
    fn stacks_share_their_outer_functions() {
        let (mut stacks, mut names) = (Stacks::with_room_for(MOST_NODES), Names::default());
        let (main, work, wait) = (
            frame("main", FrameKind::Native),
            frame("work", FrameKind::Native),
            frame("futex_wait", FrameKind::Kernel),
        );
        let (user, kernel) = (stack(&[&work, &main]), stack(&[&wait]));
        let whole = stacks.pair(Some(&user), Some(&kernel), &mut names);
        let outer = stacks.pair(Some(&user), None, &mut names);
        assert_eq!((outer, whole), (2, 3));
        assert_eq!(stacks.pair(Some(&user), Some(&kernel), &mut names), whole);
        assert_eq!(stacks.pair(None, None, &mut names), ROOT);
        assert_eq!(names.texts(), ["", "main", "work", "futex_wait"]);
        assert_eq!((stacks.nodes.len(), stacks.cut), (4, 0));
    }
}
