// SPDX-License-Identifier: Apache-2.0
//! The program's own functions of a stack, from its root inwards, to be compared with another stack of the
//! same thread.

use std::sync::Arc;

use wallprof_meaning::by_stack::ByFrame;
use wallprof_meaning::site::{Role, Roles, base_name};
use wallprof_meaning::{interpreted, node};
use wallprof_model::profile::{ResolvedFrame, ResolvedStack};
use wallprof_model::{FrameKind, StackEnd, SymbolLine};

use super::dispatch;

/// Two addresses without symbols in one module are taken for one function if they are no further apart,
/// bytes.
const FUNCTION_BYTES: u64 = 1_024;

/// Common machinery (libc, the linker) is left out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Callers(Vec<Arc<Function>>);

/// The program's functions of each frame, from the root inwards: all stacks share them.
#[derive(Debug, Default)]
pub(super) struct ProgramFunctions(ByFrame<Arc<Function>>);

impl ProgramFunctions {
    fn of(&mut self, frame: &Arc<ResolvedFrame>, roles: &mut Roles) -> &[Arc<Function>] {
        self.0.get(frame, |known| {
            let module: Option<Arc<str>> = known.module.as_deref().map(Arc::from);
            let function = |line: &SymbolLine| Function {
                module: module.clone(),
                symbol: line
                    .symbol
                    .as_deref()
                    .filter(|symbol| !symbol.is_empty())
                    .map(|symbol| node::without_tier(symbol).into()),
                address: known.address,
            };
            let lines = known.lines.iter().zip(roles.of(frame)).rev();
            let own = lines.filter(|(_, role)| **role != Role::Plumbing);
            own.map(|(line, _)| Arc::new(function(line))).collect()
        })
    }
}

/// What a loop called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Called {
    pub name: Arc<str>,
    /// `command`, `task`: what users of a known loop call it.
    pub word: Option<&'static str>,
}

/// A function of the program, as far as its name is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Function {
    module: Option<Arc<str>>,
    symbol: Option<Arc<str>>,
    /// Of the call, in the module.
    address: u64,
}

impl Callers {
    /// `None` for a stack with more frames than are kept, whose root is missing, and for one without
    /// functions of the program.
    pub(super) fn of(stack: &ResolvedStack, known: &mut ProgramFunctions, roles: &mut Roles) -> Option<Self> {
        if stack.end == StackEnd::Truncated {
            return None;
        }
        let mut functions = Vec::with_capacity(stack.frames.len());
        for frame in stack.frames.iter().rev().filter(|frame| frame.kind != FrameKind::Kernel) {
            functions.extend_from_slice(known.of(frame, roles));
        }
        functions.shrink_to_fit();
        (!functions.is_empty()).then_some(Callers(functions))
    }

    /// The first function of this stack, from the root inwards, that the other one does not have. In a
    /// stripped program it is the first one with a name, if there is any. Of a known loop it is the command
    /// or the task. `None` where the functions of this
    /// stack are all in the other one, or none is.
    pub fn first_beyond(&self, other: &Callers) -> Option<Called> {
        let pairs = self.0.iter().zip(&other.0);
        let common = pairs.take_while(|(one, other)| one.is_same(other)).count();
        called_first(self.0.get(common..).filter(|_| common > 0)?)
    }

    /// The same for a loop that is known by the names of its functions, if the thread does nothing else than to serve
    /// it.
    pub fn called_by_known_loop(&self) -> Option<Called> {
        let at = dispatch::serves(self.0.iter().map(|function| function.symbol.as_deref()))?;
        called_first(self.0.get(at + 1..)?)
    }

    /// Whether the thread has given its loop to another one.
    pub fn has_left_its_loop(&self) -> bool {
        dispatch::has_left(self.0.iter().map(|function| function.symbol.as_deref()))
    }

    /// All functions, from the root inwards.
    pub(super) fn functions(&self) -> impl Iterator<Item = &Function> + Clone {
        self.0.iter().map(|function| &**function)
    }

    /// The functions with a name that `name` called, from it inwards. `None` where it is not here.
    pub fn inwards_of(&self, name: &str) -> Option<impl Iterator<Item = &Arc<str>>> {
        let at = self.0.iter().position(|function| *function.name() == *name)?;
        let inwards = self.0[at + 1..].iter();
        let in_interpreted = interpreted::is_function(name);
        Some(
            inwards
                .filter(move |function| {
                    !in_interpreted
                        || !interpreted::is_runtime(function.symbol.as_deref(), function.module.as_deref())
                })
                .filter_map(|function| function.symbol.as_ref()),
        )
    }

    /// The innermost function that is one of these.
    pub fn innermost_of(&self, names: &[Arc<str>]) -> Option<Arc<str>> {
        self.0.iter().rev().map(|function| function.name()).find(|name| names.contains(name))
    }

    /// Whether threads of a known loop wait for work below these functions.
    pub fn wait_for_work(&self) -> bool {
        dispatch::waits_for_work(self.0.iter().filter_map(|function| function.symbol.as_deref()))
    }
}

