// SPDX-License-Identifier: Apache-2.0
//! Recordings for tests: threads of given names that spend given times in given stacks, the same every
//! second or by a seed.

use std::collections::HashMap;
use std::sync::Arc;

use wallprof_model::event::{LedgerDelta, Weighted};
use wallprof_model::profile::{LedgerRow, RecordingInfo, ResolvedStack, SampleRow, StallRecord, Thread};
use wallprof_model::{
    EpochSecond, Meaning, MeaningSource, MonoNs, StackId, StallReason, State, ThreadInfo, ThreadKey,
};
use wallprof_testkit::stacks::{stack, stall};

use super::{Collector, Side, Tree};

const MS: u64 = 1_000_000;

/// Shorter waits are not kept by themselves.
const MIN_STALL_NS: u64 = 100_000;

#[derive(Clone, Debug)]
pub(crate) struct Fixture {
    seconds: u32,
    threads: Vec<Thread>,
    ledger: Vec<LedgerRow>,
    samples: Vec<SampleRow>,
    stalls: Vec<StallRecord>,
    min_stall_ns: u64,
    /// By stack.
    meanings: HashMap<String, Arc<Meaning>>,
    /// Stack id - 1 is the index.
    stacks: Vec<String>,
}

impl Fixture {
    pub fn new(seconds: u32) -> Self {
        Fixture {
            seconds,
            threads: vec![],
            ledger: vec![],
            samples: vec![],
            stalls: vec![],
            min_stall_ns: MIN_STALL_NS,
            meanings: HashMap::new(),
            stacks: vec![],
        }
    }

    /// Gives the waits in a stack a meaning. To be called before those are added.
    pub fn meaning(mut self, stack: &str, name: &str, idle: bool) -> Self {
        let source = MeaningSource::Stack;
        let meaning = Meaning { name: name.into(), software: None, idle, holder: true, source };
        self.meanings.insert(stack.into(), Arc::new(meaning));
        self
    }

    /// The same threads in a process of another name.
    pub fn of_process(mut self, name: &str) -> Self {
        self.threads.iter_mut().for_each(|thread| thread.info.process = name.into());
        self
    }

    /// A thread that runs for `ms` of every second in user mode, with this many samples in each stack
    /// (`outer;inner`) every second.
    pub fn running(mut self, thread: &str, ms: u64, stacks: &[(&str, u64)]) -> Self {
        let key = self.thread(thread);
        for second in 0..self.seconds {
            self.run(key, second, ms, stacks);
        }
        self
    }

    /// A thread that is in `state` for `ms` of every second, of which stacks carry the given ms.
    pub fn waiting(mut self, thread: &str, state: State, ms: u64, stacks: &[(&str, u64)]) -> Self {
        let key = self.thread(thread);
        for second in 0..self.seconds {
            self.wait(key, second, (state, ms * MS), stacks);
        }
        self
    }

    pub fn thread(&mut self, name: &str) -> ThreadKey {
        let key = ThreadKey(self.threads.len() as u32 + 1);
        let info = ThreadInfo::new(key, (100, "app"), (100 + key.0, name));
        self.threads.push(Thread {
            info,
            start: MonoNs(0),
            end: MonoNs(u64::from(self.seconds) * 1_000 * MS),
            ledger: LedgerDelta::new(key, EpochSecond(0)),
            latency: Default::default(),
            stalls: 0,
        });
        key
    }

    pub fn run(&mut self, key: ThreadKey, second: u32, ms: u64, stacks: &[(&str, u64)]) {
        let mut row = LedgerDelta::new(key, EpochSecond(second));
        row.wall_ns = 1_000 * MS;
        row.on_cpu_ns = ms * MS;
        row.user_samples = stacks.iter().map(|(_, count)| count).sum();
        self.add_ledger(row);
        for &(stack, count) in stacks.iter().filter(|(_, count)| *count > 0) {
            self.add_sample(key, second, State::User, stack, (count * 10 * MS, count));
        }
    }

