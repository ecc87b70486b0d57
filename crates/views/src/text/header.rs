// SPDX-License-Identifier: Apache-2.0
//! The head of a report: the command, the time, the length and the machine of the recording.

use std::io::{self, Write};

use wallprof_analysis::Interpreted;
use wallprof_model::Loss;
use wallprof_model::profile::RecordingInfo;

use crate::line::cut;
use crate::report::Report;
use crate::style::{Ink, Style};
use crate::timestamps::Timestamps;
use crate::units::{counted, time};

const GO: &str = "Go: goroutines that wait are not threads, and are not seen";
/// The map is of the functions that are compiled by then.
const JAVA: &str = "Java: `jcmd PID Compiler.perfmap` while it runs gives its functions names";
const PYTHON: &str = "Python: started with `-X perf` (3.12 and newer) its functions have names";

pub(super) fn write(out: &mut impl Write, report: &Report<'_>, style: &Style) -> io::Result<()> {
    let columns = style.columns();
    writeln!(out, "{}", style.paint(Ink::Strong, &cut(&what(report, style), columns, style)))?;
    writeln!(out, "{}", cut(&when(report, style), columns, style))?;
    writeln!(out, "{}", cut(&place(report, style), columns, style))?;
    if !report.info.labels.is_empty() {
        writeln!(out, "{}", cut(&labels(report.info, style), columns, style))?;
    }
    if report.stalls.has_go {
        writeln!(out, "{}", cut(GO, columns, style))?;
    }
    for (program, advice) in [(Interpreted::Java, JAVA), (Interpreted::Python, PYTHON)] {
        if report.stalls.lacks_names_of(program) {
            writeln!(out, "{}", cut(advice, columns, style))?;
        }
    }
    if let Some(lost) = lost_stalls(report) {
        writeln!(out, "{}", style.paint(Ink::Warning, &cut(&lost, columns, style)))?;
    }
    if !report.info.ended_cleanly {
        writeln!(out, "{}", style.paint(Ink::Warning, RecordingInfo::NO_END))?;
    }
    Ok(())
}

/// A hint that findings and groups of stalls tell less than the ledger, where one stall in a hundred was lost.
fn lost_stalls(report: &Report<'_>) -> Option<String> {
    let lost = |loss: Loss| report.info.losses.get(loss.name()).copied().unwrap_or(0);
    let lost = lost(Loss::StallsRingFull).saturating_add(lost(Loss::StallsOfUnknownThreads));
    let all = report.stalls.count.saturating_add(report.stalls.voluntary).saturating_add(lost);
    let is_much = lost > 0 && lost.saturating_mul(100) >= all;
    is_much.then(|| format!("{} lost: findings say too little, the ledger is complete", were(lost)))
}

fn were(lost: u64) -> String {
    format!("{} {}", counted(lost, "stall", "stalls"), if lost == 1 { "was" } else { "were" })
}

fn what(report: &Report<'_>, style: &Style) -> String {
    let threads = counted(report.threads.len() as u64, "thread", "threads");
    match report.info.command.as_str() {
        "" => format!("wallprof: {threads}"),
        command => format!("wallprof: {}, {threads}", style.name(command)),
    }
}

fn when(report: &Report<'_>, style: &Style) -> String {
    let timestamps = Timestamps::new(report.info, &style.zone);
    let lasted = time(report.duration_ns(), style);
    match timestamps.date(report.info.start) {
        Some(date) => format!("{lasted} from {} on {date}", timestamps.time(report.info.start)),
        None => format!("{lasted}; the time of day is not known"),
    }
}

fn place(report: &Report<'_>, style: &Style) -> String {
    let info = report.info;
    let mut parts = Vec::new();
    if !info.hostname.is_empty() {
        parts.push(format!("host {}", style.name(&info.hostname)));
    }
    let kernel = format!("{} {}", style.name(&info.kernel), style.name(&info.arch));
    if !kernel.trim().is_empty() {
        parts.push(format!("kernel {}", kernel.trim()));
    }
    if info.cpus > 0 {
        parts.push(counted(u64::from(info.cpus), "CPU", "CPUs"));
    }
    if !info.is_live() && !info.source.is_empty() {
        parts.push(format!("from {}", style.name(&info.source)));
    }
    parts.join(", ")
}

fn labels(info: &RecordingInfo, style: &Style) -> String {
    let label = |(key, value): (&String, &String)| format!("{}={}", style.name(key), style.name(value));
    info.labels.iter().map(label).collect::<Vec<_>>().join(", ")
}
