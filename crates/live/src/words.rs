// SPDX-License-Identifier: Apache-2.0
//! Addresses in processes: of the words about the waits of their threads, and of the variables with the traces of their
//! threads.
//!
//! Rules name a variable in which a program says what its threads wait for. A process that has mapped the code of the
//! file that exports the variable has that word, at the address that the file gives it. The variable of the trace that a
//! thread works for has one name everywhere. Reading a file is charged to its owner.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use wallprof_model::{ModuleId, WaitWord as ReadWord, WordMeaning, WordRules, WordSource};
use wallprof_probe::bpf::{constants as c, look_record, stall_record};
use wallprof_probe::{ProcessWords, TraceAccess, WaitWord, clock};
use wallprof_symbols::{
    ModuleFile, TraceVariable, exported_variable, exports_function, may_be_dynamic_linker, trace_variable,
};

use crate::follower::lock;
use crate::known::{ChangedCode, KnownProcesses};

/// Files with a word: versions of a few programs. Of more files, processes have none.
const MOST_SOURCES: usize = 4_096;
/// Modules for which it is cached whether they have a word.
const MOST_MODULES: usize = 1 << 16;

/// What the words are, by the number that comes back with each wait.
#[derive(Debug, Default)]
pub struct WordSources(Mutex<Vec<Arc<WordSource>>>);

impl WordSources {
    pub fn get(&self, definition: u32) -> Option<Arc<WordSource>> {
        let at = usize::try_from(definition).ok()?.checked_sub(1)?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(at).cloned()
    }

    /// The number of a source; `None`: there are too many.
    fn number(&self, source: WordSource) -> Option<u32> {
        let mut sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match sources.iter().position(|known| **known == source) {
            Some(at) => at,
            None if sources.len() == MOST_SOURCES => return None,
            None => {
                sources.push(Arc::new(source));
                sources.len() - 1
            }
        };
        u32::try_from(at + 1).ok()
    }
}

/// What words say that came with waits.
#[derive(Default)]
pub struct ReadWords {
    pub rules: Option<Arc<dyn WordRules>>,
    pub sources: Arc<WordSources>,
}

impl ReadWords {
    /// What the word of a wait says; `None`: it has none, or no rule names its value.
    pub fn of_stall(&self, record: &stall_record) -> Option<Arc<WordMeaning>> {
        self.meaning(u64::from(record.flags) & c::STALL_WORD != 0, record.word_definition, record.word)
    }

    /// The same of a wait that has not ended.
    pub fn of_look(&self, record: &look_record) -> Option<Arc<WordMeaning>> {
        self.meaning(u64::from(record.flags) & c::LOOK_WORD != 0, record.word_definition, record.word)
    }

    fn meaning(&self, is_valid: bool, definition: u32, value: u64) -> Option<Arc<WordMeaning>> {
        let source = self.sources.get(definition).filter(|_| is_valid)?;
        self.rules.as_ref()?.meaning_of(&ReadWord { source, value, text: None })
    }
}

/// Finds the words of processes.
pub struct Words {
    rules: Arc<dyn WordRules>,
    sources: Arc<WordSources>,
    modules: HashMap<ModuleId, ModuleWords>,
}

/// What a file has for the processes that map its code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ModuleWords {
    wait: Option<ExportedWord>,
    trace: Option<TraceVariable>,
    /// `None`: nobody has asked.
    is_musl: Option<bool>,
}

/// A word in a file, at an ELF virtual address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ExportedWord {
    address: u64,
    definition: u32,
    bytes: u8,
    is_pointer: bool,
}

impl Words {
    pub fn new(rules: Arc<dyn WordRules>, sources: Arc<WordSources>) -> Self {
        Words { rules, sources, modules: HashMap::new() }
    }

    /// The words of a process with this code: those of the first file that has each. `Err`: the owner of a file
    /// has no time left.
    pub fn of(&mut self, code: &ChangedCode, known: &Mutex<KnownProcesses>) -> Result<ProcessWords, ()> {
        let mut words = ProcessWords { exec_id: code.exec_id, ..ProcessWords::default() };
        let modules = || code.ranges.iter().filter_map(|range| Some((range.module?, range.bias)));
        for (module, bias) in modules() {
            let found = self.of_module(module, known)?;
            let mapped = |address: u64| address.wrapping_sub(bias);
            words.wait = words.wait.or_else(|| {
                found.wait.map(|word| WaitWord {
                    address: mapped(word.address),
                    definition: word.definition,
                    bytes: word.bytes,
                    is_pointer: word.is_pointer,
                })
            });
            words.trace = words.trace.or_else(|| {
                found.trace.map(|variable| match variable {
                    TraceVariable::Offset(distance) => TraceAccess::Offset(distance),
                    TraceVariable::OffsetAt(at) => TraceAccess::OffsetAt(mapped(at)),
                    TraceVariable::IndexAt(at) => TraceAccess::IndexAt(mapped(at)),
                    TraceVariable::Descriptor(at) => TraceAccess::Descriptor(mapped(at)),
                })
            });
        }
        if words.trace.is_some_and(|trace| trace.is_in_a_block()) {
            for (module, _) in modules() {
                words.is_musl |= self.is_musl(module, known)?;
            }
        }
        Ok(words)
    }

    pub fn forget(&mut self, modules: &[ModuleId]) {
        self.modules.retain(|module, _| !modules.contains(module));
    }

    fn of_module(&mut self, module: ModuleId, known: &Mutex<KnownProcesses>) -> Result<ModuleWords, ()> {
        if let Some(words) = self.modules.get(&module) {
            return Ok(*words);
        }
        let read = |file: &ModuleFile| ModuleWords {
            wait: self.read(file),
            trace: trace_variable(file),
            is_musl: None,
        };
        let words = charged(module, known, read)?.unwrap_or_default();
        if self.modules.len() >= MOST_MODULES {
            self.modules.clear();
        }
        self.modules.insert(module, words);
        Ok(words)
    }

