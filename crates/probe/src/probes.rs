// SPDX-License-Identifier: Apache-2.0
//! The loaded probes: attach once, arm, read, disarm.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};
use wallprof_model::MonoNs;

use crate::attach::{self, Phase};
use crate::batch::drain;
use crate::bpf::{
    WallprofSkel, bytes_of, constants as c, cross_call_key, cross_call_value, interrupt_key, latency_key,
    latency_value, mark_slot, mark_slot_key, noise_counts, noise_key, sample_key, sample_value, span_key,
    span_value, stack_record, stall_record, thread_record, wait_place,
};
use crate::code_tables::CodeTables;
use crate::code_watch::CodeSide;
use crate::counts::{self, KernelCounts, RunQueue};
use crate::cpu_events::{self, CpuEvents};
use crate::error::ProbeError;
use crate::features::{Features, KernelTypes};
use crate::inbox::{Inbox, Rings};
use crate::iterators::{self, Iterators};
use crate::plan::ProbeOptions;
use crate::process_words::ProcessWordMap;
use crate::sideband::Sideband;
use crate::span_probes::{self, AttachedSpans};
use crate::{clock, cpus, object};

/// The most kernel memory of unwind tables and lists of mappings: some fifty million rows.
const TABLE_BYTES: u64 = 256 << 20;

/// From the reading of the clock to the end of the window: longer, and the clock is read again.
const DISARM_NS: u64 = 20_000;
const DISARM_TRIES: u32 = 20;

pub struct Probes {
    skeleton: WallprofSkel<'static>,
    features: Features,
    _links: Vec<Link>,
    cpu_events: CpuEvents,
    iterators: Iterators,
    spans: AttachedSpans,
    rings: Rings,
    pace: Pace,
}

/// Which waits get stacks, at full detail: from which length on each, and the unstacked off-CPU time of one state that a
/// thread may gather before a stack must carry it.
#[derive(Clone, Copy)]
struct Pace {
    stack_ns: u64,
    carry_ns: u64,
    voluntary_carry_ns: u64,
}

/// Where a thread marks its spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkSlot {
    pub pid: u32,
    /// Inside of its pid namespace.
    pub ns_tid: u32,
    /// The address of the number of the current span, and the process image. `None`: nowhere.
    pub place: Option<(u64, u32)>,
}

impl Probes {
    /// Loads and attaches everything, disarmed. The sideband is open before the first thread is scanned. The
    /// second value keeps the walker informed about code, and can move to another thread.
    pub fn load(options: &ProbeOptions) -> Result<(Self, CodeSide), ProbeError> {
        let types = KernelTypes::read()?;
        let features = types.features();
        let online = cpus::online();
        let mut named = options.cpus.iter().flatten().chain(&options.guarded);
        if let Some(cpu) = named.find(|cpu| !online.contains(cpu)) {
            return Err(ProbeError::NoSuchCpu { cpu: *cpu });
        }
        let sideband =
            Sideband::open(&online).map_err(|error| ProbeError::from_perf("read perf events", &error))?;
        let skeleton = object::load(options, &types, features)?;
        let attachers = [&cpu_events::PROGRAMS[..], &iterators::PROGRAMS, &span_probes::PROGRAMS].concat();
        attach::check(&skeleton, &attachers)?;
        let rings = Rings::create(&skeleton)?;
        let code = code_side(&skeleton, sideband)
            .map_err(|error| ProbeError::reading("the maps of unwind tables", error))?;
        let mut links = Vec::new();
        attach::attach_tracepoints(&skeleton, Phase::First, &mut links)?;
        attach::attach_tracepoints(&skeleton, Phase::AnyTime, &mut links)?;
        let cpu_events = CpuEvents::attach(&skeleton, options, &online)?;
        attach::attach_tracepoints(&skeleton, Phase::Last, &mut links)?;
        let iterators = Iterators::attach(&skeleton)?;
        let spans = AttachedSpans::attach(&skeleton, options)?;
        let pace = Pace::of(&skeleton);
        let mut probes =
            Probes { skeleton, features, _links: links, cpu_events, iterators, spans, rings, pace };
        // Of threads that start meanwhile, too.
        let iterators = &mut probes.iterators;
        find_targets(&mut probes.skeleton, options, || iterators.create_states())?;
        Ok((probes, code))
    }

