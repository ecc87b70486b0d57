//! The loaded probes: attach once, arm, read, disarm.

use std::cell::RefCell;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{
    Iter, Link, MapCore, MapFlags, MapHandle, MapType, OpenObject, RingBuffer, RingBufferBuilder,
};
use wallprof_model::MonoNs;

use crate::batch::drain;
use crate::bpf::{
    OpenWallprofSkel, WallprofSkel, WallprofSkelBuilder, constants as c, cross_call_key, cross_call_value,
    guest, guest_key, interrupt_key, latency_key, latency_value, record_from_bytes, sample_key, sample_value,
    second_record, stack_record, stall_record, thread_record, work_record,
};
use crate::clock;
use crate::code_tables::CodeTables;
use crate::code_watch::CodeSide;
use crate::cpu_events::{CpuEvents, clock_period_ns};
use crate::error::ProbeError;
use crate::events::PerfEventSpec;
use crate::features::{Features, KernelTypes};
use crate::plan::{MAX_NAME_GLOBS, ProbeOptions, Targets, UserStacks, left_out};
use crate::sideband::Sideband;
use crate::{cpus, messages, perf, reasons};

/// What the rings hold together, at most. A stall is half a kilobyte.
const RING_BYTES: u32 = 8 << 20;
/// What unwind tables and lists of mappings may take in kernel memory: some fifty million rows.
const TABLE_BYTES: u64 = 256 << 20;
/// Unstacked off-CPU time of one state that a thread may gather before a stack must carry it (`carry_ns`).
const CARRY_NS: u64 = 1_000_000;
/// The same for waits that the thread chose (`voluntary_carry_ns`): a hundred stacks a second tell where it waits for work.
const CHOSEN_CARRY_NS: u64 = 10_000_000;
const SMALLEST_RING: u32 = 256 << 10;
const BIGGEST_RING: u32 = 4 << 20;

/// Records that arrived through the rings since the last look, in the order of each CPU.
#[derive(Default)]
pub struct Inbox {
    pub ended: Vec<thread_record>,
    pub stalls: Vec<stall_record>,
    pub works: Vec<work_record>,
    pub seconds: Vec<second_record>,
}

/// What the kernel side has dropped so far, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    pub losses: [u64; c::LOSSES as usize],
    /// Runs of the probes, and their time: one run in 61 is timed.
    pub probe_runs: u64,
    pub probe_ns: u64,
}

/// A CPU's run queue, added up over the looks that the sampling clock took at it since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunQueue {
    /// Threads that ran or wanted to.
    pub runnable: u64,
    pub looks: u64,
}

/// The names of [`KernelCounts::losses`].
pub const LOSS_NAMES: [&str; c::LOSSES as usize] = [
    "stalls_ring_full",
    "stacks_full",
    "samples_full",
    "latency_full",
    "interrupts_full",
    "threads_no_memory",
    "stack_scratch_busy",
    "sleeps_without_wakeup",
    "interrupt_depth",
    "waits_folded",
    "switches_unseen",
    "guests_full",
    "cross_calls_full",
];

pub struct Probes {
    skeleton: WallprofSkel<'static>,
    features: Features,
    _links: Vec<Link>,
    cpu_events: CpuEvents,
    create_states: Link,
    snapshot: Link,
    open_waits: Link,
    rings: RingBuffer<'static>,
    inbox: Rc<RefCell<Inbox>>,
    bytes: Vec<u8>,
}

