// SPDX-License-Identifier: Apache-2.0
//! One line of `perf script`'s text of samples: the head of a sample, or a frame of its stack. Nothing is
//! allocated; the fields borrow from the line.
//!
//! A head is `[comm] TID|PID/TID [[cpu]] [time:] [period] [event:] [frame]` (`process_event` in perf's
//! `builtin-script.c`). The fields of `-F` come in this order, whatever the order in the option. A frame is
//! `address [symbol[+offset]] [(file)|(inlined)]`. `-F +srcline` adds a line `  file:line` behind a frame.

use super::super::line::{Head, decimal, number, split_last_word};

/// The letters behind the colon of an event: `cycles:uppp`.
const MODIFIERS: &[u8] = b"ukhGHIpPDSWeb";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    Sample(SampleHead<'a>),
    Frame(PrintedFrame<'a>),
    /// Of the frame in front of it.
    Source {
        file: &'a [u8],
        line: u32,
    },
    /// The text behind `# `.
    Comment(&'a [u8]),
    /// Records that perf or the kernel lost.
    Lost(u64),
    Blank,
    /// A record of another kind, or a place without a known source line.
    Ignored,
    Unread,
}

/// The first line of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SampleHead<'a> {
    pub comm: &'a [u8],
    pub pid: Option<i32>,
    pub tid: i32,
    pub cpu: Option<u32>,
    pub ns: Option<u64>,
    pub period: Option<u64>,
    /// With its modifiers. Empty: not printed.
    pub event: &'a [u8],
    /// The only one, on the same line.
    pub frame: Option<PrintedFrame<'a>>,
}

/// A frame. Empty texts are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct PrintedFrame<'a> {
    pub address: u64,
    pub symbol: &'a [u8],
    pub offset: Option<u64>,
    pub module: &'a [u8],
    pub is_inlined: bool,
}

/// What the lines before say of the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    Sample,
    /// Behind the head of a sample: its first frame, or another sample.
    Either,
    Frame,
}

impl<'a> Line<'a> {
    pub(super) fn parse(line: &'a [u8], expected: Expected) -> Line<'a> {
        let text = line.trim_ascii();
        if text.is_empty() {
            return Line::Blank;
        }
        if let Some((head, rest)) = Head::parse(line) {
            return with_time(head, rest);
        }
        if let Some(comment) = text.strip_prefix(b"#").filter(|_| line.starts_with(b"#")) {
            return Line::Comment(comment.trim_ascii());
        }
        let sample = || without_time(text).map(Line::Sample);
        let frame = || PrintedFrame::parse(text).map(Line::Frame).or_else(|| source(text));
        let found = match expected {
            Expected::Sample => sample(),
            Expected::Either => sample().or_else(frame),
            Expected::Frame => frame(),
        };
        found.unwrap_or(Line::Unread)
    }
}

fn with_time<'a>(head: Head<'a>, rest: &'a [u8]) -> Line<'a> {
    let rest = rest.trim_ascii();
    if let Some(record) = rest.strip_prefix(b"PERF_RECORD_") {
        return lost(record).map_or(Line::Ignored, Line::Lost);
    }
    let Head { comm, pid, tid, cpu, ns, coarse: _ } = head;
    let head = SampleHead { comm, pid, tid, cpu, ns: Some(ns), ..SampleHead::default() };
    Fields::parse(rest).map_or(Line::Unread, |fields| Line::Sample(fields.of(head)))
}

/// `LOST lost 12`, `LOST_SAMPLES lost 12`.
fn lost(record: &[u8]) -> Option<u64> {
    let mut words = record.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    words.next().filter(|kind| kind.starts_with(b"LOST"))?;
    words.skip_while(|word| *word != b"lost").nth(1).and_then(decimal)
}

/// The fields behind the time.
struct Fields<'a> {
    period: Option<u64>,
    event: &'a [u8],
    frame: Option<PrintedFrame<'a>>,
}

impl<'a> Fields<'a> {
    fn parse(rest: &'a [u8]) -> Option<Self> {
        let (first, behind) = split_word(rest);
        let period = decimal(first);
        let (word, text) = if period.is_some() { split_word(behind) } else { (first, behind) };
        if let Some(event) = event(word) {
            // What a tracepoint prints of its fields is no frame.
            let frame = if is_tracepoint(event) { None } else { frame_in(text) };
            return Some(Fields { period, event, frame });
        }
        if rest.is_empty() || period.is_some() && behind.is_empty() {
            return Some(Fields { period, event: b"", frame: None });
        }
        Some(Fields { period: None, event: b"", frame: Some(frame_in(rest)?) })
    }

