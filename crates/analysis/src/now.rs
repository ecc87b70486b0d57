// SPDX-License-Identifier: Apache-2.0
//! All threads at one look: groups of equal stacks, and who waits for whom.

use std::cmp::Reverse;
use std::collections::HashMap;

use wallprof_model::profile::{ResolvedFrame, ResolvedStack};
use wallprof_model::{Activity, Meaning, ThreadNow, ThreadRef};

/// Threads that do the same in the same functions, the longest wait first.
#[derive(Clone, Debug)]
pub struct Group<'t> {
    pub threads: Vec<&'t ThreadNow>,
}

/// What is equal in a group. Stacks are compared by their functions: a loop waits at several instructions.
#[derive(PartialEq, Eq, Hash)]
struct Likeness<'t> {
    activity: Activity,
    moved: bool,
    meaning: Option<&'t Meaning>,
    user: Option<usize>,
    kernel: Option<usize>,
}

/// The groups of equal stacks, the largest first; of equally large ones that with the longest wait.
pub fn groups<'t>(threads: impl IntoIterator<Item = &'t ThreadNow>) -> Vec<Group<'t>> {
    let mut functions = FunctionLists::default();
    let mut groups: HashMap<Likeness<'t>, Group<'t>> = HashMap::new();
    for thread in threads {
        let likeness = Likeness {
            activity: thread.activity,
            moved: thread.moved,
            meaning: thread.meaning.as_deref(),
            user: thread.user.as_ref().map(|stack| functions.number(stack)),
            kernel: thread.kernel.as_ref().map(|stack| functions.number(stack)),
        };
        groups.entry(likeness).or_insert_with(|| Group { threads: Vec::new() }).threads.push(thread);
    }
    let mut groups: Vec<Group<'t>> = groups.into_values().collect();
    groups.iter_mut().for_each(|group| group.threads.sort_by_key(|thread| order(thread)));
    groups.sort_by_key(|group| (Reverse(group.threads.len()), order(group.threads[0])));
    groups
}

/// The longest wait first.
fn order(thread: &ThreadNow) -> (Reverse<u64>, u32) {
    (Reverse(thread.since.least_ns()), thread.tid)
}

/// The threads with the longest wait first.
pub fn by_length(threads: &[ThreadNow]) -> Vec<&ThreadNow> {
    let mut sorted: Vec<&ThreadNow> = threads.iter().collect();
    sorted.sort_by_key(|thread| order(thread));
    sorted
}

/// Numbers of lists of functions. Threads share stacks, so that each is compared by its functions once.
#[derive(Default)]
struct FunctionLists<'t> {
    by_stack: HashMap<usize, usize>,
    by_functions: HashMap<Vec<Function<'t>>, usize>,
}

/// A function by its name; without one, the instruction.
#[derive(PartialEq, Eq, Hash)]
struct Function<'t> {
    module: Option<&'t str>,
    symbols: Vec<&'t str>,
    address: Option<u64>,
}

impl<'t> FunctionLists<'t> {
    fn number(&mut self, stack: &'t ResolvedStack) -> usize {
        let at = stack.frames.as_ptr().addr();
        let next = self.by_functions.len();
        let by_functions = &mut self.by_functions;
        *self.by_stack.entry(at).or_insert_with(|| {
            let functions = stack.frames.iter().map(|frame| Function::of(frame)).collect();
            *by_functions.entry(functions).or_insert(next)
        })
    }
}

impl<'t> Function<'t> {
    fn of(frame: &'t ResolvedFrame) -> Self {
        let symbols: Vec<&str> = frame.lines.iter().filter_map(|line| line.symbol.as_deref()).collect();
        let address = symbols.is_empty().then_some(frame.address);
        Function { module: frame.module.as_deref(), symbols, address }
    }
}

