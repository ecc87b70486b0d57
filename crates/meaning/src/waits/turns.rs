// SPDX-License-Identifier: Apache-2.0
//! Waits of workers for their turn to wait for work, and of Python's processes for space in a queue.
//!
//! Servers with several workers take a lock around the wait for the next client (Apache's `Mutex`, uWSGI's
//! `--thunder-lock`), and processes of Python one around the pipe of their queue (`multiprocessing`). The others wait
//! for the lock, and are as idle as the worker that has it. All waits for what processes of Python share are in the
//! same functions, and Python's own functions have no names. Threads and times say which it is:
//!
//! ```text
//! Queue.put   waits | woken by the consumer, which has taken an item | wakes the thread that feeds the pipe
//! Queue.get   waits | woken by a process that got what it waited for in the pipe | waits in the pipe itself
//! a worker    waits | woken by a worker that got what it waited for in epoll or accept | waits there itself
//! ```
//!
//! Threads of one process take turns in other ways, too: at a channel that they share (`Mutex<Receiver>` of Rust), at a
//! semaphore, a condition variable or a pipe. There the worker that has the lock waits in the function that took it, or
//! in one that this function calls, and what ends its wait is a thread that waits for none of the workers: one that
//! answers a question has been woken by it before.
//!
//! The workers of a pool do the same with the wait for events and timers of their runtime (tokio's): one of them waits in
//! epoll, or with the timeout of the next timer, and runs tasks in between, while the others wait through condition
//! variables of their own. They wake each other as the waiters for a lock do. All of them wait in both ways.
//!
//! One worker at a time has the turn. Where workers wait for work side by side, each has a loop of its own, or they wait
//! through a condition variable whose lock is free meanwhile: a wait for a lock that they share is one.
//!
//! A worker keeps its turn, and its place in the queue for it, while it has no CPU. That time is the machine's, and
//! says nothing of what others wait for. The waiters for a file lock are a queue. A waiter that is woken and finds the
//! lock taken again wakes the next one in the queue: so workers that wait for their turn wake each other.

use std::collections::hash_map::Entry;

use wallprof_model::profile::ResolvedStack;
use wallprof_model::{FastMap, FastSet, FrameKind, Reason, StackId, StallReason, ThreadKey, WaitRow};

use super::functions::{FunctionId, Functions};
use super::slices::Single;
use crate::site;

/// The module with the semaphores, where it is no part of the interpreter.
const MODULE: &str = "_multiprocessing.";

/// Its function that waits, where the interpreter has its symbols.
const FUNCTION: &str = "_multiprocessing_SemLock_acquire";

/// Innermost functions among which one of the module is: the others are of the C library.
const DEPTH: usize = 6;

/// From a wakeup to what the thread does next, ns: put() wakes the feeding thread, and may lose its CPU before.
const NEXT_NS: u64 = 5_000_000;

/// A thread's waits have a use if at least one in this many of them shows the use.
const MOSTLY: u64 = 2;

/// A thread that releases semaphores as often as this part of its own waits has a lock.
const RELEASES: u64 = 4;

/// A thread is woken by those for whom it has work if they end this part of its waits, or more of them, for each wait
/// that it ends.
const ANSWERS: u64 = 4;

/// A worker waits for its turn this part as often as another one, or more often.
const OFTEN: u64 = 10;

/// Waits for work overlap by less than this, ns, where the next worker has its turn at once.
const LEAST_OVERLAP_NS: u64 = 100_000;

/// Workers wait for work side by side if this part of their waits overlap.
const BESIDE: usize = 4;

/// A pool's worker whose turn it is waits for events for this part of the time in which others wait, or more of it. It
/// runs its tasks meanwhile.
const EVENTS: u64 = 4;

/// Functions of a pool between the one in which both waits are and the ones that wait: for the turn, and for timers.
const TURN_DEPTH: usize = 2;
const TIMER_DEPTH: usize = 3;

/// The least number of waits by which a pool is known.
const LEAST_TURNS: usize = 8;

/// Functions between the one that waits for its turn and the one that waits for work.
const WORK_DEPTH: usize = 1;

/// Shorter waits for a CPU are left out, ns: each wait ends in one.
const LEAST_CPU_WAIT_NS: u64 = 100_000;

/// The kernel's functions that wait for the next client, or for any of several.
const NEXT_CLIENT: [&str; 5] =
    ["ep_poll", "do_epoll_wait", "inet_csk_accept", "inet_csk_wait_for_connect", "unix_accept"];

/// The kernel's functions that wait for space in a pipe: `wait_for_space` in splice(2). Since 6.15 pipe_write() has two
/// names.
const FULL_PIPE: [&str; 4] = ["pipe_write", "anon_pipe_write", "fifo_pipe_write", "wait_for_space"];

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Space in a bounded queue.
    Space,
    /// The turn to wait for work.
    Turn,
}

/// Whether a user stack waits for such a semaphore.
pub(super) fn is_semaphore(user: &ResolvedStack) -> bool {
    let mut frames = user.frames.iter().filter(|frame| frame.kind != FrameKind::Kernel).take(DEPTH);
    frames.any(|frame| {
        let is_module =
            frame.module.as_deref().is_some_and(|module| site::base_name(module).starts_with(MODULE));
        let mut symbols = frame.lines.iter().filter_map(|line| line.symbol.as_deref());
        is_module || symbols.any(|symbol| symbol.starts_with(FUNCTION))
    })
}

/// Whether a kernel stack waits for the next client.
pub(super) fn is_next_client(kernel: &ResolvedStack) -> bool {
    let mut lines = kernel.frames.iter().flat_map(|frame| &frame.lines);
    lines.any(|line| line.symbol.as_deref().is_some_and(|symbol| NEXT_CLIENT.contains(&symbol)))
}

