// SPDX-License-Identifier: Apache-2.0
//! Whether a process has run lately, by its CPU clock. A process that has not run changed nothing of its own,
//! and reading the clock costs a tenth of reading one file of /proc.

use wallprof_model::MonoNs;
use wallprof_probe::clock::ProcessClock;

use super::text::{TextFile, number_after};

/// The clock of a thread that stays on a CPU moves with that CPU's ticks. On CPUs without ticks (nohz_full)
/// the kernel updates it once a second (kernel/sched/core.c, `sched_tick_remote`). A process whose clock
/// stands still for longer does not run.
const SURE_NS: u64 = 1_500_000_000;

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It has not run since the last look, nor for a while before that.
    Rests,
    /// It has run or may have run, or it has ended.
    MayRun,
}

/// The clock of a process, and the time when it last moved.
#[derive(Debug)]
pub struct Watch {
    clock: Option<ProcessClock>,
    seen: Option<u64>,
    moved: MonoNs,
}

impl Watch {
    /// Without a clock the process may run at any time.
    pub fn on(clock: Option<ProcessClock>) -> Self {
        Watch { clock, seen: None, moved: MonoNs(0) }
    }

    pub fn look(&mut self, at: MonoNs) -> Activity {
        self.see(at, self.clock.and_then(ProcessClock::ns))
    }

    /// A clock that cannot be read belongs to a process that has ended. Another process with the same pid has
    /// another clock value.
    fn see(&mut self, at: MonoNs, ns: Option<u64>) -> Activity {
        if ns.is_none() || ns != self.seen {
            (self.seen, self.moved) = (ns, at);
        }
        if at.0.saturating_sub(self.moved.0) < SURE_NS { Activity::MayRun } else { Activity::Rests }
    }
}

/// Whether pids in /proc are the pids of system calls. They are not where /proc belongs to another PID
/// namespace: there, a clock would belong to another process.
pub fn clocks_use_pids_of_proc() -> bool {
    let Some(mut status) = TextFile::open("/proc/self/status") else { return false };
    // The pids are listed from the namespace of /proc inwards to our own: proc_pid_status(5).
    let text = status.read().unwrap_or_default();
    let numbers = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().count() == 1)
        && number_after(text, "Pid:") == Some(std::process::id().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn seen(looks: &[(u64, Option<u64>)]) -> Vec<bool> {
        let mut watch = Watch::on(None);
        let looks = looks.iter();
        looks.map(|&(at, ns)| watch.see(MonoNs(at * SECOND_NS), ns) == Activity::Rests).collect()
    }

    #[test]
    fn clock_that_stands_still_for_long_rests_until_it_moves() {
        let looks = [
            (10, Some(5)),
            (11, Some(5)),
            (12, Some(5)),
            (90, Some(5)),
            (91, Some(6)),
            (92, Some(6)),
            (93, Some(6)),
        ];
        assert_eq!(seen(&looks), [false, false, true, true, false, false, true]);
    }

    #[test]
    fn ended_or_other_process_does_not_rest() {
        let gone = [(10, Some(5)), (12, Some(5)), (13, None), (20, None), (21, None)];
        assert_eq!(seen(&gone), [false, true, false, false, false]);
        let another = [(10, Some(5)), (12, Some(5)), (13, Some(3)), (15, Some(3))];
        assert_eq!(seen(&another), [false, true, false, true]);
    }

    #[test]
    fn process_without_a_clock_never_rests() {
        let mut watch = Watch::on(None);
        assert_eq!([1, 100].map(|at| watch.look(MonoNs(at * SECOND_NS))), [Activity::MayRun; 2]);
    }
}
