// SPDX-License-Identifier: Apache-2.0
//! What the waiting would be if a part of the work took less time: the recorded waits, played again.
//!
//! Each thread runs as it did, with the part shortened, and each of its waits ends when the thread that ended it
//! gets that far. All events are played in the order in which they were recorded, since nothing waits for what
//! comes later. Timers and devices take as long as they did.
//!
//! What the recording does not say makes the interval of an estimate: when a lock was acquired, whether a wakeup
//! that was not seen would have come earlier, too, and whether locks change hands in the same order.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use wallprof_meaning::glob::{Glob, GlobError};
use wallprof_model::histogram::bucket_from_ns;
use wallprof_model::{Histogram, Reason, StallReason, ThreadKey};

use super::Group;
use super::holds::{Holds, Lock, Sections};
use super::waits::{Cause, Wait, Waits};

/// Threads that pass on what reached a holder: the thread that it waited for, the one that this one waited for …
const LONGEST_RELAY: usize = 8;
/// A thread is driven by what was not seen if at least one of so many waits ends with it.
const DRIVEN_ONE_OF: usize = 20;

/// A part of the work that becomes shorter.
#[derive(Clone, Debug)]
pub struct Change {
    text: String,
    target: Target,
    /// What is left of it: 0.5 of `-50%`.
    left: f64,
}

#[derive(Clone, Debug)]
enum Target {
    /// Critical sections that end in a function of this name.
    Lock(Glob),
    Disk,
    /// The running time of threads of this name.
    Threads(Glob),
    /// The waiting for a CPU.
    Cpu,
}

/// Why a text is no change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeError {
    NoPart,
    NoPercentage,
    Glob(String),
}

impl std::fmt::Display for ChangeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ChangeError::NoPart => f.write_str(
                "it begins with lock:FUNCTION, disk, thread:GLOB or cpu, as in 'lock:sweep_registry=-50%'",
            ),
            ChangeError::NoPercentage => {
                f.write_str("it ends in a percentage from -1% to -100%, as in 'lock:sweep_registry=-50%'")
            }
            ChangeError::Glob(error) => f.write_str(error),
        }
    }
}

impl std::str::FromStr for Change {
    type Err = ChangeError;

    fn from_str(text: &str) -> Result<Self, ChangeError> {
        let (part, percent) = text.rsplit_once('=').ok_or(ChangeError::NoPercentage)?;
        let percent = percent.strip_prefix('-').and_then(|percent| percent.strip_suffix('%'));
        let percent: f64 =
            percent.and_then(|percent| percent.parse().ok()).ok_or(ChangeError::NoPercentage)?;
        if !(percent > 0.0 && percent <= 100.0) {
            return Err(ChangeError::NoPercentage);
        }
        let glob =
            |name: &str| Glob::new(name).map_err(|error: GlobError| ChangeError::Glob(error.to_string()));
        let target = match part.split_once(':') {
            None if part == "disk" => Target::Disk,
            None if part == "cpu" => Target::Cpu,
            Some(("lock", function)) if !function.is_empty() => Target::Lock(glob(function)?),
            Some(("thread", name)) if !name.is_empty() => Target::Threads(glob(name)?),
            _ => return Err(ChangeError::NoPart),
        };
        Ok(Change { text: text.to_owned(), target, left: 1.0 - percent / 100.0 })
    }
}

impl Change {
    /// The functions whose stacks a reader of waits has to find.
    pub(super) fn functions(&self) -> Option<&Glob> {
        match &self.target {
            Target::Lock(functions) => Some(functions),
            _ => None,
        }
    }

    fn is_about_threads(&self, group: &Group) -> bool {
        match (&self.target, group) {
            (Target::Threads(names), Group::Threads { thread, .. }) => names.matches(thread),
            _ => false,
        }
    }
}

/// A number before and after the change, ns, and the bounds of the latter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    pub before: u64,
    pub after: u64,
    pub low: u64,
    pub high: u64,
}

/// An operation of the application, to be played again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub thread: ThreadKey,
    pub start: u64,
    pub end: u64,
}

/// The operations of one kind that were kept one by one, and the lengths of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    pub kind: Arc<str>,
    pub kept: Vec<Operation>,
    pub all: Histogram,
}

/// Percentiles of the operations of one kind. `None`: too few are kept to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindEstimate {
    pub kind: Arc<str>,
    pub p99: Option<Estimate>,
    pub p999: Option<Estimate>,
}

