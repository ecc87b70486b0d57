// SPDX-License-Identifier: Apache-2.0
//! The sums that are read do not depend on the grouping of deltas into events and of events into commits.

mod fixture;

use std::collections::BTreeMap;

use fixture::*;
use proptest::prelude::*;
use wallprof_model::event::{LatencyDelta, SampleDelta, Weighted};
use wallprof_model::histogram::Cell;
use wallprof_model::state::Metric;
use wallprof_model::{Event, MonoNs, State};
use wallprof_recording::{Recorder, Recording};

/// A delta, and whether a commit follows it.
#[derive(Clone, Debug)]
struct Step {
    second: u32,
    ns: u64,
    bucket: u16,
    what: Weighted,
    has_stack: bool,
    commits: bool,
}

prop_compose! {
    fn step()(
        second in 0..3u32, ns in 0..5_000_000_000u64, bucket in 0..4u16,
        what in prop_oneof![
            Just(Weighted::State(State::User)),
            Just(Weighted::State(State::Preempted)),
            (0..2u16).prop_map(Weighted::Event),
        ],
        has_stack in any::<bool>(), commits in prop::bool::weighted(0.2),
    ) -> Step {
        Step { second, ns, bucket, what, has_stack, commits }
    }
}

impl Step {
    fn sample(&self) -> SampleDelta {
        SampleDelta { what: self.what, user: self.has_stack.then_some(USER), ..sample(self.second, self.ns) }
    }

    fn latency(&self) -> LatencyDelta {
        let cell = Cell { count: 2, total_ns: self.ns, max_ns: self.ns };
        LatencyDelta {
            thread: wallprof_model::ThreadKey(7),
            metric: Metric::RunQueue,
            bucket: self.bucket,
            cell,
        }
    }

    fn take(&self, recorder: &mut Recorder, now: &mut u64) {
        recorder.take(Event::Ledger(ledger(self.second, self.ns))).unwrap();
        recorder.take(Event::Latency(self.latency())).unwrap();
        recorder.take(Event::Sample(self.sample())).unwrap();
        if self.commits {
            *now += 1_000_000_000;
            recorder.commit(at(*now)).unwrap();
        }
    }
}

type SampleSums = BTreeMap<(u32, Weighted, bool), (u64, u64)>;

fn expected_samples(steps: &[Step]) -> SampleSums {
    let mut sums = SampleSums::new();
    for step in steps {
        let sum = sums.entry((SECOND.0 + step.second, step.what, step.has_stack)).or_default();
        *sum = (sum.0 + step.ns, sum.1 + 1);
    }
    sums
}

fn read_samples(recording: &Recording) -> SampleSums {
    let rows = recording.samples(..).unwrap().map(Result::unwrap);
    rows.map(|row| ((row.second.0, row.what, row.user.is_some()), (row.weight, row.count))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn sums_do_not_depend_on_grouping(steps in prop::collection::vec(step(), 0..60)) {
        let place = place();
        let mut recorder = recorder(&place.file());
        take_all(&mut recorder, definitions());
        let mut now = 0;
        for step in &steps {
            step.take(&mut recorder, &mut now);
        }
        recorder.finish(MonoNs(u64::from(u32::MAX) + START.0)).unwrap();
        let recording = Recording::open(&place.file()).unwrap();

        prop_assert_eq!(read_samples(&recording), expected_samples(&steps));
        let thread = recording.threads().unwrap().remove(0);
        let total_ns: u64 = steps.iter().map(|step| step.ns).sum();
        prop_assert_eq!(thread.ledger.wall_ns, total_ns);
        let of_seconds: u64 = recording.ledger(..).unwrap().map(|row| row.unwrap().wall_ns).sum();
        prop_assert_eq!(of_seconds, total_ns);
        if let Some(histogram) = thread.latency.get(&Metric::RunQueue) {
            prop_assert_eq!(histogram.total_ns(), total_ns);
            prop_assert_eq!(histogram.count(), 2 * steps.len() as u64);
            prop_assert_eq!(Some(histogram.max_ns()), steps.iter().map(|step| step.ns).max());
        } else {
            prop_assert!(steps.is_empty());
        }
    }
}
