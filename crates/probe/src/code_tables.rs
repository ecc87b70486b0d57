// SPDX-License-Identifier: Apache-2.0
//! The code tables of the kernel's walker: unwind tables by file, mappings by process.
//!
//! This can live on another thread than the probes that walk. Everything that a process's list refers to is
//! written before the list, and the list before the process.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use wallprof_model::Owner;
use wallprof_unwind::{PAGE_TEXT, Rule, Table};

use crate::arena::{Arena, SharedWords};
use crate::bpf::{bytes_of, constants as c, file_key, unwind_file, unwind_mapping, unwind_process};
use crate::process_words::{ProcessWordMap, ProcessWords};
use crate::rule_numbers::RuleNumbers;

const RULE_WORDS: usize = 4;
const MAPPING_WORDS: usize = size_of::<unwind_mapping>() / size_of::<u32>();
/// Any directory but 0, with no pages.
const RUN_TIME_CODE: u32 = 1;

/// A table that lies in the kernel's arena.
#[derive(Debug, PartialEq, Eq)]
pub struct PlacedTable {
    directory: u32,
    /// Position and length of each page, in words.
    pages: Vec<(u32, u32)>,
    base: u64,
    /// The numbers of its rules in the kernel.
    rules: Vec<u32>,
    owner: Owner,
}

/// The table for a mapping's addresses, as the walker reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeMapping {
    pub start: u64,
    pub end: u64,
    /// Directory and number of pages of the file's table; 0 pages: it has none.
    table: (u32, u32),
    bias: u64,
}

impl CodeMapping {
    /// Memory with code made at run time.
    pub fn run_time_code(start: u64, end: u64) -> Self {
        CodeMapping { start, end, table: (RUN_TIME_CODE, 0), bias: 0 }
    }

    /// Memory with code whose callers cannot be found; frame pointers would lead to false ones. More of it than
    /// `unsupported` covers is run-time code.
    pub fn unsupported(start: u64, end: u64, unsupported: &PlacedTable) -> Self {
        CodeMapping::new(start, end, start.wrapping_neg(), Some(unsupported))
    }

    /// A mapping of a file whose ELF virtual addresses are its addresses plus `bias`, wrapping.
    pub fn new(start: u64, end: u64, bias: u64, table: Option<&PlacedTable>) -> Self {
        match table {
            // The walker subtracts this, which gives the distance from the table's page 0.
            Some(placed) => CodeMapping {
                start,
                end,
                table: (placed.directory, placed.pages.len() as u32),
                bias: placed.base.wrapping_sub(bias),
            },
            None => CodeMapping { start, end, table: (0, 0), bias: 0 },
        }
    }

    fn words(&self) -> [u32; MAPPING_WORDS] {
        let (directory, pages) = self.table;
        let len = self.end - self.start;
        let mapping = unwind_mapping { start: self.start, len, bias: self.bias, directory, pages };
        let mut words = bytes_of(&mapping).chunks_exact(size_of::<u32>());
        std::array::from_fn(|_| {
            let word = words.next().and_then(|word| word.try_into().ok());
            u32::from_ne_bytes(word.expect("MAPPING_WORDS counts them"))
        })
    }
}

/// A file with its contents, by the kernel's identity of it. A file that was written to is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds of the last change.
    changed: (i64, i64),
}

impl FileId {
    /// What stands for the vDSO: the kernel maps it from no file.
    pub const VDSO: FileId = FileId { device: 0, inode: 0, size: 0, changed: (0, 0) };

    pub fn of(file: &File) -> io::Result<Self> {
        Ok(FileId::from(&file.metadata()?))
    }

    /// Within the kernel a device is (major << 20) | minor: linux/kdev_t.h.
    fn key(&self) -> file_key {
        let device = (libc::major(self.device) << 20) | libc::minor(self.device);
        file_key {
            inode: self.inode,
            size: self.size,
            changed_sec: self.changed.0 as u64,
            changed_nsec: self.changed.1 as u32,
            device,
        }
    }
}

