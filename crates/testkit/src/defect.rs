// SPDX-License-Identifier: Apache-2.0
//! Failures that no second run excuses.
//!
//! `tests/gate` runs a live test that failed again, by itself. It does not where the message starts with
//! [`MARK`]: a ledger that does not add up, a recording that does not open, a loss that is not counted, and
//! anything left in the kernel are defects, however rare.

/// The first word of such a message. `tests/gate/gate.py` searches for it.
pub const MARK: &str = "DEFECT:";

/// As `expect`, for what must succeed in each run on each machine.
pub fn always<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{MARK} {error}"))
}

/// As `assert!`, for what must hold in each run on each machine.
#[macro_export]
macro_rules! assert_always {
    ($condition:expr, $($message:tt)+) => {
        assert!($condition, "{} {}", $crate::defect::MARK, format_args!($($message)+))
    };
}
