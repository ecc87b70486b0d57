// SPDX-License-Identifier: Apache-2.0
//! The input of the rules: every stall of a recording in a compact form, the totals of the threads, and the
//! activity of the machine at the same time.
//!
//! Memory is bounded. Of more stalls than [`MOST_CASES`] the longest stay; voluntary ones are dropped first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use wallprof_analysis::receive::{Backlog, backlog};
use wallprof_analysis::spans::{LongPeriod, LongSum, OverBudget};
use wallprof_analysis::tally::Tally;
use wallprof_meaning::by_stack::ByStack;
use wallprof_meaning::interner::Interner;
use wallprof_meaning::site::{self, Site, Sites};
use wallprof_meaning::waits::{is_answer_of_file_server, is_end_of_fork};
use wallprof_model::counter::CounterTrack;
use wallprof_model::event::{Access, Fault};
use wallprof_model::profile::{
    CrossCallRow, InterruptRow, IntrusionRow, KernelDelayRow, RecordingInfo, ResolvedStack, StallRecord,
    Thread, ThrottledRow,
};
use wallprof_model::{
    ClockMap, FastMap, FrameKind, Meaning, MonoNs, Reason, StackEnd, StallReason, ThreadInfo, ThreadKey,
    ThreadRef, YIELDS, container_from_cgroup, is_allocator_library,
};

use super::accept_queue::{Accepts, accepts};
use super::callers::{Callers, ProgramFunctions};
use super::case::{Case, FirstCall, Held, PageFault, Party, Woken};
use super::disk_limit::{HeldBack, held_back};
use super::dropped_packets::{Drops, drops};
use super::left_out::left_out;
use super::limits::is_share;
use super::machine::Machine;
use super::memory_group::{FullGroup, full_group};
use super::slow_fault::FaultWait;
use super::upstream::{Upstream, upstreams};

/// Stalls kept; some 300 bytes each.
const MOST_CASES: usize = 200_000;

/// Of the threads that had the CPU during one stall, those kept.
const MOST_RAN_INSTEAD: usize = 4;

/// The shortest time that any rule takes for a stall: the default of `--min-stall`.
const LEAST_UNIT_NS: u64 = 100_000;

/// Everything that the rules read of a recording.
#[derive(Debug, Default)]
pub struct Evidence {
    min_stall_ns: u64,
    has_folded: bool,
    start: MonoNs,
    /// From the start to the end of the recording.
    duration_ns: u64,
    /// Whether the source records which threads had a CPU while others waited for it.
    knows_who_ran: bool,
    is_of_all_threads: bool,
    cpus: u32,
    /// `None`: the time of day is not known.
    clock: Option<ClockMap>,
    threads: BTreeMap<ThreadKey, ThreadTotals>,
    /// The pods of containers, by the containers' ids.
    pods: BTreeMap<String, String>,
    left_out: HashSet<ThreadKey>,
    interrupts: Vec<InterruptRow>,
    intrusions: Vec<IntrusionRow>,
    kernel_delays: Vec<KernelDelayRow>,
    cross_calls: Vec<CrossCallRow>,
    throttled: Vec<ThrottledRow>,
    machine: Machine,
    /// The counters of each process's receive queues, upstreams and control group, by pid.
    process_counters: HashMap<u32, Vec<CounterTrack>>,
    periods: Vec<Period>,
    long_sums: Vec<LongSum>,
    has_turns: bool,
    over_budget: Vec<OverBudget>,
    sums: Vec<Sum>,
    /// By start.
    cases: Vec<Case>,
    /// The slices of those that have several, by start.
    slices: Vec<Case>,
    /// Indices into `cases` by thread, ascending.
    by_thread: FastMap<ThreadKey, Vec<usize>>,
}

/// What a thread loses time to, however little it is each time.
#[derive(Clone, Debug)]
pub enum Loss {
    Waits(Reason, Option<Arc<Meaning>>),
    /// Without I/O.
    Faults,
    /// It asked again and again, with sched_yield in between.
    Yields,
    /// It ran, in seconds in which a socket of its process dropped packets.
    Running,
    /// It ran, but not late in its busy periods: where it usually runs, if it has long ones.
    Usual,
}

/// The time of a thread in waits or page faults at one place, over the whole recording.
#[derive(Clone, Debug)]
pub struct SumRow {
    pub thread: ThreadKey,
    pub loss: Loss,
    pub user: Option<ResolvedStack>,
    /// Of waits.
    pub kernel: Option<ResolvedStack>,
    pub ns: u64,
    /// The waits and faults whose stacks were taken. Each stands for those since the last one.
    pub count: u64,
}

/// A [`SumRow`], with its place in the program's words.
#[derive(Debug)]
pub(super) struct Sum {
    pub thread: ThreadKey,
    pub loss: Loss,
    pub site: Option<Arc<Site>>,
    /// The system call.
    pub call: Option<String>,
    /// Of [`Loss::Usual`].
    pub callers: Option<Arc<Callers>>,
    pub ns: u64,
    pub count: u64,
}

