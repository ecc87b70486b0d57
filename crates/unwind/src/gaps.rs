// SPDX-License-Identifier: Apache-2.0
//! Rules of code without unwind entries: Go's functions, the entry point, and the code after the system call
//! that creates a thread. Rules of all other code are derived from its instructions.

use crate::coverage::Unencodable;
use crate::elf::{Elf, Machine, Range};
use crate::go::GoTable;
use crate::rule::Rule;
use crate::scan::Scan;

/// Limit on the code of an entry point. In assembly it has a few instructions, and other code follows.
const MAX_ENTRY: u64 = 256;
/// glibc ends the entries of `clone` and `clone3` at their system call, because they would be wrong in the
/// new thread. The creating thread returns there, too, and has no entry for these few instructions.
const MAX_CLONE_TAIL: u64 = 32;
const SYSCALL: [u8; 2] = [0x0f, 0x05];

pub(crate) struct Gaps<'e, 'a> {
    elf: &'e Elf<'a>,
    go: Option<GoTable<'e, 'a>>,
    /// Only for machines with known instructions.
    scan: Option<Scan<'e, 'a>>,
    entry: Option<u64>,
}

impl<'e, 'a> Gaps<'e, 'a> {
    pub(crate) fn new(elf: &'e Elf<'a>) -> Self {
        let scan = (elf.machine == Machine::X86_64).then(|| Scan::new(elf));
        Gaps { elf, go: GoTable::find(elf), scan, entry: elf.entry() }
    }

    pub(crate) fn has_go(&self) -> bool {
        self.go.is_some()
    }

    /// Functions of Go.
    pub(crate) fn functions(&self) -> u64 {
        self.go.as_ref().map_or(0, GoTable::functions)
    }

    pub(crate) fn holds_entry(&self, range: Range) -> bool {
        self.entry.is_some_and(|entry| (range.start..range.end).contains(&entry))
    }

    /// Emits to `row` the known rules within `gap`, ascending.
    pub(crate) fn rows(&self, gap: Range, mut row: impl FnMut(u64, u64, Result<Rule, Unencodable>)) {
        if self.is_clone_tail(gap) {
            return row(gap.start, gap.end, Ok(Rule::RETURN_ADDRESS_ON_TOP));
        }
        let mut from = gap.start;
        if let Some(go) = &self.go {
            go.rows(gap, &mut |start, end, rule| {
                self.unlisted_rows(Range { start: from, end: start }, &mut row);
                row(start, end, rule);
                from = end;
            });
        }
        self.unlisted_rows(Range { start: from, end: gap.end }, &mut row);
    }

    fn is_clone_tail(&self, gap: Range) -> bool {
        let short = gap.end - gap.start <= MAX_CLONE_TAIL;
        short && self.elf.read_at(gap.start, &mut [0; 2]).is_some_and(|bytes| bytes == SYSCALL)
    }

    /// The entry point has no caller. Go files have only assembly of a known kind beside Go's functions.
    fn unlisted_rows(&self, gap: Range, row: &mut impl FnMut(u64, u64, Result<Rule, Unencodable>)) {
        let entry = self.entry.filter(|_| self.holds_entry(gap));
        let mut from = gap.start;
        if let Some(entry) = entry {
            self.scanned_rows(Range { start: from, end: entry }, row);
            from = self.end_of_entry(entry).min(gap.end);
            row(entry, from, Ok(Rule::END));
        }
        self.scanned_rows(Range { start: from, end: gap.end }, row);
    }

    fn scanned_rows(&self, gap: Range, row: &mut impl FnMut(u64, u64, Result<Rule, Unencodable>)) {
        if let Some(scan) = self.scan.as_ref().filter(|_| self.go.is_none()) {
            scan.rows(gap, &mut |start, end, rule| row(start, end, Ok(rule)));
        }
    }

    /// The entry point ends where execution cannot continue. Another function follows.
    fn end_of_entry(&self, entry: u64) -> u64 {
        let longest = entry.saturating_add(MAX_ENTRY);
        self.scan.as_ref().map_or(longest, |scan| scan.end_of(entry).min(longest))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Rule, Table};

    /// Where the C library creates threads, the creating thread returns behind the end of the function's
    /// entry.
    #[test]
    fn creating_thread_has_a_caller() {
        let Ok(libc) = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6") else {
            return wallprof_testkit::skip(
                "creating_thread_has_a_caller",
                "there is no libc.so.6 where Debian has it",
            );
        };
        let (image, meter) = (&libc[..], crate::image::Meter::new(&crate::Unlimited));
        let elf = crate::elf::Elf::read(&image, &meter).expect("an ELF file");
        let code = elf.code()[0];
        let bytes = elf.bytes_from(code.start).expect("code");
        // mov $__NR_clone,%eax; syscall; test %rax,%rax: elsewhere, as in fork, an entry covers it.
        let calls = [0xb8, 0x38, 0, 0, 0, 0x0f, 0x05, 0x48, 0x85, 0xc0];
        let call = bytes.windows(calls.len()).position(|bytes| bytes == calls).expect("clone") as u64;
        let table = Table::from_elf(&libc).expect("a table");
        assert_eq!(table.rule_at(code.start + call + 7), Rule::RETURN_ADDRESS_ON_TOP);
    }
}
