// SPDX-License-Identifier: Apache-2.0
//! Rows about guarded CPUs → intrusions. Which threads may run there is decided here, by name.

use std::sync::Arc;

use wallprof_model::event::{InterruptDelta, InterruptKind};
use wallprof_model::{IntrusionDelta, IntrusionKind, ThreadRef};
use wallprof_probe::bpf::{constants as c, name_from_bytes, noise_counts, noise_key};
use wallprof_symbols::KernelSymbols;

use crate::threads::Threads;

/// The guarded CPUs, and the threads for which they are reserved.
pub struct Guard {
    /// Sorted.
    cpus: Vec<u32>,
    /// Whether a thread of this name may run there.
    allowed: Box<dyn Fn(&str) -> bool + Send>,
    symbols: Option<Arc<KernelSymbols>>,
    /// Runs and ns of the probes on each CPU, as emitted so far.
    runs: Vec<(u64, u64)>,
}

impl Guard {
    /// No thread may run on these CPUs until [`Self::allow`] is called.
    pub fn new(cpus: &[u32]) -> Self {
        let mut cpus = cpus.to_vec();
        cpus.sort_unstable();
        Guard { cpus, allowed: Box::new(|_| false), symbols: None, runs: Vec::new() }
    }

    pub fn allow(&mut self, allowed: Box<dyn Fn(&str) -> bool + Send>) {
        self.allowed = allowed;
    }

    pub fn set_kernel_symbols(&mut self, symbols: Arc<KernelSymbols>) {
        self.symbols = Some(symbols);
    }

    pub fn is_empty(&self) -> bool {
        self.cpus.is_empty()
    }

    /// A thread that ran there, or an interrupt that was sent there.
    pub fn of_noise(&self, key: &noise_key, row: &noise_counts, threads: &Threads) -> IntrusionDelta {
        let comm = name_from_bytes(&row.comm);
        let sent = u64::from(key.kind) == c::NOISE_SENT;
        let kind = match (sent, row.kernel_thread) {
            (true, _) => IntrusionKind::Ipi,
            (false, 0) => IntrusionKind::Task,
            (false, _) => IntrusionKind::KernelThread,
        };
        let allowed = !sent && (self.allowed)(&comm);
        let thread = (key.tid != 0).then(|| ThreadRef {
            key: threads.key_of_tid(key.tid).filter(|key| threads.pid_of(key.0) == Some(row.tgid)),
            pid: row.tgid,
            tid: key.tid,
            comm,
            title: None,
        });
        IntrusionDelta {
            cpu: u32::from(key.cpu),
            kind,
            what: if sent { self.function(key.function) } else { String::new() },
            thread,
            allowed,
            count: row.count,
            total_ns: row.total,
            max_ns: row.max,
        }
    }

    /// `None` for interrupts of other CPUs.
    pub fn of_interrupt(&self, delta: &InterruptDelta) -> Option<IntrusionDelta> {
        self.cpus.binary_search(&delta.cpu).ok()?;
        let kind = match delta.kind {
            InterruptKind::Irq => IntrusionKind::Irq,
            InterruptKind::Softirq => IntrusionKind::Softirq,
            InterruptKind::Vector if delta.name == c::VECTOR_NAMES[c::VECTOR_LOCAL_TIMER as usize] => {
                IntrusionKind::Timer
            }
            InterruptKind::Vector => IntrusionKind::Vector,
        };
        Some(IntrusionDelta {
            cpu: delta.cpu,
            kind,
            what: delta.name.clone(),
            thread: None,
            allowed: false,
            count: delta.count,
            total_ns: delta.total_ns,
            max_ns: delta.max_ns,
        })
    }

    /// Runs of the probes there since the last call. `runs` are totals by CPU.
    pub fn of_probes(&mut self, runs: Vec<(u64, u64)>) -> Vec<IntrusionDelta> {
        let since = |cpu: &u32| {
            let at = usize::try_from(*cpu).ok()?;
            let ((count, ns), (emitted, emitted_ns)) =
                (*runs.get(at)?, self.runs.get(at).copied().unwrap_or_default());
            let count = count.checked_sub(emitted).filter(|&count| count > 0)?;
            Some(IntrusionDelta {
                cpu: *cpu,
                kind: IntrusionKind::Probe,
                what: "wallprof".into(),
                thread: None,
                allowed: false,
                count,
                total_ns: ns.saturating_sub(emitted_ns),
                max_ns: 0,
            })
        };
        let intrusions = self.cpus.iter().filter_map(since).collect();
        self.runs = runs;
        intrusions
    }

