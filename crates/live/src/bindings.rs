// SPDX-License-Identifier: Apache-2.0
//! Stacks in which the dynamic linker binds a function at its first call: which function, and which file has
//! it.
//!
//! Such a stack is recognised from frames alone when it arrives: its innermost binding function of the linker
//! (see `wallprof_unwind::binders_from_image`) lies right below a frame of another file. The bound function
//! is read from files later, together with names.

use std::collections::HashMap;
use std::ops::Range;

use wallprof_model::event::Binding;
use wallprof_model::{Event, Frame, Loss, ModuleId, StackId};
use wallprof_probe::FileImage;
use wallprof_symbols::{
    LazyCalls, ModuleFile, Payer, ProcessKey, Processes, exports_function, may_be_dynamic_linker,
};
use wallprof_unwind::{Budget, binders_from_image};

use crate::cpu_accounts::CpuAccounts;
use crate::stacks::FileOf;

/// Stacks that wait for their files to be read. A program that binds everything at its start makes some
/// thousand.
const MAX_WAITING: usize = 4096;
/// Modules for which it is cached whether they are dynamic linkers. Twice as many are kept.
const MAX_BINDERS: usize = 1 << 13;
/// At most this many files of a process are searched for a function.
const MAX_FILES: usize = 512;

/// A stack whose outermost frame of the linker is at `depth - 1`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Met {
    stack: StackId,
    depth: u32,
    /// The address of the call in its module.
    call: u64,
    /// All files of the process that made it.
    files: Vec<ModuleId>,
}

#[derive(Default)]
pub struct Bindings {
    /// Address ranges of a module's binding functions. Empty for all modules but dynamic linkers.
    binders: HashMap<ModuleId, Vec<Range<u64>>>,
    /// Those of modules that were last used when `binders` was full.
    old_binders: HashMap<ModuleId, Vec<Range<u64>>>,
    /// By the module that made the call.
    waiting: HashMap<ModuleId, Vec<Met>>,
    count: usize,
    lost: u64,
}

impl Bindings {
    /// Looks at a user stack, leaf first, when it arrives for the first time.
    pub fn meet(&mut self, stack: StackId, process: ProcessKey, frames: &[Frame], known: &mut Processes) {
        let place = frames.iter().position(|frame| self.is_binder(frame, known));
        let Some((depth, caller, call)) = place.and_then(|at| caller(frames, at)) else { return };
        if self.count >= MAX_WAITING {
            self.lost += 1;
            return;
        }
        let mut files: Vec<ModuleId> =
            known.code(process.pid).iter().filter_map(|range| range.module).collect();
        files.sort_unstable();
        files.dedup();
        files.truncate(MAX_FILES);
        self.count += 1;
        self.waiting.entry(caller).or_default().push(Met { stack, depth, call, files });
    }

    /// Emits the bindings in the stacks since the last call.
    pub fn flush(&mut self, accounts: &CpuAccounts, files: &mut FileOf<'_>, emit: &mut dyn FnMut(Event)) {
        let mut libraries = Libraries::new(accounts);
        self.count = 0;
        for (caller, met) in std::mem::take(&mut self.waiting) {
            let file = files(caller);
            let calls = file.as_ref().and_then(|file| accounts.spend(file.payer(), || LazyCalls::read(file)));
            let calls = calls.flatten();
            for met in met {
                let function = calls.as_ref().and_then(|calls| calls.bound_by(met.call));
                let library =
                    function.as_ref().and_then(|function| libraries.of(&function.symbol, &met.files, files));
                emit(Event::Binding(Binding {
                    stack: met.stack,
                    depth: met.depth,
                    symbol: function.map(|function| function.name),
                    library,
                }));
            }
        }
        if self.lost > 0 {
            emit(Event::loss(Loss::BindingsFull, std::mem::take(&mut self.lost)));
        }
    }

    fn is_binder(&mut self, frame: &Frame, known: &mut Processes) -> bool {
        let Some(module) = frame.module else { return false };
        if !self.binders.contains_key(&module) {
            let before = self.old_binders.remove(&module);
            let binders = before.unwrap_or_else(|| binders_of(known.module_file(module)));
            if self.binders.len() >= MAX_BINDERS {
                self.old_binders = std::mem::take(&mut self.binders);
            }
            self.binders.insert(module, binders);
        }
        self.binders[&module].iter().any(|range| range.contains(&frame.address))
    }
}

