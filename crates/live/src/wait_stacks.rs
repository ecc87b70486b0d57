// SPDX-License-Identifier: Apache-2.0
//! The functions in the stacks of waits: their identities, what rules say about them, and the distance of a wait
//! from its thread's loop.
//!
//! Places of waits are compared by the functions of the program, as readers do. In a static binary only names
//! distinguish the program's functions from those of its runtime library. So the frames of the stacks of waits
//! are named while recording, and no others.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use wallprof_meaning::waits::{FunctionId, Functions, JUDGED_DEPTH, Rules, RulesOfFunctions};
use wallprof_model::profile::{ResolvedFrame, ResolvedStack};
use wallprof_model::{Frame, FrameId, FrameKind, Meaning, Module, ModuleId, StackEnd, SymbolLine};
use wallprof_symbols::Origin;

/// Stacks that are kept, at some 150 bytes each. A frame, with its name, takes 300 bytes; stacks share theirs.
const MOST_STACKS: usize = 4_096;
/// Stacks that were asked for after they were forgotten.
const MOST_MISSED: usize = 1_024;
/// Pairs of stacks with a meaning, or without one.
const MOST_MEANINGS: usize = 8_192;

/// What a user stack of a wait is known by: hashes over the innermost functions of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackPlace {
    /// Of as many as are judged together.
    pub narrow: u64,
    /// Of as many as the waiters of one lock have in common.
    pub wide: u64,
    /// The virtual machine of Java parks the thread there, whatever for.
    pub is_parked: bool,
    /// Of what the waits at all calls of one function without a symbol have in common.
    pub beside: Option<u64>,
}

#[derive(Default)]
pub struct WaitStacks {
    rules: Arc<Rules>,
    rules_of_functions: RulesOfFunctions,
    stacks: HashMap<u64, Known>,
    frames: HashMap<FrameId, KnownFrame>,
    functions: Functions,
    /// Frames to be named.
    unnamed: BTreeMap<Origin, Vec<FrameId>>,
    missed: HashSet<u64>,
    meanings: HashMap<(u64, u64), Option<Arc<Meaning>>>,
    /// Frames of which results were computed have other names now.
    is_stale: bool,
    /// Counts uses.
    clock: u64,
}

struct Known {
    frames: Box<[FrameId]>,
    used: u64,
    /// All of its frames are named, or have no names.
    is_settled: bool,
    place: Option<StackPlace>,
    functions: Option<Arc<[FunctionId]>>,
    is_no_lock: Option<bool>,
}

struct KnownFrame {
    resolved: Arc<ResolvedFrame>,
    origin: Option<Origin>,
    naming: Naming,
    /// Results were computed by its present name.
    is_used: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Naming {
    NotNeeded,
    Wanted,
    Done,
}

impl WaitStacks {
    pub fn set_rules(&mut self, rules: Arc<Rules>) {
        self.rules = rules;
        self.rules_of_functions = RulesOfFunctions::default();
        self.meanings.clear();
    }

    /// Whether a stack that arrives again is to be taken again.
    pub fn misses(&self, stack: u64) -> bool {
        self.missed.contains(&stack)
    }

    /// Takes a stack that arrived, leaf first. `module` finds a module's path.
    pub fn meet<'m>(
        &mut self,
        stack: u64,
        frames: &[(FrameId, Frame)],
        module: impl Fn(ModuleId) -> Option<&'m Module>,
    ) {
        for &(id, frame) in frames {
            self.frames.entry(id).or_insert_with(|| KnownFrame::new(frame, &module));
        }
        self.clock += 1;
        let frames = frames.iter().map(|(id, _)| *id).collect();
        self.missed.remove(&stack);
        self.stacks.insert(
            stack,
            Known {
                frames,
                used: self.clock,
                is_settled: false,
                place: None,
                functions: None,
                is_no_lock: None,
            },
        );
        if self.stacks.len() > MOST_STACKS {
            self.drop_oldest();
        }
    }