    /// The name of the function that a sender requested. `flush_tlb_func` is the TLB shootdown.
    fn function(&self, address: u64) -> String {
        if address == 0 {
            return "reschedule".into();
        }
        let symbol = self.symbols.as_ref().and_then(|symbols| {
            let lines = symbols.resolve(&[address]).pop()?;
            lines.into_iter().find_map(|line| line.symbol)
        });
        symbol.unwrap_or_else(|| "function call".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::ThreadKey;
    use wallprof_probe::bpf::thread_record;

    fn named(comm: &str) -> noise_counts {
        let mut row = noise_counts { count: 3, total: 500, max: 200, tgid: 100, ..noise_counts::default() };
        row.comm[..comm.len()].copy_from_slice(comm.as_bytes());
        row
    }

    fn key(kind: u64, tid: u32, function: u64) -> noise_key {
        noise_key { kind: kind as u16, tid, cpu: 3, function, ..noise_key::default() }
    }

    fn guard() -> Guard {
        let mut guard = Guard::new(&[3, 1]);
        guard.allow(Box::new(|name| name.starts_with("engine")));
        guard
    }

    #[test]
    fn thread_is_allowed_by_its_name() {
        let mut threads = Threads::default();
        threads
            .update(&thread_record { key: 9, tid: 101, tgid: 100, ..thread_record::default() }, &mut |_| {});
        let of = |tid, comm| guard().of_noise(&key(c::NOISE_TASK, tid, 0), &named(comm), &threads);
        let (engine, cron) = (of(101, "engine-1"), of(102, "cron"));
        assert_eq!((engine.kind, engine.allowed, cron.allowed), (IntrusionKind::Task, true, false));
        let thread = engine.thread.unwrap();
        assert_eq!((thread.key, thread.tid, thread.comm.as_str()), (Some(ThreadKey(9)), 101, "engine-1"));
        assert_eq!(cron.thread.unwrap().key, None);
        assert_eq!((engine.count, engine.total_ns, engine.max_ns), (3, 500, 200));
        let kernel = noise_counts { kernel_thread: 1, ..named("kworker/3:1") };
        let kernel = guard().of_noise(&key(c::NOISE_TASK, 7, 0), &kernel, &threads);
        assert_eq!(kernel.kind, IntrusionKind::KernelThread);
    }

    #[test]
    fn name_of_a_sender_allows_nothing() {
        let threads = Threads::default();
        let sent = guard().of_noise(&key(c::NOISE_SENT, 101, 0), &named("engine-1"), &threads);
        assert_eq!((sent.kind, sent.what.as_str(), sent.allowed), (IntrusionKind::Ipi, "reschedule", false));
        let from_interrupt = guard().of_noise(&key(c::NOISE_SENT, 0, 0xffff), &named(""), &threads);
        assert_eq!((from_interrupt.thread, from_interrupt.what.as_str()), (None, "function call"));
    }

    #[test]
    fn interrupts_count_on_guarded_cpus_only() {
        let interrupt = |cpu, kind, name: &str| InterruptDelta {
            cpu,
            kind,
            name: name.into(),
            victim: None,
            count: 1,
            total_ns: 2,
            max_ns: 2,
        };
        let kind =
            |cpu, kind, name| guard().of_interrupt(&interrupt(cpu, kind, name)).map(|found| found.kind);
        assert_eq!(kind(3, InterruptKind::Vector, "local_timer"), Some(IntrusionKind::Timer));
        assert_eq!(kind(1, InterruptKind::Vector, "reschedule"), Some(IntrusionKind::Vector));
        assert_eq!(kind(3, InterruptKind::Softirq, "rcu"), Some(IntrusionKind::Softirq));
        assert_eq!(kind(2, InterruptKind::Irq, "eth0"), None);
    }

    #[test]
    fn runs_of_the_probes_are_emitted_once() {
        let mut guard = guard();
        let runs = |count, ns| vec![(7, 7), (count, ns), (7, 7), (0, 0)];
        let first = guard.of_probes(runs(10, 1_000));
        assert_eq!((first.len(), first[0].cpu, first[0].count, first[0].total_ns), (1, 1, 10, 1_000));
        assert_eq!(guard.of_probes(runs(10, 1_000)), []);
        assert_eq!(guard.of_probes(runs(11, 1_060))[0].total_ns, 60);
    }
}
