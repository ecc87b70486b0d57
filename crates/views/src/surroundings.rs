// SPDX-License-Identifier: Apache-2.0
//! Other events around a stall: counters that moved, marks, spans, and what the holder of its lock did.

use wallprof_analysis::Holder;
use wallprof_analysis::counters::CounterMove;
use wallprof_analysis::receive::Backlog;
use wallprof_model::counter::{CounterKind, CounterUnit};
use wallprof_model::{Mark, MonoNs, Span};

use crate::style::Style;
use crate::units::{bytes, count, time};

/// The counters and marks of the time around a stall.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Surroundings {
    /// The largest move first; `None` where the recording has no counters.
    pub counters: Option<Vec<CounterMove>>,
    /// What the process did not receive meanwhile.
    pub backlog: Option<Backlog>,
    /// Oldest first.
    pub marks: Vec<Mark>,
    /// The spans in which it began, with their ids, the innermost first.
    pub spans: Vec<(u64, Span)>,
    /// The id of the thread's container.
    pub container: Option<String>,
    /// The same in Kubernetes: `NAMESPACE/POD/CONTAINER`.
    pub pod: Option<String>,
    /// The holder of the lock that the thread waited for.
    pub holder: Option<Holder>,
}

/// `memory.free 102.0 MiB → 12.0 MiB → 14.0 MiB`: before, at, after.
pub(crate) fn counter_text(moved: &CounterMove, style: &Style) -> String {
    let arrow = style.pick("→", "->");
    let value = |value: f64| value_text(value, moved.kind, moved.unit, style);
    let after = moved.after.map(|after| format!(" {arrow} {}", value(after))).unwrap_or_default();
    format!("{} {} {arrow} {}{after}", style.name(&moved.name), value(moved.before), value(moved.at))
}

/// `alarm, 12.3 ms before`; `alarm, from 12.3 ms before on for 2.00 s`.
pub(crate) fn mark_text(mark: &Mark, (start, end): (MonoNs, MonoNs), style: &Style) -> String {
    let when = if mark.at < start {
        format!("{} before", time(start.0 - mark.at.0, style))
    } else if mark.at <= end {
        format!("{} after its start", time(mark.at.0 - start.0, style))
    } else {
        format!("{} after its end", time(mark.at.0 - end.0, style))
    };
    let lasting = mark.duration_ns.map(|ns| format!(", for {}", time(ns, style))).unwrap_or_default();
    format!("{}, {when}{lasting}", style.name(&mark.text))
}

/// `order, 890 µs, begun 12.3 µs before`.
pub(crate) fn span_text(span: &Span, start: MonoNs, style: &Style) -> String {
    let begun = time(start.0.saturating_sub(span.start.0), style);
    format!("{}, {}, begun {begun} before", style.name(&span.kind), time(span.duration_ns(), style))
}

fn value_text(value: f64, kind: CounterKind, unit: CounterUnit, style: &Style) -> String {
    let rate = match kind {
        CounterKind::Level => "",
        CounterKind::Sum => "/s",
    };
    let sign = if value < 0.0 { "-" } else { "" };
    let size = value.abs();
    let text = match unit {
        CounterUnit::Bytes => bytes(size.round() as u64),
        CounterUnit::Ns => time(size.round() as u64, style),
        CounterUnit::Count | CounterUnit::Plain if size < 1000.0 => short_number(size),
        CounterUnit::Count | CounterUnit::Plain => count(size.round() as u64),
    };
    format!("{sign}{text}{rate}")
}

/// At most two decimals, none of them a useless 0: `0.25`, `7`.
fn short_number(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(kind: CounterKind, unit: CounterUnit, values: [f64; 3]) -> String {
        let [before, at, after] = values;
        let moved =
            CounterMove { name: "it\n".into(), kind, unit, before, at, after: Some(after), weight: 1.0 };
        counter_text(&moved, &Style::plain())
    }

    #[test]
    fn values_have_their_unit() {
        let mib = 1_048_576.0;
        assert_eq!(
            moved(CounterKind::Level, CounterUnit::Bytes, [102.0 * mib, 12.0 * mib, 14.0 * mib]),
            "it\\n 102.0 MiB → 12.0 MiB → 14.0 MiB"
        );
        assert_eq!(
            moved(CounterKind::Sum, CounterUnit::Count, [0.0, 1234.0, 0.5]),
            "it\\n 0/s → 1,234/s → 0.5/s"
        );
        assert_eq!(
            moved(CounterKind::Sum, CounterUnit::Ns, [0.0, 3.5e8, 1e3]),
            "it\\n 0 ns/s → 350 ms/s → 1.00 µs/s"
        );
        assert_eq!(moved(CounterKind::Level, CounterUnit::Plain, [-2.25, f64::MAX, 7.0]), {
            format!("it\\n -2.25 → {} → 7", count(u64::MAX))
        });
    }

    #[test]
    fn marks_say_when() {
        let mark = |at: u64, duration_ns| {
            let mark = Mark { at: MonoNs(at), duration_ns, text: "alarm".into() };
            mark_text(&mark, (MonoNs(5_000), MonoNs(9_000)), &Style::plain())
        };
        assert_eq!(mark(4_000, None), "alarm, 1.00 µs before");
        assert_eq!(mark(6_000, Some(2_000)), "alarm, 1.00 µs after its start, for 2.00 µs");
        assert_eq!(mark(9_500, None), "alarm, 500 ns after its end");
    }
}
