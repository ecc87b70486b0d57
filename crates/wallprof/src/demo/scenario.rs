// SPDX-License-Identifier: Apache-2.0
//! The scenarios of `demo`, and the explanation of each.

use clap::ValueEnum;

/// A built-in workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// A fast engine whose rare path waits for a mutex
    #[default]
    Lock,
    /// A thread that never sleeps loses its CPU to a neighbour
    Preempted,
    /// A writer that now and then waits for the disk
    Fsync,
    /// Two threads that hand one byte to and fro over pipes
    Pingpong,
    /// Two threads that lock the same mutexes in opposite order, and stay
    Deadlock,
    /// Threads in voluntary waits: nothing is late
    Sleepers,
}

impl Scenario {
    /// The name on the command line, of the program, and of its first thread.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Lock => "lock",
            Scenario::Preempted => "preempted",
            Scenario::Fsync => "fsync",
            Scenario::Pingpong => "pingpong",
            Scenario::Deadlock => "deadlock",
            Scenario::Sleepers => "sleepers",
        }
    }

    /// The program's options beside its duration. On two CPUs a wait of every two hundredth tick costs the
    /// engine less than its wakeups, which then are the first finding. Of every twentieth it is the lock.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Scenario::Lock => &["-n", "20", "-c"],
            _ => &[],
        }
    }

    /// The explanation of the report: one or two sentences.
    pub fn what_to_look_at(self) -> &'static str {
        match self {
            Scenario::Lock => {
                "`engine` handles a tick every 200 µs and is late when a malformed one makes it take the registry's lock: \
                 \"waiting in\" ends in take_registry_lock, and \"released by\" says that housekeeper kept it until \
                 release_registry. A profile of running time alone would show neither."
            }
            Scenario::Preempted => {
                "`worker` never sleeps, and yet it stands still for milliseconds: its time in `preempted` is the time \
                 that `neighbour` ran on its CPU, and each stall says so."
            }
            Scenario::Fsync => {
                "`writer` appends a record every 500 µs, and after every hundredth one waits for the disk: the stalls of \
                 reason `disk` lead through commit_records and sync_journal to fsync."
            }
            Scenario::Pingpong => {
                "`ping` and `pong` wait for each other: nearly all their time is `blocked:pipe`, in waits too short to be \
                 kept one by one, and the ledger still accounts for all of it."
            }
            Scenario::Deadlock => {
                "`left` and `right` never come back: both stalls are open, each names the lock it wants, and the lock's \
                 owner is the other one."
            }
            Scenario::Sleepers => {
                "Every thread here waits voluntarily, on a condition variable, in a poll, a sleep, a join: the ledger shows \
                 the waits, and hardly anything counts as late."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line_and_of_the_program() {
        let names: Vec<_> = Scenario::value_variants().iter().map(|scenario| scenario.name()).collect();
        assert_eq!(names.join(","), env!("WALLPROF_SCENARIOS"));
        for scenario in Scenario::value_variants() {
            assert_eq!(Scenario::from_str(scenario.name(), false), Ok(*scenario));
        }
    }
}
