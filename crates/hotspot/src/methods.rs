// SPDX-License-Identifier: Apache-2.0
//! Which methods run at a place in compiled code: the compiled one, and those that were compiled as parts of it.
//!
//! For each place whose state the virtual machine may ask for, at least each call, a compiled method has a description
//! of it (`src/hotspot/share/code/pcDesc.hpp`), which leads to a chain of scopes, innermost first: method and byte code
//! (`scopeDesc.cpp`). The byte codes of a method have lines in a table of differences (`lineNumberTable` in
//! `constMethod.hpp`, `oops/method.cpp`). Both are streams of numbers in the code that JDK calls UNSIGNED5.

use crate::layout::{Field, Layout};
use crate::memory::{Memory, bytes, word};
use crate::names;

/// Of one compiled method: it has as many places as its code has bytes at most.
const MOST_PLACES: u64 = 1 << 18;
/// Calls that are compiled as parts of each other: HotSpot allows 9 by default, and 1 of a method in itself.
const MOST_SCOPES: usize = 64;
/// A scope starts with three numbers of at most five bytes.
const SCOPE_BYTES: u64 = 15;
const MOST_LINE_TABLE: usize = 1 << 16;
/// The first version whose numbers have no byte 0.
const WITHOUT_ZERO: u64 = 20;
const HAS_LINES: u64 = 1;

/// One function at a place in the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// A method, as the JVM's own perf map has it, or a piece of the virtual machine.
    pub name: String,
    /// Bytes from the start of the code. `None`: of a method that runs as a part of the next one.
    pub offset: Option<u64>,
    /// The name of the source file, without its folder, and the line in it. `None`: the class has no debug information.
    pub source: Option<(String, Option<u32>)>,
}

impl Function {
    /// A piece of the virtual machine.
    pub(crate) fn of_machine(name: &str, offset: Option<u64>) -> Self {
        Function { name: name.to_owned(), offset, source: None }
    }
}

/// An interpreted method.
pub(crate) fn interpreted(memory: &dyn Memory, layout: &Layout, method: u64) -> Option<Function> {
    let name = names::method(memory, layout, method)?;
    Some(Function {
        name,
        offset: None,
        source: names::file(memory, layout, method).map(|file| (file, None)),
    })
}

/// A compiled method's code, and where what describes it lies.
pub(crate) struct Compiled {
    /// The method's own address, and the address of its code's first byte.
    pub at: u64,
    pub code: u64,
    pub method: u64,
}

impl Compiled {
    /// The methods at this place, innermost first. `None`: the method has no name.
    pub fn functions(&self, memory: &dyn Memory, layout: &Layout, place: u64) -> Option<Vec<Function>> {
        let offset = place.checked_sub(self.code)?;
        let scopes = self.scopes(memory, layout, offset).filter(|scopes| !scopes.is_empty());
        let of_scopes = scopes.and_then(|scopes| {
            let functions = scopes.into_iter().map(|(method, at)| function(memory, layout, method, at));
            functions.collect::<Option<Vec<_>>>()
        });
        let mut functions = match of_scopes {
            Some(functions) => functions,
            None => vec![function(memory, layout, self.method, None)?],
        };
        functions.last_mut()?.offset = Some(offset);
        Some(functions)
    }

    /// The methods and byte codes at this distance from the code's start, innermost first.
    fn scopes(&self, memory: &dyn Memory, layout: &Layout, offset: u64) -> Option<Vec<(u64, Option<u64>)>> {
        let places = Places::of(memory, layout, self.at)?;
        let (described, mut at) = places.scope_at(memory, layout, offset)?;
        // A call of the virtual machine that needs no description has none: those of others are not for it.
        if described != offset + 1 && self.is_end_of_call(memory, offset) {
            return None;
        }
        let is_without_zero = layout.version(memory)? >= WITHOUT_ZERO;
        let mut scopes = Vec::new();
        // 0: there is no further one.
        while at != 0 {
            if scopes.len() == MOST_SCOPES {
                return None;
            }
            let stream = bytes(memory, places.scopes.checked_add(at)?, SCOPE_BYTES, SCOPE_BYTES)?;
            let mut numbers = Numbers { stream: &stream, is_without_zero };
            let (sender, method, byte_code) = (numbers.next()?, numbers.next()?, numbers.next()?);
            let method = u64::from(method.checked_sub(1)?);
            let method = word(memory, places.metadata.checked_add(method.checked_mul(8)?)?)?;
            // A byte code before the first one is the call itself.
            scopes.push((method, u64::from(byte_code).checked_sub(1)));
            at = u64::from(sender);
        }
        // The last one is the compiled method itself.
        scopes.last().is_none_or(|(method, _)| *method == self.method).then_some(scopes)
    }

