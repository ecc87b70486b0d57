// SPDX-License-Identifier: Apache-2.0
//! The thread that keeps the tables of the kernel's walker current. It waits for news of mappings, orders the
//! unwind tables of new files, and writes the list of mappings of each process.
//!
//! It is not on the hot path. It sleeps while no process maps code.

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

use wallprof_hotspot::CodeSpan;
use wallprof_model::{Loss, ModuleId, Owner};
use wallprof_probe::{
    CodeMapping, CodeSide, CodeTables, CodeWatch, FileId, News, NotPlaced, PlacedTable, clock,
};
use wallprof_symbols::{CodeRange, ModuleFile};
use wallprof_unwind::Table;

use crate::builders::{Builders, Built, NotBuilt, Order};
use crate::java::{JavaCode, JavaReaders, LONGEST_PAUSE, ReadCode};
use crate::known::{ChangedCode, KnownProcesses};
use crate::marks::SHOWN_BYTES;
use crate::words::Words;

/// News arrive in bursts: an exec has some ten. After the first one the thread waits this long for the rest.
const BURST: Duration = Duration::from_millis(4);
/// The first reading of all code may delay a recording this long. Later tables are added while it runs.
const FIRST_LOOK: Duration = Duration::from_secs(3);
/// The end of a recording waits this long for the thread, which may be blocked by a file of another user.
const LONGEST_END: Duration = Duration::from_secs(2);
/// While tables are built or wait, their state is checked this often.
const LOOK: Duration = Duration::from_secs(1);
/// While files are read that other programs serve, answers are looked for this often.
const SERVED_LOOK: Duration = Duration::from_millis(50);
/// Memory of the arena that was freed can be used again after this time.
const RETRY: Duration = Duration::from_millis(2_500);
/// Deferred modules of one owner that are tried again together.
const RETRIED: usize = 16;
/// The table of the recorder's own program is built so long after the start, if the recorder is recorded, too.
const OWN_AFTER: Duration = Duration::from_secs(10);
/// Tables that were refused are built again at most this often.
const RETRY_REFUSED: Duration = Duration::from_secs(30);
/// Bytes of the longest mapping whose code has no callers: more than virtual machines reserve by default.
const MOST_UNSUPPORTED: u64 = 1 << 30;

/// CPUs have come online.
const CPUS_CAME: u8 = 0;
/// Mappings were found that no event had reported.
const CHANGES: u8 = 1;
/// A recording ends: names are read now.
const NAMES: u8 = 2;

/// Counts of the walker's tables. The follower writes them; any thread may read them.
#[derive(Debug, Default)]
pub struct TableCounts {
    /// Bytes of tables and lists in the kernel.
    pub bytes: AtomicU64,
    /// Tables and lists that did not fit: no memory or no number was left.
    pub refused: AtomicU64,
    /// Tables beyond the quota of their files' owner in the kernel's memory or rules.
    pub over_quota: AtomicU64,
    /// Mappings of lists beyond the quota of their processes' owner in that memory.
    pub mappings_over_quota: AtomicU64,
    /// Tables that were evicted for others.
    pub evicted: AtomicU64,
    /// Files that could not be read, or are shorter than their headers say.
    pub unreadable: AtomicU64,
    /// Files whose table needs more memory or time than the budget of a file, or more time than their owner
    /// has left.
    pub over_budget: AtomicU64,
}

