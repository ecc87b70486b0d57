//! Which thread a CPU ran when. The decoder reads from it which address space it is in.
//!
//! A trace has as many switches as it likes, so they are packed, and read by a cursor, block by block.

mod packed;

use std::fmt;
use std::sync::Arc;

use crate::code::SpaceId;
use packed::{Packed, Unpacking};

/// A thread as the caller numbers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadId(pub u32);

impl ThreadId {
    /// The idle task, or a thread nobody asked about.
    pub const NONE: ThreadId = ThreadId(0);
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

/// Takes packed switches that are too many for memory.
pub trait Shelf: fmt::Debug + Send + Sync {
    /// Where they are now; `None`: they are to stay in memory.
    fn put(&self, bytes: &[u8]) -> Option<u64>;

    /// What was put there; on an error nothing, which the shelf remembers.
    fn get(&self, place: u64, len: usize) -> Vec<u8>;
}

/// One CPU's switches by time, or the one thread of a per-thread trace: some five bytes each.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    blocks: Vec<Packed>,
    count: usize,
    shelf: Option<Arc<dyn Shelf>>,
}

impl Schedule {
    /// `switches` in any order; those of equal times stay in the given one.
    pub fn new(switches: impl IntoIterator<Item = Switch>) -> Schedule {
        let mut schedule = ScheduleBuilder::default();
        switches.into_iter().for_each(|switch| schedule.add(switch));
        schedule.finish()
    }

    /// A trace that follows one thread.
    pub fn of_thread(thread: ThreadId, space: SpaceId) -> Schedule {
        Schedule::new([Switch { thread, space, ..Switch::default() }])
    }

    /// How many switches there are.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All switches by time.
    pub fn switches(&self) -> impl Iterator<Item = Switch> + '_ {
        self.blocks.iter().flat_map(|block| Unpacking::new(block, self.shelf.as_deref()))
    }

    /// All switches by time; what was read is forgotten.
    pub fn into_switches(self) -> impl Iterator<Item = Switch> {
        let shelf = self.shelf;
        self.blocks
            .into_iter()
            .flat_map(move |block| Unpacking::new(&block, shelf.as_deref()).collect::<Vec<Switch>>())
    }

    /// A cursor behind all switches up to `ticks`.
    pub fn cursor_at(&self, ticks: u64) -> Cursor<'_> {
        let later = self.blocks.partition_point(|block| block.first <= ticks);
        let mut cursor = Cursor {
            schedule: self,
            block: later.saturating_sub(1),
            unpacking: Unpacking::default(),
            current: Switch::default(),
            next: None,
        };
        cursor.next = cursor.read();
        while cursor.advance(ticks).is_some() {}
        cursor
    }
}

/// A place between two switches.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    schedule: &'a Schedule,
    /// The block behind the one that is being read.
    block: usize,
    unpacking: Unpacking<'a>,
    current: Switch,
    next: Option<Switch>,
}

impl Cursor<'_> {
    /// The switch in force; before the first one nobody is known to run.
    pub fn current(&self) -> Switch {
        self.current
    }

    /// When the next switch happens; `u64::MAX` when there is none.
    pub fn next_ticks(&self) -> u64 {
        self.next.map_or(u64::MAX, |switch| switch.ticks)
    }

    /// Moves over the next switch, if it happened by `ticks`.
    #[inline]
    pub fn advance(&mut self, ticks: u64) -> Option<Switch> {
        let switch = self.next.filter(|switch| switch.ticks <= ticks)?;
        self.current = switch;
        self.next = self.read();
        Some(switch)
    }

    fn read(&mut self) -> Option<Switch> {
        loop {
            if let Some(switch) = self.unpacking.next() {
                return Some(switch);
            }
            let block = self.schedule.blocks.get(self.block)?;
            self.block += 1;
            self.unpacking = Unpacking::new(block, self.schedule.shelf.as_deref());
        }
    }
}

/// Switches in a block.
const BLOCK: usize = 512;
/// Switches that wait for earlier ones that come late.
const OPEN: usize = 2 * BLOCK;
/// Switches that came later than that, at least, before they are put where they belong.
const MANY_LATE: usize = 1 << 14;

/// Packs switches as they come: nearly in the order of time.
#[derive(Clone, Debug, Default)]
pub struct ScheduleBuilder {
    packed: Schedule,
    /// The time of the last packed switch.
    until: u64,
    /// By time; none is earlier than the packed ones.
    open: Vec<Switch>,
    /// Earlier than what is packed, as they came.
    late: Vec<Switch>,
}

impl ScheduleBuilder {
    /// Packed switches go to `shelf`.
    pub fn on(shelf: Arc<dyn Shelf>) -> ScheduleBuilder {
        let packed = Schedule { shelf: Some(shelf), ..Schedule::default() };
        ScheduleBuilder { packed, ..ScheduleBuilder::default() }
    }

    /// Of equal times the first one comes first.
    pub fn add(&mut self, switch: Switch) {
        if switch.ticks < self.until {
            self.late.push(switch);
            if self.late.len() > MANY_LATE.max(self.packed.count / 4) {
                self.put_late_in();
            }
            return;
        }
        let at = match self.open.last() {
            Some(last) if last.ticks > switch.ticks => {
                self.open.partition_point(|known| known.ticks <= switch.ticks)
            }
            _ => self.open.len(),
        };
        self.open.insert(at, switch);
        if self.open.len() >= OPEN {
            self.pack(BLOCK);
        }
    }

    pub fn finish(mut self) -> Schedule {
        if !self.late.is_empty() {
            self.put_late_in();
        }
        while !self.open.is_empty() {
            self.pack(BLOCK);
        }
        self.packed.blocks.shrink_to_fit();
        self.packed
    }