/// The effect of a change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WhatIf {
    pub change: String,
    /// Of all selected threads.
    pub waiting: Estimate,
    /// Of each group that waited, most time first.
    pub groups: Vec<(Group, Estimate)>,
    pub kinds: Vec<KindEstimate>,
    /// The part of the waiting that was ended by what was not seen.
    pub unknown_share: f64,
    /// Of a change of locks: the part of all waits that are counted alone. A hold that goes on in such a wait seems to
    /// run there.
    pub counted_share: f64,
    /// Whether the recording has such a part of the work.
    pub is_found: bool,
}

/// What is assumed where the recording does not say.
#[derive(Clone, Copy)]
struct Assumption {
    /// Locks were held for as long as the recording allows, not only for as long as it proves.
    holds_are_long: bool,
    /// A wakeup that was not seen would have come at the same time, not after the same time.
    comes_at: bool,
    /// A thread that would be late holds no other one up. A lock that is free before its recorded next holder wants
    /// it goes to another thread, which stands in: the holder goes back in time, and that time counts as less
    /// waiting. Waits for anything else become no longer.
    order_changes: bool,
}

const ASSUMPTIONS: [Assumption; 5] = [
    Assumption { holds_are_long: true, comes_at: false, order_changes: false },
    Assumption { holds_are_long: false, comes_at: false, order_changes: false },
    Assumption { holds_are_long: true, comes_at: true, order_changes: false },
    Assumption { holds_are_long: false, comes_at: true, order_changes: false },
    Assumption { holds_are_long: true, comes_at: false, order_changes: true },
];

/// How far a thread has come: at `recorded` of its recording, the time is `now`.
#[derive(Clone, Copy)]
struct Progress {
    recorded: u64,
    now: u64,
}

/// A time of a thread to be played: the end of a wait's blocked part, or an end of an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: u64,
    thread: u32,
    /// Waits first: an operation begins after the wait before it.
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Wait(u32),
    /// The number of an operation's end: two for each.
    Mark(u32),
}

/// One playing of all waits.
struct Played {
    after: BTreeMap<u32, u64>,
    marks: Vec<u64>,
}

struct Player<'w> {
    waits: &'w Waits,
    change: &'w Change,
    assumption: Assumption,
    progress: Vec<Progress>,
    holds: &'w Sections,
    locks: &'w HashSet<Lock>,
    is_faster: Vec<bool>,
    /// Its waits end often with what was not seen.
    is_driven: Vec<bool>,
}

pub(super) fn what_if(
    waits: &Waits,
    change: &Change,
    operations: &[Operations],
    is_waiter: impl Fn(u32) -> bool,
) -> WhatIf {
    let events = events(waits, operations);
    let all = operations.iter().flat_map(|operations| &operations.kept);
    let marks: Vec<u64> = all.flat_map(|operation| [operation.start, operation.end]).collect();
    let holds = change.functions().map(|_| Holds::new(waits));
    let sections = |are_long| match &holds {
        Some(holds) => holds.sections(are_long),
        None => vec![Vec::new(); waits.by_thread.len()],
    };
    let (long, short) = (sections(true), sections(false));
    let locks = holds.as_ref().map(Holds::locks).unwrap_or_default();
    let play = |assumption: Assumption| {
        let holds = if assumption.holds_are_long { &long } else { &short };
        Player::new(waits, change, assumption, holds, &locks).play(&events, marks.clone())
    };
    // Only shorter holds leave a lock free.
    let is_possible = |assumption: &Assumption| holds.is_some() || !assumption.order_changes;
    let played: Vec<Played> = ASSUMPTIONS.into_iter().filter(is_possible).map(play).collect();
    let before = before(waits);
    let estimate = |before: u64, of: &dyn Fn(&Played) -> u64| {
        let after = played.iter().map(of);
        let (low, high) = after.fold((u64::MAX, 0), |(low, high), ns| (low.min(ns), high.max(ns)));
        Estimate { before, after: of(&played[0]), low, high }
    };
    let of_group = |group: u32, played: &Played| played.after.get(&group).copied().unwrap_or(0);
    let selected: Vec<u32> = before.keys().copied().filter(|group| is_waiter(*group)).collect();
    let sum =
        |ns: &dyn Fn(u32) -> u64| selected.iter().fold(0u64, |sum, group| sum.saturating_add(ns(*group)));
    let waiting = estimate(sum(&|group| before[&group].0), &|played| sum(&|group| of_group(group, played)));
    let unseen_ns = sum(&|group| before[&group].1);
    let mut groups: Vec<(Group, Estimate)> = selected
        .iter()
        .map(|&group| {
            let estimate = estimate(before[&group].0, &|played| of_group(group, played));
            (Group::clone(waits.group(group)), estimate)
        })
        .collect();
    groups.sort_by(|a, b| b.1.before.cmp(&a.1.before).then_with(|| a.0.cmp(&b.0)));
    let mut first = 0;
    let kinds = operations.iter().map(|operations| {
        let marks = first..first + 2 * operations.kept.len();
        first = marks.end;
        kind_estimate(operations, marks, &played)
    });
    WhatIf {
        change: change.text.clone(),
        waiting,
        groups,
        kinds: kinds.collect(),
        unknown_share: unseen_ns as f64 / waiting.before.max(1) as f64,
        counted_share: holds.as_ref().map_or(0.0, |_| waits.counted_share()),
        is_found: is_found(waits, change, holds.as_ref()),
    }
}

