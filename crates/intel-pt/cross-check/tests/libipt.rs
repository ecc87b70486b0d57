// SPDX-License-Identifier: Apache-2.0
//! Traces of the encoder, read by Intel's decoder, so that no misunderstanding is on both sides.

use wallprof_intel_pt::generator::{Plan, generate};
use wallprof_intel_pt::{Event, EventKind, RunCache, Segment, decode_segment};
use wallprof_intel_pt_cross_check::{Transfer, transfers};

fn ours(generated: &wallprof_intel_pt::generator::Generated) -> Vec<Transfer> {
    let mut events: Vec<Event> = Vec::new();
    let whole = Segment { start: 0, end: generated.trace.len(), first: true };
    decode_segment(&generated.as_trace(), whole, &mut RunCache::new(), &mut events);
    let transfer = |event: &Event| match event.kind {
        EventKind::Call { .. } => Some(Transfer { is_call: true, from: event.from, to: event.to }),
        EventKind::Return => Some(Transfer { is_call: false, from: event.from, to: event.to }),
        _ => None,
    };
    events.iter().filter_map(transfer).collect()
}

/// Exceptions and long jumps are left out: libipt keeps the call of a return that went elsewhere on its
/// stack; the manual and perf remove it.
#[test]
fn libipt_sees_the_same_calls_and_returns() {
    let mut compared = 0;
    for seed in 0..500 {
        let plan = Plan {
            functions: 6 + seed as usize % 40,
            threads: 1,
            instructions: 4_000,
            overflows: false,
            exceptions: false,
        };
        let generated = generate(seed, plan);
        if generated.settings.deferred_targets {
            continue; // libipt reads all branch results before a target; the comparison with perf has these.
        }
        let (ours, theirs) = (ours(&generated), transfers(&generated));
        // At the end libipt may continue as far as the code alone allows, or lack the last transfer's target.
        let common = ours.len().min(theirs.len());
        assert!(common + 1 >= ours.len(), "seed {seed}: {common} of {} {:?}", ours.len(), generated.settings);
        let different = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
        assert_eq!(
            different,
            None,
            "seed {seed}: {:x?} {:?}",
            different.map(|at| (ours[at], theirs[at])),
            generated.settings
        );
        assert!(theirs[common..].iter().all(|transfer| transfer.is_call), "seed {seed}");
        compared += common;
    }
    assert!(compared > 10_000, "{compared}");
    eprintln!("{compared} calls and returns");
}
