// SPDX-License-Identifier: Apache-2.0
//! Malicious recordings: hostile rows under the right schema, floods of rows, and SQL that the file contains.
//!
//! Each command that reads a recording ends with exit code 0, 1 or 4 and at most one sentence, within
//! [`limits`]. It runs no SQL of the file. The tests of other attacks are in the crates that they attack:
//! docs/reliability.md lists them, and `make hostile` runs them all.

mod floods;
mod limits;
mod own_sql;
mod readers;
mod recording;
mod rows;