impl Probes {
    /// Loads and attaches everything, disarmed. The sideband is open before the first thread is looked at. The second
    /// value keeps the walker informed about code, on whatever thread.
    pub fn load(options: &ProbeOptions) -> Result<(Self, CodeSide), ProbeError> {
        let types = KernelTypes::read()?;
        let features = types.features();
        let online = cpus::online();
        let mut named = options.cpus.iter().flatten().chain(&options.guarded);
        if let Some(cpu) = named.find(|cpu| !online.contains(cpu)) {
            return Err(ProbeError::NoSuchCpu { cpu: *cpu });
        }
        let sideband = Sideband::open(&online).map_err(|error| not_permitted("read perf events", &error))?;
        let skeleton = load_skeleton(options, &types, features)?;
        let (rings, inbox) = make_rings(&skeleton)?;
        let code =
            code_side(&skeleton, sideband).map_err(|error| reading("the maps of unwind tables", error))?;
        let mut attached = Attached::default();
        attached.attach_programs(&skeleton)?;
        let cpu_events = CpuEvents::attach(&skeleton, options, &online)?;
        attached.attach_faults(&skeleton)?;
        let iterator = |program: &libbpf_rs::ProgramMut<'_>| {
            program.attach().map_err(|error| not_attached(program, &error))
        };
        let (create_states, snapshot, open_waits) = (
            iterator(&skeleton.progs.create_states)?,
            iterator(&skeleton.progs.snapshot)?,
            iterator(&skeleton.progs.open_waits)?,
        );
        let mut probes = Probes {
            skeleton,
            features,
            _links: attached.links,
            cpu_events,
            create_states,
            snapshot,
            open_waits,
            rings,
            inbox,
            bytes: Vec::new(),
        };
        probes.find_targets(options)?;
        Ok((probes, code))
    }

    pub fn features(&self) -> Features {
        self.features
    }

    /// Gives every thread that is to be recorded its state, also those that are born meanwhile.
    fn find_targets(&mut self, options: &ProbeOptions) -> Result<(), ProbeError> {
        for (id, kinds) in options.targets.start_ids() {
            self.skeleton
                .maps
                .targets
                .update(&id.to_ne_bytes(), &[kinds], MapFlags::ANY)
                .map_err(|_| ProbeError::NoMemory { what: "the list of targets" })?;
        }
        self.set_finding_targets(true);
        let found = iterate(&self.create_states, &mut self.bytes);
        self.set_finding_targets(false);
        found
    }

    fn set_finding_targets(&mut self, wanted: bool) {
        if let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() {
            bss.finding_targets = wanted.into();
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// How many threads have begun to end whose last record is still to come.
    pub fn ending_threads(&self) -> u32 {
        self.skeleton.maps.bss_data.as_deref().map_or(0, |bss| bss.ending_threads)
    }

    /// Gives threads their state whose process has got a name that is asked for, or has moved into the
    /// recorded cgroup.
    pub fn follow_processes(&mut self) -> Result<(), ProbeError> {
        let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() else { return Ok(()) };
        if std::mem::take(&mut bss.rescan_wanted) == 0 {
            return Ok(());
        }
        iterate(&self.create_states, &mut self.bytes)
    }

    /// Kernel text whose uninterruptible sleepers have a reason: [`crate::reasons::KERNEL_SITES`] resolved to
    /// `[from, to)`, with the reason's code. Beyond the first 64 they are left out.
    pub fn set_sites(&mut self, sites: &[(u64, u64, u8)]) {
        let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() else { return };
        for (site, (from, to, reason)) in bss.sites.iter_mut().zip(sites) {
            (site.from, site.to, site.reason) = (*from, *to, u64::from(*reason));
        }
        bss.site_count = sites.len().min(c::MAX_SITES as usize) as u32;
    }

    /// Kernel text that runs softirqs for the current task, as `[from, to)`: the functions of
    /// [`crate::reasons::TASK_SOFTIRQS`]. Without it the threads that wake others over loopback have no name.
    pub fn set_task_softirqs(&mut self, ranges: &[(u64, u64)]) {
        let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() else { return };
        for (range, (from, to)) in bss.task_softirqs.iter_mut().zip(ranges) {
            (range.from, range.to) = (*from, *to);
        }
        bss.task_softirq_count = ranges.len().min(c::MAX_TASK_SOFTIRQS as usize) as u32;
    }

    /// Starts the recording; the time from which on it counts. `epoch_offset` is the wall clock's distance from
    /// CLOCK_MONOTONIC, ns: it says where seconds begin.
    pub fn arm(&mut self, epoch_offset: u64) -> MonoNs {
        self.set_epoch_offset(epoch_offset);
        let now = clock::mono_now();
        if let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() {
            bss.last_snapshot = 0;
            bss.armed_at = now.0;
            // Last: a window opens what armed_at begins.
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            bss.window = u64::MAX >> 1;
        }
        now
    }

    /// Ends the recording; what happens later is not counted.
    pub fn disarm(&mut self) -> MonoNs {
        let now = clock::mono_now();
        if let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() {
            bss.window = now.0.saturating_sub(bss.armed_at);
        }
        now
    }

    /// Tells the kernel side where seconds begin, after a step of the wall clock.
    pub fn set_epoch_offset(&mut self, epoch_offset: u64) {
        if let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() {
            bss.epoch_offset = epoch_offset;
        }
    }

    /// From now on only waits this long are sent one by one, the ones a thread chose and the others.
    pub fn set_thresholds(&mut self, stall_ns: u64, voluntary_stall_ns: u64) {
        if let Some(data) = self.skeleton.maps.data_data.as_deref_mut() {
            data.stall_ns = stall_ns;
            data.voluntary_stall_ns = voluntary_stall_ns;
        }
    }

    /// From now on waits and faults this long are stalls, if they are not below other thresholds.
    pub fn set_min_stall(&mut self, min_stall_ns: u64) {
        if let Some(data) = self.skeleton.maps.data_data.as_deref_mut() {
            data.min_stall_ns = min_stall_ns;
        }
    }

    /// How many stacks are taken: one sample in `stride` gets one and stands for all of them, waits from `stack_ns` on
    /// get one each, and shorter ones when they have gathered some of that.
    pub fn set_pace(&mut self, stride: u32, stack_ns: u64) {
        if let Some(data) = self.skeleton.maps.data_data.as_deref_mut() {
            let stride = u64::from(stride.max(1));
            data.sample_stride = stride;
            data.stack_ns = stack_ns;
            data.carry_ns = CARRY_NS.saturating_mul(stride);
            data.voluntary_carry_ns = CHOSEN_CARRY_NS.saturating_mul(stride);
        }
    }

    /// From now on each second of a thread is sent when it is over, or none is: for who takes snapshots less often than
    /// every second.
    pub fn tell_seconds(&mut self, wanted: bool) {
        if let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() {
            bss.emit_seconds = wanted.into();
        }
    }

    /// Waits until a ring fills up or the time is over, and takes what the rings hold.
    pub fn poll(&mut self, timeout: Duration, take: impl FnOnce(&mut Inbox)) -> Result<(), ProbeError> {
        let interrupted = |error: &libbpf_rs::Error| error.kind() == libbpf_rs::ErrorKind::Interrupted;
        match self.rings.poll(timeout).and_then(|()| self.rings.consume()) {
            Err(error) if !interrupted(&error) => {
                Err(ProbeError::Reading { what: "the stall rings", error: std::io::Error::other(error) })
            }
            _ => {
                take(&mut self.inbox.borrow_mut());
                Ok(())
            }
        }
    }

    /// Hands over a record of each thread with news since the last snapshot.
    pub fn snapshot(&mut self, mut take: impl FnMut(&thread_record)) -> Result<(), ProbeError> {
        let began = clock::mono_now().0;
        iterate(&self.snapshot, &mut self.bytes)?;
        for bytes in self.bytes.chunks_exact(size_of::<thread_record>()) {
            if let Some(record) = record_from_bytes(bytes) {
                take(&record);
            }
        }
        if let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() {
            bss.last_snapshot = began;
        }
        Ok(())
    }

    /// Hands over every wait older than `older_than_ns` that was not handed over before, with stacks.
    pub fn open_waits(
        &mut self,
        older_than_ns: u64,
        mut take: impl FnMut(&stall_record),
    ) -> Result<(), ProbeError> {
        if let Some(data) = self.skeleton.maps.data_data.as_deref_mut() {
            data.open_after_ns = older_than_ns;
        }
        iterate(&self.open_waits, &mut self.bytes)?;
        for bytes in self.bytes.chunks_exact(size_of::<stall_record>()) {
            if let Some(record) = record_from_bytes(bytes) {
                take(&record);
            }
        }
        Ok(())
    }

    /// Hands over rows of samples; those for which `take` returns true are deleted: past seconds only.
    pub fn drain_samples(
        &self,
        take: impl FnMut(&sample_key, &sample_value) -> bool,
    ) -> Result<(), ProbeError> {
        drain(&self.skeleton.maps.samples.as_fd(), take).map_err(|error| reading("samples", error))
    }

    pub fn drain_latency(
        &self,
        take: impl FnMut(&latency_key, &latency_value) -> bool,
    ) -> Result<(), ProbeError> {
        drain(&self.skeleton.maps.latency.as_fd(), take).map_err(|error| reading("latencies", error))
    }

    pub fn drain_interrupts(
        &self,
        take: impl FnMut(&interrupt_key, &latency_value) -> bool,
    ) -> Result<(), ProbeError> {
        drain(&self.skeleton.maps.interrupts.as_fd(), take).map_err(|error| reading("interrupts", error))
    }

    /// What ran on guarded CPUs and interrupted them.
    pub fn drain_guests(&self, take: impl FnMut(&guest_key, &guest) -> bool) -> Result<(), ProbeError> {
        drain(&self.skeleton.maps.guests.as_fd(), take).map_err(|error| reading("guarded CPUs", error))
    }

    /// Runs of the probes on each CPU so far, and their ns, in the order of the CPUs' numbers.
    pub fn runs_by_cpu(&self) -> Result<Vec<(u64, u64)>, ProbeError> {
        let values = self.skeleton.maps.cpus.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
        let values = values.map_err(|error| reading("own cost", std::io::Error::other(error)))?;
        // struct cpu_state: switch_ns, runs, next_timed, timed_ns.
        let field = |state: &[u8], at: usize| state.get(at * 8..).and_then(record_from_bytes::<u64>);
        let cost = |state: &Vec<u8>| (field(state, 1).unwrap_or(0), field(state, 3).unwrap_or(0));
        Ok(values.iter().flatten().map(cost).collect())
    }

    pub fn drain_cross_calls(
        &self,
        take: impl FnMut(&cross_call_key, &cross_call_value) -> bool,
    ) -> Result<(), ProbeError> {
        drain(&self.skeleton.maps.cross_calls.as_fd(), take)
            .map_err(|error| reading("calls on other CPUs", error))
    }

    /// Hands over the distinct stacks met since the last time; all are deleted, being named by their content.
    pub fn drain_stacks(&self, mut take: impl FnMut(u64, &stack_record)) -> Result<(), ProbeError> {
        let keep = |id: &u64, stack: &stack_record| {
            take(*id, stack);
            true
        };
        drain(&self.skeleton.maps.stacks.as_fd(), keep).map_err(|error| reading("stacks", error))
    }

    /// How long the run queues were whenever the sampling clock looked, by CPU.
    pub fn run_queues(&self) -> Result<Vec<RunQueue>, ProbeError> {
        let values = self.skeleton.maps.run_queues.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
        let values = values.map_err(|error| reading("run queues", std::io::Error::other(error)))?;
        let queue = |value: &Vec<u8>| {
            // struct run_queue: runnable, looks.
            let field = |at: usize| value.get(at * 8..).and_then(record_from_bytes::<u64>).unwrap_or(0);
            RunQueue { runnable: field(0), looks: field(1) }
        };
        Ok(values.iter().flatten().map(queue).collect())
    }

    /// Attaches to CPUs that have come online, and lets go of those that are gone. How many came: what happened there
    /// until now is in no sample.
    pub fn follow_cpus(&mut self) -> Result<usize, ProbeError> {
        let Some(online) = cpus::read_online() else { return Ok(0) };
        self.cpu_events.follow(&self.skeleton, &online)
    }

    /// Runs of the probes so far, on all CPUs.
    pub fn runs(&self) -> Result<u64, ProbeError> {
        Ok(self.runs_by_cpu()?.into_iter().map(|(runs, _)| runs).sum())
    }

    pub fn counts(&self) -> Result<KernelCounts, ProbeError> {
        let mut counts = KernelCounts::default();
        let maps = &self.skeleton.maps;
        let by_cpu = maps.losses.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
        for value in by_cpu.map_err(|error| reading("losses", std::io::Error::other(error)))?.iter().flatten()
        {
            let lost = value.chunks_exact(size_of::<u64>()).filter_map(record_from_bytes::<u64>);
            counts.losses.iter_mut().zip(lost).for_each(|(sum, lost)| *sum += lost);
        }
        for (runs, ns) in self.runs_by_cpu()? {
            counts.probe_runs += runs;
            counts.probe_ns += ns;
        }
        Ok(counts)
    }
}

fn reading(what: &'static str, error: std::io::Error) -> ProbeError {
    ProbeError::Reading { what, error }
}

fn not_permitted(what: &'static str, error: &std::io::Error) -> ProbeError {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => ProbeError::NotPermitted { what, capability: "CAP_PERFMON" },
        _ => ProbeError::Reading { what, error: std::io::Error::from(error.kind()) },
    }
}

