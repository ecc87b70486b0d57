//! The thread that keeps the kernel's walker informed: it waits for news about code, has the unwind tables of files built
//! that appear, and writes which process has what mapped where.
//!
//! Off the hot path, and event-driven: while nothing is mapped it sleeps.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wallprof_model::{Loss, ModuleId, Owner};
use wallprof_probe::{CodeMapping, CodeSide, CodeTables, CodeWatch, FileId, News, NotPlaced, PlacedTable};
use wallprof_symbols::CodeRange;
use wallprof_unwind::Table;

use crate::builders::{Builders, Built, NotBuilt, Order, payer_of};
use crate::known::{ChangedCode, KnownProcesses};

/// News come in bursts, one exec some ten of them: after the first one this long is waited for the rest.
const BURST: Duration = Duration::from_millis(4);
/// How long the first look at all code may delay a recording. Tables that take longer come while it runs.
const FIRST_LOOK: Duration = Duration::from_secs(3);
/// The end of a recording waits this long for the thread, which may be stuck in a file of another user.
const LONGEST_END: Duration = Duration::from_secs(2);
/// While tables are built or wait, it is looked at them this often.
const LOOK: Duration = Duration::from_secs(1);
/// What was taken out of the arena can be used again after this.
const RETRY: Duration = Duration::from_millis(2_500);
/// Modules of one owner that are tried again at once.
const RETRIED: usize = 16;
/// Tables that were refused are not built again more often than this.
const RETRY_REFUSED: Duration = Duration::from_secs(30);

/// What the walker's tables are and cost; written by the follower, read by anybody.
#[derive(Debug, Default)]
pub struct TableCounts {
    /// Bytes of tables and lists in the kernel.
    pub bytes: AtomicU64,
    /// Tables and lists for which there was no memory or number left.
    pub refused: AtomicU64,
    /// Tables for which one user's files have too much of the kernel's memory or rules already.
    pub over_quota: AtomicU64,
    /// Mappings in lists for which one user's processes have too much of that memory.
    pub mappings_over_quota: AtomicU64,
    /// Tables that had to go for others.
    pub evicted: AtomicU64,
    /// Files that could not be read, or ended before a part that they name.
    pub unreadable: AtomicU64,
    /// Files whose table needs more memory or time than one file gets, or more time than their user has for now.
    pub over_budget: AtomicU64,
}

impl TableCounts {
    /// What was lost since the last call.
    pub fn take_losses(&self) -> [(Loss, u64); 6] {
        [
            (Loss::UnwindTablesRefused, &self.refused),
            (Loss::UnwindTablesOverQuota, &self.over_quota),
            (Loss::ProcessMappingsOverQuota, &self.mappings_over_quota),
            (Loss::UnwindTablesEvicted, &self.evicted),
            (Loss::UnwindFilesUnreadable, &self.unreadable),
            (Loss::UnwindTablesOverBudget, &self.over_budget),
        ]
        .map(|(loss, count)| (loss, count.swap(0, Ordering::Relaxed)))
    }
}

/// The running thread.
pub struct Follower {
    known: Arc<Mutex<KnownProcesses>>,
    counts: Arc<TableCounts>,
    /// Gets a byte when CPUs come; dropped to stop the thread.
    bell: Option<PipeWriter>,
    /// Closed by the thread at its end.
    ended: Receiver<()>,
}

impl Follower {
    /// Starts the thread and waits until the code of the processes known so far, and of files that are `expected` to be
    /// mapped soon, is with the walker, or a few seconds.
    pub fn start(code: CodeSide, known: KnownProcesses, expected: Vec<PathBuf>) -> io::Result<Self> {
        let known = Arc::new(Mutex::new(known));
        let counts = Arc::new(TableCounts::default());
        let (rung, bell) = io::pipe()?;
        let (ready, looked) = channel();
        let (ending, ended) = channel();
        let (known_there, counts_there) = (Arc::clone(&known), Arc::clone(&counts));
        // Detached: a thread that is stuck in a read cannot be waited for.
        std::thread::Builder::new().name("wallprof-code".into()).spawn(move || {
            let _ending: Sender<()> = ending;
            // Without the rings nothing would be followed, and every stack says so.
            let parts = code.split();
            let work = parts.and_then(|(tables, watch)| Work::new(tables, watch, known_there, counts_there));
            let _ = work.and_then(|mut work| {
                work.expect(&expected);
                work.run(rung, ready)
            });
        })?;
        // A thread that gave up has dropped its end.
        let _ = looked.recv_timeout(FIRST_LOOK);
        Ok(Follower { known, counts, bell: Some(bell), ended })
    }

