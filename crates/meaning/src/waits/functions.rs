// SPDX-License-Identifier: Apache-2.0
//! The functions of stacks as small numbers, and the common machinery (libc, the linker) left out.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use wallprof_model::profile::{ResolvedFrame, ResolvedStack};
use wallprof_model::{FastMap, FastSet, FrameKind};

use super::{JUDGED_DEPTH, WAITERS_DEPTH};
use crate::{java, site};

/// Two addresses without symbols in one module are taken for one function if they are no further apart,
/// bytes.
const FUNCTION_BYTES: u64 = 1_024;

/// Innermost functions among which the one that parks a thread is.
const PARKED_DEPTH: usize = 2;

/// A function. Two calls in one function without a symbol are two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionId(u32);

/// What a function is known by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Symbol { module: Arc<str>, symbol: Arc<str> },
    Address { module: Arc<str>, address: u64 },
}

/// All functions of one recording's stacks.
#[derive(Debug, Default)]
pub struct Functions {
    ids: FastMap<Key, FunctionId>,
    keys: Vec<Key>,
    modules: FastSet<Arc<str>>,
    /// Stacks have the same frames again and again. By address, which the frame itself keeps from being another
    /// one's.
    frames: FastMap<usize, (Arc<ResolvedFrame>, Arc<[Line]>)>,
}

/// A function of a frame, the innermost inlined one first.
#[derive(Clone, Copy, Debug)]
struct Line {
    function: FunctionId,
    is_plumbing: bool,
}

/// Frames that are kept.
const MOST_FRAMES: usize = 1 << 17;

impl Functions {
    /// The program's own functions of a user stack, leaf first. Where there are none, all of them.
    pub fn of_program(&mut self, stack: &ResolvedStack) -> Vec<FunctionId> {
        let own = self.collect(stack, |line| !line.is_plumbing);
        if own.is_empty() { self.whole(stack) } else { own }
    }

    /// All functions of a user stack, leaf first.
    pub fn whole(&mut self, stack: &ResolvedStack) -> Vec<FunctionId> {
        self.collect(stack, |_| true)
    }

    /// Whether two stacks are of the same functions.
    pub fn are_same(&self, one: &[FunctionId], other: &[FunctionId]) -> bool {
        one.len() == other.len() && self.common(one, other) == one.len()
    }

    fn collect(&mut self, stack: &ResolvedStack, accepts: impl Fn(&Line) -> bool) -> Vec<FunctionId> {
        let mut functions = Vec::with_capacity(stack.frames.len());
        for frame in stack.frames.iter().filter(|frame| frame.kind != FrameKind::Kernel) {
            let lines = self.lines(frame);
            functions.extend(lines.iter().filter(|line| accepts(line)).map(|line| line.function));
        }
        functions
    }

    fn lines(&mut self, frame: &Arc<ResolvedFrame>) -> Arc<[Line]> {
        let address = Arc::as_ptr(frame).addr();
        if let Some((_, lines)) = self.frames.get(&address) {
            return Arc::clone(lines);
        }
        if self.frames.len() == MOST_FRAMES {
            self.frames.clear();
        }
        let line =
            |(at, line)| Line { function: self.id(frame, at), is_plumbing: site::is_plumbing(frame, line) };
        let lines: Arc<[Line]> = frame.lines.iter().enumerate().map(line).collect();
        self.frames.insert(address, (Arc::clone(frame), Arc::clone(&lines)));
        lines
    }

    fn id(&mut self, frame: &ResolvedFrame, line: usize) -> FunctionId {
        let module = self.module(frame.module.as_deref().unwrap_or(""));
        let symbol = frame.lines[line].symbol.as_deref().filter(|symbol| !symbol.is_empty());
        let key = match symbol {
            Some(symbol) => Key::Symbol { module, symbol: symbol.into() },
            None => Key::Address { module, address: frame.address },
        };
        self.of_key(key)
    }

    fn of_key(&mut self, key: Key) -> FunctionId {
        let next = FunctionId(u32::try_from(self.keys.len()).unwrap_or(u32::MAX));
        *self.ids.entry(key).or_insert_with_key(|key| {
            self.keys.push(key.clone());
            next
        })
    }

