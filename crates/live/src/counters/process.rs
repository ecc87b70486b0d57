// SPDX-License-Identifier: Apache-2.0
//! Counters of a recorded process: page faults, switches, memory, disks, sockets, its control group.
//!
//! Owns which of them are read while the process does not run: only those that other processes can change.

use wallprof_model::{CounterKind, CounterUnit, MonoNs, ThreadKey};
use wallprof_probe::clock::{self, ProcessClock};
use wallprof_probe::facts::files::HostFiles;

use super::Reading;
use super::activity::{Activity, Watch};
use super::disk_limits::DiskLimits;
use super::memory_group::MemoryGroup;
use super::namespaces::Namespaces;
use super::sockets::Sockets;
use super::switches::Switches;
use super::text::{TextFile, number_after};

/// How often the memory of a process that does not run is read: the kernel may reclaim it.
const RESIDENT_EVERY_NS: u64 = 8_000_000_000;
/// The unit of memory in `/proc/PID/stat`.
const PAGE_BYTES: u64 = 4096;

/// A living process. Its open files stay its own when the pid is used again.
pub struct Process {
    /// The thread that its counters belong to.
    pub thread: ThreadKey,
    watch: Watch,
    activity: Activity,
    /// The time when it was first seen resting, since it last ran.
    rested: Option<MonoNs>,
    stat: TextFile,
    stat_read: MonoNs,
    faults: Option<Faults>,
    /// Kernels without I/O accounting have no such file.
    io: Option<TextFile>,
    transferred: Option<Transferred>,
    memory_group: Option<MemoryGroup>,
    disk_limits: DiskLimits,
    switches: Switches,
    pub sockets: Sockets,
    /// It had ended when it was last read.
    is_gone: bool,
}

/// Of all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Faults {
    minor: u64,
    major: u64,
}

/// Bytes that its system calls and page faults read from disks, and that it made dirty to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Transferred {
    read: u64,
    written: u64,
}

