// SPDX-License-Identifier: Apache-2.0
//! The threads that a CPU ran, by time. The decoder reads its address space from it.
//!
//! A trace may have any number of switches, so they are packed, and a cursor reads them block by block.

mod packed;

use std::fmt;
use std::sync::Arc;

use crate::code::SpaceId;
use packed::{Packed, Unpacking};

/// A thread, numbered by the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadId(pub u32);

impl ThreadId {
    /// The idle task, or a thread outside of the recording.
    pub const NONE: ThreadId = ThreadId(0);
}

/// The way in which a thread left its CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Departure {
    /// It was blocked.
    Blocked,
    /// It was preempted, and could have continued.
    Preempted,
    /// It is not known.
    #[default]
    Unknown,
}

/// From `ticks` on the CPU runs `thread`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switch {
    /// The time of the switch.
    pub ticks: u64,
    /// The next thread.
    pub thread: ThreadId,
    /// The address space of its process.
    pub space: SpaceId,
    /// The way in which the previous thread left.
    pub departure: Departure,
}

/// Stores packed switches outside of memory.
pub trait SwitchStore: fmt::Debug + Send + Sync {
    /// Stores `bytes` and returns their place; `None`: they stay in memory.
    fn put(&self, bytes: &[u8]) -> Option<u64>;

    /// The bytes at a place. On an error they are empty, and the store keeps the error.
    fn get(&self, place: u64, len: usize) -> Vec<u8>;
}

/// One CPU's switches by time, or the one thread of a per-thread trace. A switch takes some five bytes.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    blocks: Vec<Packed>,
    count: usize,
    store: Option<Arc<dyn SwitchStore>>,
}

impl Schedule {
    /// A schedule of `switches` in any order. Switches of equal times keep the given one.
    pub fn new(switches: impl IntoIterator<Item = Switch>) -> Schedule {
        let mut schedule = ScheduleBuilder::default();
        switches.into_iter().for_each(|switch| schedule.add(switch));
        schedule.finish()
    }

    /// A trace that follows one thread.
    pub fn of_thread(thread: ThreadId, space: SpaceId) -> Schedule {
        Schedule::new([Switch { thread, space, ..Switch::default() }])
    }

    /// The number of switches.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no switches.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All switches by time.
    pub fn switches(&self) -> impl Iterator<Item = Switch> + '_ {
        self.blocks.iter().flat_map(|block| Unpacking::new(block, self.store.as_deref()))
    }

    /// All switches by time. Blocks are dropped as they are read.
    pub fn into_switches(self) -> impl Iterator<Item = Switch> {
        let store = self.store;
        self.blocks
            .into_iter()
            .flat_map(move |block| Unpacking::new(&block, store.as_deref()).collect::<Vec<Switch>>())
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

/// A position between two switches.
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
    /// The current switch. Before the first one no thread is known to run.
    pub fn current(&self) -> Switch {
        self.current
    }

    /// The time of the next switch; `u64::MAX` if there is none.
    pub fn next_ticks(&self) -> u64 {
        self.next.map_or(u64::MAX, |switch| switch.ticks)
    }

    /// Moves over the next switch, if its time is at most `ticks`.
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
            self.unpacking = Unpacking::new(block, self.schedule.store.as_deref());
        }
    }
}

/// Switches in a block.
const BLOCK: usize = 512;
/// Switches that are held back for earlier ones that come late.
const OPEN: usize = 2 * BLOCK;
/// The number of later ones, at least, before they are merged.
const MANY_LATE: usize = 1 << 14;

/// Packs switches that come nearly in the order of time.
#[derive(Clone, Debug, Default)]
pub struct ScheduleBuilder {
    packed: Schedule,
    /// The time of the last packed switch.
    until: u64,
    /// By time. None is earlier than the packed ones.
    open: Vec<Switch>,
    /// Earlier than the packed ones, in the order of insertion.
    late: Vec<Switch>,
}

impl ScheduleBuilder {
    /// A builder that stores packed switches in `store`.
    pub fn on(store: Arc<dyn SwitchStore>) -> ScheduleBuilder {
        let packed = Schedule { store: Some(store), ..Schedule::default() };
        ScheduleBuilder { packed, ..ScheduleBuilder::default() }
    }

    /// Adds a switch. Switches of equal times keep their order.
    pub fn add(&mut self, switch: Switch) {
        if switch.ticks < self.until {
            self.late.push(switch);
            if self.late.len() > MANY_LATE.max(self.packed.count / 4) {
                self.merge_late();
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

    /// The schedule of all added switches.
    pub fn finish(mut self) -> Schedule {
        if !self.late.is_empty() {
            self.merge_late();
        }
        while !self.open.is_empty() {
            self.pack(BLOCK);
        }
        self.packed.blocks.shrink_to_fit();
        self.packed
    }

    /// Packs the first held-back switches.
    fn pack(&mut self, most: usize) {
        let count = most.min(self.open.len());
        let Some(last) = count.checked_sub(1).and_then(|last| self.open.get(last)) else { return };
        self.until = last.ticks;
        let block = Packed::new(self.open.drain(..count), self.packed.store.as_deref());
        self.packed.blocks.push(block);
        self.packed.count += count;
    }

    /// Packs all switches again, with the late ones.
    fn merge_late(&mut self) {
        let mut late = std::mem::take(&mut self.late);
        late.sort_by_key(|switch| switch.ticks);
        let store = self.packed.store.clone();
        let anew = Schedule { store, ..Schedule::default() };
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

    /// A store in memory that refuses every third block.
    #[derive(Debug, Default)]
    struct Memory {
        bytes: Mutex<(usize, Vec<u8>)>,
    }

    impl SwitchStore for Memory {
        fn put(&self, bytes: &[u8]) -> Option<u64> {
            let mut known = self.bytes.lock().expect("no thread panicked");
            known.0 += 1;
            let place = known.1.len() as u64;
            known.1.extend(bytes);
            (!known.0.is_multiple_of(3)).then_some(place)
        }

        fn get(&self, place: u64, len: usize) -> Vec<u8> {
            self.bytes.lock().expect("no thread panicked").1[place as usize..][..len].to_vec()
        }
    }

    #[test]
    fn cursor_starts_behind_earlier_switches_and_moves_in_order() {
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
    fn switch_takes_a_few_bytes() {
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
        fn switches_in_any_order_are_sorted_by_time(
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
    fn late_switches_are_merged_from_time_to_time() {
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