/// A long busy period, and where its thread ran if that was most of it.
#[derive(Debug)]
pub(super) struct Period {
    pub thread: ThreadKey,
    pub start: MonoNs,
    pub end: MonoNs,
    pub ran_ns: u64,
    pub is_running: bool,
    /// Of the samples late in it, each with the running time for which it stands, ns.
    pub samples: Vec<(Arc<Callers>, u64)>,
}

impl Period {
    pub fn duration_ns(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }
}

/// A thread over the whole recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadTotals {
    pub pid: u32,
    pub tid: u32,
    pub comm: Arc<str>,
    pub process: Arc<str>,
    /// As `docker ps` shows it.
    pub container: Option<Arc<str>>,
    pub start: MonoNs,
    pub end: MonoNs,
    pub wall_ns: u64,
    pub on_cpu_ns: u64,
    /// In [`Reason::Wait`], however short the waits were.
    pub waits_ns: u64,
    /// The sum of the stalls that made it late.
    pub late_ns: u64,
}

/// The parts of a recording beside its stalls.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'r> {
    pub info: &'r RecordingInfo,
    pub threads: &'r [Thread],
    pub interrupts: &'r [InterruptRow],
    pub intrusions: &'r [IntrusionRow],
    pub kernel_delays: &'r [KernelDelayRow],
    pub cross_calls: &'r [CrossCallRow],
    pub throttled: &'r [ThrottledRow],
    /// Counters of the machine over the whole recording: those that [`reads_counter`](super::reads_counter)
    /// accepts.
    pub counters: &'r [CounterTrack],
    /// Counters of processes over the whole recording: those that [`reads_process_counter`] accepts.
    ///
    /// [`reads_process_counter`]: super::reads_process_counter
    pub process_counters: &'r [CounterTrack],
    pub periods: &'r [LongPeriod],
    /// Those of which the periods are examples.
    pub long_sums: &'r [LongSum],
    pub over_budget: &'r [OverBudget],
    /// Waits that [`reads_wait`](super::reads_wait) accepts, of threads that [lost enough](super::is_enough_lost) by them.
    /// Page faults, and calls of sched_yield, of threads that [lost much](super::is_much) by them. Where threads ran in
    /// seconds in which their process [lost packets](super::times_of_drops). The usual running
    /// time of threads that ran in long periods.
    pub sums: &'r [SumRow],
}

impl<'r> Surroundings<'r> {
    /// Those of a recording that has nothing beside its stalls.
    pub fn of(info: &'r RecordingInfo) -> Self {
        Surroundings {
            info,
            threads: &[],
            interrupts: &[],
            intrusions: &[],
            kernel_delays: &[],
            cross_calls: &[],
            throttled: &[],
            counters: &[],
            process_counters: &[],
            periods: &[],
            long_sums: &[],
            over_budget: &[],
            sums: &[],
        }
    }
}

/// Takes stalls one by one.
#[derive(Debug, Default)]
pub struct Collector {
    cases: Vec<Case>,
    names: Interner<str>,
    sites: Sites,
    callers: ByStack<Option<Arc<Callers>>>,
    program_functions: ProgramFunctions,
    equal_callers: Interner<Callers>,
    in_allocator: ByStack<bool>,
    kernel_places: ByStack<Option<Arc<str>>>,
    serves_files: ByStack<bool>,
    has_forked: ByStack<bool>,
    /// Of reading and of writing faults.
    fault_waits: ByStack<[Option<FaultWait>; 2]>,
}

impl Collector {
    /// Adds one stall; the order does not matter.
    pub fn add(&mut self, stall: &StallRecord) {
        let case = self.case(stall);
        self.cases.push(case);
        if self.cases.len() >= MOST_CASES + MOST_CASES / 2 {
            self.keep_the_longest();
        }
    }

    /// The evidence: these stalls, and the other parts of their recording.
    pub fn finish(mut self, around: &Surroundings<'_>) -> Evidence {
        if self.cases.len() > MOST_CASES {
            self.keep_the_longest();
        }
        self.cases.sort_by_key(|case| (case.start, case.id));
        let periods = around.periods.iter().map(|period| self.period(period)).collect();
        let sums = around.sums.iter().map(|row| self.sum(row)).collect();
        let slices = slices(&self.cases);
        let cases = joined_slices(self.cases);
        let mut by_thread: FastMap<ThreadKey, Vec<usize>> = FastMap::default();
        for (at, case) in cases.iter().enumerate() {
            by_thread.entry(case.thread).or_default().push(at);
        }
        let mut evidence = Evidence {
            min_stall_ns: around.info.min_stall_ns,
            has_folded: wallprof_model::Loss::OF_FOLDED_WAITS
                .iter()
                .any(|loss| around.info.losses.get(loss.name()).is_some_and(|count| *count > 0)),
            start: around.info.start,
            duration_ns: around.info.end.0.saturating_sub(around.info.start.0),
            knows_who_ran: cases.iter().any(|case| case.ran_ns > 0),
            is_of_all_threads: around.info.is_of_all_threads(),
            cpus: around.info.cpus,
            clock: Some(around.info.clock.clone()).filter(|clock| !clock.anchors().is_empty()),
            threads: around.threads.iter().map(|thread| (thread.info.key, totals(thread))).collect(),
            pods: around.threads.iter().filter_map(|thread| pod_of_container(&thread.info)).collect(),
            left_out: left_out(around.threads, around.info),
            interrupts: around.interrupts.to_vec(),
            intrusions: around.intrusions.to_vec(),
            kernel_delays: around.kernel_delays.to_vec(),
            cross_calls: around.cross_calls.to_vec(),
            throttled: around.throttled.to_vec(),
            machine: Machine::new(around.counters, around.info.cpus),
            process_counters: by_process(around.process_counters, around.threads),
            periods,
            long_sums: around.long_sums.to_vec(),
            has_turns: around.info.has_turns,
            over_budget: around.over_budget.to_vec(),
            sums,
            cases,
            slices,
            by_thread,
        };
        evidence.add_lateness();
        evidence
    }

