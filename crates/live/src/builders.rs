// SPDX-License-Identifier: Apache-2.0
//! Threads that build unwind tables. The table of a big program takes seconds, in which the follower reads
//! further news.
//!
//! The follower orders no file that another program serves, because a read of it may block for ever. A disk or
//! a server may be silent, too. A builder without progress is replaced: its other orders are returned, and a
//! new thread is started. No other thread waits for it, not even at the end of the recording.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use wallprof_model::{ModuleId, Owner};
use wallprof_probe::{FileId, FileImage, clock};
use wallprof_symbols::ModuleFile;
use wallprof_unwind::{Table, TableError};

use crate::build_budget::{BuildBudget, Refusal, SharedBudget};

const MAX_BUILDERS: usize = 4;
/// Each order keeps a file open. There are several, so that a builder does not wait for the next order.
const MAX_ORDERS_EACH: usize = 4;
/// A builder with files of so many bytes ahead gets no further order: the table of a small program would wait for
/// that of a big one. A library of the system has a few MB.
const MAX_BYTES_AHEAD: u64 = 8 << 20;
/// A builder without a sign of progress for this long is stuck. One that waits for its turn gives none for up
/// to 30 s.
const STUCK_AFTER: Duration = Duration::from_secs(40);
/// Further builders that get stuck are not replaced.
const MAX_STUCK: usize = 4;

/// A file to build a table for.
pub(crate) struct Order {
    pub module: ModuleId,
    pub file: Option<ModuleFile>,
    /// The size of the file.
    pub bytes: u64,
    /// The user whose CPU time the build takes. Root and the recorder's own user have no quota.
    pub payer: Owner,
}

/// An order with its table, or the reason why there is none.
pub(crate) struct Built {
    pub order: Order,
    pub table: Result<Table, NotBuilt>,
    /// The identity of the file; `None` if its attributes changed during the build.
    pub file: Option<FileId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotBuilt {
    /// The file is gone, could not be read, or is shorter than its headers say.
    Unreadable,
    OverBudget,
    /// Other files of its owner use the CPU time, or other builders the memory.
    NotNow,
    /// The file has no unwind information of a known kind.
    Nothing,
}

/// The threads and the state that they share.
pub(crate) struct Builders {
    builders: Vec<Builder>,
    next: u64,
    built: Receiver<(u64, Built)>,
    finished: Sender<(u64, Built)>,
    /// Receives a byte with each table.
    done: PipeReader,
    bell: Arc<PipeWriter>,
    shared: Arc<SharedBudget>,
    stuck: Vec<u64>,
}

/// A builder with its own queue, so that no builder waits for a lock of another.
struct Builder {
    number: u64,
    orders: Sender<Order>,
    /// Its orders that are not built yet, with the sizes of their files.
    ahead: VecDeque<(ModuleId, u64)>,
    state: Arc<BuilderState>,
}

impl Builder {
    fn bytes_ahead(&self) -> u64 {
        self.ahead.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    fn has_capacity(&self) -> bool {
        self.ahead.len() < MAX_ORDERS_EACH && self.bytes_ahead() < MAX_BYTES_AHEAD
    }
}

/// The state that a builder and the follower share.
#[derive(Default)]
struct BuilderState {
    /// The time of the last progress in ns, by [`clock::mono_now`]; 0: it waits for its first order.
    last_sign: AtomicU64,
    /// The builder takes no further order.
    is_dismissed: AtomicBool,
}

impl Builders {
    pub(crate) fn start() -> io::Result<Self> {
        let (finished, built) = channel();
        let (done, bell) = io::pipe()?;
        let (bell, shared) = (Arc::new(bell), Arc::default());
        let (builders, stuck) = (Vec::new(), Vec::new());
        let mut all = Builders { builders, next: 0, built, finished, done, bell, shared, stuck };
        let count = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_BUILDERS);
        for _ in 0..count {
            all.add()?;
        }
        Ok(all)
    }

    /// The time until a table of this user's files may be built; zero: now.
    pub(crate) fn time_to_wait(&self, payer: Owner) -> Duration {
        self.shared.accounts.time_to_wait(payer, std::time::Instant::now())
    }

    /// Whether another order can be given.
    pub(crate) fn have_capacity(&self) -> bool {
        self.builders.iter().any(Builder::has_capacity)
    }

    /// How many tables are being built.
    pub(crate) fn building(&self) -> usize {
        self.builders.iter().map(|builder| builder.ahead.len()).sum()
    }

    /// Gives an order to the builder with the fewest bytes ahead. False: there is no builder.
    pub(crate) fn order(&mut self, order: Order) -> bool {
        let by_work = |builder: &&mut Builder| (builder.bytes_ahead(), builder.ahead.len());
        let Some(builder) = self.builders.iter_mut().min_by_key(by_work) else {
            return false;
        };
        let (module, bytes) = (order.module, order.bytes);
        if builder.ahead.is_empty() {
            builder.state.last_sign.store(clock::mono_now().0, Ordering::Relaxed);
        }
        let is_taken = builder.orders.send(order).is_ok();
        if is_taken {
            builder.ahead.push_back((module, bytes));
        }
        is_taken
    }

