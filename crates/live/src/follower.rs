//! The thread that keeps the kernel's walker informed: it waits for news about code, builds the unwind tables of files
//! that appear, and tells which process has what mapped where.
//!
//! Off the hot path, and event-driven: while nothing is mapped it sleeps.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wallprof_model::ModuleId;
use wallprof_probe::{
    CodeMapping, CodeSide, CodeTables, CodeWatch, FileId, FileImage, News, NotPlaced, Owner, PlacedTable,
};
use wallprof_symbols::{CodeRange, ModuleFile};
use wallprof_unwind::{Table, TableError};

use crate::build_budget::BuildBudget;
use crate::known::{ChangedCode, KnownProcesses};

/// News come in bursts, one exec some ten of them: after the first one this long is waited for the rest.
const BURST: Duration = Duration::from_millis(4);
/// How long the first look at all code may delay a recording. Tables that take longer come while it runs.
const FIRST_LOOK: Duration = Duration::from_secs(3);
const MAX_BUILDERS: usize = 4;
/// What was taken out of the arena can be used again after this.
const RETRY: Duration = Duration::from_millis(2_500);
/// Tables that were refused are not built again more often than this.
const RETRY_REFUSED: Duration = Duration::from_secs(30);

/// What the walker's tables are and cost; written by the follower, read by anybody.
#[derive(Debug, Default)]
pub struct TableCounts {
    /// Bytes of tables and lists in the kernel.
    pub bytes: AtomicU64,
    /// Tables and lists for which there was no room.
    pub refused: AtomicU64,
    /// Tables for which one user's files have too much of the kernel's memory or rules already.
    pub over_quota: AtomicU64,
    /// Tables that had to go for others.
    pub evicted: AtomicU64,
    /// Files that could not be read, or ended before a part that they name.
    pub unreadable: AtomicU64,
    /// Files whose table needs more memory or time than one file gets.
    pub over_budget: AtomicU64,
}

/// The running thread.
pub struct Follower {
    known: Arc<Mutex<KnownProcesses>>,
    counts: Arc<TableCounts>,
    /// Gets a byte when CPUs come; dropped to stop the thread.
    bell: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Starts the thread and waits until the code of the processes known so far, and of files that are `expected` to be
    /// mapped soon, is with the walker, or a few seconds.
    pub fn start(code: CodeSide, known: KnownProcesses, expected: Vec<PathBuf>) -> io::Result<Self> {
        let known = Arc::new(Mutex::new(known));
        let counts = Arc::new(TableCounts::default());
        let (rung, bell) = io::pipe()?;
        let (ready, looked) = channel();
        let (shared, told) = (Arc::clone(&known), Arc::clone(&counts));
        let thread = std::thread::Builder::new().name("wallprof-code".into()).spawn(move || {
            // Without the rings nothing would be followed, and every stack says so.
            let work = code.split().and_then(|(tables, watch)| Work::new(tables, watch, shared, told));
            let _ = work.and_then(|mut work| {
                work.expect(&expected);
                work.run(rung, ready)
            });
        })?;
        // A thread that gave up has dropped its end.
        let _ = looked.recv_timeout(FIRST_LOOK);
        Ok(Follower { known, counts, bell: Some(bell), thread: Some(thread) })
    }

    /// Follows nothing: for sessions without a kernel.
    #[cfg(test)]
    pub fn idle(known: KnownProcesses) -> Self {
        let (known, counts) = (Arc::new(Mutex::new(known)), Arc::new(TableCounts::default()));
        Follower { known, counts, bell: None, thread: None }
    }

