// SPDX-License-Identifier: Apache-2.0
//! perf's words for a branch: `call`, `tr end  syscall`, `hw int (x)` (`perf_sample__sprintf_flags` in perf's
//! sources).

/// The kind of a transfer of control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Call,
    Return,
    Jump,
    ConditionalJump,
    SystemCall,
    SystemReturn,
    SoftwareInterrupt,
    InterruptReturn,
    Interrupt,
    /// An interrupt, a fault or another transfer that no instruction causes.
    Async,
    TransactionAbort,
    GuestEntry,
    GuestExit,
}

/// The flags of one branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    /// Tracing starts with it.
    pub start: bool,
    /// Tracing ends with it.
    pub end: bool,
    /// `None`: only a start or an end of tracing.
    pub flow: Option<Flow>,
    /// The processor was in a transaction.
    pub in_transaction: bool,
}

const FLOWS: [(&[u8], Flow); 13] = [
    (b"call", Flow::Call),
    (b"return", Flow::Return),
    (b"jcc", Flow::ConditionalJump),
    (b"jmp", Flow::Jump),
    (b"syscall", Flow::SystemCall),
    (b"sysret", Flow::SystemReturn),
    (b"hw int", Flow::Interrupt),
    (b"int", Flow::SoftwareInterrupt),
    (b"iret", Flow::InterruptReturn),
    (b"async", Flow::Async),
    (b"tx abrt", Flow::TransactionAbort),
    (b"vmentry", Flow::GuestEntry),
    (b"vmexit", Flow::GuestExit),
];

impl Flags {
    /// The flags at the start of `text`, and the text behind them. `None` if there are none.
    pub(super) fn parse(text: &[u8]) -> Option<(Flags, &[u8])> {
        let mut flags = Flags::default();
        let mut rest = text.trim_ascii_start();
        loop {
            if let Some(after) = word(rest, b"tr strt") {
                flags.start = true;
                rest = after;
            } else if let Some(after) = word(rest, b"tr end") {
                flags.end = true;
                rest = after;
            } else if flags.flow.is_none()
                && let Some((flow, after)) = flow(rest)
            {
                flags.flow = Some(flow);
                rest = after;
            } else {
                break;
            }
        }
        if flags == Flags::default() {
            return None;
        }
        if rest.first() == Some(&b'(') {
            let end = memchr::memchr(b')', rest)?;
            flags.in_transaction = rest[1..end].contains(&b'x');
            rest = rest[end + 1..].trim_ascii_start();
        }
        Some((flags, rest))
    }
}

fn flow(text: &[u8]) -> Option<(Flow, &[u8])> {
    FLOWS.iter().find_map(|(name, flow)| Some((*flow, word(text, name)?)))
}

/// The text behind `name`, and behind a suffix that newer versions of perf add after a slash.
#[inline]
fn word<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    // The first letter differs for most words, so that most calls compare one byte.
    if text.first() != name.first() {
        return None;
    }
    let rest = text.strip_prefix(name)?;
    match rest.first() {
        Some(b' ') => Some(rest.trim_ascii_start()),
        Some(b'/') => {
            let end = memchr::memchr(b' ', rest)?;
            Some(rest[end..].trim_ascii_start())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<(Flags, &str)> {
        let (flags, rest) = Flags::parse(text.as_bytes())?;
        Some((flags, std::str::from_utf8(rest).unwrap()))
    }

    fn flow(flow: Flow) -> Flags {
        Flags { flow: Some(flow), ..Flags::default() }
    }

    #[test]
    fn all_words_of_perf_are_known() {
        for (name, expected) in FLOWS {
            let name = std::str::from_utf8(name).unwrap();
            assert_eq!(parsed(&format!("  {name}   401 main+0x1")), Some((flow(expected), "401 main+0x1")));
            let end = Flags { end: true, ..flow(expected) };
            assert_eq!(parsed(&format!("tr end  {name}   401 x")), Some((end, "401 x")));
            let start = Flags { start: true, ..flow(expected) };
            assert_eq!(parsed(&format!("tr strt {name}  0 x")), Some((start, "0 x")));
        }
    }

    #[test]
    fn starts_and_ends_need_no_branch() {
        let start = Flags { start: true, ..Flags::default() };
        assert_eq!(parsed("tr strt         0 [unknown]"), Some((start, "0 [unknown]")));
        assert_eq!(parsed("tr strt tr end  0 x"), Some((Flags { end: true, ..start }, "0 x")));
        assert_eq!(parsed("tr end  0 x"), Some((Flags { end: true, ..Flags::default() }, "0 x")));
    }

    #[test]
    fn suffixes_and_transactions_are_read() {
        assert_eq!(parsed("jcc/miss,not_taken/ 4 x"), Some((flow(Flow::ConditionalJump), "4 x")));
        let transaction = Flags { in_transaction: true, ..flow(Flow::Jump) };
        assert_eq!(parsed("jmp (x)     4 x"), Some((transaction, "4 x")));
        assert_eq!(parsed("jmp (xD)    4 x"), Some((transaction, "4 x")));
        assert_eq!(parsed("call (Dt)   4 x"), Some((flow(Flow::Call), "4 x")));
    }

    #[test]
    fn other_words_are_refused() {
        for text in ["", "calling 4", "4 x", "call", "psb offs: 0x10", "(x) 4", "jmp (x 4 y"] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }
}
