// SPDX-License-Identifier: Apache-2.0
//! The parts of the threads' time that a picture can show.

use std::error::Error;
use std::fmt;

use wallprof_model::State;

/// A part of the time, or an event, that the stacks of a picture weigh.
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
    /// Blocked time by the thread that ended it.
    Wakers,
    /// Every call, where the source saw them all.
    Calls,
    /// Counts of an extra event.
    Event(String),
}

const EVENT: &str = "event:";

impl View {
    /// The views with a name of their own: every one but those of events.
    pub const NAMED: [View; 6] =
        [View::Wall, View::OnCpu, View::OffCpu, View::Faults, View::Wakers, View::Calls];

    /// The views in which two recordings can be compared stack by stack.
    pub const COMPARED: [View; 3] = [View::Wall, View::OnCpu, View::OffCpu];

    /// The name; `None` for the view of an event, which is named after it.
    pub fn name(&self) -> Option<&'static str> {
        Some(match self {
            View::Wall => "wall",
            View::OnCpu => "on-cpu",
            View::OffCpu => "off-cpu",
            View::Faults => "faults",
            View::Wakers => "wakers",
            View::Calls => "calls",
            View::Event(_) => return None,
        })
    }

    /// # Errors
    /// A name that no view has.
    pub fn parse(name: &str) -> Result<Self, NotAView> {
        if let Some(view) = Self::NAMED.into_iter().find(|view| view.name() == Some(name)) {
            return Ok(view);
        }
        match name.strip_prefix(EVENT) {
            Some(event) if !event.is_empty() => Ok(View::Event(event.into())),
            _ => Err(NotAView { name: name.into() }),
        }
    }

    /// Whether time in `state` is part of the view.
    pub fn includes(&self, state: State) -> bool {
        match self {
            View::Wall | View::Calls => true,
            View::OnCpu => matches!(state, State::User | State::Kernel | State::Cpu | State::Irq),
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
        match self {
            View::Event(event) => write!(out, "{EVENT}{event}"),
            view => out.write_str(view.name().unwrap_or_default()),
        }
    }
}

/// A text that names no view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAView {
    name: String,
}

impl fmt::Display for NotAView {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = View::NAMED.iter().filter_map(View::name).collect();
        write!(out, "{:?} is not a view: give {} or {EVENT}NAME", self.name, names.join(", "))
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

    #[test]
    fn names_come_back() {
        for view in View::NAMED.into_iter().chain([View::Event("page-faults".into())]) {
            assert_eq!(View::parse(&view.to_string()), Ok(view));
        }
        assert_eq!(
            View::parse("x").unwrap_err().to_string(),
            "\"x\" is not a view: give wall, on-cpu, off-cpu, faults, wakers, calls or event:NAME"
        );
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
