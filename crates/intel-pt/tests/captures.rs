// SPDX-License-Identifier: Apache-2.0
//! Traces of real processors: all their bytes are known packets.

use std::collections::BTreeMap;

use wallprof_intel_pt::generator::Program;
use wallprof_intel_pt::packets::{Packets, find_psb};
use wallprof_intel_pt::{
    ClockFacts, Code, Event, EventKind, Function, GapCause, RunCache, Schedule, Segment, SpaceId, ThreadId,
    Trace, decode_segment, segment_starts,
};

const CAPTURES: [(&str, &[u8]); 3] = [
    ("45", include_bytes!("data/45.intelpt_trace")),
    ("51", include_bytes!("data/51.intelpt_trace")),
    ("multi-file", include_bytes!("data/multi-file.trace")),
];

/// Packets of each kind from the first synchronisation point on.
fn kinds(bytes: &[u8]) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for packet in Packets::starting_at(bytes, find_psb(bytes, 0).expect("a PSB")) {
        let text = format!("{:?}", packet.expect("a packet"));
        let kind = text.split(|letter: char| !letter.is_alphanumeric()).next().expect("a name");
        *kinds.entry(kind.to_owned()).or_default() += 1;
    }
    kinds
}

#[test]
fn every_byte_belongs_to_a_packet() {
    let text: Vec<String> =
        CAPTURES.iter().map(|(name, bytes)| format!("{name} {:?}", kinds(bytes))).collect();
    assert_eq!(text, GOLDEN);
}

const GOLDEN: [&str; 3] = [
    "45 {\"Cbr\": 3, \"Fup\": 3, \"ModeExec\": 2, \"ModeTsx\": 2, \"Pad\": 45, \"Psb\": 2, \"PsbEnd\": 2, \
     \"TipPgd\": 1, \"Tnt\": 2062, \"Tsc\": 3}",
    "51 {\"Cbr\": 83, \"Fup\": 4, \"ModeExec\": 3, \"ModeTsx\": 2, \"Pad\": 814, \"Psb\": 3, \"PsbEnd\": 3, \
     \"Tip\": 141, \"TipPgd\": 3, \"TipPge\": 2, \"Tnt\": 1851, \"Tsc\": 83}",
    "multi-file {\"Cbr\": 12, \"Fup\": 12, \"ModeExec\": 6, \"ModeTsx\": 6, \"Pad\": 172, \"Psb\": 12, \
     \"PsbEnd\": 12, \"Tip\": 9, \"TipPgd\": 6, \"TipPge\": 6, \"Tnt\": 5}",
];

struct Nothing;

impl Code for Nothing {
    fn bytes(&self, _: SpaceId, _: u64) -> Option<&[u8]> {
        None
    }

    fn function(&self, _: SpaceId, _: u64) -> Option<Function> {
        None
    }
}

#[test]
fn without_images_there_are_only_gaps_and_times_do_not_decrease() {
    for (name, bytes) in CAPTURES {
        let schedule = Schedule::of_thread(ThreadId(1), Program::SPACE);
        let clock = ClockFacts {
            mtc_shift: 3,
            tsc_ctc_numerator: 0,
            tsc_ctc_denominator: 0,
            max_non_turbo_ratio: 24,
            reference_ticks: 0,
        };
        let trace = Trace { bytes, code: &Nothing, schedule: &schedule, clock, return_compression: true };
        let mut events: Vec<Event> = Vec::new();
        let start = segment_starts(bytes)[0];
        let whole = Segment { start, end: bytes.len(), first: true };
        decode_segment(&trace, whole, &mut RunCache::new(), &mut events);
        assert!(events.windows(2).all(|pair| pair[0].ticks <= pair[1].ticks), "{name}");
        for event in &events {
            let expected = matches!(
                event.kind,
                EventKind::Switch(_)
                    | EventKind::Start
                    | EventKind::Gap(GapCause::NoCode | GapCause::Overflow)
            );
            assert!(expected, "{name}: {event:x?}");
        }
    }
}
