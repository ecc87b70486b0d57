//! Which thread a CPU ran when. The decoder reads from it which address space it is in.

use crate::code::SpaceId;

/// A thread as the caller numbers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadId(pub u32);

impl ThreadId {
    /// The idle task, or a thread nobody asked about.
    pub const NOBODY: ThreadId = ThreadId(0);
}

/// How a thread left its CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Departure {
    /// It had nothing to run.
    Blocked,
    /// It could have run on.
    Preempted,
    #[default]
    Unknown,
}

/// From `ticks` on the CPU runs `thread`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switch {
    pub ticks: u64,
    pub thread: ThreadId,
    pub space: SpaceId,
    /// How the thread before it left.
    pub departure: Departure,
}

/// One CPU's switches by time, or the one thread of a per-thread trace.
#[derive(Clone, Debug)]
pub struct Schedule {
    switches: Vec<Switch>,
}

impl Schedule {
    /// `switches` in any order; those of equal times stay in the given one.
    pub fn new(mut switches: Vec<Switch>) -> Schedule {
        switches.sort_by_key(|switch| switch.ticks);
        Schedule { switches }
    }

    /// A trace that follows one thread.
    pub fn of_thread(thread: ThreadId, space: SpaceId) -> Schedule {
        Schedule::new(vec![Switch { thread, space, ..Switch::default() }])
    }

    /// All switches by time.
    pub fn switches(&self) -> &[Switch] {
        &self.switches
    }

    /// A cursor behind all switches up to `ticks`.
    pub fn cursor_at(&self, ticks: u64) -> Cursor<'_> {
        let next = self.switches.partition_point(|switch| switch.ticks <= ticks);
        Cursor { switches: &self.switches, next }
    }
}

/// A place between two switches.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    switches: &'a [Switch],
    next: usize,
}

impl Cursor<'_> {
    /// The switch in force; before the first one nobody is known to run.
    pub fn current(&self) -> Switch {
        self.next.checked_sub(1).map_or(Switch::default(), |index| self.switches[index])
    }

    /// When the next switch happens; `u64::MAX` when there is none.
    pub fn next_ticks(&self) -> u64 {
        self.switches.get(self.next).map_or(u64::MAX, |switch| switch.ticks)
    }

    /// Moves over the next switch, if it happened by `ticks`.
    #[inline]
    pub fn advance(&mut self, ticks: u64) -> Option<Switch> {
        let switch = *self.switches.get(self.next).filter(|switch| switch.ticks <= ticks)?;
        self.next += 1;
        Some(switch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(ticks: u64, thread: u32) -> Switch {
        Switch { ticks, thread: ThreadId(thread), ..Switch::default() }
    }

    #[test]
    fn a_cursor_starts_behind_what_has_happened_and_moves_in_order() {
        let schedule = Schedule::new(vec![to(30, 3), to(10, 1), to(20, 2)]);
        let mut cursor = schedule.cursor_at(10);
        assert_eq!(cursor.current().thread, ThreadId(1));
        assert_eq!(cursor.advance(19), None);
        assert_eq!(cursor.advance(30), Some(to(20, 2)));
        assert_eq!(cursor.advance(30), Some(to(30, 3)));
        assert_eq!(cursor.advance(u64::MAX), None);
        assert_eq!(schedule.cursor_at(9).current().thread, ThreadId::NOBODY);
    }
}
