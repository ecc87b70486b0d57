// SPDX-License-Identifier: Apache-2.0
//! Who costs whom as a picture: waiters at the left, culprits at the right, and a band between them as wide
//! as the time is long.

use std::collections::BTreeMap;
use std::io::{self, Write};

use wallprof_analysis::blame::{Blame, Group};

use super::group_name;
use crate::line::cut;
use crate::style::Style;
use crate::svg::{begin, xml_markup};
use crate::units::{percent, time};

const WIDTH: f64 = 1000.0;
const TOP: f64 = 60.0;
/// Height of all bars of a side, without gaps.
const BARS: f64 = 560.0;
const GAP: f64 = 14.0;
const BAR: f64 = 14.0;
/// Columns for names beside the bars, in pixels and characters.
const NAMES: f64 = 260.0;
const LONGEST_NAME: usize = 38;
/// Groups drawn on a side. The rest is one bar.
const MOST: usize = 12;

const STYLE: &str = ".b{fill-opacity:.45} .b:hover{fill-opacity:.85}";
const LEGEND: &str =
    "Left: who waited. Right: who or what it was for, at the end of the chain of waits. Width: time.";

/// Groups on one side with their times, largest first; the last may be all others.
struct Column {
    names: Vec<String>,
    ns: Vec<u64>,
    number: BTreeMap<Group, usize>,
}

impl Column {
    fn of(sums: BTreeMap<&Group, u64>) -> Self {
        let mut sums: Vec<(&Group, u64)> = sums.into_iter().collect();
        sums.sort_by_key(|(group, ns)| (std::cmp::Reverse(*ns), *group));
        let style = Style::plain();
        let mut column = Column { names: Vec::new(), ns: Vec::new(), number: BTreeMap::new() };
        for (at, (group, ns)) in sums.into_iter().enumerate() {
            let at = at.min(MOST);
            match column.ns.get_mut(at) {
                Some(sum) => *sum = sum.saturating_add(ns),
                None => {
                    column.names.push(if at == MOST { "others".into() } else { group_name(group, &style) });
                    column.ns.push(ns);
                }
            }
            column.number.insert(group.clone(), at);
        }
        column
    }

    fn height(&self) -> f64 {
        BARS + GAP * self.ns.len() as f64
    }

    /// Where each bar starts.
    fn starts(&self, total: f64) -> Vec<f64> {
        let mut y = TOP;
        let start = |ns: &u64| {
            let start = y;
            y += *ns as f64 / total * BARS + GAP;
            start
        };
        self.ns.iter().map(start).collect()
    }
}

/// Writes the picture.
///
/// # Errors
/// The error of `out`.
pub fn blame_svg(out: &mut impl Write, blame: &Blame) -> io::Result<()> {
    let mut bands: BTreeMap<(&Group, &Group), u64> = BTreeMap::new();
    let mut waiters: BTreeMap<&Group, u64> = BTreeMap::new();
    let mut culprits: BTreeMap<&Group, u64> = BTreeMap::new();
    for edge in &blame.edges {
        for sum in [
            bands.entry((&edge.waiter, &edge.culprit)).or_default(),
            waiters.entry(&edge.waiter).or_default(),
            culprits.entry(&edge.culprit).or_default(),
        ] {
            *sum = sum.saturating_add(edge.ns);
        }
    }
    let (left, right) = (Column::of(waiters), Column::of(culprits));
    let height = TOP + left.height().max(right.height()) + 10.0;
    let style = Style::plain();
    let total = blame.waiting_ns.max(1) as f64;
    let title = format!("Who costs whom: {} of waiting", time(blame.waiting_ns, &style));
    begin(out, (WIDTH, height), STYLE, &title, &[LEGEND])?;
    let (lefts, rights) = (left.starts(total), right.starts(total));
    let (mut used_left, mut used_right) = (lefts.clone(), rights.clone());
    // Bands of one pair of bars, in the order of the bars, do not cross more than they must.
    let mut joined: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for ((waiter, culprit), ns) in bands {
        let pair = (left.number[waiter], right.number[culprit]);
        let sum = joined.entry(pair).or_default();
        *sum = sum.saturating_add(ns);
    }
    for ((from, to), ns) in joined {
        let thick = ns as f64 / total * BARS;
        let (y0, y1) = (used_left[from], used_right[to]);
        used_left[from] += thick;
        used_right[to] += thick;
        let title = format!(
            "{} waited {} ({}) for {}",
            left.names[from],
            time(ns, &style),
            percent(ns, blame.waiting_ns),
            right.names[to]
        );
        write_band(out, (y0, y1, thick), colour(to), &title)?;
    }
    write_bars(out, &left, &lefts, total, true)?;
    write_bars(out, &right, &rights, total, false)?;
    writeln!(out, "</svg>")
}

fn write_band(
    out: &mut impl Write,
    (y0, y1, thick): (f64, f64, f64),
    fill: &str,
    title: &str,
) -> io::Result<()> {
    let (x0, x1) = (NAMES + BAR, WIDTH - NAMES - BAR);
    let middle = (x0 + x1) / 2.0;
    let (end0, end1) = (y0 + thick, y1 + thick);
    writeln!(
        out,
        r#"<path class="b" fill="{fill}" d="M{x0:.1} {y0:.2}C{middle:.1} {y0:.2} {middle:.1} {y1:.2} {x1:.1} {y1:.2}V{end1:.2}C{middle:.1} {end1:.2} {middle:.1} {end0:.2} {x0:.1} {end0:.2}Z"><title>{}</title></path>"#,
        xml_markup(title, 400)
    )
}

fn write_bars(
    out: &mut impl Write,
    column: &Column,
    starts: &[f64],
    total: f64,
    is_left: bool,
) -> io::Result<()> {
    let style = Style::plain();
    for (at, (name, start)) in column.names.iter().zip(starts).enumerate() {
        let height = (column.ns[at] as f64 / total * BARS).max(0.5);
        let (x, text_x, anchor) = match is_left {
            true => (NAMES, NAMES - 6.0, "end"),
            false => (WIDTH - NAMES - BAR, WIDTH - NAMES + 6.0, "start"),
        };
        let fill = if is_left { "#6b6860" } else { colour(at) };
        let label = format!("{} {}", cut(name, LONGEST_NAME - 10, &style), time(column.ns[at], &style));
        writeln!(
            out,
            r#"<rect x="{x:.1}" y="{start:.2}" width="{BAR}" height="{height:.2}" fill="{fill}"/><text x="{text_x:.1}" y="{:.2}" text-anchor="{anchor}">{}</text>"#,
            start + height / 2.0 + 4.0,
            xml_markup(&label, 100)
        )?;
    }
    Ok(())
}

/// Colours that people who are red-green blind can tell apart (Okabe and Ito, 2008).
fn colour(at: usize) -> &'static str {
    const COLOURS: [&str; 7] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8a3a"];
    COLOURS[at % COLOURS.len()]
}