    pub(crate) fn take(&mut self) -> Option<Built> {
        let (number, built) = self.built.try_recv().ok()?;
        // Reads the byte of this table, so that the next wait does not return at once.
        let _ = self.done.read(&mut [0]);
        match self.builders.iter_mut().find(|builder| builder.number == number) {
            Some(builder) => builder.ahead.retain(|(module, _)| *module != built.order.module),
            // It was replaced, and its read has returned.
            None => self.stuck.retain(|stuck| *stuck != number),
        }
        Some(built)
    }

    /// Replaces stuck builders. Returns the orders at which they are stuck, and their other orders, to be
    /// given again.
    pub(crate) fn replace_stuck(&mut self) -> (Vec<ModuleId>, Vec<ModuleId>) {
        self.replace_silent(STUCK_AFTER)
    }

    fn replace_silent(&mut self, longest: Duration) -> (Vec<ModuleId>, Vec<ModuleId>) {
        let now = clock::mono_now().0;
        let is_stuck = |builder: &mut Builder| {
            let last_sign = builder.state.last_sign.load(Ordering::Relaxed);
            !builder.ahead.is_empty() && u128::from(now.saturating_sub(last_sign)) >= longest.as_nanos()
        };
        let stuck: Vec<Builder> = self.builders.extract_if(.., is_stuck).collect();
        let (mut lost, mut again) = (Vec::new(), Vec::new());
        for builder in stuck {
            builder.state.is_dismissed.store(true, Ordering::Relaxed);
            self.shared.turn.give_back(builder.number);
            let mut modules = builder.ahead.into_iter().map(|(module, _)| module);
            lost.extend(modules.next());
            again.extend(modules);
            self.stuck.push(builder.number);
            if self.stuck.len() <= MAX_STUCK {
                // If no thread can be started, the other builders take the orders.
                let _ = self.add();
            }
        }
        (lost, again)
    }

    /// Becomes readable when a table is built.
    pub(crate) fn done(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }

    fn add(&mut self) -> io::Result<()> {
        let (orders, ordered) = channel::<Order>();
        let state = Arc::<BuilderState>::default();
        self.next += 1;
        let thread = BuilderThread {
            number: self.next,
            ordered,
            finished: self.finished.clone(),
            bell: Arc::clone(&self.bell),
            shared: Arc::clone(&self.shared),
            state: Arc::clone(&state),
        };
        // Detached: the thread ends when the sender of orders is dropped.
        drop(std::thread::Builder::new().name("wallprof-tables".into()).spawn(move || thread.run())?);
        self.builders.push(Builder { number: self.next, orders, ahead: VecDeque::new(), state });
        Ok(())
    }
}

struct BuilderThread {
    number: u64,
    ordered: Receiver<Order>,
    finished: Sender<(u64, Built)>,
    bell: Arc<PipeWriter>,
    shared: Arc<SharedBudget>,
    state: Arc<BuilderState>,
}

impl BuilderThread {
    fn run(self) {
        while let Ok(order) = self.ordered.recv() {
            if self.state.is_dismissed.load(Ordering::Relaxed) {
                return;
            }
            self.state.last_sign.store(clock::mono_now().0, Ordering::Relaxed);
            let built = self.build(order);
            self.state.last_sign.store(clock::mono_now().0, Ordering::Relaxed);
            if self.finished.send((self.number, built)).is_err() {
                return;
            }
            // The read end of the pipe lives as long as the receiver.
            let _ = (&*self.bell).write(&[0]);
        }
    }

    fn build(&self, order: Order) -> Built {
        let file = order.file.as_ref().and_then(|file| file.file.clone());
        let Some(file) = file else { return Built { order, table: Err(NotBuilt::Nothing), file: None } };
        // Earlier orders of the same owner may have used its time.
        if !self.shared.accounts.may_start(order.payer, std::time::Instant::now()) {
            return Built { order, table: Err(NotBuilt::NotNow), file: None };
        }
        let before = FileId::of(&file).ok();
        let table = self.table(&file, order.payer);
        let after = FileId::of(&file).ok();
        Built { order, table, file: before.filter(|_| before == after) }
    }