/// The function that is said to be called, of those inside of a loop.
fn called_first(inside: &[Arc<Function>]) -> Option<Called> {
    // A function of the program in JavaScript says more than the callback of libuv that calls it.
    let in_script = inside.iter().find(|function| node::is_of_program(function.symbol.as_deref()));
    if let Some(function) = in_script {
        return Some(Called { name: function.name(), word: None });
    }
    if let Some((at, word)) = dispatch::called(inside.iter().map(|function| function.symbol.as_deref())) {
        return inside.get(at).map(|function| Called { name: function.name(), word: Some(word) });
    }
    // What asyncio calls says more than asyncio.
    let of_program = inside.iter().find(|function| interpreted::is_of_program(function.symbol.as_deref()));
    let named = of_program.or_else(|| inside.iter().find(|function| function.symbol.is_some()));
    named.or(inside.first()).map(|function| Called { name: function.name(), word: None })
}

impl Function {
    pub fn symbol(&self) -> Option<&Arc<str>> {
        self.symbol.as_ref()
    }

    pub fn module(&self) -> Option<&Arc<str>> {
        self.module.as_ref()
    }

    /// As far as that is known: a function without a symbol is near its other calls.
    fn is_same(&self, other: &Function) -> bool {
        let is_near = || self.address.abs_diff(other.address) <= FUNCTION_BYTES;
        self.module == other.module && self.symbol == other.symbol && (self.symbol.is_some() || is_near())
    }

    fn name(&self) -> Arc<str> {
        match (&self.symbol, &self.module) {
            (Some(symbol), _) => symbol.clone(),
            (None, Some(module)) => format!("{}+{:#x}", base_name(module), self.address).into(),
            (None, None) => format!("{:#x}", self.address).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_testkit::stacks::{stack, strip};

    fn of(stack: &ResolvedStack) -> Option<Callers> {
        Callers::of(stack, &mut ProgramFunctions::default(), &mut Roles::default())
    }

    fn beyond(one: &ResolvedStack, other: &ResolvedStack) -> Option<String> {
        of(one)?.first_beyond(&of(other)?).map(|called| called.name.to_string())
    }

    #[test]
    fn function_below_the_common_callers_is_named() {
        let idle = stack(&["epoll_wait", "wait_for_events", "run_loop", "main", "__libc_start_main"]);
        let busy = stack(&["nanosleep", "back_off", "handle", "run_loop", "main", "__libc_start_main"]);
        assert_eq!(beyond(&busy, &idle).as_deref(), Some("handle"));
        let direct = stack(&["nanosleep", "run_loop", "main"]);
        assert_eq!(beyond(&direct, &idle), None, "the loop's own sleep");
        assert_eq!(beyond(&stack(&["handle", "other"]), &idle), None, "nothing in common");
    }

    #[test]
    fn function_in_javascript_is_named_past_node_however_it_was_compiled() {
        let idle = stack(&["epoll_pwait", "uv__io_poll", "uv_run", "main"]);
        let handle = "JS:^handle /srv/shop/server.js:13:20";
        let emit = "JS:^emit node:events:471:44";
        let busy =
            stack(&["v8::JSON::Parse", handle, emit, "node::LibuvStreamWrap::OnUvRead", "uv_run", "main"]);
        assert_eq!(beyond(&busy, &idle).as_deref(), Some("JS:handle /srv/shop/server.js:13:20"));
        let callers = of(&busy).unwrap();
        let inside: Vec<_> = callers.inwards_of("JS:handle /srv/shop/server.js:13:20").unwrap().collect();
        assert_eq!(inside.len(), 1, "in the program's own file: {inside:?}");
    }

    #[test]
    fn function_without_a_symbol_is_known_by_its_address() {
        let mut idle = stack(&["epoll_wait", "wait_for_events", "run_loop"]);
        let mut busy = stack(&["nanosleep", "back_off", "handle", "run_loop"]);
        strip(&mut idle, 2);
        strip(&mut busy, 3);
        strip(&mut busy, 2);
        assert_eq!(beyond(&busy, &idle).as_deref(), Some("back_off"), "the nearest one with a name");
        strip(&mut busy, 1);
        assert_eq!(beyond(&busy, &idle).as_deref(), Some("app+0x1234"));
        assert_eq!(beyond(&busy, &stack(&["epoll_wait", "run_loop"])), None, "a name is no address");
    }

    #[test]
    fn stacks_share_the_functions_of_their_frames() {
        let whole = stack(&["epoll_wait", "handle", "run_loop", "main"]);
        let part = ResolvedStack { frames: whole.frames[2..].into(), end: whole.end };
        let (mut known, mut roles) = (ProgramFunctions::default(), Roles::default());
        let callers = |stack: ResolvedStack| Callers::of(&stack, &mut known, &mut roles).unwrap();
        let [whole, part] = [whole, part].map(callers);
        assert_eq!(part.0.len(), 2);
        assert!(part.0.iter().zip(&whole.0).all(|(one, other)| Arc::ptr_eq(one, other)));
    }

    #[test]
    fn stack_that_was_cut_short_has_no_callers() {
        let cut = ResolvedStack { end: StackEnd::Truncated, ..stack(&["epoll_wait", "run_loop"]) };
        assert_eq!(of(&cut), None);
        assert_eq!(of(&stack(&["epoll_wait"])), None, "libc alone");
    }
}
