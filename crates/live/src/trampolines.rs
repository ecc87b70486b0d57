// SPDX-License-Identifier: Apache-2.0
//! The code that CPython makes so that profilers see its functions: `-X perf`, `PYTHONPERFSUPPORT`,
//! `sys.activate_stack_trampoline()`.
//!
//! Each function has a copy of one trampoline, which calls the interpreter. Copies lie behind each other in arenas of
//! 64 KiB. The names are in `/tmp/perf-PID.map`. On x86-64 the trampoline of CPython 3.12 and 3.13 has a frame without a
//! frame pointer, so that its rules are needed to find its caller (Python/asm_trampoline.S, Python/perf_trampoline.c).

use wallprof_hotspot::{CodeSpan, Memory};
use wallprof_meaning::python;
use wallprof_unwind::{CompiledCode, Rule, Table};

use crate::java::ReadCode;

/// An arena, bytes: 16 pages. Adjacent ones are one mapping.
const ARENA: u64 = 16 * 4096;
/// A process with more has lost count of its functions.
const MOST_ARENAS: usize = 256;
/// `endbr64`, with which the trampoline begins where the compiler asks for it.
const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
/// sub $8, %rsp; call *%rcx; add $8, %rsp; ret
const TRAMPOLINE: &[u8] = &[0x48, 0x83, 0xec, 0x08, 0xff, 0xd1, 0x48, 0x83, 0xc4, 0x08, 0xc3];
/// The offset behind its call.
const CALLED: u64 = 6;
/// From sp at the call to the CFA.
const FRAME_BYTES: i32 = 16;
/// What may lie between copies, so that they are aligned.
const MOST_PADDING: usize = 64;

/// Whether a file is the interpreter, or the library that holds it.
pub(crate) fn is_interpreter(path: &str) -> bool {
    python::is_machine(path.strip_suffix(" (deleted)").unwrap_or(path))
}

/// The trampolines in these mappings. `None`: there are none.
pub(crate) fn read(memory: &dyn Memory, mappings: &[(u64, u64)]) -> Option<ReadCode> {
    let mut spans = Vec::new();
    let mut rules: Vec<(u64, u64, Rule)> = Vec::new();
    let mut bytes = vec![0; ARENA as usize];
    let arenas = mappings
        .iter()
        .flat_map(|&(start, end)| (start..end).step_by(ARENA as usize).map(move |at| (at, end)));
    for (start, end) in arenas.take(MOST_ARENAS) {
        let end = end.min(start + ARENA);
        let arena = &mut bytes[..(end - start) as usize];
        // Most other code is not looked at further.
        let head = arena.len().min(ENDBR64.len() + TRAMPOLINE.len());
        if memory.read(start, &mut arena[..head])
            && begin_of(&arena[..head]).is_some()
            && memory.read(start, arena)
            && add_rules(start, arena, &mut rules)
        {
            spans.push(CodeSpan { start, end, reserved_end: end });
        }
    }
    let table = Table::from_rules(rules)?;
    (!spans.is_empty()).then_some(ReadCode { spans, keeps_fp: true, table })
}

/// The offset of its first instruction, where a trampoline begins here.
fn begin_of(code: &[u8]) -> Option<usize> {
    let at = if code.starts_with(ENDBR64) { ENDBR64.len() } else { 0 };
    code[at..].starts_with(TRAMPOLINE).then_some(at)
}

/// Adds the rules of the copies in an arena. False: there is no second copy after the first one.
fn add_rules(start: u64, arena: &[u8], rules: &mut Vec<(u64, u64, Rule)>) -> bool {
    let Some(begin) = begin_of(arena) else { return false };
    let length = begin + TRAMPOLINE.len();
    let is_copy = |at: usize| arena.get(at..).is_some_and(|code| begin_of(code) == Some(begin));
    let Some(step) = (length..=length + MOST_PADDING).find(|&at| is_copy(at)) else { return false };
    let call = begin as u64 + CALLED;
    let code = CompiledCode {
        address: 0,
        code: &arena[..length],
        frame_bytes: FRAME_BYTES,
        entries: &[],
        calls: &[call],
    };
    let mut of_one = Vec::new();
    code.rules(|from, to, rule| of_one.push((from, to, rule)));
    for at in (0..arena.len()).step_by(step).take_while(|&at| is_copy(at)) {
        let at = start + at as u64;
        rules.extend(of_one.iter().map(|&(from, to, rule)| (at + from, at + to, rule)));
    }
    true
}