impl TableCounts {
    /// The losses since the last call.
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

/// By pid, the exec generation of processes that have mapped a page of code that is of no file.
type Candidates = Mutex<HashMap<u32, u32>>;

/// The running thread.
pub struct Follower {
    known: Arc<Mutex<KnownProcesses>>,
    counts: Arc<TableCounts>,
    candidates: Arc<Candidates>,
    /// Receives [`CPUS_CAME`], [`CHANGES`] or [`NAMES`]; dropped to stop the thread.
    bell: Option<PipeWriter>,
    /// Closed by the thread at its end.
    ended: Receiver<()>,
}

impl Follower {
    /// Starts the thread. Waits up to [`FIRST_LOOK`] until the walker has the tables of all known processes
    /// and of
    /// `expected`, the files that will be mapped soon. `held` is the command that waits for its exec.
    pub fn start(
        code: CodeSide,
        known: KnownProcesses,
        expected: Vec<PathBuf>,
        words: Words,
        held: Option<u32>,
    ) -> io::Result<Self> {
        let known = Arc::new(Mutex::new(known));
        let counts = Arc::new(TableCounts::default());
        let candidates = Arc::new(Candidates::default());
        let (rung, bell) = io::pipe()?;
        let (ready, looked) = channel();
        let (ending, ended) = channel();
        let (known_there, counts_there) = (Arc::clone(&known), Arc::clone(&counts));
        let candidates_there = Arc::clone(&candidates);
        // Detached: a thread that is blocked in a read cannot be joined.
        std::thread::Builder::new().name("wallprof-code".into()).spawn(move || {
            let _ending: Sender<()> = ending;
            // Without the rings there is no news. Every stack then records that it has no table.
            let parts = code.split();
            let thread = parts.and_then(|(tables, watch)| {
                FollowerThread::new(tables, watch, known_there, counts_there, candidates_there, words, held)
            });
            let _ = thread.and_then(|mut thread| {
                thread.expect(&expected);
                thread.run(rung, ready)
            });
        })?;
        // A thread that failed has dropped its end.
        let _ = looked.recv_timeout(FIRST_LOOK);
        Ok(Follower { known, counts, candidates, bell: Some(bell), ended })
    }

    /// A follower without a thread, for sessions without a kernel.
    #[cfg(test)]
    pub fn idle(known: KnownProcesses) -> Self {
        let (known, counts) = (Arc::new(Mutex::new(known)), Arc::new(TableCounts::default()));
        let (_, ended) = channel();
        Follower { known, counts, candidates: Arc::default(), bell: None, ended }
    }

    pub fn known(&self) -> MutexGuard<'_, KnownProcesses> {
        lock(&self.known)
    }

    pub fn counts(&self) -> &TableCounts {
        &self.counts
    }