    pub fn features(&self) -> Features {
        self.features
    }

    /// The number of threads that have started to exit and whose last record has not been emitted yet.
    pub fn ending_threads(&self) -> u32 {
        self.skeleton.maps.bss_data.as_deref().map_or(0, |bss| bss.ending_threads)
    }

    /// Creates the state of threads whose process has got a name that is asked for, or has moved into the
    /// recorded cgroup.
    pub fn follow_processes(&mut self) -> Result<(), ProbeError> {
        let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() else { return Ok(()) };
        if std::mem::take(&mut bss.rescan_wanted) == 0 {
            return Ok(());
        }
        self.iterators.create_states()
    }

    /// Kernel text whose uninterruptible sleepers have a reason: [`crate::reasons::KERNEL_SITES`] resolved to
    /// `[from, to)`, with the reason's code. Those after the first 64 are left out.
    pub fn set_sites(&mut self, sites: &[(u64, u64, u8)]) {
        set_sites(&mut self.skeleton, sites);
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

    /// Kernel text that writes saved user registers, as `[from, to)`: the functions of
    /// [`crate::reasons::REGISTER_WRITERS`]. Samples in it have no user stack.
    pub fn set_register_writers(&mut self, ranges: &[(u64, u64)]) {
        let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() else { return };
        for (range, (from, to)) in bss.register_writers.iter_mut().zip(ranges) {
            (range.from, range.to) = (*from, *to);
        }
        bss.register_writer_count = ranges.len().min(c::MAX_REGISTER_WRITERS as usize) as u32;
    }

    /// Starts the recording, and returns the timestamp of its start. `epoch_offset` is the wall clock's
    /// distance from CLOCK_MONOTONIC, ns: it determines where seconds start.
    pub fn arm(&mut self, epoch_offset: u64) -> MonoNs {
        self.set_epoch_offset(epoch_offset);
        let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() else { return clock::mono_now() };
        bss.last_snapshot = 0;
        bss.awaited.fill(0);
        let now = clock::mono_now();
        bss.armed_at = now.0;
        // Last: the window starts at armed_at.
        fence(Ordering::SeqCst);
        bss.window = u64::MAX >> 1;
        now
    }

    /// Ends the recording; later events are not counted.
    pub fn disarm(&mut self) -> MonoNs {
        let mut now = clock::mono_now();
        let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() else { return now };
        for tries_left in (0..DISARM_TRIES).rev() {
            bss.window = now.0.saturating_sub(bss.armed_at);
            fence(Ordering::SeqCst);
            let stopped = clock::mono_now();
            if tries_left == 0 || stopped.0 - now.0 < DISARM_NS {
                break;
            }
            // This program waited for a CPU in between, and threads have counted events past the end.
            now = stopped;
        }
        now
    }

    /// Changes where seconds start, after a step of the wall clock.
    pub fn set_epoch_offset(&mut self, epoch_offset: u64) {
        if let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() {
            bss.epoch_offset = epoch_offset;
        }
    }

    /// From now on only waits of at least this length are emitted one by one; voluntary ones have a threshold
    /// of their own. Those that are only counted get stacks when they have added up.
    pub fn set_thresholds(&mut self, stall_ns: u64, voluntary_stall_ns: u64) {
        if let Some(data) = self.skeleton.maps.data_data.as_deref_mut() {
            data.stall_ns = stall_ns;
            data.voluntary_stall_ns = voluntary_stall_ns;
            data.stack_ns = self.pace.stack_ns.max(stall_ns);
        }
    }

    /// Sets the verdicts of places, [`stall_record::place`] → `PLACE_…`. A place that the kernel side has no
    /// memory for stays unknown. One that becomes unknown, or is asked for, emits its first waits again.
    pub fn set_place_verdicts(&mut self, verdicts: &[(u64, u32)]) {
        let is_asked = |verdict| [c::PLACE_UNKNOWN, c::PLACE_IDLE_ASKED].contains(&u64::from(verdict));
        let sent = |verdict| if is_asked(verdict) { 0 } else { c::FIRST_WAITS as u32 };
        let place = |verdict| wait_place { sent: sent(verdict), verdict };
        for (key, verdict) in verdicts {
            let _ = self.skeleton.maps.places.update(
                &key.to_ne_bytes(),
                bytes_of(&place(*verdict)),
                MapFlags::ANY,
            );
        }
    }

    /// Forgets places, whose threads are gone.
    pub fn forget_places(&mut self, keys: &[u64]) {
        for key in keys {
            // One that the kernel side has forgotten is not there.
            let _ = self.skeleton.maps.places.delete(&key.to_ne_bytes());
        }
    }

    /// From now on this many voluntary waits may be emitted because their place is unknown, whatever their
    /// threshold is.
    pub fn allow_first_waits(&mut self, waits: u32) {
        if let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() {
            bss.first_waits_left = waits.into();
        }
    }

    /// From now on this many waits below the thresholds may be emitted because their thread holds a lock for
    /// which another one waits.
    pub fn allow_holder_waits(&mut self, waits: u32) {
        if let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() {
            bss.holder_waits_left = waits.into();
        }
    }

    /// From now on waits and faults of at least this length are stalls, unless they are below other
    /// thresholds.
    pub fn set_min_stall(&mut self, min_stall_ns: u64) {
        if let Some(data) = self.skeleton.maps.data_data.as_deref_mut() {
            data.min_stall_ns = min_stall_ns;
        }
    }

    /// How many stacks are taken. One sample in `stride` gets one and stands for all of them. Each wait of at
    /// least `stack_ns` gets one, and shorter waits get one when they have added up.
    pub fn set_pace(&mut self, stride: u32, stack_ns: u64) {
        if let Some(data) = self.skeleton.maps.data_data.as_deref_mut() {
            let stride = u64::from(stride.max(1));
            data.sample_stride = stride;
            self.pace.stack_ns = stack_ns;
            data.stack_ns = stack_ns.max(data.stall_ns);
            data.carry_ns = self.pace.carry_ns.saturating_mul(stride);
            data.voluntary_carry_ns = self.pace.voluntary_carry_ns.saturating_mul(stride);
        }
    }

    /// Whether from now on each second of a thread is emitted when it is over. Needed where snapshots are
    /// taken less often than every second.
    pub fn emit_seconds(&mut self, wanted: bool) {
        if let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() {
            bss.emit_seconds = wanted.into();
        }
    }

    /// Sets where threads mark their spans.
    pub fn set_mark_slots(&mut self, slots: &[MarkSlot]) {
        for MarkSlot { pid, ns_tid, place } in slots {
            let key = mark_slot_key { tgid: *pid, ns_tid: *ns_tid };
            // Full: the states of this thread's spans stay unknown. Not there: nothing to forget.
            let _ = match *place {
                Some((address, exec_id)) => {
                    let slot = mark_slot { address, exec_id, ..mark_slot::default() };
                    let slots = &self.skeleton.maps.mark_slots;
                    slots.update(bytes_of(&key), bytes_of(&slot), MapFlags::ANY)
                }
                None => self.skeleton.maps.mark_slots.delete(bytes_of(&key)),
            };
        }
        if let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() {
            bss.mark_slots_version = bss.mark_slots_version.wrapping_add(1);
        }
    }

    /// By number of `--span`: how often its probes were hit so far, by any thread.
    pub fn span_probe_hits(&self) -> Result<Vec<u64>, ProbeError> {
        self.spans.hits(&self.skeleton)
    }

    /// Removes the probes of one `--span`.
    pub fn remove_span_probes(&mut self, number: usize) {
        self.spans.remove(number);
    }

    /// Waits until a ring fills up or `timeout` is over. `take` gets everything that the rings contained.
    pub fn poll(&mut self, timeout: Duration, take: impl FnOnce(&mut Inbox)) -> Result<(), ProbeError> {
        self.rings.poll(timeout, take)
    }

    /// Passes on a record of each thread that has changed since the last snapshot.
    pub fn snapshot(&mut self, take: impl FnMut(&thread_record)) -> Result<(), ProbeError> {
        let started = clock::mono_now().0;
        self.iterators.snapshot(take)?;
        if let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() {
            bss.last_snapshot = started;
        }
        Ok(())
    }

    /// Passes on every wait older than `older_than_ns` that was not passed on before, with stacks. With 0 all
    /// waits, which count as not passed on.
    pub fn open_waits(
        &mut self,
        older_than_ns: u64,
        take: impl FnMut(&stall_record),
    ) -> Result<(), ProbeError> {
        if let Some(data) = self.skeleton.maps.data_data.as_deref_mut() {
            data.open_after_ns = older_than_ns;
        }
        self.iterators.open_waits(take)
    }

    /// Passes on rows of samples. Those for which `take` returns true are deleted: past seconds only.
    pub fn drain_samples(
        &self,
        take: impl FnMut(&sample_key, &sample_value) -> bool,
    ) -> Result<(), ProbeError> {
        drained("samples", drain(&self.skeleton.maps.samples.as_fd(), take))
    }

    pub fn drain_latency(
        &self,
        take: impl FnMut(&latency_key, &latency_value) -> bool,
    ) -> Result<(), ProbeError> {
        drained("latencies", drain(&self.skeleton.maps.latency.as_fd(), take))
    }

    /// Sums of busy periods by thread, second and length.
    pub fn drain_spans(&self, take: impl FnMut(&span_key, &span_value) -> bool) -> Result<(), ProbeError> {
        drained("busy periods", drain(&self.skeleton.maps.spans.as_fd(), take))
    }

    pub fn drain_interrupts(
        &self,
        take: impl FnMut(&interrupt_key, &latency_value) -> bool,
    ) -> Result<(), ProbeError> {
        drained("interrupts", drain(&self.skeleton.maps.interrupts.as_fd(), take))
    }

    /// The noise on guarded CPUs: tasks that ran there, and interrupts that were sent there.
    pub fn drain_noise(&self, take: impl FnMut(&noise_key, &noise_counts) -> bool) -> Result<(), ProbeError> {
        drained("guarded CPUs", drain(&self.skeleton.maps.noise.as_fd(), take))
    }

    pub fn drain_cross_calls(
        &self,
        take: impl FnMut(&cross_call_key, &cross_call_value) -> bool,
    ) -> Result<(), ProbeError> {
        drained("calls on other CPUs", drain(&self.skeleton.maps.cross_calls.as_fd(), take))
    }

    /// Passes on the distinct stacks since the last time. All are deleted: their ids are made from their
    /// content.
    pub fn drain_stacks(&self, mut take: impl FnMut(u64, &stack_record)) -> Result<(), ProbeError> {
        let keep = |id: &u64, stack: &stack_record| {
            take(*id, stack);
            true
        };
        drained("stacks", drain(&self.skeleton.maps.stacks.as_fd(), keep))
    }

    /// Runs of the probes on each CPU so far, and their ns, in the order of the CPUs' numbers.
    pub fn runs_by_cpu(&self) -> Result<Vec<(u64, u64)>, ProbeError> {
        counts::runs_by_cpu(&self.skeleton)
    }

    /// The lengths of the run queues at the ticks of the sampling clock, by CPU.
    pub fn run_queues(&self) -> Result<Vec<RunQueue>, ProbeError> {
        counts::run_queues(&self.skeleton)
    }

    /// Attaches to CPUs that have come online, and detaches from those that are gone. Returns how many came:
    /// earlier events there are in no sample.
    pub fn follow_cpus(&mut self) -> Result<usize, ProbeError> {
        let Some(online) = cpus::read_online() else { return Ok(0) };
        self.cpu_events.follow(&self.skeleton, &online)
    }

    /// Runs of the probes so far, on all CPUs.
    pub fn runs(&self) -> Result<u64, ProbeError> {
        Ok(self.runs_by_cpu()?.into_iter().map(|(runs, _)| runs).sum())
    }

    pub fn counts(&self) -> Result<KernelCounts, ProbeError> {
        counts::counts(&self.skeleton)
    }
}

impl Pace {
    /// The values with which the object was loaded (bpf/settings.h).
    fn of(skeleton: &WallprofSkel<'_>) -> Self {
        let data = skeleton.maps.data_data.as_deref();
        Pace {
            stack_ns: data.map_or(0, |data| data.stack_ns),
            carry_ns: data.map_or(0, |data| data.carry_ns),
            voluntary_carry_ns: data.map_or(0, |data| data.voluntary_carry_ns),
        }
    }
}

/// Runs `create_states` while the kernel side knows the ids of the targets.
pub(crate) fn find_targets(
    skeleton: &mut WallprofSkel<'static>,
    options: &ProbeOptions,
    create_states: impl FnOnce() -> Result<(), ProbeError>,
) -> Result<(), ProbeError> {
    for (id, kinds) in options.targets.start_ids() {
        let targets = &skeleton.maps.targets;
        let updated = targets.update(&id.to_ne_bytes(), &[kinds], MapFlags::ANY);
        updated.map_err(|_| ProbeError::NoMemory { what: "the list of targets" })?;
    }
    set_finding_targets(skeleton, true);
    let found = create_states();
    set_finding_targets(skeleton, false);
    found
}

pub(crate) fn set_sites(skeleton: &mut WallprofSkel<'static>, sites: &[(u64, u64, u8)]) {
    let Some(bss) = skeleton.maps.bss_data.as_deref_mut() else { return };
    for (site, (from, to, reason)) in bss.sites.iter_mut().zip(sites) {
        (site.from, site.to, site.reason) = (*from, *to, u64::from(*reason));
    }
    bss.site_count = sites.len().min(c::MAX_SITES as usize) as u32;
}

fn set_finding_targets(skeleton: &mut WallprofSkel<'static>, wanted: bool) {
    if let Some(bss) = skeleton.maps.bss_data.as_deref_mut() {
        bss.finding_targets = wanted.into();
    }
    fence(Ordering::SeqCst);
}

pub(crate) fn drained(what: &'static str, result: io::Result<()>) -> Result<(), ProbeError> {
    result.map_err(|error| ProbeError::reading(what, error))
}

pub(crate) fn code_side(skeleton: &WallprofSkel<'_>, sideband: Sideband) -> io::Result<CodeSide> {
    let maps = &skeleton.maps;
    let handle = |map: Result<MapHandle, libbpf_rs::Error>| map.map_err(io::Error::other);
    let tables = CodeTables::new(
        handle(MapHandle::try_from(&maps.chunks))?,
        handle(MapHandle::try_from(&maps.rules))?,
        handle(MapHandle::try_from(&maps.processes))?,
        handle(MapHandle::try_from(&maps.files))?,
        ProcessWordMap::new(
            handle(MapHandle::try_from(&maps.process_words))?,
            handle(MapHandle::try_from(&maps.process_words_version))?,
        ),
        TABLE_BYTES,
    )?;
    let wanted = handle(MapHandle::try_from(&maps.wanted_processes))?;
    Ok(CodeSide { tables, sideband, wanted })
}
