// SPDX-License-Identifier: Apache-2.0
//! Recognises the few DWARF expressions that compilers and linkers write into unwind entries. Nothing is
//! evaluated: an expression has one of these shapes or is refused.

use crate::bytes::Bytes;

const DEREF: u8 = 0x06;
const CONST1U: u8 = 0x08;
const AND: u8 = 0x1a;
const MINUS: u8 = 0x1c;
const PLUS: u8 = 0x22;
const PLUS_UCONST: u8 = 0x23;
const SHL: u8 = 0x24;
const GE: u8 = 0x2a;
const LIT0: u8 = 0x30;
const LIT31: u8 = 0x4f;
const BREG0: u8 = 0x70;
const BREG31: u8 = 0x8f;

/// The instruction pointer's number on x86_64.
const RIP: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    /// register + offset
    Sum { register: u64, offset: i64 },
    /// \*(register + offset) + addend: a stack pointer saved in the frame.
    Loaded { register: u64, offset: i64, addend: i64 },
    /// register + offset + ((rip & 15) >= threshold) * 8: the code of a PLT entry pushes a word half-way.
    Plt { register: u64, offset: i64, threshold: u8 },
}

impl Expression {
    pub(crate) fn recognise(expression: &[u8]) -> Option<Expression> {
        let mut bytes = Bytes::new(expression);
        let (register, offset) = register_plus(&mut bytes)?;
        let rest = &expression[bytes.position()..];
        if let Some(threshold) = plt_threshold(rest) {
            return Some(Expression::Plt { register, offset, threshold });
        }
        let offset = offset.checked_add(added(&mut bytes)?)?;
        if bytes.is_empty() {
            return Some(Expression::Sum { register, offset });
        }
        if bytes.u8()? != DEREF {
            return None;
        }
        let addend = added(&mut bytes)?;
        bytes.is_empty().then_some(Expression::Loaded { register, offset, addend })
    }
}

fn register_plus(bytes: &mut Bytes) -> Option<(u64, i64)> {
    match bytes.u8()? {
        operation @ BREG0..=BREG31 => Some(((operation - BREG0).into(), bytes.sleb()?)),
        _ => None,
    }
}

/// The sum of constants up to the next other operation.
fn added(bytes: &mut Bytes) -> Option<i64> {
    let mut sum = 0i64;
    while let Some((term, rest)) = term(*bytes) {
        sum = sum.checked_add(term)?;
        *bytes = rest;
    }
    Some(sum)
}

fn term(mut bytes: Bytes) -> Option<(i64, Bytes)> {
    let value = match bytes.u8()? {
        PLUS_UCONST => return Some((i64::try_from(bytes.uleb()?).ok()?, bytes)),
        literal @ LIT0..=LIT31 => i64::from(literal - LIT0),
        CONST1U => bytes.u8()?.into(),
        _ => return None,
    };
    match bytes.u8()? {
        PLUS => Some((value, bytes)),
        MINUS => Some((-value, bytes)),
        _ => None,
    }
}

/// `breg16 0; lit15; and; lit THRESHOLD; ge; lit3; shl; plus`
fn plt_threshold(rest: &[u8]) -> Option<u8> {
    let mut bytes = Bytes::new(rest);
    if register_plus(&mut bytes)? != (RIP, 0) {
        return None;
    }
    match rest.get(bytes.position()..)? {
        &[0x3f, AND, threshold @ LIT0..=0x3f, GE, 0x33, SHL, PLUS] => Some(threshold - LIT0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_plt() {
        // As ld writes them for a lazy PLT. The threshold is the end of the pushing instruction.
        for threshold in [11, 10, 9, 6] {
            let bytes = [0x77, 8, 0x80, 0, 0x3f, 0x1a, LIT0 + threshold, 0x2a, 0x33, 0x24, 0x22];
            assert_eq!(
                Expression::recognise(&bytes),
                Some(Expression::Plt { register: 7, offset: 8, threshold })
            );
            assert_eq!(Expression::recognise(&bytes[..10]), None);
        }
    }

    #[test]
    fn places_in_the_frame() {
        assert_eq!(Expression::recognise(&[0x76, 0x58]), Some(Expression::Sum { register: 6, offset: -40 }));
        assert_eq!(
            Expression::recognise(&[0x76, 0x78, 0x06]),
            Some(Expression::Loaded { register: 6, offset: -8, addend: 0 })
        );
        // OpenSSL's: the caller's stack pointer is saved in the frame.
        for addition in [&[0x23, 8][..], &[0x38, 0x22], &[0x08, 8, 0x22], &[0x3f, 0x22, 0x37, 0x1c]] {
            let bytes = [&[0x77, 0xa8, 1, 0x06], addition].concat();
            assert_eq!(
                Expression::recognise(&bytes),
                Some(Expression::Loaded { register: 7, offset: 168, addend: 8 })
            );
        }
    }

    #[test]
    fn other_expressions_are_refused() {
        for bytes in [&[][..], &[0x06], &[0x76], &[0x76, 0, 0x06, 0x06], &[0x76, 0, 0x96], &[0x77, 0, 0x38]] {
            assert_eq!(Expression::recognise(bytes), None, "{bytes:x?}");
        }
    }
}
