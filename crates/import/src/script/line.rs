// SPDX-License-Identifier: Apache-2.0
//! One line of `perf script`'s output of a trace: a branch, an error of perf's decoder, a context switch, or
//! another line. Nothing is allocated; the fields borrow from the line.
//!
//! The fields and their order are those of `process_event` in perf's `builtin-script.c`:
//! `[comm] TID|PID/TID [[cpu]] time: [period] [event:] [flags] ip symbol [(dso)] => address symbol [(dso)]`.

use wallprof_intel_pt::{Departure, GapCause};

use super::flags::Flags;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    Branch(Head<'a>, Branch<'a>),
    /// A branch whose kind is not printed.
    Unflagged,
    /// A branch without its target.
    Untargeted,
    Error(TraceError),
    /// The thread left its CPU.
    Switch(Head<'a>, Departure),
    Other,
}

/// The part in front of the colon behind the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head<'a> {
    pub comm: &'a [u8],
    pub pid: Option<i32>,
    pub tid: i32,
    pub cpu: Option<u32>,
    pub ns: u64,
    /// Whether the time has fewer digits than nanoseconds need.
    pub coarse: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Branch<'a> {
    pub flags: Flags,
    pub from: Place<'a>,
    pub to: Place<'a>,
}

/// An address with its names. Empty texts are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place<'a> {
    pub address: u64,
    pub symbol: &'a [u8],
    pub offset: u64,
    pub module: &'a [u8],
}

/// perf could not decode a part of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TraceError {
    pub ns: Option<u64>,
    /// `None`: perf did not know.
    pub tid: Option<i32>,
    pub cpu: Option<u32>,
    pub cause: GapCause,
}

const ERROR: &[u8] = b"instruction trace error type ";
const ARROW: &[u8] = b" => ";
/// No function is that long. perf prints the last symbol before an address, however far away.
const LONGEST_FUNCTION: u64 = 1 << 24;

impl<'a> Line<'a> {
    pub(super) fn parse(line: &'a [u8]) -> Line<'a> {
        match Head::parse(line) {
            Some((head, rest)) => Line::parse_rest(head, rest),
            None => TraceError::parse(line).map_or(Line::Other, Line::Error),
        }
    }

    fn parse_rest(head: Head<'a>, rest: &'a [u8]) -> Line<'a> {
        let Some(arrow) = arrow(rest) else {
            return match departure(rest) {
                Some(departure) => Line::Switch(head, departure),
                None => untargeted(rest),
            };
        };
        let (front, to) = (&rest[..arrow], &rest[arrow + ARROW.len()..]);
        let Some((flags, from)) = flags(front) else { return Line::Unflagged };
        // perf's measurements of the code between two branches follow a tab.
        let to = memchr::memchr(b'\t', to).map_or(to, |tab| &to[..tab]);
        match (Place::parse(from), Place::parse(to)) {
            (Some(from), Some(to)) => Line::Branch(head, Branch { flags, from, to }),
            _ => Line::Other,
        }
    }
}

impl<'a> Head<'a> {
    /// The head, and the rest of the line. A thread's name may hold any character, so the time is the first
    /// one behind a thread's number.
    pub(super) fn parse(line: &'a [u8]) -> Option<(Head<'a>, &'a [u8])> {
        memchr::memchr_iter(b':', line)
            .find_map(|colon| Some((Head::before(&line[..colon])?, &line[colon + 1..])))
    }

    fn before(text: &'a [u8]) -> Option<Head<'a>> {
        if !text.last()?.is_ascii_digit() {
            return None;
        }
        let (rest, time) = split_last_word(text);
        let (ns, coarse) = time_from_text(time)?;
        let (mut before, mut word) = split_last_word(rest);
        // `-F +misc` has letters for the processor's mode in front of the time.
        if word.first().is_some_and(u8::is_ascii_uppercase) && word.iter().all(u8::is_ascii_uppercase) {
            (before, word) = split_last_word(before);
        }
        let (cpu, (comm, id)) = match word.strip_prefix(b"[").and_then(|word| word.strip_suffix(b"]")) {
            Some(cpu) => (Some(u32::try_from(number(cpu)?).ok()?), split_last_word(before)),
            None => (None, (before, word)),
        };
        let (pid, tid) = match memchr::memchr(b'/', id) {
            Some(slash) => (Some(number(&id[..slash])?), number(&id[slash + 1..])?),
            None => (None, number(id)?),
        };
        Some(Head { comm: comm.trim_ascii(), pid, tid, cpu, ns, coarse })
    }
}

/// A text without its last word, and that word.
pub(super) fn split_last_word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_end();
    let start = memchr::memrchr(b' ', text).map_or(0, |blank| blank + 1);
    text.split_at(start)
}