    fn keep_the_longest(&mut self) {
        // A voluntary wait shows where its thread was, so its length counts.
        let ns = |case: &Case| if case.voluntary { case.duration_ns() } else { case.late_ns() };
        let rank = |case: &Case| (case.voluntary, !case.open, Reverse(ns(case)), case.id);
        self.cases.select_nth_unstable_by_key(MOST_CASES, rank);
        self.cases.truncate(MOST_CASES);
    }

    fn case(&mut self, stall: &StallRecord) -> Case {
        let ran_instead = stall.ran_instead.iter().take(MOST_RAN_INSTEAD);
        Case {
            id: stall.id,
            thread: stall.thread,
            pid: stall.pid,
            comm: self.names.get(Arc::clone(&stall.comm)),
            reason: stall.reason,
            meaning: stall.meaning.clone(),
            wait: stall.wait_id,
            has_slices: false,
            voluntary: stall.voluntary,
            open: stall.open,
            start: stall.start,
            end: stall.end,
            runnable_ns: stall.runnable_ns,
            last_runnable_ns: stall.runnable_ns,
            yielded: stall.reason == StallReason::Preempted && stall.user.as_ref().is_some_and(is_yield),
            asked_ns: stall.asked_ns,
            priority: stall.priority,
            overslept_ns: stall.overslept_ns(),
            cpu: stall.cpu,
            syscall: stall.syscall.clone().map(|name| self.names.get(name)),
            site: self.sites.of(stall.user.as_ref(), stall.kernel.as_ref()),
            callers: self.callers(stall.user.as_ref()),
            in_allocator: is_for_a_word(stall)
                && stall.user.as_ref().is_some_and(|user| self.in_allocator.get(user, is_in_allocator)),
            ran_instead: ran_instead.map(|(thread, ns)| (self.party(thread), *ns)).collect(),
            ran_ns: stall.ran_instead.iter().fold(0, |sum, (_, ns)| sum.saturating_add(*ns)),
            outside_ns: outside_ns(stall),
            waker: stall.waker.as_ref().map(|waker| Woken {
                by: waker.thread.as_ref().map(|thread| self.party(thread)),
                title: waker.thread.as_ref().and_then(|thread| self.title(thread)),
                site: self.sites.of(waker.user.as_ref(), waker.kernel.as_ref()),
                serves_files: waker
                    .kernel
                    .as_ref()
                    .is_some_and(|kernel| self.serves_files.get(kernel, is_answer_of_file_server)),
                has_forked: waker
                    .kernel
                    .as_ref()
                    .is_some_and(|kernel| self.has_forked.get(kernel, is_end_of_fork)),
            }),
            owner_callers: self.callers(stall.owner_sample.as_ref().map(|(_, stack)| stack)),
            lock: stall.lock.as_ref().map(|lock| Held {
                address: lock.address,
                owner: lock.owner.as_ref().map(|owner| self.party(owner)),
                title: lock.owner.as_ref().and_then(|owner| self.title(owner)),
            }),
            fault: stall.fault.as_ref().map(|fault| self.page_fault(fault, stall.kernel.as_ref())),
            first_call: self.first_call(stall),
            peer: stall.peer.clone(),
            file: stall.file.as_ref().map(|file| self.names.get(file.path.as_str())),
            kernel_place: stall.kernel.as_ref().and_then(|kernel| {
                self.kernel_places.get(kernel, |kernel| kernel_place(kernel).map(|name| self.names.get(name)))
            }),
        }
    }

    fn callers(&mut self, user: Option<&ResolvedStack>) -> Option<Arc<Callers>> {
        let Collector { callers, program_functions, equal_callers, sites, .. } = self;
        let find = |user: &ResolvedStack| {
            Callers::of(user, program_functions, sites.roles()).map(|found| equal_callers.get(found))
        };
        callers.get(user?, find)
    }

    fn period(&mut self, period: &LongPeriod) -> Period {
        let LongPeriod { thread, start, end, ran_ns, ref samples } = *period;
        let is_running = period.is_running();
        let samples = samples.iter().filter_map(|(stack, ns)| Some((self.callers(Some(stack))?, *ns)));
        Period { thread, start, end, ran_ns, is_running, samples: samples.collect() }
    }

