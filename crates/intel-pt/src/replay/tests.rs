// SPDX-License-Identifier: Apache-2.0
//! The rules of the replay, one test for each: the effect of events on a stack, whether one recorder takes
//! all of them or each has a recorder of its own.

use super::*;
use crate::code::{FunctionId, SpaceId};
use crate::event::{EndCause, Event, EventKind, GapCause, Sink};
use crate::schedule::{Departure, Switch, ThreadId};

const THREAD: ThreadId = ThreadId(1);
const KERNEL: u64 = 1 << 63;

/// The functions `a`, `b` … by their letter. An uppercase letter is a function of the kernel.
fn entry(name: char) -> u64 {
    let side = if name.is_uppercase() { KERNEL } else { 0 };
    (u64::from(u32::from(name)) * 0x1000) | side
}

/// `p` is a stub of the procedure linkage table.
fn is_stub(function: FunctionId) -> bool {
    function == FunctionId(u32::from('p'))
}

/// Events of one thread.
#[derive(Default)]
struct Script {
    events: Vec<Event>,
}

impl Script {
    fn add(mut self, ticks: u64, kind: EventKind, from: u64, to: u64) -> Script {
        let letter = char::from_u32(((to & !KERNEL) >> 12) as u32).filter(|letter| letter.is_alphabetic());
        let function = letter.map_or(FunctionId::UNKNOWN, |letter| FunctionId(u32::from(letter)));
        let at_entry = letter.is_some_and(|letter| entry(letter) == to);
        self.events.push(Event { ticks, from, to, function, at_entry, kind });
        self
    }

    /// `site` is a place in a function, `a+5`, and the return address.
    fn call(self, ticks: u64, site: &str, to: char) -> Script {
        self.add(ticks, EventKind::Call { return_to: place(site) }, place(site) - 5, entry(to))
    }

    fn ret(self, ticks: u64, to: &str) -> Script {
        self.add(ticks, EventKind::Return, 0, place(to))
    }

    fn jump(self, ticks: u64, to: &str) -> Script {
        self.add(ticks, EventKind::Jump { indirect: true }, 0, place(to))
    }

    fn direct_jump(self, ticks: u64, to: &str) -> Script {
        self.add(ticks, EventKind::Jump { indirect: false }, 0, place(to))
    }

    fn start(self, ticks: u64, at: &str) -> Script {
        self.add(ticks, EventKind::Start, 0, place(at))
    }

    /// At the site `nowhere` the return address is not known.
    fn end(self, ticks: u64, cause: EndCause, site: &str) -> Script {
        let return_to = if site == "nowhere" { 0 } else { place(site) };
        self.add(ticks, EventKind::End { cause, return_to }, 0, 0)
    }

    fn gap(self, ticks: u64) -> Script {
        self.add(ticks, EventKind::Gap(GapCause::Overflow), 0, 0)
    }

    fn gap_of_code(self, ticks: u64, from: &str) -> Script {
        self.add(ticks, EventKind::Gap(GapCause::NoCode), place(from), 0)
    }

    fn resume(self, ticks: u64, at: &str) -> Script {
        self.add(ticks, EventKind::Resume, 0, place(at))
    }

    fn switch(self, ticks: u64, thread: ThreadId, departure: Departure) -> Script {
        let switch = Switch { ticks, thread, space: SpaceId(1), departure };
        self.add(ticks, EventKind::Switch(switch), 0, 0)
    }

    /// The paths at time `end`, which are the same for any division into segments.
    fn paths(&self, end: u64) -> Vec<String> {
        let whole = self.replayed(end, usize::MAX);
        for events_a_segment in 1..4 {
            assert_eq!(self.replayed(end, events_a_segment), whole, "{events_a_segment} events a segment");
        }
        whole
    }

    fn replayed(&self, end: u64, events_a_segment: usize) -> Vec<String> {
        let mut replay = ThreadReplay::new(THREAD, TimeConv::NANOSECONDS);
        let mut current = Switch { thread: THREAD, ..Switch::default() };
        let mut ticks = self.events[0].ticks;
        for events in self.events.chunks(events_a_segment) {
            let mut recorder = Recorder::new(TimeConv::NANOSECONDS);
            recorder.join(ticks, current);
            for event in events {
                recorder.event(event);
                ticks = event.ticks;
                if let EventKind::Switch(switch) = event.kind {
                    current = switch;
                }
            }
            let stretches = recorder.finish(ticks);
            stretches
                .iter()
                .filter(|stretch| stretch.thread == THREAD)
                .for_each(|stretch| replay.add_with_stubs(stretch, &is_stub));
        }
        paths(&replay.finish(end))
    }
}

fn place(site: &str) -> u64 {
    let (function, offset) = site.split_once('+').unwrap_or((site, "0"));
    entry(function.chars().next().expect("a letter")) + offset.parse::<u64>().expect("an offset")
}

