// SPDX-License-Identifier: Apache-2.0
//! The format between parent and reader: little-endian integers, and texts behind their length.
//!
//! The parent's half treats every byte as foreign, because a file may have taken the reader over: lengths and
//! counts are compared with limits before anything is kept, and an answer must end where its contents end.

use wallprof_model::SymbolLine;

use crate::debug_parser::{Answer, DebugFunction};
use crate::elf::{ElfFacts, Segment};

/// Addresses in one request.
pub(crate) const MAX_ADDRESSES: usize = 128;
/// Bytes of one answer: far more than 128 addresses with a hundred inlined functions each take.
pub(crate) const MAX_ANSWER: usize = 16 << 20;
/// Functions at one address, inlined ones included.
const MAX_LINES: usize = 1024;
/// As many program headers as are read of any file.
const MAX_SEGMENTS: usize = 1024;
/// Bytes of one name or path.
const MAX_TEXT: usize = 32 << 10;

const HAS_SYMBOL: u8 = 1;
const HAS_OFFSET: u8 = 2;
const HAS_FILE: u8 = 4;
const HAS_LINE: u8 = 8;
const IS_INLINED: u8 = 16;

/// The task of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub scope: Scope,
    pub debug_limit: u64,
    pub unpacked_limit: u64,
    pub copy_limit: u64,
}

/// What a reader looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    DebugInformation,
    /// Those of symbol tables and PLT stubs, too.
    AllNames,
    /// Build id and segments. There is one answer, and no request.
    Headers,
}

/// Each scope at its number.
const SCOPES: [Scope; 3] = [Scope::DebugInformation, Scope::AllNames, Scope::Headers];

impl Setup {
    pub(crate) const LEN: usize = 25;

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.scope as u8];
        for limit in [self.debug_limit, self.unpacked_limit, self.copy_limit] {
            bytes.extend(limit.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let mut fields = Fields { rest: bytes };
        let scope = *SCOPES.get(usize::from(fields.byte()?))?;
        let mut limit = || fields.long();
        Some(Setup { scope, debug_limit: limit()?, unpacked_limit: limit()?, copy_limit: limit()? })
    }
}

/// A count and so many addresses.
pub(crate) fn encode_addresses(addresses: &[u64]) -> Vec<u8> {
    let count = (addresses.len() as u32).to_le_bytes();
    count.into_iter().chain(addresses.iter().flat_map(|address| address.to_le_bytes())).collect()
}

/// An answer behind its length.
pub(crate) fn encode_answer(answer: &Answer) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.push(answer.is_damaged.into());
    for function in &answer.functions {
        bytes.push(function.is_some().into());
        if let Some(function) = function {
            encode_function(function, &mut bytes);
        }
    }
    if bytes.len() - 4 > MAX_ANSWER {
        let functions = answer.functions.iter().map(|_| None).collect();
        return encode_answer(&Answer { functions, is_damaged: true });
    }
    let len = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes
}

fn encode_function(function: &DebugFunction, bytes: &mut Vec<u8>) {
    // The last line is the function that others were inlined into: the innermost ones are left out.
    let lines = &function.lines[function.lines.len().saturating_sub(MAX_LINES)..];
    bytes.extend(function.start.to_le_bytes());
    bytes.push(function.sized.into());
    bytes.extend((lines.len() as u16).to_le_bytes());
    for line in lines {
        let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
        bytes.push(
            flag(line.symbol.is_some(), HAS_SYMBOL)
                | flag(line.offset.is_some(), HAS_OFFSET)
                | flag(line.file.is_some(), HAS_FILE)
                | flag(line.line.is_some(), HAS_LINE)
                | flag(line.inlined, IS_INLINED),
        );
        encode_text(line.symbol.as_deref(), bytes);
        bytes.extend(line.offset.iter().flat_map(|offset| offset.to_le_bytes()));
        encode_text(line.file.as_deref(), bytes);
        bytes.extend(line.line.iter().flat_map(|line| line.to_le_bytes()));
    }
}