/// By group, all waiting, and the part of it that was ended by what was not seen.
fn before(waits: &Waits) -> BTreeMap<u32, (u64, u64)> {
    let mut sums: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for (thread, own) in waits.by_thread.iter().enumerate() {
        for wait in own.iter().filter(|wait| wait.late_ns > 0) {
            let sum = sums.entry(waits.group_of[thread]).or_default();
            sum.0 = sum.0.saturating_add(wait.late_ns);
            if is_unseen(waits, wait) {
                sum.1 = sum.1.saturating_add(wait.late_ns);
            }
        }
    }
    sums
}

fn is_found(waits: &Waits, change: &Change, holds: Option<&Holds>) -> bool {
    let mut all = waits.by_thread.iter().flatten();
    match &change.target {
        Target::Lock(_) => holds.is_some_and(|holds| !holds.is_empty()),
        Target::Disk => all.any(is_for_a_disk),
        Target::Threads(_) => waits.group_of.iter().any(|group| change.is_about_threads(waits.group(*group))),
        Target::Cpu => all.any(|wait| wait.end > wait.woken),
    }
}

fn is_for_a_disk(wait: &Wait) -> bool {
    wait.reason == StallReason::Blocked(Reason::Disk) || wait.reason == StallReason::Major
}

/// Whether the wait ended with what is not in the recording: a thread that was not recorded, the network, or
/// nothing that is known.
fn is_unseen(waits: &Waits, wait: &Wait) -> bool {
    let Cause::Group(group) = wait.cause else { return false };
    matches!(**waits.group(group), Group::Threads { .. } | Group::Network | Group::Unknown | Group::Host)
        && wait.woken > wait.start
}

/// Whether what was not seen drives a thread. Else the few wakeups that were not seen came from what the change
/// makes faster, too.
fn is_driven(waits: &Waits, own: &[Wait]) -> bool {
    let unseen = own.iter().filter(|wait| is_unseen(waits, wait)).count();
    unseen * DRIVEN_ONE_OF >= own.len()
}

fn events(waits: &Waits, operations: &[Operations]) -> Vec<Event> {
    let mut events = Vec::new();
    for (thread, own) in waits.by_thread.iter().enumerate() {
        let of = |(number, wait): (usize, &Wait)| Event {
            at: wait.woken,
            thread: thread as u32,
            what: What::Wait(number as u32),
        };
        events.extend(own.iter().enumerate().map(of));
    }
    let all = operations.iter().flat_map(|operations| &operations.kept);
    for (number, operation) in all.enumerate() {
        let Some(thread) = waits.thread_of(operation.thread) else { continue };
        for (side, at) in [(0, operation.start), (1, operation.end)] {
            events.push(Event { at, thread, what: What::Mark((2 * number + side) as u32) });
        }
    }
    events.sort_unstable();
    events
}

/// Whether all operations as long as the one of this rank are kept: else another has the rank. `kept`: the slowest first.
fn is_kept(kept: &[u64], all: &Histogram, rank: usize) -> bool {
    let Some(bucket) = kept.get(rank).map(|ns| bucket_from_ns(*ns)) else { return false };
    let as_long = kept.partition_point(|ns| bucket_from_ns(*ns) >= bucket);
    let of_all = all.cells().filter(|(at, _)| *at >= bucket).map(|(_, cell)| cell.count).sum::<u64>();
    as_long as u64 >= of_all
}