pub(super) fn number(text: &[u8]) -> Option<i32> {
    let (sign, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let value = decimal(digits)?;
    i32::try_from(value).ok().map(|value| sign * value)
}

pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    digits
        .iter()
        .try_fold(0, |value, digit| digit.is_ascii_digit().then(|| value * 10 + u64::from(digit - b'0')))
}

/// `12.345678901`: ns, and whether digits are missing.
fn time_from_text(text: &[u8]) -> Option<(u64, bool)> {
    let dot = memchr::memchr(b'.', text)?;
    let (seconds, fraction) = (decimal(&text[..dot])?, &text[dot + 1..]);
    let missing = 9usize.checked_sub(fraction.len())?;
    let ns = decimal(fraction)? * 10u64.pow(missing as u32);
    Some((seconds.checked_mul(1_000_000_000)?.checked_add(ns)?, missing > 0))
}

/// The position of the arrow between two places. An address follows it.
fn arrow(text: &[u8]) -> Option<usize> {
    // Setting up a searcher for the whole arrow costs more than reading the line.
    memchr::memchr_iter(b'=', text).filter_map(|at| at.checked_sub(1)).find(|&at| {
        let to = text[at..].strip_prefix(ARROW).unwrap_or_default().trim_ascii_start();
        to.first().is_some_and(u8::is_ascii_hexdigit)
    })
}

/// Classifies a line without an arrow. Samples of other events have flags, too.
fn untargeted<'a>(text: &[u8]) -> Line<'a> {
    const BRANCHES: &[u8] = b"branches";
    let words = text.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let mut events = words.take(3).filter(|word| word.ends_with(b":"));
    let is_branches = events.next().map(|event| event.starts_with(BRANCHES));
    match flags(text) {
        Some((_, from)) if is_branches != Some(false) && Place::parse(from).is_some() => Line::Untargeted,
        None if is_branches == Some(true) => Line::Unflagged,
        _ => Line::Other,
    }
}

/// The flags, and the rest. A period and the event's name may precede them.
fn flags(text: &[u8]) -> Option<(Flags, &[u8])> {
    let mut rest = text.trim_ascii_start();
    for _ in 0..3 {
        if let Some(found) = Flags::parse(rest) {
            return Some(found);
        }
        let end = memchr::memchr(b' ', rest)?;
        let word = &rest[..end];
        if !word.ends_with(b":") && !word.iter().all(u8::is_ascii_digit) {
            return None;
        }
        rest = rest[end..].trim_ascii_start();
    }
    None
}

impl<'a> Place<'a> {
    fn parse(text: &'a [u8]) -> Option<Place<'a>> {
        let text = text.trim_ascii();
        let end = memchr::memchr(b' ', text).unwrap_or(text.len());
        let address = hexadecimal(&text[..end])?;
        let name = text[end..].trim_ascii_start();
        let Some((symbol, offset, rest)) = split_offset(name) else {
            let rest = name.strip_prefix(b"[unknown]").unwrap_or_default();
            return Some(Place { address, module: module(rest), ..Place::default() });
        };
        let symbol = if offset < LONGEST_FUNCTION { symbol } else { b"" };
        Some(Place { address, symbol, offset, module: module(rest) })
    }
}

/// A symbol may hold any character, so it ends at the last offset. A module's path may look like an offset as
/// well, but has no blank or end behind it.
fn split_offset(text: &[u8]) -> Option<(&[u8], u64, &[u8])> {
    memchr::memrchr_iter(b'+', text).find_map(|plus| {
        let digits = text[plus + 1..].strip_prefix(b"0x")?;
        let end = memchr::memchr(b' ', digits).unwrap_or(digits.len());
        Some((&text[..plus], hexadecimal(&digits[..end])?, &digits[end..]))
    })
}

/// `(/usr/lib/libc.so.6)`; perf's `([unknown])` is empty.
fn module(text: &[u8]) -> &[u8] {
    let inside = text.trim_ascii().strip_prefix(b"(").and_then(|text| text.strip_suffix(b")"));
    inside.filter(|module| *module != b"[unknown]").unwrap_or_default()
}

pub(super) fn hexadecimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0, |value, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u64::from(digit))
    })
}

