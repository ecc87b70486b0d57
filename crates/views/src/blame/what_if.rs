// SPDX-License-Identifier: Apache-2.0
//! What waiting would be if a part of the work took less time, for people.

use std::io::{self, Write};

use wallprof_analysis::blame::{Estimate, WhatIf};

use super::group_name;
use crate::style::Style;
use crate::text::{write_note, write_title};
use crate::units::{percent, time};

const MOST_GROUPS: usize = 20;
/// With more waiting than this ended by what was not seen, in hundredths, an estimate says nothing.
const MOST_UNKNOWN: f64 = 0.5;
/// With more waits than this counted alone, in hundredths, holds of locks are not known.
const MOST_COUNTED: f64 = 0.01;

/// Writes the effect of a change: of all waiting, of each group, and of operations.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn what_if_text(out: &mut impl Write, what_if: &WhatIf, style: &Style) -> io::Result<()> {
    write_title(out, "What if", &style.name(&what_if.change), style)?;
    writeln!(out)?;
    if !what_if.is_found {
        return write_note(out, 0, "cannot tell: the recording has no such part of the work", style);
    }
    let unknown = percent((what_if.unknown_share * 1e6) as u64, 1_000_000);
    if what_if.unknown_share > MOST_UNKNOWN {
        let text =
            format!("cannot tell: {unknown} of the waiting was ended by what was not recorded, or not seen");
        return write_note(out, 0, &text, style);
    }
    if what_if.counted_share > MOST_COUNTED {
        let counted = percent((what_if.counted_share * 1e6) as u64, 1_000_000);
        let text = format!(
            "cannot tell: {counted} of the waits were only counted, and a hold may go on in such a wait; record for a \
             shorter time, or fewer threads"
        );
        return write_note(out, 0, &text, style);
    }
    writeln!(out, "all waiting: {}", estimate(&what_if.waiting, style))?;
    for (group, of_group) in what_if.groups.iter().take(MOST_GROUPS) {
        writeln!(out, "  {}: {}", group_name(group, style), estimate(of_group, style))?;
    }
    for kind in &what_if.kinds {
        for (name, of_kind) in [("P99", &kind.p99), ("P99.9", &kind.p999)] {
            let text =
                of_kind.as_ref().map_or("cannot tell: too few are kept one by one".to_owned(), |of_kind| {
                    estimate(of_kind, style)
                });
            writeln!(out, "{} of {}: {text}", name, style.name(&kind.kind))?;
        }
    }
    if what_if.unknown_share >= 0.01 {
        let text = format!("{unknown} of the waiting was ended by what was not recorded, or not seen");
        write_note(out, 0, &text, style)?;
    }
    Ok(())
}

/// `1.50 s would be 712 ms (700 ms to 715 ms), 53 % less`.
fn estimate(of: &Estimate, style: &Style) -> String {
    let interval = match of.low == of.high {
        true => String::new(),
        false => format!(" ({} to {})", time(of.low, style), time(of.high, style)),
    };
    let change = match of.before.cmp(&of.after) {
        std::cmp::Ordering::Equal => "no change".to_owned(),
        std::cmp::Ordering::Greater => format!("{} less", percent(of.before - of.after, of.before)),
        std::cmp::Ordering::Less => format!("{} more", percent(of.after - of.before, of.before)),
    };
    format!("{} would be {}{interval}, {change}", time(of.before, style), time(of.after, style))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_analysis::blame::{Group, KindEstimate};

    const MS: u64 = 1_000_000;

    fn what_if() -> WhatIf {
        let waiting = Estimate { before: 40 * MS, after: 20 * MS, low: 19 * MS, high: 22 * MS };
        let engine = Group::Threads { process: "app".into(), thread: "engine\x1b".into() };
        let exact = Estimate { before: 8 * MS, after: 8 * MS, low: 8 * MS, high: 8 * MS };
        WhatIf {
            change: "lock:sweep=-50%".into(),
            waiting,
            groups: vec![(engine, waiting)],
            kinds: vec![KindEstimate { kind: "order".into(), p99: Some(exact), p999: None }],
            unknown_share: 0.04,
            counted_share: 0.01,
            is_found: true,
        }
    }

    fn text(what_if: &WhatIf) -> String {
        let mut out = Vec::new();
        what_if_text(&mut out, what_if, &Style::plain()).expect("text");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn effect_is_said_with_its_interval() {
        assert_eq!(
            text(&what_if()),
            "
What if  lock:sweep=-50%

all waiting: 40.0 ms would be 20.0 ms (19.0 ms to 22.0 ms), 50.0 % less
  app/engine\\x1b: 40.0 ms would be 20.0 ms (19.0 ms to 22.0 ms), 50.0 % less
P99 of order: 8.00 ms would be 8.00 ms, no change
P99.9 of order: cannot tell: too few are kept one by one
4.0 % of the waiting was ended by what was not recorded, or not seen
"
        );
    }

    #[test]
    fn unseen_waiting_gives_no_estimate() {
        assert!(
            text(&WhatIf { is_found: false, ..what_if() }).contains("cannot tell: the recording has no such")
        );
        let unseen = text(&WhatIf { unknown_share: 0.6, ..what_if() });
        let counted = text(&WhatIf { counted_share: 0.07, ..what_if() });
        assert!(
            counted.contains("cannot tell: 7.0 % of the waits") && !counted.contains("would be"),
            "{counted}"
        );
        assert!(unseen.contains("cannot tell: 60.0 %") && !unseen.contains("would be"), "{unseen}");
    }
}