/// Each path with its complete calls, its incomplete ones, `before` if it was entered before, and its self
/// time.
fn paths(calls: &ThreadCalls) -> Vec<String> {
    let spent: u64 =
        calls.tree.paths(CallTree::ROOT).iter().map(|&path| calls.tree.numbers(path).self_ticks).sum();
    assert_eq!(spent, calls.last - calls.first, "self times add up");
    let mut found: Vec<String> =
        calls.tree.paths(CallTree::ROOT).into_iter().skip(1).map(|path| line(calls, path)).collect();
    found.sort();
    found
}

fn line(calls: &ThreadCalls, path: PathId) -> String {
    let numbers = calls.tree.numbers(path);
    let mut frames = Vec::new();
    let mut at = path;
    while let Some(parent) = calls.tree.parent(at) {
        frames.insert(0, name(calls.tree.frame(at)));
        at = parent;
    }
    let mut line = format!("{} {}({})", frames.join(";"), numbers.calls, numbers.incomplete);
    if numbers.entered_before > 0 {
        line += " before";
    }
    if numbers.unwound > 0 {
        line += " unwound";
    }
    format!("{line} self {}", numbers.self_ticks)
}

fn name(frame: Frame) -> String {
    match (frame, frame.label()) {
        (_, Some(label)) => label.to_owned(),
        (Frame::Function(FunctionId(id)), _) => char::from_u32(id).expect("a letter").to_string(),
        _ => format!("{frame:?}"),
    }
}

#[test]
fn calls_and_returns() {
    let script = Script::default().start(0, "a").call(10, "a+5", 'b').ret(30, "a+5").call(40, "a+9", 'b');
    assert_eq!(script.paths(45), ["a 0(1) self 20", "a;b 1(1) self 25"]);
}

#[test]
fn return_may_land_a_little_behind_the_first_possible_address() {
    let script = Script::default()
        .start(0, "a")
        .call(10, "a+7", 'b')
        .call(20, "b+7", 'c')
        .ret(30, "b+20")
        .call(40, "b+32", 'c')
        .ret(50, "b+46")
        .ret(60, "a+9");
    let mut recorder = Recorder::new(TimeConv::NANOSECONDS).with_slack(13);
    recorder.join(0, Switch { thread: THREAD, ..Switch::default() });
    let (first, rest) = script.events.split_at(3);
    first.iter().for_each(|event| recorder.event(event));
    let mut replay = ThreadReplay::new(THREAD, TimeConv::NANOSECONDS).with_slack(13);
    recorder.finish(20).iter().for_each(|stretch| replay.add(stretch));
    rest.iter().for_each(|event| replay.event(event, &|_| false));
    // The second return of `c` is one byte too far from its call, so it is an exception that landed in `b`.
    assert_eq!(
        paths(&replay.finish(60)),
        ["a 0(1) self 10", "a;b 1(0) self 30", "a;b;c 2(0) unwound self 20"]
    );
}

#[test]
fn return_without_a_recorded_call_finds_a_parent() {
    let script =
        Script::default().start(0, "c+3").ret(10, "b+5").call(20, "b+9", 'c').ret(25, "b+9").ret(40, "a+5");
    assert_eq!(
        script.paths(50),
        ["a 0(0) before self 10", "a;b 0(0) before self 25", "a;b;c 1(0) before self 15"]
    );
}

#[test]
fn return_to_a_deeper_frame_unwinds() {
    let script = Script::default()
        .start(0, "a")
        .call(10, "a+5", 'b')
        .call(20, "b+5", 'c')
        .call(30, "c+5", 'd')
        .ret(40, "a+5");
    assert_eq!(
        script.paths(50),
        ["a 0(1) self 20", "a;b 1(0) self 10", "a;b;c 1(0) unwound self 10", "a;b;c;d 1(0) unwound self 10"]
    );
}

#[test]
fn exception_lands_in_a_function_on_the_stack() {
    let by_return = Script::default().start(0, "a").call(10, "a+5", 'b').call(20, "b+5", 'c').ret(30, "a+77");
    let by_jump = Script::default().start(0, "a").call(10, "a+5", 'b').call(20, "b+5", 'c').jump(30, "a+77");
    let expected = ["a 0(1) self 20", "a;b 1(0) unwound self 10", "a;b;c 1(0) unwound self 10"];
    assert_eq!(by_return.paths(40), expected);
    assert_eq!(by_jump.paths(40), expected);
}

#[test]
fn return_to_an_unknown_place_is_a_jump() {
    let script = Script::default().start(0, "a").call(10, "a+5", 'b').ret(20, "x+77").ret(30, "a+5");
    assert_eq!(script.paths(40), ["a 0(1) self 20", "a;b 1(0) self 10", "a;x 0(0) before self 10"]);
}

#[test]
fn call_at_the_end_of_a_function_returns_to_the_next_ones_entry() {
    let script = Script::default().start(0, "a").call(10, "b", 'c').ret(30, "b").ret(40, "z+9");
    assert_eq!(script.paths(45), ["z 0(0) before self 5", "z;a 1(0) self 20", "z;a;c 1(0) self 20"]);
}

