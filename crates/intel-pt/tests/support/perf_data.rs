// SPDX-License-Identifier: Apache-2.0
//! The part of perf.data that a recording with one trace needs.

use wallprof_intel_pt::{ClockFacts, Schedule, SpaceId, Switch, ThreadId, TimeConv};

const SWITCH_CPU_WIDE: u32 = 15;
const AUXTRACE_INFO: u32 = 70;
const AUXTRACE: u32 = 71;
const MISC_SWITCH_OUT: u16 = 0x2000;
const MISC_SWITCH_OUT_PREEMPT: u16 = 0x4000;

pub struct Recording {
    pub trace: Vec<u8>,
    pub clock: ClockFacts,
    pub time_conv: TimeConv,
    pub schedule: Schedule,
}

impl Recording {
    pub fn parse(file: &[u8]) -> Recording {
        assert_eq!(&file[..8], b"PERFILE2");
        let (attrs, data) = (word(file, 24) as usize, (word(file, 40) as usize, word(file, 48) as usize));
        let config = word(file, attrs + 8);
        let mut info = Vec::new();
        let mut trace = Vec::new();
        let mut switches = Vec::new();
        let mut at = data.0;
        while at < data.0 + data.1 {
            let (kind, misc, size) = (half(file, at), quarter(file, at + 4), quarter(file, at + 6) as usize);
            match kind {
                AUXTRACE_INFO => info = (0..16).map(|index| word(file, at + 16 + 8 * index)).collect(),
                AUXTRACE => {
                    let length = word(file, at + 8) as usize;
                    trace.extend_from_slice(&file[at + size..at + size + length]);
                    at += length;
                }
                SWITCH_CPU_WIDE => switches.push((misc, half(file, at + 12), word(file, at + 24))),
                _ => {}
            }
            at += size;
        }
        let time_conv = TimeConv { shift: info[1] as u16, mult: info[2], zero: info[3] };
        let clock = ClockFacts {
            mtc_shift: (config >> 14 & 15) as u8,
            tsc_ctc_numerator: info[12] as u32,
            tsc_ctc_denominator: info[13] as u32,
            max_non_turbo_ratio: info[15] as u8,
            reference_ticks: 0,
        };
        Recording { trace, clock, time_conv, schedule: schedule_from(&switches, time_conv) }
    }
}

/// Each record of a switch out has the next thread.
fn schedule_from(switches: &[(u16, u32, u64)], time_conv: TimeConv) -> Schedule {
    if switches.is_empty() {
        return Schedule::of_thread(ThreadId(5000), SpaceId(1));
    }
    let out = |misc: u16| misc & MISC_SWITCH_OUT != 0;
    let switches = switches.iter().filter(|switch| out(switch.0)).map(|&(misc, tid, ns)| Switch {
        ticks: time_conv.ticks_from_ns(ns),
        thread: ThreadId(tid),
        space: SpaceId(1),
        departure: match misc & MISC_SWITCH_OUT_PREEMPT {
            0 => wallprof_intel_pt::Departure::Blocked,
            _ => wallprof_intel_pt::Departure::Preempted,
        },
    });
    Schedule::new(switches)
}

pub fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

pub fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub fn quarter(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}
