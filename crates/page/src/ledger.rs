// SPDX-License-Identifier: Apache-2.0
//! The sums of the ledger as columns. The page computes the states of a selection from them.

use wallprof_analysis::bins::BinnedLedger;
use wallprof_model::Reason;
use wallprof_model::event::LedgerDelta;

use crate::columns::Columns;

pub fn write(ledger: &BinnedLedger, columns: &mut Columns) {
    columns.deltas("bin_edge", ledger.edges.iter().map(|at| at.cast_signed()));
    columns.deltas("ledger_bin", ledger.rows.iter().map(|(bin, ..)| bin.cast_signed()));
    columns.deltas("ledger_thread", ledger.rows.iter().map(|(_, thread, _)| i64::from(*thread)));
    for (name, sum) in LedgerDelta::SUMS {
        write_sums(ledger, columns, name, |row| *sum(&mut row.clone()));
    }
    for reason in Reason::ALL {
        let name = format!("blocked.{}", reason.name());
        write_sums(ledger, columns, &name, |row| row.blocked_ns[usize::from(reason.code())]);
    }
}

/// Sums that are 0 everywhere have no column.
fn write_sums(ledger: &BinnedLedger, columns: &mut Columns, name: &str, sum: impl Fn(&LedgerDelta) -> u64) {
    if ledger.rows.iter().any(|(.., row)| sum(row) > 0) {
        columns.unsigned(&format!("ledger.{name}"), ledger.rows.iter().map(|(.., row)| sum(row)));
    }
}
