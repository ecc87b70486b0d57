// SPDX-License-Identifier: Apache-2.0
//! Rates and differences as people read them.

use wallprof_analysis::diff::Change;

use crate::style::Style;
use crate::units::time;

/// Nanoseconds per second, rounded to whole ones; hostile numbers saturate.
pub(super) fn whole_ns(ns: f64) -> u64 {
    ns.round() as u64
}

/// The difference in whole nanoseconds: of the rounded rates, so that what is shown adds up.
pub(super) fn difference_ns(change: &Change) -> i128 {
    i128::from(whole_ns(change.b_ns)) - i128::from(whole_ns(change.a_ns))
}

/// A rate: `12.3 ms`, and `-` for nothing.
pub(super) fn rate(ns: f64, style: &Style) -> String {
    match whole_ns(ns) {
        0 => "-".into(),
        ns => time(ns, style),
    }
}

/// `+12.3 ms`, `-4.00 ms`.
pub(super) fn signed(change: &Change, style: &Style) -> String {
    let difference = difference_ns(change);
    let size = u64::try_from(difference.unsigned_abs()).unwrap_or(u64::MAX);
    let sign = match difference {
        0 => "",
        1.. => "+",
        _ => style.pick("−", "-"),
    };
    format!("{sign}{}", time(size, style))
}

/// `± 0.41 ms`; empty where it is not known.
pub(super) fn margin(change: &Change, style: &Style) -> String {
    let Some(found) = change.uncertainty else { return String::new() };
    format!("{} {}", style.pick("±", "+-"), time(whole_ns(found.margin_ns), style))
}

/// A mark for changes from or to nothing.
pub(super) fn mark(change: &Change) -> &'static str {
    match change {
        change if change.appeared() => "appeared",
        change if change.went() => "went",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_analysis::diff::Uncertainty;

    fn change(a_ns: f64, b_ns: f64) -> Change {
        Change { a_ns, b_ns, uncertainty: Some(Uncertainty { margin_ns: 412_345.0, p: 0.001 }) }
    }

    #[test]
    fn signs_and_marks() {
        let style = Style::plain();
        let shown = |a, b| {
            let change = change(a, b);
            format!("{} {} {}", signed(&change, &style), margin(&change, &style), mark(&change))
        };
        assert_eq!(shown(1e6, 13.3e6), "+12.3 ms ± 412 µs ");
        assert_eq!(shown(13.3e6, 0.0), "−13.3 ms ± 412 µs went");
        assert_eq!(shown(0.0, 5e9), "+5.00 s ± 412 µs appeared");
        assert_eq!(shown(5.0, 5.0), "0 ns ± 412 µs ");
        assert_eq!((rate(0.4, &style), rate(2e6, &style)), ("-".into(), "2.00 ms".into()));
        let ascii = Style { unicode: false, ..style };
        assert_eq!(signed(&change(2e6, 1e6), &ascii), "-1.00 ms");
        assert_eq!(margin(&change(2e6, 1e6), &ascii), "+- 412 us");
    }

    #[test]
    fn hostile_numbers_saturate() {
        assert_eq!(signed(&change(0.0, 1e300), &Style::plain()), "+213,503 d");
        assert_eq!(whole_ns(f64::NAN), 0);
        assert_eq!(whole_ns(-1.0), 0);
    }
}