    fn module(&mut self, path: &str) -> Arc<str> {
        if let Some(known) = self.modules.get(path) {
            return known.clone();
        }
        let new: Arc<str> = path.into();
        self.modules.insert(new.clone());
        new
    }

    /// A hash of what the functions are known by: equal for the same functions among others, too.
    pub fn hash(&self, functions: &[FunctionId], hasher: &mut impl Hasher) {
        functions.iter().map(|function| self.keys.get(function.0 as usize)).for_each(|key| key.hash(hasher));
    }

    /// Whether two calls are in one function, as far as that is known.
    fn is_same(&self, one: FunctionId, other: FunctionId) -> bool {
        match (self.keys.get(one.0 as usize), self.keys.get(other.0 as usize)) {
            _ if one == other => true,
            (
                Some(Key::Address { module, address }),
                Some(Key::Address { module: other_module, address: other_address }),
            ) => module == other_module && address.abs_diff(*other_address) <= FUNCTION_BYTES,
            _ => false,
        }
    }

    /// Whether it is known by its address alone.
    pub fn is_unnamed(&self, function: FunctionId) -> bool {
        matches!(self.keys.get(function.0 as usize), Some(Key::Address { .. }))
    }

    /// Whether a thread is parked there by the virtual machine of Java, whatever for: these are the stack's innermost
    /// functions of the program, leaf first. In the functions around them, which have no names, the stacks of locks,
    /// of queues and of answers differ.
    pub fn is_parked(&self, functions: &[FunctionId]) -> bool {
        let is_park = |function: &FunctionId| match self.keys.get(function.0 as usize) {
            Some(Key::Symbol { module, symbol }) => {
                symbol.starts_with("Unsafe_Park") && site::base_name(module) == java::LIBRARY
            }
            _ => false,
        };
        functions.iter().take(PARKED_DEPTH).any(is_park)
    }

    /// How many of the innermost functions the waits have in common that are judged by one timing.
    pub fn waiters_depth(&self, functions: &[FunctionId]) -> usize {
        if self.is_parked(functions) { JUDGED_DEPTH } else { WAITERS_DEPTH }
    }

    /// What the waits at all calls of one function without a symbol have in common: the innermost functions, of which the
    /// first one without a symbol is known by its module alone. The one that called it is the same. `None` where all of
    /// them have symbols, so that the calls of each are one place.
    pub fn beside(&mut self, functions: &[FunctionId]) -> Option<Vec<FunctionId>> {
        let mut beside = functions[..functions.len().min(WAITERS_DEPTH)].to_vec();
        let at = beside.iter().position(|function| self.is_unnamed(*function))?;
        // Without its caller it is one of all functions of a module.
        beside.get(at + 1)?;
        let module = match self.keys.get(beside[at].0 as usize)? {
            Key::Address { module, .. } | Key::Symbol { module, .. } => module.clone(),
        };
        beside[at] = self.of_key(Key::Address { module, address: u64::MAX });
        Some(beside)
    }