    fn sum(&mut self, row: &SumRow) -> Sum {
        let call = row.kernel.as_ref().and_then(called).map(str::to_owned);
        let site = self.sites.of(row.user.as_ref(), row.kernel.as_ref());
        let callers = matches!(row.loss, Loss::Usual).then(|| self.callers(row.user.as_ref())).flatten();
        let SumRow { thread, ref loss, ns, count, .. } = *row;
        Sum { thread, loss: loss.clone(), site, call, callers, ns, count }
    }

    fn page_fault(&mut self, fault: &Fault, kernel: Option<&ResolvedStack>) -> PageFault {
        let waits = kernel.filter(|_| !fault.major).map(|kernel| {
            self.fault_waits.get(kernel, |kernel| [false, true].map(|store| FaultWait::of(kernel, store)))
        });
        let is_store = fault.access == Some(Access::Write);
        PageFault {
            wait: waits.and_then(|waits| waits[usize::from(is_store)]),
            major: fault.major,
            access: fault.access,
            file: fault.file.as_deref().map(|file| self.names.get(file)),
            offset: fault.file_offset,
        }
    }

    fn first_call(&mut self, stall: &StallRecord) -> Option<Arc<FirstCall>> {
        let binding = stall.binding.as_ref()?;
        let callers = stall.user.as_ref().and_then(|stack| stack.frames.get(binding.depth..));
        let end = stall.user.as_ref().map_or(StackEnd::NoMappings, |stack| stack.end);
        let callers = callers.map(|frames| ResolvedStack { frames: frames.into(), end });
        Some(Arc::new(FirstCall {
            symbol: binding.symbol.as_deref().map(|symbol| self.names.get(symbol)),
            library: binding.library.as_deref().map(|path| self.names.get(site::base_name(path))),
            site: self.sites.of(callers.as_ref(), None),
        }))
    }

    fn party(&mut self, thread: &ThreadRef) -> Party {
        let ThreadRef { key, pid, tid, .. } = *thread;
        Party { key, pid, tid, comm: self.names.get(thread.comm.as_str()) }
    }

    fn title(&mut self, thread: &ThreadRef) -> Option<Arc<str>> {
        thread.title.as_deref().map(|title| self.names.get(title))
    }
}

impl Evidence {
    /// The shortest stall by the user's choice, ns: limits are multiples of it.
    pub(super) fn unit_ns(&self) -> u64 {
        self.min_stall_ns.max(LEAST_UNIT_NS)
    }

    /// Waits shorter than this are in sums alone, ns.
    pub(super) fn min_stall_ns(&self) -> u64 {
        self.min_stall_ns
    }

    pub(super) fn start(&self) -> MonoNs {
        self.start
    }

    /// From the start to the end of the recording, ns.
    pub(super) fn duration_ns(&self) -> u64 {
        self.duration_ns
    }

    /// Whether every thread of the machine is recorded (`-a`).
    pub(super) fn is_of_all_threads(&self) -> bool {
        self.is_of_all_threads
    }

    /// Whether no thread had the CPU in the last `waited_ns` of a stall, in which its thread waited for one.
    /// The kernel side knows the last 256 switches of a CPU, and eight threads: of a long wait on a busy one it
    /// knows a part, but never nothing: a hundredth takes fewer switches. A thread that had the CPU since before the
    /// recording is in no list.
    pub(super) fn had_no_thread(&self, case: &Case, waited_ns: u64) -> bool {
        let since_the_start = case.end.0.saturating_sub(waited_ns) <= self.start.0;
        let is_known = self.knows_who_ran && !case.open && !since_the_start;
        is_known && (case.ran_ns == 0 || !is_share(case.ran_ns, 100, waited_ns))
    }

    /// `None`: the time of day is not known.
    pub(super) fn clock(&self) -> Option<&ClockMap> {
        self.clock.as_ref()
    }

    /// 0: not known.
    pub(super) fn cpus(&self) -> u32 {
        self.cpus
    }

    /// The stalls that findings may be about, by start, the voluntary ones included.
    pub(super) fn cases(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(|case| !self.is_left_out(case.thread))
    }

    /// All stalls by start.
    pub(super) fn all_cases(&self) -> &[Case] {
        &self.cases
    }

    /// All stalls as waits for a CPU: a wait in slices has one of these at the end of each.
    pub(super) fn cpu_waits(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(|case| !case.has_slices).chain(&self.slices)
    }

    /// Whether long waits may be in the sums alone, because there were too many.
    pub(super) fn has_folded(&self) -> bool {
        self.has_folded
    }

    /// Whether no finding is about this thread's lateness.
    pub(super) fn is_left_out(&self, thread: ThreadKey) -> bool {
        self.left_out.contains(&thread)
    }

    pub(super) fn interrupts(&self) -> &[InterruptRow] {
        &self.interrupts
    }

    /// The program of a case's thread: a service may consist of many processes of one program.
    pub(super) fn program(&self, case: &Case) -> Arc<str> {
        self.thread(case.thread).map_or_else(|| case.comm.clone(), |thread| thread.process.clone())
    }

