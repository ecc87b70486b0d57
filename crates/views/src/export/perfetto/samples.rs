// SPDX-License-Identifier: Apache-2.0
//! Weighted stacks of each second as samples, whose weights are wall time and the time in one state.

use std::io;

use wallprof_analysis::bins::BinnedStacks;
use wallprof_analysis::weights::WeightedStack;
use wallprof_model::MonoNs;
use wallprof_model::profile::Thread;

use super::Trace;
use super::messages::{StackSample, TaskContext};
use super::sequence::Sequence;
use crate::escape::escape;
use crate::frame_name::marked_name;

/// `threads` are those of the stacks. Threads that the trace does not have are skipped.
pub(super) fn write(trace: &mut Trace<'_>, stacks: &BinnedStacks, threads: &[Thread]) -> io::Result<()> {
    let start = trace.info.start;
    for bin in stacks.by_thread(threads, start) {
        let info = &bin.thread.info;
        if trace.tracks.thread(info.key).is_none() {
            continue;
        }
        let task = TaskContext { pid: Some(info.pid), tid: Some(info.tid) };
        let mut passed_ns = 0u64;
        for stack in &bin.stacks {
            passed_ns = passed_ns.saturating_add(stack.weight);
            let at = MonoNs(start.0.saturating_add((bin.from + passed_ns).min(bin.to)));
            let sample = sample(&mut trace.out, stacks, stack, task);
            trace.out.sample(at, sample)?;
        }
    }
    Ok(())
}

fn sample(
    out: &mut Sequence<'_>,
    stacks: &BinnedStacks,
    stack: &WeightedStack,
    task: TaskContext,
) -> StackSample {
    let mut frames = Vec::new();
    for frame in &stack.frames {
        for function in stacks.frames().get(*frame).functions() {
            let source = function.line.and_then(|line| Some((line.file.as_deref()?, line.line)));
            let source = source.map(|(file, line)| (escape(file), line));
            frames.push(
                out.frame(&marked_name(&function), source.as_ref().map(|(file, line)| (&**file, *line))),
            );
        }
    }
    let state = stack.state.map_or_else(|| "unaccounted".into(), |state| state.label());
    StackSample {
        task_context: Some(task),
        callstack_iid: Some(out.callstack(frames)),
        primary_weight: Some(stack.weight),
        follower_descriptor_iids: vec![out.counter(&state)],
        follower_weights: vec![stack.weight],
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::super::messages::{INCREMENTAL_STATE_CLEARED, InternedData, TracePacket};
    use super::super::sequence::Sequence;
    use super::*;
    use crate::export::fixture::{ENGINE, KEEPER, MS, START, info, stacks, thread};
    use crate::export::timeline::Timeline;

    /// `tid at ns: stack`, with the state of the weight, by the numbers of the file.
    fn written(selected: &[Thread], max_known_bytes: usize) -> Vec<String> {
        let all = [thread(KEEPER, 43, "keeper"), thread(ENGINE, 42, "engine")];
        let (mut file, info) = (Vec::new(), info());
        let mut trace =
            Trace::start(Sequence::with_limit(&mut file, max_known_bytes), &info, selected).unwrap();
        trace.stacks(&stacks(&all), &all).unwrap();
        drop(trace);
        let (mut rest, mut lines, mut known) = (file.as_slice(), Vec::new(), InternedData::default());
        while let Some((0x0a, after)) = rest.split_first().map(|(key, after)| (*key, after)) {
            rest = after;
            let packet = TracePacket::decode_length_delimited(&mut rest).unwrap();
            if packet.sequence_flags == Some(INCREMENTAL_STATE_CLEARED) {
                known = InternedData::default();
                let defaults = packet.trace_packet_defaults.unwrap().stack_sample_defaults.unwrap();
                assert_eq!(defaults.primary_descriptor.unwrap().name.unwrap(), "wall time");
            }
            let fresh = packet.interned_data.unwrap_or_default();
            known.function_names.extend(fresh.function_names);
            known.frames.extend(fresh.frames);
            known.callstacks.extend(fresh.callstacks);
            known.stack_sample_counter_descriptors.extend(fresh.stack_sample_counter_descriptors);
            let Some(sample) = packet.stack_sample else { continue };
            let name = |frame: &u64| {
                let frame = known.frames.iter().find(|one| one.iid == Some(*frame)).unwrap();
                let name = known.function_names.iter().find(|one| one.iid == frame.function_name_id);
                name.unwrap().text.clone().unwrap()
            };
            let stack = known.callstacks.iter().find(|one| one.iid == sample.callstack_iid).unwrap();
            let names: Vec<String> = stack.frame_ids.iter().map(name).collect();
            let states = known.stack_sample_counter_descriptors.iter();
            let state =
                states.clone().find(|one| one.iid == Some(sample.follower_descriptor_iids[0])).unwrap();
            let ns = sample.primary_weight.unwrap();
            assert_eq!(sample.follower_weights, [ns]);
            lines.push(format!(
                "{} at {} ms: {} {}, {} ms",
                sample.task_context.unwrap().tid.unwrap(),
                (packet.timestamp.unwrap() - START) / MS,
                names.join(";"),
                state.name.clone().unwrap(),
                ns / MS
            ));
        }
        lines
    }

    const EXPECTED: [&str; 5] = [
        "43 at 1500 ms: [unsampled];[blocked:sleep] blocked:sleep, 1000 ms",
        "42 at 400 ms: main;match;[user] user, 400 ms",
        "42 at 500 ms: main;take;[blocked:lock] blocked:lock, 100 ms",
        "42 at 1500 ms: main;take;[blocked:lock] blocked:lock, 1000 ms",
        "42 at 2000 ms: main;take;[blocked:lock] blocked:lock, 500 ms",
    ];

    #[test]
    fn weights_of_a_second_follow_each_other() {
        let all = [thread(KEEPER, 43, "keeper"), thread(ENGINE, 42, "engine")];
        assert_eq!(written(&all, usize::MAX), EXPECTED);
        assert_eq!(written(&all, 10), EXPECTED, "names are written again when they are forgotten");
    }

    #[test]
    fn threads_that_were_not_selected_have_none() {
        assert_eq!(written(&[thread(ENGINE, 42, "engine")], usize::MAX), EXPECTED[1..]);
    }
}