#[test]
fn trampoline_that_returns_to_a_function_calls_it() {
    // A call of `t`, which calls into its own middle and returns to the entry of `b`: a retpoline.
    let script = Script::default()
        .start(0, "a")
        .call(10, "a+5", 't')
        .add(11, EventKind::Call { return_to: place("t+8") }, 0, place("t+9"))
        .ret(12, "b")
        .ret(30, "a+5");
    assert_eq!(
        script.paths(40),
        ["a 0(1) self 20", "a;b 1(0) self 18", "a;t 1(0) self 1", "a;t;t 1(0) self 1"]
    );
}

#[test]
fn tail_call_replaces_its_caller() {
    let script = Script::default().start(0, "a").call(10, "a+5", 'b').direct_jump(20, "c").ret(35, "a+5");
    assert_eq!(script.paths(40), ["a 0(1) self 15", "a;b 1(0) self 10", "a;c 1(0) self 15"]);
}

#[test]
fn stub_of_the_linkage_table_is_replaced_by_its_function() {
    // The stub is a function of its own. Without a symbol it has its address.
    let script = Script::default().start(0, "a").call(10, "a+5", 'p').jump(11, "b").ret(20, "a+5");
    assert_eq!(script.paths(30), ["a 0(1) self 20", "a;b 1(0) self 9", "a;p 1(0) self 1"]);
}

#[test]
fn start_at_a_return_address_returns_there() {
    let script = Script::default()
        .start(0, "a")
        .call(10, "a+5", 'b')
        .call(20, "b+5", 'c')
        .end(30, EndCause::Other, "c+5")
        .start(40, "a+5");
    assert_eq!(
        script.paths(50),
        ["a 0(1) self 20", "a;b 1(0) self 10", "a;b;c 1(0) unwound self 10", "a;b;c;[untraced] 1(0) self 10"]
    );
}

#[test]
fn start_at_another_place_keeps_the_stack() {
    let start_at =
        |place| Script::default().start(0, "a").end(10, EndCause::Other, "a+5").start(20, place).paths(30);
    assert_eq!(start_at("a+50"), ["a 0(1) self 20", "a;[untraced] 1(0) self 10"]);
    assert_eq!(start_at("b+50"), ["a 0(1) self 10", "a;[untraced] 1(0) self 10", "a;b 0(0) before self 10"]);
}

#[test]
fn trace_of_one_function_starts_at_that_function() {
    // Called from two places, once with a call of its own, and once from a callback of untraced code.
    let script = Script::default()
        .start(0, "a")
        .end(10, EndCause::Return, "x+5")
        .start(20, "a")
        .call(22, "a+5", 'b')
        .ret(25, "a+5")
        .end(30, EndCause::Return, "y+5")
        .start(40, "a")
        .end(45, EndCause::Other, "a+9")
        .start(50, "a")
        .end(53, EndCause::Return, "z+5")
        .start(60, "a+9")
        .end(65, EndCause::Return, "x+7")
        .start(70, "a");
    let expected = [
        "[untraced] 3(0) self 25",
        "a 3(1) self 37",
        "a;[untraced] 1(0) self 12",
        "a;[untraced];a 1(0) self 3",
        "a;b 1(0) self 3",
    ];
    assert_eq!(script.paths(80), expected);
}

#[test]
fn sides_of_user_code_and_kernel_entries_are_known() {
    let mut replay = ThreadReplay::new(THREAD, TimeConv::NANOSECONDS);
    let mut recorder = Recorder::new(TimeConv::NANOSECONDS);
    recorder.join(0, Switch { thread: THREAD, ..Switch::default() });
    let events = Script::default()
        .start(0, "a")
        .call(10, "a+5", 'b')
        .end(15, EndCause::SystemCall, "b+5")
        .start(35, "b+5")
        .switch(40, ThreadId(2), Departure::Blocked);
    events.events.iter().for_each(|event| recorder.event(event));
    recorder
        .finish(60)
        .iter()
        .filter(|stretch| stretch.thread == THREAD)
        .for_each(|stretch| replay.add(stretch));
    assert_eq!(replay.away_since(), Some(40));
    assert_eq!(replay.take_sides(), Sides { user: 20, kernel: 0, entered: 20 });
    assert_eq!(replay.take_sides(), Sides::default());
}

#[test]
fn code_without_a_name_has_a_side_and_gaps_have_none() {
    let mut replay = ThreadReplay::new(THREAD, TimeConv::NANOSECONDS);
    let script = Script::default().start(0, "5+5").gap(10).resume(30, "a+3").end(35, EndCause::Other, "a+9");
    // At 60 it is in the kernel, in code without a symbol.
    let mut events = script.start(50, "a+9").events;
    let kernel = Event { ticks: 60, to: KERNEL | 5, at_entry: false, ..events[0] };
    events.push(kernel);
    events.push(Event { ticks: 67, ..events[1] });
    events.iter().for_each(|event| replay.event(event, &|_| false));
    assert_eq!(replay.take_sides(), Sides { user: 10 + 5 + 10, kernel: 7, entered: 0 });
}

