// SPDX-License-Identifier: Apache-2.0
//! Renders every view of a recording and drops the output.

use std::io::sink;
use std::path::Path;

use wallprof_analysis::bins::{BinnedStacks, Ledgers, Samples, Slots};
use wallprof_analysis::calls::functions;
use wallprof_analysis::counters::{marks_around, moved, time_around};
use wallprof_analysis::diff::{self, Floor};
use wallprof_analysis::receive::backlog;
use wallprof_findings::{self as rules, findings, reads_counter, reads_process_counter};
use wallprof_analysis::spans;
use wallprof_meaning::waits::{Rules, Waits};
use wallprof_analysis::weights::{CallNames, Gather, Side, View, Weights, threads_within, weights_of_calls};
use wallprof_analysis::{Holders, StallDigest, Zone};
use wallprof_model::profile::{RecordingInfo, Thread};
use wallprof_recording::{
    Additions, BlameRow, Conclusions, Naming, Recording, Result, StallFilter, write_findings,
};
use wallprof_views::{
    Diff, DiffRows, DiffSide, EXPORT_FORMATS, Export, Flame, Report, Rows, StallsText, Style, Surroundings,
    diff_json, diff_svg, diff_text, flame_svg, folded, functions_text, report_json_with_functions,
    report_text, stall_json,
};

/// Runs the functions behind every command that reads a recording. Commands that add to it run last.
pub fn read_all(path: &Path) -> Result<()> {
    let results = [
        report(path),
        stalls(path),
        timeline(path),
        pictures(path),
        calls(path),
        compared(path),
        additions(path),
    ];
    results.into_iter().collect()
}

fn all_stalls() -> StallFilter {
    StallFilter { include_voluntary: true, ..StallFilter::default() }
}

/// A recording whose waits have meanings.
fn open(path: &Path) -> Result<Recording> {
    let mut recording = Recording::open(path)?;
    let mut waits = Waits::new(&recording.processes()?);
    for sample in recording.samples(..)? {
        waits.add_sample(&sample?);
    }
    recording.each_wait(|wait| waits.add_wait(&wait))?;
    let rules = Rules::built_in().expect("the built-in rules are rules");
    let meanings = waits.finish(&rules, |stack| recording.look_at(stack))?;
    recording.set_meanings(meanings);
    Ok(recording)
}

fn report(path: &Path) -> Result<()> {
    let recording = open(path)?;
    let (info, threads) = (recording.info()?, recording.threads()?);
    let (interrupts, intrusions) = (recording.interrupts()?, recording.intrusions()?);
    let (mut digest, mut collector) = (StallDigest::new(5), rules::Collector::default());
    recording.each_stall(|stall| {
        digest.add(&stall);
        collector.add(&stall);
    })?;
    let counters = recording.counters()?;
    let spans: Vec<_> = recording.spans()?.into_iter().map(|(_, span)| span).collect();
    let (sums, late) = (recording.span_sums()?, recording.late_samples()?);
    let over_budget = spans::over_budget(&info.budgets, &threads, &sums, &spans);
    let periods = spans::long_periods(&sums, spans, &late, |stack| recording.resolve(stack))?;
    let found = findings(&collector.finish(&rules::Surroundings {
        info: &info,
        threads: &threads,
        interrupts: &interrupts,
        intrusions: &intrusions,
        kernel_delays: &recording.kernel_delays()?,
        cross_calls: &recording.cross_calls()?,
        throttled: &recording.throttled()?,
        counters: &counters.whole(reads_counter)?,
        process_counters: &counters.whole_of_processes(reads_process_counter)?,
        periods: &periods,
        long_sums: &spans::long_sums(&sums),
        over_budget: &over_budget,
        waits: &[],
    }));
    let report = Report {
        info: &info,
        threads: &threads,
        interrupts: &interrupts,
        intrusions: &intrusions,
        folded: &recording.folded()?,
        marks: &recording.marks()?,
        stalls: &digest,
        findings: &found,
    };
    report_text(&mut sink(), &report, &Style::plain()).expect("nowhere takes all");
    report_json_with_functions(&mut sink(), &report, &[]).expect("nowhere takes all");
    Ok(())
}