    /// The noise on guarded CPUs.
    pub(super) fn intrusions(&self) -> &[IntrusionRow] {
        &self.intrusions
    }

    /// Delays in which the kernel did something for threads.
    pub(super) fn kernel_delays(&self) -> &[KernelDelayRow] {
        &self.kernel_delays
    }

    /// Functions called on other CPUs.
    pub(super) fn cross_calls(&self) -> &[CrossCallRow] {
        &self.cross_calls
    }

    /// CPU quotas that were used up.
    pub(super) fn throttled(&self) -> &[ThrottledRow] {
        &self.throttled
    }

    /// The control group of a stalled thread's process whose memory was at its limit meanwhile.
    pub(super) fn full_memory_group(&self, case: &Case) -> Option<FullGroup<'_>> {
        let full = full_group(self.process_counters.get(&case.pid)?, case.start, case.end)?;
        Some(FullGroup { pod: self.pod(full.name), ..full })
    }

    /// The limits of control groups of a stalled thread's process that were met meanwhile on a disk.
    pub(super) fn held_back(&self, case: &Case) -> impl Iterator<Item = HeldBack<'_>> {
        let counters = self.process_counters.get(&case.pid).map_or(&[][..], |counters| counters);
        held_back(counters, case.start, case.end).map(|limit| limit.in_pod(|group| self.pod(group)))
    }

    /// The pod of the container that a control group belongs to, by its path.
    pub(super) fn pod(&self, cgroup: &str) -> Option<&str> {
        Some(self.pods.get(&container_from_cgroup(cgroup)?)?)
    }

    /// What a stalled thread's process did not receive meanwhile.
    pub(super) fn backlog(&self, case: &Case) -> Option<Backlog> {
        backlog(self.process_counters.get(&case.pid)?, case.start..case.end)
    }

    /// The other servers for which requests of processes waited that findings may be about.
    pub(super) fn upstreams(&self) -> impl Iterator<Item = Upstream<'_>> {
        let mut pids: Vec<&u32> = self.process_counters.keys().collect();
        pids.sort_unstable();
        let all = pids.into_iter().flat_map(|pid| upstreams(&self.process_counters[pid]));
        all.filter(|upstream| !self.is_left_out(upstream.thread))
    }

    /// The connections that waited for processes that findings may be about.
    pub(super) fn accepts(&self) -> impl Iterator<Item = Accepts<'_>> {
        let mut pids: Vec<&u32> = self.process_counters.keys().collect();
        pids.sort_unstable();
        let all = pids.into_iter().flat_map(|pid| accepts(&self.process_counters[pid]));
        all.filter(|accepts| !self.is_left_out(accepts.thread))
    }

    /// The packets that were dropped at sockets of processes that findings may be about.
    pub(super) fn drops(&self) -> impl Iterator<Item = Drops<'_>> {
        let mut pids: Vec<&u32> = self.process_counters.keys().collect();
        pids.sort_unstable();
        let all = pids.into_iter().flat_map(|pid| drops(&self.process_counters[pid]));
        all.filter(|drops| !self.is_left_out(drops.thread))
    }

    /// All stalls of a thread, by start.
    pub(super) fn cases_of(&self, thread: ThreadKey) -> impl Iterator<Item = &Case> {
        self.during(thread, MonoNs(0), MonoNs(u64::MAX))
    }

    /// Long busy periods of threads that findings may be about.
    pub(super) fn periods(&self) -> impl Iterator<Item = &Period> {
        self.periods.iter().filter(|period| !self.is_left_out(period.thread))
    }

    /// All long busy periods of a thread, by length.
    pub(super) fn long_sums(&self, thread: ThreadKey) -> impl Iterator<Item = &LongSum> {
        self.long_sums.iter().filter(move |sum| sum.thread == thread)
    }

    /// Whether each busy period is one turn of a loop.
    pub(super) fn has_turns(&self) -> bool {
        self.has_turns
    }

    /// Of threads that findings may be about.
    pub(super) fn sums(&self) -> impl Iterator<Item = &Sum> {
        self.sums.iter().filter(|sum| !self.is_left_out(sum.thread))
    }

    pub(super) fn over_budget(&self) -> &[OverBudget] {
        &self.over_budget
    }

    pub(super) fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(super) fn threads(&self) -> impl Iterator<Item = &ThreadTotals> {
        self.threads.values()
    }

    pub(super) fn threads_by_key(&self) -> impl Iterator<Item = (&ThreadKey, &ThreadTotals)> {
        self.threads.iter()
    }

    pub(super) fn thread(&self, key: ThreadKey) -> Option<&ThreadTotals> {
        self.threads.get(&key)
    }

    /// The part of `from..to` in which the thread was there.
    pub(super) fn lived(&self, key: ThreadKey, from: MonoNs, to: MonoNs) -> (MonoNs, MonoNs) {
        let Some(thread) = self.threads.get(&key) else { return (from, to) };
        let from = from.max(thread.start);
        (from, to.min(thread.end).max(from))
    }

    /// The container of a thread, by its pod, or as `docker ps` shows it. `None`: it is in none, or not recorded.
    pub(super) fn container(&self, thread: ThreadKey) -> Option<&Arc<str>> {
        self.threads.get(&thread)?.container.as_ref()
    }

    /// Whether the recorded threads are in several containers, those outside of any being one.
    pub(super) fn is_of_several_containers(&self) -> bool {
        let mut containers = self.threads.values().map(|thread| &thread.container);
        let first = containers.next();
        containers.any(|container| Some(container) != first)
    }

    /// The threads of a process, by key.
    pub(super) fn threads_of(&self, pid: u32) -> Vec<ThreadKey> {
        let of_it = self.threads.iter().filter(|(_, thread)| thread.pid == pid);
        let mut threads: Vec<ThreadKey> = of_it.map(|(key, _)| *key).collect();
        threads.sort_unstable();
        threads
    }

    /// The stalls of a thread that overlap `from..to`, by start. They are disjoint: a wait in a page fault
    /// belongs to the fault.
    pub(super) fn during(&self, thread: ThreadKey, from: MonoNs, to: MonoNs) -> impl Iterator<Item = &Case> {
        let indices = self.by_thread.get(&thread).map_or(&[][..], Vec::as_slice);
        let first = indices.partition_point(|&at| self.cases[at].end <= from);
        let cases = indices[first..].iter().map(|&at| &self.cases[at]);
        cases.take_while(move |case| case.start < to).filter(move |case| case.overlap_ns(from, to) > 0)
    }

    /// The time for which the hypervisor may not have run the thread while it ran, ns: the steal time then of one
    /// of the CPUs on which its stalls before, during and after that ended, whichever has most.
    pub(super) fn most_stolen_ns(&self, thread: ThreadKey, from: MonoNs, to: MonoNs) -> u64 {
        let indices = self.by_thread.get(&thread).map_or(&[][..], Vec::as_slice);
        let first = indices.partition_point(|&at| self.cases[at].end <= from).saturating_sub(1);
        let after = indices.partition_point(|&at| self.cases[at].start < to);
        let around = indices.iter().take(after + 1).skip(first);
        let stolen_ns = |cpu| {
            let intervals = self.machine.steal_intervals(cpu, from, to);
            intervals.fold(0u64, |sum, (_, interval)| {
                sum.saturating_add(interval.ns.min(interval.overlap_ns(from, to)))
            })
        };
        around.filter_map(|&at| self.cases[at].cpu).map(stolen_ns).max().unwrap_or(0)
    }

    fn add_lateness(&mut self) {
        for case in self.cases.iter().filter(|case| case.is_late()) {
            if let Some(thread) = self.threads.get_mut(&case.thread) {
                thread.late_ns = thread.late_ns.saturating_add(case.late_ns());
            }
        }
    }
}