    fn of(self, head: SampleHead<'a>) -> SampleHead<'a> {
        SampleHead { period: self.period, event: self.event, frame: self.frame, ..head }
    }
}

/// A word that ends with a colon, without it.
fn event(word: &[u8]) -> Option<&[u8]> {
    word.strip_suffix(b":").filter(|name| !name.is_empty())
}

/// `sched:sched_switch`, but not `cycles:u`.
pub(super) fn is_tracepoint(event: &[u8]) -> bool {
    let (_, modifiers) = split_modifiers(event);
    modifiers.is_empty() && event.contains(&b':')
}

/// An event and the letters behind its colon.
pub(super) fn split_modifiers(event: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memrchr(b':', event) {
        Some(colon) if event[colon + 1..].iter().all(|letter| MODIFIERS.contains(letter)) => {
            (&event[..colon], &event[colon + 1..])
        }
        _ => (event, b""),
    }
}

/// The frame of a sample whose stack is one line. A data address may be in front of it.
fn frame_in(text: &[u8]) -> Option<PrintedFrame<'_>> {
    let (first, behind) = split_word(text);
    hexadecimal(first)?;
    let (second, _) = split_word(behind);
    let text = if hexadecimal(second).is_some() { behind } else { text };
    PrintedFrame::parse(text)
}

/// `comm 12 cycles:`, `comm 12/13 [001] 250000 cycles: 7f00 main (/bin/a)`.
fn without_time(text: &[u8]) -> Option<SampleHead<'_>> {
    let starts = std::iter::once(0).chain(memchr::memchr_iter(b' ', text).map(|blank| blank + 1));
    for start in starts {
        let (word, behind) = split_word(&text[start..]);
        let Some(event) = event(word) else { continue };
        let frame = frame_in(behind);
        if (behind.is_empty() || frame.is_some())
            && let Some(head) = before_event(text[..start].trim_ascii_end())
        {
            return Some(SampleHead { event, frame, ..head });
        }
    }
    None
}

/// Of two numbers the last one is the period.
fn before_event(text: &[u8]) -> Option<SampleHead<'_>> {
    let (before, word) = split_last_word(text);
    let (_, another) = split_last_word(before);
    match decimal(word).filter(|_| cpu(another).is_some() || thread(another).is_some()) {
        Some(period) => thread_and_cpu(before).map(|head| SampleHead { period: Some(period), ..head }),
        None => thread_and_cpu(text),
    }
}

fn thread_and_cpu(text: &[u8]) -> Option<SampleHead<'_>> {
    let (before, word) = split_last_word(text);
    let (cpu, (comm, id)) = match cpu(word) {
        Some(cpu) => (Some(cpu), split_last_word(before)),
        None => (None, (before, word)),
    };
    let (pid, tid) = thread(id)?;
    Some(SampleHead { comm: comm.trim_ascii(), pid, tid, cpu, ..SampleHead::default() })
}

fn cpu(word: &[u8]) -> Option<u32> {
    let inside = word.strip_prefix(b"[")?.strip_suffix(b"]")?;
    decimal(inside).and_then(|cpu| u32::try_from(cpu).ok())
}

fn thread(word: &[u8]) -> Option<(Option<i32>, i32)> {
    match memchr::memchr(b'/', word) {
        Some(slash) => Some((Some(number(&word[..slash])?), number(&word[slash + 1..])?)),
        None => Some((None, number(word)?)),
    }
}

impl<'a> PrintedFrame<'a> {
    fn parse(text: &'a [u8]) -> Option<Self> {
        let (first, rest) = split_word(text);
        let address = hexadecimal(first)?;
        let (rest, is_inlined) = match rest.strip_suffix(b"(inlined)") {
            Some(symbol) => (symbol.trim_ascii_end(), true),
            None => (rest, false),
        };
        let (symbol, module) = if is_inlined { (rest, &b""[..]) } else { split_module(rest) };
        let (symbol, offset) = split_offset(symbol);
        let known = |text: &'a [u8]| if text == b"[unknown]" { &b""[..] } else { text };
        Some(PrintedFrame { address, symbol: known(symbol), offset, module: known(module), is_inlined })
    }
}

/// `symbol (file)`. The file is the last text in brackets, which may contain some: `/tmp/a (deleted)`.
fn split_module(text: &[u8]) -> (&[u8], &[u8]) {
    if !text.ends_with(b")") {
        return (text, b"");
    }
    let mut depth = 0usize;
    for (at, byte) in text.iter().enumerate().rev() {
        match byte {
            b')' => depth += 1,
            b'(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let is_word = at == 0 || text[at - 1] == b' ';
            let inside = &text[at + 1..text.len() - 1];
            return if is_word { (text[..at].trim_ascii_end(), inside) } else { (text, b"") };
        }
    }
    (text, b"")
}