type Take<'a> = &'a mut dyn FnMut(MonoNs, Reading<'_>);

impl Process {
    /// `None` when it has ended. Without a clock it is read in full each time.
    pub fn open(pid: u32, thread: ThreadKey, clock: Option<ProcessClock>) -> Option<Self> {
        let stat = TextFile::open(format!("/proc/{pid}/stat"))?;
        Some(Process {
            thread,
            watch: Watch::on(clock),
            activity: Activity::MayRun,
            rested: None,
            stat,
            stat_read: MonoNs(0),
            faults: None,
            io: TextFile::open(format!("/proc/{pid}/io")),
            transferred: None,
            memory_group: MemoryGroup::of_process(pid, &HostFiles),
            disk_limits: DiskLimits::of_process(pid, &HostFiles),
            switches: Switches::of(pid, clock::mono_now()),
            sockets: Sockets::of(pid),
            is_gone: false,
        })
    }

    /// Whether it lived when it was last read.
    pub fn is_alive(&self) -> bool {
        !self.is_gone
    }

    /// Looks whether it runs, and for new sockets when that is due. True when its sockets have changed.
    pub fn look(&mut self, at: MonoNs) -> bool {
        self.activity = self.watch.look(at);
        self.sockets.look(at, self.activity)
    }

    /// Whether it has run since the last look, or may have.
    pub fn may_run(&self) -> bool {
        self.activity == Activity::MayRun
    }

    /// Passes its counters, each with the time for which it holds. Comes after a look at the same time.
    pub fn read(&mut self, at: MonoNs, namespaces: &Namespaces, take: Take<'_>) {
        match self.activity {
            Activity::Rests => {
                self.rested = Some(at);
                if at.0 >= self.stat_read.0.saturating_add(RESIDENT_EVERY_NS) {
                    self.read_stat(at, take);
                }
            }
            Activity::MayRun => {
                self.pass_rest(take);
                self.read_stat(at, take);
                self.read_io(at, take);
                if let Some(group) = &mut self.memory_group {
                    group.pass(&mut |reading| take(at, reading));
                }
                self.disk_limits.pass(&mut |reading| take(at, reading));
                pass_switches(self.switches.read(at), at, take);
            }
        }
        self.sockets.pass(at, namespaces, &mut |reading| take(at, reading));
    }

    /// Values that only a running process changes held until it ran again.
    fn pass_rest(&mut self, take: Take<'_>) {
        if let Some(rested) = self.rested.take() {
            self.faults.inspect(|faults| faults.pass(rested, take));
            self.transferred.inspect(|transferred| transferred.pass(rested, take));
            pass_switches(self.switches.sum(), rested, take);
        }
    }

    fn read_stat(&mut self, at: MonoNs, take: Take<'_>) {
        let Ok(text) = self.stat.read() else {
            self.is_gone = true;
            return;
        };
        self.stat_read = at;
        if let Some((faults, resident_bytes)) = numbers_from_stat(text) {
            self.faults = Some(faults);
            faults.pass(at, take);
            pass_resident(resident_bytes, at, take);
        }
    }

    fn read_io(&mut self, at: MonoNs, take: Take<'_>) {
        let now = self.io.as_mut().and_then(|io| transferred(io.read().ok()?));
        if let Some(transferred) = now {
            self.transferred = now;
            transferred.pass(at, take);
        }
    }
}

impl Transferred {
    fn pass(&self, at: MonoNs, take: Take<'_>) {
        pass_sum("disk.read", self.read, CounterUnit::Bytes, at, take);
        pass_sum("disk.written", self.written, CounterUnit::Bytes, at, take);
    }
}

impl Faults {
    fn pass(&self, at: MonoNs, take: Take<'_>) {
        pass_sum("faults.minor", self.minor, CounterUnit::Count, at, take);
        pass_sum("faults.major", self.major, CounterUnit::Count, at, take);
    }
}

fn pass_resident(bytes: u64, at: MonoNs, take: Take<'_>) {
    let (kind, unit) = (CounterKind::Level, CounterUnit::Bytes);
    take(at, Reading { name: "resident", kind, unit, value: bytes });
}

fn pass_switches(count: Option<u64>, at: MonoNs, take: Take<'_>) {
    if let Some(count) = count {
        pass_sum("switches", count, CounterUnit::Count, at, take);
    }
}

fn pass_sum(name: &str, value: u64, unit: CounterUnit, at: MonoNs, take: Take<'_>) {
    take(at, Reading { name, kind: CounterKind::Sum, unit, value });
}

/// The last lines of proc_pid_io(5).
fn transferred(text: &str) -> Option<Transferred> {
    let read = number_after(text, "read_bytes:")?;
    Some(Transferred { read, written: number_after(text, "write_bytes:")? })
}

/// Fields 10, 12 and 24 of proc_pid_stat(5), the last one in bytes. They are counted from the end of the
/// name, which may contain anything.
fn numbers_from_stat(text: &str) -> Option<(Faults, u64)> {
    let mut fields = text[text.rfind(')')? + 1..].split_whitespace().map(|field| field.parse::<u64>().ok());
    let faults = Faults { minor: fields.nth(7)??, major: fields.nth(1)?? };
    Some((faults, fields.nth(11)??.saturating_mul(PAGE_BYTES)))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// A process that waits until it is killed.
    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> Self {
            Sleeper(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
        }

        fn follow(&self) -> Process {
            let pid = self.0.id();
            Process::open(pid, ThreadKey(1), ProcessClock::of(pid)).expect("it lives")
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            self.0.kill().and_then(|()| self.0.wait()).unwrap();
        }
    }

    fn read_at(process: &mut Process, second: u64, activity: Activity) -> Vec<(u64, String)> {
        let mut passed = Vec::new();
        process.activity = activity;
        process.read(MonoNs(second * SECOND_NS), &Namespaces::default(), &mut |at, reading| {
            passed.push((at.0 / SECOND_NS, reading.name.to_owned()));
        });
        passed
    }

    fn at(second: u64, names: &[&str]) -> Vec<(u64, String)> {
        names.iter().map(|name| (second, (*name).to_owned())).collect()
    }

    const STAT: [&str; 3] = ["faults.minor", "faults.major", "resident"];

    #[test]
    fn numbers_behind_any_name() {
        let text =
            "42 (a) 1 ) 9) S 1 2 3 4 5 6 10 11 12 13 14 15 16 17 20 0 1 0 99 123456 7 18446744073709551615";
        let expected = (Faults { minor: 10, major: 12 }, 7 * PAGE_BYTES);
        assert_eq!(numbers_from_stat(text), Some(expected));
        for damaged in ["", "42 (a", "42 (a) S 1 2", "42 (a) S 1 2 3 4 5 6 x 8 9"] {
            assert_eq!(numbers_from_stat(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn bytes_of_disks_and_not_those_of_calls() {
        let text = "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\n\
            cancelled_write_bytes: 7\n";
        assert_eq!(transferred(text), Some(Transferred { read: 5, written: 6 }));
        assert_eq!(transferred("read_bytes: 5\n"), None);
    }

    #[test]
    fn resting_process_is_read_only_for_values_that_others_change() {
        let sleeper = Sleeper::start();
        let mut process = sleeper.follow();
        // The control group that the test runs in is not the test's.
        process.memory_group = None;
        let all = [STAT.as_slice(), &["disk.read", "disk.written", "switches"]].concat();
        assert_eq!(read_at(&mut process, 10, Activity::MayRun), at(10, &all));
        for second in 11..18 {
            assert_eq!(read_at(&mut process, second, Activity::Rests), []);
        }
        assert_eq!(read_at(&mut process, 18, Activity::Rests), at(18, &STAT));
        assert_eq!(read_at(&mut process, 19, Activity::Rests), []);
        let sums = ["faults.minor", "faults.major", "disk.read", "disk.written", "switches"];
        assert_eq!(read_at(&mut process, 20, Activity::MayRun), [at(19, &sums), at(20, &all)].concat());
        assert_eq!(read_at(&mut process, 21, Activity::MayRun), at(21, &all));
    }

    #[test]
    fn process_that_dies_at_rest_is_noticed_at_the_next_reading() {
        let sleeper = Sleeper::start();
        let mut process = sleeper.follow();
        let read = |process: &mut Process, second| {
            process.look(MonoNs(second * SECOND_NS));
            process.read(MonoNs(second * SECOND_NS), &Namespaces::default(), &mut |_, _| {});
        };
        (1..5).for_each(|second| read(&mut process, second));
        assert!(process.is_alive());
        drop(sleeper);
        read(&mut process, 5);
        assert!(!process.is_alive());
        assert!(Process::open(u32::MAX, ThreadKey(1), None).is_none());
    }

    #[test]
    fn ended_process_with_a_resting_clock_is_noticed() {
        let sleeper = Sleeper::start();
        let mut process = sleeper.follow();
        read_at(&mut process, 10, Activity::MayRun);
        // As if the pid now belonged to a process whose clock has the same value.
        drop(sleeper);
        assert_eq!(read_at(&mut process, 17, Activity::Rests), []);
        assert!(process.is_alive(), "as far as is known");
        assert_eq!(read_at(&mut process, 18, Activity::Rests), []);
        assert!(!process.is_alive());
    }
}
