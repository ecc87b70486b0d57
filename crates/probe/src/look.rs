// SPDX-License-Identifier: Apache-2.0
//! One look at all threads, without a recording: three programs of the object, and no tracepoint.

use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use libbpf_rs::{Iter, Link};

use crate::attach;
use crate::batch::drain;
use crate::bpf::{WallprofSkel, constants as c, look_record, sample_key, stack_record};
use crate::code_watch::CodeSide;
use crate::cpu_events::CpuEvents;
use crate::error::ProbeError;
use crate::features::KernelTypes;
use crate::iterators;
use crate::plan::{ProbeOptions, Targets, UserStacks};
use crate::probes::{code_side, drained, find_targets, set_sites};
use crate::sideband::Sideband;
use crate::{clock, cpus, object};

pub(crate) const PROGRAM: &str = "look";
const CREATE_STATES: &str = "create_states";
const CLOCK: &str = "on_clock";

/// Samples a second of each CPU: some ten in the time in which a running thread is sampled.
const SAMPLE_HZ: u32 = 997;
/// Stacks are read when this many threads were walked: they have two each at most, and the map has to hold
/// them.
const DRAIN_AFTER: usize = c::MAX_STACKS as usize / 4;

/// Which threads are looked at, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// All, without stacks.
    List,
    /// Those that are off the CPU.
    Walk,
    /// Those that had the CPU in the last [`Pass::Walk`].
    Rest,
}

/// The loaded programs of a look.
pub struct Look {
    skeleton: WallprofSkel<'static>,
    options: ProbeOptions,
    create_states: Link,
    look: Link,
    _clock: CpuEvents,
}

impl Look {
    /// Loads the programs. The second value keeps the walker informed about code.
    pub fn load(targets: Targets) -> Result<(Self, CodeSide), ProbeError> {
        let features = KernelTypes::read()?.features();
        let online = cpus::online();
        let sideband =
            Sideband::open(&online).map_err(|error| ProbeError::from_perf("read perf events", &error))?;
        let options = ProbeOptions {
            targets,
            cpus: None,
            sample_hz: SAMPLE_HZ,
            events: Vec::new(),
            min_stall_ns: 0,
            busy_budget_ns: None,
            user_stacks: UserStacks::Tables,
            guarded: Vec::new(),
            spans: Vec::new(),
            loops: false,
        };
        let programs = [PROGRAM, CREATE_STATES, CLOCK];
        let skeleton = object::load_only(&options, features, &programs)?;
        attach::check(&skeleton, &programs)?;
        let code = code_side(&skeleton, sideband)
            .map_err(|error| ProbeError::reading("the maps of unwind tables", error))?;
        let clock = CpuEvents::attach(&skeleton, &options, &online)?;
        let attach = |program: &libbpf_rs::ProgramMut<'_>| {
            program.attach().map_err(|error| ProbeError::not_attached(program, &error))
        };
        let create_states = attach(&skeleton.progs.create_states)?;
        let look = attach(&skeleton.progs.look)?;
        Ok((Look { skeleton, options, create_states, look, _clock: clock }, code))
    }

    /// Kernel text whose uninterruptible sleepers have a reason, as of [`crate::Probes::set_sites`].
    pub fn set_sites(&mut self, sites: &[(u64, u64, u8)]) {
        set_sites(&mut self.skeleton, sites);
    }

    /// Finds the threads that are to be looked at, as of now.
    pub fn find(&mut self) -> Result<(), ProbeError> {
        let create_states = &self.create_states;
        find_targets(&mut self.skeleton, &self.options, || iterators::run(create_states, &mut Vec::new()))
    }

    /// Finds these threads, too, by the kernel's own numbers.
    pub fn add_threads(&mut self, tids: &[u32]) -> Result<(), ProbeError> {
        if let Targets::Given(set) = &mut self.options.targets {
            set.threads.extend(tids);
        }
        self.find()
    }

    /// Passes on a record of each thread, and the stacks that the records refer to, in no order.
    pub fn threads(
        &mut self,
        pass: Pass,
        take: &mut dyn FnMut(&look_record),
        take_stack: &mut dyn FnMut(u64, &stack_record),
    ) -> Result<(), ProbeError> {
        self.set_pass(pass);
        let failed = |error| ProbeError::reading("the list of threads", error);
        let mut output = Iter::new(&self.look).map_err(|error| failed(std::io::Error::other(error)))?;
        let (mut bytes, mut walked) = (vec![0; iterators::READ_AT_ONCE * size_of::<look_record>()], 0);
        let mut held = 0;
        loop {
            let read = iterators::read_undisturbed(&mut output, &mut bytes[held..]).map_err(failed)?;
            let whole = (held + read) / size_of::<look_record>() * size_of::<look_record>();
            iterators::each_record(&bytes[..whole], &mut *take);
            walked += whole / size_of::<look_record>();
            bytes.copy_within(whole..held + read, 0);
            held = held + read - whole;
            if read == 0 || walked >= DRAIN_AFTER {
                self.drain_stacks(take_stack)?;
                walked = 0;
            }
            if read == 0 {
                return Ok(());
            }
        }
    }

    /// Samples the CPUs for `time`, and passes on the thread, the user stack and the kernel stack of each
    /// sample.
    pub fn sample(
        &mut self,
        time: Duration,
        take: &mut dyn FnMut(u32, u64, u64),
        take_stack: &mut dyn FnMut(u64, &stack_record),
    ) -> Result<(), ProbeError> {
        self.set_window(clock::mono_now().0, u64::MAX >> 1);
        std::thread::sleep(time);
        self.set_window(0, 0);
        let rows =
            drain(&self.skeleton.maps.samples.as_fd(), |key: &sample_key, _: &crate::bpf::sample_value| {
                take(key.key, key.user_stack, key.kernel_stack);
                true
            });
        drained("samples", rows)?;
        self.drain_stacks(take_stack)
    }

    /// CLOCK_MONOTONIC minus the scheduler's clock, ns, some microseconds too large at most; `None` where the
    /// kernel keeps no time of arrival on a CPU.
    pub fn clock_lag_ns(&self) -> Option<i64> {
        let lag = self.skeleton.maps.data_data.as_deref().map(|data| data.look_clock_lag);
        lag.filter(|lag| *lag != i64::MAX)
    }

    /// Stacks that did not fit, of both kinds.
    pub fn lost_stacks(&self) -> Result<u64, ProbeError> {
        Ok(crate::counts::counts(&self.skeleton)?.losses[c::LOSS_STACKS_FULL as usize])
    }

    fn set_pass(&mut self, pass: Pass) {
        let code = match pass {
            Pass::List => c::LOOK_LISTS,
            Pass::Walk => c::LOOK_WALKS,
            Pass::Rest => c::LOOK_AT_REST,
        };
        if let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() {
            bss.look_pass = code as u32;
        }
        fence(Ordering::SeqCst);
    }

    fn set_window(&mut self, armed_at: u64, window: u64) {
        if let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() {
            bss.armed_at = armed_at;
            fence(Ordering::SeqCst);
            bss.window = window;
        }
    }

    fn drain_stacks(&self, take: &mut dyn FnMut(u64, &stack_record)) -> Result<(), ProbeError> {
        let keep = |id: &u64, stack: &stack_record| {
            take(*id, stack);
            true
        };
        drained("stacks", drain(&self.skeleton.maps.stacks.as_fd(), keep))
    }
}