    /// Whether an instruction that calls may end with the byte at this distance from the code's start.
    fn is_end_of_call(&self, memory: &dyn Memory, offset: u64) -> bool {
        let mut last = [0; 5];
        let start = offset.checked_sub(last.len() as u64 - 1);
        start.is_some_and(|start| memory.read(self.code + start, &mut last))
            // call rel32; call *%reg
            && (last[0] == 0xe8 || last[3] == 0xff && last[4] & 0xf8 == 0xd0)
    }
}

fn function(memory: &dyn Memory, layout: &Layout, method: u64, byte_code: Option<u64>) -> Option<Function> {
    let line = |byte_code| line(memory, layout, method, byte_code);
    let source = names::file(memory, layout, method).map(|file| (file, byte_code.and_then(line)));
    Some(Function { name: names::method(memory, layout, method)?, offset: None, source })
}

/// Where a compiled method has its places, its scopes, and the methods to which these refer.
struct Places {
    places: u64,
    places_end: u64,
    scopes: u64,
    metadata: u64,
}

impl Places {
    fn of(memory: &dyn Memory, layout: &Layout, at: u64) -> Option<Places> {
        let read = |of, name| layout.field(of, name)?.read(memory, at);
        let from = |base: u64, distance: Option<u64>| base.checked_add(distance?);
        let places = read("nmethod", "_scopes_pcs_offset");
        // JDK 23 and later have what does not change outside of the code cache, JDK 25 and later also what does.
        if let Some(immutable) = read("nmethod", "_immutable_data") {
            let metadata = match read("CodeBlob", "_mutable_data") {
                Some(mutable) => from(mutable, read("CodeBlob", "_relocation_size"))?,
                None => {
                    from(from(at, read("CodeBlob", "_data_offset"))?, read("nmethod", "_metadata_offset"))?
                }
            };
            let scopes = from(immutable, read("nmethod", "_scopes_data_offset"))?;
            return Some(Places { places: from(immutable, places)?, places_end: scopes, scopes, metadata });
        }
        Some(Places {
            places: from(at, places)?,
            places_end: from(at, read("nmethod", "_dependencies_offset"))?,
            scopes: read("CompiledMethod", "_scopes_data_begin")
                .or_else(|| read("nmethod", "_scopes_data_begin"))?,
            metadata: from(at, read("nmethod", "_metadata_offset"))?,
        })
    }

    /// The first described place behind this distance from the code's start, and its innermost scope: a call is described
    /// by the address to which it returns.
    fn scope_at(&self, memory: &dyn Memory, layout: &Layout, offset: u64) -> Option<(u64, u64)> {
        let size = layout.size("PcDesc").filter(|&size| (8..=64).contains(&size))?;
        let len = self.places_end.checked_sub(self.places)?;
        let places = bytes(memory, self.places, len - len % size, MOST_PLACES * size)?;
        let (at, scope) =
            (layout.field("PcDesc", "_pc_offset")?, layout.field("PcDesc", "_scope_decode_offset")?);
        // The first one lies before the code, the last one behind it.
        let is_behind =
            |place: &&[u8]| at.of(place).is_some_and(|at| at.cast_signed() > offset.cast_signed());
        let found = places.chunks(size as usize).find(is_behind)?;
        Some((at.of(found)?, scope.of(found)?))
    }
}

/// Numbers of one to five bytes, the lower ones first. A byte below `256 - 64` ends its number.
struct Numbers<'s> {
    stream: &'s [u8],
    is_without_zero: bool,
}