    fn is_musl(&mut self, module: ModuleId, known: &Mutex<KnownProcesses>) -> Result<bool, ()> {
        let cached = self.modules.get(&module).and_then(|words| words.is_musl);
        if let Some(is_musl) = cached {
            return Ok(is_musl);
        }
        let is_musl = charged(module, known, is_musl)?.unwrap_or(false);
        if let Some(words) = self.modules.get_mut(&module) {
            words.is_musl = Some(is_musl);
        }
        Ok(is_musl)
    }

    fn read(&self, file: &ModuleFile) -> Option<ExportedWord> {
        let place = self.rules.word_of(&file.module.path)?;
        let size = if place.is_pointer { size_of::<u64>() as u64 } else { place.bytes.into() };
        let address = exported_variable(file, &place.symbol, size)?;
        let source = WordSource { symbol: place.symbol, module: file.module.path.clone() };
        let definition = self.sources.number(source)?;
        Some(ExportedWord { address, definition, bytes: place.bytes, is_pointer: place.is_pointer })
    }
}

/// What is read of a module's file, on the account of its owner. `None`: the module has no file. `Err`: the owner has no
/// time left.
pub(crate) fn charged<T>(
    module: ModuleId,
    known: &Mutex<KnownProcesses>,
    read: impl FnOnce(&ModuleFile) -> T,
) -> Result<Option<T>, ()> {
    let Some(file) = lock(known).processes.module_file(module) else { return Ok(None) };
    let owner = file.payer().owner;
    if !lock(known).has_time(owner) {
        return Err(());
    }
    let cpu_before_ns = clock::thread_cpu_ns();
    let found = read(&file);
    lock(known).charge(owner, clock::thread_cpu_ns().saturating_sub(cpu_before_ns));
    Ok(Some(found))
}

/// musl is one file, the dynamic linker and the C library: its name and folder differ from one distribution to the next.
fn is_musl(module: &ModuleFile) -> bool {
    module.file.as_deref().is_some_and(may_be_dynamic_linker)
        && exports_function(module, module.payer(), "__libc_start_main")
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{Owner, WordPlace};
    use wallprof_symbols::CodeRange;

    /// The C library's files have a word: a variable that it exports.
    struct Libc;

    impl WordRules for Libc {
        fn word_of(&self, module: &str) -> Option<WordPlace> {
            let symbol = "program_invocation_name".into();
            module.ends_with("/libc.so.6").then_some(WordPlace { symbol, is_pointer: true, bytes: 1 })
        }

        fn meaning_of(&self, _: &ReadWord) -> Option<Arc<WordMeaning>> {
            None
        }
    }

    #[test]
    fn word_is_where_the_file_says_and_the_process_has_mapped_it() {
        let mut known = KnownProcesses::default();
        let module = |known: &mut KnownProcesses, path: &str| {
            known.processes.module_at(path.as_ref()).expect("glibc's")
        };
        let libc = module(&mut known, "/lib/x86_64-linux-gnu/libc.so.6");
        let linker = module(&mut known, "/lib64/ld-linux-x86-64.so.2");
        let known = Mutex::new(known);
        let sources = Arc::new(WordSources::default());
        let mut words = Words::new(Arc::new(Libc), sources.clone());
        let range = |module, bias| CodeRange { start: 0x1000, end: 0x2000, module: Some(module), bias };
        let mut code = ChangedCode { pid: 7, exec_id: 3, owner: Owner::System, ranges: Vec::new() };
        code.ranges = vec![range(linker, 0)];
        assert_eq!(words.of(&code, &known), Ok(ProcessWords { exec_id: 3, ..ProcessWords::default() }));
        code.ranges.push(range(libc, 0));
        let in_file = words.of(&code, &known).unwrap().wait.expect("libc's");
        code.ranges[1] = range(libc, 0u64.wrapping_sub(0x7f00_0000_0000));
        let mapped = words.of(&code, &known).unwrap().wait.expect("libc's");
        assert_eq!(mapped.address, in_file.address + 0x7f00_0000_0000);
        assert_eq!((mapped.bytes, mapped.is_pointer), (1, true));
        let source = sources.get(mapped.definition).expect("known");
        assert_eq!(source.symbol, "program_invocation_name");
        assert!(source.module.ends_with("libc.so.6"), "{}", source.module);
        assert_eq!((sources.get(0), sources.get(2)), (None, None));
    }

    #[test]
    fn neither_library_nor_linker_of_glibc_is_musl() {
        let module = |path: &str| {
            let path = std::fs::canonicalize(path).expect("it is here").to_string_lossy().into_owned();
            let build_id = wallprof_symbols::build_id_of_path(path.as_ref());
            ModuleFile::locate(&wallprof_model::Module { path, build_id })
        };
        for path in ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"] {
            let file = module(path);
            assert!(file.file.is_some() && !is_musl(&file), "{path}");
        }
    }

    #[test]
    fn sources_are_numbered_once_and_bounded() {
        let sources = WordSources::default();
        let source = |at: usize| WordSource { symbol: at.to_string(), module: String::new() };
        let numbers: Vec<_> = (0..MOST_SOURCES + 2).map(|at| sources.number(source(at))).collect();
        assert_eq!((numbers[0], numbers[MOST_SOURCES - 1]), (Some(1), Some(MOST_SOURCES as u32)));
        assert_eq!(numbers[MOST_SOURCES..], [None, None]);
        assert_eq!(sources.number(source(4)), Some(5));
    }
}