fn kind_estimate(operations: &Operations, marks: std::ops::Range<usize>, played: &[Played]) -> KindEstimate {
    let slowest_first = |durations: &mut dyn Iterator<Item = u64>| {
        let mut durations: Vec<u64> = durations.collect();
        durations.sort_unstable_by_key(|ns| std::cmp::Reverse(*ns));
        durations
    };
    let before = slowest_first(&mut operations.kept.iter().map(|one| one.end.saturating_sub(one.start)));
    let after = |played: &Played| {
        let ends = played.marks[marks.clone()].chunks_exact(2);
        slowest_first(&mut ends.map(|ends| ends[1].saturating_sub(ends[0])))
    };
    let after: Vec<Vec<u64>> = played.iter().map(after).collect();
    let percentile = |part: u64| {
        // By its rank from the slowest one: the fast ones are not all kept.
        let rank = (operations.all.count() / part) as usize;
        is_kept(&before, &operations.all, rank).then(|| {
            let of_rank = after.iter().map(|durations| durations[rank]);
            let (low, high) = of_rank.fold((u64::MAX, 0), |(low, high), ns| (low.min(ns), high.max(ns)));
            Estimate { before: before[rank], after: after[0][rank], low, high }
        })
    };
    KindEstimate { kind: operations.kind.clone(), p99: percentile(100), p999: percentile(1_000) }
}

impl<'w> Player<'w> {
    fn new(
        waits: &'w Waits,
        change: &'w Change,
        assumption: Assumption,
        holds: &'w Sections,
        locks: &'w HashSet<Lock>,
    ) -> Self {
        let first = waits.by_thread.iter().filter_map(|own| Some(own.first()?.start)).min().unwrap_or(0);
        Player {
            waits,
            change,
            assumption,
            progress: vec![Progress { recorded: first, now: first }; waits.by_thread.len()],
            holds,
            locks,
            is_driven: waits.by_thread.iter().map(|own| is_driven(waits, own)).collect(),
            is_faster: waits
                .group_of
                .iter()
                .map(|group| change.is_about_threads(waits.group(*group)))
                .collect(),
        }
    }

    /// `marks` are the ends of the operations as they were: those of threads without a recording stay so.
    fn play(mut self, events: &[Event], mut marks: Vec<u64>) -> Played {
        let mut after: BTreeMap<u32, i128> = BTreeMap::new();
        for event in events {
            match event.what {
                What::Mark(number) => {
                    marks[number as usize] = self.time_of(event.thread, event.at);
                }
                What::Wait(number) => {
                    let wait = &self.waits.by_thread[event.thread as usize][number as usize];
                    let ns = self.play_wait(event.thread, wait);
                    let sum = after.entry(self.waits.group_of[event.thread as usize]).or_default();
                    *sum += match wait.late_ns {
                        0 => 0,
                        late_ns if late_ns >= wait.end - wait.start => ns,
                        late_ns => ns.min(i128::from(late_ns)),
                    };
                }
            }
        }
        let clamped = |ns: i128| ns.clamp(0, i128::from(u64::MAX)) as u64;
        Played { after: after.into_iter().map(|(group, ns)| (group, clamped(ns))).collect(), marks }
    }

    /// How long the wait is now. Less than nothing: another thread stood in for this one, which was late.
    fn play_wait(&mut self, thread: u32, wait: &Wait) -> i128 {
        // In a dishonest recording waits overlap: the thread does not go back in time.
        let start = self.run_to(thread, wait.start);
        let woken = match wait.cause {
            // It waited for a CPU alone, also where the wakeup before that is known.
            _ if wait.woken == wait.start => start,
            Cause::Thread(other) if other != thread => self.woken_by(other, thread, wait, start),
            _ if self.is_pinned(thread, wait) => wait.woken.max(start),
            _ => start.saturating_add(self.blocked_ns(thread, wait)),
        };
        let mut runnable_ns = wait.end - wait.woken;
        if matches!(self.change.target, Target::Cpu) {
            runnable_ns = shortened(runnable_ns, self.change.left);
        }
        // What is there already is not waited for.
        if woken <= start && wait.woken > wait.start {
            runnable_ns = 0;
        }
        let end = woken.saturating_add(runnable_ns);
        self.progress[thread as usize] = Progress { recorded: wait.end, now: end };
        i128::from(end) - i128::from(start)
    }

    /// Whether the wait ends at the same time, whatever the change is.
    fn is_pinned(&self, thread: u32, wait: &Wait) -> bool {
        self.assumption.comes_at
            && self.is_driven[thread as usize]
            && is_unseen(self.waits, wait)
            && !self.is_pause(thread, wait)
    }

