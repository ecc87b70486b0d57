// SPDX-License-Identifier: Apache-2.0
//! Waits for the lock of an interpreter that follow on a sleep, in stripped programs.
//!
//! A thread lets go of that lock, sleeps, and takes it again, all in one function of the runtime. Without names both
//! waits look alike. But the sleep ends with its timeout, and the next wait begins at once, in the same call of the
//! same function, only further in: nothing of the program ran between them, so that it is the runtime that waits.
//! The calls further in are those that take the lock. All waits through the same calls are for it, also those that
//! follow on another wait, such as that for a queue.

use std::collections::HashSet;
use std::sync::Arc;

use wallprof_model::profile::{ResolvedFrame, ResolvedStack};
use wallprof_model::{FrameKind, Meaning, Reason};

use super::rules::{Rule, Rules};

/// Calls between the function in which both waits are and the library's function that sleeps, and the same of the
/// function that takes the lock. In Ruby 3.1 a function around `pthread_cond_timedwait` is one, and the one that takes
/// the lock another one.
const MOST_CALLS: usize = 2;

/// The lock's own mutex is taken this close to those calls, bytes: right before them, or in the function that they
/// call.
const NEAR_BYTES: u64 = 64;

/// Two calls without names in one module are in one function if they are no further apart, bytes.
const FUNCTION_BYTES: u64 = 1_024;

/// The calls that take the lock, the innermost first: addresses in a module.
type Calls = (usize, Arc<str>, Vec<u64>);

/// What was learned from pairs of waits, by the index of the rule.
pub(super) struct AfterSleep<'r> {
    rules: Vec<&'r Rule>,
    calls: HashSet<Calls>,
    /// Each of those calls, and the one of the outermost of them.
    each: HashSet<(usize, Arc<str>, u64)>,
}

/// What a sleep and the wait after it show.
struct Shown {
    module: Arc<str>,
    calls: Vec<u64>,
    /// The call in the function in which both waits are.
    caller: u64,
}

impl<'r> AfterSleep<'r> {
    pub fn new(rules: &'r Rules) -> Self {
        AfterSleep { rules: rules.after_sleep().collect(), calls: HashSet::new(), each: HashSet::new() }
    }

    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Learns from a sleep that ended with its timeout, and the wait of its thread that began at once.
    pub fn learn(&mut self, sleep: &ResolvedStack, next: &ResolvedStack) {
        for (index, rule) in self.rules.iter().enumerate() {
            if let Some(Shown { module, calls, caller }) = calls_of_lock(rule, sleep, next) {
                let each = calls.iter().chain([&caller]);
                self.each.extend(each.map(|&call| (index, module.clone(), call)));
                self.calls.insert((index, module, calls));
            }
        }
    }

    /// The meaning of waits with this stack.
    pub fn meaning(&self, user: &ResolvedStack, reason: Reason) -> Option<&'r Arc<Meaning>> {
        if self.calls.is_empty() {
            return None;
        }
        if reason == Reason::Lock {
            return self.meaning_of_mutex(user);
        }
        self.rules.iter().enumerate().find_map(|(index, rule)| {
            let (module, calls) = calls_behind_wait(rule, &user.frames)?;
            let is_known = |length| self.calls.contains(&(index, module.clone(), calls[..length].to_vec()));
            (1..=calls.len().min(MOST_CALLS)).any(is_known).then_some(&rule.meaning)
        })
    }
}

impl<'r> AfterSleep<'r> {
    /// The mutex that guards the words of the lock is a part of it.
    fn meaning_of_mutex(&self, user: &ResolvedStack) -> Option<&'r Arc<Meaning>> {
        self.rules.iter().enumerate().find_map(|(index, rule)| {
            let is_nameless = |frame: &ResolvedFrame| frame.lines.iter().all(|line| line.symbol.is_none());
            let call = user.frames.iter().find(|frame| rule.is_of_module(frame) && is_nameless(frame))?;
            let is_near = |(of, module, address): &(usize, Arc<str>, u64)| {
                *of == index
                    && call.module.as_deref() == Some(&**module)
                    && call.address.abs_diff(*address) <= NEAR_BYTES
            };
            self.each.iter().any(is_near).then_some(&rule.meaning)
        })
    }
}

