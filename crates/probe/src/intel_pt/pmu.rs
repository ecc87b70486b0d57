// SPDX-License-Identifier: Apache-2.0
//! The features of the processor's Intel PT, from sysfs, and the event that uses most of them.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::events::term_format;
use crate::facts::files::Files;

const NAME: &str = "intel_pt";
const FOLDER: &str = "/sys/bus/event_source/devices/intel_pt";
/// perf's defaults: a packet of time every 2³ ticks of the crystal, a synchronisation point every 2 KiB · 2³
/// of trace.
const USUAL_MTC_PERIOD: u32 = 3;
const USUAL_PSB_PERIOD: u32 = 3;

/// The PMU and the bits of its event's `config`; a bit that this processor does not have is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pmu {
    /// `perf_event_attr.type`.
    pub kind: u32,
    /// Every call and return, with the times of all clocks that the processor has.
    pub config: u64,
    pub time_stamps: u64,
    pub no_return_compression: u64,
    pub mtc: u64,
    pub mtc_period: u64,
    pub cycles: u64,
    /// The ratio of the time-stamp counter's ticks to the crystal's; zeros where it is not known.
    pub tsc_to_crystal: (u32, u32),
    pub max_non_turbo_ratio: u32,
}

/// Why tracing is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The kernel shows no such PMU: the processor has none, or a virtual machine hides it.
    Pmu,
    /// Its files do not describe how to request a trace.
    Format,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Pmu => write!(
                f,
                "this machine has no Intel PT ({FOLDER} is missing): record on an Intel processor of 2015 \
                 or later, outside virtual machines, or leave --intel-pt out"
            ),
            Missing::Format => write!(
                f,
                "this kernel does not describe Intel PT ({FOLDER}/format is incomplete): run a newer \
                 kernel, or leave --intel-pt out"
            ),
        }
    }
}

impl std::error::Error for Missing {}

impl Pmu {
    pub fn read(files: &dyn Files) -> Result<Pmu, Missing> {
        let kind = number(files, "type").ok_or(Missing::Pmu)?;
        let bits = |term: &str| term_format(files, NAME, term).map_or(0, |format| format.mask());
        let mut pmu = Pmu {
            kind,
            config: 0,
            time_stamps: bits("tsc"),
            no_return_compression: bits("noretcomp"),
            mtc: if flag(files, "mtc") { bits("mtc") } else { 0 },
            mtc_period: bits("mtc_period"),
            cycles: if flag(files, "psb_cyc") { bits("cyc") } else { 0 },
            tsc_to_crystal: ratio(files).unwrap_or_default(),
            max_non_turbo_ratio: number(files, "max_nonturbo_ratio").unwrap_or(0),
        };
        if pmu.time_stamps == 0 {
            return Err(Missing::Format);
        }
        // Kernels before 4.13 always trace branches, and have no bits to say so.
        pmu.config = bits("pt") | bits("branch") | pmu.time_stamps | pmu.mtc | pmu.cycles;
        if pmu.mtc != 0 {
            pmu.config |= period(files, "mtc_period", "mtc_periods", USUAL_MTC_PERIOD);
        }
        if flag(files, "psb_cyc") {
            pmu.config |= period(files, "psb_period", "psb_periods", USUAL_PSB_PERIOD);
        }
        Ok(pmu)
    }

    /// Whether times have the resolution of a cycle.
    pub fn counts_cycles(&self) -> bool {
        self.cycles != 0
    }
}

fn read(files: &dyn Files, name: &str) -> Option<String> {
    let path: PathBuf = Path::new(FOLDER).join(name);
    files.read(&path).ok().map(|text| text.trim().to_owned())
}

fn number(files: &dyn Files, name: &str) -> Option<u32> {
    read(files, name)?.parse().ok()
}

/// `caps/NAME` is 1.
fn flag(files: &dyn Files, name: &str) -> bool {
    capability(files, name).is_some_and(|value| value != 0)
}

/// Capabilities are hexadecimal (`pt_cap_show` in arch/x86/events/intel/pt.c).
fn capability(files: &dyn Files, name: &str) -> Option<u32> {
    let text = read(files, &format!("caps/{name}"))?;
    u32::from_str_radix(text.strip_prefix("0x").unwrap_or(&text), 16).ok()
}