#[test]
fn jump_to_a_cold_part_keeps_the_stack() {
    let script = Script::default().start(0, "a").call(10, "a+5", 'b').direct_jump(20, "x+3").ret(35, "a+5");
    assert_eq!(script.paths(40), ["a 0(1) self 15", "a;b 1(0) self 25"]);
}

#[test]
fn jump_into_a_function_that_is_not_open_enters_another_stack() {
    // Go's `gogo` does this: another switch left `c` before the trace, and its caller is found by its return.
    let script = Script::default().start(0, "a").call(10, "a+5", 'b').jump(20, "c+77");
    let there = script.ret(30, "d+5").call(35, "d+15", 'e').ret(38, "d+15");
    let elsewhere = [
        "a 0(1) self 10",
        "a;b 0(1) self 10",
        "d 0(0) before self 7",
        "d;c 0(0) before self 10",
        "d;e 1(0) self 3",
    ];
    assert_eq!(there.paths(40), elsewhere);
    // A jump back: the first stack continues, and the open calls of the other one have not ended.
    let there = Script::default().start(0, "a").call(10, "a+5", 'b').call(15, "b+5", 'f').jump(20, "c+77");
    let back = there.call(24, "c+99", 'e').jump(30, "b+9").ret(40, "a+5");
    let expected = [
        "a 0(1) self 20",
        "a;b 1(0) self 15",
        "a;b;f 1(0) unwound self 5",
        "c 0(0) before self 4",
        "c;e 0(1) self 6",
    ];
    assert_eq!(back.paths(50), expected);
}

#[test]
fn return_stays_on_its_stack() {
    // `b` of the other stack has the same caller as the open one, as in goroutines that run the same
    // function.
    let script = Script::default().start(0, "a").call(10, "a+5", 'b').call(12, "b+5", 'g').jump(20, "c+9");
    let expected = [
        "a 0(1) self 10",
        "a;b 0(1) self 2",
        "a;b;g 0(1) self 8",
        "b 0(0) before self 10",
        "b;c 0(0) before self 10",
    ];
    assert_eq!(script.ret(30, "b+7").paths(40), expected);
}

#[test]
fn jump_to_an_unnamed_part_returns_with_its_function() {
    let script = Script::default().start(0, "a").call(10, "a+5", 'b').jump(20, "c+9").ret(30, "a+5");
    let expected = ["a 0(1) self 20", "a;b 1(0) self 10", "c 0(0) before self 10"];
    assert_eq!(script.paths(40), expected);
}

#[test]
fn jump_from_an_unknown_place_continues_in_its_function() {
    let script = Script::default().jump(0, "c+9").ret(10, "a+5");
    let expected = ["a 0(0) before self 10", "a;[unknown] 0(0) before self 0", "a;c 0(0) before self 10"];
    assert_eq!(script.paths(20), expected);
}

#[test]
fn stacks_that_are_left_repeatedly_add_up() {
    let mut script = Script::default().start(0, "a");
    for turn in 1..200 {
        let letter = ["b", "c", "d", "e", "a"][turn as usize % 5];
        script = script.call(turn * 10, "z+5", 'x').jump(turn * 10 + 5, &format!("{letter}+9"));
        if turn % 7 == 0 {
            script = script.gap(turn * 10 + 6).resume(turn * 10 + 8, "c+30");
        }
    }
    script.paths(2_000);
}

#[test]
fn function_behind_a_stub_without_code_is_found() {
    let in_stub = || Script::default().start(0, "a").call(10, "a+5", 'p').gap(11);
    let lost = "a;p;[lost] 1(0) self 9";
    assert_eq!(
        in_stub().resume(20, "b").ret(30, "a+5").paths(40),
        ["a 0(1) self 20", "a;b 1(0) self 10", "a;p 0(1) self 1", lost]
    );
    assert_eq!(
        in_stub().resume(20, "b+7").ret(30, "a+5").paths(40),
        ["a 0(1) self 20", "a;b 0(0) before self 10", "a;p 0(1) self 1", lost]
    );
    // The stub has returned, or is a function that calls another one.
    assert_eq!(in_stub().resume(20, "a+5").paths(40), ["a 0(1) self 30", "a;p 0(1) self 1", lost]);
    assert_eq!(in_stub().resume(20, "a+50").paths(40), ["a 0(1) self 30", "a;p 0(1) self 1", lost]);
    let in_function = Script::default().start(0, "a").call(10, "a+5", 'q').gap(11).resume(20, "b");
    let called = "a;q;b 1(0) unwound self 10";
    let expected = ["a 0(1) self 10", "a;q 0(1) self 1", "a;q;[lost] 1(0) self 9", called];
    assert_eq!(in_function.ret(30, "a+5").paths(30), expected);
}

#[test]
fn recursion_has_a_path_for_each_level() {
    let script =
        Script::default().start(0, "a").call(1, "a+5", 'a').call(2, "a+5", 'a').ret(3, "a+5").ret(5, "a+5");
    assert_eq!(script.paths(6), ["a 0(1) self 2", "a;a 1(0) self 3", "a;a;a 1(0) self 1"]);
}

