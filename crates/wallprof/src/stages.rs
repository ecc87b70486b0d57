//! A line on stderr that says what a long command reads.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Short commands print nothing.
const FIRST_AFTER: Duration = Duration::from_millis(700);
const EVERY: Duration = Duration::from_millis(200);
/// Rows between two looks at the clock.
const ROWS: u64 = 1024;

/// What is being read, and how many rows of it; nothing if stderr is not a terminal.
pub struct Stages {
    what: &'static str,
    rows: u64,
    next: Option<Instant>,
    is_shown: bool,
}

impl Stages {
    pub fn on_stderr() -> Self {
        let next = io::stderr().is_terminal().then(|| Instant::now() + FIRST_AFTER);
        Stages { what: "", rows: 0, next, is_shown: false }
    }

    /// Starts another stage: `reading stalls`.
    pub fn start(&mut self, what: &'static str) {
        (self.what, self.rows) = (what, 0);
        self.show();
    }

    /// A row of this stage was read.
    pub fn row(&mut self) {
        self.rows += 1;
        if self.rows.is_multiple_of(ROWS) {
            self.show();
        }
    }

    fn show(&mut self) {
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        self.next = Some(now + EVERY);
        self.is_shown = true;
        let _ = match self.rows {
            0 => write!(io::stderr(), "\r\x1b[K{} …", self.what),
            rows => write!(io::stderr(), "\r\x1b[K{}: {rows} rows", self.what),
        };
    }
}

impl Drop for Stages {
    /// Removes the line.
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_by_stage_and_shown_when_it_takes_long() {
        let mut stages = Stages { what: "", rows: 0, next: None, is_shown: false };
        stages.start("reading stalls");
        (0..3 * ROWS).for_each(|_| stages.row());
        assert_eq!((stages.rows, stages.is_shown), (3 * ROWS, false), "stderr is no terminal");
        stages.next = Some(Instant::now());
        stages.start("writing the page");
        assert_eq!((stages.rows, stages.is_shown), (0, true));
    }
}