/// A thread in the tree of waits, or what is known instead of a holder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Waited<'t> {
    Thread(&'t ThreadNow),
    /// The holder of a lock of the kernel, at which nobody looked.
    Unseen(&'t ThreadRef),
    /// In this process, at this address, a lock whose owner is not known.
    Lock(u32, u64),
}

/// One line of the tree of waits.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitNode<'t> {
    pub depth: usize,
    pub waited: Waited<'t>,
    /// The thread is in a circle, and waits for the thread of this number: a deadlock.
    pub circle: Option<u32>,
}

/// Who waits for whom: each thread that others wait for, followed by its waiters, one deeper. A circle comes
/// first, its threads at depth 0 in the order of the waits. Then the threads for which most others wait.
pub fn waits_for(threads: &[ThreadNow]) -> Vec<WaitNode<'_>> {
    let graph = Graph::new(threads);
    let circles = graph.circles();
    let mut nodes = Vec::new();
    for circle in &circles {
        for &at in circle {
            let next = graph.owner[at].map(|owner| threads[owner].tid);
            graph.add(at, next, circle, &mut nodes);
        }
    }
    let mut roots: Vec<Vec<WaitNode<'_>>> = Vec::new();
    let is_root = |at: &usize| threads[*at].lock.is_none() && !graph.waiters[*at].is_empty();
    for at in (0..threads.len()).filter(is_root) {
        let mut tree = Vec::new();
        graph.add(at, None, &[], &mut tree);
        roots.push(tree);
    }
    for waiters in graph.ownerless.values() {
        let first = &threads[waiters[0]];
        let Some(lock) = &first.lock else { continue };
        let waited = match lock.owner.as_ref().filter(|_| lock.address == 0) {
            Some(owner) => Waited::Unseen(owner),
            None => Waited::Lock(first.pid, lock.address),
        };
        let mut tree = vec![WaitNode { depth: 0, waited, circle: None }];
        waiters.iter().for_each(|&waiter| graph.add_below(waiter, 1, &[], &mut tree));
        roots.push(tree);
    }
    let first = |tree: &Vec<WaitNode<'_>>| match tree[0].waited {
        Waited::Thread(thread) => (0, u64::from(thread.tid)),
        Waited::Unseen(holder) => (0, u64::from(holder.tid)),
        Waited::Lock(_, address) => (1, address),
    };
    roots.sort_by_key(|tree| (Reverse(tree.len()), first(tree)));
    nodes.extend(roots.into_iter().flatten());
    nodes
}

/// The threads that wait for each other in circles, in the order of their waits.
pub fn circles(threads: &[ThreadNow]) -> Vec<Vec<&ThreadNow>> {
    let circles = Graph::new(threads).circles();
    circles.into_iter().map(|circle| circle.into_iter().map(|at| &threads[at]).collect()).collect()
}

/// Who waits for whom, by index. A thread waits for one lock at a time.
struct Graph<'t> {
    threads: &'t [ThreadNow],
    owner: Vec<Option<usize>>,
    /// The longest wait first.
    waiters: Vec<Vec<usize>>,
    /// By the lock's process and address, or by the holder of a lock of the kernel.
    ownerless: HashMap<(u32, u64), Vec<usize>>,
}

impl<'t> Graph<'t> {
    fn new(threads: &'t [ThreadNow]) -> Self {
        let by_tid: HashMap<u32, usize> =
            threads.iter().zip(0..).map(|(thread, at)| (thread.tid, at)).collect();
        let mut graph = Graph {
            threads,
            owner: vec![None; threads.len()],
            waiters: vec![Vec::new(); threads.len()],
            ownerless: HashMap::new(),
        };
        for (at, thread) in threads.iter().enumerate() {
            let Some(lock) = &thread.lock else { continue };
            match lock.owner.as_ref().and_then(|owner| by_tid.get(&owner.tid)) {
                Some(&owner) => {
                    graph.owner[at] = Some(owner);
                    graph.waiters[owner].push(at);
                }
                None => {
                    let kernels = lock.owner.as_ref().filter(|_| lock.address == 0);
                    let key = kernels.map_or((thread.pid, lock.address), |owner| (0, owner.tid.into()));
                    graph.ownerless.entry(key).or_default().push(at);
                }
            }
        }
        let all = graph.waiters.iter_mut().chain(graph.ownerless.values_mut());
        all.for_each(|waiters| waiters.sort_by_key(|&at| order(&threads[at])));
        graph
    }

