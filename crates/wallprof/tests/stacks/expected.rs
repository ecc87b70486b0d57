// SPDX-License-Identifier: Apache-2.0
//! A scenario's own list of its stacks (scenarios/alone.h), and the comparison with recorded ones.
//!
//! A stack must be right at any time between a thread's first and last expected function: from its innermost
//! expected function outwards it must be the outer part of one of the scenario's stacks, frame by frame, down
//! to the start of the thread.

use std::collections::{BTreeSet, HashSet};

use serde::Deserialize;

use crate::taken::{Doing, Place, Taken};

/// One frame of libc, which returns from a signal handler. Frames of the interrupted functions lie between it
/// and the next function of the list.
const SIGNAL: &str = "<signal>";
/// Frames of the dynamic linker, at least two: one binds a function, the other looks it up.
const LINKER: &str = "<linker>";

/// A `stack` line.
#[derive(Clone, Debug, Deserialize)]
pub struct Expected {
    pub thread: String,
    pub state: String,
    functions: Vec<String>,
}

impl Expected {
    fn doing(&self) -> Doing {
        if self.state == "running" { Doing::Running } else { Doing::Blocked }
    }

    /// Whether the stack has one of the functions.
    fn resembles(&self, stack: &Taken) -> bool {
        stack.frames.iter().any(|frame| frame.symbol.as_deref().is_some_and(|name| self.has(name)))
    }

    /// The names in it that no other stack has: every stack has a `main`.
    fn has(&self, name: &str) -> bool {
        name != "main" && self.functions.iter().any(|function| function == name)
    }
}

/// All stacks of the scenario's threads are right, all but this many thousandths of them are complete, and each
/// expected one was recorded. For code that is known before it runs.
pub fn assert_as_expected(expected: &[Expected], taken: &[Taken], thousandths: u64) {
    for thread in threads(expected) {
        assert_complete(thread, taken, thousandths);
    }
    assert_right(expected, taken);
    if let Some(missing) = missing(expected, taken) {
        panic!("{missing}");
    }
}

/// All complete stacks of the scenario's threads are right.
pub fn assert_right(expected: &[Expected], taken: &[Taken]) {
    let of_scenario = taken.iter().filter(|stack| expected.iter().any(|one| one.thread == stack.thread));
    for stack in of_scenario.filter(|stack| stack.is_complete()) {
        assert!(is_right(expected, &stack.frames), "a frame is missing or out of order: {stack}");
    }
}

/// An expected stack that was not recorded, and the recorded ones that resemble it.
pub fn missing(expected: &[Expected], taken: &[Taken]) -> Option<String> {
    expected.iter().find_map(|one| {
        let own = || taken.iter().filter(|stack| stack.thread == one.thread);
        let seen = own().any(|stack| stack.doing == one.doing() && shows(one, &stack.frames));
        let similar = || own().filter(|stack| one.resembles(stack)).map(ToString::to_string);
        (!seen).then(|| format!("not seen: {one:?}; similar stacks: {:#?}", similar().collect::<Vec<_>>()))
    })
}

/// The unwind table of a new program comes milliseconds after the program does, later under load. That time is
/// measured (`make complete`) and not tested here. Once a thread had a complete stack of the scenario's code,
/// the table is there, and all of the thread's later stacks are complete.
pub fn assert_complete_once_known(expected: &[Expected], taken: &[Taken]) {
    for thread in threads(expected) {
        let has_code =
            |stack: &Taken| expected.iter().any(|one| one.thread == thread && one.resembles(stack));
        let own: Vec<&Taken> = taken.iter().filter(|stack| stack.thread == thread).collect();
        for key in own.iter().map(|stack| stack.key).collect::<HashSet<_>>() {
            let of_thread = own.iter().copied().filter(|stack| stack.key == key).collect::<Vec<_>>();
            let late = incomplete_after_complete(&of_thread, has_code);
            assert!(late.is_empty(), "incomplete after complete ones: {late:#?}");
        }
    }
}