#[test]
fn system_call_includes_its_wait() {
    let script = Script::default()
        .start(0, "a")
        .end(10, EndCause::SystemCall, "a+5")
        .switch(12, ThreadId(2), Departure::Blocked)
        .switch(100, THREAD, Departure::Unknown)
        .start(103, "a+5");
    assert_eq!(
        script.paths(110),
        ["a 0(1) self 17", "a;[syscall] 1(0) self 5", "a;[syscall];[blocked] 1(0) self 88"]
    );
}

#[test]
fn long_times_are_stretches_of_their_own() {
    const LONG: u64 = 1 << 32;
    let script = Script::default()
        .start(0, "a")
        .call(10, "a+5", 'b')
        .end(20, EndCause::SystemCall, "b+5")
        .start(20 + LONG, "b+5")
        .ret(30 + LONG, "a+5");
    let syscall = format!("a;b;[syscall] 1(0) self {LONG}");
    assert_eq!(script.paths(40 + LONG), ["a 0(1) self 20", "a;b 1(0) self 20", syscall.as_str()]);
    let mut recorder = Recorder::new(TimeConv::NANOSECONDS);
    recorder.join(0, Switch { thread: THREAD, ..Switch::default() });
    script.events.iter().for_each(|event| recorder.event(event));
    let mut replay = ThreadReplay::new(THREAD, TimeConv::NANOSECONDS);
    let sides = recorder.finish(40 + LONG).into_iter().map(|stretch| {
        replay.add(&stretch);
        (stretch.from, stretch.to, replay.take_sides())
    });
    let in_user = |user| Sides { user, ..Sides::default() };
    let expected = [
        (0, 20, in_user(20)),
        (20, 20 + LONG, Sides { entered: LONG, ..Sides::default() }),
        (20 + LONG, 40 + LONG, in_user(20)),
    ];
    assert_eq!(sides.collect::<Vec<_>>(), expected);
}

#[test]
fn restarted_system_call_is_one_wait() {
    let script = Script::default().start(0, "a").end(10, EndCause::SystemCall, "a+5").start(20, "a+3");
    assert_eq!(script.paths(30), ["a 0(1) self 20", "a;[syscall] 1(0) self 10"]);
}

#[test]
fn interrupt_and_preemption_have_frames() {
    let interrupt = EndCause::Interrupt { vector: None };
    let fault = EndCause::Interrupt { vector: Some(14) };
    let script = Script::default()
        .start(0, "a")
        .end(10, interrupt, "a+5")
        .switch(11, ThreadId(2), Departure::Preempted)
        .switch(51, THREAD, Departure::Unknown)
        .start(52, "a+5")
        .end(60, fault, "a+6")
        .start(67, "a+6");
    assert_eq!(
        script.paths(70),
        [
            "a 0(1) self 21",
            "a;[interrupt] 1(0) self 2",
            "a;[interrupt];[preempted] 1(0) self 40",
            "a;[page fault] 1(0) self 7"
        ]
    );
}

#[test]
fn signal_handler_runs_on_top_and_leaves() {
    let script = Script::default()
        .start(0, "a")
        .end(10, EndCause::Interrupt { vector: None }, "a+5")
        .start(12, "h")
        .ret(20, "r+1")
        .end(22, EndCause::SystemCall, "r+9")
        .start(23, "a+5");
    assert_eq!(
        script.paths(30),
        [
            "a 0(1) self 17",
            "a;[interrupt] 1(0) self 2",
            "a;[interrupt];r 0(0) before self 2",
            "a;[interrupt];r;[syscall] 1(0) self 1",
            "a;[interrupt];r;h 1(0) self 8"
        ]
    );
}

#[test]
fn kernel_frames_are_above_the_user_stack() {
    let script = Script::default()
        .start(0, "a")
        .add(10, EventKind::SystemCall { return_to: place("a+5") }, place("a+3"), entry('S'))
        .call(12, "S+5", 'T')
        .add(15, EventKind::Interrupt { vector: Some(32) }, place("T+8"), entry('I'))
        .add(17, EventKind::SystemReturn, 0, place("T+8"))
        .add(20, EventKind::SystemReturn, 0, place("a+5"));
    assert_eq!(
        script.paths(30),
        ["a 0(1) self 20", "a;S 1(0) self 2", "a;S;T 1(0) unwound self 6", "a;S;T;I 1(0) self 2"]
    );
}

#[test]
fn signal_leaves_the_kernel_at_another_place() {
    let script = Script::default()
        .start(0, "a")
        .add(10, EventKind::SystemCall { return_to: place("a+5") }, place("a+3"), entry('S'))
        .add(20, EventKind::SystemReturn, 0, place("b+40"));
    assert_eq!(script.paths(30), ["a 0(1) self 10", "a;S 1(0) unwound self 10", "a;b 0(0) before self 10"]);
}

#[test]
fn kernel_alone_has_a_new_stack_at_each_entry() {
    let away = |script: Script, ticks| script.end(ticks, EndCause::SystemReturn, "x");
    let script = Script::default().start(0, "S").call(10, "S+5", 'T').ret(15, "S+5");
    let script = away(script, 20).start(30, "S").call(40, "S+5", 'T').ret(45, "S+5");
    let script = away(script, 50).start(60, "I");
    assert_eq!(
        script.paths(70),
        ["I 0(1) self 10", "S 2(0) self 30", "S;T 2(0) self 10", "[untraced] 2(0) self 20"]
    );
}