impl From<&Metadata> for FileId {
    fn from(metadata: &Metadata) -> Self {
        FileId {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Why a table was not placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotPlaced {
    /// The arena has reached its budget: other tables must be removed first.
    Full,
    /// More distinct rules than the kernel side keeps, or a page longer than a chunk.
    TooManyRules,
    /// The files of this user have used up a user's quota.
    OverQuota,
}

/// The maps that the walker reads.
pub struct CodeTables {
    arena: Arena,
    rules: SharedWords,
    rule_numbers: RuleNumbers,
    /// Bytes of tables and lists by user, and the quota of a user.
    bytes_of: HashMap<u32, u64>,
    bytes_per_user: u64,
    processes: MapHandle,
    files: MapHandle,
    words: ProcessWordMap,
    /// File → directory of the table that it leads to.
    named: HashMap<FileId, u32>,
    /// By process.
    lists: HashMap<u32, PlacedList>,
}

/// A process's list of mappings in the arena.
struct PlacedList {
    position: u32,
    words: usize,
    owner: Owner,
}

impl PlacedList {
    /// The walker then looks into the process's memory itself.
    const EMPTY: PlacedList = PlacedList { position: 0, words: 0, owner: Owner::System };
}

impl CodeTables {
    pub(crate) fn new(
        chunks: MapHandle,
        rules: MapHandle,
        processes: MapHandle,
        files: MapHandle,
        words: ProcessWordMap,
        budget: u64,
    ) -> io::Result<Self> {
        Ok(CodeTables {
            arena: Arena::new(chunks, budget),
            rules: SharedWords::map(rules, c::MAX_RULES as usize * RULE_WORDS)?,
            rule_numbers: RuleNumbers::new(c::MAX_RULES as usize),
            bytes_of: HashMap::new(),
            bytes_per_user: budget / 4,
            processes,
            files,
            words,
            named: HashMap::new(),
            lists: HashMap::new(),
        })
    }

    /// Copies a table into the kernel's memory.
    pub fn place(&mut self, table: &Table, owner: Owner) -> Result<PlacedTable, NotPlaced> {
        if !self.may_have(owner, table.coverage().bytes) {
            return Err(NotPlaced::OverQuota);
        }
        let shared = &mut self.rules;
        let write = |number: u32, rule: &Rule| write_rule(shared, number, rule);
        let numbers = self.rule_numbers.take(table.rules(), owner, Instant::now(), write)?;
        let pages = Vec::new();
        let mut placed =
            PlacedTable { directory: 0, pages, base: table.base(), rules: numbers.clone(), owner };
        let mut words = Vec::new();
        for page in table.pages() {
            let Some(page) = page else {
                placed.pages.push((0, 0));
                continue;
            };
            renumbered(page, &numbers, &mut words);
            let Some(position) = self.arena.store(&words) else {
                self.remove(placed);
                return Err(NotPlaced::Full);
            };
            placed.pages.push((position, words.len() as u32));
            self.charge(owner, words.len());
        }
        let directory: Vec<u32> = placed.pages.iter().map(|(position, _)| *position).collect();
        match self.arena.store(&directory) {
            Some(position) => placed.directory = position,
            None => {
                self.remove(placed);
                return Err(NotPlaced::Full);
            }
        }
        Ok(placed)
    }

    /// A table in which no code has a rule that leads on, for [`CodeMapping::unsupported`].
    pub fn place_unsupported(&mut self, bytes: u64) -> Result<PlacedTable, NotPlaced> {
        let page = Table::from_rules([(0, PAGE_TEXT, Rule::UNSUPPORTED)]).expect("one range");
        let mut placed = self.place(&page, Owner::System)?;
        // Each page is the same.
        let directory = vec![placed.pages[0].0; bytes.div_ceil(PAGE_TEXT) as usize];
        let Some(position) = self.arena.store(&directory) else {
            self.remove(placed);
            return Err(NotPlaced::Full);
        };
        self.arena.give_back(placed.directory, placed.pages.len());
        placed.directory = position;
        placed.pages.resize(directory.len(), (0, 0));
        Ok(placed)
    }

    /// Removes a table with its rules. No process's list refers to it any more.
    pub fn remove(&mut self, placed: PlacedTable) {
        self.rule_numbers.give_back(&placed.rules, placed.owner, Instant::now());
        for &(position, words) in placed.pages.iter().filter(|(position, _)| *position != 0) {
            self.arena.give_back(position, words as usize);
        }
        let words: usize = placed.pages.iter().map(|(_, words)| *words as usize).sum();
        self.discharge(placed.owner, words);
        if placed.directory != 0 {
            self.arena.give_back(placed.directory, placed.pages.len());
        }
    }

    /// Enters a file's table by the file alone, for processes whose mappings are not entered yet. `delta`
    /// plus an offset in the file is the ELF virtual address of the code there.
    pub fn name_file(&mut self, file: FileId, delta: u64, placed: &PlacedTable) {
        let value = unwind_file {
            delta: delta.wrapping_sub(placed.base),
            directory: placed.directory,
            pages: placed.pages.len() as u32,
        };
        // Full: such processes are walked once their mappings are entered.
        if self.files.update(bytes_of(&file.key()), bytes_of(&value), MapFlags::ANY).is_ok() {
            self.named.insert(file, placed.directory);
        }
    }

    /// Removes the way from a file to this table; a newer table of the same file stays.
    pub fn forget_file(&mut self, file: FileId, placed: &PlacedTable) {
        if self.named.get(&file) == Some(&placed.directory) {
            self.named.remove(&file);
            // Not there: nothing to forget.
            let _ = self.files.delete(bytes_of(&file.key()));
        }
    }

    /// Writes what a process has mapped in this exec generation: ascending, not overlapping. `owner` is charged. On an
    /// error the process has an empty list.
    pub fn set_process(
        &mut self,
        pid: u32,
        exec_id: u32,
        owner: Owner,
        mappings: &[CodeMapping],
    ) -> Result<(), NotPlaced> {
        let mappings = &mappings[..mappings.len().min(c::MAX_MAPPINGS as usize)];
        let list = self.store_list(owner, mappings);
        let (placed, count) = match &list {
            Ok(list) => (list, mappings.len()),
            Err(_) => (&PlacedList::EMPTY, 0),
        };
        let process = unwind_process { exec_id, list: placed.position, mappings: count as u32, unused: 0 };
        let written = self.processes.update(&pid.to_ne_bytes(), bytes_of(&process), MapFlags::ANY).is_ok();
        if !written {
            // The map is full, so it has no older list of this process either.
            list.into_iter().for_each(|list| self.remove_list(&list));
            return Err(NotPlaced::Full);
        }
        let (old, outcome) = match list {
            Ok(list) => (self.lists.insert(pid, list), Ok(())),
            Err(reason) => (self.lists.remove(&pid), Err(reason)),
        };
        old.into_iter().for_each(|old| self.remove_list(&old));
        outcome
    }

    /// Sets where the threads of a process say things in its memory.
    pub fn set_words(&mut self, pid: u32, words: ProcessWords) {
        self.words.set(pid, words);
    }

    pub fn forget_process(&mut self, pid: u32) {
        // Not there: nothing to forget.
        let _ = self.processes.delete(&pid.to_ne_bytes());
        self.words.forget(pid);
        if let Some(list) = self.lists.remove(&pid) {
            self.remove_list(&list);
        }
    }

    fn store_list(&mut self, owner: Owner, mappings: &[CodeMapping]) -> Result<PlacedList, NotPlaced> {
        let words: Vec<u32> = mappings.iter().flat_map(CodeMapping::words).collect();
        if words.is_empty() {
            return Ok(PlacedList::EMPTY);
        }
        if !self.may_have(owner, words.len() as u64 * 4) {
            return Err(NotPlaced::OverQuota);
        }
        let position = self.arena.store(&words).ok_or(NotPlaced::Full)?;
        self.charge(owner, words.len());
        Ok(PlacedList { position, words: words.len(), owner })
    }

    fn remove_list(&mut self, list: &PlacedList) {
        if list.words > 0 {
            self.arena.give_back(list.position, list.words);
            self.discharge(list.owner, list.words);
        }
    }

    /// Bytes of tables and lists.
    pub fn bytes(&self) -> u64 {
        self.arena.taken_bytes()
    }

    /// Whether so many bytes more fit in the owner's quota.
    fn may_have(&self, owner: Owner, bytes: u64) -> bool {
        let Owner::User(uid) = owner else { return true };
        self.bytes_of.get(&uid).copied().unwrap_or(0).saturating_add(bytes) <= self.bytes_per_user
    }

    fn charge(&mut self, owner: Owner, words: usize) {
        if let Owner::User(uid) = owner {
            *self.bytes_of.entry(uid).or_default() += words as u64 * 4;
        }
    }

    fn discharge(&mut self, owner: Owner, words: usize) {
        if let Owner::User(uid) = owner
            && let Some(bytes) = self.bytes_of.get_mut(&uid)
        {
            *bytes -= words as u64 * 4;
            if *bytes == 0 {
                self.bytes_of.remove(&uid);
            }
        }
    }
}

fn write_rule(rules: &mut SharedWords, number: u32, rule: &Rule) {
    let mut words = [0; RULE_WORDS];
    for (word, bytes) in words.iter_mut().zip(rule.to_bytes().chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    rules.write(number as usize * RULE_WORDS, &words);
}

/// A page's words with the numbers of its rules in the kernel: the indices stay, the rows change.
fn renumbered(page: &[u32], numbers: &[u32], words: &mut Vec<u32>) {
    words.clear();
    words.extend_from_slice(page);
    for row in words.iter_mut().skip(c::PAGE_STARTS as usize) {
        *row = (numbers[(*row >> 8) as usize] << 8) | (*row & 0xff);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_leads_to_its_tables_page_zero() {
        let pages = vec![(64, 200), (0, 0)];
        let placed =
            PlacedTable { directory: 16, pages, base: 0x40_0000, rules: Vec::new(), owner: Owner::System };
        // Mapped at 0x7000_0000 with ELF addresses from 0x41_0000 on.
        let bias = 0x41_0000u64.wrapping_sub(0x7000_0000);
        let mapping = CodeMapping::new(0x7000_0000, 0x7000_5000, bias, Some(&placed));
        let at = 0x7000_1234u64.wrapping_sub(mapping.bias);
        assert_eq!(at, 0x41_1234 - 0x40_0000);
        assert_eq!(mapping.words(), [0x7000_0000, 0, 0x5000, 0, 0x6fff_0000, 0, 16, 2]);
        assert_eq!(CodeMapping::new(1, 2, 3, None).words()[6..], [0, 0]);
    }

    #[test]
    fn key_of_a_file_has_its_contents_in_it() {
        let path = std::env::temp_dir().join(format!("wallprof-file-id-{}", std::process::id()));
        std::fs::write(&path, "one").expect("written");
        let file = File::open(&path).expect("a file");
        let before = FileId::of(&file).expect("metadata");
        let bytes = |id: &FileId| bytes_of(&id.key()).to_vec();
        assert_eq!(bytes(&FileId::of(&file).expect("metadata")), bytes(&before));
        // As long as before, and with its old time of modification.
        let modified = file.metadata().and_then(|metadata| metadata.modified()).expect("a time");
        let change_time = || file.metadata().map(|metadata| (metadata.ctime(), metadata.ctime_nsec()));
        let old = change_time().expect("a time");
        while change_time().expect("a time") == old {
            std::fs::write(&path, "two").expect("written");
            let writer = File::options().write(true).open(&path).expect("a file");
            writer.set_modified(modified).expect("set back");
        }
        let after = FileId::of(&file).expect("metadata");
        assert_eq!(file.metadata().and_then(|metadata| metadata.modified()).expect("a time"), modified);
        assert_ne!(bytes(&after), bytes(&before));
        std::fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn rows_get_the_kernels_numbers() {
        let mut page = vec![0xffff_ffff; c::PAGE_STARTS as usize];
        page.extend([(1 << 8) | 0x20, 0x40, (2 << 8) | 0xff]);
        let mut words = Vec::new();
        renumbered(&page, &[0, 700, 3], &mut words);
        assert_eq!(words[..c::PAGE_STARTS as usize], page[..c::PAGE_STARTS as usize]);
        assert_eq!(words[c::PAGE_STARTS as usize..], [(700 << 8) | 0x20, 0x40, (3 << 8) | 0xff]);
    }
}