    /// A thread waits with this stack: its frames need names. False where the stack is not known.
    pub fn want(&mut self, stack: u64) -> bool {
        if stack == 0 {
            return false;
        }
        self.clock += 1;
        let Some(known) = self.stacks.get_mut(&stack) else {
            // Some never come again.
            if self.missed.len() == MOST_MISSED {
                self.missed.clear();
            }
            self.missed.insert(stack);
            return false;
        };
        known.used = self.clock;
        if known.is_settled {
            return true;
        }
        let mut is_settled = true;
        for id in &known.frames {
            let Some(frame) = self.frames.get_mut(id) else { continue };
            if frame.naming == Naming::NotNeeded
                && let Some(origin) = frame.origin
            {
                frame.naming = Naming::Wanted;
                self.unnamed.entry(origin).or_default().push(*id);
            }
            is_settled &= frame.naming != Naming::Wanted;
        }
        known.is_settled = is_settled;
        true
    }

    /// The frames to be named, by where that can be done; each once.
    pub fn take_unnamed(&mut self) -> BTreeMap<Origin, Vec<(FrameId, u64)>> {
        let unnamed = std::mem::take(&mut self.unnamed);
        let of = |ids: Vec<FrameId>| -> Vec<(FrameId, u64)> {
            ids.into_iter().filter_map(|id| Some((id, self.frames.get(&id)?.resolved.address))).collect()
        };
        unnamed.into_iter().map(|(origin, ids)| (origin, of(ids))).collect()
    }

    pub fn has_unnamed(&self) -> bool {
        !self.unnamed.is_empty()
    }

    /// Names a frame. Without a symbol it is known by its address.
    pub fn name(&mut self, id: FrameId, lines: &[SymbolLine]) {
        let Some(frame) = self.frames.get_mut(&id) else { return };
        frame.naming = Naming::Done;
        let is_new = lines.iter().any(|line| line.symbol.is_some())
            && frame.resolved.lines.iter().all(|line| line.symbol.is_none());
        if is_new {
            frame.resolved = Arc::new(ResolvedFrame { lines: lines.to_vec(), ..(*frame.resolved).clone() });
            self.is_stale |= frame.is_used;
        }
    }

    /// What the user stack of a wait is known by; `None` where it has no names yet.
    pub fn place(&mut self, stack: u64) -> Option<StackPlace> {
        if !self.want(stack) {
            return None;
        }
        self.refresh();
        let known = self.stacks.get(&stack).filter(|known| known.is_settled)?;
        if known.place.is_some() {
            return known.place;
        }
        let functions = self.functions_of(stack)?;
        let beside = self.functions.beside(&functions);
        let hash_of = |functions: &[FunctionId]| {
            let mut hasher = DefaultHasher::new();
            self.functions.hash(functions, &mut hasher);
            hasher.finish()
        };
        let hash = |depth: usize| hash_of(&functions[..functions.len().min(depth)]);
        let place = StackPlace {
            narrow: hash(JUDGED_DEPTH),
            wide: hash(self.functions.waiters_depth(&functions)),
            is_parked: self.functions.is_parked(&functions),
            beside: beside.map(|functions| hash_of(&functions)),
        };
        self.stacks.get_mut(&stack)?.place = Some(place);
        Some(place)
    }

    /// What rules say about a wait with these stacks, 0 for none. They are asked as soon as both have names.
    pub fn ask_rules(&mut self, user: u64, kernel: u64) -> Option<Arc<Meaning>> {
        self.refresh();
        if let Some(known) = self.meanings.get(&(user, kernel)) {
            return known.clone();
        }
        // All of them, so that their frames are named together.
        let are_wanted = [user, kernel].map(|stack| stack == 0 || self.want(stack));
        let is_settled = |stack| stack == 0 || self.stacks.get(&stack).is_some_and(|known| known.is_settled);
        if are_wanted != [true; 2] || !is_settled(user) || !is_settled(kernel) {
            return None;
        }
        let (users, kernels) = (self.resolved(user), self.resolved(kernel));
        let known = &mut self.rules_of_functions;
        let meaning = self.rules.meaning_by(known, users.as_ref(), kernels.as_ref()).cloned();
        if self.meanings.len() == MOST_MEANINGS {
            self.meanings.clear();
        }
        self.meanings.insert((user, kernel), meaning.clone());
        meaning
    }

