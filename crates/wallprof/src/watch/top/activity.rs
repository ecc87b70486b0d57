// SPDX-License-Identifier: Apache-2.0
//! What each thread did in the last seconds, from live events. Pure: times come with the events.

use std::collections::{BTreeMap, HashMap, VecDeque};

use wallprof_model::event::{LedgerDelta, Stall};
use wallprof_model::{
    ClockAnchor, EpochSecond, Event, MonoNs, Reason, StackId, StallReason, ThreadInfo, ThreadKey,
};

/// Lateness and CPU time are sums over this many seconds.
const WINDOW: u64 = 10;
/// Seconds of the bar of states.
pub const BAR: usize = 60;
/// Groups of stalls kept of each thread; the group that was seen longest ago makes place.
const MAX_GROUPS: usize = 16;
/// A group that was not seen for this long is dropped.
const GROUP_NS: u64 = 60 * SECOND_NS;
/// For how long a thread that ended stays.
const LINGER_NS: u64 = 5 * SECOND_NS;
/// When a thread ended whose end no screen has shown yet.
const SHOWN_NEXT: MonoNs = MonoNs(u64::MAX);
const SECOND_NS: u64 = 1_000_000_000;

/// One thread of the screen.
#[derive(Clone)]
pub struct ThreadActivity {
    pub key: ThreadKey,
    pub tid: u32,
    pub comm: String,
    pub process: String,
    /// Latest first.
    pub stalls: Vec<StallGroup>,
    seconds: BTreeMap<u32, Second>,
    late: VecDeque<(MonoNs, u64)>,
    /// The start of the wait that was last seen open, and its lateness by then.
    open: Option<(MonoNs, u64)>,
    ended: Option<MonoNs>,
}

/// What a thread did in one second.
#[derive(Clone)]
struct Second {
    sums: LedgerDelta,
    /// See [`letter`]: the screen is drawn more often than a second changes.
    letter: char,
}

/// Stalls of one thread with the same reason and user stack.
#[derive(Clone)]
pub struct StallGroup {
    /// The reason, or what the wait means where that is known.
    pub reason: String,
    pub user: Option<StackId>,
    pub count: u64,
    pub longest_ns: u64,
    /// Of the latest stall: its end, its lateness, the kernel's stack and the other end.
    pub end: MonoNs,
    pub late_ns: u64,
    pub kernel: Option<StackId>,
    pub culprit: String,
}

#[derive(Clone, Default)]
pub struct ThreadsNow {
    threads: HashMap<ThreadKey, ThreadActivity>,
    /// The first second of any ledger, and the last one of threads that live: those of a thread that ends are there
    /// earlier.
    seconds: Option<(u32, u32)>,
    /// When recording began; `None`: long ago.
    began: Option<MonoNs>,
    clock: Option<ClockAnchor>,
    /// All events up to then have arrived.
    now: MonoNs,
    /// The CPU time of wallprof in the current second, and in the last ones.
    own_ns: u64,
    own_seconds: VecDeque<(MonoNs, u64)>,
}

/// What is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Order {
    #[default]
    Late,
    Cpu,
    Name,
}

impl Order {
    pub fn next(self) -> Self {
        match self {
            Order::Late => Order::Cpu,
            Order::Cpu => Order::Name,
            Order::Name => Order::Late,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Order::Late => "late",
            Order::Cpu => "cpu",
            Order::Name => "name",
        }
    }
}

impl ThreadsNow {
    pub fn take(&mut self, event: &Event) {
        match event {
            Event::Thread(info) => self.meet(info),
            Event::ThreadEnd { thread, .. } => {
                if let Some(thread) = self.threads.get_mut(thread) {
                    thread.ended = Some(SHOWN_NEXT);
                }
            }
            Event::Ledger(delta) => self.add(delta),
            Event::Clock(anchor) => self.step(*anchor),
            Event::Stall(stall) if !stall.is_idle() => self.stall(stall),
            Event::Overhead { process_cpu_ns, probe_ns, .. } => self.own_ns += process_cpu_ns + probe_ns,
            _ => {}
        }
    }