/// The calls further in than the function in which both waits are.
fn calls_of_lock(rule: &Rule, sleep: &ResolvedStack, next: &ResolvedStack) -> Option<Shown> {
    let pairs = sleep.frames.iter().rev().zip(next.frames.iter().rev());
    let common = pairs.take_while(|(one, other)| is_same_call(one, other)).count();
    let inner = |stack: &ResolvedStack| stack.frames.len().checked_sub(common + 1);
    let (of_sleep, of_next) = (inner(sleep)?, inner(next)?);
    let (slept_in, waits_in) = (&sleep.frames[of_sleep], &next.frames[of_next]);
    if !rule.is_of_module(slept_in) || !is_one_function(slept_in, waits_in) {
        return None;
    }
    let (_, asleep) = calls_behind_wait(rule, &sleep.frames[..=of_sleep])?;
    let (module, calls) = calls_behind_wait(rule, &next.frames[..of_next])?;
    let is_short = asleep.len() <= MOST_CALLS && calls.len() <= MOST_CALLS;
    // A loop that sleeps again, or a lock of the program's own, is waited for through what slept before.
    let is_other = calls.last().is_some_and(|outermost| !asleep.contains(outermost));
    (is_short && is_other).then_some(Shown { module, calls, caller: waits_in.address })
}

/// The calls of one module behind the outermost function that the rule is about, up to the first frame of another.
fn calls_behind_wait(rule: &Rule, frames: &[Arc<ResolvedFrame>]) -> Option<(Arc<str>, Vec<u64>)> {
    let wait = frames.iter().rposition(|frame| rule.is_about(frame))?;
    let behind = &frames[wait + 1..];
    let module = behind.first().filter(|frame| rule.is_of_module(frame))?.module.as_deref()?;
    let of_module = behind.iter().take_while(|frame| frame.module.as_deref() == Some(module));
    Some((module.into(), of_module.map(|frame| frame.address).collect()))
}

fn is_same_call(one: &ResolvedFrame, other: &ResolvedFrame) -> bool {
    one.kind == other.kind && one.module == other.module && one.address == other.address
}