    /// Whether a wait with this user stack is for no lock, whatever its value is. False where it has no names yet.
    pub fn is_no_lock(&mut self, stack: u64) -> bool {
        if !self.want(stack) {
            return false;
        }
        self.refresh();
        let Some(known) = self.stacks.get(&stack).filter(|known| known.is_settled) else { return false };
        if let Some(is_no_lock) = known.is_no_lock {
            return is_no_lock;
        }
        let is_no_lock = self.resolved(stack).is_some_and(|user| self.rules.is_no_lock(&user));
        if let Some(known) = self.stacks.get_mut(&stack) {
            known.is_no_lock = Some(is_no_lock);
        }
        is_no_lock
    }

    /// What rules said about a wait with these stacks.
    pub fn meaning(&self, user: u64, kernel: u64) -> Option<&Arc<Meaning>> {
        self.meanings.get(&(user, kernel))?.as_ref()
    }

    /// What the user stack of a wait is known by, where that was asked for before.
    pub fn known_place(&self, stack: u64) -> Option<StackPlace> {
        self.stacks.get(&stack)?.place
    }

    /// How many functions of a thread's wait none of its other stacks has: those between its loop and its
    /// wait. `None`: they have no names yet.
    pub fn depth(&mut self, wait: u64, others: &[u64]) -> Option<usize> {
        self.refresh();
        let are_named: Vec<bool> = others.iter().map(|&stack| self.is_named_or_unknown(stack)).collect();
        let wait = self.functions_of(wait)?;
        if are_named.contains(&false) {
            return None;
        }
        let mut common = wait.len();
        for &other in others {
            if let Some(other) = self.functions_of(other) {
                common = common.min(self.functions.common(&wait, &other));
            }
        }
        Some(wait.len() - common)
    }

    fn is_named_or_unknown(&mut self, stack: u64) -> bool {
        !self.want(stack) || self.stacks.get(&stack).is_none_or(|known| known.is_settled)
    }

    /// The consumer has forgotten these. They arrive again, under other numbers, when they are used again.
    pub fn forget(&mut self, stacks: impl Iterator<Item = u64>, frames: &HashSet<FrameId>) {
        let before = self.stacks.len();
        for stack in stacks {
            self.stacks.remove(&stack);
        }
        if !frames.is_empty() {
            self.stacks.retain(|_, known| !known.frames.iter().any(|id| frames.contains(id)));
            self.frames.retain(|id, _| !frames.contains(id));
        }
        if self.stacks.len() < before {
            let is_known = |stack: &u64| *stack == 0 || self.stacks.contains_key(stack);
            self.meanings.retain(|(user, kernel), _| is_known(user) && is_known(kernel));
        }
    }

    fn functions_of(&mut self, stack: u64) -> Option<Arc<[FunctionId]>> {
        if let Some(functions) = &self.stacks.get(&stack)?.functions {
            return Some(functions.clone());
        }
        let resolved = self.resolved(stack)?;
        let functions: Arc<[FunctionId]> = self.functions.of_program(&resolved).into();
        self.stacks.get_mut(&stack)?.functions = Some(functions.clone());
        Some(functions)
    }

    fn resolved(&mut self, stack: u64) -> Option<ResolvedStack> {
        let of_stack = self.stacks.get(&stack)?.frames.iter();
        let mut frames = Vec::with_capacity(of_stack.len());
        for id in of_stack {
            if let Some(frame) = self.frames.get_mut(id) {
                frame.is_used = true;
                frames.push(frame.resolved.clone());
            }
        }
        Some(ResolvedStack { frames: frames.into(), end: StackEnd::Complete })
    }

    fn drop_oldest(&mut self) {
        let mut uses: Vec<u64> = self.stacks.values().map(|known| known.used).collect();
        let (_, &mut last, _) = uses.select_nth_unstable(MOST_STACKS / 4);
        self.stacks.retain(|_, known| known.used > last);
        let used: HashSet<FrameId> =
            self.stacks.values().flat_map(|known| known.frames.iter().copied()).collect();
        self.frames.retain(|id, _| used.contains(id));
        self.functions = Functions::default();
        self.rules_of_functions = RulesOfFunctions::default();
        self.forget_results();
    }