    /// How many functions two stacks (leaf first) have in common from their roots on.
    pub fn common(&self, one: &[FunctionId], other: &[FunctionId]) -> usize {
        let pairs = one.iter().rev().zip(other.iter().rev());
        pairs.take_while(|(one, other)| self.is_same(**one, **other)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{StackEnd, SymbolLine};
    use wallprof_testkit::stacks::stack;

    fn frame(module: Option<&str>, address: u64, symbol: Option<&str>) -> Arc<ResolvedFrame> {
        Arc::new(ResolvedFrame {
            kind: FrameKind::Native,
            module: module.map(Into::into),
            build_id: None,
            address,
            lines: vec![SymbolLine { symbol: symbol.map(Into::into), ..SymbolLine::default() }],
        })
    }

    fn stripped(addresses: &[u64]) -> ResolvedStack {
        let frames = addresses.iter().map(|&address| frame(Some("/opt/app"), address, None));
        ResolvedStack { frames: frames.collect(), end: StackEnd::Complete }
    }

    /// A stack of Java, whose own functions have no names.
    fn java(module: &str, wait: &str) -> ResolvedStack {
        let native =
            [("libc.so.6", "pthread_cond_wait"), (module, "Parker::park(bool, long)"), (module, wait)];
        let frames = native.iter().map(|(module, symbol)| frame(Some(module), 0, Some(symbol)));
        let java = (1..20).map(|address| frame(None, address * 0x1000, None));
        ResolvedStack { frames: frames.chain(java).collect(), end: StackEnd::Complete }
    }

    #[test]
    fn parked_threads_of_java_are_compared_by_more_functions() {
        let mut functions = Functions::default();
        let depth = |functions: &mut Functions, stack: &ResolvedStack| {
            let of_stack = functions.of_program(stack);
            (functions.is_parked(&of_stack), functions.waiters_depth(&of_stack))
        };
        let parked = java("/usr/lib/jvm/lib/server/libjvm.so", "Unsafe_Park");
        assert_eq!(depth(&mut functions, &parked), (true, JUDGED_DEPTH));
        let monitor = java("/usr/lib/jvm/lib/server/libjvm.so", "ObjectMonitor::EnterI");
        assert_eq!(depth(&mut functions, &monitor), (false, WAITERS_DEPTH));
        assert_eq!(depth(&mut functions, &java("/opt/app", "Unsafe_Park")), (false, WAITERS_DEPTH));
        assert_eq!(depth(&mut functions, &stripped(&[1])), (false, WAITERS_DEPTH));
    }

    #[test]
    fn libc_is_left_out_where_the_program_is_in_the_stack() {
        let mut functions = Functions::default();
        let whole = functions.of_program(&stack(&["pthread_cond_wait", "take", "serve", "start_thread"]));
        assert_eq!(whole.len(), 2);
        assert_eq!(whole, functions.of_program(&stack(&["take", "serve"])));
        assert_eq!(functions.of_program(&stack(&["pthread_join", "start_thread"])).len(), 2);
    }

    #[test]
    fn common_part_starts_at_the_root() {
        let mut functions = Functions::default();
        let mut of = |symbols: &[&str]| functions.of_program(&stack(symbols));
        let (wait, work) = (of(&["take", "serve", "run"]), of(&["sum", "parse", "serve", "run"]));
        let other = of(&["take", "serve", "other"]);
        assert_eq!(functions.common(&wait, &work), 2);
        assert_eq!(functions.common(&wait, &other), 0);
        assert_eq!(functions.common(&wait, &wait), 3);
    }

    #[test]
    fn calls_of_one_function_without_a_symbol_are_beside_each_other() {
        let mut functions = Functions::default();
        let mut beside = |addresses: &[u64], caller: &str| {
            let mut stack = stripped(addresses);
            let caller = frame(Some("/opt/host"), 0x40, Some(caller));
            stack.frames = stack.frames.iter().cloned().chain([caller]).collect();
            let of_stack = functions.of_program(&stack);
            functions.beside(&of_stack)
        };
        let wait = beside(&[0x2bf4], "call");
        assert!(wait.is_some());
        assert_eq!(beside(&[0x2c2d], "call"), wait, "another call");
        assert_ne!(beside(&[0x2c2d], "other"), wait, "another caller");
        assert_ne!(beside(&[0x2c2d, 0x100], "call"), wait);
        assert_ne!(
            beside(&[0x2c2d, 0x100], "call"),
            beside(&[0x2c2d, 0x200], "call"),
            "callers by their addresses"
        );
        assert_eq!(beside(&[], "call"), None, "all have symbols");
        let alone = functions.of_program(&stripped(&[0x2bf4]));
        assert_eq!(functions.beside(&alone), None, "of which function is not known");
    }

    #[test]
    fn two_calls_of_a_function_without_a_symbol_are_in_one_function() {
        let mut functions = Functions::default();
        let wait = functions.of_program(&stripped(&[0x9000, 0x1100, 0x400]));
        let work = functions.of_program(&stripped(&[0x7000, 0x1180, 0x400]));
        assert_ne!(wait[1], work[1]);
        assert_eq!(functions.common(&wait, &work), 2);
        assert!(!functions.are_same(&wait, &work), "another leaf");
        let again = functions.whole(&stripped(&[0x9000, 0x1140, 0x400]));
        assert!(functions.are_same(&wait, &again));
        assert!(!functions.are_same(&wait, &again[1..]));
    }
}