    /// Packs the first of those that wait.
    fn pack(&mut self, most: usize) {
        let count = most.min(self.open.len());
        let Some(last) = count.checked_sub(1).and_then(|last| self.open.get(last)) else { return };
        self.until = last.ticks;
        let block = Packed::new(self.open.drain(..count), self.packed.shelf.as_deref());
        self.packed.blocks.push(block);
        self.packed.count += count;
    }

    /// Packs everything anew.
    fn put_late_in(&mut self) {
        let mut late = std::mem::take(&mut self.late);
        late.sort_by_key(|switch| switch.ticks);
        let shelf = self.packed.shelf.clone();
        let anew = Schedule { shelf, ..Schedule::default() };
        let packed = std::mem::replace(&mut self.packed, anew).into_switches();
        let open = std::mem::take(&mut self.open);
        self.until = 0;
        let mut late = late.into_iter().peekable();
        for switch in packed.chain(open) {
            while let Some(earlier) = late.next_if(|late| late.ticks < switch.ticks) {
                self.add(earlier);
            }
            self.add(switch);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use proptest::prelude::*;

    use super::*;

    fn to(ticks: u64, thread: u32) -> Switch {
        Switch { ticks, thread: ThreadId(thread), ..Switch::default() }
    }

    /// A shelf in memory, which refuses every third block.
    #[derive(Debug, Default)]
    struct Memory {
        bytes: Mutex<(usize, Vec<u8>)>,
    }

    impl Shelf for Memory {
        fn put(&self, bytes: &[u8]) -> Option<u64> {
            let mut known = self.bytes.lock().expect("nobody panicked");
            known.0 += 1;
            let place = known.1.len() as u64;
            known.1.extend(bytes);
            (!known.0.is_multiple_of(3)).then_some(place)
        }

        fn get(&self, place: u64, len: usize) -> Vec<u8> {
            self.bytes.lock().expect("nobody panicked").1[place as usize..][..len].to_vec()
        }
    }

    #[test]
    fn a_cursor_starts_behind_what_has_happened_and_moves_in_order() {
        let schedule = Schedule::new([to(30, 3), to(10, 1), to(20, 2)]);
        let mut cursor = schedule.cursor_at(10);
        assert_eq!(cursor.current().thread, ThreadId(1));
        assert_eq!(cursor.advance(19), None);
        assert_eq!(cursor.advance(30), Some(to(20, 2)));
        assert_eq!(cursor.advance(30), Some(to(30, 3)));
        assert_eq!(cursor.advance(u64::MAX), None);
        assert_eq!(cursor.current(), to(30, 3));
        assert_eq!(schedule.cursor_at(9).current().thread, ThreadId::NONE);
    }

    #[test]
    fn a_switch_is_a_few_bytes() {
        let switch = |number: u64| Switch {
            ticks: number * 2_500,
            thread: ThreadId((number % 60) as u32),
            space: SpaceId((number % 7) as u32),
            departure: Departure::Preempted,
        };
        let schedule = Schedule::new((0..100_000).map(switch));
        let held: usize = schedule.blocks.iter().map(Packed::held_bytes).sum();
        assert!(held <= 5 * schedule.len() && schedule.len() == 100_000, "{held}");
    }

    proptest! {
        #[test]
        fn what_comes_in_any_order_is_there_by_time(
            steps in proptest::collection::vec((0u64..9, any::<u32>(), any::<u32>(), 0usize..3), 0..4_000),
            back in proptest::collection::vec((0usize..4_000, 0usize..4_000), 0..40),
            asked in proptest::collection::vec(0u64..20_000, 0..40),
        ) {
            let departures = [Departure::Blocked, Departure::Preempted, Departure::Unknown];
            let mut ticks = 0;
            let mut switches: Vec<Switch> = steps.into_iter().map(|(step, thread, space, departure)| {
                ticks += step;
                let departure = departures[departure];
                Switch { ticks, thread: ThreadId(thread), space: SpaceId(space), departure }
            }).collect();
            for (from, to) in back {
                if from < switches.len() && to < switches.len() {
                    let switch = switches.remove(from);
                    switches.insert(to, switch);
                }
            }
            let mut builder = ScheduleBuilder::on(Arc::new(Memory::default()));
            switches.iter().for_each(|&switch| builder.add(switch));
            let schedule = builder.finish();
            switches.sort_by_key(|switch| switch.ticks);
            prop_assert_eq!(schedule.switches().collect::<Vec<_>>(), switches.clone());
            for ticks in asked {
                let next = switches.partition_point(|switch| switch.ticks <= ticks);
                let mut cursor = schedule.cursor_at(ticks);
                let current = next.checked_sub(1).map_or(Switch::default(), |last| switches[last]);
                prop_assert_eq!(cursor.current(), current);
                for switch in switches[next..].iter().take(1_100) {
                    prop_assert_eq!(cursor.next_ticks(), switch.ticks);
                    prop_assert_eq!(cursor.advance(u64::MAX), Some(*switch));
                }
            }
            prop_assert_eq!(schedule.into_switches().collect::<Vec<_>>(), switches);
        }
    }

    #[test]
    fn those_that_all_come_late_are_put_in_now_and_then() {
        let count = 3 * MANY_LATE as u64;
        let mut builder = ScheduleBuilder::default();
        for ticks in (0..count).rev() {
            builder.add(to(ticks, 1));
            assert!(builder.late.len() <= MANY_LATE.max(builder.packed.count / 4));
        }
        let ticks: Vec<u64> = builder.finish().switches().map(|switch| switch.ticks).collect();
        assert_eq!(ticks, (0..count).collect::<Vec<_>>());
    }
}
