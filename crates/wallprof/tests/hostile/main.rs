//! Recordings that were made to do harm: the right schema with hostile rows, floods of them, and SQL of the
//! file's own.
//!
//! Each command that reads a recording ends with exit code 0, 1 or 4 and at most one sentence, within
//! [`limits`], and runs nothing of the file's. The other attacks are beside what they attack:
//! docs/reliability.md lists them, and `make hostile` runs them all.

mod floods;
mod limits;
mod own_sql;
mod readers;
mod recording;
mod rows;