    /// The processes that may have begun to mark their spans, with their process image.
    pub fn take_candidates(&self) -> HashMap<u32, u32> {
        std::mem::take(&mut self.candidates.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits, not long, until names that can be read in processes are read.
    pub fn await_names(&self) {
        if !self.known().processes.awaits_jit() {
            return;
        }
        self.ring(NAMES);
        let since = Instant::now();
        while self.known().processes.awaits_jit() && since.elapsed() < LONGEST_PAUSE * 3 {
            std::thread::sleep(BURST);
        }
    }

    /// Reads the news of CPUs that have come online.
    pub fn follow_cpus(&self) {
        self.ring(CPUS_CAME);
    }

    /// Writes lists again that have changed without news.
    pub fn write_changes(&self) {
        self.ring(CHANGES);
    }

    fn ring(&self, what: u8) {
        // The write fails after the thread has ended.
        let _ = self.bell.as_ref().map(|mut bell| bell.write(&[what]));
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.bell = None;
        // A panic of the thread was already reported.
        let _ = self.ended.recv_timeout(LONGEST_END);
    }
}

/// A panic of another thread does not leave the table of processes in the middle of a change.
pub(crate) fn lock(known: &Mutex<KnownProcesses>) -> MutexGuard<'_, KnownProcesses> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of a module's table.
enum Held {
    Placed {
        table: PlacedTable,
        file: Option<FileId>,
        owner: Owner,
        last_used: u64,
    },
    /// The module has no table, or none yet.
    Absent,
}

/// The code that a virtual machine made.
struct PlacedJava {
    exec_id: u32,
    spans: Vec<CodeSpan>,
    keeps_fp: bool,
    /// `None`: there was no room for it.
    table: Option<PlacedTable>,
}

/// Where code lies, as seen by a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JavaPlace {
    /// Its table has the code.
    InUse,
    /// It has come into use since the table was made.
    Reserved,
    /// Others have made it.
    Elsewhere,
}

/// The parts of a range, ascending: first address, the one behind the last, where they lie.
fn java_parts(spans: &[CodeSpan], range: &CodeRange) -> Vec<(u64, u64, JavaPlace)> {
    let mut parts = Vec::new();
    let mut from = range.start;
    let bounds = spans.iter().flat_map(|span| {
        let &CodeSpan { start, end, reserved_end } = span;
        [(start, JavaPlace::Elsewhere), (end, JavaPlace::InUse), (reserved_end, JavaPlace::Reserved)]
    });
    for (to, place) in bounds.chain([(u64::MAX, JavaPlace::Elsewhere)]) {
        let to = to.min(range.end);
        if from < to {
            parts.push((from, to, place));
            from = to;
        }
    }
    parts
}

struct FollowerThread {
    tables: CodeTables,
    watch: CodeWatch,
    known: Arc<Mutex<KnownProcesses>>,
    counts: Arc<TableCounts>,
    candidates: Arc<Candidates>,
    /// The modules for which a table was requested, without those that were evicted.
    held: HashMap<ModuleId, Held>,
    /// The code from which the list of each process was written.
    shown: HashMap<u32, ChangedCode>,
    words: Words,
    java: JavaReaders,
    /// By pid, the code that a virtual machine made.
    java_code: HashMap<u32, PlacedJava>,
    /// For code whose callers cannot be found. `None`: not wanted yet, or there is no room for it.
    unsupported: Option<PlacedTable>,
    builders: Builders,
    /// Modules for which a table is to be built, with the sizes of their files in bytes.
    queue: BTreeSet<(u64, ModuleId)>,
    /// Modules that wait until their files' owners have CPU time again.
    deferred: HashMap<Owner, BTreeSet<ModuleId>>,
    /// Modules that were deferred and are counted in `over_budget`.
    counted: HashSet<ModuleId>,
    /// Modules whose tables will fit when the memory of evicted tables can be used again.
    waiting: Vec<ModuleId>,
    retry_at: Instant,
    /// The recorder's own program.
    own: Option<ModuleId>,
    /// When the table of the recorder's own program may be built for the recorder itself.
    own_from: Option<Instant>,
    /// The command that waits for its exec, with its process image until then.
    command: Option<(u32, u32)>,
    /// Modules whose tables did not fit.
    refused: HashSet<ModuleId>,
    /// When the refused modules were last tried again.
    refused_at: Instant,
    round: u64,
}

impl FollowerThread {
    fn new(
        tables: CodeTables,
        watch: CodeWatch,
        known: Arc<Mutex<KnownProcesses>>,
        counts: Arc<TableCounts>,
        candidates: Arc<Candidates>,
        words: Words,
        held: Option<u32>,
    ) -> io::Result<Self> {
        let (own, own_from, command) = {
            let mut known = lock(&known);
            let is_recorded = known.processes.newest_generation(std::process::id()).is_some();
            let own_from = is_recorded.then(|| Instant::now() + OWN_AFTER);
            let image = |pid| Some((pid, known.processes.newest_generation(pid)?));
            let command = held.and_then(image);
            let own = std::env::current_exe().ok();
            (own.and_then(|path| known.processes.module_at(&path)), own_from, command)
        };
        Ok(FollowerThread {
            candidates,
            words,
            java: JavaReaders::new(Arc::clone(&known))?,
            java_code: HashMap::new(),
            unsupported: None,
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
            own,
            own_from,
            command,
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
            let unfollowed: HashSet<u32> = lock(&self.known).unfollowed().collect();
            self.watch.read(&mut news, &|pid| !unfollowed.contains(&pid))?;
            self.follow(&mut news);
            self.take_built();
            self.take_java();
            self.replace_stuck();
            self.dispatch();
            self.counts.bytes.store(self.tables.bytes(), Ordering::Relaxed);
            if self.is_idle()
                && !self.java.is_starting()
                && let Some(ready) = ready.take()
            {
                // The receiver may have stopped waiting.
                let _ = ready.send(());
            }
            let others = [rung.as_fd(), self.builders.done(), self.java.done()];
            let [rings, ..] = self.watch.wait(others, self.timeout())?;
            if rings {
                let mut what = [0];
                match rung.read(&mut what)? {
                    0 => return Ok(()),
                    _ if what == [CPUS_CAME] => self.follow_cpus()?,
                    _ if what == [NAMES] => self.java.wake(),
                    _ => {}
                }
            }
            std::thread::sleep(BURST);
        }
    }

    fn follow_cpus(&mut self) -> io::Result<()> {
        self.watch.follow_cpus()?;
        lock(&self.known).read_all_again();
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.builders.building() == 0
    }

    /// The longest wait for news; `None`: no limit.
    fn timeout(&self) -> Option<Duration> {
        if lock(&self.known).processes.awaits_served_files() {
            return Some(SERVED_LOOK);
        }
        if !self.is_idle()
            || !self.deferred.is_empty()
            || lock(&self.known).has_changes()
            || self.own_from.is_some()
        {
            return Some(LOOK);
        }
        (!self.waiting.is_empty()).then_some(RETRY)
    }

    /// Applies the news and writes the lists that they change. Orders the tables that are missing.
    fn follow(&mut self, news: &mut VecDeque<News>) {
        self.round += 1;
        let (changed, gone, evicted) = {
            let mut known = lock(&self.known);
            known.apply(news);
            let (changed, gone) = known.take_changes();
            (changed, gone, known.processes.take_evicted_modules())
        };
        let any_gone = !gone.is_empty();
        for code in &changed {
            let is_shown =
                |range: &CodeRange| range.module.is_none() && range.end - range.start == SHOWN_BYTES;
            if code.ranges.iter().any(is_shown) {
                let mut candidates = self.candidates.lock().unwrap_or_else(PoisonError::into_inner);
                candidates.insert(code.pid, code.exec_id);
            }
            match self.words.of(code, &self.known) {
                Ok(words) => self.tables.set_words(code.pid, words),
                Err(()) => lock(&self.known).look_again(code.pid),
            }
            if self.java.follow(code).is_err() {
                lock(&self.known).look_again(code.pid);
            }
        }
        for pid in gone {
            self.tables.forget_process(pid);
            self.shown.remove(&pid);
            self.java.forget_process(pid);
            let java = self.java_code.remove(&pid);
            self.remove_java(java);
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
            let unwanted = self.own.filter(|_| self.runs_own(&code));
            for module in code.ranges.iter().filter_map(|range| range.module) {
                if unwanted == Some(module) {
                    continue;
                }
                if let Entry::Vacant(place) = self.held.entry(module) {
                    place.insert(Held::Absent);
                    missing.push(module);
                }
            }
            // That of a program before the exec: no list will refer to it any more.
            let java =
                self.java_code.extract_if(|pid, java| *pid == code.pid && java.exec_id != code.exec_id);
            let former = java.map(|(_, java)| java).next();
            self.show(code);
            self.remove_java(former);
        }
        self.enqueue(missing);
        self.order_own();
        // This follows the lists, so that no list refers to an evicted module.
        self.forget_modules(&evicted);
    }

    /// Whether a process is the recorder, or its command before the exec. The table of their program takes longer than
    /// all that a command needs, and they run only what the recorder does.
    fn runs_own(&self, code: &ChangedCode) -> bool {
        code.pid == std::process::id() || self.command == Some((code.pid, code.exec_id))
    }

    /// Orders the table of the recorder's own program for the recorder itself, once nothing else waits.
    fn order_own(&mut self) {
        let is_due = self.own_from.is_some_and(|from| from <= Instant::now());
        if is_due && self.is_idle() {
            self.own_from = None;
            let own = self.own.filter(|own| !self.held.contains_key(own));
            self.held.extend(own.map(|own| (own, Held::Absent)));
            self.enqueue(own.into_iter().collect());
        }
    }

    /// Smaller files are built first: the table of a big program takes as long as those of all its libraries.
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
        self.words.forget(evicted);
        self.java.forget_modules(evicted);
        let gone: HashSet<&ModuleId> = evicted.iter().collect();
        self.queue.retain(|(_, module)| !gone.contains(module));
        self.waiting.retain(|module| !gone.contains(module));
        self.deferred.values_mut().for_each(|modules| modules.retain(|module| !gone.contains(module)));
        self.deferred.retain(|_, modules| !modules.is_empty());
    }