    /// All events up to `now` have arrived: drops what is too old.
    pub fn flushed(&mut self, now: MonoNs) {
        self.now = now;
        let living = self.threads.values().filter(|thread| !thread.has_ended());
        let last =
            living.filter_map(|thread| thread.seconds.last_key_value()).map(|(second, _)| *second).max();
        if let (Some((_, to)), Some(last)) = (&mut self.seconds, last) {
            *to = last;
        }
        self.own_seconds.push_back((now, std::mem::take(&mut self.own_ns)));
        let oldest = now.0.saturating_sub(WINDOW * SECOND_NS);
        // The last one before the window is its start.
        while self.own_seconds.get(1).is_some_and(|(at, _)| at.0 <= oldest) {
            self.own_seconds.pop_front();
        }
        let from = self.last().saturating_sub(BAR as u32);
        // Several seconds may have been flushed at once: a thread that ended in the first of them is shown, too.
        for thread in self.threads.values_mut().filter(|thread| thread.ended == Some(SHOWN_NEXT)) {
            thread.ended = Some(now);
        }
        self.threads
            .retain(|_, thread| thread.ended.is_none_or(|at| now.0.saturating_sub(at.0) <= LINGER_NS));
        for thread in self.threads.values_mut() {
            while thread.seconds.first_key_value().is_some_and(|(second, _)| *second < from) {
                thread.seconds.pop_first();
            }
            thread.stalls.retain(|group| now.0.saturating_sub(group.end.0) < GROUP_NS);
            while thread.late.front().is_some_and(|(at, _)| at.0 < oldest) {
                thread.late.pop_front();
            }
        }
    }

    /// The threads whose name or process contains `filter`, in `order`.
    pub fn sorted(&self, order: Order, filter: &str) -> Vec<&ThreadActivity> {
        let is_shown =
            |thread: &&ThreadActivity| thread.comm.contains(filter) || thread.process.contains(filter);
        let mut threads: Vec<_> = self.threads.values().filter(is_shown).collect();
        threads.sort_by_cached_key(|thread| {
            let most = match order {
                Order::Late => u64::MAX - thread.late_ns(),
                Order::Cpu => u64::MAX - (self.cpu_share(thread) * 1e9) as u64,
                Order::Name => 0,
            };
            (most, thread.comm.clone(), thread.tid)
        });
        threads
    }

    pub fn count(&self) -> usize {
        self.threads.len()
    }

    pub fn now(&self) -> MonoNs {
        self.now
    }

    /// Share of one CPU that wallprof used in the last seconds.
    pub fn own_share(&self) -> f64 {
        let ends = self.own_seconds.front().zip(self.own_seconds.back());
        let Some(((first, _), (last, _))) = ends.filter(|(first, last)| last.0 > first.0) else { return 0.0 };
        // What the first flush reports was used before it.
        let used: u64 = self.own_seconds.iter().skip(1).map(|(_, ns)| ns).sum();
        used as f64 / (last.0 - first.0) as f64
    }

    /// Share of one CPU in the last [`WINDOW`] seconds.
    pub fn cpu_share(&self, thread: &ThreadActivity) -> f64 {
        let Some((first, last)) = self.seconds else { return 0.0 };
        let from = (last + 1).saturating_sub(WINDOW as u32).max(first);
        let ns: u64 = thread.seconds.range(from..=last).map(|(_, second)| second.sums.on_cpu_ns).sum();
        ns as f64 / 1e9 / f64::from(last + 1 - from)
    }