/// `PERF_RECORD_SWITCH OUT preempt` and similar lines. The next branch shows how the thread comes back.
fn departure(text: &[u8]) -> Option<Departure> {
    let rest = text.trim_ascii_start().strip_prefix(b"PERF_RECORD_SWITCH")?;
    let rest = rest.strip_prefix(b"_CPU_WIDE").unwrap_or(rest).trim_ascii_start();
    let rest = rest.strip_prefix(b"OUT")?.trim_ascii_start();
    Some(if rest.starts_with(b"preempt") { Departure::Preempted } else { Departure::Blocked })
}

impl TraceError {
    fn parse(line: &[u8]) -> Option<TraceError> {
        let rest = line.trim_ascii_start().strip_prefix(ERROR)?;
        let mut error = TraceError { ns: None, tid: None, cpu: None, cause: GapCause::LostData };
        let mut words = rest.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        while let Some(word) = words.next() {
            match word {
                b"time" => error.ns = time_from_text(words.next()?).map(|time| time.0),
                b"cpu" => error.cpu = number(words.next()?).and_then(|cpu| u32::try_from(cpu).ok()),
                b"tid" => error.tid = number(words.next()?).filter(|tid| *tid > 0),
                b"code" => {
                    let code = words.next()?;
                    error.cause = cause(number(code.strip_suffix(b":").unwrap_or(code))?);
                    break;
                }
                _ => {}
            }
        }
        Some(error)
    }
}