pub(crate) fn not_attached(program: &libbpf_rs::ProgramMut<'_>, error: &libbpf_rs::Error) -> ProbeError {
    ProbeError::NotAttached {
        program: program.name().to_string_lossy().into_owned(),
        reason: error.to_string(),
    }
}

/// Runs an iterator to its end; what it wrote is in `bytes`.
fn iterate(link: &Link, bytes: &mut Vec<u8>) -> Result<(), ProbeError> {
    bytes.clear();
    let mut iterator =
        Iter::new(link).map_err(|error| reading("the list of threads", std::io::Error::other(error)))?;
    iterator.read_to_end(bytes).map_err(|error| reading("the list of threads", error))?;
    Ok(())
}

/// Opens, configures and loads the object. It is never unloaded before the process ends, so its place is leaked.
fn load_skeleton(
    options: &ProbeOptions,
    types: &KernelTypes,
    features: Features,
) -> Result<WallprofSkel<'static>, ProbeError> {
    let log = messages::capture();
    let place: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = WallprofSkelBuilder::default()
        .open(place)
        .map_err(|error| ProbeError::from_load(&error, &log.text()))?;
    configure(&mut open, options, features);
    if options.guarded.is_empty() {
        // A map that nothing uses takes no more memory than it must.
        let _ = open.maps.guests.set_max_entries(1);
    }
    leave_out(&mut open, |names| left_out(names, types, options));
    open.load().map_err(|error| ProbeError::from_load(&error, &log.text()))
}