/// Whether a kernel stack waits for space in a pipe: the reader is slow, and there is no work to wait for.
pub(super) fn is_full_pipe(kernel: &ResolvedStack) -> bool {
    let mut lines = kernel.frames.iter().flat_map(|frame| &frame.lines);
    lines.any(|line| line.symbol.as_deref().is_some_and(|symbol| FULL_PIPE.contains(&symbol)))
}

/// The stacks of waits.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    /// User stacks that wait for a semaphore of Python's processes.
    pub semaphores: FastSet<StackId>,
    /// Kernel stacks that wait for the next client.
    pub next_client: FastSet<StackId>,
    /// Kernel stacks that wait for space in a pipe.
    pub full_pipe: FastSet<StackId>,
    /// User stacks that wait through a condition variable or the like, for a lock perhaps.
    pub unnamed: FastSet<StackId>,
    /// The program's functions of user stacks that wait for locks, for signals and in pipes, leaf first.
    pub functions: FastMap<StackId, Vec<FunctionId>>,
    /// Of each thread its waits through condition variables and the like and in pipes, those among them that were too
    /// short to be kept one by one.
    pub asked: FastMap<ThreadKey, Asked>,
}

/// A thread's waits for others.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    /// All of them.
    pub waits: u64,
    /// Those with a stack that other threads ended, known or not.
    pub ended: u64,
    /// By thread.
    pub by: FastMap<ThreadKey, u64>,
}

impl Asked {
    /// Whether some of these threads end most of its waits, and how many there are then.
    fn waits_for(&self, threads: &FastSet<ThreadKey>) -> u64 {
        let by: u64 = self.by.iter().filter(|(by, _)| threads.contains(by)).map(|(_, count)| *count).sum();
        if by > 0 && by.saturating_mul(MOSTLY) >= self.ended { self.waits } else { 0 }
    }
}

impl Stacks {
    /// Whether a wait is for work that is waited for in turns, by the wait for the turn.
    fn is_for_work(&self, known: &Functions, turn: &Single, wait: &Single) -> bool {
        let is_one = wait.reason == StallReason::Blocked(Reason::Wait) || self.is_in_pipe(wait);
        let functions = |wait: &Single| self.functions.get(&wait.user()?);
        let (true, Some(turn), Some(work)) = (is_one, functions(turn), functions(wait)) else { return false };
        let is_inside = !turn.is_empty() && known.common(turn, work) == turn.len();
        is_inside && work.len() <= turn.len() + WORK_DEPTH
    }

    /// Whether a wait of a pool's worker is for the next timer: it ran out of its timeout, in a call next to the one that
    /// waits for the turn. A thread that has a lock may rest in this way, too: where functions have names, rules know the
    /// pools.
    fn is_for_timer(&self, known: &Functions, turn: &Single, wait: &Single) -> bool {
        let functions = |wait: &Single| self.functions.get(&wait.user()?);
        let is_timer = wait.timed_out && wait.waker.is_none() && wait.user() != turn.user();
        let (true, Some(turn), Some(timer)) = (is_timer, functions(turn), functions(wait)) else {
            return false;
        };
        let common = known.common(turn, timer);
        let are_unnamed =
            [turn, timer].iter().all(|wait| wait.first().is_some_and(|at| known.is_unnamed(*at)));
        are_unnamed && common > 0 && turn.len() <= common + TURN_DEPTH && timer.len() <= common + TIMER_DEPTH
    }

    fn is_semaphore(&self, wait: &Single) -> bool {
        wait.reason == StallReason::Blocked(Reason::Wait)
            && wait.user().is_some_and(|user| self.semaphores.contains(&user))
    }

    /// Whether a wait is for what comes out of a pipe.
    fn is_in_pipe(&self, wait: &Single) -> bool {
        let is_write = wait.kernel().is_some_and(|kernel| self.full_pipe.contains(&kernel));
        wait.reason == StallReason::Blocked(Reason::Pipe) && !is_write
    }

    fn is_for_next_client(&self, wait: &Single) -> bool {
        wait.kernel().is_some_and(|kernel| self.next_client.contains(&kernel))
    }
}

/// A thread that could run and had no CPU, times in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CpuWait {
    thread: ThreadKey,
    start: u64,
    end: u64,
}

impl CpuWait {
    /// `None` for a wait after whose wakeup the thread ran soon, and for one that goes on.
    pub fn of(wait: &WaitRow) -> Option<Self> {
        let blocked_ns = match wait.reason {
            StallReason::Preempted => 0,
            _ => wait.blocked_ns,
        };
        let start = wait.start.0.saturating_add(blocked_ns);
        let is_kept = !wait.open && wait.end.0.saturating_sub(start) >= LEAST_CPU_WAIT_NS;
        is_kept.then_some(CpuWait { thread: wait.thread, start, end: wait.end.0 })
    }
}