/// The number of the linker's frames and the call below them, where the frame at `binder` binds. The frame
/// above it must be the linker's, too: an auditing linker calls the function once it is bound.
fn caller(frames: &[Frame], binder: usize) -> Option<(u32, ModuleId, u64)> {
    let linker = frames[binder].module;
    let is_binding = binder == 0 || frames[binder - 1].module == linker;
    let caller = frames.get(binder + 1).filter(|caller| is_binding && caller.module != linker)?;
    Some((u32::try_from(binder + 1).ok()?, caller.module?, caller.address))
}

/// A linker's unwind section has some 10 KB. A file with a linker's name may have a section of any size.
struct LinkerBudget;

impl Budget for LinkerBudget {
    fn allows(&self, held: u64) -> bool {
        held <= 4 << 20
    }
}

fn binders_of(module: Option<ModuleFile>) -> Vec<Range<u64>> {
    let file = module.and_then(|module| module.file).filter(|file| may_be_dynamic_linker(file));
    let Some(file) = file else { return Vec::new() };
    let image = FileImage::open(&file).ok();
    image.map(|image| binders_from_image(&image, &LinkerBudget)).unwrap_or_default()
}

/// Which file exports a function. Each question is answered once.
struct Libraries<'a> {
    /// Reading a file is charged to its owner.
    accounts: &'a CpuAccounts,
    /// `None`: the owner had no CPU time left.
    exporting: HashMap<(ModuleId, String), Option<bool>>,
    /// With their payers: to find one reads the list of mounts. They stay open, so that their file systems
    /// stay what they are.
    files: HashMap<ModuleId, Option<(ModuleFile, Payer)>>,
}

impl<'a> Libraries<'a> {
    fn new(accounts: &'a CpuAccounts) -> Self {
        Libraries { accounts, exporting: HashMap::new(), files: HashMap::new() }
    }

    /// The candidate that exports the function. With several or none, or where one of them was not read, the
    /// linker's decision is not known.
    fn of(&mut self, symbol: &str, candidates: &[ModuleId], files: &mut FileOf<'_>) -> Option<String> {
        let mut found = None;
        for &module in candidates {
            if self.exports(module, symbol, files)? && found.replace(module).is_some() {
                return None;
            }
        }
        Some(files(found?)?.module.path)
    }