fn stalls(path: &Path) -> Result<()> {
    let recording = open(path)?;
    let (info, style) = (recording.info()?, Style::plain());
    let (mut counters, marks) = (recording.counters()?, recording.marks()?);
    let (holders, spans) = (holders(&recording)?, spans::SpansAround::new(recording.spans()?));
    let mut text = StallsText::new(&info, &style);
    for stall in recording.stalls(&all_stalls())? {
        let stall = stall?;
        let time = stall.start..stall.end;
        let tracks = counters.around(stall.pid, time_around(time.clone()))?;
        let beside = Surroundings {
            backlog: backlog(tracks.iter().copied(), time.clone()),
            counters: Some(moved(tracks, time.clone())),
            marks: marks_around(&marks, time).cloned().collect(),
            spans: spans.of(&stall),
            holder: holders.during(&stall),
        };
        text.write(&mut sink(), &stall, &beside).expect("nowhere takes all");
        stall_json(&mut sink(), &stall, &beside, &info.clock).expect("nowhere takes all");
    }
    text.finish(&mut sink()).expect("nowhere takes all");
    Ok(())
}

/// What the threads did that held locks for which others waited.
fn holders(recording: &Recording) -> Result<Holders> {
    let stalls = || recording.stalls(&all_stalls())?.collect::<Result<Vec<_>>>();
    let mut holders = Holders::default();
    stalls()?.iter().for_each(|stall| holders.add_wait(stall));
    stalls()?.iter().for_each(|stall| holders.add(stall));
    Ok(holders.sorted())
}

fn stacks_by_second(recording: &Recording, info: &RecordingInfo, threads: &[Thread]) -> Result<BinnedStacks> {
    let mut ledgers = Ledgers::new(info, threads);
    recording.ledger(..)?.try_for_each(|row| row.map(|row| ledgers.add(&row)))?;
    let slots = Slots::new(info, threads, &ledgers.finish());
    let mut samples = Samples::new(&slots, Side::Both);
    for sample in recording.samples(..)? {
        let sample = sample?;
        samples.add(&sample, recording.meaning(&sample), |stack| recording.resolve(stack))?;
    }
    recording.each_stall(|stall| samples.add_wait(&stall))?;
    Ok(samples.finish())
}

fn timeline(path: &Path) -> Result<()> {
    let recording = open(path)?;
    let (info, threads) = (recording.info()?, recording.threads()?);
    let starts = EXPORT_FORMATS.iter().filter_map(|format| match format.rows {
        Rows::Timeline(start) => Some(start),
        Rows::Stacks(_) | Rows::Tables => None,
    });
    let stacks = stacks_by_second(&recording, &info, &threads)?;
    for start in starts {
        let mut out = sink();
        let mut timeline = start(&mut out, &info, &threads).expect("nowhere takes all");
        timeline.stacks(&stacks, &threads).expect("nowhere takes all");
        for stall in recording.stalls(&all_stalls())? {
            timeline.stall(&stall?).expect("nowhere takes all");
        }
        for row in recording.ledger(..)? {
            timeline.second(&row?).expect("nowhere takes all");
        }
        let counters = recording.counters()?;
        for track in counters.whole(|_| true)?.iter().chain(&counters.whole_of_processes(|_| true)?) {
            timeline.counter(track).expect("nowhere takes all");
        }
        for mark in recording.marks()? {
            timeline.mark(&mark).expect("nowhere takes all");
        }
        timeline.finish().expect("nowhere takes all");
    }
    Ok(())
}

fn pictures(path: &Path) -> Result<()> {
    let recording = open(path)?;
    let info = recording.info()?;
    let threads = threads_within(recording.threads()?, recording.ledger(..)?)?;
    let event = info.events.first().map(|name| View::Event(name.clone()));
    for view in [Some(View::Wall), Some(View::Wakers), event].into_iter().flatten() {
        let mut gather = Gather::new(view, Side::Both, &info.events, &threads, |_| true);
        for sample in recording.samples(..)? {
            let sample = sample?;
            gather.add(&sample, recording.meaning(&sample), |stack| recording.resolve(stack))?;
        }
        let range = info.start..info.end;
        for wait in recording.stalls(&all_stalls())? {
            gather.add_wait(&wait?, &range, false);
        }
        draw(&recording, &gather.finish())?;
    }
    Ok(())
}

