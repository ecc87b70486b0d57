//! Whether a process has run of late, by its CPU clock: who did not run changed nothing of its own, and the clock costs a
//! tenth of what one file of /proc does.

use wallprof_model::MonoNs;
use wallprof_probe::clock::ProcessClock;

use super::text::{TextFile, number_after};

/// The clock of a thread that stays on a CPU moves with that CPU's ticks: where there are none (nohz_full) the kernel makes
/// up for it once a second (kernel/sched/core.c, `sched_tick_remote`). A clock that stands longer is nobody's who runs.
const SURE_NS: u64 = 1_500_000_000;

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It has not run since the last look, nor for a while before that.
    Rests,
    /// It has or may have, or it is gone.
    MayRun,
}

/// The clock of a process, and when it last moved.
#[derive(Debug)]
pub struct Watch {
    clock: Option<ProcessClock>,
    seen: Option<u64>,
    moved: MonoNs,
}

impl Watch {
    /// Without a clock it may run at any time.
    pub fn on(clock: Option<ProcessClock>) -> Self {
        Watch { clock, seen: None, moved: MonoNs(0) }
    }

    pub fn look(&mut self, at: MonoNs) -> Activity {
        self.see(at, self.clock.and_then(ProcessClock::ns))
    }

    /// A clock that does not answer is that of a process that is gone; another one, with whom its number is now, stands
    /// elsewhere.
    fn see(&mut self, at: MonoNs, ns: Option<u64>) -> Activity {
        if ns.is_none() || ns != self.seen {
            (self.seen, self.moved) = (ns, at);
        }
        if at.0.saturating_sub(self.moved.0) < SURE_NS { Activity::MayRun } else { Activity::Rests }
    }
}

/// Whether processes have the same numbers in /proc as in system calls: not where /proc is that of another PID namespace,
/// in which a clock would be somebody else's.
pub fn clocks_go_by_numbers_of_proc() -> bool {
    let Some(mut status) = TextFile::open("/proc/self/status") else { return false };
    // From that of /proc on inwards to our own: proc_pid_status(5).
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
    fn who_stands_still_for_long_rests_until_its_clock_moves() {
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
    fn who_is_gone_or_another_one_does_not_rest() {
        let gone = [(10, Some(5)), (12, Some(5)), (13, None), (20, None), (21, None)];
        assert_eq!(seen(&gone), [false, true, false, false, false]);
        let another = [(10, Some(5)), (12, Some(5)), (13, Some(3)), (15, Some(3))];
        assert_eq!(seen(&another), [false, true, false, true]);
    }

    #[test]
    fn without_a_clock_nobody_rests() {
        let mut watch = Watch::on(None);
        assert_eq!([1, 100].map(|at| watch.look(MonoNs(at * SECOND_NS))), [Activity::MayRun; 2]);
    }
}