    /// Follows nothing: for sessions without a kernel.
    #[cfg(test)]
    pub fn idle(known: KnownProcesses) -> Self {
        let (known, counts) = (Arc::new(Mutex::new(known)), Arc::new(TableCounts::default()));
        let (_, ended) = channel();
        Follower { known, counts, bell: None, ended }
    }

    pub fn known(&self) -> MutexGuard<'_, KnownProcesses> {
        lock(&self.known)
    }

    pub fn counts(&self) -> &TableCounts {
        &self.counts
    }

    /// Other CPUs are online than before: news come from them, too.
    pub fn follow_cpus(&mut self) {
        // A thread that gave up reads nothing.
        let _ = self.bell.as_mut().map(|bell| bell.write(&[0]));
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.bell = None;
        // A panic in it was reported when it happened.
        let _ = self.ended.recv_timeout(LONGEST_END);
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

struct Work {
    tables: CodeTables,
    watch: CodeWatch,
    known: Arc<Mutex<KnownProcesses>>,
    counts: Arc<TableCounts>,
    /// The modules whose tables were asked for; those that are evicted are not among them.
    held: HashMap<ModuleId, Held>,
    /// What each process's list was made of.
    shown: HashMap<u32, ChangedCode>,
    builders: Builders,
    /// Modules whose tables are to be built, with the bytes of their files.
    queue: BTreeSet<(u64, ModuleId)>,
    /// Modules that wait for CPU time of their files' owners.
    deferred: HashMap<Owner, BTreeSet<ModuleId>>,
    /// Modules of which it was counted that they had to wait.
    counted: HashSet<ModuleId>,
    /// Modules whose tables fit when what was evicted for them has rested.
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
            queue: BTreeSet::new(),
            deferred: HashMap::new(),
            counted: HashSet::new(),
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
            self.replace_stuck();
            self.dispatch();
            self.counts.bytes.store(self.tables.bytes(), Ordering::Relaxed);
            if self.is_idle()
                && let Some(ready) = ready.take()
            {
                // The receiver may have stopped waiting.
                let _ = ready.send(());
            }
            let [rings, _] = self.watch.wait([rung.as_fd(), self.builders.done()], self.timeout())?;
            if rings {
                match rung.read(&mut [0])? {
                    0 => return Ok(()),
                    _ => self.watch.follow_cpus()?,
                }
            }
            std::thread::sleep(BURST);
        }
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.builders.building() == 0
    }

    /// When to look again without news; `None`: never.
    fn timeout(&self) -> Option<Duration> {
        if !self.is_idle() || !self.deferred.is_empty() || lock(&self.known).has_changes() {
            return Some(LOOK);
        }
        (!self.waiting.is_empty()).then_some(RETRY)
    }

    /// Takes news in and writes for the walker what follows from them; what is missing is built on the side.
    fn follow(&mut self, news: &mut VecDeque<News>) {
        self.round += 1;
        let (changed, gone, evicted) = {
            let mut known = lock(&self.known);
            known.apply(news);
            let (changed, gone) = known.take_changes();
            (changed, gone, known.processes.take_evicted_modules())
        };
        let any_gone = !gone.is_empty();
        for pid in gone {
            self.tables.forget_process(pid);
            self.shown.remove(&pid);
        }
        if any_gone {
            self.retry_refused();
        }
        if self.retry_at <= Instant::now() {
            let waiting = std::mem::take(&mut self.waiting);
            self.enqueue(waiting);
        }
        let mut missing = Vec::new();
        for code in changed {
            for module in code.ranges.iter().filter_map(|range| range.module) {
                if let Entry::Vacant(place) = self.held.entry(module) {
                    place.insert(Held::Absent);
                    missing.push(module);
                }
            }
            self.show(code);
        }
        self.enqueue(missing);
        // After the lists: none of them names an evicted module.
        self.forget_modules(&evicted);
    }

    /// Small files first: a big program's table takes as long as those of all its libraries.
    fn enqueue(&mut self, modules: Vec<ModuleId>) {
        if modules.is_empty() {
            return;
        }
        let known = lock(&self.known);
        let size = |module| known.processes.module_size(module).unwrap_or(0);
        self.queue.extend(modules.into_iter().map(|module| (size(module), module)));
    }

    fn forget_modules(&mut self, evicted: &[ModuleId]) {
        if evicted.is_empty() {
            return;
        }
        for module in evicted {
            self.counted.remove(module);
            self.refused.remove(module);
            if let Some(held) = self.held.remove(module) {
                self.remove_table(held);
            }
        }
        let gone: HashSet<&ModuleId> = evicted.iter().collect();
        self.queue.retain(|(_, module)| !gone.contains(module));
        self.waiting.retain(|module| !gone.contains(module));
        self.deferred.values_mut().for_each(|modules| modules.retain(|module| !gone.contains(module)));
        self.deferred.retain(|_, modules| !modules.is_empty());
    }

    /// Gives orders to the builders as long as these have capacity: each order holds a file open.
    fn dispatch(&mut self) {
        self.take_deferred();
        while self.builders.have_capacity()
            && let Some((_, module)) = self.queue.pop_first()
        {
            let file = lock(&self.known).processes.module_file(module);
            let opened = file.as_ref().and_then(|file| file.file.as_deref());
            let payer = opened.map_or(Owner::System, payer_of);
            if self.builders.time_to_wait(payer).is_zero() {
                self.builders.order(Order { module, file, payer });
            } else {
                self.defer(module, payer);
            }
        }
    }

    /// Puts a module off until its file's owner has CPU time again.
    fn defer(&mut self, module: ModuleId, payer: Owner) {
        if self.counted.insert(module) {
            self.counts.over_budget.fetch_add(1, Ordering::Relaxed);
        }
        self.deferred.entry(payer).or_default().insert(module);
    }

    /// The newest modules of owners who have CPU time again: what runs now is more likely among them.
    fn take_deferred(&mut self) {
        let ready: Vec<Owner> = self
            .deferred
            .keys()
            .copied()
            .filter(|&owner| self.builders.time_to_wait(owner).is_zero())
            .collect();
        for owner in ready {
            let Some(modules) = self.deferred.get_mut(&owner) else { continue };
            let newest: Vec<ModuleId> = std::iter::from_fn(|| modules.pop_last()).take(RETRIED).collect();
            if modules.is_empty() {
                self.deferred.remove(&owner);
            }
            self.enqueue(newest);
        }
    }

    /// Gives stuck builders up; the rest of their orders goes to others.
    fn replace_stuck(&mut self) {
        let (stuck, again) = self.builders.replace_stuck();
        self.counts.unreadable.fetch_add(stuck.len() as u64, Ordering::Relaxed);
        self.enqueue(again);
    }

    fn take_built(&mut self) {
        let mut new = HashSet::new();
        while let Some(Built { order, table, file: id }) = self.builders.take() {
            let Order { module, file, payer } = order;
            if !self.held.contains_key(&module) {
                // It was evicted meanwhile.
                continue;
            }
            let file = file.as_ref().and_then(|file| file.file.as_deref());
            match table {
                Ok(table) if self.place(module, file, id, &table) => _ = new.insert(module),
                Ok(_) | Err(NotBuilt::Nothing) => {}
                Err(NotBuilt::NotNow) => self.defer(module, payer),
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
        match self.tables.set_process(code.pid, code.exec_id, code.owner, &mappings) {
            Ok(()) => {}
            Err(NotPlaced::OverQuota) => {
                self.counts.mappings_over_quota.fetch_add(mappings.len() as u64, Ordering::Relaxed);
            }
            Err(NotPlaced::Full | NotPlaced::TooManyRules) => {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
            }
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
    fn place(&mut self, module: ModuleId, file: Option<&File>, id: Option<FileId>, table: &Table) -> bool {
        let owner = file.map_or(Owner::System, owner_of);
        match self.tables.place(table, owner) {
            Ok(table) => {
                let delta = lock(&self.known).processes.code_delta(module);
                if let (Some(id), Some(delta)) = (id, delta) {
                    self.tables.name_file(id, delta, &table);
                }
                let held = Held::Placed { table, file: id, owner, last_used: self.round };
                if let Some(before) = self.held.insert(module, held) {
                    self.remove_table(before);
                }
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
        if let Some(held) = self.held.remove(&module) {
            self.remove_table(held);
            self.counts.evicted.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    fn remove_table(&mut self, held: Held) {
        if let Held::Placed { table, file, .. } = held {
            file.into_iter().for_each(|file| self.tables.forget_file(file, &table));
            self.tables.remove(table);
        }
    }
}

/// The user to whom the memory of a file's table is charged.
fn owner_of(file: &File) -> Owner {
    file.metadata().map_or(Owner::System, |metadata| Owner::from_uid(metadata.uid()))
}
