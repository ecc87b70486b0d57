// SPDX-License-Identifier: Apache-2.0
//! Counters of the whole machine: memory, pressure, interrupts, steal time, run queues, dropped
//! packets.

use wallprof_model::{CounterKind, CounterUnit};
use wallprof_probe::RunQueue;

use super::Reading;
use super::text::{TextFile, number_after};

/// `/proc/meminfo` counts in KiB.
const KIB: u64 = 1024;
/// A tick of `/proc/stat`: USER_HZ is 100 on every supported architecture.
const TICK_NS: u64 = 10_000_000;
/// On machines with more CPUs only the sums over all CPUs are emitted.
const MAX_CPUS: usize = 64;
/// Network cards that are read: the first ones that the kernel lists.
const MAX_CARDS: usize = 32;
/// The cards are asked at each of so many readings, which is about once a second: some ask their hardware.
const CARDS_EVERY: u32 = 10;

/// Lines of `/proc/meminfo` and our names of them.
const MEMORY: [(&str, &str); 4] = [
    ("MemFree:", "memory.free"),
    ("MemAvailable:", "memory.available"),
    ("Cached:", "memory.cached"),
    ("Dirty:", "memory.dirty"),
];

/// `/proc/pressure`: the file, its line, our name.
const PRESSURES: [(&str, &str, &str); 5] = [
    ("cpu", "some", "pressure.cpu.some"),
    ("memory", "some", "pressure.memory.some"),
    ("memory", "full", "pressure.memory.full"),
    ("io", "some", "pressure.io.some"),
    ("io", "full", "pressure.io.full"),
];

/// The files that this kernel has.
pub struct Machine {
    memory: Option<TextFile>,
    stat: Option<TextFile>,
    pressures: Vec<(&'static str, TextFile)>,
    softnet: Option<TextFile>,
    cards: Option<TextFile>,
    readings: u32,
    cpu_names: Vec<[String; 2]>,
    queues: Vec<RunQueue>,
}

impl Machine {
    pub fn open() -> Self {
        let pressure = |file| Some((file, TextFile::open(format!("/proc/pressure/{file}"))?));
        Machine {
            memory: TextFile::open("/proc/meminfo"),
            stat: TextFile::open("/proc/stat"),
            pressures: ["cpu", "memory", "io"].into_iter().filter_map(pressure).collect(),
            softnet: TextFile::open("/proc/net/softnet_stat"),
            cards: TextFile::open("/proc/net/dev"),
            readings: 0,
            cpu_names: Vec::new(),
            queues: Vec::new(),
        }
    }

