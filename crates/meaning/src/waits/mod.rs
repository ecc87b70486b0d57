// SPDX-License-Identifier: Apache-2.0
//! What waits mean: from rules about their stacks, and from the threads that end them.
//!
//! A *place* is the pair of stacks of a wait, in one program: all processes of one name. Its waiters are the
//! threads that wait in the same innermost functions. A place waits for a lock when its own waiters end its
//! waits, one after the other (`chain`). A queue, a pool of idle workers and a barrier look alike at the
//! first glance, and are none.
//!
//! Readers search all rows of a recording ([`Waits`]). The recorder asks the same [`judge`], with the same
//! [`timing`], [`Functions`] and [`Rules`], about what has arrived so far.

mod after_sleep;
mod chain;
mod ends;
mod functions;
mod judge;
mod rules;
mod slices;
mod turns;
mod words;

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use wallprof_model::event::{Awaited, Peer, PeerKind, PlaceVerdict, Role, Weighted};
use wallprof_model::meaning::{ANSWER, CONNECTION, Place, SPACE};
use wallprof_model::profile::{ResolvedStack, SampleRow};
use wallprof_model::{
    FastMap, FastSet, Meaning, MeaningSource, Meanings, Reason, StackId, StallReason, State, ThreadKey,
    WaitRow, WordMeaning, WordRow, WordRules,
};

use crate::java;
use after_sleep::AfterSleep;
pub use chain::{Link, Timing, known_beside, timing, timing_beside, timing_of_parked};
use ends::Ends;
pub use ends::{is_answer_of_file_server, is_end_of_fork};
pub use functions::{FunctionId, Functions};
pub use judge::{Shares, judge, median_depth};
use rules::Matcher;
pub use rules::{NoLock, Rule, Rules, RulesError, RulesOfFunctions};
use slices::Single;
pub use slices::is_continued;
use turns::{Asked, CpuWait, Stacks, Use};
pub use words::WordRule;

/// Innermost functions that the waiters of one lock have in common. In PostgreSQL the lock manager is the
/// fourth, behind three of the latch that also waits for clients.
pub const WAITERS_DEPTH: usize = 4;

/// The meaning of a poll that a disk ends.
pub const DISK: &str = "disk";

/// The software of meanings that the kernel's functions say, in `waits/linux.toml`.
pub const LINUX: &str = "linux";

/// The meaning of waits for the process that serves a file system.
pub const FILE_SERVER: &str = "file server";

/// The meanings of waits for other threads that do a part of the same work: for all of them, and for those of a region
/// of OpenMP.
pub const BARRIER: &str = "barrier";
pub const TEAM: &str = "OpenMP team";

/// The meaning of sleeps that are other waits to the kernel.
pub const SLEEP: &str = "sleep";

/// The meanings of waits for what another thread brings about for this one: the value of a future, the last count of a latch.
/// Programs wait so for the answer to a question, and for their own end, or for the time between two rounds.
pub const FUTURE: &str = "future";
pub const LATCH: &str = "latch";

/// Waits for results that other threads end so often, and for half of the time, are for answers.
const LEAST_ANSWERS: u64 = 8;

/// The meaning of waits for locks of no special kind.
const LOCK: &str = "lock";

/// The meaning of waits for an RCU grace period.
pub const GRACE_PERIOD: &str = "RCU grace period";

/// The meanings of waits for space in a bounded queue of Python's processes, and of workers for their turn to wait for
/// work.
const FULL_QUEUE: &str = "full queue";
pub const TURN: &str = "turn to wait for work";

/// The meanings that no rule has to say: they follow from who ends the waits, or from what is at the other end.
const WITHOUT_RULE: [&str; 8] = [LOCK, DISK, FILE_SERVER, FULL_QUEUE, TURN, ANSWER, CONNECTION, SPACE];

/// The functions of waits in epoll: the C library's, and the kernel's.
const EPOLL: [&str; 4] = ["epoll_wait", "epoll_pwait", "epoll_pwait2", "ep_poll"];

/// Innermost functions of waits that are judged together.
pub const JUDGED_DEPTH: usize = 8;

/// Single waits that are kept, at 64 bytes each. Of a recording with more, the first ones are judged.
const MOST_SINGLES: usize = 1 << 20;

/// Waits for a CPU that are kept, at 24 bytes each.
const MOST_CPU_WAITS: usize = 1 << 20;

/// Places that are judged, and sums of their waits. Further ones have no meaning.
const MOST_PLACES: usize = 1 << 16;
const MOST_SUMS: usize = 1 << 20;

/// Stacks of a thread among which its loop is looked for.
const MOST_STACKS: usize = 256;

/// Takes the waits of a recording: first the samples, then the single waits.
#[derive(Debug, Default)]
pub struct Waits {
    programs: FastMap<ThreadKey, u32>,
    reasons: FastMap<Place, Reason>,
    sums: FastMap<Ended, Sum>,
    /// How often threads waited for others.
    counts: FastMap<ThreadKey, u64>,
    poll_ends: Ends,
    /// Of waits in calls on files, among others.
    other_ends: Ends,
    /// Where threads gave their CPU to others.
    yields: FastSet<Place>,
    /// User stacks of each thread, those of its waits included.
    stacks: FastMap<ThreadKey, FastSet<StackId>>,
    singles: Vec<Single>,
    cpu_waits: Vec<CpuWait>,
    /// By stall, the meanings of words.
    words: FastMap<u64, Arc<WordMeaning>>,
    /// By stall, of waits whose other end says what they are for.
    peers: FastMap<u64, Arc<Meaning>>,
}

/// Waits of one thread at one place that one thread ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ended {
    place: Place,
    thread: ThreadKey,
    by: Ender,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Ender {
    Thread(ThreadKey),
    /// A thread that is not recorded, or not known.
    Unknown,
    Interrupt,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    ns: u64,
    count: u64,
}

/// The program of a place, the reason of its waits, and the innermost functions. A function that takes a lock
/// and sleeps is two places.
type Key<'p> = (u32, Reason, &'p [FunctionId]);

/// The same of a function that waits at several calls, with what stands for all of these.
type KeyBeside = (u32, Reason, Vec<FunctionId>);

/// The fields of a place, which has no order of its own.
type OrderedPlace = (u32, Option<StackId>, Option<StackId>);

/// Waits that may be for a turn.
struct Turns {
    places: Vec<Place>,
    /// By index among the single waits. Without a use it is for a lock, or unknown.
    uses: Vec<(usize, Option<Use>)>,
    stacks: Stacks,
}

impl Turns {
    /// What these waits are for is known by their place: what they say about their program is not, as its other waits for
    /// locks are none of a pool.
    fn forget(&mut self, waits: &[usize]) {
        let known: FastSet<usize> = waits.iter().copied().collect();
        self.uses.retain(|(at, _)| !known.contains(at));
    }
}

/// The time of waits by what they are for, ns.
#[derive(Debug, Default)]
struct Sums {
    space: u64,
    turn: u64,
    other: u64,
}

impl Sums {
    fn add(&mut self, what: Option<Use>, ns: u64) {
        let sum = match what {
            Some(Use::Space) => &mut self.space,
            Some(Use::Turn) => &mut self.turn,
            None => &mut self.other,
        };
        *sum = sum.saturating_add(ns);
    }

    /// What more than half of the time is for.
    fn most(&self) -> Option<Use> {
        let half = (self.space + self.turn + self.other) / 2;
        match (self.space > half, self.turn > half) {
            (true, _) => Some(Use::Space),
            (_, true) => Some(Use::Turn),
            _ => None,
        }
    }
}

/// A place that waits for a result, and the meaning of the rule.
type OfResult<'m> = (Place, &'m Arc<Meaning>);

/// The waits of equal innermost functions.
#[derive(Debug, Default)]
struct Group {
    waiters: FastSet<ThreadKey>,
    places: Vec<Place>,
}

impl Waits {
    /// For a recording of threads of these processes. Processes of one name are one program.
    pub fn new(processes: &[(ThreadKey, String)]) -> Self {
        let mut numbers: FastMap<&str, u32> = FastMap::default();
        let mut programs = FastMap::default();
        for (thread, process) in processes {
            let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
            let program = *numbers.entry(process.as_str()).or_insert(next);
            programs.insert(*thread, program);
        }
        Waits { programs, ..Waits::default() }
    }

