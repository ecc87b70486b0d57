// SPDX-License-Identifier: Apache-2.0
//! Derives rules of x86_64 code without unwind entries from its instructions: C libraries and programs that
//! were built with `-fno-asynchronous-unwind-tables`, and assembly.
//!
//! The distance of the stack pointer from the CFA is known at the start of a function, and each instruction
//! changes it by a known amount. It is followed along jumps, for a window of functions at a time. Code that
//! cannot be followed, such as code behind its own form of jump table, stays uncovered.

mod compiled;
mod flow;
mod frame;
mod instruction;

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;

use crate::elf::{Elf, Range};
use crate::rule::Rule;

pub use compiled::CompiledCode;
use flow::Window;
use instruction::Instructions;

/// Windows end at the first function after `WINDOW` bytes, and at the latest after `MAX_WINDOW` bytes.
const WINDOW: u64 = 64 << 10;
const MAX_WINDOW: u64 = 256 << 10;
/// Limit on the code that is read in one file. A file with more code and no unwind entries is not C.
const MAX_CODE: u64 = 32 << 20;

/// Limit on the bytes of an entry point that are read: 256, and the instruction that crosses their end.
const MAX_ENTRY: usize = 272;
/// Bytes of code that one step of the budget pays for.
const STEP_BYTES: u64 = 16;
/// The memory of a window for each byte of its code, if each is an instruction.
const WINDOW_BYTES: u64 = 100;
/// The memory of a jump target.
const ENTERED_BYTES: u64 = 48;

/// The results of reading a file's code, as far as they are needed.
pub(crate) struct Scan<'e, 'a> {
    elf: &'e Elf<'a>,
    /// The functions that the file names, and the ranges of its code, ascending.
    named: OnceCell<Vec<u64>>,
    sections: OnceCell<Vec<Range>>,
    /// What remains of `MAX_CODE`.
    left: Cell<u64>,
}

impl<'e, 'a> Scan<'e, 'a> {
    pub(crate) fn new(elf: &'e Elf<'a>) -> Self {
        Scan { elf, named: OnceCell::new(), sections: OnceCell::new(), left: Cell::new(MAX_CODE) }
    }

    fn named(&self) -> &[u64] {
        self.named.get_or_init(|| {
            let mut named = self.elf.functions();
            named.sort_unstable();
            named
        })
    }

    /// Emits to `row` the rules within `gap`, ascending.
    pub(crate) fn rows(&self, gap: Range, row: &mut impl FnMut(u64, u64, Rule)) {
        for section in self.sections.get_or_init(|| self.elf.code_sections()) {
            let part = Range { start: gap.start.max(section.start), end: gap.end.min(section.end) };
            let goes_on = self.elf.meter.step(part.end.saturating_sub(part.start) / STEP_BYTES + 1);
            if goes_on && part.start < part.end && part.end - part.start <= self.left.get() {
                self.left.set(self.left.get() - (part.end - part.start));
                self.part(part, row);
            }
        }
    }

    /// The end of the code that execution reaches from `address`, within the limit for an entry point.
    pub(crate) fn end_of(&self, address: u64) -> u64 {
        let mut buffer = [0; MAX_ENTRY];
        let code = self.elf.read_at(address, &mut buffer).unwrap_or_default();
        let last = Instructions::new(code, address).find(|found| found.flow.is_last());
        last.map_or(u64::MAX, |last| last.address + u64::from(last.len))
    }

    fn part(&self, part: Range, row: &mut impl FnMut(u64, u64, Rule)) {
        self.elf.look_at(part, |code| self.code_rows(code, part, row));
    }

    fn code_rows(&self, code: &[u8], part: Range, row: &mut impl FnMut(u64, u64, Rule)) {
        let starts = self.starts(code, part);
        // The jumps between all windows are read first: they lead to parts of functions that compilers moved
        // elsewhere.
        let mut entered = HashMap::new();
        let mut charged = size_of_val(&starts[..]) as u64;
        if !self.elf.meter.hold(charged) {
            return;
        }
        for (code, address) in windows(code, part, &starts) {
            let known = entered.len();
            let is_allowed = self.metered(code, || {
                Window::read(code, address, &starts, &HashMap::new()).jumps_out(&mut entered);
            });
            let grown = ENTERED_BYTES * (entered.len() - known) as u64;
            if !is_allowed || !self.elf.meter.hold(grown) {
                return;
            }
            charged += grown;
        }
        for (code, address) in windows(code, part, &starts) {
            if !self.metered(code, || Window::read(code, address, &starts, &entered).rows(row)) {
                return;
            }
        }
        self.elf.meter.release(charged);
    }

    /// Charges the memory of a window while it is read. False: the budget has refused it.
    fn metered(&self, code: &[u8], look: impl FnOnce()) -> bool {
        let meter = self.elf.meter;
        let bytes = WINDOW_BYTES * code.len() as u64;
        let is_allowed = meter.step(code.len() as u64 / STEP_BYTES + 1) && meter.hold(bytes);
        if is_allowed {
            look();
            meter.release(bytes);
        }
        is_allowed
    }

    /// The starts of functions: named ones and called ones.
    fn starts(&self, code: &[u8], part: Range) -> Vec<u64> {
        let within = |address: &u64| (part.start..part.end).contains(address);
        let named = self.named();
        let first = named.partition_point(|&start| start < part.start);
        let mut starts: Vec<u64> = named[first..].iter().copied().take_while(within).collect();
        starts.extend(called(code, part));
        starts.sort_unstable();
        starts.dedup();
        starts
    }
}

/// The places in the code of `part` that it calls.
fn called(code: &[u8], part: Range) -> impl Iterator<Item = u64> {
    let found = Instructions::new(code, part.start).filter_map(|found| found.called);
    found.filter(move |address| (part.start..part.end).contains(address))
}

/// Passes to `row` the rules of machine code at this address, of which nothing is known but that functions are in it:
/// with the addresses of their first byte and behind their last one, ascending. Code that cannot be followed is left
/// out.
pub fn rules_of_code(address: u64, code: &[u8], mut row: impl FnMut(u64, u64, Rule)) {
    let part = Range { start: address, end: address.saturating_add(code.len() as u64) };
    let mut starts: Vec<u64> = called(code, part).collect();
    starts.sort_unstable();
    starts.dedup();
    for (code, address) in windows(code, part, &starts) {
        Window::read(code, address, &starts, &HashMap::new()).rows(&mut row);
    }
}

/// The code of `part` in pieces that start at functions, with their addresses.
fn windows<'c>(code: &'c [u8], part: Range, starts: &[u64]) -> impl Iterator<Item = (&'c [u8], u64)> {
    let end = part.start + code.len() as u64;
    let mut start = part.start;
    std::iter::from_fn(move || {
        let next = starts.partition_point(|&function| function < start.saturating_add(WINDOW));
        let next = starts.get(next).copied().unwrap_or(end).min(end).min(start.saturating_add(MAX_WINDOW));
        let window = &code[(start - part.start) as usize..(next - part.start) as usize];
        let address = std::mem::replace(&mut start, next);
        (!window.is_empty()).then_some((window, address))
    })
}

#[cfg(test)]
mod tests;
