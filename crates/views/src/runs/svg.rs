// SPDX-License-Identifier: Apache-2.0
//! Figures over versions: one small chart for each state, a dot for each run, a line through the means.

use std::collections::BTreeMap;
use std::io::{self, Write};

use wallprof_analysis::runs::RunGroup;

use super::key_figures;
use crate::style::Style;
use crate::svg::{begin, xml_markup};
use crate::units::{counted, time};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 64.0;
const CHART: f64 = 96.0;
const GAP: f64 = 40.0;
/// Charts drawn: the states with the most time.
const MOST_CHARTS: usize = 12;
/// Names below the axis; of more groups every second, third … is named.
const MOST_NAMES: usize = 12;
const LONGEST_NAME: usize = 14;

/// Writes the picture. `groups` are in the order of the axis.
///
/// # Errors
/// The error of `out`.
pub fn trend_svg(out: &mut impl Write, key: &str, groups: &[RunGroup<'_>]) -> io::Result<()> {
    let charts = charts(groups);
    let height = TOP + charts.len().max(1) as f64 * (CHART + GAP) + 30.0;
    let runs: usize = groups.iter().map(|group| group.runs.len()).sum();
    let about = format!(
        "{} of {}. Time per second of wall time, all threads added up. A dot is a run, the line joins the means.",
        counted(runs as u64, "run", "runs"),
        counted(groups.len() as u64, "value", "values")
    );
    begin(out, (WIDTH, height), "", &format!("Trend over {key}"), &[&about])?;
    for (at, (name, values)) in charts.iter().enumerate() {
        let top = TOP + at as f64 * (CHART + GAP);
        write_chart(out, top, name, values, groups)?;
    }
    writeln!(out, "</svg>")
}

/// The values of each run of each group, by state.
fn charts(groups: &[RunGroup<'_>]) -> Vec<(String, Vec<Vec<f64>>)> {
    let mut charts: BTreeMap<String, Vec<Vec<f64>>> = BTreeMap::new();
    for (at, group) in groups.iter().enumerate() {
        for (number, run) in group.runs.iter().enumerate() {
            for (name, ns) in key_figures(run) {
                let empty = || groups.iter().map(|group| vec![0.0; group.runs.len()]).collect();
                charts.entry(name).or_insert_with(empty)[at][number] = ns;
            }
        }
    }
    let mut charts: Vec<_> = charts.into_iter().collect();
    let most = |values: &[Vec<f64>]| values.iter().flatten().copied().fold(0.0, f64::max);
    charts.sort_by(|x, y| most(&y.1).total_cmp(&most(&x.1)).then_with(|| x.0.cmp(&y.0)));
    charts.truncate(MOST_CHARTS);
    charts
}

fn write_chart(
    out: &mut impl Write,
    top: f64,
    name: &str,
    values: &[Vec<f64>],
    groups: &[RunGroup<'_>],
) -> io::Result<()> {
    let style = Style::plain();
    let most = values.iter().flatten().copied().fold(0.0, f64::max).max(1.0);
    let step = (WIDTH - LEFT - RIGHT) / groups.len().max(1) as f64;
    let x = |at: usize| LEFT + (at as f64 + 0.5) * step;
    let y = |ns: f64| top + CHART - ns / most * (CHART - 8.0);
    let bottom = top + CHART;
    let shown = |ns: f64| format!("{}/s", time(ns.round() as u64, &style));
    writeln!(
        out,
        r##"<text x="10" y="{:.1}" font-size="13">{}</text><text x="{:.1}" y="{:.1}" text-anchor="end" fill="#555">{}</text><text x="{:.1}" y="{bottom:.1}" text-anchor="end" fill="#555">0</text><path d="M{LEFT} {top:.1}V{bottom:.1}H{:.1}" fill="none" stroke="#999"/>"##,
        top + CHART / 2.0,
        xml_markup(name, 13),
        LEFT - 6.0,
        top + 12.0,
        shown(most),
        LEFT - 6.0,
        WIDTH - RIGHT,
    )?;
    let mut line = String::new();
    for (at, of_group) in values.iter().enumerate() {
        let mean = of_group.iter().sum::<f64>() / of_group.len().max(1) as f64;
        line += &format!("{}{:.1} {:.1}", if at == 0 { "M" } else { "L" }, x(at), y(mean));
        for ns in of_group {
            writeln!(
                out,
                r##"<circle cx="{:.1}" cy="{:.1}" r="3.5" fill="#0072b2" fill-opacity=".55"><title>{}: {}</title></circle>"##,
                x(at),
                y(*ns),
                xml_markup(groups[at].value, 60),
                shown(*ns)
            )?;
        }
    }
    writeln!(out, r##"<path d="{line}" fill="none" stroke="#d55e00" stroke-width="1.5"/>"##)?;
    for at in (0..groups.len()).step_by(groups.len().div_ceil(MOST_NAMES).max(1)) {
        writeln!(
            out,
            r##"<text x="{:.1}" y="{:.1}" text-anchor="middle" fill="#333">{}</text>"##,
            x(at),
            bottom + 14.0,
            xml_markup(groups[at].value, LONGEST_NAME)
        )?;
    }
    Ok(())
}