/// What the waits for semaphores and for locks are for, of all single waits by thread and start, and of the threads'
/// waits for a CPU in the same order. The result has the index of each such wait that a known thread ended; without a
/// use it is for a lock, or unknown.
pub(super) fn uses(
    singles: &[Single],
    cpu_waits: &[CpuWait],
    stacks: &Stacks,
    functions: &Functions,
) -> Vec<(usize, Option<Use>)> {
    let waits = |accepts: &dyn Fn(&Single) -> bool| -> Vec<usize> {
        (0..singles.len()).filter(|&at| singles[at].waker.is_some() && accepts(&singles[at])).collect()
    };
    let mut uses = Vec::new();
    let semaphores = waits(&|wait| stacks.is_semaphore(wait));
    if !semaphores.is_empty() {
        let inputs = Inputs::of(singles, &semaphores, |_, wait| stacks.is_in_pipe(wait));
        let producers = producers(singles, &semaphores, stacks);
        let (space, turns): (Vec<usize>, _) =
            semaphores.into_iter().partition(|&at| producers.contains(&singles[at].thread));
        uses.extend(space.into_iter().map(|at| (at, Some(Use::Space))));
        uses.extend(inputs.turns(singles, cpu_waits, turns));
    }
    let is_lock = |wait: &Single| wait.reason == StallReason::Blocked(Reason::Lock);
    let mut turns: Vec<(usize, Option<Use>)> = Vec::new();
    if !stacks.next_client.is_empty() {
        let is_unnamed = |wait: &Single| wait.user().is_some_and(|user| stacks.unnamed.contains(&user));
        let locks = waits(&|wait| is_lock(wait) || is_unnamed(wait));
        let inputs = Inputs::one_at_a_time(singles, &locks, |_, wait| stacks.is_for_next_client(wait));
        turns = inputs.turns(singles, cpu_waits, locks);
        // Of waits that are for locks perhaps, those at the same places.
        let is_turn = |(_, what): &&(usize, Option<Use>)| what.is_some();
        let places: FastSet<_> = turns.iter().filter(is_turn).map(|(at, _)| singles[*at].user()).collect();
        turns.retain(|(at, _)| is_lock(&singles[*at]) || places.contains(&singles[*at].user()));
    }
    if !stacks.functions.is_empty() {
        let locks = waits(&is_lock);
        let answering = answering(singles, &locks, &stacks.asked);
        let inputs = Inputs::one_at_a_time(singles, &locks, |turn, wait| {
            let is_sent = wait.waker.is_some_and(|by| by != wait.thread && !answering.contains(&by));
            is_sent && stacks.is_for_work(functions, turn, wait)
        });
        if !inputs.workers.is_empty() {
            // The turns that are known keep their use.
            turns.retain(|(at, what)| what.is_some() || !is_lock(&singles[*at]));
            let known: FastSet<usize> = turns.iter().map(|(at, _)| *at).collect();
            let rest = locks.into_iter().filter(|at| !known.contains(at)).collect();
            turns.extend(inputs.turns(singles, cpu_waits, rest));
        }
    }
    uses.extend(turns);
    uses
}

/// Whether the waits at a place that looks like a lock's are those of a pool's workers for their turn to wait for events
/// and timers: for a part of that time one worker at a time does so, and all of them do. `locks` are the user stacks of
/// all places that look like a lock's.
pub(super) fn are_workers(
    singles: &[Single],
    cpu_waits: &[CpuWait],
    stacks: &Stacks,
    functions: &Functions,
    locks: &FastSet<StackId>,
    at_place: &[usize],
) -> bool {
    let is_woken = |&at: &usize| singles[at].waker.is_some_and(|waker| waker != singles[at].thread);
    let turns: Vec<usize> = at_place.iter().copied().filter(is_woken).collect();
    let Some(turn) = turns.first().map(|&at| &singles[at]).filter(|_| turns.len() >= LEAST_TURNS) else {
        return false;
    };
    let of_pool: FastSet<ThreadKey> =
        turns.iter().flat_map(|&at| [Some(singles[at].thread), singles[at].waker]).flatten().collect();
    let is_input = |wait: &&Single| {
        let is_wait = matches!(wait.reason, StallReason::Blocked(_) | StallReason::Runnable);
        is_wait
            && of_pool.contains(&wait.thread)
            && wait.waker.is_none_or(|waker| !of_pool.contains(&waker))
            && wait.user().is_none_or(|user| !locks.contains(&user))
            && (stacks.is_for_next_client(wait) || stacks.is_for_timer(functions, turn, wait))
    };
    let input = |wait: &Single| Input { thread: wait.thread, start: wait.start, woken: wait.woken() };
    let mut inputs: Vec<Input> = singles.iter().filter(is_input).map(input).collect();
    if are_side_by_side(&mut inputs) {
        return false;
    }
    let inputs = Inputs::new(inputs);
    let (mut input_ns, mut waited_ns) = (0u64, 0u64);
    for wait in turns.iter().map(|&at| &singles[at]) {
        let (from, to) = (wait.start, wait.woken());
        let without_cpu_ns = wait.waker.map_or(0, |waker| cpu_wait_ns(cpu_waits, waker, from, to));
        waited_ns = waited_ns.saturating_add(wait.blocked_ns.saturating_sub(without_cpu_ns));
        if inputs.workers.contains(&wait.thread) {
            input_ns = input_ns.saturating_add(inputs.until(to).saturating_sub(inputs.until(from)));
        }
    }
    input_ns > 0 && input_ns.saturating_mul(EVENTS) >= waited_ns
}

/// The threads that the waiters for locks wake, before they wait for what these threads do. The waiters themselves, too:
/// those that wait for locks often. A thread that is asked again at once waits for the next question for a moment only.
fn answering(singles: &[Single], locks: &[usize], asked: &FastMap<ThreadKey, Asked>) -> FastSet<ThreadKey> {
    let mut waits: FastMap<ThreadKey, u64> = FastMap::default();
    locks.iter().for_each(|&at| *waits.entry(singles[at].thread).or_default() += 1);
    let most = waits.values().copied().max().unwrap_or(0);
    waits.retain(|_, count| *count * OFTEN >= most);
    let workers: FastSet<ThreadKey> = waits.into_keys().collect();
    // How many waits of workers a thread ended, and how many of its own waits workers ended.
    let mut counts: FastMap<ThreadKey, (u64, u64)> = FastMap::default();
    for wait in singles.iter().filter(|wait| wait.reason != StallReason::Blocked(Reason::Lock)) {
        match wait.waker {
            Some(waker) if workers.contains(&wait.thread) => counts.entry(waker).or_default().0 += 1,
            Some(waker) if workers.contains(&waker) => counts.entry(wait.thread).or_default().1 += 1,
            _ => {}
        }
    }
    let waits = |thread| asked.get(thread).map_or(0, |asked: &Asked| asked.waits_for(&workers));
    let is_woken = |thread, woken: u64, ended| waits(thread).max(woken).saturating_mul(ANSWERS) >= ended;
    let answers = counts.iter().filter(|(thread, (ended, woken))| is_woken(thread, *woken, *ended));
    let answers: Vec<ThreadKey> = answers.map(|(thread, _)| *thread).collect();
    answers.into_iter().chain(workers).collect()
}