#[test]
fn exec_leaves_nothing_below_the_new_program() {
    let exec = |ticks, space| EventKind::Switch(Switch { ticks, thread: THREAD, space, ..Switch::default() });
    let script = Script::default()
        .add(0, exec(0, SpaceId(1)), 0, 0)
        .start(0, "a")
        .call(10, "a+5", 'b')
        .add(15, exec(15, SpaceId(2)), 0, 0)
        .end(20, EndCause::SystemCall, "b+5")
        .add(40, exec(40, SpaceId::NOTHING), 0, 0)
        .add(45, exec(45, SpaceId(3)), 0, 0)
        .start(50, "c");
    assert_eq!(
        script.paths(60),
        [
            "[untraced] 0(0) before self 10",
            "a 0(1) self 10",
            "a;b 0(1) self 10",
            "a;b;[syscall] 0(1) self 20",
            "c 0(1) self 10"
        ]
    );
}

#[test]
fn exec_of_an_untracked_program_changes_nothing() {
    let other = |ticks, space| {
        EventKind::Switch(Switch { ticks, space, departure: Departure::Blocked, ..Switch::default() })
    };
    let script = Script::default()
        .start(0, "a")
        .end(10, EndCause::SystemCall, "a+5")
        .add(20, other(20, SpaceId(7)), 0, 0)
        .add(30, other(30, SpaceId::NOTHING), 0, 0)
        .switch(40, THREAD, Departure::Unknown)
        .start(50, "a+5");
    assert_eq!(
        script.paths(60),
        ["a 0(1) self 20", "a;[syscall] 1(0) self 20", "a;[syscall];[blocked] 1(0) self 20"]
    );
}

#[test]
fn thread_that_moves_to_another_cpu_keeps_its_stack() {
    let [here, there] = [Switch { thread: THREAD, ..Switch::default() }, Switch::default()];
    let first = Script::default()
        .start(0, "a")
        .call(10, "a+5", 'b')
        .end(20, EndCause::Interrupt { vector: None }, "b+7")
        .switch(25, ThreadId(2), Departure::Preempted);
    let second = Script::default().switch(45, THREAD, Departure::Unknown).start(50, "b+7").ret(60, "a+5");
    let mut replay = ThreadReplay::new(THREAD, TimeConv::NANOSECONDS);
    for (script, current, end) in [(&first, here, 100), (&second, there, 70)] {
        let mut recorder = Recorder::new(TimeConv::NANOSECONDS);
        recorder.join(0, current);
        script.events.iter().for_each(|event| recorder.event(event));
        let stretches = recorder.finish(end);
        stretches.iter().filter(|stretch| stretch.thread == THREAD).for_each(|stretch| replay.add(stretch));
    }
    assert_eq!(
        paths(&replay.finish(70)),
        [
            "a 0(1) self 20",
            "a;b 1(0) self 20",
            "a;b;[interrupt] 1(0) self 10",
            "a;b;[interrupt];[preempted] 1(0) self 20"
        ]
    );
}

#[test]
fn gap_that_hides_a_kernel_transition_leaves_no_kernel_frames_below_user_code() {
    let into = Script::default()
        .start(0, "a")
        .gap(10)
        .resume(20, "T+8")
        .ret(30, "S+5")
        .add(40, EventKind::SystemReturn, 0, place("b+4"))
        .ret(50, "a+5");
    assert_eq!(
        into.paths(60),
        [
            "a 0(1) self 20",
            "a;S 0(0) before self 10",
            "a;S;T 0(0) before self 10",
            "a;[lost] 1(0) self 10",
            "a;b 0(0) before self 10"
        ]
    );
    let out_of = Script::default()
        .start(0, "a")
        .add(10, EventKind::SystemCall { return_to: place("a+5") }, place("a+3"), entry('S'))
        .call(15, "S+5", 'T')
        .gap(20)
        .resume(30, "a+9")
        .call(40, "a+20", 'b')
        .ret(50, "a+20");
    assert_eq!(
        out_of.paths(60),
        [
            "a 0(1) self 30",
            "a;S 0(1) self 5",
            "a;S;T 0(1) self 5",
            "a;S;T;[lost] 1(0) self 10",
            "a;b 1(0) self 10"
        ]
    );
}

#[test]
fn gap_ends_calls_as_incomplete_and_later_returns_confirm_the_stack() {
    let script = Script::default()
        .start(0, "a")
        .call(10, "a+5", 'b')
        .call(20, "b+5", 'c')
        .gap(30)
        .resume(50, "c+8")
        .ret(60, "b+5")
        .ret(70, "a+5")
        .call(80, "a+9", 'd')
        .ret(90, "a+9");
    assert_eq!(
        script.paths(100),
        [
            "a 0(1) self 30",
            "a;b 0(1) self 20",
            "a;b;c 0(1) self 20",
            "a;b;c;[lost] 1(0) self 20",
            "a;d 1(0) self 10"
        ]
    );
}

