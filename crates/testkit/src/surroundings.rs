// SPDX-License-Identifier: Apache-2.0
//! What else a machine does while a test runs: what a measured figure is worth.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::time::Duration;

use crate::busy::busy_ns;
use crate::proc::steal_ns;

/// One reading of the machine's counters.
pub struct Surroundings {
    busy_ns: u64,
    steal_ns: u64,
    /// Time in which some task waited for a CPU, for memory, for a disk, ns; `None` without PSI.
    pressure_ns: [Option<u64>; 3],
}

const RESOURCES: [&str; 3] = ["cpu", "memory", "io"];

/// The same between two readings.
pub struct Meanwhile {
    change: Surroundings,
    elapsed: Duration,
    load: String,
}

impl Surroundings {
    pub fn now() -> Self {
        let pressure_ns = RESOURCES.map(|resource| {
            let text = fs::read_to_string(format!("/proc/pressure/{resource}")).ok()?;
            total_of_some_us(&text).map(|us| us * 1000)
        });
        Surroundings { busy_ns: busy_ns(), steal_ns: steal_ns(), pressure_ns }
    }

    pub fn since(self, before: &Surroundings, elapsed: Duration) -> Meanwhile {
        let mut pressure_ns = self.pressure_ns;
        for (now, before) in pressure_ns.iter_mut().zip(before.pressure_ns) {
            *now = now.zip(before).map(|(now, before)| now.saturating_sub(before));
        }
        let change = Surroundings {
            busy_ns: self.busy_ns.saturating_sub(before.busy_ns),
            steal_ns: self.steal_ns.saturating_sub(before.steal_ns),
            pressure_ns,
        };
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split_whitespace().next().unwrap_or("unknown").to_owned();
        Meanwhile { change, elapsed, load }
    }
}

/// From a file of /proc/pressure: `some avg10=… total=MICROSECONDS`.
fn total_of_some_us(text: &str) -> Option<u64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.split_whitespace().find_map(|field| field.strip_prefix("total="))?.parse().ok()
}

impl Display for Meanwhile {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let percent = |ns: u64| ns as f64 * 100.0 / self.elapsed.as_nanos().max(1) as f64;
        write!(
            f,
            "load {}, CPUs busy {:.0} %, steal {:.1} %, pressure",
            self.load,
            percent(self.change.busy_ns),
            percent(self.change.steal_ns)
        )?;
        for (resource, ns) in RESOURCES.into_iter().zip(self.change.pressure_ns) {
            match ns {
                Some(ns) => write!(f, " {resource} {:.0} %", percent(ns))?,
                None => write!(f, " {resource} unknown")?,
            }
        }
        write!(f, ", {:.1} s", self.elapsed.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_the_total_of_some() {
        let text = "some avg10=1.24 avg60=1.55 avg300=0.59 total=2590691\nfull avg10=0.00 total=7\n";
        assert_eq!(total_of_some_us(text), Some(2_590_691));
        assert_eq!(total_of_some_us(""), None);
    }

    #[test]
    fn shares_are_of_the_elapsed_time() {
        let reading = |ns| Surroundings { busy_ns: ns, steal_ns: 0, pressure_ns: [Some(ns), None, None] };
        let meanwhile = reading(1_500_000_000).since(&reading(500_000_000), Duration::from_secs(2));
        let text = meanwhile.to_string();
        assert!(
            text.ends_with("CPUs busy 50 %, steal 0.0 %, pressure cpu 50 % memory unknown io unknown, 2.0 s"),
            "{text}"
        );
    }
}