    pub fn add_sample(&mut self, sample: &SampleRow) {
        let Weighted::State(state) = sample.what else { return };
        let stacks = [(Some(sample.thread), sample.user)];
        let waker = sample.waker.as_ref();
        for (thread, user) in stacks.into_iter().chain(waker.map(|waker| (waker.thread, waker.user))) {
            if let (Some(thread), Some(user)) = (thread, user) {
                let stacks = self.stacks.entry(thread).or_default();
                if stacks.len() < MOST_STACKS {
                    stacks.insert(user);
                }
            }
        }
        let (State::Blocked(reason), Some(&program)) = (state, self.programs.get(&sample.thread)) else {
            return;
        };
        let place = Place { program, user: sample.user, kernel: sample.kernel };
        if !self.meet(place, reason) {
            return;
        }
        let ends = match reason {
            Reason::Poll => Some(&mut self.poll_ends),
            Reason::Other => Some(&mut self.other_ends),
            _ => None,
        };
        if let Some(ends) = ends {
            let (kernel, thread) = waker.map_or((None, None), |waker| (waker.kernel, waker.thread));
            ends.add(place, kernel, thread, sample.weight);
        }
        let by = match waker {
            Some(waker) if waker.interrupt => Ender::Interrupt,
            Some(waker) => waker.thread.map_or(Ender::Unknown, Ender::Thread),
            None => Ender::Unknown,
        };
        let ended = Ended { place, thread: sample.thread, by };
        if self.sums.len() == MOST_SUMS && !self.sums.contains_key(&ended) {
            return;
        }
        let sum = self.sums.entry(ended).or_default();
        sum.ns = sum.ns.saturating_add(sample.weight);
        sum.count = sum.count.saturating_add(sample.count);
    }

    /// Takes the time in which a thread gave its CPU to others, by calls of [`YIELDS`](wallprof_model::YIELDS).
    pub fn add_yield(&mut self, sample: &SampleRow) {
        if let Some(&program) = self.programs.get(&sample.thread) {
            self.yields.insert(Place { program, user: sample.user, kernel: sample.kernel });
        }
    }

    pub fn add_wait(&mut self, wait: &WaitRow) {
        let Some(&program) = self.programs.get(&wait.thread) else { return };
        if self.cpu_waits.len() < MOST_CPU_WAITS {
            self.cpu_waits.extend(CpuWait::of(wait));
        }
        let is_kept = match wait.reason {
            StallReason::Blocked(reason) => {
                let place = Place { program, user: wait.user, kernel: wait.kernel };
                // A thread that runs while the recording ends may be in its next wait when the recorder reads the
                // stack of the open one. In the place of a lock that is no other reason.
                let is_of_next = wait.open && self.reasons.get(&place) == Some(&Reason::Lock);
                is_of_next || self.meet(place, reason)
            }
            // A slice that was blocked for less time than it then waited for a CPU.
            StallReason::Runnable => wait.asked_ns.is_some() && wait.blocked_ns > 0,
            _ => false,
        };
        if is_kept && self.singles.len() < MOST_SINGLES {
            self.singles.extend(Single::new(wait));
        }
    }

