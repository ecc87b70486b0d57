//! Which part of the threads' time a picture shows.

use std::error::Error;
use std::fmt;

use wallprof_model::State;

/// What the stacks of a picture weigh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// All wall time. The time views below are parts of it that do not overlap.
    Wall,
    /// Running: user, kernel and interrupts.
    OnCpu,
    /// Waiting: for a CPU, or blocked.
    OffCpu,
    /// Page faults, on and off CPU.
    Faults,
    /// Blocked time by who ended it.
    Wakers,
    /// Every call, where the source saw them all.
    Calls,
    /// Counts of an extra event.
    Event(String),
}

const EVENT: &str = "event:";

impl View {
    /// # Errors
    /// A name that no view has.
    pub fn parse(name: &str) -> Result<Self, NotAView> {
        match name {
            "wall" => Ok(View::Wall),
            "on-cpu" => Ok(View::OnCpu),
            "off-cpu" => Ok(View::OffCpu),
            "faults" => Ok(View::Faults),
            "wakers" => Ok(View::Wakers),
            "calls" => Ok(View::Calls),
            _ => match name.strip_prefix(EVENT) {
                Some(event) if !event.is_empty() => Ok(View::Event(event.into())),
                _ => Err(NotAView { name: name.into() }),
            },
        }
    }

    /// Whether time in `state` is part of the view.
    pub fn includes(&self, state: State) -> bool {
        match self {
            View::Wall | View::Calls => true,
            View::OnCpu => matches!(state, State::User | State::Kernel | State::Irq),
            View::OffCpu => matches!(state, State::Runnable | State::Preempted | State::Blocked(_)),
            View::Faults => matches!(state, State::FaultMinor | State::FaultMajor),
            View::Wakers => matches!(state, State::Blocked(_)),
            View::Event(_) => false,
        }
    }

    /// Whether weights are nanoseconds; else they are counts.
    pub fn is_time(&self) -> bool {
        !matches!(self, View::Event(_))
    }
}

impl fmt::Display for View {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            View::Wall => "wall",
            View::OnCpu => "on-cpu",
            View::OffCpu => "off-cpu",
            View::Faults => "faults",
            View::Wakers => "wakers",
            View::Calls => "calls",
            View::Event(event) => return write!(out, "{EVENT}{event}"),
        })
    }
}

/// A text that names no view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAView {
    name: String,
}

impl fmt::Display for NotAView {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{:?} is not a view: give wall, on-cpu, off-cpu, faults, wakers, calls or event:NAME",
            self.name
        )
    }
}

impl Error for NotAView {}

/// Which code frames are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    #[default]
    Both,
    User,
    Kernel,
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::Reason;

    const NAMES: [&str; 7] = ["wall", "on-cpu", "off-cpu", "faults", "wakers", "calls", "event:page-faults"];

    #[test]
    fn names_come_back() {
        for name in NAMES {
            assert_eq!(View::parse(name).unwrap().to_string(), name);
        }
        for wrong in ["", "Wall", "event:", "call"] {
            assert!(View::parse(wrong).unwrap_err().to_string().contains("on-cpu"), "{wrong}");
        }
    }

    #[test]
    fn the_time_views_divide_wall_time() {
        for code in 0..=u8::MAX {
            let Some(state) = State::from_code(code) else { continue };
            let parts = [View::OnCpu, View::OffCpu, View::Faults];
            assert_eq!(parts.iter().filter(|view| view.includes(state)).count(), 1, "{state:?}");
            assert!(View::Wall.includes(state));
        }
        assert!(
            !View::Wakers.includes(State::Runnable) && View::Wakers.includes(State::Blocked(Reason::Lock))
        );
    }
}