    /// Each thread has one way to go: the circles are found by following it until a thread comes again.
    fn circles(&self) -> Vec<Vec<usize>> {
        let mut turn_of = vec![0; self.threads.len()];
        let mut circles = Vec::new();
        for start in 0..self.threads.len() {
            let turn = start + 1;
            let mut at = Some(start);
            while let Some(thread) = at.filter(|&thread| turn_of[thread] == 0) {
                turn_of[thread] = turn;
                at = self.owner[thread];
            }
            if let Some(first) = at.filter(|&thread| turn_of[thread] == turn) {
                let mut circle = vec![first];
                let mut next = self.owner[first];
                while let Some(thread) = next.filter(|&thread| thread != first) {
                    circle.push(thread);
                    next = self.owner[thread];
                }
                circles.push(circle);
            }
        }
        circles
    }

    /// A thread at depth 0 with its waiters, without those in `circle`.
    fn add(&self, at: usize, circle_next: Option<u32>, circle: &[usize], nodes: &mut Vec<WaitNode<'t>>) {
        let from = nodes.len();
        self.add_below(at, 0, circle, nodes);
        nodes[from].circle = circle_next;
    }

    /// Without recursion: a chain of waits can have as many threads as there are.
    fn add_below(&self, at: usize, depth: usize, circle: &[usize], nodes: &mut Vec<WaitNode<'t>>) {
        let mut open = vec![(at, depth)];
        while let Some((at, depth)) = open.pop() {
            nodes.push(WaitNode { depth, waited: Waited::Thread(&self.threads[at]), circle: None });
            let below = self.waiters[at].iter().rev().filter(|waiter| !circle.contains(waiter));
            open.extend(below.map(|&waiter| (waiter, depth + 1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use wallprof_model::profile::LockRecord;
    use wallprof_model::{FrameKind, Reason, Since, StackEnd, SymbolLine};

    fn stack(functions: &[(&str, u64)]) -> ResolvedStack {
        let frame = |(name, address): &(&str, u64)| {
            Arc::new(ResolvedFrame {
                kind: FrameKind::Native,
                module: Some("/opt/server".into()),
                build_id: None,
                address: *address,
                lines: vec![SymbolLine {
                    symbol: (!name.is_empty()).then(|| (*name).into()),
                    ..SymbolLine::default()
                }],
            })
        };
        ResolvedStack { frames: functions.iter().map(frame).collect(), end: StackEnd::Complete }
    }

    fn thread(tid: u32, ns: u64, functions: &[(&str, u64)]) -> ThreadNow {
        ThreadNow {
            pid: 1,
            tid,
            comm: format!("t{tid}"),
            process: "server".into(),
            kernel_thread: false,
            activity: Activity::Blocked(Reason::Lock),
            since: Since::For(ns),
            syscall: None,
            meaning: None,
            user: Some(stack(functions)),
            kernel: None,
            lock: None,
            moved: false,
        }
    }

    /// Waits for a lock at 0x100 + `owner`, which this thread owns; 0: it is not known who.
    fn waiter(tid: u32, ns: u64, owner: u32) -> ThreadNow {
        let reference = ThreadRef { tid: owner, ..ThreadRef::default() };
        let lock = LockRecord { address: 0x100 + u64::from(owner), owner: (owner != 0).then_some(reference) };
        ThreadNow { lock: Some(lock), ..thread(tid, ns, &[("wait", 1)]) }
    }

    fn lines(threads: &[ThreadNow]) -> Vec<String> {
        let line = |node: WaitNode<'_>| {
            let name = match node.waited {
                Waited::Thread(thread) => thread.comm.clone(),
                Waited::Lock(_, address) => format!("{address:#x}"),
                Waited::Unseen(holder) => format!("unseen {}", holder.tid),
            };
            let circle = node.circle.map(|tid| format!(" -> t{tid}")).unwrap_or_default();
            format!("{}{name}{circle}", ".".repeat(node.depth))
        };
        waits_for(threads).into_iter().map(line).collect()
    }

    #[test]
    fn same_functions_are_one_group_wherever_they_wait() {
        let threads = [
            thread(1, 5, &[("wait", 0x10), ("serve", 0x20)]),
            thread(2, 90, &[("accept", 0x10)]),
            thread(3, 9, &[("wait", 0x14), ("serve", 0x28)]),
        ];
        let tids: Vec<Vec<u32>> =
            groups(&threads).iter().map(|group| group.threads.iter().map(|t| t.tid).collect()).collect();
        assert_eq!(tids, [vec![3, 1], vec![2]], "the largest first, and in it the longest wait");
    }

    #[test]
    fn functions_without_names_are_their_instructions() {
        let threads = [thread(1, 5, &[("", 0x10)]), thread(2, 5, &[("", 0x10)]), thread(3, 5, &[("", 0x18)])];
        assert_eq!(groups(&threads).len(), 2);
    }

    #[test]
    fn threads_that_do_something_else_are_another_group() {
        let mut running = thread(1, 5, &[("serve", 0x20)]);
        running.activity = Activity::Running;
        assert_eq!(groups([&running, &thread(2, 5, &[("serve", 0x20)])]).len(), 2);
    }

    #[test]
    fn waiters_are_below_the_thread_that_they_wait_for() {
        let threads = [waiter(3, 7, 2), thread(1, 1, &[("work", 1)]), waiter(2, 8, 1), waiter(4, 9, 2)];
        assert_eq!(lines(&threads), ["t1", ".t2", "..t4", "..t3"]);
        assert!(circles(&threads).is_empty());
    }

    #[test]
    fn circle_is_marked_and_its_other_waiters_are_below() {
        let threads = [waiter(1, 9, 2), waiter(2, 9, 3), waiter(3, 9, 1), waiter(4, 1, 3), waiter(5, 1, 4)];
        assert_eq!(lines(&threads), ["t1 -> t2", "t2 -> t3", "t3 -> t1", ".t4", "..t5"]);
        assert_eq!(circles(&threads).len(), 1);
    }

    #[test]
    fn thread_that_waits_for_itself_is_a_circle() {
        let threads = [waiter(1, 9, 1), waiter(2, 1, 1)];
        assert_eq!(lines(&threads), ["t1 -> t1", ".t2"]);
    }

    #[test]
    fn lock_of_unknown_owner_has_its_waiters() {
        let threads = [waiter(1, 2, 0), waiter(2, 9, 0), waiter(3, 1, 77)];
        assert_eq!(lines(&threads), ["0x100", ".t2", ".t1", "0x14d", ".t3"], "77 was not looked at");
    }

    #[test]
    fn unseen_holder_of_a_lock_of_the_kernel_has_its_waiters_of_all_processes() {
        let of = |tid: u32, pid: u32, owner: u32| {
            let mut thread = waiter(tid, u64::from(tid), owner);
            thread.pid = pid;
            thread.lock.as_mut().expect("a lock").address = 0;
            thread
        };
        let threads = [of(1, 1, 77), of(2, 2, 77), of(3, 1, 78), of(4, 2, 2)];
        assert_eq!(lines(&threads), ["unseen 77", ".t2", "..t4", ".t1", "unseen 78", ".t3"]);
    }
}
