// SPDX-License-Identifier: Apache-2.0
//! A line on a terminal that says what a long command reads, and how much of it.
//!
//! It is on stderr, and ends where the command's own output starts: both may be the same terminal.

use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Short commands print nothing.
const FIRST_AFTER: Duration = Duration::from_millis(700);
const EVERY: Duration = Duration::from_millis(200);

#[derive(Default)]
struct Stages {
    /// `None`: nothing is printed.
    next: Option<Instant>,
    is_shown: bool,
}

thread_local! {
    static STAGES: RefCell<Stages> = RefCell::default();
}

/// From now on, what this thread reads is shown, if stderr is a terminal. Other threads print nothing.
pub fn show_on_terminal() {
    let next = io::stderr().is_terminal().then(|| Instant::now() + FIRST_AFTER);
    STAGES.with_borrow_mut(|stages| stages.next = next);
}

/// This stage is next: `searching for causes`.
pub fn start(what: &str) {
    STAGES.with_borrow_mut(|stages| stages.print(what, None));
}

/// So much was read of the rows of a kind.
pub fn reading(what: &str, done: u64, of: u64) {
    STAGES.with_borrow_mut(|stages| stages.print(what, Some((done, of))));
}

/// Removes the line, until more is read.
pub fn erase() {
    STAGES.with_borrow_mut(Stages::erase);
}

/// Removes the line for good.
pub fn end() {
    STAGES.with_borrow_mut(|stages| {
        stages.erase();
        stages.next = None;
    });
}

impl Stages {
    fn print(&mut self, what: &str, read: Option<(u64, u64)>) {
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        self.next = Some(now + EVERY);
        self.is_shown = true;
        let _ = write!(io::stderr(), "\r\x1b[K{}", line(what, read));
    }

    fn erase(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(what: &str, read: Option<(u64, u64)>) -> String {
    match read {
        None => format!("{what} …"),
        Some((done, of)) => {
            format!("reading {what}: {} %", (done.min(of) * 100).checked_div(of).unwrap_or(100))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_share_that_was_read() {
        assert_eq!(line("stalls", Some((500, 2_000))), "reading stalls: 25 %");
        assert_eq!(line("stalls", Some((3, 2))), "reading stalls: 100 %");
        assert_eq!(line("samples", Some((0, 0))), "reading samples: 100 %");
        assert_eq!(line("writing the page", None), "writing the page …");
    }

    #[test]
    fn nothing_is_printed_unless_asked_or_after_the_end() {
        start("searching for causes");
        assert!(!STAGES.with_borrow(|stages| stages.is_shown));
        STAGES.with_borrow_mut(|stages| stages.next = Some(Instant::now()));
        reading("stalls", 1, 2);
        assert!(STAGES.with_borrow(|stages| stages.is_shown));
        end();
        reading("stalls", 2, 2);
        assert!(!STAGES.with_borrow(|stages| stages.is_shown));
    }
}