/// The threads that mostly wait for space: after their waits they wake the thread that feeds the pipe.
fn producers(singles: &[Single], waits: &[usize], stacks: &Stacks) -> FastSet<ThreadKey> {
    let of = |at: &usize| &singles[*at];
    let mut released: FastMap<ThreadKey, u64> = FastMap::default();
    waits.iter().filter_map(|at| of(at).waker).for_each(|waker| *released.entry(waker).or_default() += 1);
    let woken = Woken::of(singles, |wait| stacks.is_semaphore(wait));
    let of_threads = waits.chunk_by(|one, next| of(one).thread == of(next).thread);
    let is_producer = |of_thread: &&[usize]| {
        let thread = of(&of_thread[0]).thread;
        let feeds = of_thread.iter().filter(|at| woken.has(thread, of(at).end)).count() as u64;
        let has_lock = released.get(&thread).is_some_and(|count| count * RELEASES >= of_thread.len() as u64);
        feeds > 0 && feeds * MOSTLY >= of_thread.len() as u64 && !has_lock
    };
    of_threads.filter(is_producer).map(|of_thread| of(&of_thread[0]).thread).collect()
}

/// When each thread woke others that do not wait for a semaphore, by thread, ascending.
struct Woken(FastMap<ThreadKey, Vec<u64>>);

impl Woken {
    fn of(singles: &[Single], is_semaphore: impl Fn(&Single) -> bool) -> Self {
        let mut woken: FastMap<ThreadKey, Vec<u64>> = FastMap::default();
        for wait in singles {
            if let Some(waker) = wait.waker.filter(|&waker| waker != wait.thread)
                && wait.reason == StallReason::Blocked(Reason::Wait)
                && !is_semaphore(wait)
            {
                woken.entry(waker).or_default().push(wait.woken());
            }
        }
        woken.values_mut().for_each(|times| times.sort_unstable());
        Woken(woken)
    }

    /// Whether this thread woke one soon after `end`.
    fn has(&self, thread: ThreadKey, end: u64) -> bool {
        let Some(times) = self.0.get(&thread) else { return false };
        times.get(times.partition_point(|at| *at < end)).is_some_and(|at| at - end <= NEXT_NS)
    }
}

/// The wait for work of a worker whose turn it was.
struct Input {
    thread: ThreadKey,
    start: u64,
    woken: u64,
}

/// The last waits of the threads before they ended those for `locks`, where these were for work.
fn inputs(singles: &[Single], locks: &[usize], is_input: impl Fn(&Single, &Single) -> bool) -> Vec<Input> {
    let wakers: FastSet<ThreadKey> = locks.iter().filter_map(|&at| singles[at].waker).collect();
    let mut by_thread: FastMap<ThreadKey, Vec<&Single>> = FastMap::default();
    for wait in singles.iter().filter(|wait| wakers.contains(&wait.thread)) {
        if let StallReason::Blocked(_) = wait.reason {
            by_thread.entry(wait.thread).or_default().push(wait);
        }
    }
    let input = |release: &Single| {
        let of_waker = by_thread.get(&release.waker.filter(|&waker| waker != release.thread)?)?;
        let before = of_waker.partition_point(|wait| wait.end <= release.woken());
        let last = of_waker[before.checked_sub(1)?];
        let input = Input { thread: last.thread, start: last.start, woken: last.woken() };
        is_input(release, last).then_some(input)
    };
    locks.iter().filter_map(|&at| input(&singles[at])).collect()
}

/// Of each thread one of those that it waits for, or that wait for it, at locks: the same one for all of them.
fn groups(singles: &[Single], locks: &[usize]) -> FastMap<ThreadKey, ThreadKey> {
    let mut next: FastMap<ThreadKey, Vec<ThreadKey>> = FastMap::default();
    for wait in locks.iter().map(|&at| &singles[at]) {
        if let Some(waker) = wait.waker {
            next.entry(wait.thread).or_default().push(waker);
            next.entry(waker).or_default().push(wait.thread);
        }
    }
    let mut groups: FastMap<ThreadKey, ThreadKey> = FastMap::default();
    for &first in next.keys() {
        let mut found = vec![first];
        while let Some(thread) = found.pop() {
            if let Entry::Vacant(group) = groups.entry(thread) {
                group.insert(first);
                found.extend(next.get(&thread).into_iter().flatten());
            }
        }
    }
    groups
}

/// Whether several threads wait for work at a time.
fn are_side_by_side(inputs: &mut [Input]) -> bool {
    inputs.sort_unstable_by_key(|input| (input.start, input.woken));
    let (mut beside, mut last): (usize, Option<&Input>) = (0, None);
    for input in &*inputs {
        let overlaps = last.is_some_and(|last| {
            last.thread != input.thread && last.woken.saturating_sub(input.start) >= LEAST_OVERLAP_NS
        });
        beside += usize::from(overlaps);
        last = last.filter(|last| last.woken > input.woken).or(Some(input));
    }
    beside * BESIDE >= inputs.len().max(1)
}

/// When a worker whose turn it was waited for work: that was its last wait before it gave the turn to another one. It
/// may have waited for a CPU in between.
struct Inputs {
    /// Disjoint, ascending: start, end, and the length of all before it.
    times: Vec<(u64, u64, u64)>,
    workers: FastSet<ThreadKey>,
}