fn encode_text(text: Option<&str>, bytes: &mut Vec<u8>) {
    let Some(text) = text else { return };
    let end = (0..=text.len().min(MAX_TEXT)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    let text = &text[..end];
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// The answer to `count` addresses, without its length; `None` for bytes that are no such answer.
pub(crate) fn decode_answer(bytes: &[u8], count: usize) -> Option<Answer> {
    let mut fields = Fields { rest: bytes };
    let is_damaged = fields.flag()?;
    let mut functions = Vec::new();
    for _ in 0..count {
        let function = if fields.flag()? { Some(fields.function()?) } else { None };
        functions.push(function);
    }
    fields.rest.is_empty().then_some(Answer { functions, is_damaged })
}

/// Headers behind their length; no bytes where a file has none.
pub(crate) fn encode_headers(facts: Option<&ElfFacts>) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    if let Some(facts) = facts {
        let build_id = facts.build_id.as_deref().unwrap_or_default();
        bytes.push(build_id.len() as u8);
        bytes.extend(build_id);
        bytes.extend((facts.segments.len() as u16).to_le_bytes());
        for segment in &facts.segments {
            for field in [segment.offset, segment.file_size, segment.address] {
                bytes.extend(field.to_le_bytes());
            }
            bytes.push(segment.executable.into());
        }
    }
    let len = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// Headers without their length.
pub(crate) fn decode_headers(bytes: &[u8]) -> Option<ElfFacts> {
    let mut fields = Fields { rest: bytes };
    let len = usize::from(fields.byte()?);
    let (build_id, rest) = fields.rest.split_at_checked(len)?;
    fields.rest = rest;
    let mut segments = Vec::new();
    for _ in 0..fields.count().filter(|count| *count <= MAX_SEGMENTS)? {
        segments.push(Segment {
            offset: fields.long()?,
            file_size: fields.long()?,
            address: fields.long()?,
            executable: fields.flag()?,
        });
    }
    let build_id = (len > 0).then(|| build_id.to_owned());
    fields.rest.is_empty().then_some(ElfFacts { build_id, segments })
}

/// Fields that are read one after the other.
struct Fields<'a> {
    rest: &'a [u8],
}

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Option<bool> {
        self.byte().filter(|&byte| byte <= 1).map(|byte| byte == 1)
    }

    fn long(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn count(&mut self) -> Option<usize> {
        self.array().map(|bytes| u16::from_le_bytes(bytes).into())
    }

    fn text(&mut self) -> Option<String> {
        let len = self.count().filter(|&len| len <= MAX_TEXT)?;
        let (text, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(str::from_utf8(text).ok()?.to_owned())
    }

    fn function(&mut self) -> Option<DebugFunction> {
        let (start, sized) = (self.long()?, self.flag()?);
        let count = self.count().filter(|count| (1..=MAX_LINES).contains(count))?;
        let mut lines = Vec::new();
        for _ in 0..count {
            lines.push(self.line()?);
        }
        Some(DebugFunction { lines, start, sized })
    }

    fn line(&mut self) -> Option<SymbolLine> {
        let flags = self.byte().filter(|&flags| flags < 2 * IS_INLINED)?;
        let has = |flag| flags & flag != 0;
        Some(SymbolLine {
            symbol: if has(HAS_SYMBOL) { Some(self.text()?) } else { None },
            offset: if has(HAS_OFFSET) { Some(self.long()?) } else { None },
            file: if has(HAS_FILE) { Some(self.text()?) } else { None },
            line: if has(HAS_LINE) { Some(u32::from_le_bytes(self.array()?)) } else { None },
            inlined: has(IS_INLINED),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(symbol: &str) -> SymbolLine {
        SymbolLine { symbol: Some(symbol.into()), offset: Some(7), line: Some(3), ..SymbolLine::default() }
    }

    fn answer(lines: Vec<SymbolLine>) -> Answer {
        let found = DebugFunction { lines, start: 0x1000, sized: true };
        Answer { functions: vec![None, Some(found)], is_damaged: false }
    }

    fn whole() -> Answer {
        let inlined = SymbolLine { inlined: true, file: Some("/src/a.c".into()), ..line("inner") };
        answer(vec![inlined, line("outer"), SymbolLine::default()])
    }

    #[test]
    fn answer_survives_its_encoding() {
        let bytes = encode_answer(&whole());
        assert_eq!(bytes[..4], (bytes.len() as u32 - 4).to_le_bytes());
        assert_eq!(decode_answer(&bytes[4..], 2), Some(whole()));
        let none = Answer { functions: vec![None; 128], is_damaged: true };
        assert_eq!(decode_answer(&encode_answer(&none)[4..], 128), Some(none));
    }

    #[test]
    fn setup_survives_its_encoding() {
        for scope in SCOPES {
            let setup = Setup { scope, debug_limit: 1, unpacked_limit: u64::MAX, copy_limit: 3 };
            let bytes: [u8; Setup::LEN] = setup.encode().try_into().expect("its length");
            assert_eq!(Setup::decode(&bytes), Some(setup));
        }
        assert_eq!(Setup::decode(&[9; Setup::LEN]), None);
    }

    #[test]
    fn headers_survive_their_encoding_and_others_are_refused() {
        let segment = Segment { offset: 1, file_size: 2, address: u64::MAX, executable: true };
        let facts = ElfFacts { build_id: Some(vec![7; 20]), segments: vec![segment; 3] };
        for facts in [facts.clone(), ElfFacts { build_id: None, ..facts }, ElfFacts::default()] {
            let bytes = encode_headers(Some(&facts));
            assert_eq!(bytes[..4], (bytes.len() as u32 - 4).to_le_bytes());
            assert_eq!(decode_headers(&bytes[4..]), Some(facts));
            assert_eq!(decode_headers(&[&bytes[4..], &[0]].concat()), None);
            assert!((4..bytes.len()).all(|len| decode_headers(&bytes[4..len]).is_none()));
        }
        assert_eq!(encode_headers(None), [0; 4]);
        assert_eq!(decode_headers(&[0, 0xff, 0xff]), None);
    }

    #[test]
    fn truncated_prolonged_and_miscounted_answers_are_refused() {
        let bytes = &encode_answer(&whole())[4..];
        for len in 0..bytes.len() {
            assert_eq!(decode_answer(&bytes[..len], 2), None, "cut to {len} bytes");
        }
        assert_eq!(decode_answer(&[bytes, &[0]].concat(), 2), None);
        assert_eq!([decode_answer(bytes, 1), decode_answer(bytes, 3)], [None, None]);
    }

    #[test]
    fn function_without_lines_and_texts_that_are_no_text_are_refused() {
        let mut bytes = encode_answer(&answer(vec![line("name")]))[4..].to_vec();
        let at = bytes.windows(4).position(|window| window == b"name").expect("the name");
        bytes[at] = 0xff;
        assert_eq!(decode_answer(&bytes, 2), None);
        assert_eq!(decode_answer(&encode_answer(&answer(vec![]))[4..], 2), None);
    }

    #[test]
    fn names_and_inlined_functions_beyond_the_limits_are_cut() {
        let deep = answer((0..5000).map(|number| line(&format!("f{number}"))).collect());
        let decoded = decode_answer(&encode_answer(&deep)[4..], 2).expect("an answer");
        let function = decoded.functions[1].as_ref().expect("a function");
        assert_eq!(function.lines.len(), MAX_LINES);
        assert_eq!(function.lines.last(), Some(&line("f4999")));
        let long = answer(vec![line(&"ä".repeat(MAX_TEXT))]);
        let decoded = decode_answer(&encode_answer(&long)[4..], 2).expect("an answer");
        let name = decoded.functions[1].as_ref().and_then(|function| function.lines[0].symbol.as_ref());
        assert_eq!(name.map(String::len), Some(MAX_TEXT));
    }

    #[test]
    fn answer_beyond_the_limit_is_damaged() {
        let lines: Vec<_> = (0..MAX_LINES).map(|_| line(&"x".repeat(MAX_TEXT))).collect();
        let decoded = decode_answer(&encode_answer(&answer(lines))[4..], 2);
        assert_eq!(decoded, Some(Answer { functions: vec![None, None], is_damaged: true }));
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer_within_the_limits_or_none(
            bytes in proptest::collection::vec(any::<u8>(), 0..256), count in 0usize..8,
        ) {
            let _ = decode_headers(&bytes);
            if let Some(answer) = decode_answer(&bytes, count) {
                prop_assert_eq!(answer.functions.len(), count);
            }
        }

        #[test]
        fn damaged_answers_never_panic(at in any::<prop::sample::Index>(), value in any::<u8>()) {
            let mut bytes = encode_answer(&whole())[4..].to_vec();
            let at = at.index(bytes.len());
            bytes[at] = value;
            if let Some(answer) = decode_answer(&bytes, 2) {
                prop_assert_eq!(&encode_answer(&answer)[4..], bytes.as_slice());
            }
        }
    }
}