/// Keeps those programs from being loaded that `choose` names out of all.
pub(crate) fn leave_out(open: &mut OpenWallprofSkel<'_>, choose: impl FnOnce(&[String]) -> Vec<String>) {
    let names: Vec<String> =
        open.open_object().progs().map(|program| program.name().to_string_lossy().into_owned()).collect();
    let left_out = choose(&names);
    for mut program in open.open_object_mut().progs_mut() {
        if left_out.iter().any(|name| program.name() == name.as_str()) {
            program.set_autoload(false);
        }
    }
}

pub(crate) fn configure(open: &mut OpenWallprofSkel<'_>, options: &ProbeOptions, features: Features) {
    if let Some(data) = open.maps.data_data.as_deref_mut() {
        data.stall_ns = options.min_stall_ns;
        data.voluntary_stall_ns = options.min_stall_ns;
        data.min_stall_ns = options.min_stall_ns;
        data.stack_ns = options.min_stall_ns;
    }
    let Some(rodata) = open.maps.rodata_data.as_deref_mut() else { return };
    rodata.stacks_at_switch_out = !features.sched_exit_tp;
    rodata.follow_children = options.targets.follow_children();
    rodata.every_thread = options.targets == Targets::Everything;
    rodata.limit_cpus = options.cpus.is_some();
    for cpu in options.cpus.iter().flatten() {
        if let Some(word) = rodata.cpu_mask.get_mut(*cpu as usize / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    rodata.guards = !options.guarded.is_empty();
    rodata.calls_name_functions = features.ipi_functions;
    rodata.guarded_count = options.guarded.len().min(rodata.guarded.len()) as u32;
    for (place, cpu) in rodata.guarded.iter_mut().zip(&options.guarded) {
        *place = *cpu;
        if let Some(word) = rodata.guard_mask.get_mut(*cpu as usize / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    rodata.syscall_class = reasons::syscall_classes();
    if let Some(group) = options.targets.cgroup() {
        rodata.cgroup_id = group.id;
        rodata.cgroup_hierarchy = group.hierarchy;
    }
    let globs = options.targets.names();
    rodata.name_glob_count = globs.len().min(MAX_NAME_GLOBS) as u32;
    for (place, glob) in rodata.name_globs.iter_mut().zip(globs) {
        (place.takes, place.loops, place.accepts) = (*glob.takes, glob.loops, glob.accepts);
    }
    rodata.walk_by_tables = options.user_stacks == UserStacks::Tables;
    rodata.clock_period_ns = clock_period_ns(options.sample_hz);
}

fn code_side(skeleton: &WallprofSkel<'_>, sideband: Sideband) -> std::io::Result<CodeSide> {
    let maps = &skeleton.maps;
    let handle = |map: Result<MapHandle, libbpf_rs::Error>| map.map_err(std::io::Error::other);
    let tables = CodeTables::new(
        handle(MapHandle::try_from(&maps.chunks))?,
        handle(MapHandle::try_from(&maps.rules))?,
        handle(MapHandle::try_from(&maps.processes))?,
        handle(MapHandle::try_from(&maps.files))?,
        TABLE_BYTES,
    )?;
    let wanted = handle(MapHandle::try_from(&maps.wanted_processes))?;
    Ok(CodeSide { tables, sideband, wanted })
}

/// A ring a possible CPU, and the callbacks that move records into the inbox.
fn make_rings(skeleton: &WallprofSkel<'_>) -> Result<(RingBuffer<'static>, Rc<RefCell<Inbox>>), ProbeError> {
    let no_memory = |_| ProbeError::NoMemory { what: "the stall rings" };
    let possible = cpus::possible();
    let share = (RING_BYTES / possible.len() as u32).clamp(SMALLEST_RING, BIGGEST_RING);
    let size = 1 << share.ilog2();
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as libbpf_rs::libbpf_sys::size_t,
        ..Default::default()
    };
    let inbox = Rc::new(RefCell::new(Inbox::default()));
    let mut maps = Vec::new();
    for cpu in &possible {
        let map = MapHandle::create(MapType::RingBuf, Some("wallprof_ring"), 0, 0, size, &options)
            .map_err(no_memory)?;
        let fd = map.as_fd().as_raw_fd();
        skeleton
            .maps
            .rings
            .update(&cpu.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
            .map_err(no_memory)?;
        maps.push(map);
    }
    let mut builder = RingBufferBuilder::new();
    for map in &maps {
        let inbox = Rc::clone(&inbox);
        builder.add(map, move |bytes| take_record(&mut inbox.borrow_mut(), bytes)).map_err(no_memory)?;
    }
    Ok((builder.build().map_err(no_memory)?, inbox))
}

fn take_record(inbox: &mut Inbox, bytes: &[u8]) -> i32 {
    match record_from_bytes::<u32>(bytes).map(u64::from) {
        Some(c::RECORD_THREAD) => inbox.ended.extend(record_from_bytes::<thread_record>(bytes)),
        Some(c::RECORD_STALL) => inbox.stalls.extend(record_from_bytes::<stall_record>(bytes)),
        Some(c::RECORD_SECOND) => inbox.seconds.extend(record_from_bytes::<second_record>(bytes)),
        Some(c::RECORD_WORK) => inbox.works.extend(record_from_bytes::<work_record>(bytes)),
        _ => {}
    }
    0
}

/// What holds the programs to the kernel: gone with it, so that a killed recorder leaves nothing behind.
#[derive(Default)]
struct Attached {
    links: Vec<Link>,
}

impl Attached {
    /// The BTF tracepoints. The sampler and the iterators are attached one by one.
    fn attach_programs(&mut self, skeleton: &WallprofSkel<'static>) -> Result<(), ProbeError> {
        let progs = &skeleton.progs;
        let programs = [
            &progs.on_switch,
            &progs.on_switched,
            &progs.on_waking,
            &progs.on_migrate,
            &progs.on_new_task,
            &progs.on_rename,
            &progs.on_exec,
            &progs.on_exit,
            &progs.on_signal,
            &progs.on_cgroup_attach,
            &progs.on_cpu_step,
            &progs.on_ipi_send_cpu,
            &progs.on_ipi_send_cpumask,
            &progs.on_csd_queue_cpu,
            &progs.on_irq_entry,
            &progs.on_irq_exit,
            &progs.on_softirq_entry,
            &progs.on_softirq_exit,
            &progs.on_local_timer_entry,
            &progs.on_local_timer_exit,
            &progs.on_reschedule_entry,
            &progs.on_reschedule_exit,
            &progs.on_call_function_entry,
            &progs.on_call_function_exit,
            &progs.on_call_function_single_entry,
            &progs.on_call_function_single_exit,
            &progs.on_irq_work_entry,
            &progs.on_irq_work_exit,
            &progs.on_x86_platform_ipi_entry,
            &progs.on_x86_platform_ipi_exit,
            // Ends before starts: a start alone would last for ever.
            &progs.on_direct_reclaim_end,
            &progs.on_direct_reclaim_begin,
            &progs.on_group_reclaim_end,
            &progs.on_group_reclaim_begin,
            &progs.on_compaction_end,
            &progs.on_compaction_begin,
            &progs.on_contention_end,
            &progs.on_contention_begin,
            &progs.on_cross_call,
        ];
        for program in programs.into_iter().filter(|program| program.autoload()) {
            self.links.push(program.attach().map_err(|error| not_attached(program, &error))?);
        }
        Ok(())
    }

    /// The starts of page faults: after their ends, so that none is taken for failed.
    fn attach_faults(&mut self, skeleton: &WallprofSkel<'static>) -> Result<(), ProbeError> {
        for program in [&skeleton.progs.on_fault_in_user, &skeleton.progs.on_fault_in_kernel] {
            if program.autoload() {
                self.links.push(program.attach().map_err(|error| not_attached(program, &error))?);
            }
        }
        Ok(())
    }
}

/// Whether an event can be opened here: before anything is loaded for it.
pub fn try_event(spec: &PerfEventSpec, hz: u32) -> Result<(), ProbeError> {
    let cpu = cpus::online()[0];
    perf::open_event(spec, cpu, hz).map(drop).map_err(|error| ProbeError::EventNotOpened {
        event: spec.name.clone(),
        cpu,
        error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::bytes_of;

    #[test]
    fn records_are_told_apart_by_their_type() {
        let mut inbox = Inbox::default();
        let stall = stall_record { r#type: c::RECORD_STALL as u32, key: 7, ..Default::default() };
        take_record(&mut inbox, bytes_of(&stall));
        take_record(&mut inbox, &[1, 2]);
        take_record(&mut inbox, &bytes_of(&stall)[..20]);
        assert_eq!(inbox.stalls.len(), 1);
        assert_eq!(inbox.stalls[0].key, 7);
        let second = second_record { r#type: c::RECORD_SECOND as u32, key: 8, ..Default::default() };
        take_record(&mut inbox, bytes_of(&second));
        assert_eq!(inbox.seconds.iter().map(|second| second.key).collect::<Vec<_>>(), [8]);
        assert!(inbox.ended.is_empty());
    }
}