    /// Takes how often a thread waited for this reason, however short each wait was.
    pub fn add_count(&mut self, thread: ThreadKey, reason: Reason, count: u64) {
        if is_for_others(reason) && self.programs.contains_key(&thread) {
            let sum = self.counts.entry(thread).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// Takes what a word in memory said.
    pub fn add_word(&mut self, row: &WordRow, rules: &Rules) {
        if self.words.len() < MOST_SINGLES
            && let Some(meaning) = rules.meaning_of(&row.word)
        {
            self.words.insert(row.stall, meaning);
        }
    }

    /// Takes the other end of a wait.
    pub fn add_peer(&mut self, stall: u64, reason: StallReason, peer: &Peer, timed_out: bool) {
        if self.peers.len() < MOST_SINGLES
            && let Some(meaning) = by_peer(reason, peer, timed_out)
        {
            self.peers.insert(stall, meaning);
        }
    }

    /// Whether a place is one of those that are judged.
    fn meet(&mut self, place: Place, reason: Reason) -> bool {
        if self.reasons.len() < MOST_PLACES {
            self.reasons.insert(place, reason);
            return true;
        }
        self.reasons.get_mut(&place).map(|known| *known = reason).is_some()
    }

    /// The meanings by the rules, and by who ended the waits.
    ///
    /// # Errors
    /// Those of `resolve`, which returns the frames of a stack.
    pub fn finish<E>(
        mut self,
        rules: &Rules,
        mut resolve: impl FnMut(StackId) -> Result<ResolvedStack, E>,
    ) -> Result<Meanings, E> {
        let mut meanings = Meanings::new(self.programs.clone());
        for (stall, meaning) in std::mem::take(&mut self.words) {
            meanings.set_word(stall, meaning);
        }
        for (stall, meaning) in std::mem::take(&mut self.peers) {
            meanings.set_peer(stall, meaning);
        }
        self.singles.sort_unstable_by_key(|wait| (wait.thread, wait.start, wait.id));
        self.cpu_waits.sort_unstable();
        let mut functions = Functions::default();
        let firsts = self.slices(&mut functions, &mut resolve)?;
        self.attribute_slices(&firsts);

        let mut of_users: FastMap<StackId, Arc<[FunctionId]>> = FastMap::default();
        let mut places: BTreeMap<OrderedPlace, Arc<[FunctionId]>> = BTreeMap::new();
        let (mut unnamed, mut locks): (FastSet<Place>, FastSet<Place>) = Default::default();
        let mut loops: FastSet<Place> = FastSet::default();
        let mut results: Vec<OfResult<'_>> = Vec::new();
        let mut matcher = Matcher::new(rules);
        let after_sleep = self.after_sleep(rules, &mut resolve)?;
        for (&place, &reason) in &self.reasons {
            let user = place.user.map(&mut resolve).transpose()?;
            let kernel = place.kernel.map(&mut resolve).transpose()?;
            if reason == Reason::Poll && is_epoll(user.as_ref(), kernel.as_ref()) {
                loops.insert(place);
            }
            // A call that takes an interpreter's lock says more than the functions around it.
            let by_rule = matcher.meaning(user.as_ref(), kernel.as_ref());
            let by_call = || user.as_ref().and_then(|user| after_sleep.meaning(user, reason));
            let is_users = |meaning: &&Arc<Meaning>| meaning.source == MeaningSource::User;
            if let Some(meaning) = by_rule.filter(is_users).or_else(by_call).or(by_rule) {
                if &*meaning.name == LOCK {
                    locks.insert(place);
                }
                if meaning.idle && is_of_a_result(meaning) {
                    results.push((place, meaning));
                }
                meanings.set_place(place, meaning.clone());
            } else if let Some((id, user)) = place.user.zip(user)
                && unnamed.insert(place)
                && is_learned(reason)
                && !java::is_cut(&user)
            {
                let of_user = of_users.entry(id).or_insert_with(|| functions.of_program(&user).into());
                places.insert((place.program, place.user, place.kernel), of_user.clone());
            }
        }
        for &place in &self.yields {
            let user = place.user.map(&mut resolve).transpose()?;
            if let Some(meaning) = matcher.meaning(user.as_ref(), None) {
                meanings.set_place(place, meaning.clone());
            }
        }
        let results = self.results(&results, &mut functions, &mut resolve)?;
        let own: Vec<(Place, &[FunctionId])> = places
            .iter()
            .map(|(&(program, user, kernel), functions)| (Place { program, user, kernel }, &**functions))
            .filter(|(place, _)| !loops.contains(place))
            .collect();
        let (lock, disk) = (lock_by_wakers(), by_wakers(DISK, false));
        let file_server = Arc::new(Meaning {
            software: Some(LINUX.into()),
            ..Meaning::clone(&by_wakers(FILE_SERVER, false))
        });
        let is_unnamed = |place: &Place| places.contains_key(&(place.program, place.user, place.kernel));
        let may_be_turn = |place: &Place| unnamed.contains(place) || locks.contains(place);
        let mut turns = self.turns(may_be_turn, &mut functions, &mut resolve)?;
        let disk_ns = self.disk_ns();
        let disk_ns = |thread| disk_ns.get(&thread).copied().unwrap_or(0);
        let mut for_disks = self.poll_ends.by_disks(disk_ns, &mut resolve)?;
        for_disks.retain(is_unnamed);
        let mut for_servers = self.other_ends.by_file_servers(&mut resolve)?;
        for_servers.retain(is_unnamed);
        let others = turns.uses.iter().filter(|(_, what)| what.is_some()).map(|&(at, _)| at).collect();
        let mut search =
            Search { waits: &self, firsts: &firsts, others, functions, resolve, stacks: of_users };
        let locked = search.locks(&own)?;
        let users: FastSet<StackId> = locked.iter().filter_map(|place| place.user).collect();
        let mut of_pools: FastSet<(u32, Option<StackId>)> = FastSet::default();
        for (at, waits) in self.singles_at(&locked) {
            let (all, cpu_waits, stacks) = (&self.singles, &self.cpu_waits, &turns.stacks);
            if turns::are_workers(all, cpu_waits, stacks, &search.functions, &users, &waits) {
                turns.forget(&waits);
                of_pools.insert(at);
            }
        }
        for place in locked {
            let is_turn = of_pools.contains(&(place.program, place.user));
            meanings.set_place(place, if is_turn { turn_to_wait() } else { lock.clone() });
        }
        self.name_turns(&turns, &mut meanings);
        for (place, meaning) in results {
            meanings.set_place(place, meaning);
        }
        for place in for_disks {
            meanings.set_place(place, disk.clone());
        }
        for place in for_servers {
            meanings.set_place(place, file_server.clone());
        }
        self.join_slices(&firsts, &mut meanings);
        Ok(meanings)
    }

    /// The places of waits for results that other threads end again and again, and the meaning that the waits have there. At
    /// all others the thread is idle, as the rules say.
    fn results<E>(
        &self,
        found: &[OfResult<'_>],
        functions: &mut Functions,
        mut resolve: impl FnMut(StackId) -> Result<ResolvedStack, E>,
    ) -> Result<Vec<(Place, Arc<Meaning>)>, E> {
        let mut sums: FastMap<Place, Vec<(&Ended, &Sum)>> = FastMap::default();
        for (ended, sum) in self.sums.iter().filter(|_| !found.is_empty()) {
            sums.entry(ended.place).or_default().push((ended, sum));
        }
        let at = |place: &Place| sums.get(place).into_iter().flatten();
        // Threads that wait for one latch of Java, and run out of time, wake each other, wherever they wait.
        let latches = found.iter().filter(|(_, meaning)| &*meaning.name == LATCH);
        let at_latches: FastSet<ThreadKey> =
            latches.flat_map(|(place, _)| at(place)).map(|(ended, _)| ended.thread).collect();
        let mut groups: BTreeMap<(u32, &str, Vec<FunctionId>), Vec<OfResult<'_>>> = BTreeMap::new();
        for &(place, meaning) in found {
            let Some(user) = place.user else { continue };
            let mut own = functions.of_program(&resolve(user)?);
            own.truncate(JUDGED_DEPTH);
            groups.entry((place.program, &meaning.name, own)).or_default().push((place, meaning));
        }
        let are_answers = |places: &[OfResult<'_>]| {
            let known = || places.iter().flat_map(|(place, _)| at(place));
            let waiters: FastSet<ThreadKey> = known().map(|(ended, _)| ended.thread).collect();
            let is_latch = places.first().is_some_and(|(_, meaning)| &*meaning.name == LATCH);
            let is_own = |by: &ThreadKey| waiters.contains(by) || is_latch && at_latches.contains(by);
            let (mut answered, mut whole_ns) = (Sum::default(), 0u64);
            for (ended, sum) in known() {
                whole_ns = whole_ns.saturating_add(sum.ns);
                if matches!(ended.by, Ender::Thread(by) if !is_own(&by)) {
                    answered.ns = answered.ns.saturating_add(sum.ns);
                    answered.count = answered.count.saturating_add(sum.count);
                }
            }
            answered.count >= LEAST_ANSWERS && answered.ns >= whole_ns / 2
        };
        let answered = groups.into_values().filter(|places| are_answers(places)).flatten();
        let late = |(place, meaning): OfResult<'_>| {
            (place, Arc::new(Meaning { idle: false, ..Meaning::clone(meaning) }))
        };
        Ok(answered.map(late).collect())
    }

    /// The single waits through condition variables and the like at these places, by program and user stack. The kernel's
    /// stack of a wait that goes on is another one than that of a wait that ended.
    fn singles_at(&self, places: &[Place]) -> BTreeMap<(u32, Option<StackId>), Vec<usize>> {
        let is_wait = |place: &&Place| self.reasons.get(place) == Some(&Reason::Wait);
        let of = |place: &Place| (place.program, place.user);
        let mut singles: BTreeMap<(u32, Option<StackId>), Vec<usize>> =
            places.iter().filter(is_wait).map(|place| (of(place), Vec::new())).collect();
        for (at, wait) in self.singles.iter().enumerate() {
            if let Some(at_place) = self.place(wait).and_then(|place| singles.get_mut(&of(&place))) {
                at_place.push(at);
            }
        }
        singles
    }

    /// How long each thread waited for a disk, ns.
    fn disk_ns(&self) -> FastMap<ThreadKey, u64> {
        let mut threads: FastMap<ThreadKey, u64> = FastMap::default();
        for (ended, sum) in &self.sums {
            if self.reasons.get(&ended.place) == Some(&Reason::Disk) {
                let ns = threads.entry(ended.thread).or_default();
                *ns = ns.saturating_add(sum.ns);
            }
        }
        threads
    }

    fn place(&self, wait: &Single) -> Option<Place> {
        let program = *self.programs.get(&wait.thread)?;
        Some(Place { program, user: wait.user(), kernel: wait.kernel() })
    }

    /// What is learned from sleeps that ended with their timeout, and the waits that followed at once.
    fn after_sleep<'r, E>(
        &self,
        rules: &'r Rules,
        mut resolve: impl FnMut(StackId) -> Result<ResolvedStack, E>,
    ) -> Result<AfterSleep<'r>, E> {
        let mut learned = AfterSleep::new(rules);
        let mut known: FastSet<(StackId, StackId)> = FastSet::default();
        let singles = if learned.has_rules() { self.singles.as_slice() } else { &[] };
        for pair in singles.windows(2) {
            let [sleep, next] = pair else { continue };
            let follows = sleep.thread == next.thread
                && sleep.waker.is_none()
                && is_continued(sleep.timed_out, sleep.end, next.start);
            if let (true, Some(slept), Some(waits)) = (follows, sleep.user(), next.user())
                && slept != waits
                && known.insert((slept, waits))
            {
                learned.learn(&resolve(slept)?, &resolve(waits)?);
            }
        }
        Ok(learned)
    }

    /// The places that wait for semaphores of Python's processes or for locks, and what the single waits there are for.
    fn turns<E>(
        &self,
        may_be_turn: impl Fn(&Place) -> bool,
        functions: &mut Functions,
        mut resolve: impl FnMut(StackId) -> Result<ResolvedStack, E>,
    ) -> Result<Turns, E> {
        let (mut places, mut stacks) = (Vec::new(), Stacks::default());
        for (&place, &reason) in &self.reasons {
            match (reason, place.user, place.kernel) {
                (Reason::Lock, Some(_), _) if may_be_turn(&place) => places.push(place),
                (Reason::Wait, Some(user), _) if may_be_turn(&place) => {
                    if turns::is_semaphore(&resolve(user)?) {
                        stacks.semaphores.insert(user);
                        places.push(place);
                    } else {
                        stacks.unnamed.insert(user);
                    }
                }
                (Reason::Poll | Reason::Network | Reason::Ipc, _, Some(kernel))
                    if turns::is_next_client(&resolve(kernel)?) =>
                {
                    stacks.next_client.insert(kernel);
                }
                (Reason::Pipe, _, Some(kernel)) if turns::is_full_pipe(&resolve(kernel)?) => {
                    stacks.full_pipe.insert(kernel);
                }
                _ => {}
            }
        }
        if !places.is_empty() || !stacks.unnamed.is_empty() {
            let may_be = |reason: Reason| matches!(reason, Reason::Lock | Reason::Wait | Reason::Pipe);
            for (place, _) in self.reasons.iter().filter(|(_, reason)| may_be(**reason)) {
                if let Some(user) = place.user
                    && let Entry::Vacant(entry) = stacks.functions.entry(user)
                {
                    entry.insert(functions.of_program(&resolve(user)?));
                }
            }
            stacks.asked = self.asked();
        }
        Ok(Turns { uses: turns::uses(&self.singles, &self.cpu_waits, &stacks, functions), places, stacks })
    }