    /// `queues` are the run queues of all CPUs by number.
    pub fn read(&mut self, queues: &[RunQueue], take: &mut dyn FnMut(Reading<'_>)) {
        if let Some(Ok(text)) = self.memory.as_mut().map(TextFile::read) {
            read_memory(text, take);
        }
        for (file, content) in &mut self.pressures {
            if let Ok(text) = content.read() {
                read_pressure(file, text, take);
            }
        }
        self.name_cpus(queues.len());
        if let Some(Ok(text)) = self.stat.as_mut().map(TextFile::read) {
            read_stat(text, &self.cpu_names, take);
        }
        if let Some(Ok(text)) = self.softnet.as_mut().map(TextFile::read) {
            read_softnet(text, take);
        }
        if self.readings.is_multiple_of(CARDS_EVERY)
            && let Some(Ok(text)) = self.cards.as_mut().map(TextFile::read)
        {
            read_cards(text, take);
        }
        self.readings = self.readings.wrapping_add(1);
        self.read_queues(queues, take);
    }

    fn name_cpus(&mut self, count: usize) {
        let names = |cpu| [format!("cpu{cpu}.steal"), format!("cpu{cpu}.run_queue")];
        self.cpu_names.extend((self.cpu_names.len()..count.min(MAX_CPUS)).map(names));
    }

    /// The mean number of threads that ran or were runnable since the last reading.
    fn read_queues(&mut self, queues: &[RunQueue], take: &mut dyn FnMut(Reading<'_>)) {
        let kind = CounterKind::Level;
        for ((queue, before), [_, name]) in queues.iter().zip(&self.queues).zip(&self.cpu_names) {
            let looks = queue.readings.saturating_sub(before.readings);
            let runnable = queue.runnable.saturating_sub(before.runnable);
            if let Some(value) = (runnable + looks / 2).checked_div(looks) {
                take(Reading { name, kind, unit: CounterUnit::Count, value });
            }
        }
        self.queues = queues.to_vec();
    }
}

fn read_memory(text: &str, take: &mut dyn FnMut(Reading<'_>)) {
    for (line, name) in MEMORY {
        if let Some(kib) = number_after(text, line) {
            let value = kib.saturating_mul(KIB);
            take(Reading { name, kind: CounterKind::Level, unit: CounterUnit::Bytes, value });
        }
    }
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=12`, in µs.
fn read_pressure(file: &str, text: &str, take: &mut dyn FnMut(Reading<'_>)) {
    for (_, line, name) in PRESSURES.into_iter().filter(|(of, ..)| *of == file) {
        let line = text.lines().find(|found| found.starts_with(line));
        let total = line.and_then(|line| line.rsplit_once("total=")?.1.parse::<u64>().ok());
        if let Some(micros) = total {
            let value = micros.saturating_mul(1_000);
            take(Reading { name, kind: CounterKind::Sum, unit: CounterUnit::Ns, value });
        }
    }
}

/// One line a CPU, in hexadecimal: the second field counts packets that were dropped because the CPU's queue
/// was full, the third how often the softirq stopped before its queue was empty (softnet_seq_show).
fn read_softnet(text: &str, take: &mut dyn FnMut(Reading<'_>)) {
    let field = |line: &str, at: usize| u64::from_str_radix(line.split_whitespace().nth(at)?, 16).ok();
    for (at, name) in [(1, "softnet.drops"), (2, "softnet.squeezed")] {
        let value = text.lines().filter_map(|line| field(line, at)).sum();
        take(Reading { name, kind: CounterKind::Sum, unit: CounterUnit::Count, value });
    }
}

/// `eth0: bytes packets errs drop fifo frame compressed multicast bytes packets errs drop …`, received first.
fn read_cards(text: &str, take: &mut dyn FnMut(Reading<'_>)) {
    let cards = text.lines().filter_map(|line| line.split_once(':'));
    for (card, numbers) in cards.take(MAX_CARDS) {
        let mut numbers = numbers.split_whitespace().map(|number| number.parse::<u64>().ok());
        for (skipped, of) in [(3, "rx_drops"), (7, "tx_drops")] {
            if let Some(Some(value)) = numbers.nth(skipped) {
                let name = &format!("{}.{of}", card.trim());
                take(Reading { name, kind: CounterKind::Sum, unit: CounterUnit::Count, value });
            }
        }
    }
}

/// `cpu0 user nice system idle iowait irq softirq steal …`, then `intr total …`.
fn read_stat(text: &str, names: &[[String; 2]], take: &mut dyn FnMut(Reading<'_>)) {
    let kind = CounterKind::Sum;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("intr ") {
            if let Some(value) = rest.split(' ').next().and_then(|total| total.parse().ok()) {
                take(Reading { name: "interrupts", kind, unit: CounterUnit::Count, value });
            }
            return;
        }
        let Some((cpu, times)) = line.strip_prefix("cpu").and_then(|rest| rest.split_once(' ')) else {
            return;
        };
        let name = match cpu.parse::<usize>() {
            Ok(cpu) => names.get(cpu).map(|[name, _]| name.as_str()),
            Err(_) if names.len() >= MAX_CPUS => Some("steal"),
            Err(_) => None,
        };
        let ticks = times.split_whitespace().nth(7).and_then(|ticks| ticks.parse::<u64>().ok());
        if let (Some(name), Some(ticks)) = (name, ticks) {
            take(Reading { name, kind, unit: CounterUnit::Ns, value: ticks.saturating_mul(TICK_NS) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(read: impl FnOnce(&mut dyn FnMut(Reading<'_>))) -> Vec<(String, u64)> {
        let mut taken = Vec::new();
        read(&mut |reading| taken.push((reading.name.to_owned(), reading.value)));
        taken
    }

    fn named(name: &str, value: u64) -> (String, u64) {
        (name.to_owned(), value)
    }

    #[test]
    fn dropped_packets_of_all_cpus_and_of_each_card() {
        let softnet = "01eb2b46 0000000a 00000002 00000000\n00536a7c 00000006 00000005 00000000\n";
        assert_eq!(
            taken(|take| read_softnet(softnet, take)),
            [named("softnet.drops", 16), named("softnet.squeezed", 7)]
        );
        let cards = "Inter-|   Receive         |  Transmit\n face |bytes    packets errs drop\n\
            \x20   lo: 9 8 7 0 0 0 0 0 9 8 7 0 0 0 0 0\n  eth0:1 2 3 41 5 6 7 8 9 10 11 42 13 14 15 16\n  cut: 1 2 3 4\n";
        assert_eq!(
            taken(|take| read_cards(cards, take)),
            [
                named("lo.rx_drops", 0),
                named("lo.tx_drops", 0),
                named("eth0.rx_drops", 41),
                named("eth0.tx_drops", 42),
                named("cut.rx_drops", 4)
            ]
        );
        assert_eq!(
            taken(|take| read_softnet("x", take)),
            [named("softnet.drops", 0), named("softnet.squeezed", 0)]
        );
    }

    #[test]
    fn memory_in_bytes() {
        let text = "MemTotal: 9 kB\nMemFree:         2 kB\nSwapCached: 7 kB\nCached: 3 kB\n";
        assert_eq!(
            taken(|take| read_memory(text, take)),
            [named("memory.free", 2048), named("memory.cached", 3072)]
        );
    }

    #[test]
    fn pressure_in_nanoseconds() {
        let text = "some avg10=1.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 total=3\n";
        assert_eq!(
            taken(|take| read_pressure("io", text, take)),
            [named("pressure.io.some", 12_000), named("pressure.io.full", 3_000)]
        );
        assert_eq!(taken(|take| read_pressure("cpu", "", take)), []);
    }

    #[test]
    fn steal_time_and_interrupts() {
        let text =
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 1 1 1 1 1 1 1 2\nintr 77 1 2\nctxt 5\n";
        let names = [["cpu0.steal".into(), String::new()], ["cpu1.steal".into(), String::new()]];
        assert_eq!(
            taken(|take| read_stat(text, &names, take)),
            [named("cpu0.steal", 80_000_000), named("cpu1.steal", 20_000_000), named("interrupts", 77)]
        );
        assert_eq!(taken(|take| read_stat("damaged", &names, take)), []);
    }

    #[test]
    fn run_queues_are_means_since_the_last_reading() {
        let mut machine = Machine::open();
        machine.name_cpus(2);
        let queue = |runnable, readings| RunQueue { runnable, readings };
        assert_eq!(taken(|take| machine.read_queues(&[queue(5, 5), queue(0, 0)], take)), []);
        let read = taken(|take| machine.read_queues(&[queue(35, 15), queue(0, 0)], take));
        assert_eq!(read, [named("cpu0.run_queue", 3)], "a CPU without a look has no value");
    }

    #[test]
    fn this_machine_has_memory() {
        let read = taken(|take| Machine::open().read(&[], take));
        assert!(read.iter().any(|(name, bytes)| name == "memory.available" && *bytes > 1 << 20), "{read:?}");
    }
}
