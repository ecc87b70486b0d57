// SPDX-License-Identifier: Apache-2.0
//! A recording stays within its size budget, and counts the stalls that it folded.

mod fixture;

use fixture::*;
use wallprof_model::event::Stall;
use wallprof_model::profile::FoldedStalls;
use wallprof_model::{Event, Reason, StallReason, ThreadKey};
use wallprof_recording::{
    Recorder, Recording, RecordingStart, STALLS_FOLDED, SizeBudget, StallFilter, Summary,
};

const SECONDS: u64 = 30;
const STALLS_A_SECOND: u64 = 2_000;

/// Records thirty seconds of many short stalls, every other one voluntary, and one long stall each second.
fn record(place: &Place, budget: SizeBudget) -> Summary {
    let mut recorder = Recorder::create(&place.file(), &RecordingStart { budget, ..start() }).unwrap();
    take_all(&mut recorder, definitions());
    for second in 0..SECONDS {
        let start = second * 1_000_000_000;
        for index in 0..STALLS_A_SECOND {
            let voluntary = index % 2 == 0;
            let short = Stall { voluntary, ..stall(start + index * 100_000, 1_000 + index) };
            recorder.take(Event::Stall(Box::new(short))).unwrap();
        }
        recorder.take(Event::Stall(Box::new(stall(start, 900_000_000)))).unwrap();
        recorder.commit(at(start + 1_000_000_000)).unwrap();
    }
    recorder.finish(at(SECONDS * 1_000_000_000)).unwrap()
}

fn kept(recording: &Recording) -> Vec<wallprof_model::profile::StallRecord> {
    let all = StallFilter { include_voluntary: true, ..StallFilter::default() };
    recording.stalls(&all).unwrap().map(Result::unwrap).collect()
}

#[test]
fn recording_within_its_budget_keeps_everything() {
    let place = place();
    let summary = record(&place, SizeBudget::default());
    assert_eq!(summary.stalls, SECONDS * (STALLS_A_SECOND + 1));
    let recording = Recording::open(&place.file()).unwrap();
    assert!(recording.folded().unwrap().is_empty());
    assert!(recording.info().unwrap().losses.is_empty());
}

#[test]
fn short_and_voluntary_stalls_are_folded_over_the_budget() {
    let place = place();
    let budget = SizeBudget { bytes_per_minute: 1 << 20, burst_bytes: 512 << 10 };
    let summary = record(&place, budget);
    let allowed = (512 << 10) + (1 << 19);
    assert!(summary.file_bytes < allowed + allowed / 5, "{} bytes, allowed {allowed}", summary.file_bytes);

    let recording = Recording::open(&place.file()).unwrap();
    let folded = recording.folded().unwrap();
    let kept = kept(&recording);
    let folded_count: u64 = folded.iter().map(|fold| fold.count).sum();
    assert_eq!(folded_count + kept.len() as u64, SECONDS * (STALLS_A_SECOND + 1), "none is forgotten");
    assert_eq!(recording.info().unwrap().losses.get(STALLS_FOLDED), Some(&folded_count));
    assert_eq!((summary.folded, summary.stalls), (folded_count, kept.len() as u64));

    let total_ns: u64 =
        SECONDS * ((0..STALLS_A_SECOND).map(|index| 1_000 + index).sum::<u64>() + 900_000_000);
    let kept_ns: u64 = kept.iter().map(|stall| stall.duration_ns()).sum();
    assert_eq!(kept_ns + folded.iter().map(|fold| fold.total_ns).sum::<u64>(), total_ns);

    assert_eq!(kept.iter().filter(|stall| stall.duration_ns() == 900_000_000).count(), SECONDS as usize);
    let of = |voluntary| folded.iter().find(|fold| fold.voluntary == voluntary).unwrap();
    let FoldedStalls { thread, reason, max_ns, .. } = *of(false);
    assert_eq!((thread, reason), (ThreadKey(1), StallReason::Blocked(Reason::Lock)));
    assert!(of(true).count > of(false).count);
    assert!(max_ns < 1_000 + STALLS_A_SECOND);
}

#[test]
fn open_stalls_are_kept_without_any_budget() {
    let place = place();
    let budget = SizeBudget { bytes_per_minute: 0, burst_bytes: 0 };
    let mut recorder = Recorder::create(&place.file(), &RecordingStart { budget, ..start() }).unwrap();
    take_all(&mut recorder, definitions());
    for now in 1..10 {
        let open = Stall { open: true, ..stall(0, now * 1_000) };
        recorder.take(Event::Stall(Box::new(open))).unwrap();
        recorder.take(Event::Stall(Box::new(stall(now, 5)))).unwrap();
        recorder.commit(at(now * 1_000)).unwrap();
    }
    recorder.finish(at(20_000)).unwrap();
    let kept = kept(&Recording::open(&place.file()).unwrap());
    assert_eq!(kept.len(), 1);
    assert_eq!((kept[0].open, kept[0].duration_ns()), (true, 9_000));
}