/// `NUMERATOR:DENOMINATOR`.
fn ratio(files: &dyn Files) -> Option<(u32, u32)> {
    let text = read(files, "tsc_art_ratio")?;
    let (numerator, denominator) = text.split_once(':')?;
    Some((numerator.parse().ok()?, denominator.parse().ok()?))
}

/// The bits that select a period. Of the periods that the processor has: `usual` or the next smaller one,
/// else the smallest.
fn period(files: &dyn Files, term: &str, periods: &str, usual: u32) -> u64 {
    let offered = capability(files, periods).unwrap_or(0);
    let usable = offered & ((2 << usual) - 1);
    let selected = if usable != 0 { usable.ilog2() } else { offered.trailing_zeros() };
    let format = term_format(files, NAME, term).filter(|_| offered != 0);
    format.and_then(|format| format.spread(selected.into())).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::files::fake::FakeFiles;

    /// The files of a Xeon of 2019.
    fn xeon() -> FakeFiles {
        [
            ("type", "8\n"),
            ("max_nonturbo_ratio", "23\n"),
            ("tsc_art_ratio", "184:2\n"),
            ("format/pt", "config:0\n"),
            ("format/cyc", "config:1\n"),
            ("format/mtc", "config:9\n"),
            ("format/tsc", "config:10\n"),
            ("format/noretcomp", "config:11\n"),
            ("format/branch", "config:13\n"),
            ("format/mtc_period", "config:14-17\n"),
            ("format/cyc_thresh", "config:19-22\n"),
            ("format/psb_period", "config:24-27\n"),
            ("caps/mtc", "1\n"),
            ("caps/mtc_periods", "249\n"),
            ("caps/psb_cyc", "1\n"),
            ("caps/psb_periods", "3f\n"),
        ]
        .into_iter()
        .fold(FakeFiles::default(), |files, (path, text)| files.with(&format!("{FOLDER}/{path}"), text))
    }

    #[test]
    fn the_event_asks_for_all_clocks() {
        let pmu = Pmu::read(&xeon()).expect("it is there");
        assert_eq!((pmu.kind, pmu.max_non_turbo_ratio, pmu.tsc_to_crystal), (8, 23, (184, 2)));
        // pt, cyc, mtc, tsc, branch, and the usual periods.
        assert_eq!(pmu.config, 1 | 1 << 1 | 1 << 9 | 1 << 10 | 1 << 13 | 3 << 14 | 3 << 24);
        assert_eq!((pmu.no_return_compression, pmu.mtc_period), (1 << 11, 0xf << 14));
        assert!(pmu.counts_cycles());
    }

    #[test]
    fn missing_features_are_not_requested() {
        let broadwell =
            xeon().with(&format!("{FOLDER}/caps/psb_cyc"), "0\n").with(&format!("{FOLDER}/caps/mtc"), "0\n");
        let pmu = Pmu::read(&broadwell).expect("it is there");
        assert_eq!(pmu.config, 1 | 1 << 10 | 1 << 13);
        assert!(!pmu.counts_cycles() && pmu.mtc == 0);
        let other = xeon().with(&format!("{FOLDER}/caps/mtc_periods"), "40\n");
        assert_eq!(Pmu::read(&other).expect("it is there").config >> 14 & 0xf, 6);
        let none = xeon().with(&format!("{FOLDER}/caps/mtc_periods"), "0\n");
        assert_eq!(Pmu::read(&none).expect("it is there").config >> 14 & 0xf, 0);
    }

    #[test]
    fn missing_hardware_is_reported_with_advice() {
        assert_eq!(Pmu::read(&FakeFiles::default()), Err(Missing::Pmu));
        let silent = FakeFiles::new(&[("/sys/bus/event_source/devices/intel_pt/type", "8\n")]);
        assert_eq!(Pmu::read(&silent), Err(Missing::Format));
        for missing in [Missing::Pmu, Missing::Format] {
            let sentence = missing.to_string();
            assert!(sentence.contains(": ") && sentence.contains("--intel-pt") && !sentence.contains('\n'));
        }
        for odd in ["-1", "x", "99999999999"] {
            let files = xeon().with("/sys/bus/event_source/devices/intel_pt/type", odd);
            assert_eq!(Pmu::read(&files), Err(Missing::Pmu));
        }
    }
}
