// SPDX-License-Identifier: Apache-2.0
//! Accounts of threads, of the processes they form and of the whole recording.

use std::collections::BTreeMap;

use wallprof_model::event::LedgerDelta;
use wallprof_model::profile::Thread;
use wallprof_model::{EpochSecond, Reason, ThreadKey};

use crate::ledger::{Account, Samples, account};

/// All threads of one process together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessTotal {
    pub pid: u32,
    pub process: String,
    pub threads: usize,
    pub account: Account,
}

/// One account for each thread, in the order of `threads`.
///
/// The running time of a thread without samples is divided as its process's is; where nothing of the
/// process was sampled it is user time, a kernel thread's kernel time.
pub fn accounts(threads: &[Thread]) -> Vec<Account> {
    let mut process_samples: BTreeMap<u32, Samples> = BTreeMap::new();
    for thread in threads {
        let samples = process_samples.entry(thread.info.pid).or_default();
        samples.user = samples.user.saturating_add(thread.ledger.user_samples);
        samples.kernel = samples.kernel.saturating_add(thread.ledger.kernel_samples);
    }
    let fallback = |thread: &Thread| match process_samples.get(&thread.info.pid) {
        Some(samples) if samples.count() > 0 => *samples,
        _ if thread.info.kernel_thread => Samples { user: 0, kernel: 1 },
        _ => Samples::default(),
    };
    threads.iter().map(|thread| account(&thread.ledger, fallback(thread))).collect()
}

/// One total for each process, by pid and name, in that order. `accounts` are those of `threads`.
pub fn process_totals(threads: &[Thread], accounts: &[Account]) -> Vec<ProcessTotal> {
    let mut members: BTreeMap<(u32, &str), Vec<&Account>> = BTreeMap::new();
    for (thread, account) in threads.iter().zip(accounts) {
        members.entry((thread.info.pid, &thread.info.process)).or_default().push(account);
    }
    members
        .into_iter()
        .map(|((pid, process), accounts)| ProcessTotal {
            pid,
            process: process.into(),
            threads: accounts.len(),
            account: total(accounts),
        })
        .collect()
}

/// The sum of accounts. Its wall time is thread time: ten threads live ten seconds a second.
pub fn total<'a>(accounts: impl IntoIterator<Item = &'a Account>) -> Account {
    let mut sum = account(&LedgerDelta::new(ThreadKey(0), EpochSecond(0)), Samples::default());
    for one in accounts {
        add(&mut sum, one);
    }
    sum
}

fn add(sum: &mut Account, one: &Account) {
    let add = |to: &mut u64, ns: u64| *to = to.saturating_add(ns);
    let (states, more) = (&mut sum.states, &one.states);
    add(&mut states.cpu, more.cpu);
    add(&mut states.user, more.user);
    add(&mut states.kernel, more.kernel);
    add(&mut states.irq, more.irq);
    add(&mut states.fault_minor, more.fault_minor);
    add(&mut states.fault_major, more.fault_major);
    add(&mut states.runnable, more.runnable);
    add(&mut states.preempted, more.preempted);
    for reason in Reason::ALL.map(|reason| usize::from(reason.code())) {
        add(&mut states.blocked[reason], more.blocked[reason]);
    }
    add(&mut sum.wall_ns, one.wall_ns);
    add(&mut sum.unaccounted_ns, one.unaccounted_ns);
    add(&mut sum.on_cpu_ns, one.on_cpu_ns);
    add(&mut sum.run_queue_ns, one.run_queue_ns);
    add(&mut sum.samples, one.samples);
    sum.inconsistencies.extend(&one.inconsistencies);
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{MonoNs, ThreadInfo};

    fn thread(pid: u32, process: &str, on_cpu_ns: u64, samples: (u64, u64), kernel_thread: bool) -> Thread {
        let mut ledger = LedgerDelta::new(ThreadKey(pid), EpochSecond(0));
        ledger.wall_ns = 1_000;
        ledger.on_cpu_ns = on_cpu_ns;
        (ledger.user_samples, ledger.kernel_samples) = samples;
        let info =
            ThreadInfo { kernel_thread, ..ThreadInfo::new(ThreadKey(pid), (pid, process), (pid, process)) };
        Thread { info, start: MonoNs(0), end: MonoNs(1_000), ledger, latency: BTreeMap::new(), stalls: 0 }
    }

    #[test]
    fn unsampled_threads_divide_like_their_process() {
        let threads = [
            thread(10, "server", 400, (3, 1), false),
            thread(10, "server", 100, (0, 0), false),
            thread(11, "idle", 100, (0, 0), false),
            thread(2, "kthreadd", 100, (0, 0), true),
        ];
        let kernel: Vec<u64> = accounts(&threads).iter().map(|account| account.states.kernel).collect();
        assert_eq!(kernel, [100, 25, 0, 100]);
    }

    #[test]
    fn process_totals_are_sums_of_their_threads() {
        let threads = [thread(10, "server", 400, (3, 1), false), thread(10, "server", 100, (0, 0), false)];
        let accounts = accounts(&threads);
        let totals = process_totals(&threads, &accounts);
        assert_eq!(totals.len(), 1);
        assert_eq!((totals[0].pid, totals[0].process.as_str(), totals[0].threads), (10, "server", 2));
        let account = &totals[0].account;
        assert_eq!((account.wall_ns, account.on_cpu_ns, account.unaccounted_ns), (2_000, 500, 1_500));
        assert_eq!((account.states.user, account.states.kernel), (375, 125));
        assert_eq!(total(&accounts), *account);
    }

    /// As of `-F 0`.
    #[test]
    fn running_time_that_was_not_sampled_is_in_the_totals() {
        let mut threads = [10, 10].map(|pid| thread(pid, "server", 400, (0, 0), false));
        threads.iter_mut().for_each(|thread| thread.ledger.cpu_ns = 300);
        let totals = process_totals(&threads, &accounts(&threads));
        let ns = |account: &Account| account.states.iter().map(|(_, ns)| ns).sum::<u64>();
        let parts: u64 = accounts(&threads).iter().map(ns).sum();
        assert!(parts > 0);
        assert_eq!(ns(&totals[0].account), parts);
    }
}