/// For how long threads had a stalled thread's CPU that are neither recorded nor of its own process.
fn outside_ns(stall: &StallRecord) -> u64 {
    let is_outside = |thread: &ThreadRef| thread.key.is_none() && thread.pid != stall.pid;
    let outside = stall.ran_instead.iter().filter(|(thread, _)| is_outside(thread));
    outside.fold(0, |sum, (_, ns)| sum.saturating_add(*ns))
}

fn by_process(tracks: &[CounterTrack], threads: &[Thread]) -> HashMap<u32, Vec<CounterTrack>> {
    let pids: HashMap<ThreadKey, u32> =
        threads.iter().map(|thread| (thread.info.key, thread.info.pid)).collect();
    let mut processes: HashMap<u32, Vec<CounterTrack>> = HashMap::new();
    for track in tracks {
        if let Some(pid) = track.counter.thread.and_then(|thread| pids.get(&thread)) {
            processes.entry(*pid).or_default().push(track.clone());
        }
    }
    processes
}

/// Of waits in several slices, these.
fn slices(cases: &[Case]) -> Vec<Case> {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    cases.iter().filter_map(|case| case.wait).for_each(|wait| *counts.entry(wait).or_default() += 1);
    let is_slice = |case: &&Case| case.wait.is_some_and(|wait| counts[&wait] > 1);
    let slice = |case: &Case| Case { asked_ns: None, overslept_ns: None, ..case.clone() };
    cases.iter().filter(is_slice).map(slice).collect()
}

/// Cases by start, the slices of each wait as one: the first one, with the end and the waker of the last.
fn joined_slices(cases: Vec<Case>) -> Vec<Case> {
    let mut first: HashMap<u64, usize> = HashMap::new();
    let mut joined: Vec<Case> = Vec::with_capacity(cases.len());
    for case in cases {
        let known = case.wait.map(|wait| *first.entry(wait).or_insert(joined.len()));
        match known.and_then(|at| joined.get_mut(at)) {
            Some(wait) => {
                wait.has_slices = true;
                wait.end = wait.end.max(case.end);
                wait.runnable_ns = wait.runnable_ns.saturating_add(case.runnable_ns);
                wait.last_runnable_ns = case.runnable_ns;
                wait.ran_ns = wait.ran_ns.saturating_add(case.ran_ns);
                wait.outside_ns = wait.outside_ns.saturating_add(case.outside_ns);
                wait.ran_instead = sum_by_party(&wait.ran_instead, &case.ran_instead);
                (wait.waker, wait.open) = (case.waker, case.open);
                (wait.asked_ns, wait.overslept_ns) = (None, None);
            }
            None => joined.push(case),
        }
    }
    joined
}