impl Numbers<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.stream.split_first()?;
        self.stream = rest;
        Some(byte)
    }

    fn next(&mut self) -> Option<u32> {
        const LAST: u8 = 192;
        let excluded = u8::from(self.is_without_zero);
        let mut number = 0u32;
        for index in 0..5 {
            let byte = self.byte()?;
            number = number.wrapping_add(u32::from(byte.checked_sub(excluded)?) << (6 * index));
            if byte < LAST {
                break;
            }
        }
        Some(number)
    }

    fn next_signed(&mut self) -> Option<i64> {
        let number = self.next()?;
        Some(i64::from((number >> 1).cast_signed() ^ -(number & 1).cast_signed()))
    }
}

/// The line of a byte code.
fn line(memory: &dyn Memory, layout: &Layout, method: u64, byte_code: u64) -> Option<u32> {
    let method = layout.field("Method", "_constMethod")?.read(memory, method)?;
    let read = |field: Option<Field>| field?.read(memory, method);
    let flags =
        layout.field("ConstMethod", "_flags").or_else(|| layout.field("ConstMethod", "_flags._flags"));
    if read(flags)? & HAS_LINES == 0 {
        return None;
    }
    let codes = method.checked_add(layout.size("ConstMethod")?)?;
    let table = codes.checked_add(read(layout.field("ConstMethod", "_code_size"))?)?;
    // The whole block of the method ends at its size in words, not far behind the table.
    let end = method.checked_add(read(layout.field("ConstMethod", "_constMethod_size"))?.checked_mul(8)?)?;
    let stream = bytes(memory, table, end.checked_sub(table)?, MOST_LINE_TABLE as u64)?;
    let is_without_zero = layout.version(memory)? >= WITHOUT_ZERO;
    line_in(&mut Numbers { stream: &stream, is_without_zero }, byte_code)
}

/// The last line that starts at or before a byte code.
fn line_in(table: &mut Numbers<'_>, byte_code: u64) -> Option<u32> {
    let (mut at, mut line) = (0i64, 0i64);
    let mut best: Option<(i64, i64)> = None;
    loop {
        match table.byte()? {
            0 => break,
            0xff => (at, line) = (at + table.next_signed()?, line + table.next_signed()?),
            both => (at, line) = (at + i64::from(both >> 3), line + i64::from(both & 7)),
        }
        if at <= byte_code.cast_signed() && best.is_none_or(|(before, _)| before <= at) {
            best = Some((at, line));
        }
    }
    u32::try_from(best?.1).ok().filter(|&line| line > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(stream: &[u8], is_without_zero: bool) -> Vec<u32> {
        let mut numbers = Numbers { stream, is_without_zero };
        std::iter::from_fn(|| numbers.next()).collect()
    }

    /// By the formula in `src/hotspot/share/utilities/unsigned5.hpp`: the sum of (byte - X) * 64^i.
    #[test]
    fn numbers_of_both_forms() {
        assert_eq!(
            numbers(&[0, 191, 192, 0, 192, 3, 255, 255, 255, 255, 255], false),
            [
                0,
                191,
                192,
                192 + 3 * 64,
                255u32.wrapping_mul(1 + (1 << 6) + (1 << 12) + (1 << 18)).wrapping_add(255 << 24),
            ]
        );
        assert_eq!(numbers(&[1, 191, 192, 1, 192, 4, 7], true), [0, 190, 191, 191 + 3 * 64, 6]);
        assert_eq!(numbers(&[192], false), [], "cut");
        assert_eq!(numbers(&[0], true), [], "no number has this byte");
        let mut signed = Numbers { stream: &[0, 1, 2, 3], is_without_zero: false };
        assert_eq!([(); 4].map(|()| signed.next_signed()), [Some(0), Some(-1), Some(1), Some(-2)]);
    }

    #[test]
    fn line_of_a_byte_code() {
        // Byte codes 0, 3, 10 on lines 7, 9, and 8, which is lower.
        let table = [7, 3 << 3 | 2, 0xff, 14, 1, 0];
        let line = |byte_code| line_in(&mut Numbers { stream: &table, is_without_zero: false }, byte_code);
        let found = [0, 2, 3, 9, 10, 500].map(line);
        assert_eq!(found, [7, 7, 9, 9, 8, 8].map(Some));
        assert_eq!(line_in(&mut Numbers { stream: &table[..3], is_without_zero: false }, 1), None, "cut");
        assert_eq!(line_in(&mut Numbers { stream: &[0], is_without_zero: false }, 1), None);
    }
}
