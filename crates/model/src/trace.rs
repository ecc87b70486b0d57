// SPDX-License-Identifier: Apache-2.0
//! The trace that a thread works for.

use std::fmt;

/// A trace and a span of it, as [W3C's Trace Context](https://www.w3.org/TR/trace-context/#trace-id) has them. Neither is
/// 0.
///
/// ```
/// use wallprof_model::TraceIds;
///
/// let ids = TraceIds::from_hex("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7").expect("valid");
/// assert_eq!(ids.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
/// assert_eq!(ids.span_id(), "00f067aa0ba902b7");
/// assert_eq!(TraceIds::from_hex("0", "00f067aa0ba902b7"), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceIds {
    trace: u128,
    span: u64,
}

const TRACE_DIGITS: usize = 32;
const SPAN_DIGITS: usize = 16;

impl TraceIds {
    /// From the bytes of the ids in their order. `None`: one of them is 0, which no trace has.
    pub fn from_bytes(trace: [u8; 16], span: [u8; 8]) -> Option<Self> {
        let (trace, span) = (u128::from_be_bytes(trace), u64::from_be_bytes(span));
        (trace != 0 && span != 0).then_some(TraceIds { trace, span })
    }

    /// From 32 and 16 hexadecimal digits. `None`: these are no ids.
    pub fn from_hex(trace: &str, span: &str) -> Option<Self> {
        let span = (span.len() == SPAN_DIGITS).then(|| u64::from_str_radix(span, 16).ok()).flatten()?;
        TraceIds::from_bytes(trace_from_hex(trace)?.to_be_bytes(), span.to_be_bytes())
    }

    /// 32 hexadecimal digits, in lower case.
    pub fn trace_id(&self) -> String {
        format!("{:0TRACE_DIGITS$x}", self.trace)
    }

    /// 16 hexadecimal digits, in lower case.
    pub fn span_id(&self) -> String {
        format!("{:0SPAN_DIGITS$x}", self.span)
    }
}

/// The number that 32 hexadecimal digits are; `None`: no id of a trace.
fn trace_from_hex(text: &str) -> Option<u128> {
    let is_hex = text.len() == TRACE_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten().filter(|id| *id != 0)
}

/// The id of a trace in its one form, 32 digits in lower case; `None`: this is no id of a trace.
pub fn trace_id_from_text(text: &str) -> Option<String> {
    trace_from_hex(text).map(|id| format!("{id:0TRACE_DIGITS$x}"))
}

impl fmt::Debug for TraceIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.trace_id(), self.span_id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_the_bytes_in_their_order() {
        let trace = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        let ids = TraceIds::from_bytes(trace, [0, 0, 0, 0, 0, 0, 0, 255]).expect("no zeros");
        assert_eq!(ids.trace_id(), "000102030405060708090a0b0c0d0e0f");
        assert_eq!(ids.span_id(), "00000000000000ff");
        assert_eq!(TraceIds::from_hex(&ids.trace_id(), &ids.span_id()), Some(ids));
        assert_eq!(TraceIds::from_bytes([0; 16], [1; 8]), None);
        assert_eq!(TraceIds::from_bytes([1; 16], [0; 8]), None);
    }

    #[test]
    fn text_that_is_no_id_is_refused() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(trace_id_from_text(&id.to_uppercase()).as_deref(), Some(id));
        for text in ["", "0", &id[1..], &format!("{id}0"), &"0".repeat(32), &format!("+{}", &id[1..]), "é"] {
            assert_eq!(trace_id_from_text(text), None, "{text}");
        }
    }
}