fn sum_by_party(one: &[(Party, u64)], other: &[(Party, u64)]) -> Box<[(Party, u64)]> {
    let mut sums = Tally::default();
    one.iter().chain(other).for_each(|(party, ns)| sums.add_ref(party, *ns));
    sums.ranked().into_iter().map(|(party, ns)| (party.clone(), ns)).collect()
}

fn pod_of_container(thread: &ThreadInfo) -> Option<(String, String)> {
    Some((thread.container()?, thread.pod_name()?))
}

fn totals(thread: &Thread) -> ThreadTotals {
    ThreadTotals {
        pid: thread.info.pid,
        tid: thread.info.tid,
        comm: thread.info.comm.as_str().into(),
        process: thread.info.process.as_str().into(),
        container: thread.info.container_name().map(Into::into),
        start: thread.start,
        end: thread.end,
        wall_ns: thread.ledger.wall_ns,
        on_cpu_ns: thread.ledger.on_cpu_ns,
        waits_ns: thread.ledger.blocked_ns[usize::from(Reason::Wait.code())],
        late_ns: 0,
    }
}

/// The kernel function that asked for what the thread waits for: the innermost one that is not about waiting
/// itself.
fn kernel_place(kernel: &ResolvedStack) -> Option<&str> {
    let functions = kernel.frames.iter().flat_map(|frame| frame.lines.iter().map(move |line| (frame, line)));
    let mut named = functions.filter_map(|(frame, line)| Some((frame, line, line.symbol.as_deref()?)));
    let place = named.find(|(frame, line, name)| !site::is_plumbing(frame, line) && !is_kernel_lock(name));
    place.map(|(_, _, name)| name)
}

/// The system call of a kernel stack: `fsync` of `__x64_sys_fsync`.
fn called(kernel: &ResolvedStack) -> Option<&str> {
    let functions = kernel.frames.iter().flat_map(|frame| &frame.lines);
    let mut named = functions.filter_map(|line| line.symbol.as_deref());
    named.find_map(|name| name.split_once("_sys_").map(|(_, call)| call))
}

/// The kernel's functions that take a lock or sleep for it: mutexes, semaphores of all kinds.
fn is_kernel_lock(symbol: &str) -> bool {
    const PARTS: [&str; 7] = ["mutex_", "rwsem_", "down_", "__down", "percpu_", "rt_mutex", "rwlock"];
    PARTS.iter().any(|part| symbol.trim_start_matches('_').starts_with(part.trim_start_matches('_')))
}

/// Whether a wait may be for a lock in the process's memory. An allocator that maps, unmaps or touches memory waits for
/// locks of the kernel.
fn is_for_a_word(stall: &StallRecord) -> bool {
    stall.fault.is_none() && stall.syscall.as_deref().is_none_or(|call| call == "futex")
}

/// Whether the innermost function gives the CPU to others.
fn is_yield(user: &ResolvedStack) -> bool {
    let innermost = user.frames.first().and_then(|frame| frame.lines.first());
    innermost.and_then(|line| line.symbol.as_deref()).is_some_and(|symbol| YIELDS.contains(&symbol))
}

/// Whether a function of the allocator is between the program's innermost function and the kernel.
fn is_in_allocator(user: &ResolvedStack) -> bool {
    for frame in user.frames.iter().filter(|frame| frame.kind != FrameKind::Kernel) {
        if frame.module.as_deref().is_some_and(is_allocator_library) {
            return true;
        }
        for line in &frame.lines {
            if line.symbol.as_deref().is_some_and(is_allocator_symbol) {
                return true;
            }
            if !site::is_plumbing(frame, line) {
                return false;
            }
        }
    }
    false
}