/// The incomplete stacks of one thread that are later than its first complete one with `has_code`. Intervals are
/// compared by their starts, and samples of running code by their seconds. A second's sums of other states may
/// have a stack of the second before.
fn incomplete_after_complete(taken: &[&Taken], has_code: impl Fn(&Taken) -> bool) -> Vec<String> {
    let known = || taken.iter().filter(|stack| stack.is_complete() && has_code(stack));
    let first_start = known().filter_map(|stack| stack.start()).min();
    let first_second = known().filter_map(|stack| stack.running_second()).min();
    let is_late = |stack: &Taken| {
        first_start.is_some_and(|first| stack.start() > Some(first))
            || first_second.is_some_and(|first| stack.running_second() > Some(first))
    };
    let late = taken.iter().filter(|stack| !stack.is_complete() && is_late(stack));
    late.map(ToString::to_string).collect()
}

fn threads(expected: &[Expected]) -> BTreeSet<&str> {
    assert!(!expected.is_empty(), "the scenario says what it does");
    expected.iter().map(|one| one.thread.as_str()).collect()
}

/// All but this many thousandths of the stacks of threads with this name are complete.
fn assert_complete(thread: &str, taken: &[Taken], thousandths: u64) {
    let own = || taken.iter().filter(|stack| stack.thread == thread);
    let all: u64 = own().map(|stack| stack.count).sum();
    let incomplete: Vec<&Taken> = own().filter(|stack| !stack.is_complete()).collect();
    let count: u64 = incomplete.iter().map(|stack| stack.count).sum();
    assert!(all > 0, "no stacks of {thread}");
    let text: Vec<String> = incomplete.iter().map(|stack| stack.to_string()).collect();
    assert!(
        count * 1000 <= all * thousandths,
        "{count} of {all} stacks of {thread} are incomplete: {text:#?}"
    );
}

/// Whether the stack has all functions of `expected`.
fn shows(expected: &Expected, frames: &[Place]) -> bool {
    let (innermost, functions) = expected.functions.split_first().expect("a function");
    if innermost == LINKER {
        let inside = frames.iter().take_while(|frame| frame.module.starts_with("ld-linux")).count();
        return inside >= 2 && outer_part(&frames[inside..], functions);
    }
    let at = frames.iter().position(|frame| frame.is(innermost));
    at.is_some_and(|at| outer_part(&frames[at..], &expected.functions))
}

fn is_right(expected: &[Expected], frames: &[Place]) -> bool {
    let innermost = frames.iter().position(|frame| {
        let name = frame.symbol.as_deref();
        name.is_some_and(|name| expected.iter().any(|one| one.has(name)))
    });
    // Before its part starts and after it ends the scenario is elsewhere.
    let Some(at) = innermost else { return true };
    let frames = &frames[at..];
    let part_of = |one: &Expected| {
        (0..one.functions.len())
            .any(|from| frames[0].is(&one.functions[from]) && outer_part(frames, &one.functions[from..]))
    };
    expected.iter().any(part_of)
}

/// Whether the frames are exactly these functions and then the start of a program.
fn outer_part(frames: &[Place], functions: &[String]) -> bool {
    match functions.split_first() {
        None => is_start(frames),
        Some((function, rest)) if function == SIGNAL => {
            frames.split_first().is_some_and(|(handler, frames)| {
                handler.module.starts_with("libc.") && after_signal(frames, rest)
            })
        }
        Some((function, rest)) => {
            frames.split_first().is_some_and(|(frame, frames)| frame.is(function) && outer_part(frames, rest))
        }
    }
}

/// A signal may arrive in any of the remaining functions, or in their callees.
fn after_signal(frames: &[Place], rest: &[String]) -> bool {
    let Some(at) = frames.iter().position(|frame| rest.iter().any(|function| frame.is(function))) else {
        return false;
    };
    (0..rest.len()).any(|from| frames[at].is(&rest[from]) && outer_part(&frames[at..], &rest[from..]))
}

