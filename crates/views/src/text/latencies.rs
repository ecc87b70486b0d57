// SPDX-License-Identifier: Apache-2.0
//! Lengths of waits: percentiles for the threads whose ledger is shown.

use std::io::{self, Write};

use wallprof_analysis::{Class, Latency};
use wallprof_model::profile::Thread;
use wallprof_model::{Metric, State};

use super::ledgers::Selection;
use super::write_title;
use crate::line::{cut, left, right};
use crate::report::Report;
use crate::style::{Ink, Style};
use crate::units::{count, time};

pub(super) fn write(
    out: &mut impl Write,
    report: &Report<'_>,
    selection: &Selection,
    style: &Style,
) -> io::Result<()> {
    let threads: Vec<&Thread> = selection.detailed.iter().map(|&index| &report.threads[index]).collect();
    if threads.iter().all(|thread| thread.latency.values().all(|histogram| histogram.is_empty())) {
        return Ok(());
    }
    write_title(out, "How long waits took", "percentiles within 6.25 %; maxima exact", style)?;
    let names = ["count", "p50", "p90", "p99", "p99.9", "max"].map(|name| right(name, 9)).concat();
    writeln!(out, "{}", style.paint(Ink::Faint, &format!("  {}{names}", left("thread", 18, style))))?;
    for thread in threads {
        write_thread(out, thread, style)?;
    }
    Ok(())
}

fn write_thread(out: &mut impl Write, thread: &Thread, style: &Style) -> io::Result<()> {
    let shown: Vec<_> = thread.latency.iter().filter(|(_, histogram)| !histogram.is_empty()).collect();
    if shown.is_empty() {
        return Ok(());
    }
    writeln!(out, "  {}", style.paint(Ink::Strong, &cut(&style.comm(&thread.info.comm), 32, style)))?;
    for (metric, histogram) in shown {
        let latency = Latency::of(histogram);
        let percentiles = [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns, latency.max_ns];
        let numbers = percentiles.map(|ns| right(&time(ns, style), 9)).concat();
        let label = style.paint(ink_from_metric(*metric), &left(&label(*metric), 16, style));
        writeln!(out, "    {label}{}{numbers}", right(&count(latency.count), 9))?;
    }
    Ok(())
}

fn label(metric: Metric) -> String {
    match metric {
        Metric::OffCpu => "off CPU".into(),
        Metric::RunQueue => "run queue".into(),
        Metric::Fault => "fault".into(),
        Metric::Blocked(reason) => State::Blocked(reason).label(),
    }
}

fn ink_from_metric(metric: Metric) -> Ink {
    match metric {
        Metric::OffCpu => Ink::Plain,
        Metric::RunQueue | Metric::Fault => Ink::Of(Class::Late),
        Metric::Blocked(reason) => Ink::Of(Class::of(State::Blocked(reason))),
    }
}