    /// The waits of each thread for others.
    fn asked(&self) -> FastMap<ThreadKey, Asked> {
        let mut asked: FastMap<ThreadKey, Asked> = FastMap::default();
        for (ended, sum) in &self.sums {
            let is_for_others = self.reasons.get(&ended.place).is_some_and(|reason| is_for_others(*reason));
            if !is_for_others || ended.by == Ender::Interrupt {
                continue;
            }
            let of_thread = asked.entry(ended.thread).or_default();
            of_thread.waits = self.counts.get(&ended.thread).copied().unwrap_or(0);
            of_thread.ended = of_thread.ended.saturating_add(sum.count);
            if let Ender::Thread(by) = ended.by {
                let count = of_thread.by.entry(by).or_default();
                *count = count.saturating_add(sum.count);
            }
        }
        asked
    }

    /// Names them one by one. Waits of which only sums are known are for what most others of the thread are for, or
    /// of the program. Those that are for something else keep the meaning of the place, or are for a lock.
    fn name_turns(&self, turns: &Turns, meanings: &mut Meanings) {
        let of = |what: Use| match what {
            Use::Space => of_cpython(FULL_QUEUE),
            Use::Turn => turn_to_wait(),
        };
        let (mut of_threads, mut of_programs) = (FastMap::default(), FastMap::default());
        for (wait, what) in turns.uses.iter().map(|&(at, what)| (&self.singles[at], what)) {
            let Some(place) = self.place(wait) else { continue };
            of_threads.entry((wait.thread, place)).or_insert_with(Sums::default).add(what, wait.blocked_ns);
            of_programs.entry(place.program).or_insert_with(Sums::default).add(what, wait.blocked_ns);
        }
        let of_program = |program: u32| of_programs.get(&program).and_then(Sums::most);
        let mut set = Vec::new();
        for (wait, what) in turns.uses.iter().map(|&(at, what)| (&self.singles[at], what)) {
            let Some(place) = self.place(wait) else { continue };
            let of_thread = of_threads.get(&(wait.thread, place)).and_then(Sums::most);
            let other = || meanings.of_place(wait.thread, place.user, place.kernel).cloned();
            let meaning = match what {
                Some(what) => of(what),
                None if of_thread.is_some() || of_program(place.program).is_some() => match other() {
                    Some(other) => other,
                    None if wait.reason == StallReason::Blocked(Reason::Lock) => lock_by_wakers(),
                    None => continue,
                },
                None => continue,
            };
            set.push((wait.id, wait.thread, place, meaning, of_thread.is_none() && what.is_none()));
        }
        for (stall, thread, place, meaning, is_of_thread) in set {
            if is_of_thread {
                meanings.set_thread(thread, place, meaning.clone());
            }
            meanings.set_stall(stall, meaning);
        }
        for ((thread, place), sums) in of_threads {
            if let Some(what) = sums.most() {
                meanings.set_thread(thread, place, of(what));
            }
        }
        for place in &turns.places {
            if of_program(place.program) == Some(Use::Turn) {
                meanings.set_place(*place, of(Use::Turn));
            }
        }
    }

    /// For each single wait the index of its first slice.
    fn slices<E>(
        &self,
        functions: &mut Functions,
        mut resolve: impl FnMut(StackId) -> Result<ResolvedStack, E>,
    ) -> Result<Vec<usize>, E> {
        let mut stacks: FastMap<StackId, Vec<FunctionId>> = FastMap::default();
        let mut has_same_functions = |one: StackId, other: StackId| {
            for stack in [one, other] {
                if let Entry::Vacant(place) = stacks.entry(stack) {
                    place.insert(functions.whole(&resolve(stack)?));
                }
            }
            Ok(functions.are_same(&stacks[&one], &stacks[&other]))
        };
        let mut firsts = Vec::with_capacity(self.singles.len());
        for of_thread in self.singles.chunk_by(|one, next| one.thread == next.thread) {
            let base = firsts.len();
            let of_thread = slices::first_slices(of_thread, &mut has_same_functions)?;
            firsts.extend(of_thread.into_iter().map(|first| base + first));
        }
        Ok(firsts)
    }

    /// The time of all slices of a wait belongs to the thread that ended the last one.
    fn attribute_slices(&mut self, firsts: &[usize]) {
        let mut before_ns = 0u64;
        for at in 1..self.singles.len() {
            let (slice, next) = (&self.singles[at - 1], &self.singles[at]);
            if firsts[at] != firsts[at - 1] {
                before_ns = 0;
                continue;
            }
            before_ns = before_ns.saturating_add(slice.blocked_ns);
            let (Some(waker), Some(place)) = (next.waker, self.place(slice)) else { continue };
            let (ns, thread) = (std::mem::take(&mut before_ns), slice.thread);
            let timer = self.sums.entry(Ended { place, thread, by: Ender::Interrupt }).or_default();
            let moved = ns.min(timer.ns);
            timer.ns -= moved;
            let ended = Ended { place, thread, by: Ender::Thread(waker) };
            let sum = self.sums.entry(ended).or_default();
            sum.ns = sum.ns.saturating_add(moved);
        }
    }

    /// Joins the slices of waits that are not idle. Where a built-in rule says what a place waits for, a
    /// signal divides its waits, too: PostgreSQL looks for deadlocks after a second, and waits on. So do sleeps after
    /// which a thread asks again: SQLite asks for two locks, one after the other, at two places.
    fn join_slices(&self, firsts: &[usize], meanings: &mut Meanings) {
        let mut joined: Option<usize> = None;
        let mut meaning: Option<Arc<Meaning>> = None;
        for (at, wait) in self.singles.iter().enumerate() {
            let of_before = std::mem::replace(&mut meaning, meaning_of(meanings, wait).cloned());
            let before = at.checked_sub(1).filter(|_| meaning.as_ref().is_some_and(|meaning| !meaning.idle));
            let is_slice = before.is_some_and(|before| {
                let is_ruled = meaning.as_ref().is_some_and(|meaning| {
                    matches!(meaning.source, MeaningSource::Stack | MeaningSource::Word)
                });
                let before_it = &self.singles[before];
                let goes_on = || {
                    let (thread, from, to) = (wait.thread, before_it.end, wait.start);
                    let without_cpu_ns = turns::cpu_wait_ns(&self.cpu_waits, thread, from, to);
                    slices::goes_on(before_it, wait) || slices::asks_again(before_it, wait, without_cpu_ns)
                };
                // At one place a word can say now one thing, now another.
                meaning == of_before && (firsts[at] == firsts[before] || is_ruled && goes_on())
            });
            let first = before.filter(|_| is_slice).map(|before| joined.unwrap_or(before));
            if let Some(first) = first {
                meanings.join(self.singles[first].id, self.singles[first].id);
                meanings.join(wait.id, self.singles[first].id);
            }
            joined = first;
        }
    }
}

/// Whether a rule says that the wait is for a result, idle or not.
pub fn is_of_a_result(meaning: &Meaning) -> bool {
    meaning.software.is_some() && [FUTURE, LATCH].contains(&&*meaning.name)
}

/// The meaning of waits that their own waiters end, as those for a lock.
pub fn lock_by_wakers() -> Arc<Meaning> {
    by_wakers(LOCK, true)
}

/// What a wait is for by what is at the other end: the thread is idle, or it polls one connection, as a client does
/// that wants a timeout, until the answer is there.
///
/// A client of UDP may send again and again, and poll for as long as it rests: where the wait has `timed_out`, nothing was
/// owed.
pub fn by_peer(reason: StallReason, peer: &Peer, timed_out: bool) -> Option<Arc<Meaning>> {
    if let Some(name) = peer.idle_name() {
        return Some(Arc::new(Meaning { idle: true, ..Meaning::clone(&by_wakers(name, false)) }));
    }
    let is_rest = peer.kind == PeerKind::Udp && timed_out;
    let name = match (peer.awaited, peer.role) {
        (Awaited::Data, Some(Role::Client)) if peer.asked == Some(true) && !is_rest => ANSWER,
        (Awaited::Connection, Some(Role::Client)) => CONNECTION,
        (Awaited::Space, _) => SPACE,
        _ => return None,
    };
    (reason == StallReason::Blocked(Reason::Poll)).then(|| by_wakers(name, false))
}

fn by_wakers(name: &str, holder: bool) -> Arc<Meaning> {
    let (name, source) = (name.into(), MeaningSource::Wakers);
    Arc::new(Meaning { name, software: None, idle: false, holder, source })
}

