// SPDX-License-Identifier: Apache-2.0
//! The matrix: each rule fires on its scenario and on no other, under any thread name, with and without
//! symbols; and a busy, healthy program has no findings that blame it.
//!
//! They run one after the other, and are skipped where BPF is not permitted.

mod found;

mod causes;
mod healthy;
mod lazy;
mod matrix;
mod other_programs;
mod steal;
mod throttled;