/// `main` was called by two functions of libc, which have names where debug symbols are installed or the
/// program is static, and those by `_start`.
fn is_start(frames: &[Place]) -> bool {
    let [inner, outer, start] = frames else { return false };
    let in_libc = |frame: &Place| {
        let named = frame.symbol.as_deref().is_some_and(|name| name.starts_with("__libc_start"));
        named || frame.module.starts_with("libc.")
    };
    in_libc(inner) && in_libc(outer) && start.is("_start")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::taken::When;
    use wallprof_model::{EpochSecond, FrameKind, MonoNs, StackEnd, ThreadKey};

    fn place(name: &str) -> Place {
        let (symbol, module) = name.split_once('@').unwrap_or((name, "program"));
        let symbol = (!symbol.is_empty()).then(|| symbol.to_owned());
        Place { symbol, module: module.to_owned(), kind: FrameKind::Native }
    }

    fn right(functions: &str, frames: &str) -> bool {
        let functions = functions.split(' ').map(str::to_owned).collect();
        let expected = [Expected { thread: String::new(), state: "running".into(), functions }];
        let start = ["@libc.so.6", "@libc.so.6", "_start"];
        let frames: Vec<Place> = frames.split(' ').chain(start).map(place).collect();
        is_right(&expected, &frames)
    }

    #[test]
    fn a_stack_is_right_from_its_innermost_expected_function_on() {
        for frames in ["c b a main", "b a main", "@[vdso] clock_gettime c b a main", "other main", "a main"] {
            assert!(right("c b a main", frames), "{frames}");
        }
        for frames in ["c a main", "b c a main", "c b a", "c b x a main", "c b b a main", "c b a main main"] {
            assert!(!right("c b a main", frames), "{frames}");
        }
    }

    #[test]
    fn recursion_is_counted() {
        assert!(right("leaf f f f main", "leaf f f f main") && right("leaf f f f main", "f f main"));
        assert!(!right("leaf f f f main", "leaf f f main") && !right("leaf f f f main", "f f f f main"));
    }

    #[test]
    fn a_signal_is_one_frame_and_interrupts_anything() {
        let functions = "spin handler <signal> compute loop main";
        for frames in
            ["spin handler @libc.so.6 compute loop main", "handler @libc.so.6 setitimer@libc.so.6 loop main"]
        {
            assert!(right(functions, frames), "{frames}");
        }
        for frames in
            ["handler compute loop main", "handler @libc.so.6 compute main", "handler @libc.so.6 main loop"]
        {
            assert!(!right(functions, frames), "{frames}");
        }
    }

    #[test]
    fn program_starts_in_libc_and_at_its_entry() {
        let frames = |names: &[&str]| names.iter().map(|name| place(name)).collect::<Vec<_>>();
        assert!(is_start(&frames(&["__libc_start_call_main", "__libc_start_main_impl", "_start"])));
        assert!(!is_start(&frames(&["@libc.so.6", "_start"])));
        assert!(!is_start(&frames(&["@libc.so.6", "@libc.so.6", "_start", "_start"])));
        assert!(!is_start(&[]));
    }

    fn stack(when: When, end: StackEnd, function: &str) -> Taken {
        let (key, thread, frames) = (ThreadKey(1), "a".to_owned(), vec![place(function)]);
        Taken { key, thread, doing: Doing::Running, when, count: 1, end, frames, lines: Vec::new() }
    }

    fn late(taken: &[Taken]) -> usize {
        let taken: Vec<&Taken> = taken.iter().collect();
        incomplete_after_complete(&taken, |stack| stack.frames[0].is("work")).len()
    }

    #[test]
    fn incomplete_stack_after_a_complete_one_is_found() {
        let start = |ns| When::Start(MonoNs(ns));
        let second = |second| When::Second(EpochSecond(second));
        let (complete, unknown) = (StackEnd::Complete, StackEnd::NoMappings);
        for when in [start, |number| When::Second(EpochSecond(number as _))] {
            let known = || stack(when(5), complete, "work");
            assert_eq!(
                late(&[stack(when(4), unknown, "work"), known(), stack(when(6), complete, "work")]),
                0
            );
            assert_eq!(late(&[known(), stack(when(6), unknown, "work"), stack(when(7), unknown, "")]), 2);
            // Before exec the thread ran other code.
            assert_eq!(late(&[stack(when(5), complete, "fork"), stack(when(6), unknown, "work")]), 0);
        }
        // In the same second either may be the first.
        assert_eq!(late(&[stack(second(5), complete, "work"), stack(second(5), unknown, "work")]), 0);
        let mut sum = stack(second(6), unknown, "work");
        sum.doing = Doing::Blocked;
        assert_eq!(late(&[stack(second(5), complete, "work"), sum]), 0);
    }
}