/// By `enum intel_pt_error_code` of perf's decoder.
fn cause(code: i32) -> GapCause {
    match code {
        3 => GapCause::BadPacket,
        5 => GapCause::NoCode,
        6 => GapCause::Mismatch,
        7 => GapCause::Overflow,
        10 => GapCause::Endless,
        _ => GapCause::LostData,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::flags::Flow;

    fn branch(line: &str) -> (Head<'_>, Branch<'_>) {
        match Line::parse(line.as_bytes()) {
            Line::Branch(head, branch) => (head, branch),
            other => panic!("{line}: {other:?}"),
        }
    }

    fn place(address: u64, symbol: &'static str, offset: u64, module: &'static str) -> Place<'static> {
        Place { address, symbol: symbol.as_bytes(), offset, module: module.as_bytes() }
    }

    const BRANCH: &str = "  call   401136 main+0x4 => 401020 puts@plt+0x0";

    #[test]
    fn all_forms_of_the_thread_are_read() {
        for (head, comm, pid, tid, cpu) in [
            ("12 3.000000005:", "", None, 12, None),
            ("   12/34     3.000000005:", "", Some(12), 34, None),
            ("   12/34    [003]    3.000000005:", "", Some(12), 34, Some(3)),
            ("server   34 [000]    3.000000005:", "server", None, 34, Some(0)),
            ("  a: 7 b [1]  12/34  3.000000005:", "a: 7 b [1]", Some(12), 34, None),
            ("   -1/-1      [001]  3.000000005:", "", Some(-1), -1, Some(1)),
            (":0 0 3.000000005:", ":0", None, 0, None),
            ("x 1.5: 7 [002] 3.000000005:", "x 1.5:", None, 7, Some(2)),
        ] {
            let line = format!("{head}{BRANCH}");
            let (found, _) = branch(&line);
            let expected = Head { comm: comm.as_bytes(), pid, tid, cpu, ns: 3_000_000_005, coarse: false };
            assert_eq!(found, expected, "{line}");
        }
    }

    #[test]
    fn times_in_microseconds_are_read() {
        let line = format!("1 7.000123:{BRANCH}");
        let (head, _) = branch(&line);
        assert_eq!((head.ns, head.coarse), (7_000_123_000, true));
    }

    #[test]
    fn fields_that_perf_prints_by_default_are_optional() {
        let expected = (place(0x40_1136, "main", 4, ""), place(0x40_1020, "puts@plt", 0, ""));
        for fields in ["", "  1 ", "  branches:uH: ", " 1   branches:uH: ", " 1 branches: "] {
            let line = format!("9 1.000000000:{fields}{BRANCH}\t IPC: 0.34 (10/29) ");
            let (_, branch) = branch(&line);
            assert_eq!((branch.from, branch.to), expected, "{line}");
            assert_eq!(branch.flags.flow, Some(Flow::Call));
        }
        let line = "9 1.000000000: tr end  syscall  7fff12 read+0x10 (/usr/lib/a b.so (deleted)) => 0 [unknown] ([unknown])";
        let (_, branch) = branch(line);
        assert_eq!(branch.from, place(0x7fff12, "read", 16, "/usr/lib/a b.so (deleted)"));
        assert_eq!(branch.to, Place::default());
    }

    #[test]
    fn symbols_may_hold_any_character() {
        for symbol in [
            "std::map<int, a b>::operator()(int, int) const",
            "operator=>",
            "a+0x1+0x2 =>",
            "<T as core::ops::Fn<(A,)>>::call{{closure}}",
            "operator<=> <int>",
        ] {
            let line = format!("9 1.000000000: call 401 {symbol}+0x1f => 502 {symbol}+0x0 (a+0x5)");
            let (_, branch) = branch(&line);
            assert_eq!(branch.from.symbol, symbol.as_bytes());
            assert_eq!((branch.from.offset, branch.to.symbol), (0x1f, symbol.as_bytes()));
            assert_eq!(branch.to.module, b"a+0x5");
        }
    }

    #[test]
    fn distant_symbol_is_ignored() {
        let (_, branch) = branch("9 1.0: call 401 _fini+0x7ffff81a3c14 (a) => 502 [unknown] (b)");
        assert_eq!((branch.from.symbol, branch.from.module), (&b""[..], &b"a"[..]));
        assert_eq!((branch.to.symbol, branch.to.module), (&b""[..], &b"b"[..]));
    }

    #[test]
    fn errors_have_a_place_and_a_time() {
        let line = " instruction trace error type 1 time 62.735347760 cpu -1 pid 3 tid 4 ip 0x7f code 7: Overflow packet";
        let expected =
            TraceError { ns: Some(62_735_347_760), tid: Some(4), cpu: None, cause: GapCause::Overflow };
        assert_eq!(Line::parse(line.as_bytes()), Line::Error(expected));
        let line =
            " instruction trace error type 1 cpu 2 pid -1 tid -1 ip 0 code 5: Failed to get instruction";
        let expected = TraceError { ns: None, tid: None, cpu: Some(2), cause: GapCause::NoCode };
        assert_eq!(Line::parse(line.as_bytes()), Line::Error(expected));
    }

    #[test]
    fn switches_have_a_departure() {
        let line = |rest: &str| format!("   a   34 [000]    3.000000005: {rest}");
        let departure = |rest: &str| match Line::parse(line(rest).as_bytes()) {
            Line::Switch(head, departure) => Some((head.tid, departure)),
            _ => None,
        };
        assert_eq!(departure("PERF_RECORD_SWITCH OUT"), Some((34, Departure::Blocked)));
        let out = "PERF_RECORD_SWITCH_CPU_WIDE OUT preempt  next pid/tid:     0/0";
        assert_eq!(departure(out), Some((34, Departure::Preempted)));
        assert_eq!(departure("PERF_RECORD_SWITCH IN"), None);
    }

    #[test]
    fn other_lines_are_no_branches() {
        for line in [
            "",
            ":",
            "# comment",
            "9 1.000000000:  50  branch-misses/period=50/u:   0   7fca  dl_open+0x37 (/usr/lib64/ld-2.28.so)",
            "9 1.000000000:  1  cbr:  cbr: 47 freq: 4706 MHz (162%)   0  7fca main+0x1",
            "        7fca99943ac7 dl_open_worker+0x37 (/usr/lib64/ld-2.28.so)",
            "9 1.000000000: call zz main+0x1 => 12 main+0x1",
            "9 1.0000000000: call 1 main+0x1 => 12 main+0x1",
            "99999999999999999999 1.0: call 1 main+0x1 => 12 main+0x1",
        ] {
            assert_eq!(Line::parse(line.as_bytes()), Line::Other, "{line}");
        }
        let line = "9 1.000000000:  401136 main+0x4 => 401020 puts@plt+0x0";
        assert_eq!(Line::parse(line.as_bytes()), Line::Unflagged);
    }

    #[test]
    fn branch_without_a_target_is_reported() {
        for line in [
            "9 1.000000000:   call   401136 main+0x4 (/bin/true)",
            "9 1.000000000:   call   401136 main+0x4 =>",
            "a 9/9 [002] 1.000000000:   1   branches:uH:   tr strt jmp   401136 [unknown]",
        ] {
            assert_eq!(Line::parse(line.as_bytes()), Line::Untargeted, "{line}");
        }
        let line = "9 1.000000000:   1   branches:u:   401136 main+0x4 (/bin/true)";
        assert_eq!(Line::parse(line.as_bytes()), Line::Unflagged);
        for line in [
            "9 1.000000000:   1   instructions:u:   call   401136 main+0x4 (/bin/true)",
            "9 1.000000000:   call   zz main+0x4",
            "9 1.000000000:   call",
            "9 1.000000000:  1  branch-misses:u:   call   401136 main+0x4",
        ] {
            assert_eq!(Line::parse(line.as_bytes()), Line::Other, "{line}");
        }
    }
}