#[test]
fn gap_that_ends_in_an_unknown_place_finds_its_parents() {
    let script = Script::default()
        .start(0, "a")
        .gap(10)
        .resume(20, "x+8")
        .ret(30, "y+5")
        .call(35, "y+9", 'x')
        .ret(40, "y+9")
        .ret(50, "a+5");
    // The call of `y` by `a` was not recorded, but `a` was open when the gap started.
    assert_eq!(
        script.paths(60),
        ["a 0(1) self 20", "a;[lost] 1(0) self 10", "a;y 0(0) before self 15", "a;y;x 1(0) before self 15"]
    );
}

#[test]
fn aborted_transaction_drops_its_frames() {
    let script = Script::default()
        .start(0, "a")
        .add(5, EventKind::TransactionStart, place("a+5"), place("a+5"))
        .call(10, "a+9", 'b')
        .add(20, EventKind::TransactionAbort, place("b+3"), place("a+30"));
    assert_eq!(script.paths(30), ["a 0(1) self 20", "a;b 1(0) unwound self 10"]);
}

#[test]
fn equal_and_decreasing_times_add_up() {
    let script = Script::default()
        .start(10, "a")
        .call(10, "a+5", 'b')
        .ret(10, "a+5")
        .call(8, "a+9", 'c')
        .ret(12, "a+9");
    assert_eq!(script.replayed(12, usize::MAX), ["a 0(1) self 0", "a;b 1(0) self 0", "a;c 1(0) self 2"]);
}

#[test]
fn recursion_counts_once_in_a_functions_total() {
    let script = Script::default().start(0, "a").call(1, "a+5", 'a').ret(3, "a+5");
    let mut replay = ThreadReplay::new(THREAD, TimeConv::NANOSECONDS);
    let mut recorder = Recorder::new(TimeConv::NANOSECONDS);
    recorder.join(0, Switch { thread: THREAD, ..Switch::default() });
    script.events.iter().for_each(|event| recorder.event(event));
    recorder.finish(3).iter().for_each(|stretch| replay.add(stretch));
    let calls = replay.finish(10);
    let function = &functions(&calls.tree)[&Frame::Function(FunctionId(u32::from('a')))];
    assert_eq!((function.total_ticks, function.numbers.calls, function.numbers.incomplete), (10, 1, 1));
    assert_eq!((function.numbers.min_ticks, function.numbers.max_ticks), (2, 2));
}

/// `a` calls `b`, which makes a system call.
fn in_a_system_call() -> Script {
    let script = Script::default().start(0, "a").call(10, "a+5", 'b');
    script.add(20, EventKind::SystemCall { return_to: place("b+5") }, place("b+3"), entry('S'))
}

#[test]
fn gap_of_kernel_code_ends_no_call_of_user_code() {
    let script =
        in_a_system_call().gap_of_code(20, "S").resume(50, "b+5").ret(60, "a+5").call(70, "a+9", 'c');
    let script = script.ret(80, "a+9");
    assert_eq!(
        script.paths(90),
        [
            "a 0(1) self 30",
            "a;b 1(0) self 20",
            "a;b;S 0(1) self 0",
            "a;b;S;[lost] 1(0) self 30",
            "a;c 1(0) self 10"
        ]
    );
}

#[test]
fn gap_of_data_or_user_code_ends_the_calls_of_both() {
    let expected = ["a 0(1) self 30", "a;b 0(1) self 20", "a;b;S 0(1) self 10", "a;b;S;[lost] 1(0) self 20"];
    let script = in_a_system_call().gap(30).resume(50, "b+5").ret(60, "a+5");
    assert_eq!(script.paths(80), expected);
    // The gap comes out of the kernel into user code that is not known either.
    let script =
        in_a_system_call().gap_of_code(30, "S").gap_of_code(40, "a+9").resume(50, "b+5").ret(60, "a+5");
    assert_eq!(script.paths(80), expected);
    let script = in_a_system_call().gap_of_code(30, "S").gap(40).resume(50, "b+5").ret(60, "a+5");
    assert_eq!(script.paths(80), expected);
}

#[test]
fn calls_below_a_hypothesis_of_the_kernel_are_suspected_by_the_next_gap() {
    // The kernel's frame is a hypothesis after the first gap, and is still there at the second one.
    let script = in_a_system_call().gap_of_code(20, "S").resume(30, "S+3").gap(40).resume(50, "b+5");
    assert_eq!(
        script.paths(60),
        ["a 0(1) self 10", "a;b 0(1) self 20", "a;b;S 0(1) self 10", "a;b;S;[lost] 2(0) self 20"]
    );
}

#[test]
fn many_gaps_count_an_open_call_once() {
    let mut script = Script::default().start(0, "a").call(1, "a+5", 'b');
    for turn in 0..5 {
        script = script.gap(10 * turn + 2).resume(10 * turn + 4, "b+5").call(10 * turn + 5, "b+9", 'c');
        script = script.ret(10 * turn + 6, "b+9");
    }
    assert_eq!(
        script.ret(60, "a+5").paths(70),
        ["a 0(1) self 11", "a;b 0(1) self 44", "a;b;[lost] 5(0) self 10", "a;b;c 5(0) self 5"]
    );
}

