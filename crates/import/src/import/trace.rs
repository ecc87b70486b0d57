// SPDX-License-Identifier: Apache-2.0
//! Decoding of an import's hardware trace: waits get the stacks that the trace shows, running time is divided
//! by it, and its calls are emitted.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use wallprof_intel_pt::replay::{Frame, Sides};
use wallprof_intel_pt::{ThreadId, TimeConv};
use wallprof_model::{Event, Loss, ModuleId, MonoNs};
use wallprof_symbols::{FileSearch, KernelSymbols, StoredProcesses};

use super::{Import, resolver_options};
use crate::calls::emit_calls;
use crate::delivery::{BATCH, Delivery};
use crate::error::ImportError;
use crate::intel_pt::{
    self, DecodeError, Frames, Job, Kernel, KernelFiles, Prepared, Programs, Traced, Watcher,
};
use crate::options::TraceWindow;
use crate::session::Session;
use crate::sink::Sink;

impl<S: Sink> Import<'_, S> {
    /// Decodes the hardware trace, if there is one, and emits its calls. Returns the number of calls.
    pub(super) fn decode(&mut self) -> Result<Option<u64>, ImportError<S::Error>> {
        let Some((file, base)) = self.trace.take() else { return Ok(None) };
        let Some(prepared) = self.session.prepare_trace() else { return Ok(None) };
        let Import { session, delivery, .. } = self;
        delivery.deliver_all(session).map_err(ImportError::Sink)?;
        if !delivery.started {
            return Ok(None);
        }
        self.window = delivery.sink.window();
        delivery.start_trace(prepared.size());
        let kernel = self.kernel();
        let Import { input, session, delivery, window, .. } = self;
        let resolver = resolver_options(session.options());
        let server = session.options().debug_server.clone();
        let stacks = session.stacks();
        if let Some(server) = server {
            let all = (0..stacks.processes.modules()).map(|index| ModuleId(index as u32));
            stacks.download(server.as_ref(), all, &resolver);
        }
        let processes = std::mem::replace(&mut stacks.processes, StoredProcesses::new(FileSearch::default()));
        let programs = Programs::new(&prepared, &processes, resolver, kernel);
        let decoded = decode_trace(session, delivery, &prepared, &programs, (&file, base), *window);
        drop(programs);
        session.stacks().processes = processes;
        match decoded {
            Ok(calls) => Ok(Some(calls)),
            Err(DecodeError::Input(cause)) => Err(ImportError::unreadable(input, cause)),
            Err(DecodeError::Watcher(error)) => Err(ImportError::Sink(error)),
        }
    }

    /// The recorded kernel: perf's copy beside the recording, or this machine's kernel if it is the same one.
    fn kernel(&mut self) -> Kernel {
        let session = &mut self.session;
        let files = self.kernel.take().unwrap_or(KernelFiles { core: None, symbols: None });
        let symbols = files.symbols.and_then(|path| KernelSymbols::from_path(&path).ok()).map(Arc::new);
        match symbols {
            Some(symbols) => session.stacks().set_kernel_symbols(symbols),
            None => session.find_kernel_symbols(),
        }
        let mut out = std::mem::take(&mut session.out);
        session.stacks().emit_modules(&mut out);
        session.out = out;
        Kernel::new(files.core, session.stacks().kernel_symbols())
    }
}