#[cfg(test)]
mod tests {
    use wallprof_unwind::RuleKind;

    use super::*;

    /// A mapping of a process.
    struct Mapped(u64, Vec<u8>);

    impl Memory for Mapped {
        fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
            let from = address.checked_sub(self.0).map(|from| from as usize);
            let found = from.and_then(|from| self.1.get(from..from + buffer.len()));
            found.map(|bytes| buffer.copy_from_slice(bytes)).is_some()
        }
    }

    const AT: u64 = 0x7f2d_076b_a000;

    /// An arena full of copies, each `step` bytes after the last one.
    fn arena(copy: &[u8], step: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            [copy, &vec![0; step - copy.len()]].concat().into_iter().cycle().take(ARENA as usize).collect();
        // The last one is not whole.
        let whole = bytes.len() / step * step;
        bytes[whole..].fill(0);
        bytes
    }

    fn rule_at(code: &ReadCode, address: u64) -> (RuleKind, i32) {
        let rule = code.table.rule_at(address);
        (rule.kind, rule.cfa_offset)
    }

    #[test]
    fn each_copy_has_the_frame_of_its_instructions() {
        let with_endbr = [ENDBR64, TRAMPOLINE].concat();
        for (copy, step) in [(TRAMPOLINE, 11), (TRAMPOLINE, 16), (&with_endbr, 16)] {
            let memory = Mapped(AT, arena(copy, step));
            let code = read(&memory, &[(AT, AT + ARENA)]).expect("trampolines");
            assert_eq!(code.spans, [CodeSpan { start: AT, end: AT + ARENA, reserved_end: AT + ARENA }]);
            let begin = (copy.len() - TRAMPOLINE.len()) as u64;
            for number in [0, 1, 1_000, ARENA / step as u64 - 1] {
                let at = AT + number * step as u64 + begin;
                let frames = [0, 4, 5, 6, 10].map(|offset| rule_at(&code, at + offset));
                let (small, whole) = ((RuleKind::Sp, 8), (RuleKind::Sp, 16));
                assert_eq!(frames, [small, whole, whole, whole, small], "copy {number} of {step} bytes");
            }
        }
    }

    #[test]
    fn arenas_of_one_mapping_begin_anew_and_other_code_has_no_rules() {
        let other = vec![0xcc; ARENA as usize];
        let bytes = [arena(TRAMPOLINE, 11), arena(TRAMPOLINE, 11), other].concat();
        let memory = Mapped(AT, bytes);
        let code = read(&memory, &[(AT, AT + 3 * ARENA)]).expect("trampolines");
        assert_eq!(code.spans.len(), 2);
        assert_eq!(rule_at(&code, AT + ARENA + 6), (RuleKind::Sp, 16));
        assert!(read(&memory, &[(AT + 2 * ARENA, AT + 3 * ARENA)]).is_none(), "other code");
        assert!(read(&memory, &[(AT + 4 * ARENA, AT + 5 * ARENA)]).is_none(), "it cannot be read");
        assert!(read(&memory, &[]).is_none());
        let alone = Mapped(AT, [TRAMPOLINE, &[0xcc; 200]].concat());
        assert!(read(&alone, &[(AT, AT + 200)]).is_none(), "one function that looks like it");
    }

    #[test]
    fn interpreters_are_known_by_their_names() {
        for (path, expected) in [
            ("/usr/lib/x86_64-linux-gnu/libpython3.12.so.1.0", true),
            ("/usr/bin/python3.13", true),
            ("/opt/venv/bin/python3 (deleted)", true),
            ("/usr/lib/libpython2.7.so.1.0", false),
            ("/usr/bin/node", false),
            ("", false),
        ] {
            assert_eq!(is_interpreter(path), expected, "{path}");
        }
    }
}