    /// How late the thread was in the last [`WINDOW`] seconds, as a share of the time.
    pub fn late_share(&self, thread: &ThreadActivity) -> f64 {
        let seen = self.began.map_or(u64::MAX, |began| self.now.0.saturating_sub(began.0));
        thread.late_ns() as f64 / seen.clamp(SECOND_NS, WINDOW * SECOND_NS) as f64
    }

    fn last(&self) -> u32 {
        self.seconds.map_or(0, |(_, last)| last)
    }

    /// A letter for each of the last `seconds`, the newest last: see [`letter`].
    pub fn bar(&self, thread: &ThreadActivity, seconds: usize) -> String {
        let seconds = seconds.min(BAR) as u32;
        let shown = (0..seconds).rev().map(|ago| self.last().checked_sub(ago));
        let letter = |second: &Second| second.letter;
        shown.map(|second| second.and_then(|at| thread.seconds.get(&at)).map_or(' ', letter)).collect()
    }

    /// After a step of the clock by a second or more, seconds have other numbers.
    fn step(&mut self, anchor: ClockAnchor) {
        self.began.get_or_insert(anchor.mono);
        let offset = |anchor: ClockAnchor| i128::from(anchor.epoch.0) - i128::from(anchor.mono.0);
        let before = self.clock.replace(anchor).map_or(i128::MAX / 2, offset);
        if offset(anchor).abs_diff(before) >= u128::from(SECOND_NS) {
            self.seconds = None;
            self.threads.values_mut().for_each(|thread| thread.seconds.clear());
        }
    }

    fn meet(&mut self, info: &ThreadInfo) {
        let thread = self.threads.entry(info.key).or_insert_with(|| ThreadActivity {
            key: info.key,
            tid: info.tid,
            comm: String::new(),
            process: String::new(),
            stalls: Vec::new(),
            seconds: BTreeMap::new(),
            late: VecDeque::new(),
            open: None,
            ended: None,
        });
        (thread.comm, thread.process) = (info.comm.clone(), info.process.clone());
    }

    fn add(&mut self, delta: &LedgerDelta) {
        let EpochSecond(second) = delta.second;
        let (first, last) = self.seconds.unwrap_or((second, second));
        self.seconds = Some((first.min(second), last));
        if let Some(thread) = self.threads.get_mut(&delta.thread) {
            let empty = || Second { sums: LedgerDelta::new(delta.thread, delta.second), letter: ' ' };
            let second = thread.seconds.entry(second).or_insert_with(empty);
            second.sums.add(delta);
            second.letter = letter(&second.sums);
        }
    }

    fn stall(&mut self, stall: &Stall) {
        let Some(thread) = self.threads.get_mut(&stall.thread) else { return };
        // A long wait comes while it is open, and again when it has ended.
        let seen_ns = thread.open.take_if(|(start, _)| *start == stall.start).map(|(_, late_ns)| late_ns);
        if stall.open {
            thread.open = Some((stall.start, stall.late_ns()));
        }
        let more_ns = stall.late_ns().saturating_sub(seen_ns.unwrap_or(0));
        // Stalls of the same second add up: memory is bounded by the window.
        match thread.late.back_mut() {
            Some((at, late)) if stall.end.0.saturating_sub(at.0) < SECOND_NS / 10 => *late += more_ns,
            _ => thread.late.push_back((stall.end, more_ns)),
        }
        thread.group(stall, seen_ns.is_none());
    }
}

impl ThreadActivity {
    /// How late the thread was, all stalls of the last [`WINDOW`] seconds together.
    pub fn late_ns(&self) -> u64 {
        self.late.iter().map(|(_, late)| late).sum()
    }