    fn refresh(&mut self) {
        if std::mem::take(&mut self.is_stale) {
            self.forget_results();
        }
    }

    fn forget_results(&mut self) {
        self.meanings.clear();
        for known in self.stacks.values_mut() {
            (known.place, known.functions, known.is_no_lock) = (None, None, None);
        }
    }
}

impl KnownFrame {
    fn new<'m>(frame: Frame, module: &impl Fn(ModuleId) -> Option<&'m Module>) -> Self {
        let origin = match (frame.kind, frame.module) {
            (FrameKind::Kernel, _) => Some(Origin::Kernel),
            (_, Some(module)) => Some(Origin::Module(module)),
            (_, None) => None,
        };
        let module = frame.module.and_then(module);
        let resolved = Arc::new(ResolvedFrame {
            kind: frame.kind,
            module: module.map(|module| module.path.clone()),
            build_id: None,
            address: frame.address,
            lines: vec![SymbolLine::default()],
        });
        KnownFrame { resolved, origin, naming: Naming::NotNeeded, is_used: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_meaning::Glob;

    /// Stacks of a static program: stack → the addresses of its frames, leaf first. A function has 16 bytes.
    fn met(stacks: &[(u64, &[u64])]) -> WaitStacks {
        let module = Module { path: "/opt/server".into(), build_id: None };
        let mut met = WaitStacks::default();
        for (stack, addresses) in stacks {
            let frame =
                |&address: &u64| Frame { kind: FrameKind::Native, module: Some(ModuleId(0)), address };
            let frames: Vec<_> =
                addresses.iter().map(|address| (FrameId(*address as u32), frame(address))).collect();
            met.meet(*stack, &frames, |_| Some(&module));
        }
        met
    }

    fn name_all(stacks: &mut WaitStacks, names: &[(u64, &str)]) {
        for (id, address) in stacks.take_unnamed().into_values().flatten() {
            let symbol =
                names.iter().find(|(named, _)| *named == address).map(|(_, name)| (*name).to_owned());
            stacks.name(id, &[SymbolLine { symbol, ..SymbolLine::default() }]);
        }
    }

    const NAMES: &[(u64, &str)] = &[
        (0x10, "runtime.futex"),
        (0x20, "take"),
        (0x30, "next_job"),
        (0x40, "serve"),
        (0x50, "run"),
        (0x60, "parse"),
    ];

    #[test]
    fn wrapper_of_a_static_binary_is_not_what_its_waits_have_in_common() {
        let mut stacks = met(&[(1, &[0x10, 0x20, 0x50]), (2, &[0x10, 0x30, 0x50]), (3, &[0x20, 0x50])]);
        assert_eq!(stacks.place(1), None, "it has no names yet");
        stacks.place(2);
        stacks.place(3);
        name_all(&mut stacks, NAMES);
        let [take, next, direct] = [1, 2, 3].map(|stack| stacks.place(stack).expect("names"));
        assert_ne!(take, next);
        assert_eq!(take, direct, "whatever system call wrapper is the leaf");
        assert_eq!(stacks.known_place(1), Some(take));
    }

    #[test]
    fn only_frames_of_waits_are_named() {
        let mut stacks = met(&[(1, &[0x20, 0x50]), (2, &[0x60, 0x50])]);
        stacks.place(1);
        let unnamed: Vec<_> =
            stacks.take_unnamed().into_values().flatten().map(|(_, address)| address).collect();
        assert_eq!(unnamed, [0x20, 0x50]);
        assert!(!stacks.has_unnamed());
        stacks.place(1);
        assert!(!stacks.has_unnamed(), "each is asked for once");
    }

    #[test]
    fn frames_without_names_are_known_by_their_addresses() {
        let mut stacks = met(&[(1, &[0x20, 0x50]), (2, &[0x30, 0x50])]);
        assert_eq!([1, 2].map(|stack| stacks.place(stack)), [None; 2]);
        name_all(&mut stacks, &[]);
        let [one, other] = [1, 2].map(|stack| stacks.place(stack).expect("settled"));
        assert_ne!(one, other);
        stacks.name(FrameId(0x20), &[SymbolLine { symbol: Some("poll".into()), ..Default::default() }]);
        assert_ne!(stacks.place(1), Some(one), "a name that comes late counts");
    }

    #[test]
    fn only_names_of_functions_that_were_looked_at_change_what_is_known() {
        let mut stacks = met(&[(1, &[0x20, 0x50]), (2, &[0x30, 0x60])]);
        stacks.place(1);
        name_all(&mut stacks, NAMES);
        let (place, meaning) = (stacks.place(1), stacks.ask_rules(1, 0));
        assert!(place.is_some() && meaning.is_none());
        stacks.place(2);
        name_all(&mut stacks, NAMES);
        assert!(!stacks.is_stale && stacks.meanings.contains_key(&(1, 0)), "stack 1 has none of the names");
        assert!(stacks.place(2).is_some());
        stacks.forget([1].into_iter(), &HashSet::new());
        assert!(stacks.meanings.is_empty(), "it may come back with other names");
    }

    #[test]
    fn rules_are_asked_when_the_functions_have_names() {
        let mut rules = Rules::default();
        rules.prepend_names(&[Glob::new("next_*").expect("a glob")], &[]);
        let mut stacks = met(&[(1, &[0x10, 0x30]), (2, &[0x10, 0x20])]);
        stacks.set_rules(Arc::new(rules));
        assert_eq!((stacks.ask_rules(1, 0), stacks.ask_rules(2, 0)), (None, None));
        name_all(&mut stacks, NAMES);
        assert!(stacks.ask_rules(1, 0).is_some_and(|meaning| meaning.idle));
        assert!(stacks.meaning(1, 0).is_some());
        assert_eq!(stacks.ask_rules(2, 0), None);
        assert_eq!(stacks.ask_rules(7, 0), None, "a stack that never arrived");
    }

    #[test]
    fn wait_is_for_no_lock_when_its_functions_say_so() {
        let mut rules = Rules::default();
        rules.prepend_file("[[no_lock]]\nin = 'next_job'").expect("rules");
        let mut stacks = met(&[(1, &[0x30, 0x40]), (2, &[0x20, 0x40])]);
        stacks.set_rules(Arc::new(rules));
        assert_eq!([1, 2].map(|stack| stacks.is_no_lock(stack)), [false; 2], "they have no names yet");
        name_all(&mut stacks, NAMES);
        assert_eq!([1, 2, 7].map(|stack| stacks.is_no_lock(stack)), [true, false, false]);
    }

    #[test]
    fn depth_of_a_wait_counts_from_the_loop() {
        let mut stacks = met(&[(1, &[0x10, 0x20, 0x40, 0x50]), (2, &[0x60, 0x40, 0x50]), (3, &[0x60, 0x50])]);
        stacks.place(1);
        assert_eq!(stacks.depth(1, &[2, 3]), None, "no names yet");
        name_all(&mut stacks, NAMES);
        assert_eq!(stacks.depth(1, &[2]), Some(1));
        assert_eq!(stacks.depth(1, &[2, 3]), Some(2));
        assert_eq!(stacks.depth(1, &[9]), Some(0), "a stack that is not known does not count");
    }

    #[test]
    fn stacks_are_bounded_and_come_back() {
        let mut stacks = WaitStacks::default();
        let frame = |id: u32| (FrameId(id), Frame { kind: FrameKind::Jit, module: None, address: id.into() });
        for stack in 1..=u64::from(MOST_STACKS as u32) + 1 {
            stacks.meet(stack, &[frame(stack as u32)], |_| None);
        }
        assert!(stacks.stacks.len() <= MOST_STACKS && stacks.frames.len() <= MOST_STACKS);
        assert!(stacks.place(1).is_none() && stacks.misses(1));
        stacks.meet(1, &[frame(1)], |_| None);
        assert!(stacks.place(1).is_some() && !stacks.misses(1));
        stacks.forget([1].into_iter(), &HashSet::new());
        assert_eq!(stacks.place(1), None);
    }
}