fn is_one_function(one: &ResolvedFrame, other: &ResolvedFrame) -> bool {
    let name = |frame: &ResolvedFrame| frame.lines.last().and_then(|line| line.symbol.clone());
    one.kind != FrameKind::Jit
        && one.module == other.module
        && match (name(one), name(other)) {
            (None, None) => one.address.abs_diff(other.address) <= FUNCTION_BYTES,
            (one, other) => one == other,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{MeaningSource, StackEnd, SymbolLine};

    const RULE: &str = "[[wait]]\nname = 'GVL'\nidle = false\nafter_sleep = true\nmodule = 'libruby*'\n\
        in = ['pthread_cond_timedwait', 'rb_native_cond_wait']";

    /// A stack of a stripped Ruby, leaf first: the library's function, and the addresses of calls.
    fn stack(wait: &str, calls: &[u64]) -> ResolvedStack {
        let frame = |module: &str, address: u64, symbol: Option<&str>| {
            Arc::new(ResolvedFrame {
                kind: FrameKind::Native,
                module: Some(module.into()),
                build_id: None,
                address,
                lines: vec![SymbolLine { symbol: symbol.map(Into::into), ..SymbolLine::default() }],
            })
        };
        let leaf = frame("/usr/lib/libc.so.6", 0x500, Some(wait));
        let calls = calls.iter().map(|&address| frame("/usr/lib/libruby-3.1.so.3.1", address, None));
        ResolvedStack { frames: [leaf].into_iter().chain(calls).collect(), end: StackEnd::Complete }
    }

    fn rules() -> Rules {
        let mut rules = Rules::default();
        rules.add_file(RULE, MeaningSource::Stack).unwrap();
        rules
    }

    /// Whether a wait is for the lock, after these two waits.
    fn is_lock(sleep: &ResolvedStack, next: &ResolvedStack, wait: &ResolvedStack) -> bool {
        let rules = rules();
        assert!(rules.meaning(Some(wait), None).is_none(), "not by its functions alone");
        let mut learned = AfterSleep::new(&rules);
        learned.learn(sleep, next);
        learned.meaning(wait, Reason::Wait).is_some()
    }

    #[test]
    fn mutex_of_the_lock_is_a_part_of_it() {
        let sleep = stack("pthread_cond_timedwait", &[0x22e614, 0x23555e, 0x238156, 0x1a7e74]);
        let next = stack("rb_native_cond_wait", &[0x232738, 0x232896, 0x235585, 0x238156, 0x1a7e74]);
        let rules = rules();
        let mut learned = AfterSleep::new(&rules);
        let mutex = |call| stack("pthread_mutex_lock", &[call, 0x235585]);
        assert!(learned.meaning(&mutex(0x232864), Reason::Lock).is_none(), "nothing is known yet");
        learned.learn(&sleep, &next);
        let is_lock = |call| learned.meaning(&mutex(call), Reason::Lock).is_some();
        assert_eq!([0x232864, 0x235581, 0x23500e].map(is_lock), [true, true, false]);
    }

    #[test]
    fn wait_further_in_after_a_sleep_is_for_the_lock_and_so_are_others_through_its_calls() {
        // As seen of Ruby 3.1.2 and 3.3.8: native_sleep, and then what it takes the GVL with.
        let sleep = stack("pthread_cond_timedwait", &[0x20a2ac, 0x20feb1, 0x210020, 0x2125b8]);
        let next = stack("rb_native_cond_wait", &[0x20f772, 0x20feed, 0x210020, 0x2125b8]);
        let of_queue = stack("rb_native_cond_wait", &[0x20f772, 0x20feed, 0x210020, 0x212851]);
        let for_queue = stack("rb_native_cond_wait", &[0x20ff7c, 0x210020, 0x212851]);
        assert!(is_lock(&sleep, &next, &next));
        assert!(is_lock(&sleep, &next, &of_queue));
        assert!(!is_lock(&sleep, &next, &for_queue), "a consumer without work");
        assert!(!is_lock(&sleep, &next, &sleep));

        let sleep = stack("pthread_cond_timedwait", &[0x22e614, 0x23555e, 0x238156, 0x1a7e74]);
        let next = stack("rb_native_cond_wait", &[0x232738, 0x232896, 0x235585, 0x238156, 0x1a7e74]);
        let for_queue = stack("rb_native_cond_wait", &[0x232738, 0x232a32, 0x23856d, 0x1a7e74]);
        assert!(is_lock(&sleep, &next, &next));
        assert!(!is_lock(&sleep, &next, &for_queue), "the same wait, called by another function");
    }

    #[test]
    fn sleep_that_goes_on_and_the_wait_for_a_lock_of_the_program_teach_nothing() {
        let sleep = stack("pthread_cond_timedwait", &[0x20a2ac, 0x20feb1, 0x210020, 0x2125b8]);
        assert!(!is_lock(&sleep, &sleep, &sleep), "it sleeps again");
        let forever = stack("rb_native_cond_wait", &[0x20ff7c, 0x210020, 0x2125b8]);
        assert!(!is_lock(&sleep, &forever, &forever), "the same function waits without a timeout");
        // Mutex#sleep locks again in the function that slept.
        let slept = stack("pthread_cond_timedwait", &[0x20a2ac, 0x20feb1, 0x210020, 0x2146a0, 0x214760]);
        let locks = stack("rb_native_cond_wait", &[0x20ff7c, 0x210020, 0x2146d0, 0x214760]);
        assert!(!is_lock(&slept, &locks, &locks));
        let far = stack("rb_native_cond_wait", &[0x20f772, 0x21feed, 0x210020, 0x2125b8]);
        assert!(!is_lock(&sleep, &far, &far), "another function");
    }
}