    fn group(&mut self, stall: &Stall, is_new: bool) {
        let reason = stall.meaning.as_ref().map_or(stall.reason.name(), |meaning| &meaning.name);
        let found = self.stalls.iter().position(|group| group.user == stall.user && group.reason == reason);
        let (count, longest_ns) = match found.map(|at| self.stalls.remove(at)) {
            Some(group) => (group.count + u64::from(is_new), group.longest_ns.max(stall.late_ns())),
            None => (1, stall.late_ns()),
        };
        self.stalls.insert(
            0,
            StallGroup {
                reason: reason.to_string(),
                user: stall.user,
                count,
                longest_ns,
                end: stall.end,
                late_ns: stall.late_ns(),
                kernel: stall.kernel,
                culprit: culprit(stall),
            },
        );
        self.stalls.truncate(MAX_GROUPS);
    }

    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }
}

/// The state that says most about a second: the longest one that is neither running nor a voluntary wait, if
/// it took a tenth of the second; else the longest one.
fn letter(delta: &LedgerDelta) -> char {
    let late = [
        ('p', delta.preempted_ns),
        ('r', delta.runnable_ns),
        ('f', delta.fault_minor_ns + delta.fault_major_ns),
    ];
    let blocked = |reason: &Reason| (letter_of(*reason), delta.blocked_ns[usize::from(reason.code())]);
    let involuntary = Reason::ALL.iter().filter(|reason| !reason.is_voluntary()).map(blocked);
    let longest_late = late.into_iter().chain(involuntary).max_by_key(|(_, ns)| *ns);
    let idle: u64 = Reason::ALL.iter().filter(|reason| reason.is_voluntary()).map(|r| blocked(r).1).sum();
    match longest_late {
        Some((letter, ns)) if ns > 0 && ns >= delta.wall_ns / 10 => letter,
        _ if delta.on_cpu_ns > idle => '#',
        _ if delta.on_cpu_ns >= delta.wall_ns / 10 && delta.on_cpu_ns > 0 => '+',
        _ => '.',
    }
}

fn letter_of(reason: Reason) -> char {
    match reason {
        Reason::Lock => 'L',
        Reason::Disk => 'D',
        Reason::Network => 'N',
        Reason::Pipe => 'P',
        Reason::Ipc => 'I',
        Reason::Memory => 'M',
        Reason::Stopped => 'T',
        Reason::Other => 'o',
        Reason::Wait | Reason::Poll | Reason::Sleep | Reason::Child => '.',
    }
}

