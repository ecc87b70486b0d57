//! Renders every view of a recording and drops the output.

use std::io::sink;
use std::path::Path;

use wallprof_analysis::calls::functions;
use wallprof_analysis::counters::{marks_around, moved, time_around};
use wallprof_analysis::diff::{self, Floor};
use wallprof_analysis::receive::backlog;
use wallprof_analysis::rules::{self, findings, reads_counter, reads_process_counter};
use wallprof_analysis::waits::{Rules, Waits};
use wallprof_analysis::weights::{CallNames, Gather, Side, View, Weights, threads_within, weights_of_calls};
use wallprof_analysis::{Holders, StallDigest, Zone, holder_of};
use wallprof_recording::{Additions, Naming, Recording, Result, StallFilter, write_findings};
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
    let holders = holders(&recording)?;
    let mut text = StallsText::new(&info, &style);
    for stall in recording.stalls(&all_stalls())? {
        let stall = stall?;
        let time = stall.start..stall.end;
        let tracks = counters.around(stall.pid, time_around(time.clone()))?;
        let beside = Surroundings {
            backlog: backlog(tracks.iter().copied(), time.clone()),
            counters: Some(moved(tracks, time.clone())),
            marks: marks_around(&marks, time).cloned().collect(),
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
    let mut holders = Holders::new(stalls()?.iter().filter_map(holder_of).collect());
    stalls()?.iter().for_each(|stall| holders.add(stall));
    Ok(holders.sorted())
}

fn timeline(path: &Path) -> Result<()> {
    let recording = open(path)?;
    let (info, threads) = (recording.info()?, recording.threads()?);
    let starts = EXPORT_FORMATS.iter().filter_map(|format| match format.rows {
        Rows::Timeline(start) => Some(start),
        Rows::Stacks(_) => None,
    });
    for start in starts {
        let mut out = sink();
        let mut timeline = start(&mut out, &info, &threads).expect("nowhere takes all");
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
    let diff = Diff { a: of(), b: of(), comparison: &comparison };
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
    write_findings(path, &[], &[(1, None, Some(1))])
}