    pub fn wait(&mut self, key: ThreadKey, second: u32, (state, ns): (State, u64), stacks: &[(&str, u64)]) {
        let mut row = LedgerDelta::new(key, EpochSecond(second));
        row.wall_ns = 1_000 * MS;
        match state {
            State::Blocked(reason) => row.blocked_ns[usize::from(reason.code())] = ns,
            State::Preempted => row.preempted_ns = ns,
            other => panic!("{other:?} is no state of this fixture"),
        }
        self.add_ledger(row);
        for &(stack, ms) in stacks.iter().filter(|(_, ms)| *ms > 0) {
            self.add_sample(key, second, state, stack, (ms * MS, 1));
        }
    }

    /// Waits of one second that are kept one by one, evenly spread.
    pub fn single_waits(
        &mut self,
        key: ThreadKey,
        second: u32,
        state: State,
        stack: &str,
        lengths_ns: &[u64],
    ) {
        let State::Blocked(reason) = state else { panic!("{state:?} is no wait") };
        let sum_ns: u64 = lengths_ns.iter().sum();
        let mut row = LedgerDelta::new(key, EpochSecond(second));
        row.wall_ns = 1_000 * MS;
        row.blocked_ns[usize::from(reason.code())] = sum_ns;
        self.add_ledger(row);
        if sum_ns > 0 {
            self.add_sample(key, second, state, stack, (sum_ns, lengths_ns.len() as u64));
        }
        let apart = 1_000 * MS / (lengths_ns.len() as u64).max(1);
        for (at, &ns) in (0u64..).zip(lengths_ns).filter(|(_, ns)| **ns >= MIN_STALL_NS) {
            let start = MonoNs(u64::from(second) * 1_000 * MS + at * apart);
            let wait = stall(0, key.0, StallReason::Blocked(reason), start, ns);
            let meaning = self.meanings.get(stack).cloned();
            self.stalls.push(StallRecord { voluntary: false, user: Some(resolved(stack)), meaning, ..wait });
        }
    }

    /// The same recording, as if it had kept other waits.
    pub fn with_min_stall(self, min_stall_ns: u64) -> Self {
        Fixture { min_stall_ns, ..self }
    }

    fn add_ledger(&mut self, row: LedgerRow) {
        let sum = &mut self.threads[row.thread.0 as usize - 1].ledger;
        sum.wall_ns += row.wall_ns;
        sum.on_cpu_ns += row.on_cpu_ns;
        sum.user_samples += row.user_samples;
        self.ledger.push(row);
    }

    fn add_sample(&mut self, key: ThreadKey, second: u32, state: State, stack: &str, weighs: (u64, u64)) {
        let known = self.stacks.iter().position(|known| known == stack);
        let index = known.unwrap_or_else(|| {
            self.stacks.push(stack.into());
            self.stacks.len() - 1
        });
        self.samples.push(SampleRow {
            thread: key,
            second: EpochSecond(second),
            what: Weighted::State(state),
            user: Some(StackId(index as u64 + 1)),
            kernel: None,
            waker: None,
            weight: weighs.0,
            count: weighs.1,
        });
    }

    pub fn side(&self, tree: &mut Tree) -> Side {
        let info = RecordingInfo {
            end: MonoNs(u64::from(self.seconds) * 1_000 * MS),
            min_stall_ns: self.min_stall_ns,
            ..RecordingInfo::default()
        };
        let mut collector = Collector::new(&self.threads);
        self.ledger.iter().for_each(|row| collector.ledger(row));
        for row in &self.samples {
            let name = |id: StackId| &self.stacks[id.0 as usize - 1];
            let meaning = row.user.and_then(|stack| self.meanings.get(name(stack)));
            let resolved: Result<(), std::convert::Infallible> =
                collector.sample(row, meaning.map(|meaning| &**meaning), tree, |id| Ok(resolved(name(id))));
            resolved.unwrap();
        }
        self.stalls.iter().for_each(|stall| collector.stall(stall, tree));
        collector.finish(&info, tree)
    }
}

/// Of `outer;inner`.
fn resolved(folded: &str) -> ResolvedStack {
    stack(&folded.rsplit(';').collect::<Vec<_>>())
}
