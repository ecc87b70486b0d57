// SPDX-License-Identifier: Apache-2.0
//! The terminal while the screen is shown: raw input and the alternate screen, restored in every case.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, Once, PoisonError};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::failure::Failure;

/// The alternate screen, without a cursor; and back. A terminal without an alternate screen, such as a VT100,
/// ignores that part.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &[u8] = b"\x1b[m\x1b[2J\x1b[H\x1b[?25h\x1b[?1049l";

/// The state before, while the screen is shown. Also read by the panic hook.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Restores the terminal when dropped.
pub struct Screen;

/// Refuses what cannot show the screen, before anything is loaded.
pub fn check(term: Option<&str>) -> Result<(), Failure> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(Failure::usage(
            "top needs a terminal for its input and output: for a file or a pipe, use `wallprof record`",
        ));
    }
    check_name(term)
}

fn check_name(term: Option<&str>) -> Result<(), Failure> {
    match term {
        None | Some("" | "dumb") => Err(Failure::usage(
            "top needs a terminal that can move its cursor, but TERM is dumb or not set: set TERM, for \
             instance to vt100, or use `wallprof record`",
        )),
        Some(_) => Ok(()),
    }
}

impl Screen {
    pub fn enter() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let usual = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                restore();
                usual(info);
            }));
        });
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let screen = Screen;
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        screen.write(ENTER)?;
        Ok(screen)
    }

    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()
    }

    /// Columns and lines; 80 and 24 if the terminal does not know them.
    pub fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        size.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal, once.
fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        // The terminal may be gone.
        let _ = io::stdout().write_all(LEAVE).and_then(|()| io::stdout().flush());
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumb_terminals_are_refused() {
        for term in [None, Some(""), Some("dumb")] {
            assert!(check_name(term).unwrap_err().message.contains("move its cursor"));
        }
        assert!(check_name(Some("vt100")).is_ok());
    }
}
