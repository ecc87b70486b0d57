// SPDX-License-Identifier: Apache-2.0
//! Interrupt time by cause, over all CPUs and victims.

use std::collections::{BTreeMap, HashMap};

use wallprof_model::ThreadKey;
use wallprof_model::event::InterruptKind;
use wallprof_model::profile::InterruptRow;

/// One cause of interrupts over the whole recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterruptCause {
    pub kind: InterruptKind,
    pub name: String,
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
    /// The recorded thread that lost most time to it, and how much.
    pub victim: Option<(ThreadKey, u64)>,
}

/// A cause that is being summed up, and the time that each victim lost to it.
type Sum = (InterruptCause, HashMap<ThreadKey, u64>);

/// Causes, most time first; equal ones by kind and name.
pub fn causes(rows: &[InterruptRow]) -> Vec<InterruptCause> {
    let mut causes: BTreeMap<(InterruptKind, &str), Sum> = BTreeMap::new();
    for row in rows {
        let (cause, victims) =
            causes.entry((row.kind, &row.name)).or_insert_with(|| (nothing(row), HashMap::new()));
        cause.count = cause.count.saturating_add(row.count);
        cause.total_ns = cause.total_ns.saturating_add(row.total_ns);
        cause.max_ns = cause.max_ns.max(row.max_ns);
        if let Some(victim) = row.victim {
            let lost = victims.entry(victim).or_default();
            *lost = lost.saturating_add(row.total_ns);
        }
    }
    let mut causes: Vec<InterruptCause> = causes
        .into_values()
        .map(|(cause, victims)| InterruptCause { victim: most_hit(&victims), ..cause })
        .collect();
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.total_ns));
    causes
}

fn nothing(row: &InterruptRow) -> InterruptCause {
    InterruptCause { kind: row.kind, name: row.name.clone(), count: 0, total_ns: 0, max_ns: 0, victim: None }
}

fn most_hit(victims: &HashMap<ThreadKey, u64>) -> Option<(ThreadKey, u64)> {
    let most = victims.iter().max_by_key(|&(key, lost)| (lost, std::cmp::Reverse(key)));
    most.map(|(&key, &lost)| (key, lost))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cpu: u32, name: &str, victim: Option<u32>, total_ns: u64) -> InterruptRow {
        InterruptRow {
            cpu,
            kind: InterruptKind::Vector,
            name: name.into(),
            victim: victim.map(ThreadKey),
            count: 2,
            total_ns,
            max_ns: total_ns / 2 + 1,
        }
    }

    #[test]
    fn rows_of_one_cause_add_up() {
        let rows = [
            row(0, "local_timer", Some(1), 10),
            row(1, "local_timer", Some(2), 15),
            row(0, "local_timer", Some(1), 10),
            row(0, "local_timer", None, 100),
            row(0, "reschedule", None, 500),
        ];
        let causes = causes(&rows);
        assert_eq!(
            causes.iter().map(|cause| cause.name.as_str()).collect::<Vec<_>>(),
            ["reschedule", "local_timer"]
        );
        assert_eq!((causes[1].count, causes[1].total_ns, causes[1].max_ns), (8, 135, 51));
        assert_eq!(causes[1].victim, Some((ThreadKey(1), 20)));
        assert_eq!(causes[0].victim, None);
    }
}