    /// Gives orders to the builders while they have capacity. Each order keeps a file open.
    fn dispatch(&mut self) {
        self.take_deferred();
        while self.builders.have_capacity()
            && let Some((bytes, module)) = self.queue.pop_first()
        {
            let file = lock(&self.known).processes.module_file(module);
            let payer = file.as_ref().map(ModuleFile::payer);
            if payer.is_some_and(|payer| payer.may_block) {
                self.counts.unreadable.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let payer = payer.map_or(Owner::System, |payer| payer.owner);
            if self.builders.time_to_wait(payer).is_zero() {
                self.builders.order(Order { module, file, bytes, payer });
            } else {
                self.defer(module, payer);
            }
        }
    }

    /// Defers a module until its file's owner has CPU time again.
    fn defer(&mut self, module: ModuleId, payer: Owner) {
        if self.counted.insert(module) {
            self.counts.over_budget.fetch_add(1, Ordering::Relaxed);
        }
        self.deferred.entry(payer).or_default().insert(module);
    }

    /// Enqueues the newest modules of owners who have CPU time again: they are the most likely to be running.
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

    /// Replaces stuck builders and enqueues their other orders again.
    fn replace_stuck(&mut self) {
        let (stuck, again) = self.builders.replace_stuck();
        self.counts.unreadable.fetch_add(stuck.len() as u64, Ordering::Relaxed);
        self.enqueue(again);
    }

    fn take_built(&mut self) {
        let mut new = HashSet::new();
        while let Some(Built { order, table, file: id }) = self.builders.take() {
            let Order { module, file, payer, .. } = order;
            if !self.held.contains_key(&module) {
                // The module was evicted meanwhile.
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

    /// Places the tables of code that virtual machines have made, in place of those before.
    fn take_java(&mut self) {
        self.counts.refused.fetch_add(self.java.take_refused(), Ordering::Relaxed);
        for JavaCode { pid, exec_id, code } in self.java.take() {
            let Some(shown) = self.shown.get(&pid).filter(|shown| shown.exec_id == exec_id) else { continue };
            let (owner, cpu_before_ns) = (shown.owner, clock::thread_cpu_ns());
            let Some(ReadCode { spans, keeps_fp, table }) = code else {
                self.set_java(pid, None);
                continue;
            };
            if table.pages().len() == 0 {
                self.set_java(pid, Some(PlacedJava { exec_id, spans, keeps_fp, table: None }));
                continue;
            }
            let java = |table| Some(PlacedJava { exec_id, spans: spans.clone(), keeps_fp, table });
            let placed = self.tables.place(&table, owner).or_else(|_| {
                // Without the one before, which is not true any more, there may be room.
                self.set_java(pid, java(None));
                self.tables.place(&table, owner)
            });
            match placed {
                Ok(table) => self.set_java(pid, java(Some(table))),
                Err(reason) => {
                    self.count_refused(reason);
                    self.java.want_again(pid);
                }
            }
            lock(&self.known).charge(owner, clock::thread_cpu_ns().saturating_sub(cpu_before_ns));
        }
    }

    fn set_java(&mut self, pid: u32, java: Option<PlacedJava>) {
        let before = match java {
            Some(java) => self.java_code.insert(pid, java),
            None => self.java_code.remove(&pid),
        };
        if let Some(code) = self.shown.remove(&pid) {
            self.write_list(code);
        }
        self.remove_java(before);
    }

    /// No list refers to it any more.
    fn remove_java(&mut self, java: Option<PlacedJava>) {
        java.and_then(|java| java.table).into_iter().for_each(|table| self.tables.remove(table));
    }

    /// Writes the list of a process with the tables that are present.
    fn show(&mut self, code: ChangedCode) {
        let (owner, cpu_before_ns) = (code.owner, clock::thread_cpu_ns());
        self.write_list(code);
        lock(&self.known).charge(owner, clock::thread_cpu_ns().saturating_sub(cpu_before_ns));
    }

    fn write_list(&mut self, code: ChangedCode) {
        let mut mappings = Vec::with_capacity(code.ranges.len());
        for range in &code.ranges {
            match range.module {
                Some(module) => mappings.push(self.mapping(module, range)),
                None => self.run_time_code(&code, range, &mut mappings),
            }
        }
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

    fn mapping(&mut self, module: ModuleId, range: &CodeRange) -> CodeMapping {
        let table = match self.held.get_mut(&module) {
            Some(Held::Placed { table, last_used, .. }) => {
                *last_used = self.round;
                Some(&*table)
            }
            _ => None,
        };
        CodeMapping::new(range.start, range.end, range.bias, table)
    }

    /// The mappings of code that is in no file.
    fn run_time_code(&mut self, code: &ChangedCode, range: &CodeRange, mappings: &mut Vec<CodeMapping>) {
        let java = self.java_code.get(&code.pid).filter(|java| java.exec_id == code.exec_id);
        let is_unknown = self.java.is_unread(code.pid, code.exec_id);
        if self.unsupported.is_none() && (is_unknown || java.is_some()) {
            self.unsupported = self.tables.place_unsupported(MOST_UNSUPPORTED).ok();
        }
        let unsupported = |start, end| match &self.unsupported {
            Some(table) => CodeMapping::unsupported(start, end, table),
            None => CodeMapping::run_time_code(start, end),
        };
        if is_unknown {
            mappings.push(unsupported(range.start, range.end));
            return;
        }
        for (start, end, place) in java_parts(java.map_or(&[], |java| &java.spans), range) {
            let table = java.and_then(|java| java.table.as_ref());
            mappings.push(match (place, table) {
                (JavaPlace::InUse, Some(table)) => CodeMapping::new(start, end, 0, Some(table)),
                (JavaPlace::InUse | JavaPlace::Reserved, _) if java.is_some_and(|java| !java.keeps_fp) => {
                    unsupported(start, end)
                }
                _ => CodeMapping::run_time_code(start, end),
            });
        }
    }

    /// Returns whether the walker has the table now.
    fn place(&mut self, module: ModuleId, file: Option<&File>, id: Option<FileId>, table: &Table) -> bool {
        let owner = file.map_or(Owner::System, owner_of);
        match self.tables.place(table, owner) {
            Ok(table) => {
                let (delta, is_vdso) = {
                    let processes = &lock(&self.known).processes;
                    (processes.code_delta(module), processes.is_vdso(module))
                };
                let id = if is_vdso { Some(FileId::VDSO) } else { id };
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
        self.count_refused(reason);
        self.refused.insert(module);
    }

    fn count_refused(&self, reason: NotPlaced) {
        let counter = match reason {
            NotPlaced::OverQuota => &self.counts.over_quota,
            NotPlaced::Full | NotPlaced::TooManyRules => &self.counts.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Tries refused tables again after processes have ended, whose tables can be evicted.
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
                // The next process that maps the file requests its table again.
                self.held.remove(&module);
            }
        }
    }

    /// The modules that processes have mapped.
    fn used(&self) -> HashSet<ModuleId> {
        let ranges = self.shown.values().flat_map(|code| &code.ranges);
        ranges.filter_map(|range| range.module).collect()
    }

    /// Evicts the least recently used table that no process has mapped, of one owner or of all. False: all
    /// are in use.
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

/// The user who is charged for the memory of a file's table.
fn owner_of(file: &File) -> Owner {
    file.metadata().map_or(Owner::System, |metadata| Owner::from_uid(metadata.uid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_virtual_machines_is_told_from_other_run_time_code() {
        let span = |start, end, reserved_end| CodeSpan { start, end, reserved_end };
        let spans = [span(100, 120, 150), span(150, 160, 200)];
        let parts = |start, end| java_parts(&spans, &CodeRange { start, end, module: None, bias: 0 });
        let (use_, reserved, other) = (JavaPlace::InUse, JavaPlace::Reserved, JavaPlace::Elsewhere);
        assert_eq!(parts(100, 120), [(100, 120, use_)]);
        assert_eq!(parts(90, 130), [(90, 100, other), (100, 120, use_), (120, 130, reserved)]);
        assert_eq!(parts(140, 155), [(140, 150, reserved), (150, 155, use_)]);
        assert_eq!(parts(155, 210), [(155, 160, use_), (160, 200, reserved), (200, 210, other)]);
        assert_eq!(parts(300, 310), [(300, 310, other)]);
        let range = CodeRange { start: 5, end: 9, module: None, bias: 0 };
        assert_eq!(java_parts(&[], &range), [(5, 9, other)]);
    }
}