/// The other end of a stall: the lock's owner, what ran instead, the waker.
fn culprit(stall: &Stall) -> String {
    let named = |what: &str, comm: &str, tid: u32| format!("{what} {comm} ({tid})");
    if let Some(owner) = stall.lock.as_ref().and_then(|lock| lock.owner.as_ref()) {
        return named("held by", &owner.comm, owner.tid);
    }
    let waited_for_cpu = matches!(stall.reason, StallReason::Preempted | StallReason::Runnable);
    if let Some(other) = stall.ran_instead.first().filter(|_| waited_for_cpu) {
        return named("ran:", &other.thread.comm, other.thread.tid);
    }
    if let Some(waker) = stall.waker.as_ref().and_then(|waker| waker.thread.as_ref()) {
        return named("woken by", &waker.comm, waker.tid);
    }
    stall.file.as_ref().map_or_else(String::new, |file| file.path.clone())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use wallprof_model::event::Lock;
    use wallprof_model::{EpochNs, StackId, ThreadRef};

    pub fn info(key: u32, comm: &str) -> ThreadInfo {
        ThreadInfo::new(ThreadKey(key), (100, "shop"), (100 + key, comm))
    }

    pub fn locked(key: u32, end_s: u64, late_ms: u64) -> Stall {
        let late_ns = late_ms * 1_000_000;
        let start = MonoNs(end_s * SECOND_NS - late_ns);
        let owner = ThreadRef { tid: 102, comm: "holder".into(), ..ThreadRef::default() };
        Stall {
            lock: Some(Lock { address: 1, owner: Some(owner) }),
            user: Some(StackId(0)),
            ..Stall::new(ThreadKey(key), StallReason::Blocked(Reason::Lock), start, late_ns)
        }
    }

    /// Of the threads `late` and `holder`, with five seconds of each.
    pub fn two_threads() -> ThreadsNow {
        let mut now = ThreadsNow::default();
        now.take(&Event::Thread(info(1, "late")));
        now.take(&Event::Thread(info(2, "holder")));
        for second in 1..=5 {
            let mut late = LedgerDelta::new(ThreadKey(1), EpochSecond(second));
            late.wall_ns = SECOND_NS;
            late.blocked_ns[usize::from(Reason::Lock.code())] = SECOND_NS / 5;
            late.blocked_ns[usize::from(Reason::Sleep.code())] = SECOND_NS * 4 / 5;
            now.take(&Event::Ledger(late));
            let mut holder = LedgerDelta::new(ThreadKey(2), EpochSecond(second));
            (holder.wall_ns, holder.on_cpu_ns) = (SECOND_NS, SECOND_NS);
            now.take(&Event::Ledger(holder));
        }
        now.take(&Event::Stall(Box::new(locked(1, 5, 200))));
        now.flushed(MonoNs(5 * SECOND_NS));
        now
    }

    fn names(now: &ThreadsNow, order: Order, filter: &str) -> Vec<String> {
        now.sorted(order, filter).iter().map(|thread| thread.comm.clone()).collect()
    }

    #[test]
    fn threads_are_sorted_and_filtered() {
        let now = two_threads();
        assert_eq!(names(&now, Order::Late, ""), ["late", "holder"]);
        assert_eq!(names(&now, Order::Cpu, ""), ["holder", "late"]);
        assert_eq!(names(&now, Order::Name, ""), ["holder", "late"]);
        assert_eq!(names(&now, Order::Late, "hold"), ["holder"]);
        assert_eq!(names(&now, Order::Late, "shop").len(), 2, "by the process");
    }

    #[test]
    fn lock_is_shown_above_a_longer_sleep() {
        let now = two_threads();
        let threads = now.sorted(Order::Late, "");
        assert_eq!(now.bar(threads[0], 7), "  LLLLL");
        assert_eq!(now.bar(threads[1], 3), "###");
    }

    #[test]
    fn lateness_leaves_the_window() {
        let mut now = two_threads();
        assert_eq!(now.sorted(Order::Late, "")[0].late_ns(), 200_000_000);
        now.flushed(MonoNs((6 + WINDOW) * SECOND_NS));
        assert_eq!(now.sorted(Order::Late, "late")[0].late_ns(), 0);
    }

    #[test]
    fn equal_stalls_are_one_group() {
        let mut now = two_threads();
        now.take(&Event::Stall(Box::new(locked(1, 6, 3))));
        let other = Stall { user: Some(StackId(1)), ..locked(1, 7, 1) };
        now.take(&Event::Stall(Box::new(other)));
        let groups = &now.sorted(Order::Late, "")[0].stalls;
        assert_eq!(groups.iter().map(|group| group.count).collect::<Vec<_>>(), [1, 2], "latest first");
        assert_eq!((groups[1].longest_ns, groups[1].late_ns), (200_000_000, 3_000_000));
        now.flushed(MonoNs(66 * SECOND_NS));
        assert_eq!(now.sorted(Order::Late, "late")[0].stalls.len(), 1, "the other is a minute old");
    }

    #[test]
    fn own_cost_is_of_the_last_seconds() {
        let mut now = ThreadsNow::default();
        assert!(now.own_share().abs() < 1e-9);
        for (second, cpu) in [(1, 900_000_000), (2, 10_000_000), (3, 30_000_000)] {
            now.take(&Event::Overhead {
                process_cpu_ns: cpu,
                probe_ns: 0,
                probe_runs: 0,
                behind_ns: 0,
                table_bytes: 0,
            });
            now.flushed(MonoNs(second * SECOND_NS));
        }
        assert!((now.own_share() - 0.02).abs() < 1e-9, "{}", now.own_share());
    }

    #[test]
    fn idle_wait_is_no_stall() {
        let mut now = two_threads();
        let sleep = StallReason::Blocked(Reason::Sleep);
        now.take(&Event::Stall(Box::new(Stall::new(ThreadKey(2), sleep, MonoNs(9), 5_000_000))));
        assert!(now.sorted(Order::Name, "")[0].stalls.is_empty());
    }

    #[test]
    fn ended_thread_leaves_after_some_seconds() {
        let mut now = two_threads();
        now.take(&Event::ThreadEnd { thread: ThreadKey(2), at: MonoNs(9) });
        now.flushed(MonoNs(12 * SECOND_NS));
        assert!(now.sorted(Order::Name, "")[0].has_ended(), "several seconds at once");
        now.flushed(MonoNs(17 * SECOND_NS));
        assert!(now.sorted(Order::Name, "")[0].has_ended());
        now.flushed(MonoNs(18 * SECOND_NS));
        assert_eq!(names(&now, Order::Name, ""), ["late"]);
    }

    #[test]
    fn own_share_is_known_although_flushes_are_rare() {
        let mut now = ThreadsNow::default();
        for second in [0, 11, 21, 32] {
            let cost = Event::Overhead {
                process_cpu_ns: SECOND_NS,
                probe_ns: 0,
                probe_runs: 0,
                behind_ns: 0,
                table_bytes: 0,
            };
            now.take(&cost);
            now.flushed(MonoNs(second * SECOND_NS));
        }
        assert!((now.own_share() - 1.0 / 11.0).abs() < 1e-9, "{}", now.own_share());
    }

    #[test]
    fn wait_that_was_seen_open_counts_once() {
        let mut now = two_threads();
        let whole = locked(1, 9, 3_000);
        let open =
            Stall { end: MonoNs(7_500_000_000), blocked_ns: 1_500_000_000, open: true, ..whole.clone() };
        now.take(&Event::Stall(Box::new(open)));
        now.take(&Event::Stall(Box::new(whole)));
        let late = now.sorted(Order::Late, "late")[0];
        assert_eq!(late.late_ns(), 3_200_000_000, "with the one before");
        assert_eq!(late.stalls.iter().map(|group| group.count).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn shares_are_of_the_seconds_that_were_seen() {
        let mut now = two_threads();
        let share = |now: &ThreadsNow, name: &str| now.cpu_share(now.sorted(Order::Name, name)[0]);
        assert!((share(&now, "holder") - 1.0).abs() < 1e-9, "after five seconds");
        // A thread that ends has a part of the next second.
        let mut ending = LedgerDelta::new(ThreadKey(1), EpochSecond(6));
        ending.wall_ns = 1_000;
        now.take(&Event::Ledger(ending));
        now.take(&Event::ThreadEnd { thread: ThreadKey(1), at: MonoNs(5 * SECOND_NS + 1_000) });
        now.flushed(MonoNs(5 * SECOND_NS));
        assert!((share(&now, "holder") - 1.0).abs() < 1e-9);
        assert_eq!(now.bar(now.sorted(Order::Name, "holder")[0], 3), "###");
        // The clock steps back by an hour.
        now.take(&Event::Clock(ClockAnchor { mono: MonoNs(5 * SECOND_NS), epoch: EpochNs(1) }));
        let mut holder = LedgerDelta::new(ThreadKey(2), EpochSecond(2));
        (holder.wall_ns, holder.on_cpu_ns) = (SECOND_NS, SECOND_NS / 2);
        now.take(&Event::Ledger(holder));
        now.flushed(MonoNs(6 * SECOND_NS));
        assert!((share(&now, "holder") - 0.5).abs() < 1e-9);
    }

    #[test]
    fn owner_of_the_lock_is_the_culprit() {
        assert_eq!(culprit(&locked(1, 5, 200)), "held by holder (102)");
    }
}
