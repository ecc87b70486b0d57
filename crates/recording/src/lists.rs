// SPDX-License-Identifier: Apache-2.0
//! Lists in the SQL of this crate, with one item for each sum of a ledger or for each reason of blocked time.
//!
//! SQL text writes such a list as `EACH_SUM[SEPARATOR][ITEM]`, `EACH_REASON[SEPARATOR][ITEM]`,
//! `EACH_VOLUNTARY_REASON[SEPARATOR][ITEM]` or, for the states of a span, `EACH_SPAN_STATE[SEPARATOR][ITEM]`.
//! In an item `#` stands for the name.

use wallprof_model::event::LedgerDelta;
use wallprof_model::{Reason, SpanState};

/// The columns of a span's states without their unit, in the order of `SpanStates`: a state's label without
/// its class.
pub(crate) fn span_columns() -> [&'static str; SpanState::COUNT] {
    let mut names = ["cpu", "irq", "minor", "major", "runnable", "preempted"].into_iter();
    let mut reasons = Reason::ALL.into_iter().map(Reason::name);
    std::array::from_fn(|_| names.next().or_else(|| reasons.next()).unwrap_or("unknown"))
}

/// The SQL with every list written out.
pub(crate) fn expand(sql: &str) -> String {
    let voluntary = Reason::ALL.into_iter().filter(|reason| reason.is_voluntary());
    let sql = expand_marker(sql, "EACH_VOLUNTARY_REASON", voluntary.map(Reason::name));
    let sql = expand_marker(&sql, "EACH_SPAN_STATE", span_columns().into_iter());
    let sql = expand_marker(&sql, "EACH_REASON", Reason::ALL.into_iter().map(Reason::name));
    expand_marker(&sql, "EACH_SUM", LedgerDelta::SUMS.iter().map(|(name, _)| *name))
}

fn expand_marker(sql: &str, marker: &str, names: impl Iterator<Item = &'static str> + Clone) -> String {
    let start = format!("{marker}[");
    let mut parts = sql.split(start.as_str());
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (separator, rest) = part.split_once("][").expect("a separator and an item");
        let (item, rest) = rest.split_once(']').expect("the end of the item");
        let items: Vec<String> = names.clone().map(|name| item.replace('#', name)).collect();
        expanded += &items.join(separator);
        expanded += rest;
    }
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_has_an_item_for_each_reason() {
        let sql = expand("SELECT EACH_REASON[ + ][#_ns] AS blocked FROM bucket");
        let items = sql.strip_prefix("SELECT ").and_then(|sql| sql.strip_suffix(" AS blocked FROM bucket"));
        let names: Vec<_> = items.expect("the rest is kept").split(" + ").collect();
        assert_eq!(names, Reason::ALL.map(|reason| format!("{}_ns", reason.name())));
    }

    #[test]
    fn columns_of_a_span_are_its_states() {
        for (column, state) in span_columns().into_iter().zip(SpanState::all()) {
            assert_eq!(state.label().rsplit(':').next(), Some(column));
        }
    }

    #[test]
    fn voluntary_reasons_are_those_of_the_model() {
        let sql = expand("name IN (EACH_VOLUNTARY_REASON[, ]['#'])");
        let contains = |reason: &Reason| sql.contains(&format!("'{}'", reason.name()));
        assert!(sql.starts_with("name IN ('") && sql.ends_with("')"), "{sql}");
        assert!(Reason::ALL.iter().all(|reason| contains(reason) == reason.is_voluntary()), "{sql}");
    }

    #[test]
    fn other_sql_stays_as_it_is() {
        assert_eq!(expand("SELECT 1 -- x[2][3]"), "SELECT 1 -- x[2][3]");
    }
}