    fn exports(&mut self, module: ModuleId, symbol: &str, files: &mut FileOf<'_>) -> Option<bool> {
        let key = (module, symbol.to_owned());
        if let Some(known) = self.exporting.get(&key) {
            return *known;
        }
        let with_payer = |file: ModuleFile| {
            let payer = file.payer();
            (file, payer)
        };
        let exports = match self.files.entry(module).or_insert_with(|| files(module).map(with_payer)) {
            Some((file, payer)) => {
                let payer = *payer;
                self.accounts.spend(payer, || exports_function(file, payer, symbol))
            }
            None => Some(false),
        };
        self.exporting.insert(key, exports);
        exports
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu_accounts::NAMING;
    use std::fs::File;
    use std::sync::Arc;
    use wallprof_model::{FrameKind, Module, Owner};

    fn accounts() -> CpuAccounts {
        CpuAccounts::new(NAMING)
    }

    fn frame(module: u32, address: u64) -> Frame {
        Frame { kind: FrameKind::Native, module: Some(ModuleId(module)), address }
    }

    /// A linker, module 1, that binds in its first page.
    fn bindings() -> Bindings {
        let mut bindings = Bindings::default();
        bindings.binders.insert(ModuleId(1), vec![0x100..0x200, 0x300..0x400]);
        bindings.binders.extend([0, 2].map(|module| (ModuleId(module), Vec::new())));
        bindings
    }

    fn met(frames: &[Frame]) -> Option<(u32, u32, u64)> {
        let mut bindings = bindings();
        let process = ProcessKey { pid: u32::MAX, generation: 0 };
        bindings.meet(StackId(7), process, frames, &mut Processes::default());
        let (caller, met) = bindings.waiting.into_iter().next()?;
        Some((caller.0, met[0].depth, met[0].call))
    }

    #[test]
    fn frame_below_the_binding_function_made_the_call() {
        let stack = [frame(1, 0x900), frame(1, 0x800), frame(1, 0x320), frame(2, 0x5004), frame(0, 0x10)];
        assert_eq!(met(&stack), Some((2, 3, 0x5004)));
        assert_eq!(met(&stack[2..]), Some((2, 1, 0x5004)), "a fault in the binding function itself");
    }

    #[test]
    fn linker_call_for_another_purpose_binds_nothing() {
        let opens = [frame(1, 0x900), frame(1, 0x800), frame(2, 0x5004)];
        assert_eq!(met(&opens), None);
        let audited = [frame(2, 0x70), frame(1, 0x120), frame(2, 0x5004)];
        assert_eq!(met(&audited), None, "the function runs already");
        for cut in [&[frame(1, 0x120)][..], &[frame(1, 0x120), frame(1, 0x900)], &[]] {
            assert_eq!(met(cut), None);
        }
        let unknown = Frame { module: None, ..frame(0, 9) };
        assert_eq!(met(&[frame(1, 0x120), unknown]), None);
    }

    #[test]
    fn stack_without_files_is_emitted_without_names_and_excess_stacks_are_counted() {
        let mut bindings = bindings();
        let process = ProcessKey { pid: u32::MAX, generation: 0 };
        let stack = [frame(1, 0x120), frame(2, 0x5004)];
        for id in 0..MAX_WAITING as u64 + 3 {
            bindings.meet(StackId(id), process, &stack, &mut Processes::default());
        }
        let mut emitted = Vec::new();
        bindings.flush(&accounts(), &mut |_| None, &mut |event| emitted.push(event));
        assert_eq!(emitted.len(), MAX_WAITING + 1);
        let first = Binding { stack: StackId(0), depth: 1, symbol: None, library: None };
        assert_eq!(emitted[0], Event::Binding(first));
        assert_eq!(emitted[MAX_WAITING], Event::loss(Loss::BindingsFull, 3));
        bindings.flush(&accounts(), &mut |_| None, &mut |event| panic!("{event:?}"));
    }

    #[test]
    fn cache_of_binders_is_bounded() {
        let mut bindings = bindings();
        let mut processes = Processes::default();
        let modules = (0..3 * MAX_BINDERS as u32).flat_map(|module| [module, 1]);
        let linker_calls = modules.filter(|&module| {
            // Unknown files are not read.
            bindings.is_binder(&frame(module, 0x120), &mut processes)
        });
        assert_eq!(linker_calls.count(), 3 * MAX_BINDERS + 1, "the linker, which is in use, stays");
        assert!(bindings.binders.len() + bindings.old_binders.len() <= 2 * MAX_BINDERS);
    }

    #[test]
    fn linker_of_this_machine_has_binding_functions() {
        let mut processes = Processes::default();
        let linker = processes.module_at("/lib64/ld-linux-x86-64.so.2".as_ref()).expect("glibc's");
        let libc = processes.module_at("/lib/x86_64-linux-gnu/libc.so.6".as_ref()).expect("glibc");
        assert!(!binders_of(processes.module_file(linker)).is_empty());
        assert!(binders_of(processes.module_file(libc)).is_empty());
        let mut files = |id| processes.module_file(id);
        let accounts = accounts();
        let mut libraries = Libraries::new(&accounts);
        let found = libraries.of("sched_yield", &[linker, libc], &mut files).expect("libc's");
        assert!(found.contains("libc.so"), "{found}");
        assert_eq!(libraries.of("sched_yield", &[linker], &mut files), None);
    }

    #[test]
    fn library_is_unknown_while_one_of_the_files_must_not_be_read() {
        let folder = std::env::temp_dir().join(format!("wallprof-bindings-{}", std::process::id()));
        std::fs::write(&folder, "").expect("written");
        if std::os::unix::fs::chown(&folder, Some(1000), None).is_err() {
            let test = "library_is_unknown_while_one_of_the_files_must_not_be_read";
            return wallprof_testkit::skip(test, "giving a file to another user takes root");
        }
        let foreign = Arc::new(File::open(&folder).expect("a file"));
        std::fs::remove_file(&folder).expect("removed");
        let mut processes = Processes::default();
        let libc = processes.module_at("/lib/x86_64-linux-gnu/libc.so.6".as_ref()).expect("glibc");
        let described = Module { path: String::new(), build_id: None };
        let mut files = |id| match id {
            id if id == libc => processes.module_file(id),
            _ => Some(ModuleFile { module: described.clone(), file: Some(Arc::clone(&foreign)) }),
        };
        let accounts = accounts();
        let mut library = || {
            let mut libraries = Libraries::new(&accounts);
            libraries.of("sched_yield", &[libc, ModuleId(99)], &mut files)
        };
        assert!(library().is_some(), "the other file exports nothing");
        accounts.charge(Owner::User(1000), 10_000_000_000, std::time::Instant::now());
        assert_eq!(library(), None);
    }
}
