// SPDX-License-Identifier: Apache-2.0
//! Budgets of spans: how long an operation may take, by its kind.

use std::collections::BTreeMap;

/// By kind, ns.
pub type SpanBudgets = BTreeMap<String, u64>;

/// Limit on the budgets of a recording.
pub const MAX_SPAN_BUDGETS: usize = 64;
/// Limit on a kind, bytes.
pub const MAX_BUDGET_KIND: usize = 256;