/// Decodes, emits waits with their stacks, then calls. Returns the number of calls.
fn decode_trace<S: Sink>(
    session: &mut Session,
    delivery: &mut Delivery<'_, S>,
    prepared: &Prepared,
    programs: &Programs<'_>,
    (file, base): (&File, u64),
    window: TraceWindow,
) -> Result<u64, DecodeError<S::Error>> {
    let time_conv = prepared.time_conv;
    let ticks = |at: MonoNs| time_conv.ticks_from_ns(at.0);
    let job = Job {
        file,
        base,
        sources: prepared.sources(),
        code: programs,
        time_conv,
        return_compression: prepared.return_compression,
        is_snapshot: prepared.is_snapshot,
        from: window.from.map_or(0, ticks),
        to: window.to.map_or(u64::MAX, ticks),
        has_all_cpus: prepared.has_all_cpus,
        ends: &prepared.ends,
    };
    if let Some(ns) = prepared.resolution_ns {
        session.out.push(Event::CallResolution(ns));
    }
    let mut frames = Frames::new(prepared, programs);
    let exact = HashMap::new();
    let mut departures = Departures { session, delivery, frames: &mut frames, time_conv, exact };
    let calls = intel_pt::decode(&job, &mut departures)?;
    if let Some(error) = prepared.take_error() {
        return Err(DecodeError::Input(error));
    }
    if let Some(last) = calls.last {
        session.traced_until(time_conv.ns_from_ticks(last));
    }
    calls.gaps.losses().for_each(|(reason, count)| session.lose(reason, count));
    session.lose(Loss::CallLatenciesCoarse, calls.coarse_latencies);
    let mut count = 0;
    for thread in &calls.threads {
        session.lose(Loss::CallPathsFull, thread.tree.folded());
        let mut out = std::mem::take(&mut session.out);
        let stacks = session.stacks();
        let key = intel_pt::thread_key(thread.thread);
        let name = |frame, out: &mut Vec<Event>| frames.of(thread.thread, frame, stacks, out);
        let emitted = emit_calls((key, thread), time_conv, &mut out, name, |out| {
            if out.len() < BATCH {
                return Ok(());
            }
            out.drain(..).try_for_each(|event| delivery.sink.take(event))
        });
        session.out = out;
        count += emitted.map_err(DecodeError::Watcher)?;
    }
    Ok(count)
}

/// Emits waits as threads leave their CPUs.
struct Departures<'s, 'a, 'f, 'p, S> {
    session: &'s mut Session,
    delivery: &'s mut Delivery<'a, S>,
    frames: &'f mut Frames<'p>,
    time_conv: TimeConv,
    /// The time that each thread has spent so far.
    exact: HashMap<ThreadId, Exact>,
}

/// A thread's time so far, in ticks, so that rounding to ns does not add up.
#[derive(Clone, Copy, Debug, Default)]
struct Exact {
    sides: Sides,
}

impl Exact {
    /// Adds `more` ticks; returns the nanoseconds by which the sum grew.
    fn traced(&mut self, more: Sides, time_conv: TimeConv) -> Traced {
        let in_ns = |sides: Sides| Traced {
            user: time_conv.delta_ns(sides.user),
            kernel: time_conv.delta_ns(sides.kernel),
            entered: time_conv.delta_ns(sides.entered),
        };
        let before = in_ns(self.sides);
        self.sides.add(more);
        in_ns(self.sides).since(before)
    }
}

impl<S: Sink> Watcher for Departures<'_, '_, '_, '_, S> {
    type Error = S::Error;

    fn departed(
        &mut self,
        thread: ThreadId,
        ticks: u64,
        open: &mut dyn Iterator<Item = Frame>,
    ) -> Result<(), S::Error> {
        let (before, this) = self.session.waits().at(thread, self.time_conv.ns_from_ticks(ticks));
        before.into_iter().for_each(|wait| self.session.emit_wait(wait));
        if let Some(mut this) = this {
            let mut out = std::mem::take(&mut self.session.out);
            this.wait.stacks.user = self.frames.stack(thread, open, self.session.stacks(), &mut out);
            self.session.out = out;
            self.session.emit_wait(this);
        }
        self.delivery.deliver_batch(self.session)
    }

    fn ran(&mut self, thread: ThreadId, (from, to): (u64, u64), sides: Sides) {
        let ns = |ticks| self.time_conv.ns_from_ticks(ticks);
        let traced = self.exact.entry(thread).or_default().traced(sides, self.time_conv);
        self.session.traced_running(intel_pt::thread_key(thread), (ns(from), ns(to)), traced);
    }

    fn stays_away(&mut self, thread: ThreadId, ticks: u64, open: &mut dyn Iterator<Item = Frame>) {
        let mut out = std::mem::take(&mut self.session.out);
        let stack = self.frames.stack(thread, open, self.session.stacks(), &mut out);
        self.session.out = out;
        let time = self.time_conv.ns_from_ticks(ticks);
        self.session.stays_away(intel_pt::thread_key(thread), time, stack);
    }

    fn progress(&mut self, bytes: u64) {
        self.delivery.report_progress(bytes);
    }
}