impl Inputs {
    /// `is_input` says of a wait for a turn, and of a wait of the worker that ended the first one, whether that one was
    /// for work.
    fn of(singles: &[Single], locks: &[usize], is_input: impl Fn(&Single, &Single) -> bool) -> Self {
        Inputs::new(inputs(singles, locks, is_input))
    }

    /// The same without those of workers that wait for work side by side.
    fn one_at_a_time(
        singles: &[Single],
        locks: &[usize],
        is_input: impl Fn(&Single, &Single) -> bool,
    ) -> Self {
        let inputs = inputs(singles, locks, is_input);
        let groups = groups(singles, locks);
        let mut by_group: FastMap<ThreadKey, Vec<Input>> = FastMap::default();
        for input in inputs {
            by_group
                .entry(groups.get(&input.thread).copied().unwrap_or(input.thread))
                .or_default()
                .push(input);
        }
        by_group.retain(|_, inputs| !are_side_by_side(inputs));
        Inputs::new(by_group.into_values().flatten().collect())
    }

    fn new(inputs: Vec<Input>) -> Self {
        let workers = inputs.iter().map(|input| input.thread).collect();
        let mut waits: Vec<(u64, u64)> = inputs.iter().map(|input| (input.start, input.woken)).collect();
        waits.sort_unstable();
        Inputs { times: joined(&waits), workers }
    }

    /// Which of the waits are for a turn. A worker waits for its turn if, for most of that time, another one waits for
    /// work, or the one that wakes it waits for its own turn in the same place. Neither counts time in which the waker
    /// has no CPU. The worker waits for no work itself meanwhile.
    fn turns(
        &self,
        singles: &[Single],
        cpu_waits: &[CpuWait],
        mut waits: Vec<usize>,
    ) -> Vec<(usize, Option<Use>)> {
        waits.sort_unstable_by_key(|&at| (singles[at].woken(), at));
        // By thread, ascending.
        let mut turns: FastMap<ThreadKey, Vec<&Single>> = FastMap::default();
        let mut uses = Vec::with_capacity(waits.len());
        for at in waits {
            let wait = &singles[at];
            let (from, to) = (wait.start, wait.woken());
            let waker = wait.waker.filter(|&waker| waker != wait.thread);
            let of_waker = waker.and_then(|waker| turns.get(&waker)).map_or(&[][..], Vec::as_slice);
            let during = of_waker.iter().rev().take_while(|turn| turn.woken() > from);
            let queued = during.filter(|turn| turn.user() == wait.user());
            let queued_ns: u64 = queued.map(|turn| turn.woken() - turn.start.max(from)).sum();
            let input_ns = self.until(to).saturating_sub(self.until(from));
            let without_cpu_ns = waker.map_or(0, |waker| cpu_wait_ns(cpu_waits, waker, from, to));
            let with_cpu_ns = wait.blocked_ns.saturating_sub(without_cpu_ns).max(1);
            let is_turn = self.workers.contains(&wait.thread)
                && input_ns.max(queued_ns).saturating_mul(MOSTLY) >= with_cpu_ns;
            if is_turn {
                turns.entry(wait.thread).or_default().push(wait);
            }
            uses.push((at, is_turn.then_some(Use::Turn)));
        }
        uses
    }

    /// How long a worker waited for work before this time, ns.
    fn until(&self, at: u64) -> u64 {
        let before = self.times.partition_point(|&(start, ..)| start < at);
        before.checked_sub(1).map_or(0, |last| {
            let (start, end, sum) = self.times[last];
            sum + end.min(at).saturating_sub(start)
        })
    }
}

/// How long a thread had no CPU in this time, ns.
pub(super) fn cpu_wait_ns(cpu_waits: &[CpuWait], thread: ThreadKey, from: u64, to: u64) -> u64 {
    let first = cpu_waits.partition_point(|wait| (wait.thread, wait.end) <= (thread, from));
    let during = cpu_waits[first..].iter().take_while(|wait| wait.thread == thread && wait.start < to);
    during.map(|wait| wait.end.min(to).saturating_sub(wait.start.max(from))).sum()
}