    /// When the other thread ends a wait that began at `start`.
    fn woken_by(&mut self, other: u32, thread: u32, wait: &Wait, start: u64) -> u64 {
        let woken = self.time_of(other, wait.woken);
        let woken = match self.assumption.order_changes {
            true if wait.is_for_lock => return woken,
            true => woken.min(start.saturating_add(wait.woken - wait.start)).max(start),
            false => woken.max(start),
        };
        if !self.is_pause(thread, wait) {
            return woken;
        }
        let inside_ns = self.in_holds(thread, wait.start, wait.woken);
        let saved_ns = (inside_ns - shortened(inside_ns, self.change.left)).min(woken - start);
        self.hasten(other, thread, wait, saved_ns);
        woken - saved_ns
    }

    /// Whether a holder waits for something other than a lock, such as its client. It holds the lock meanwhile.
    fn is_pause(&self, thread: u32, wait: &Wait) -> bool {
        !wait.is_for_lock && self.in_holds(thread, wait.start, wait.woken) > 0
    }

    /// The thread that ended a pause of a holder got there earlier, too: its own part of the pause is shorter. So
    /// did the thread that it waited for meanwhile.
    fn hasten(&mut self, thread: u32, holder: u32, pause: &Wait, saved_ns: u64) {
        let (mut thread, mut saved_ns, mut at) = (thread, saved_ns, pause.woken);
        for _ in 0..LONGEST_RELAY {
            let progress = &mut self.progress[thread as usize];
            progress.now = progress.now.saturating_sub(saved_ns);
            let own = &self.waits.by_thread[thread as usize];
            let last = own[..own.partition_point(|wait| wait.end <= at)].last();
            let Some(last) = last.filter(|last| last.woken > pause.start && !last.is_for_lock) else {
                return;
            };
            let Cause::Thread(next) = last.cause else { return };
            if next == holder || next == thread {
                return;
            }
            saved_ns = share(saved_ns, last.woken - pause.start, at - pause.start);
            (thread, at) = (next, last.woken);
        }
    }

    /// Whether the wait was ended by a holder that was not seen, which is faster, too.
    fn is_for_a_lock_of_it(&self, wait: &Wait) -> bool {
        !self.assumption.comes_at && wait.is_for_lock && self.locks.contains(&Lock::of(wait))
    }

    /// The length of a wait that no recorded thread ended.
    fn blocked_ns(&self, thread: u32, wait: &Wait) -> u64 {
        let ns = wait.woken - wait.start;
        if is_for_a_disk(wait) && matches!(self.change.target, Target::Disk) {
            return shortened(ns, self.change.left);
        }
        let inside = match self.is_for_a_lock_of_it(wait) {
            true => ns,
            false => self.in_holds(thread, wait.start, wait.woken),
        };
        ns - inside + shortened(inside, self.change.left)
    }

    /// When the thread gets to a time of its recording, at which it runs.
    fn time_of(&self, thread: u32, recorded: u64) -> u64 {
        let progress = self.progress[thread as usize];
        // In a dishonest recording a thread wakes others before its own wait is over.
        if recorded < progress.recorded {
            return progress.now.saturating_sub(progress.recorded - recorded);
        }
        let ran_ns = recorded.saturating_sub(progress.recorded);
        let faster_ns = match self.is_faster[thread as usize] {
            true => ran_ns,
            false => self.in_holds(thread, progress.recorded, recorded),
        };
        let left_ns = ran_ns - faster_ns + shortened(faster_ns, self.change.left);
        progress.now.saturating_add(left_ns)
    }

    /// As [`Self::time_of`], and the thread has come that far.
    fn run_to(&mut self, thread: u32, recorded: u64) -> u64 {
        let from = self.progress[thread as usize].recorded;
        let now = self.time_of(thread, recorded);
        self.progress[thread as usize] = Progress { recorded: recorded.max(from), now };
        now
    }

    /// The part of `from..to` in holds that become shorter.
    fn in_holds(&self, thread: u32, from: u64, to: u64) -> u64 {
        let sections = &self.holds[thread as usize];
        let first = sections.partition_point(|section| section.1 <= from);
        let within = sections[first..].iter().take_while(|section| section.0 < to);
        within.map(|section| section.1.min(to) - section.0.max(from)).sum()
    }
}

fn shortened(ns: u64, left: f64) -> u64 {
    (ns as f64 * left) as u64
}

fn share(ns: u64, part: u64, whole: u64) -> u64 {
    (u128::from(ns) * u128::from(part) / u128::from(whole.max(1))) as u64
}