    pub fn known(&self) -> MutexGuard<'_, KnownProcesses> {
        lock(&self.known)
    }

    pub fn counts(&self) -> &TableCounts {
        &self.counts
    }

    /// Other CPUs are online than before: news come from them, too.
    pub fn follow_cpus(&mut self) {
        // A thread that gave up hears nothing.
        let _ = self.bell.as_mut().map(|bell| bell.write(&[0]));
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.bell = None;
        if let Some(thread) = self.thread.take() {
            // It only ends when told to; a panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// A panic elsewhere leaves the table of processes as it was between two calls.
fn lock(known: &Mutex<KnownProcesses>) -> MutexGuard<'_, KnownProcesses> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What became of a module's table.
enum Held {
    Placed {
        table: PlacedTable,
        file: Option<FileId>,
        owner: Owner,
        last_used: u64,
    },
    /// There is none, or not yet.
    Absent,
}

/// A module to build a table for.
struct Order {
    module: ModuleId,
    file: Option<ModuleFile>,
    /// Of the file: how long it takes.
    bytes: u64,
}

/// An order with its table, or the reason why there is none.
struct Built {
    order: Order,
    table: Result<Table, NotBuilt>,
}

enum NotBuilt {
    /// The file is gone, could not be read, or ended before a part that it names.
    Unreadable,
    OverBudget,
    /// It has no unwind information that is understood.
    Nothing,
}

struct Work {
    tables: CodeTables,
    watch: CodeWatch,
    known: Arc<Mutex<KnownProcesses>>,
    counts: Arc<TableCounts>,
    held: HashMap<ModuleId, Held>,
    /// What each process was told to have.
    shown: HashMap<u32, ChangedCode>,
    builders: Builders,
    /// How many tables are being built.
    building: usize,
    /// Modules for which there was no room.
    waiting: Vec<ModuleId>,
    retry_at: Instant,
    /// Modules whose tables did not fit, and when they were last tried again.
    refused: HashSet<ModuleId>,
    refused_at: Instant,
    round: u64,
}

impl Work {
    fn new(
        tables: CodeTables,
        watch: CodeWatch,
        known: Arc<Mutex<KnownProcesses>>,
        counts: Arc<TableCounts>,
    ) -> io::Result<Self> {
        Ok(Work {
            tables,
            watch,
            known,
            counts,
            held: HashMap::new(),
            shown: HashMap::new(),
            builders: Builders::start()?,
            building: 0,
            waiting: Vec::new(),
            retry_at: Instant::now(),
            refused: HashSet::new(),
            refused_at: Instant::now(),
            round: 0,
        })
    }

    fn expect(&mut self, paths: &[PathBuf]) {
        let mut known = lock(&self.known);
        self.waiting.extend(paths.iter().filter_map(|path| known.processes.module_at(path)));
        self.held.extend(self.waiting.iter().map(|&module| (module, Held::Absent)));
    }

    fn run(mut self, mut rung: PipeReader, ready: Sender<()>) -> io::Result<()> {
        let mut news = VecDeque::new();
        let mut ready = Some(ready);
        loop {
            self.watch.read(&mut news)?;
            self.follow(&mut news);
            self.take_built();
            self.counts.bytes.store(self.tables.bytes(), Ordering::Relaxed);
            if self.building == 0
                && let Some(ready) = ready.take()
            {
                // Whoever started this may have stopped waiting.
                let _ = ready.send(());
            }
            let timeout = if self.waiting.is_empty() { None } else { Some(RETRY) };
            let [rings, _] = self.watch.wait([rung.as_fd(), self.builders.done()], timeout)?;
            if rings {
                match rung.read(&mut [0])? {
                    0 => return Ok(()),
                    _ => self.watch.follow_cpus()?,
                }
            }
            std::thread::sleep(BURST);
        }
    }

    /// Takes news in and tells the walker what follows from them; what is missing is built on the side.
    fn follow(&mut self, news: &mut VecDeque<News>) {
        self.round += 1;
        let (changed, gone) = {
            let mut known = lock(&self.known);
            known.apply(news);
            known.take_changes()
        };
        let any_gone = !gone.is_empty();
        for pid in gone {
            self.tables.forget_process(pid);
            self.shown.remove(&pid);
        }
        if any_gone {
            self.retry_refused();
        }
        let mut missing = match self.retry_at <= Instant::now() {
            true => std::mem::take(&mut self.waiting),
            false => Vec::new(),
        };
        for code in changed {
            for module in code.ranges.iter().filter_map(|range| range.module) {
                if let Entry::Vacant(place) = self.held.entry(module) {
                    place.insert(Held::Absent);
                    missing.push(module);
                }
            }
            self.show(code);
        }
        let files: Vec<_> = {
            let mut known = lock(&self.known);
            missing.into_iter().map(|module| (module, known.processes.module_file(module))).collect()
        };
        let mut orders: Vec<Order> =
            files.into_iter().map(|(module, file)| Order::new(module, file)).collect();
        // Small ones first: a big program's table takes as long as those of all its libraries.
        orders.sort_by_key(|order| order.bytes);
        for order in orders {
            self.building += usize::from(self.builders.order(order));
        }
    }

    fn take_built(&mut self) {
        let mut new = HashSet::new();
        while let Some(Built { order: Order { module, file, .. }, table }) = self.builders.take() {
            self.building -= 1;
            let file = file.as_ref().and_then(|file| file.file.as_deref());
            match table {
                Ok(table) if self.place(module, file, &table) => _ = new.insert(module),
                Ok(_) | Err(NotBuilt::Nothing) => {}
                Err(NotBuilt::Unreadable) => _ = self.counts.unreadable.fetch_add(1, Ordering::Relaxed),
                Err(NotBuilt::OverBudget) => _ = self.counts.over_budget.fetch_add(1, Ordering::Relaxed),
            }
        }
        if new.is_empty() {
            return;
        }
        let has_new = |code: &ChangedCode| {
            code.ranges.iter().any(|range| range.module.is_some_and(|id| new.contains(&id)))
        };
        let affected: Vec<u32> =
            self.shown.values().filter(|code| has_new(code)).map(|code| code.pid).collect();
        for pid in affected {
            if let Some(code) = self.shown.remove(&pid) {
                self.show(code);
            }
        }
    }

    /// Writes a process's list with the tables there are.
    fn show(&mut self, code: ChangedCode) {
        let mappings: Vec<CodeMapping> = code.ranges.iter().map(|range| self.mapping(range)).collect();
        if !self.tables.set_process(code.pid, code.exec_id, &mappings) {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
        }
        self.shown.insert(code.pid, code);
    }

    fn mapping(&mut self, range: &CodeRange) -> CodeMapping {
        let Some(module) = range.module else { return CodeMapping::run_time_code(range.start, range.end) };
        let table = match self.held.get_mut(&module) {
            Some(Held::Placed { table, last_used, .. }) => {
                *last_used = self.round;
                Some(&*table)
            }
            _ => None,
        };
        CodeMapping::new(range.start, range.end, range.bias, table)
    }

    /// True when the walker has the table now.
    fn place(&mut self, module: ModuleId, file: Option<&File>, table: &Table) -> bool {
        let owner = file.map_or(Owner::System, Owner::of);
        match self.tables.place(table, owner) {
            Ok(table) => {
                let file = file.and_then(|file| FileId::of(file).ok());
                let delta = lock(&self.known).processes.code_delta(module);
                if let (Some(file), Some(delta)) = (file, delta) {
                    self.tables.name_file(file, delta, &table);
                }
                self.held.insert(module, Held::Placed { table, file, owner, last_used: self.round });
                return true;
            }
            Err(reason) => {
                let only = (reason == NotPlaced::OverQuota).then_some(owner);
                if self.evict(only) {
                    self.waiting.push(module);
                    self.retry_at = Instant::now() + RETRY;
                } else {
                    self.refuse(module, reason);
                }
            }
        }
        false
    }

    fn refuse(&mut self, module: ModuleId, reason: NotPlaced) {
        let counter = match reason {
            NotPlaced::OverQuota => &self.counts.over_quota,
            NotPlaced::Full | NotPlaced::TooManyRules => &self.counts.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.refused.insert(module);
    }

    /// Tables that were refused are tried again when processes are gone, whose tables can be evicted.
    fn retry_refused(&mut self) {
        if self.refused.is_empty() || self.refused_at.elapsed() < RETRY_REFUSED {
            return;
        }
        self.refused_at = Instant::now();
        let used = self.used();
        for module in self.refused.drain() {
            if used.contains(&module) {
                self.waiting.push(module);
            } else {
                // The next process that maps it asks for it.
                self.held.remove(&module);
            }
        }
    }

    /// The modules that processes have mapped.
    fn used(&self) -> HashSet<ModuleId> {
        let ranges = self.shown.values().flat_map(|code| &code.ranges);
        ranges.filter_map(|range| range.module).collect()
    }

    /// Frees what tables take that no process has mapped, those of one owner or of all: the one that was not used
    /// for longest. False: all are in use.
    fn evict(&mut self, only: Option<Owner>) -> bool {
        let used = self.used();
        let unused = self.held.iter().filter_map(|(module, held)| match held {
            Held::Placed { last_used, owner, .. }
                if !used.contains(module) && only.is_none_or(|only| only == *owner) =>
            {
                Some((*last_used, *module))
            }
            _ => None,
        });
        let Some((_, module)) = unused.min() else { return false };
        if let Some(Held::Placed { table, file, .. }) = self.held.remove(&module) {
            file.into_iter().for_each(|file| self.tables.forget_file(file));
            self.tables.remove(table);
            self.counts.evicted.fetch_add(1, Ordering::Relaxed);
        }
        true
    }
}

/// Threads that build tables: a big program takes seconds, during which news go on.
struct Builders {
    workers: Vec<Builder>,
    built: Receiver<(usize, Built)>,
    /// Gets a byte with each table.
    done: PipeReader,
}

/// One of them, with a queue of its own: whoever waits for work waits for nobody's lock.
struct Builder {
    orders: Sender<Order>,
    /// Bytes of the files whose tables it was ordered to build, and has not.
    ahead: u64,
}

impl Builders {
    fn start() -> io::Result<Self> {
        let (finished, built) = channel();
        let (done, bell) = io::pipe()?;
        let bell = Arc::new(bell);
        let large = Arc::new(Mutex::new(()));
        let count = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_BUILDERS);
        let mut workers = Vec::with_capacity(count);
        for number in 0..count {
            let (orders, ordered) = channel::<Order>();
            let (finished, bell, large) = (finished.clone(), Arc::clone(&bell), Arc::clone(&large));
            let tell = move |built| finished.send((number, built)).is_ok();
            let work = move || build_until_closed(&ordered, &tell, &bell, &large);
            // Detached: it ends with the sender of orders.
            drop(std::thread::Builder::new().name("wallprof-tables".into()).spawn(work)?);
            workers.push(Builder { orders, ahead: 0 });
        }
        Ok(Builders { workers, built, done })
    }

    /// Gives an order to who has least to do. False when no builder lives.
    fn order(&mut self, order: Order) -> bool {
        let Some(worker) = self.workers.iter_mut().min_by_key(|worker| worker.ahead) else { return false };
        worker.ahead = worker.ahead.saturating_add(order.bytes);
        worker.orders.send(order).is_ok()
    }

    fn take(&mut self) -> Option<Built> {
        let (number, built) = self.built.try_recv().ok()?;
        // One byte for each; the next wait must not find an old one.
        let _ = self.done.read(&mut [0]);
        if let Some(worker) = self.workers.get_mut(number) {
            worker.ahead = worker.ahead.saturating_sub(built.order.bytes);
        }
        Some(built)
    }

    fn done(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

fn build_until_closed(
    ordered: &Receiver<Order>,
    tell: &dyn Fn(Built) -> bool,
    mut bell: &PipeWriter,
    large: &Mutex<()>,
) {
    while let Ok(order) = ordered.recv() {
        let table = order.file.as_ref().map_or(Err(NotBuilt::Nothing), |file| table_of(file, large));
        if !tell(Built { order, table }) {
            return;
        }
        // The reader's end lives as long as the receiver.
        let _ = bell.write(&[0]);
    }
}

impl Order {
    fn new(module: ModuleId, file: Option<ModuleFile>) -> Self {
        let metadata = file.as_ref().and_then(|file| file.file.as_ref()?.metadata().ok());
        // At least something: also an order without a file is one.
        let bytes = metadata.map_or(0, |metadata| metadata.len()).saturating_add(1);
        Order { module, file, bytes }
    }
}

fn table_of(file: &ModuleFile, large: &Mutex<()>) -> Result<Table, NotBuilt> {
    let Some(file) = &file.file else { return Err(NotBuilt::Nothing) };
    let image = FileImage::open(file).map_err(|_| NotBuilt::Unreadable)?;
    Table::from_image(&image, &BuildBudget::new(large)).map_err(|error| match error {
        TableError::OverBudget | TableError::TooManyRows(_) => NotBuilt::OverBudget,
        TableError::Truncated(_) => NotBuilt::Unreadable,
        _ => NotBuilt::Nothing,
    })
}