/// Those of glibc, C++, Rust, jemalloc, tcmalloc and mimalloc.
pub(super) fn is_allocator_symbol(symbol: &str) -> bool {
    const NAMES: [&str; 18] = [
        "malloc",
        "free",
        "calloc",
        "realloc",
        "reallocarray",
        "memalign",
        "posix_memalign",
        "aligned_alloc",
        "valloc",
        "cfree",
        "mallinfo",
        "mallinfo2",
        "malloc_trim",
        "operator new",
        "operator new[]",
        "operator delete",
        "operator delete[]",
        "sysmalloc",
    ];
    const PREFIXES: [&str; 14] = [
        "__libc_malloc",
        "__libc_free",
        "__libc_calloc",
        "__libc_realloc",
        "__libc_memalign",
        "_int_malloc",
        "_int_free",
        "_int_realloc",
        "arena_get",
        "__rust_alloc",
        "je_",
        "tc_malloc",
        "tcmalloc::",
        "mi_malloc",
    ];
    let plain = symbol.split(['(', '@']).next().unwrap_or(symbol);
    NAMES.contains(&plain) || PREFIXES.iter().any(|prefix| symbol.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, at, case, lock_case, stack};
    use super::*;

    #[test]
    fn the_stalls_of_a_thread_are_found_by_time() {
        let mut fixture = Fixture::new();
        for id in 1..=5 {
            fixture.stall(lock_case(id, 1, 2, 2_000_000));
        }
        let evidence = fixture.evidence();
        let all: Vec<(u64, u64)> =
            evidence.all_cases().iter().map(|case| (case.start.0, case.end.0)).collect();
        let ids = |from: u64, to: u64| -> Vec<u64> {
            evidence.during(ThreadKey(1), MonoNs(from), MonoNs(to)).map(|case| case.id).collect()
        };
        assert_eq!(ids(0, u64::MAX), [1, 2, 3, 4, 5]);
        assert_eq!(ids(all[1].1 - 1, all[2].0 + 1), [2, 3]);
        assert_eq!(ids(all[1].1, all[2].0), [0; 0]);
        assert_eq!(evidence.during(ThreadKey(9), MonoNs(0), MonoNs(u64::MAX)).count(), 0);
        assert_eq!(evidence.thread(ThreadKey(1)).map(|thread| thread.late_ns), Some(10_000_000));
    }

    #[test]
    fn overslept_waits_make_a_thread_late_by_the_time_after_their_timeouts() {
        let sleep = |id| StallRecord {
            voluntary: false,
            asked_ns: Some(20_000_000),
            ..at(id * 30_000_000, case(id, 1, StallReason::Blocked(Reason::Sleep), 20_140_000))
        };
        let late_ns = |stalls: &[StallRecord]| {
            let mut fixture = Fixture::new();
            stalls.iter().for_each(|stall| fixture.stall(stall.clone()));
            fixture.evidence().thread(ThreadKey(1)).map(|thread| thread.late_ns)
        };
        let mut stalls: Vec<_> = (1..=465).map(sleep).collect();
        stalls.push(at(0, lock_case(466, 1, 2, 2_000_000)));
        assert_eq!(late_ns(&stalls), Some(465 * 140_000 + 2_000_000));
        assert_eq!(Fixture::only_finding(stalls.clone()).rule, "lock-wait", "not negligible");
        let lock = StallReason::Blocked(Reason::Lock);
        let locks = stalls.into_iter().map(|stall| StallRecord { reason: lock, ..stall });
        assert_eq!(late_ns(&locks.collect::<Vec<_>>()), Some(465 * 20_140_000 + 2_000_000));
    }

    #[test]
    fn the_allocator_is_recognised_below_the_program_only() {
        let inside = [
            &["__lll_lock_wait_private", "malloc", "operator new(unsigned long)", "parse"][..],
            &["__lll_lock_wait_private", "_int_free", "release"],
            &["syscall", "__rust_alloc", "alloc::vec::Vec<T>::push", "parse"],
            &[
                "syscall",
                "base::internal::SpinLockDelay(int volatile*, int, int)",
                "SpinLock::SlowLock()",
                "tcmalloc::CentralFreeList::Populate()",
                "parse",
            ],
        ];
        for symbols in inside {
            assert!(is_in_allocator(&stack(symbols)), "{symbols:?}");
        }
        // A stripped jemalloc has no names inside.
        let jemalloc = |module: &str| {
            let user = stack(&["__lll_lock_wait", "pthread_mutex_lock", "", "parse"]);
            let mut frames = user.frames.to_vec();
            Arc::make_mut(&mut frames[2]).module = Some(module.into());
            ResolvedStack { frames: frames.into(), ..user }
        };
        assert!(is_in_allocator(&jemalloc("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2")));
        assert!(!is_in_allocator(&jemalloc("/usr/lib/x86_64-linux-gnu/libpq.so.5")));
        for symbols in [&["__lll_lock_wait", "pthread_mutex_lock", "parse"][..], &["parse", "malloc"], &[]] {
            assert!(!is_in_allocator(&stack(symbols)), "{symbols:?}");
        }
    }

    #[test]
    fn longest_stalls_are_kept_and_voluntary_ones_dropped_first() {
        let mut collector = Collector::default();
        let template = lock_case(0, 1, 2, 0);
        let most = MOST_CASES as u64;
        for id in 0..2 * most {
            let voluntary = id % 2 == 1;
            let end = MonoNs(template.start.0 + if voluntary { 1_000_000 } else { id });
            collector.add(&StallRecord { id, voluntary, end, user: None, ..template.clone() });
        }
        assert!(collector.cases.len() < MOST_CASES * 3 / 2);
        let evidence = collector.finish(&Surroundings::of(&RecordingInfo::default()));
        assert_eq!(evidence.all_cases().len(), MOST_CASES);
        let longest_kept = evidence.all_cases().iter().any(|case| case.id == 2 * most - 2);
        assert!(
            longest_kept
                && evidence.all_cases().iter().filter(|case| case.voluntary).count() < MOST_CASES / 2
        );
    }
}