/// Whether waits with this reason are ended by what other threads do, and are for no lock.
fn is_for_others(reason: Reason) -> bool {
    matches!(reason, Reason::Wait | Reason::Pipe)
}

fn turn_to_wait() -> Arc<Meaning> {
    Arc::new(Meaning { idle: true, ..Meaning::clone(&by_wakers(TURN, false)) })
}

fn of_cpython(name: &str) -> Arc<Meaning> {
    Arc::new(Meaning { software: Some("cpython".into()), ..Meaning::clone(&by_wakers(name, false)) })
}

fn meaning_of<'m>(meanings: &'m Meanings, wait: &Single) -> Option<&'m Arc<Meaning>> {
    meanings.of_stall(wait.id, wait.thread, wait.user(), wait.kernel())
}

/// Reasons whose waits can be for a lock that the kernel does not know, or for work.
pub fn is_learned(reason: Reason) -> bool {
    match reason {
        Reason::Wait | Reason::Poll | Reason::Sleep | Reason::Child => true,
        Reason::Network | Reason::Pipe | Reason::Ipc | Reason::Other => true,
        Reason::Lock | Reason::Disk | Reason::Memory | Reason::Stopped => false,
    }
}

/// Whether a wait is in epoll: a loop waits there for whatever comes first, so that no thread holds what it waits for.
/// Loops that write to each other's connections end each other's waits, and look like the waiters of a lock.
fn is_epoll(user: Option<&ResolvedStack>, kernel: Option<&ResolvedStack>) -> bool {
    let frames = user.into_iter().chain(kernel).flat_map(|stack| stack.frames.iter());
    let mut lines = frames.flat_map(|frame| &frame.lines);
    lines.any(|line| line.symbol.as_deref().is_some_and(|symbol| EPOLL.contains(&symbol)))
}

/// Reasons of waits for what others send.
fn is_sent(reason: Reason) -> bool {
    matches!(reason, Reason::Pipe | Reason::Network | Reason::Ipc)
}

/// The search for locks among the places of a recording.
struct Search<'w, R> {
    waits: &'w Waits,
    firsts: &'w [usize],
    /// Single waits that are known to be for no lock, by index.
    others: FastSet<usize>,
    functions: Functions,
    resolve: R,
    /// The functions of user stacks.
    stacks: FastMap<StackId, Arc<[FunctionId]>>,
}

impl<E, R: FnMut(StackId) -> Result<ResolvedStack, E>> Search<'_, R> {
    /// The places that wait for a lock.
    fn locks(&mut self, places: &[(Place, &[FunctionId])]) -> Result<Vec<Place>, E> {
        let mut waiters: FastMap<Key<'_>, Group> = FastMap::default();
        let mut judged: BTreeMap<Key<'_>, Group> = BTreeMap::new();
        let mut keys: FastMap<Place, Key<'_>> = FastMap::default();
        for &(place, functions) in places {
            let reason = self.waits.reasons.get(&place).copied().unwrap_or(Reason::Other);
            let key = |depth: usize| (place.program, reason, &functions[..functions.len().min(depth)]);
            let wide = key(self.functions.waiters_depth(functions));
            waiters.entry(wide).or_default().places.push(place);
            judged.entry(key(JUDGED_DEPTH)).or_default().places.push(place);
            keys.insert(place, wide);
        }
        for ended in self.waits.sums.keys() {
            if let Some(&wide) = keys.get(&ended.place) {
                waiters.entry(wide).or_default().waiters.insert(ended.thread);
            }
        }
        let mut sums: FastMap<Place, Vec<(&Ended, &Sum)>> = FastMap::default();
        for (ended, sum) in &self.waits.sums {
            sums.entry(ended.place).or_default().push((ended, sum));
        }
        let mut links = self.links(&keys, &waiters);
        let parks = self.parks(&links);
        let beside = self.beside(&links);
        let mut timings: FastMap<Key<'_>, Timing> = FastMap::default();
        let mut locks = Vec::new();
        for group in judged.values() {
            let Some(&wide) = group.places.first().and_then(|place| keys.get(place)) else { continue };
            let Some(all) = waiters.get(&wide) else { continue };
            let ended = group.places.iter().filter_map(|place| sums.get(place)).flatten();
            let shares = shares(ended.copied(), &all.waiters);
            let parks = parks.get(&wide.0).filter(|_| self.functions.is_parked(wide.2));
            let beside = self.key_beside(wide).and_then(|key| beside.get(&key));
            let timing = || {
                *timings.entry(wide).or_insert_with(|| {
                    let links = links.remove(&wide).unwrap_or_default();
                    match (parks, beside) {
                        (Some(parks), _) => timing_of_parked(&links, parks),
                        (None, Some(beside)) => timing_beside(&links, beside),
                        (None, None) => timing(&links),
                    }
                })
            };
            let depth = || self.depth(all, places).map(Some);
            if judge(&shares, PlaceVerdict::Unknown, timing, depth)? == PlaceVerdict::NotIdle {
                locks.extend(&group.places);
            }
        }
        Ok(locks)
    }

    /// The single waits of each group of waiters, slices joined.
    fn links<'p>(
        &self,
        keys: &FastMap<Place, Key<'p>>,
        waiters: &FastMap<Key<'p>, Group>,
    ) -> FastMap<Key<'p>, Vec<Link>> {
        // A thread that sends what others wait for, and never waits for it itself, keeps no lock from them.
        let is_holder = |key: &Key<'_>, waker: &ThreadKey| {
            !is_sent(key.1) || waiters.get(key).is_some_and(|group| group.waiters.contains(waker))
        };
        let mut links: FastMap<Key<'_>, Vec<Link>> = FastMap::default();
        let singles = &self.waits.singles;
        for (at, wait) in singles.iter().enumerate() {
            let has_more = self.firsts.get(at + 1).is_some_and(|&first| first != at + 1);
            let key = self.waits.place(wait).and_then(|place| keys.get(&place));
            let (Some(&wide), false) = (key, has_more || self.others.contains(&at)) else { continue };
            if wait.reason == StallReason::Runnable && self.firsts[at] == at {
                continue;
            }
            links.entry(wide).or_default().push(Link {
                thread: wait.thread.0,
                start: singles[self.firsts[at]].start,
                woken: wait.woken(),
                end: wait.end,
                waker: wait.waker.filter(|waker| is_holder(&wide, waker)).map(|thread| thread.0),
                timed_out: wait.timed_out,
            });
        }
        links
    }

    /// The single waits of all parked threads, by program.
    fn parks(&self, links: &FastMap<Key<'_>, Vec<Link>>) -> FastMap<u32, Vec<Link>> {
        let mut parks: FastMap<u32, Vec<Link>> = FastMap::default();
        for ((program, _, functions), links) in links {
            if self.functions.is_parked(functions) {
                parks.entry(*program).or_default().extend(links);
            }
        }
        parks
    }

    /// The single waits at several calls of one function without a symbol.
    fn beside(&mut self, links: &FastMap<Key<'_>, Vec<Link>>) -> FastMap<KeyBeside, Vec<Link>> {
        let mut beside: FastMap<KeyBeside, (usize, Vec<Link>)> = FastMap::default();
        for (&key, links) in links {
            if let Some(key) = self.key_beside(key) {
                let (calls, all) = beside.entry(key).or_default();
                *calls += 1;
                all.extend(links);
            }
        }
        beside.retain(|_, (calls, _)| *calls > 1);
        beside.into_iter().map(|(key, (_, links))| (key, links)).collect()
    }

    fn key_beside(&mut self, (program, reason, functions): Key<'_>) -> Option<KeyBeside> {
        let is_parked = self.functions.is_parked(functions);
        let beside = if is_parked { None } else { self.functions.beside(functions) };
        Some((program, reason, beside?))
    }

    /// How many functions are between the threads' loops and their waits: those that no other stack of the
    /// thread has. The median of the waiters.
    fn depth(&mut self, group: &Group, places: &[(Place, &[FunctionId])]) -> Result<usize, E> {
        let here: FastSet<StackId> = group.places.iter().filter_map(|place| place.user).collect();
        let of_place: FastMap<StackId, &[FunctionId]> =
            places.iter().filter_map(|(place, functions)| Some((place.user?, *functions))).collect();
        let mut depths = Vec::new();
        for &thread in &group.waiters {
            let Some(stacks) = self.waits.stacks.get(&thread) else { continue };
            let waits: Vec<&[FunctionId]> = stacks
                .iter()
                .filter(|stack| here.contains(stack))
                .filter_map(|stack| of_place.get(stack).copied())
                .collect();
            let others: Vec<StackId> = stacks.iter().copied().filter(|stack| !here.contains(stack)).collect();
            let Some(wait) = waits.first() else { continue };
            let mut common = wait.len();
            for other in others {
                let other = self.functions_of(other)?;
                common = common.min(self.functions.common(wait, &other));
            }
            depths.push(wait.len() - common);
        }
        Ok(median_depth(depths))
    }

    fn functions_of(&mut self, stack: StackId) -> Result<Arc<[FunctionId]>, E> {
        if let Some(known) = self.stacks.get(&stack) {
            return Ok(known.clone());
        }
        let functions: Arc<[FunctionId]> = self.functions.of_program(&(self.resolve)(stack)?).into();
        self.stacks.insert(stack, functions.clone());
        Ok(functions)
    }
}