fn split_offset(symbol: &[u8]) -> (&[u8], Option<u64>) {
    let parts = memchr::memrchr(b'+', symbol).and_then(|plus| {
        let offset = hexadecimal(symbol[plus + 1..].strip_prefix(b"0x")?)?;
        Some((&symbol[..plus], Some(offset)))
    });
    parts.unwrap_or((symbol, None))
}

/// `main.c:12`; also `libc.so.6[1a2b]` and `??:0`, which say that the source is not known.
fn source(text: &[u8]) -> Option<Line<'_>> {
    if text.ends_with(b"]") && text.contains(&b'[') {
        return Some(Line::Ignored);
    }
    let colon = memchr::memrchr(b':', text)?;
    let line = u32::try_from(decimal(&text[colon + 1..])?).ok()?;
    let file = &text[..colon];
    Some(if file.is_empty() || file == b"??" || line == 0 {
        Line::Ignored
    } else {
        Line::Source { file, line }
    })
}

/// The first word, and the text behind it without blanks around.
fn split_word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii();
    let end = text.iter().position(u8::is_ascii_whitespace).unwrap_or(text.len());
    (&text[..end], text[end..].trim_ascii_start())
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    super::super::line::hexadecimal(digits.strip_prefix(b"0x").unwrap_or(digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(text: &str) -> SampleHead<'_> {
        match Line::parse(text.as_bytes(), Expected::Sample) {
            Line::Sample(head) => head,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn frame(text: &str) -> PrintedFrame<'_> {
        match Line::parse(text.as_bytes(), Expected::Frame) {
            Line::Frame(frame) => frame,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn head_may_lack_any_field_but_the_thread() {
        for (text, comm, pid, tid, cpu, ns, period, event) in [
            ("app 12 7.000005: cpu-clock: ", "app", None, 12, None, Some(7_000_005_000), None, "cpu-clock"),
            (
                "app 12/13 [002] 7.5:  250000 cycles:u:",
                "app",
                Some(12),
                13,
                Some(2),
                Some(7_500_000_000),
                Some(250_000),
                "cycles:u",
            ),
            ("12/13 7.5: cycles: ", "", Some(12), 13, None, Some(7_500_000_000), None, "cycles"),
            ("   12   7.5: ", "", None, 12, None, Some(7_500_000_000), None, ""),
            ("app 12 7.5:  99 ", "app", None, 12, None, Some(7_500_000_000), Some(99), ""),
            ("app 12 cpu-clock: ", "app", None, 12, None, None, None, "cpu-clock"),
            ("app 12 [003]  99 cycles:", "app", None, 12, Some(3), None, Some(99), "cycles"),
            ("app 12   99 cycles:", "app", None, 12, None, None, Some(99), "cycles"),
            ("app 12/12  99 cycles:ppp:", "app", Some(12), 12, None, None, Some(99), "cycles:ppp"),
            (
                "12 7.5: sched:sched_switch: prev_comm=a 9 b",
                "",
                None,
                12,
                None,
                Some(7_500_000_000),
                None,
                "sched:sched_switch",
            ),
            (
                "app 12 7.5: 1 branch-misses/period=50/u: ",
                "app",
                None,
                12,
                None,
                Some(7_500_000_000),
                Some(1),
                "branch-misses/period=50/u",
            ),
        ] {
            let (comm, event) = (comm.as_bytes(), event.as_bytes());
            let expected = SampleHead { comm, pid, tid, cpu, ns, period, event, frame: None };
            assert_eq!(sample(text), expected, "{text}");
        }
    }

    #[test]
    fn thread_names_hold_any_character() {
        for name in
            ["[ET_NET 0]", "foobar [worker]", "Hashed wheel timer #1", "kworker/0:1", "a: b", "x 1.5:"]
        {
            for text in [format!("{name} 7 [001] 2.5: cycles: "), format!("{name}  7/7  2.5: cycles: ")] {
                let found = sample(&text);
                assert_eq!(
                    (found.comm, found.tid, found.event),
                    (name.as_bytes(), 7, &b"cycles"[..]),
                    "{text}"
                );
            }
        }
        for name in ["[ET_NET 0]", "foobar [worker]", "Hashed wheel timer #1", "kworker/0:1"] {
            let text = format!("{name} 7/8 cycles: ");
            assert_eq!((sample(&text).comm, sample(&text).tid), (name.as_bytes(), 8), "{text}");
        }
    }

    #[test]
    fn letters_of_the_processors_mode_may_stand_before_the_time() {
        let found = sample("app 12 [001] U 7.5: cycles: ");
        assert_eq!((found.comm, found.tid, found.cpu), (&b"app"[..], 12, Some(1)));
    }

    #[test]
    fn stack_of_one_frame_is_on_the_heads_line() {
        let main = PrintedFrame {
            address: 0x7f12,
            symbol: b"main",
            offset: Some(4),
            module: b"/bin/a",
            is_inlined: false,
        };
        for text in [
            "app 12 7.5:  1 cycles:u:  7f12 main+0x4 (/bin/a)",
            "app 12 7.5:  7f12 main+0x4 (/bin/a)",
            "app 12 cycles:  7f12 main+0x4 (/bin/a)",
            "app 12 7.5:  50 branch-misses/period=50/u:    0    7f12 main+0x4 (/bin/a)",
        ] {
            assert_eq!(sample(text).frame, Some(main), "{text}");
        }
        let unnamed = PrintedFrame { address: 0xffff_ffff_9b20_1293, ..PrintedFrame::default() };
        assert_eq!(
            sample("a 1 7.5: 1 cycles:u: ffffffff9b201293 [unknown] ([unknown])").frame,
            Some(unnamed)
        );
        assert_eq!(
            sample("a 1 7.5: cpu-clock:  7f12 main").frame.map(|frame| frame.symbol),
            Some(&b"main"[..])
        );
    }

    #[test]
    fn symbols_and_files_hold_any_character() {
        for (symbol, module) in [
            ("std::map<int, a b>::operator()(int, int) const", "/usr/lib/a.so"),
            ("StealTask::do_it(GCTaskManager*, unsigned int)", "/usr/lib/a b.so (deleted)"),
            ("LazyCompile:~body_0 evalmachine.<anonymous>:1", "/tmp/perf-31912.map"),
            ("RegExp:[&<>\\\"\\']", "/tmp/perf-7.map"),
            ("Ljava/lang/String;::length", "[kernel.kallsyms]"),
            ("decltype(auto) f(x)", ""),
        ] {
            let file = if module.is_empty() { String::new() } else { format!(" ({module})") };
            for (text, offset) in [
                (format!("\t  7f12 {symbol}+0x1f{file}"), Some(0x1f)),
                (format!("7f12 {symbol}{file}"), None),
            ] {
                let found = frame(&text);
                assert_eq!(
                    (found.symbol, found.module, found.offset),
                    (symbol.as_bytes(), module.as_bytes(), offset),
                    "{text}"
                );
            }
        }
        let inlined = frame("            7f12 part (inlined)");
        assert_eq!((inlined.symbol, inlined.module, inlined.is_inlined), (&b"part"[..], &b""[..], true));
        assert_eq!(frame("  7f12"), PrintedFrame { address: 0x7f12, ..PrintedFrame::default() });
    }

    #[test]
    fn lines_between_frames_are_known() {
        let parse = |text: &'static str| Line::parse(text.as_bytes(), Expected::Frame);
        assert_eq!(parse("  src/main.c:12"), Line::Source { file: b"src/main.c", line: 12 });
        assert_eq!((parse("  libc.so.6[1a2b]"), parse("  ??:0")), (Line::Ignored, Line::Ignored));
        assert_eq!((parse(" \t "), parse("  WEIRD_LINE")), (Line::Blank, Line::Unread));
        assert_eq!(parse("# hostname : a"), Line::Comment(b"hostname : a"));
        let in_stack = Line::parse(b" 9040 12533.862009: cpu-clock: ", Expected::Frame);
        assert!(matches!(in_stack, Line::Sample(_)), "{in_stack:?}");
    }

    #[test]
    fn thread_whose_name_is_hexadecimal_is_no_frame_behind_a_sample_without_stack() {
        let text = b"dd 29776 cpu-clock:";
        let tid = |line| if let Line::Sample(head) = line { Some(head.tid) } else { None };
        assert_eq!(tid(Line::parse(text, Expected::Either)), Some(29776));
        let frame = Line::parse(b"dd main (/bin/a)", Expected::Either);
        assert!(matches!(frame, Line::Frame(_)), "{frame:?}");
    }

    #[test]
    fn other_records_are_no_samples_and_losses_are_counted() {
        let parse = |text: &'static str| Line::parse(text.as_bytes(), Expected::Sample);
        assert_eq!(parse("a 1 [000] 7.5: PERF_RECORD_MMAP2 1/1: [0x7f(0x1000)]"), Line::Ignored);
        assert_eq!(parse("a 1 [000] 7.5: PERF_RECORD_LOST lost 12"), Line::Lost(12));
        assert_eq!(parse("  7f12 main+0x4 (/bin/a)"), Line::Unread);
        assert_eq!((parse("hello"), parse("some text: of a log")), (Line::Unread, Line::Unread));
    }
}