fn draw(recording: &Recording, weights: &Weights) -> Result<()> {
    let (info, zone) = (recording.info()?, Zone::utc());
    let range = info.start..info.end;
    let flame = Flame { info: &info, weights, side: Side::Both, range, thread_glob: None, zone: &zone };
    // Besides errors of the output the only error is an empty picture.
    let _ = flame_svg(&mut sink(), &flame);
    let export = Export { weights, info: &info, title: "x", range: info.start..info.end };
    for format in EXPORT_FORMATS {
        if let Rows::Stacks(write) = format.rows {
            write(&mut sink(), &export).expect("nowhere takes all");
        }
    }
    folded(&mut sink(), &weights.clone().anonymized()).expect("nowhere takes all");
    Ok(())
}

fn calls(path: &Path) -> Result<()> {
    let recording = Recording::open(path)?;
    let mut calls = Vec::new();
    for thread in recording.threads_with_calls()? {
        calls.push(recording.calls(thread)?);
    }
    functions_text(&mut sink(), &functions(&calls), &Style::plain()).expect("nowhere takes all");
    let threads = recording.threads()?;
    let of =
        |calls: &wallprof_model::ThreadCalls| threads.iter().find(|thread| thread.info.key == calls.thread);
    let paired: Vec<_> = calls.iter().filter_map(|calls| Some((of(calls)?, calls.clone()))).collect();
    draw(&recording, &weights_of_calls(&paired, Side::Both, CallNames::Counted))
}

fn compared(path: &Path) -> Result<()> {
    let recording = Recording::open(path)?;
    let info = recording.info()?;
    let mut tree = diff::Tree::default();
    let mut collector = diff::Collector::new(&recording.threads()?);
    for row in recording.ledger(..)? {
        collector.ledger(&row?);
    }
    for row in recording.samples(..)? {
        collector.sample(&row?, &mut tree, |stack| recording.resolve(stack))?;
    }
    for stall in recording.stalls(&StallFilter::default())? {
        collector.stall(&stall?, &mut tree);
    }
    let side = collector.finish(&info, &mut tree);
    let comparison = diff::compare(tree, &side, &side, &View::Wall, Floor::default());
    let of = || DiffSide { file: "a.db", info: &info };
    let mut kinds = diff::Kinds::default();
    recording.each_span_cell(|spans| {
        let kind = diff::Kind { process: "p".into(), source: spans.source, kind: spans.kind.to_string() };
        kinds.add(kind, spans.second, spans.bucket, spans.cell);
    })?;
    let kinds = diff::compare_kinds(&kinds, &kinds);
    let diff = Diff { a: of(), b: of(), comparison: &comparison, kinds: &kinds };
    diff_text(&mut sink(), &diff, DiffRows::All, &Style::plain()).expect("nowhere takes all");
    diff_json(&mut sink(), &diff).expect("nowhere takes all");
    let _ = diff_svg(&mut sink(), &diff);
    Ok(())
}

/// Adds the rows of `import --metrics`, `import --marks`, `symbolize` and the end of a recording.
fn additions(path: &Path) -> Result<()> {
    let mut additions = Additions::open(path)?;
    let at = wallprof_model::MonoNs(5_000);
    additions.metric("depth", at, 1.0)?;
    additions.mark(&wallprof_model::Mark { at, duration_ns: Some(1), text: "mark".into() })?;
    additions.commit()?;
    let naming = Naming::open(path)?;
    let modules = naming.modules()?;
    naming.unnameable()?;
    let line = wallprof_model::SymbolLine { symbol: Some("named".into()), ..Default::default() };
    let frames = modules.iter().flat_map(|module| &module.frames);
    let names: Vec<_> = frames.map(|frame| (frame.frame, vec![line.clone()])).collect();
    naming.write(&names)?;
    let (meanings, blame) = (vec![(1, None, Some(1))], vec![BlameRow::default()]);
    write_findings(path, &Conclusions { meanings, blame, ..Conclusions::default() })
}