/// Intervals by start, those that overlap as one, each with the length of all before it.
fn joined(waits: &[(u64, u64)]) -> Vec<(u64, u64, u64)> {
    let mut joined: Vec<(u64, u64, u64)> = Vec::new();
    for &(start, end) in waits {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            last => {
                let sum = last.map_or(0, |last| last.2 + (last.1 - last.0));
                joined.push((start, end.max(start), sum));
            }
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use wallprof_model::profile::ResolvedFrame;
    use wallprof_model::{MonoNs, SymbolLine, WaitRow};

    use wallprof_testkit::stacks::stack;

    const MS: u64 = 1_000_000;
    const SEMAPHORE: u64 = 1;
    const CONDITION: u64 = 2;
    const READ: u64 = 3;
    const MUTEX: u64 = 4;
    const EPOLL: u64 = 5;
    const OTHER_MUTEX: u64 = 6;
    const CHANNEL: u64 = 7;
    const TIMER: u64 = 8;
    const SHARED_READ: u64 = 9;
    const SHARED_WRITE: u64 = 10;

    /// Threads and their waits: thread, stack, start and end in ms, waker.
    fn found(waits: &[(u32, u64, u64, u64, u32)]) -> Vec<(u32, Option<Use>)> {
        found_with(waits, &[])
    }

    /// The same with waits for a CPU: thread, start and end in ms.
    fn found_with(
        waits: &[(u32, u64, u64, u64, u32)],
        cpu_waits: &[(u32, u64, u64)],
    ) -> Vec<(u32, Option<Use>)> {
        found_among(waits, cpu_waits, &[])
    }

    /// The same with all waits of threads for others.
    fn found_among(
        waits: &[(u32, u64, u64, u64, u32)],
        cpu_waits: &[(u32, u64, u64)],
        asked: &[(u32, Asked)],
    ) -> Vec<(u32, Option<Use>)> {
        let single = |(id, &(thread, user, start, end, waker)): (usize, &(u32, u64, u64, u64, u32))| {
            let reason = match user {
                READ | SHARED_READ | SHARED_WRITE => Reason::Pipe,
                MUTEX | OTHER_MUTEX => Reason::Lock,
                EPOLL => Reason::Poll,
                _ => Reason::Wait,
            };
            let row = WaitRow {
                id: id as u64 + 1,
                thread: ThreadKey(thread),
                reason: StallReason::Blocked(reason),
                start: MonoNs(start * MS),
                end: MonoNs(end * MS + 50_000),
                blocked_ns: (end - start) * MS,
                asked_ns: None,
                open: false,
                user: Some(StackId(user)),
                kernel: Some(StackId(user)),
                waker: Some(ThreadKey(waker)),
            };
            Single::new(&row)
        };
        let mut singles: Vec<Single> = waits.iter().enumerate().filter_map(single).collect();
        singles.sort_unstable_by_key(|wait| (wait.thread, wait.start, wait.id));
        let (semaphores, next_client) =
            ([StackId(SEMAPHORE)].into_iter().collect(), [StackId(EPOLL)].into_iter().collect());
        let cpu_wait = |&(thread, start, end): &(u32, u64, u64)| CpuWait {
            thread: ThreadKey(thread),
            start: start * MS,
            end: end * MS,
        };
        let mut cpu_waits: Vec<CpuWait> = cpu_waits.iter().map(cpu_wait).collect();
        cpu_waits.sort_unstable();
        let mut known = Functions::default();
        let of = [
            (MUTEX, &["pthread_mutex_lock", "next_job", "run"][..]),
            (CHANNEL, &["receive", "next_job", "run"]),
            (SHARED_READ, &["next_job", "run"]),
            (SHARED_WRITE, &["next_job", "run"]),
        ];
        let functions = of
            .into_iter()
            .map(|(id, functions)| (StackId(id), known.of_program(&stack(functions))))
            .collect();
        let unnamed = [StackId(CONDITION)].into_iter().collect();
        let full_pipe = [StackId(SHARED_WRITE)].into_iter().collect();
        let asked = asked.iter().map(|(thread, asked)| (ThreadKey(*thread), asked.clone())).collect();
        let stacks = Stacks { semaphores, next_client, full_pipe, unnamed, functions, asked };
        let uses = uses(&singles, &cpu_waits, &stacks, &known);
        uses.into_iter().map(|(at, what)| (singles[at].thread.0, what)).collect()
    }

    /// A stack of these calls of a stripped program.
    fn unnamed(calls: &[u64]) -> ResolvedStack {
        let whole = stack(&["call"]);
        let frame = |&address: &u64| {
            let lines = vec![SymbolLine::default()];
            Arc::new(ResolvedFrame { address, lines, ..ResolvedFrame::clone(&whole.frames[0]) })
        };
        ResolvedStack { frames: calls.iter().map(frame).collect(), end: whole.end }
    }

    /// Two threads with turns of 20 ms: one waits at `events`, three times, and then wakes the other one, which waits
    /// through a condition variable meanwhile. The thread that waits for events is `waits(turn)`.
    fn is_pool(events: u64, timer: &ResolvedStack, waits: impl Fn(u64) -> u32) -> bool {
        let row = |thread: u32, user: u64, start: u64, end: u64, waker: Option<u32>| WaitRow {
            id: 1,
            thread: ThreadKey(thread),
            reason: StallReason::Blocked(if user == EPOLL { Reason::Poll } else { Reason::Wait }),
            start: MonoNs(start * MS),
            end: MonoNs(end * MS + 50_000),
            blocked_ns: (end - start) * MS,
            asked_ns: waker.is_none().then_some((end - start) * MS),
            open: false,
            user: Some(StackId(user)),
            kernel: Some(StackId(user)),
            waker: waker.map(ThreadKey),
        };
        let turn = |turn: u64| {
            let (one, other, at) = (1 + (turn % 2) as u32, 2 - (turn % 2) as u32, turn * 20);
            let event = |from: u64, to: u64| row(waits(turn), events, at + from, at + to, None);
            [event(0, 3), event(6, 9), event(12, 15), row(other, CONDITION, at + 1, at + 19, Some(one))]
        };
        let mut singles: Vec<Single> = (0..10).flat_map(turn).filter_map(|row| Single::new(&row)).collect();
        singles.sort_unstable_by_key(|wait| (wait.thread, wait.start, wait.id));
        let mut known = Functions::default();
        let turn = unnamed(&[0x89bb4, 0x59888, 0x59cb2, 0x5e6e6]);
        let of = [(CONDITION, &turn), (TIMER, timer)];
        let functions = of.into_iter().map(|(id, of)| (StackId(id), known.of_program(of))).collect();
        let next_client = [StackId(EPOLL)].into_iter().collect();
        let stacks = Stacks { next_client, functions, ..Stacks::default() };
        let turns = (0..singles.len()).filter(|&at| singles[at].user() == Some(StackId(CONDITION)));
        let locks = [StackId(CONDITION)].into_iter().collect();
        are_workers(&singles, &[], &stacks, &known, &locks, &turns.collect::<Vec<_>>())
    }

    #[test]
    fn workers_of_a_pool_wait_for_events_in_turn() {
        let in_turn = |turn: u64| 1 + (turn % 2) as u32;
        let timer = unnamed(&[0x89aea, 0x57c22, 0x55681, 0x59ccc, 0x5e6e6]);
        assert!(is_pool(TIMER, &timer, in_turn));
        assert!(is_pool(EPOLL, &timer, in_turn));
        assert!(!is_pool(TIMER, &timer, |_| 8), "another thread waits for the events");
        let rests = unnamed(&[0x89aea, 0x71000, 0x72000, 0x5e6f0]);
        assert!(!is_pool(TIMER, &rests, in_turn), "what has the lock rests, elsewhere");
        let named = stack(&["pthread_cond_timedwait", "rest", "write_order"]);
        assert!(!is_pool(TIMER, &named, in_turn), "rules know what has names");
    }

    /// Thread 1 puts items into a queue that thread 3 empties, and wakes thread 2, which feeds the pipe.
    fn producer() -> Vec<(u32, u64, u64, u64, u32)> {
        (0..10u64)
            .flat_map(|turn| {
                let at = turn * 20;
                [(1, SEMAPHORE, at, at + 19, 3), (2, CONDITION, at + 1, at + 20, 1)]
            })
            .collect()
    }

    #[test]
    fn producer_that_wakes_its_feeding_thread_waits_for_space() {
        assert_eq!(found(&producer()), [(1, Some(Use::Space)); 10]);
    }

    #[test]
    fn thread_that_releases_semaphores_itself_waits_for_a_lock() {
        let mut waits = producer();
        waits.extend((0..10).map(|turn| (3, SEMAPHORE, turn * 20 + 19, turn * 20 + 20, 1)));
        assert!(found(&waits).iter().all(|(_, what)| what.is_none()), "{:?}", found(&waits));
    }

    #[test]
    fn thread_that_wakes_no_other_waits_for_a_lock() {
        let mut waits = producer();
        waits.retain(|wait| wait.1 == SEMAPHORE);
        assert_eq!(found(&waits), [(1, None); 10]);
    }

    /// Threads 1 and 2 take turns at what is waited for in `input`, for which thread 9 has something each 20 ms. The
    /// others wait for `lock`.
    fn workers(input: u64, lock: u64, in_input: u64) -> Vec<(u32, u64, u64, u64, u32)> {
        (0..10u64)
            .flat_map(|turn| {
                let (one, other) = (1 + (turn % 2) as u32, 2 - (turn % 2) as u32);
                let at = turn * 20;
                [(one, input, at, at + in_input, 9), (other, lock, at, at + 20, one)]
            })
            .collect()
    }

    fn turns(waits: &[(u32, u64, u64, u64, u32)]) -> usize {
        found(waits).iter().filter(|(_, what)| *what == Some(Use::Turn)).count()
    }

    #[test]
    fn workers_that_wait_for_the_one_that_waits_for_work_wait_for_their_turn() {
        assert_eq!(turns(&workers(READ, SEMAPHORE, 19)), 10);
        assert_eq!(turns(&workers(EPOLL, MUTEX, 19)), 10);
    }

    #[test]
    fn holder_that_works_after_the_wait_has_a_lock() {
        assert_eq!(turns(&workers(READ, SEMAPHORE, 8)), 0);
        assert_eq!(turns(&workers(EPOLL, MUTEX, 8)), 0);
    }

    #[test]
    fn holder_that_sleeps_after_the_wait_has_a_lock() {
        let sleeps = |wait: (u32, u64, u64, u64, u32)| {
            let (thread, what, _, to, _) = wait;
            let sleep = (what == EPOLL).then_some((thread, CONDITION, to, to + 1, 9));
            [Some(wait), sleep]
        };
        let waits: Vec<_> = workers(EPOLL, MUTEX, 18).into_iter().flat_map(sleeps).flatten().collect();
        assert_eq!(turns(&waits), 0);
        assert_eq!(turns(&workers(EPOLL, MUTEX, 12)), 10, "it computed, or had no CPU");
    }

    /// The worker whose turn it is waits for a client from `from` to `to` ms of 20, and has no CPU from `off` to `on`.
    fn turns_without_cpu((from, to): (u64, u64), (off, on): (u64, u64)) -> usize {
        let mut waits = workers(EPOLL, MUTEX, to);
        waits.iter_mut().filter(|wait| wait.1 == EPOLL).for_each(|wait| wait.2 += from);
        let holder = |turn: u64| 1 + (turn % 2) as u32;
        let cpu_waits: Vec<_> = (0..10).map(|turn| (holder(turn), turn * 20 + off, turn * 20 + on)).collect();
        found_with(&waits, &cpu_waits).iter().filter(|(_, what)| *what == Some(Use::Turn)).count()
    }

    #[test]
    fn worker_without_a_cpu_keeps_its_turn() {
        assert_eq!(turns_without_cpu((0, 8), (8, 19)), 10, "after it got a client");
        assert_eq!(turns_without_cpu((12, 19), (0, 12)), 10, "after it got the turn");
    }

    /// Worker 2 waits for its turn until 212 ms. Worker 3 waits for worker 2 in `place`, from 203 ms until 220 ms, of
    /// which 7 ms are known as a wait for work.
    fn queue(place: u64) -> Vec<(u32, u64, u64, u64, u32)> {
        let mut waits = workers(EPOLL, MUTEX, 19);
        waits.extend([
            (3, EPOLL, 200, 210, 9),
            (1, MUTEX, 201, 211, 3),
            (2, MUTEX, 202, 212, 1),
            (3, place, 203, 220, 2),
        ]);
        waits
    }

    #[test]
    fn worker_behind_one_that_waits_for_its_turn_waits_for_its_own() {
        let is_turn = |place| found(&queue(place)).contains(&(3, Some(Use::Turn)));
        assert!(is_turn(MUTEX));
        assert!(!is_turn(OTHER_MUTEX), "a lock that worker 2 keeps while it waits for its turn");
    }

    #[test]
    fn holder_that_works_has_a_lock_also_where_it_waited_for_a_cpu() {
        assert_eq!(turns_without_cpu((0, 4), (8, 15)), 0, "4 ms of the 13 that are not the machine's");
        let of_others: Vec<_> = (0..10).map(|turn| (9, turn * 20 + 8, turn * 20 + 19)).collect();
        assert!(found_with(&workers(EPOLL, MUTEX, 8), &of_others).iter().all(|(_, what)| what.is_none()));
    }

    #[test]
    fn waits_for_a_cpu_start_at_the_wakeup() {
        let row = |reason, blocked_ms: u64, open| WaitRow {
            id: 1,
            thread: ThreadKey(1),
            reason,
            start: MonoNs(100 * MS),
            end: MonoNs(150 * MS),
            blocked_ns: blocked_ms * MS,
            asked_ns: None,
            open,
            user: None,
            kernel: None,
            waker: None,
        };
        let cpu_wait = |row: WaitRow| CpuWait::of(&row).map(|wait| (wait.start / MS, wait.end / MS));
        let blocked = StallReason::Blocked(Reason::Poll);
        assert_eq!(cpu_wait(row(blocked, 40, false)), Some((140, 150)));
        assert_eq!(cpu_wait(row(StallReason::Runnable, 10, false)), Some((110, 150)));
        assert_eq!(cpu_wait(row(StallReason::Preempted, 0, false)), Some((100, 150)));
        assert_eq!(cpu_wait(row(blocked, 50, false)), None);
        assert_eq!(cpu_wait(row(blocked, 40, true)), None);
    }

    /// A loop that keeps a lock while it waits for clients keeps others waiting who have other work.
    #[test]
    fn thread_that_never_waits_for_work_itself_waits_for_a_lock() {
        let mut waits = workers(EPOLL, MUTEX, 19);
        waits.iter_mut().filter(|wait| wait.1 == EPOLL).for_each(|wait| wait.0 = 1);
        waits.iter_mut().filter(|wait| wait.1 == MUTEX).for_each(|wait| (wait.0, wait.4) = (2, 1));
        assert_eq!(turns(&waits), 0);
    }

    #[test]
    fn workers_that_share_a_channel_wait_for_their_turn() {
        assert_eq!(turns(&workers(CHANNEL, MUTEX, 19)), 10);
        assert_eq!(turns(&workers(CHANNEL, MUTEX, 8)), 0, "the holder works");
        assert_eq!(turns(&workers(CHANNEL, OTHER_MUTEX, 19)), 0, "in another function");
        let asks = |turn: u64| (9, CONDITION, turn * 20 + 10, turn * 20 + 21, 1 + (turn % 2) as u32);
        let mut waits = workers(CHANNEL, MUTEX, 19);
        waits.extend((0..10).map(asks));
        assert_eq!(turns(&waits), 0, "a lock around a question to thread 9");
        let at_once = |waits, by, ended| {
            let by = [(ThreadKey(1), by)].into_iter().collect();
            let found = found_among(&workers(CHANNEL, MUTEX, 19), &[], &[(9, Asked { waits, ended, by })]);
            found.iter().filter(|(_, what)| *what == Some(Use::Turn)).count()
        };
        assert_eq!(at_once(10, 2, 2), 0, "thread 9 is asked again before its wait is kept");
        assert_eq!(at_once(2, 2, 2), 10, "a channel that is full now and then");
        assert_eq!(at_once(10, 2, 8), 10, "others end its waits");
    }

    /// Five threads that wait for work side by side. One of them works with a lock for 10 ms, for which another one that
    /// has got work, too, waits.
    #[test]
    fn workers_that_wait_for_work_side_by_side_share_a_lock() {
        for input in [EPOLL, CHANNEL] {
            let waits: Vec<_> = (2..40u64)
                .flat_map(|turn| {
                    let (holder, waiter) = (1 + (turn % 5) as u32, 1 + ((turn + 3) % 5) as u32);
                    let at = turn * 20;
                    [(holder, input, at - 24, at + 5, 9), (waiter, MUTEX, at + 6, at + 15, holder)]
                })
                .collect();
            assert!(found(&waits).iter().all(|(_, what)| what.is_none()), "{:?}", found(&waits));
        }
    }

    #[test]
    fn waits_through_conditions_may_be_for_a_turn() {
        let mut waits = workers(EPOLL, CONDITION, 19);
        assert_eq!(turns(&waits), 10);
        waits.iter_mut().filter(|wait| wait.1 == EPOLL).for_each(|wait| wait.0 = 8);
        assert!(found(&waits).is_empty(), "workers that do not wait for clients");
    }

    /// A lock around a question to another process, through two pipes.
    #[test]
    fn mutex_around_a_pipe_is_a_lock() {
        assert_eq!(turns(&workers(READ, MUTEX, 19)), 0);
    }

    /// Threads that log through one `FILE` to a pipe that is read slowly wait for its lock, not for a turn.
    #[test]
    fn wait_for_space_in_a_pipe_is_no_wait_for_work() {
        assert_eq!(turns(&workers(SHARED_READ, MUTEX, 19)), 10);
        assert_eq!(turns(&workers(SHARED_WRITE, MUTEX, 19)), 0);
        assert_eq!(turns(&workers(SHARED_WRITE, SEMAPHORE, 19)), 0);
    }

    #[test]
    fn full_pipes_are_known_by_the_kernels_functions() {
        assert!(is_full_pipe(&stack(&["schedule", "anon_pipe_write", "vfs_write"])));
        assert!(is_full_pipe(&stack(&["schedule", "pipe_write", "vfs_write"])));
        assert!(!is_full_pipe(&stack(&["schedule", "anon_pipe_read", "vfs_read"])));
    }

    #[test]
    fn semaphores_are_known_by_their_module_and_by_the_function() {
        let named = stack(&["do_futex_wait", "sem_wait", "_multiprocessing_SemLock_acquire_impl", "run"]);
        assert!(is_semaphore(&named));
        assert!(!is_semaphore(&stack(&["do_futex_wait", "sem_wait", "take_order", "run"])));
    }
}
