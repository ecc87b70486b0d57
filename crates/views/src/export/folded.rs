// SPDX-License-Identifier: Apache-2.0
//! Folded stacks: one stack a line, `comm;root frame;…;leaf frame VALUE`, for flamegraph.pl, inferno and
//! many others.
//!
//! Values are nanoseconds, counts in `event:` views. Kernel frames end in `_[k]`. In names control
//! characters and backslashes are written out, and a semicolon is `\x3b`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use wallprof_analysis::weights::Weights;

use super::format::{ExportFormat, Rows};
use super::per_step::PerStep;
use crate::frame_name::{marked_name, shown_comm};

pub(super) const FORMAT: ExportFormat = ExportFormat {
    name: "folded",
    about: "A line a stack, for flamegraph.pl and inferno",
    counts_calls_in_names: true,
    rows: Rows::Stacks(|mut out, export| folded(&mut out, export.weights)),
};

/// Writes the stacks in the order of their lines, equal ones as one.
pub fn folded(out: &mut impl Write, weights: &Weights) -> io::Result<()> {
    let mut names = PerStep::new(weights, |function| part(marked_name(function)).into_owned());
    let mut lines: BTreeMap<String, u128> = BTreeMap::new();
    for stack in &weights.stacks {
        let mut line = part(shown_comm(&weights.threads[stack.thread].comm)).into_owned();
        names.each(stack, |name| {
            line.push(';');
            line.push_str(name);
        });
        *lines.entry(line).or_default() += u128::from(stack.weight);
    }
    lines.iter().try_for_each(|(line, weight)| writeln!(out, "{line} {weight}"))
}

fn part(name: Cow<'_, str>) -> Cow<'_, str> {
    if name.contains(';') { Cow::Owned(name.replace(';', "\\x3b")) } else { name }
}