#[test]
fn kernel_code_without_an_image_is_above_its_system_call() {
    // A filter each for the kernel and for user code. The kernel's code is not known.
    let lost = Script::default()
        .start(0, "a")
        .end(10, EndCause::SystemCall, "a+5")
        .add(20, EventKind::Start, 0, KERNEL | 7)
        .gap_of_code(20, "S")
        .end(30, EndCause::Gap, "nowhere")
        .add(40, EventKind::Start, 0, KERNEL | 7)
        .gap_of_code(40, "S")
        .end(45, EndCause::Gap, "nowhere")
        .start(50, "a+5")
        .end(60, EndCause::Return, "x+5");
    assert_eq!(
        lost.paths(70),
        [
            "[untraced] 0(1) self 10",
            "a 1(0) self 20",
            "a;[syscall] 1(0) self 10",
            "a;[syscall];[unknown] 0(0) before self 0",
            "a;[syscall];[unknown];[lost] 2(0) self 15",
            "a;[syscall];[unknown];[untraced] 2(0) self 15",
        ]
    );
    // The kernel's code is known.
    let known = Script::default()
        .start(0, "a")
        .end(10, EndCause::SystemCall, "a+5")
        .start(20, "S")
        .end(30, EndCause::Return, "T+5")
        .start(40, "S")
        .end(45, EndCause::Return, "T+5")
        .start(50, "a+5");
    assert_eq!(known.paths(60), ["a 0(1) self 20", "a;[syscall] 1(0) self 25", "a;[syscall];S 2(0) self 15"]);
}

#[test]
fn time_of_a_call_out_of_the_filter_is_that_of_the_called_function() {
    let script = Script::default()
        .start(0, "a")
        .call(10, "a+5", 'x')
        .end(10, EndCause::Other, "nowhere")
        .start(40, "a+5")
        .call(45, "a+9", 'x')
        .end(45, EndCause::Other, "nowhere")
        .start(65, "a+9")
        .end(70, EndCause::Return, "y+5")
        .start(100, "a");
    assert_eq!(
        script.paths(110),
        ["[untraced] 1(0) self 30", "a 1(1) self 30", "a;x 2(0) self 0", "a;x;[untraced] 2(0) self 50"]
    );
}

#[test]
fn untraced_callee_may_call_back() {
    let script = Script::default()
        .start(0, "a")
        .call(10, "a+5", 'x')
        .end(10, EndCause::Other, "nowhere")
        .start(20, "b")
        .end(25, EndCause::Return, "x+5")
        .start(30, "b")
        .call(32, "b+5", 'y')
        .end(32, EndCause::Other, "nowhere")
        .start(35, "b+5")
        .end(40, EndCause::Return, "x+9")
        .start(50, "a+5");
    assert_eq!(
        script.paths(60),
        [
            "a 0(1) self 20",
            "a;x 1(0) self 0",
            "a;x;[untraced] 1(0) self 25",
            "a;x;[untraced];b 2(0) self 12",
            "a;x;[untraced];b;y 1(0) self 0",
            "a;x;[untraced];b;y;[untraced] 1(0) self 3",
        ]
    );
}

#[test]
fn tail_call_out_of_the_filter_returns_to_its_callers_caller() {
    let script = Script::default()
        .start(0, "a")
        .call(10, "a+5", 'b')
        .direct_jump(20, "x")
        .end(20, EndCause::Jump, "nowhere")
        .start(40, "a+5");
    assert_eq!(
        script.paths(50),
        ["a 0(1) self 20", "a;b 1(0) self 10", "a;x 1(0) self 0", "a;x;[untraced] 1(0) self 20"]
    );
}

#[test]
fn tail_call_to_an_unknown_caller_does_not_nest() {
    let mut script = Script::default();
    for turn in 0..5 {
        let at = 10 * turn;
        script = script.start(at, "a").direct_jump(at + 4, "x").end(at + 4, EndCause::Jump, "nowhere");
    }
    // The time of `x` is not known: a part of the time after it is its caller's.
    assert_eq!(script.paths(50), ["[untraced] 4(1) self 30", "a 5(0) self 20", "x 0(5) self 0"]);
}

#[test]
fn jump_to_an_untraced_part_stays_in_its_function() {
    let away = |script: Script, ticks| script.end(ticks, EndCause::Other, "nowhere");
    let back = away(Script::default().start(0, "a"), 10).start(20, "a+50");
    assert_eq!(back.paths(30), ["a 0(1) self 20", "a;[untraced] 1(0) self 10"]);
    // It returned from there and was called again, five times.
    let mut script = Script::default();
    for turn in 0..5 {
        script = away(script.start(10 * turn, "a"), 10 * turn + 4);
    }
    assert_eq!(script.paths(50), ["a 0(5) self 20", "a;[untraced] 4(1) self 30"]);
}