    fn table(&self, file: &File, payer: Owner) -> Result<Table, NotBuilt> {
        let contents =
            |file: &File| file.metadata().ok().map(|now| (now.size(), now.mtime(), now.mtime_nsec()));
        let before = contents(file);
        let image = FileImage::open(file).map_err(|_| NotBuilt::Unreadable)?;
        let budget = BuildBudget::new(&self.shared, self.number, payer, &self.state.last_sign);
        let table = Table::from_image(&image, &budget);
        if contents(file) != before {
            return Err(NotBuilt::Unreadable);
        }
        table.map_err(|error| match (budget.refusal(), error) {
            (Some(Refusal::NotNow), _) => NotBuilt::NotNow,
            (Some(Refusal::TooLarge), _) | (None, TableError::OverBudget | TableError::TooManyRows(_)) => {
                NotBuilt::OverBudget
            }
            (None, TableError::Truncated(_)) => NotBuilt::Unreadable,
            (None, _) => NotBuilt::Nothing,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use wallprof_model::Module;

    fn order(module: u32, file: File, payer: Owner) -> Order {
        let file = Some(Arc::new(file));
        let described = Module { path: String::new(), build_id: None };
        let file = Some(ModuleFile { module: described, file });
        Order { module: ModuleId(module), file, bytes: 1, payer }
    }

    fn library() -> File {
        File::open("/lib64/ld-linux-x86-64.so.2").expect("glibc's linker")
    }

    fn next_built(builders: &mut Builders) -> Built {
        let mut done = [PollFd::from_borrowed_fd(builders.done.as_fd(), PollFlags::IN)];
        poll(&mut done, None).expect("a table");
        builders.take().expect("a table for each byte")
    }

    #[test]
    fn table_is_returned_with_the_identity_of_its_file() {
        let mut builders = Builders::start().expect("threads");
        assert!(builders.order(order(7, library(), Owner::System)));
        assert_eq!(builders.building(), 1);
        let built = next_built(&mut builders);
        assert_eq!((built.order.module, built.file), (ModuleId(7), FileId::of(&library()).ok()));
        assert!(built.table.is_ok() && builders.building() == 0);
    }

    #[test]
    fn nothing_waits_for_the_table_of_a_big_file() {
        let mut builders = Builders::start().expect("threads");
        // Threads that receive nothing.
        let mut unread = Vec::new();
        builders.builders.truncate(1);
        builders.add().expect("a thread");
        for builder in &mut builders.builders {
            let (orders, ordered) = channel();
            builder.orders = orders;
            unread.push(ordered);
        }
        let of_size = |module, bytes| Order { bytes, ..order(module, library(), Owner::System) };
        assert!(builders.order(of_size(1, MAX_BYTES_AHEAD)));
        for module in 2..2 + MAX_ORDERS_EACH as u32 {
            assert!(builders.have_capacity());
            assert!(builders.order(of_size(module, 1_000)));
        }
        let ahead = |at: usize| builders.builders[at].ahead.len();
        assert_eq!((ahead(0), ahead(1)), (1, MAX_ORDERS_EACH));
        assert!(!builders.have_capacity(), "the next one waits where a smaller one may overtake it");
    }

    #[test]
    fn files_of_a_user_without_time_wait_and_others_do_not() {
        let mut builders = Builders::start().expect("threads");
        let alice = Owner::User(1000);
        builders.shared.accounts.charge(alice, 3_000_000_000, std::time::Instant::now());
        assert!(builders.time_to_wait(alice) > Duration::from_secs(30));
        assert!(builders.order(order(1, library(), alice)));
        assert_eq!(next_built(&mut builders).table.err(), Some(NotBuilt::NotNow));
        assert!(builders.order(order(2, library(), Owner::User(1001))));
        assert!(next_built(&mut builders).table.is_ok());
    }

    #[test]
    fn stuck_builder_is_replaced_and_its_other_orders_are_returned() {
        let mut builders = Builders::start().expect("threads");
        // The only builder gets orders that its thread does not receive.
        builders.builders.truncate(1);
        let (orders, unread) = channel();
        let builder = &mut builders.builders[0];
        (builder.orders, builder.number) = (orders, 99);
        assert!(builders.shared.turn.take(99));
        (1..4).for_each(|module| assert!(builders.order(order(module, library(), Owner::System))));
        assert_eq!(builders.replace_silent(STUCK_AFTER), (vec![], vec![]), "it has just started");
        let (lost, again) = builders.replace_silent(Duration::ZERO);
        assert_eq!((lost, again), (vec![ModuleId(1)], vec![ModuleId(2), ModuleId(3)]));
        assert_eq!((builders.building(), builders.builders.len(), &builders.stuck[..]), (0, 1, &[99][..]));
        assert!(builders.order(order(4, library(), Owner::System)), "others are built");
        assert!(next_built(&mut builders).table.is_ok());
        assert!(builders.shared.turn.take(100), "a stuck builder has no turn");
        drop(unread);
    }

    #[test]
    fn stuck_builders_are_replaced_a_few_times_only() {
        let mut builders = Builders::start().expect("threads");
        builders.builders.truncate(1);
        let mut unread = Vec::new();
        for _ in 0..MAX_STUCK + 1 {
            let (orders, ordered) = channel();
            builders.builders[0].orders = orders;
            unread.push(ordered);
            assert!(builders.order(order(1, library(), Owner::System)));
            builders.replace_silent(Duration::ZERO);
        }
        assert!(builders.builders.is_empty() && !builders.have_capacity());
        assert!(!builders.order(order(1, library(), Owner::System)));
    }
}
