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

use std::collections::{HashMap, HashSet};

use wallprof_model::profile::ResolvedStack;
use wallprof_model::{FrameKind, Reason, StackId, StallReason, ThreadKey};

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

/// The kernel's functions that wait for the next client, or for any of several.
const NEXT_CLIENT: [&str; 5] =
    ["ep_poll", "do_epoll_wait", "inet_csk_accept", "inet_csk_wait_for_connect", "unix_accept"];

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

/// The stacks of waits.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    /// User stacks that wait for a semaphore of Python's processes.
    pub semaphores: HashSet<StackId>,
    /// Kernel stacks that wait for the next client.
    pub next_client: HashSet<StackId>,
}

impl Stacks {
    fn is_semaphore(&self, wait: &Single) -> bool {
        wait.reason == StallReason::Blocked(Reason::Wait)
            && wait.user().is_some_and(|user| self.semaphores.contains(&user))
    }

    fn is_in_pipe(&self, wait: &Single) -> bool {
        wait.reason == StallReason::Blocked(Reason::Pipe)
    }

    fn is_for_next_client(&self, wait: &Single) -> bool {
        wait.kernel().is_some_and(|kernel| self.next_client.contains(&kernel))
    }
}

/// What the waits for semaphores and for locks are for, of all single waits by thread and start. The result has the
/// index of each such wait that a known thread ended; without a use it is for a lock, or unknown.
pub(super) fn uses(singles: &[Single], stacks: &Stacks) -> Vec<(usize, Option<Use>)> {
    let waits = |accepts: &dyn Fn(&Single) -> bool| -> Vec<usize> {
        (0..singles.len()).filter(|&at| singles[at].waker.is_some() && accepts(&singles[at])).collect()
    };
    let mut uses = Vec::new();
    let semaphores = waits(&|wait| stacks.is_semaphore(wait));
    if !semaphores.is_empty() {
        let inputs = Inputs::of(singles, &semaphores, |wait| stacks.is_in_pipe(wait));
        let producers = producers(singles, &semaphores, stacks);
        uses.extend(semaphores.into_iter().map(|at| match producers.contains(&singles[at].thread) {
            true => (at, Some(Use::Space)),
            false => (at, inputs.turn(&singles[at])),
        }));
    }
    if !stacks.next_client.is_empty() {
        let locks = waits(&|wait| wait.reason == StallReason::Blocked(Reason::Lock));
        let inputs = Inputs::of(singles, &locks, |wait| stacks.is_for_next_client(wait));
        uses.extend(locks.into_iter().map(|at| (at, inputs.turn(&singles[at]))));
    }
    uses
}

/// The threads that mostly wait for space: after their waits they wake the thread that feeds the pipe.
fn producers(singles: &[Single], waits: &[usize], stacks: &Stacks) -> HashSet<ThreadKey> {
    let of = |at: &usize| &singles[*at];
    let mut released: HashMap<ThreadKey, u64> = HashMap::new();
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
struct Woken(HashMap<ThreadKey, Vec<u64>>);

impl Woken {
    fn of(singles: &[Single], is_semaphore: impl Fn(&Single) -> bool) -> Self {
        let mut woken: HashMap<ThreadKey, Vec<u64>> = HashMap::new();
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

/// When a worker whose turn it was waited for work: that was its last wait before it gave the turn to another one. It
/// may have waited for a CPU in between.
struct Inputs {
    /// Disjoint, ascending: start, end, and the length of all before it.
    times: Vec<(u64, u64, u64)>,
    workers: HashSet<ThreadKey>,
}

impl Inputs {
    fn of(singles: &[Single], locks: &[usize], is_input: impl Fn(&Single) -> bool) -> Self {
        let wakers: HashSet<ThreadKey> = locks.iter().filter_map(|&at| singles[at].waker).collect();
        let mut by_thread: HashMap<ThreadKey, Vec<&Single>> = HashMap::new();
        for wait in singles.iter().filter(|wait| wakers.contains(&wait.thread)) {
            if let StallReason::Blocked(_) = wait.reason {
                by_thread.entry(wait.thread).or_default().push(wait);
            }
        }
        let (mut waits, mut workers) = (Vec::new(), HashSet::new());
        for release in locks.iter().map(|&at| &singles[at]) {
            let of_waker = release.waker.filter(|&waker| waker != release.thread);
            let Some(of_waker) = of_waker.and_then(|waker| by_thread.get(&waker)) else { continue };
            let before = of_waker.partition_point(|wait| wait.end <= release.woken());
            let last = before.checked_sub(1).map(|last| of_waker[last]).filter(|last| is_input(last));
            if let Some(last) = last {
                waits.push((last.start, last.woken()));
                workers.insert(last.thread);
            }
        }
        waits.sort_unstable();
        Inputs { times: joined(&waits), workers }
    }

    /// Whether a worker waits for its turn: another one waits for work for most of that time. It waits for no work
    /// itself meanwhile.
    fn turn(&self, wait: &Single) -> Option<Use> {
        let covered_ns = self.until(wait.woken()).saturating_sub(self.until(wait.start));
        let is_turn = self.workers.contains(&wait.thread) && covered_ns * MOSTLY >= wait.blocked_ns.max(1);
        is_turn.then_some(Use::Turn)
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
    use super::*;
    use wallprof_model::{MonoNs, WaitRow};

    use crate::fixture::stack;

    const MS: u64 = 1_000_000;
    const SEMAPHORE: u64 = 1;
    const CONDITION: u64 = 2;
    const READ: u64 = 3;
    const MUTEX: u64 = 4;
    const EPOLL: u64 = 5;

    /// Threads and their waits: thread, stack, start and end in ms, waker.
    fn found(waits: &[(u32, u64, u64, u64, u32)]) -> Vec<(u32, Option<Use>)> {
        let single = |(id, &(thread, user, start, end, waker)): (usize, &(u32, u64, u64, u64, u32))| {
            let reason = match user {
                READ => Reason::Pipe,
                MUTEX => Reason::Lock,
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
        let (semaphores, next_client) = ([StackId(SEMAPHORE)].into(), [StackId(EPOLL)].into());
        let uses = uses(&singles, &Stacks { semaphores, next_client });
        uses.into_iter().map(|(at, what)| (singles[at].thread.0, what)).collect()
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

    /// A loop that keeps a lock while it waits for clients keeps others waiting who have other work.
    #[test]
    fn thread_that_never_waits_for_work_itself_waits_for_a_lock() {
        let mut waits = workers(EPOLL, MUTEX, 19);
        waits.iter_mut().filter(|wait| wait.1 == EPOLL).for_each(|wait| wait.0 = 1);
        waits.iter_mut().filter(|wait| wait.1 == MUTEX).for_each(|wait| (wait.0, wait.4) = (2, 1));
        assert_eq!(turns(&waits), 0);
    }

    /// A lock around a question to another process, through two pipes.
    #[test]
    fn mutex_around_a_pipe_is_a_lock() {
        assert_eq!(turns(&workers(READ, MUTEX, 19)), 0);
    }

    #[test]
    fn semaphores_are_known_by_their_module_and_by_the_function() {
        let named = stack(&["do_futex_wait", "sem_wait", "_multiprocessing_SemLock_acquire_impl", "run"]);
        assert!(is_semaphore(&named));
        assert!(!is_semaphore(&stack(&["do_futex_wait", "sem_wait", "take_order", "run"])));
    }
}