/// What one kind of waits sums up to.
fn shares<'w>(ended: impl Iterator<Item = (&'w Ended, &'w Sum)>, waiters: &FastSet<ThreadKey>) -> Shares {
    let mut shares = Shares::default();
    for (ended, sum) in ended {
        let own = matches!(ended.by, Ender::Thread(by) if by != ended.thread && waiters.contains(&by));
        shares.add(sum.ns, sum.count, own);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glob::Glob;
    use std::convert::Infallible;
    use wallprof_model::event::WakerStacks;
    use wallprof_model::profile::ResolvedFrame;
    use wallprof_model::{EpochSecond, FrameKind, MonoNs, SymbolLine};
    use wallprof_testkit::stacks::stack;

    const MS: u64 = 1_000_000;
    const WAIT: Reason = Reason::Wait;

    /// The stacks of the test's recording, by id.
    fn resolve(id: StackId) -> Result<ResolvedStack, Infallible> {
        Ok(stack(match id.0 {
            1 => &["pthread_cond_wait", "take", "serve", "run"],
            2 => &["sum", "serve", "run"],
            3 => &["pthread_cond_wait", "next_job", "run"],
            4 => &["pthread_cond_timedwait", "take", "serve", "run"],
            5 => &["epoll_wait", "select", "serve", "run"],
            6 => &["poll", "select", "serve", "run"],
            7 => &["select", "serve", "run"],
            8 => &["schedule_hrtimeout_range", "ep_poll", "do_epoll_wait"],
            9 => &["schedule_hrtimeout_range", "do_sys_poll"],
            10 => &["sched_yield", "erts_schedule"],
            11 => &["sched_yield", "take_spin", "erts_schedule"],
            _ => &["inet_csk_accept"],
        }))
    }

    /// Waits of `(thread, start, end, waker)`, ms, at the place with this user stack.
    struct Recorded(Vec<WaitRow>);

    impl Recorded {
        fn new(user: u64, waits: &[(u32, u64, u64, Option<u32>)]) -> Self {
            let wait = |(id, &(thread, start, end, waker)): (usize, &(u32, u64, u64, Option<u32>))| WaitRow {
                id: id as u64 + 1,
                thread: ThreadKey(thread),
                reason: StallReason::Blocked(WAIT),
                start: MonoNs(start * MS),
                end: MonoNs(end * MS),
                blocked_ns: (end - start) * MS,
                asked_ns: None,
                open: false,
                user: Some(StackId(user)),
                kernel: None,
                waker: waker.map(ThreadKey),
            };
            Recorded(waits.iter().enumerate().map(wait).collect())
        }

        fn waits(&self, programs: &[&str]) -> Waits {
            let processes: Vec<(ThreadKey, String)> =
                (1..).zip(programs).map(|(key, program)| (ThreadKey(key), (*program).into())).collect();
            let mut waits = Waits::new(&processes);
            for wait in &self.0 {
                waits.add_sample(&SampleRow {
                    thread: wait.thread,
                    second: EpochSecond(0),
                    what: Weighted::State(match wait.reason {
                        StallReason::Blocked(reason) => State::Blocked(reason),
                        _ => State::Runnable,
                    }),
                    user: wait.user,
                    kernel: wait.kernel,
                    waker: Some(WakerStacks {
                        thread: wait.waker,
                        interrupt: wait.waker.is_none(),
                        user: Some(StackId(2)),
                        kernel: None,
                    }),
                    weight: wait.blocked_ns,
                    count: 1,
                });
                waits.add_wait(wait);
            }
            waits
        }

        fn meanings(&self, programs: &[&str]) -> Meanings {
            let Ok(meanings) = self.waits(programs).finish(&Rules::default(), resolve);
            meanings
        }
    }

    /// Waits of thread 1 for the value of a future, 2 ms each, that thread 2 ends in `answered` of them, and a timer in
    /// the others. The first one began before, and lasts for `first_ms` more.
    fn futures(answered: u64, by_timer: u64, first_ms: u64) -> (Option<String>, bool) {
        let by = |at: u64| if at < answered { Some(2) } else { None };
        let mut waits = vec![(1, 0, first_ms, None)];
        waits
            .extend((0..answered + by_timer).map(|at| (1, first_ms + at * 4, first_ms + at * 4 + 2, by(at))));
        of_results(&waits)
    }

    fn of_results(waits: &[(u32, u64, u64, Option<u32>)]) -> (Option<String>, bool) {
        let rules = "[[wait]]\nname = 'future'\nsoftware = 'java'\nidle = true\nin = 'take'";
        let mut all = Rules::default();
        all.add_file(rules, MeaningSource::Stack).unwrap();
        let Ok(meanings) = Recorded::new(1, waits).waits(&["app"; 2]).finish(&all, resolve);
        let meaning = meanings.of_place(ThreadKey(1), Some(StackId(1)), None).unwrap();
        (meaning.software.clone(), meaning.idle)
    }

    #[test]
    fn threads_that_yield_while_they_look_for_work_are_idle() {
        let thread = ThreadKey(1);
        let mut waits = Waits::new(&[(thread, "beam.smp".into())]);
        for user in [10, 11] {
            waits.add_yield(&SampleRow {
                thread,
                second: EpochSecond(0),
                what: Weighted::State(State::Preempted),
                user: Some(StackId(user)),
                kernel: None,
                weight: 9,
                count: 1,
                waker: None,
            });
        }
        let meanings = waits.finish(&Rules::built_in().unwrap(), resolve).unwrap();
        let name = |user| meanings.of_place(thread, Some(StackId(user)), None).map(|meaning| &*meaning.name);
        assert_eq!((name(10), name(11)), (Some("work"), None));
    }

    #[test]
    fn waits_for_a_result_are_idle_unless_threads_end_them_again_and_again() {
        let java = Some("java".to_owned());
        assert_eq!(futures(20, 0, 0), (java.clone(), false));
        assert_eq!(futures(7, 0, 0), (java.clone(), true), "few");
        assert_eq!(futures(20, 25, 0), (java.clone(), true), "the time between two rounds");
        assert_eq!(futures(20, 0, 400), (java.clone(), true), "the end of the program");
        let in_turn =
            (0..40).map(|at| (1 + at % 2, u64::from(at) * 4, u64::from(at) * 4 + 4, Some(2 - at % 2)));
        assert_eq!(of_results(&in_turn.collect::<Vec<_>>()), (java, true), "by those that wait for it, too");
    }

    /// Three threads that take a lock for 2 ms each and come back after 1 ms.
    fn turns() -> Vec<(u32, u64, u64, Option<u32>)> {
        let holder = |turn: u64| ((turn * 7 + turn / 5) % 3) as u32 + 1;
        (2..60).map(|turn| (holder(turn), turn * 2 - 3, turn * 2, Some(holder(turn - 1)))).collect()
    }

    fn name(meanings: &Meanings, thread: u32, user: u64) -> Option<&str> {
        let meaning = meanings.of_place(ThreadKey(thread), Some(StackId(user)), None);
        meaning.map(|meaning| meaning.name.as_str())
    }

    #[test]
    fn waits_that_their_own_waiters_end_are_for_a_lock() {
        let turns = Recorded::new(1, &turns());
        assert_eq!(name(&turns.meanings(&["a"; 3]), 1, 1), Some("lock"));
        let processes = turns.meanings(&["a", "a", "a", "b"]);
        assert_eq!(name(&processes, 2, 1), Some("lock"));
        assert_eq!(name(&processes, 4, 1), None, "another program");
        let strangers = turns.meanings(&["a", "b", "c"]);
        assert_eq!(name(&strangers, 1, 1), None);
    }

    #[test]
    fn loops_that_end_the_waits_of_each_other_wait_for_no_lock() {
        let name_of = |user: u64, kernel: Option<u64>| {
            let mut turns = Recorded::new(user, &turns());
            for wait in &mut turns.0 {
                (wait.reason, wait.kernel) = (StallReason::Blocked(Reason::Poll), kernel.map(StackId));
            }
            let meanings = turns.meanings(&["a"; 3]);
            let place = (ThreadKey(1), Some(StackId(user)), kernel.map(StackId));
            meanings.of_place(place.0, place.1, place.2).map(|meaning| meaning.name.clone())
        };
        assert_eq!(
            [name_of(5, None), name_of(7, Some(8))],
            [None, None],
            "by the library, and by the kernel"
        );
        let lock = Some("lock".to_owned());
        assert_eq!([name_of(6, None), name_of(7, Some(9))], [lock.clone(), lock], "a lock of poll");
    }

    #[test]
    fn waits_that_others_end_are_not() {
        let by_others: Vec<_> =
            turns().into_iter().map(|(thread, from, to, _)| (thread, from, to, Some(4))).collect();
        assert_eq!(name(&Recorded::new(3, &by_others).meanings(&["a"; 4]), 1, 3), None);
        let by_timers: Vec<_> =
            turns().into_iter().map(|(thread, from, to, _)| (thread, from, to, None)).collect();
        assert_eq!(name(&Recorded::new(3, &by_timers).meanings(&["a"; 4]), 1, 3), None);
        let few = Recorded::new(1, &turns()[..5]);
        assert_eq!(name(&few.meanings(&["a"; 3]), 1, 1), None, "too few to judge");
    }

    #[test]
    fn slices_of_a_lock_are_one_wait_that_the_last_waker_ended() {
        // Each of the waits of 3 ms looks every ms whether the lock is free.
        let sliced: Vec<_> = turns()
            .into_iter()
            .flat_map(|(thread, start, end, waker)| {
                (start..end).map(move |at| (thread, at, at + 1, waker.filter(|_| at + 1 == end)))
            })
            .collect();
        let mut recorded = Recorded::new(4, &sliced);
        for (wait, (_, _, _, waker)) in recorded.0.iter_mut().zip(&sliced) {
            wait.asked_ns = Some(if waker.is_some() { 2 * MS } else { MS });
        }
        let meanings = recorded.meanings(&["a"; 3]);
        assert_eq!(name(&meanings, 1, 4), Some("lock"));
        assert_eq!([1, 2, 3, 4, 5, 6].map(|stall| meanings.wait_of(stall)), [1, 1, 1, 4, 4, 4].map(Some));
        let mut whole = Recorded::new(1, &turns());
        whole.0.truncate(40);
        let meanings = whole.meanings(&["a"; 3]);
        assert_eq!(meanings.wait_of(1), None, "a wait in one piece");
    }

    #[test]
    fn signal_divides_a_wait_that_a_built_in_rule_names_and_no_other() {
        let recorded = || Recorded::new(1, &[(1, 0, 10, None), (1, 10, 15, Some(2)), (1, 16, 17, None)]);
        let text = "[[wait]]\nname = 'row lock'\nidle = false\nin = 'take'";
        let mut rules = Rules::default();
        rules.add_file(text, MeaningSource::Stack).unwrap();
        let Ok(ruled) = recorded().waits(&["a"; 3]).finish(&rules, resolve);
        assert_eq!([1, 2, 3].map(|stall| ruled.wait_of(stall)), [Some(1), Some(1), None]);
        rules = Rules::default();
        rules.add_file(&text.replace("false", "true"), MeaningSource::Stack).unwrap();
        for rules in [rules, Rules::default()] {
            let Ok(whole) = recorded().waits(&["a"; 3]).finish(&rules, resolve);
            assert_eq!([1, 2, 3].map(|stall| whole.wait_of(stall)), [None; 3]);
        }
    }

    /// The stacks of processes of Python: at one place they wait for space and for their turn, in another for a pipe.
    fn python(id: StackId) -> Result<ResolvedStack, Infallible> {
        Ok(stack(match id.0 {
            1 => &["sem_wait", "_multiprocessing_SemLock_acquire", "eval", "main"],
            2 => &["sem_wait", "PyThread_acquire_lock_timed", "eval", "run"],
            _ => &["read", "os_read", "eval", "main"],
        }))
    }

    /// Thread 1 fills a queue, of which thread 2 writes the items into a pipe. Threads 3 and 4 read it, in turn.
    fn queue() -> Vec<(u32, StackId, Reason, u64, u64, u32)> {
        (0..20u64)
            .flat_map(|turn| {
                let (one, other, at) = (3 + (turn % 2) as u32, 4 - (turn % 2) as u32, turn * 20);
                [
                    (1, StackId(1), WAIT, at, at + 19, one),
                    (2, StackId(2), WAIT, at + 1, at + 20, 1),
                    (one, StackId(3), Reason::Pipe, at, at + 19, 2),
                    (other, StackId(1), WAIT, at, at + 19, one),
                ]
            })
            .collect()
    }

    fn meanings_of_queue(rows: &[(u32, StackId, Reason, u64, u64, u32)]) -> Meanings {
        let waits: Vec<_> =
            rows.iter().map(|&(thread, _, _, from, to, waker)| (thread, from, to, Some(waker))).collect();
        let mut recorded = Recorded::new(1, &waits);
        for (wait, &(_, user, reason, ..)) in recorded.0.iter_mut().zip(rows) {
            (wait.user, wait.reason) = (Some(user), StallReason::Blocked(reason));
        }
        let Ok(meanings) = recorded.waits(&["python3"; 4]).finish(&Rules::default(), python);
        meanings
    }

    #[test]
    fn processes_of_python_wait_for_space_or_for_their_turn_at_one_place() {
        let meanings = meanings_of_queue(&queue());
        assert_eq!(
            [1, 3, 4].map(|thread| name(&meanings, thread, 1)),
            [Some("full queue"), Some(TURN), Some(TURN)]
        );
        let of_stall = |stall, thread| meanings.of_stall(stall, ThreadKey(thread), Some(StackId(1)), None);
        assert!(!of_stall(1, 1).unwrap().idle);
        assert!(of_stall(4, 4).unwrap().idle);
        assert!(of_stall(999, 3).unwrap().idle, "a wait that goes on");
    }

    #[test]
    fn lock_of_pythons_processes_is_one_beside_a_queue() {
        let lock = turns().into_iter().map(|(thread, from, to, waker)| {
            (thread, StackId(1), WAIT, from + 1_000, to + 1_000, waker.unwrap_or(0))
        });
        let rows: Vec<_> = lock.collect();
        assert_eq!(name(&meanings_of_queue(&rows), 1, 1), Some("lock"));
        let mut rows = queue();
        rows.extend(turns().iter().map(|&(thread, from, to, waker)| {
            (thread + 10, StackId(1), WAIT, from + 1_000, to + 1_000, waker.unwrap_or(0) + 10)
        }));
        let last = rows.len() as u64;
        let waits = rows.iter().map(|&(thread, _, _, from, to, waker)| (thread, from, to, Some(waker)));
        let mut recorded = Recorded::new(1, &waits.collect::<Vec<_>>());
        for (wait, &(_, user, reason, ..)) in recorded.0.iter_mut().zip(&rows) {
            (wait.user, wait.reason) = (Some(user), StallReason::Blocked(reason));
        }
        let Ok(meanings) = recorded.waits(&["python3"; 13]).finish(&Rules::default(), python);
        let of_stall = |stall, thread| {
            let meaning = meanings.of_stall(stall, ThreadKey(thread), Some(StackId(1)), None);
            meaning.map(|meaning| meaning.name.as_str())
        };
        assert_eq!([of_stall(4, 4), of_stall(last, 11)], [Some(TURN), Some("lock")]);
    }

    /// Thread 4 sends jobs to threads 2 and 3, and these send results to thread 1: all of them read pipes at one place.
    #[test]
    fn reader_of_results_waits_for_no_lock_of_the_workers_or_of_the_sender_of_their_jobs() {
        let pipe = StackId(3);
        let rows: Vec<(u32, StackId, Reason, u64, u64, u32)> = (1..60u64)
            .flat_map(|turn| {
                let (worker, at) = (2 + (turn * 7 / 5 % 2) as u32, turn * 20);
                [
                    (worker, pipe, Reason::Pipe, at - 10, at, 4),
                    (1, pipe, Reason::Pipe, at - 18, at + 2, worker),
                ]
            })
            .collect();
        assert_eq!(name(&meanings_of_queue(&rows), 1, 3), None);
    }

    /// A stripped queue, whose function waits at two calls, and the stack of another lock in it.
    fn stripped_queue(id: StackId) -> Result<ResolvedStack, Infallible> {
        let named = stack(&["sem_wait", "acquire_timed", "call_method", "run"]);
        let get = ResolvedFrame {
            kind: FrameKind::Native,
            module: Some("/usr/lib/_queue.so".into()),
            build_id: None,
            address: if id.0 == 1 { 0x2bf4 } else { 0x2c2d },
            lines: vec![SymbolLine::default()],
        };
        let mut frames: Vec<_> = named.frames.iter().cloned().collect();
        frames.insert(2, Arc::new(get));
        Ok(ResolvedStack { frames: frames.into(), ..named })
    }

    fn name_in_stripped_queue(rows: &[(u32, StackId, u64, u64, u32)]) -> Option<String> {
        let waits: Vec<_> =
            rows.iter().map(|&(thread, _, from, to, waker)| (thread, from, to, Some(waker))).collect();
        let mut recorded = Recorded::new(1, &waits);
        for (wait, &(_, user, ..)) in recorded.0.iter_mut().zip(rows) {
            wait.user = Some(user);
        }
        let Ok(meanings) = recorded.waits(&["python3"; 9]).finish(&Rules::default(), stripped_queue);
        name(&meanings, 1, 1).map(str::to_owned)
    }

    /// Workers 1 and 2 take the items of thread 9. The one that got an item wakes the other one, which waits at the first
    /// call and finds the queue empty. Twin: they take a lock in turn at the first call, and rest at the second one.
    #[test]
    fn queue_is_no_lock_because_its_waiters_wake_each_other_at_one_of_its_calls() {
        let (first, again) = (StackId(1), StackId(2));
        let of_queue: Vec<_> = (1..80u64)
            .flat_map(|turn| {
                let (getter, other, at) = (1 + (turn % 2) as u32, 2 - (turn % 2) as u32, turn * 20);
                [(other, first, at - 17, at, getter), (getter, again, at - 20, at, 9)]
            })
            .collect();
        assert_eq!(name_in_stripped_queue(&of_queue), None);
        let one_call: Vec<_> = of_queue.iter().copied().filter(|row| row.1 == first).collect();
        assert_eq!(name_in_stripped_queue(&one_call).as_deref(), Some("lock"), "as one call alone looks");
        let mut of_lock: Vec<_> = turns()
            .into_iter()
            .map(|(thread, from, to, waker)| (thread, first, from + 100, to + 100, waker.unwrap_or(0)))
            .collect();
        of_lock.extend((0..20).map(|at| (1, again, at * 4, at * 4 + 2, 9)));
        assert_eq!(name_in_stripped_queue(&of_lock).as_deref(), Some("lock"));
    }

    /// Two workers of a server wait for their turn, and for another lock at the same place now and then.
    #[test]
    fn lock_of_workers_is_one_beside_their_turn() {
        let (epoll, mutex) = (StackId(3), StackId(1));
        let mut rows: Vec<(u32, StackId, Reason, u64, u64, u32)> = (0..20u64)
            .flat_map(|turn| {
                let (one, other, at) = (1 + (turn % 2) as u32, 2 - (turn % 2) as u32, turn * 20);
                [(one, epoll, Reason::Poll, at, at + 19, 9), (other, mutex, Reason::Lock, at, at + 19, one)]
            })
            .collect();
        rows.push((1, mutex, Reason::Lock, 500, 505, 2));
        let waits: Vec<_> =
            rows.iter().map(|&(thread, _, _, from, to, waker)| (thread, from, to, Some(waker))).collect();
        let mut recorded = Recorded::new(1, &waits);
        for (wait, &(_, user, reason, ..)) in recorded.0.iter_mut().zip(&rows) {
            (wait.user, wait.kernel) = (Some(user), Some(user));
            wait.reason = StallReason::Blocked(reason);
        }
        let resolve = |id: StackId| -> Result<ResolvedStack, Infallible> {
            Ok(stack(if id == epoll {
                &["ep_poll", "epoll_wait", "serve"]
            } else {
                &["lock_accept", "serve"]
            }))
        };
        let Ok(meanings) = recorded.waits(&["server"; 2]).finish(&Rules::default(), resolve);
        let is_idle = |stall, thread| {
            meanings.of_stall(stall, ThreadKey(thread), Some(mutex), Some(mutex)).unwrap().idle
        };
        assert!(is_idle(2, 2) && is_idle(999, 1), "their turn, and a wait that goes on");
        assert!(!is_idle(rows.len() as u64, 1), "the other lock");
    }

    /// At the end of the recording two workers wait for their turn. A third one's sleep ended just then, and the
    /// recorder read the stack of its next wait, which is theirs.
    #[test]
    fn open_wait_with_the_stack_of_the_next_one_does_not_make_a_turn_another_wait() {
        let (epoll, mutex, open) = (StackId(3), StackId(1), StackId(6));
        let mut rows: Vec<(u32, StackId, Reason, u64, u64, u32)> = (0..20u64)
            .flat_map(|turn| {
                let (one, other, at) = (1 + (turn % 2) as u32, 2 - (turn % 2) as u32, turn * 20);
                [(one, epoll, Reason::Poll, at, at + 19, 9), (other, mutex, Reason::Lock, at, at + 19, one)]
            })
            .collect();
        let last = rows.len() as u64;
        rows.extend([
            (1, mutex, Reason::Lock, 400, 460, 0),
            (2, mutex, Reason::Lock, 420, 460, 0),
            (3, mutex, Reason::Sleep, 459, 460, 0),
        ]);
        let waits: Vec<_> =
            rows.iter().map(|&(thread, _, _, from, to, _)| (thread, from, to, None)).collect();
        let mut recorded = Recorded::new(1, &waits);
        for (wait, &(_, user, reason, .., waker)) in recorded.0.iter_mut().zip(&rows) {
            (wait.user, wait.kernel) = (Some(user), Some(user));
            (wait.reason, wait.waker) = (StallReason::Blocked(reason), Some(ThreadKey(waker)));
            if wait.id > last {
                (wait.open, wait.kernel, wait.waker) = (true, Some(open), None);
            }
        }
        // Open waits have no sample yet.
        let mut waits =
            Recorded(recorded.0.iter().filter(|wait| !wait.open).cloned().collect()).waits(&["server"; 3]);
        recorded.0.iter().filter(|wait| wait.open).for_each(|wait| waits.add_wait(wait));
        let resolve = |id: StackId| -> Result<ResolvedStack, Infallible> {
            Ok(stack(if id == epoll {
                &["ep_poll", "epoll_wait", "serve"]
            } else {
                &["lock_accept", "serve"]
            }))
        };
        let Ok(meanings) = waits.finish(&Rules::default(), resolve);
        let name = |stall, thread| {
            let meaning = meanings.of_stall(stall, ThreadKey(thread), Some(mutex), Some(open));
            meaning.map(|meaning| meaning.name.as_str())
        };
        assert_eq!([name(last + 1, 1), name(last + 2, 2)], [Some(TURN); 2]);
    }

    #[test]
    fn rules_go_before_wakers() {
        let mut rules = Rules::built_in().unwrap();
        rules.prepend_names(&[Glob::new("take").unwrap()], &[]);
        let Ok(meanings) = Recorded::new(1, &turns()).waits(&["a"; 3]).finish(&rules, resolve);
        assert_eq!(name(&meanings, 1, 1), Some("idle"));
        assert_eq!(meanings.wait_of(1), None);
    }

    #[test]
    fn threads_that_are_not_listed_and_stacks_without_functions_have_no_meaning() {
        let meanings = Recorded::new(1, &turns()).meanings(&["a"]);
        assert_eq!(name(&meanings, 9, 1), None);
        let Ok(empty) = Waits::default().finish(&Rules::default(), resolve);
        assert_eq!(name(&empty, 1, 1), None);
    }
}
