// SPDX-License-Identifier: Apache-2.0
//! Stalls one by one: a block of lines each, with everything that is known about it.

use std::io::{self, Write};

use wallprof_analysis::{Class, HolderFrom};
use wallprof_model::event::{Fault, Mapping, Peer, WaitedFile};
use wallprof_model::profile::{
    BoundAtFirstCall, LockRecord, RecordingInfo, ResolvedStack, StallRecord, WakerRecord,
};
use wallprof_model::{Reason, StallReason, ThreadRef, short_container};

use super::stack::write_stack;
use crate::line::{Word, write_wrapped};
use crate::style::{Ink, Style};
use crate::surroundings::{Surroundings, counter_text, mark_text, span_text};
use crate::timestamps::Timestamps;
use crate::units::{counted, percent, time};

const LABEL_COLUMNS: usize = 16;
const STACK_INDENT: usize = 6;
/// Counters and marks shown of a stall; JSON has all.
const MOST_COUNTERS: usize = 6;
const MOST_MARKS: usize = 4;

/// Says that there are no stalls. `has_voluntary`: voluntary waits were looked at, too.
pub(super) fn write_none(out: &mut impl Write, has_voluntary: bool) -> io::Result<()> {
    let hint = if has_voluntary { "" } else { " Voluntary waits are left out unless --all is given." };
    writeln!(out, "No stall matches.{hint}")
}

/// Writes stalls as they come, in constant memory, and a summary at the end.
pub struct StallsText<'a> {
    timestamps: Timestamps<'a>,
    style: &'a Style,
    date: Option<String>,
    shown: u64,
    late_ns: u64,
}

impl<'a> StallsText<'a> {
    pub fn new(info: &'a RecordingInfo, style: &'a Style) -> Self {
        StallsText { timestamps: Timestamps::new(info, &style.zone), style, date: None, shown: 0, late_ns: 0 }
    }

    /// Writes one stall; before the first one of a day, its date.
    ///
    /// # Errors
    /// The error of `out`; a broken pipe among them.
    pub fn write(
        &mut self,
        out: &mut impl Write,
        stall: &StallRecord,
        surroundings: &Surroundings,
    ) -> io::Result<()> {
        self.shown += 1;
        self.late_ns = self.late_ns.saturating_add(stall.late_ns());
        let date = self.timestamps.date(stall.start);
        if date != self.date {
            writeln!(out, "{}\n", self.style.paint(Ink::Faint, date.as_deref().unwrap_or_default()))?;
            self.date = date;
        }
        self.write_head(out, stall)?;
        self.write_body(out, stall, surroundings)?;
        writeln!(out)
    }

    /// Writes everything that is known about a stall, without its head.
    pub(super) fn write_body(
        &self,
        out: &mut impl Write,
        stall: &StallRecord,
        surroundings: &Surroundings,
    ) -> io::Result<()> {
        if let Some(container) = &surroundings.container {
            let name = surroundings.pod.as_deref().unwrap_or_else(|| short_container(container));
            self.write_fact(out, "container", vec![Word::plain(self.style.name(name))])?;
        }
        self.write_facts(out, stall)?;
        self.write_surroundings(out, stall, surroundings)?;
        self.write_stacks(out, stall.user.as_ref(), stall.kernel.as_ref(), "")?;
        self.write_holder(out, surroundings)?;
        self.write_waker(out, stall)
    }

    /// Writes the number of stalls that were shown. Where there are none, and voluntary waits were not looked at
    /// (`has_voluntary`), a hint.
    ///
    /// # Errors
    /// The error of `out`; a broken pipe among them.
    pub fn finish(self, out: &mut impl Write, has_voluntary: bool) -> io::Result<()> {
        if self.shown == 0 {
            return write_none(out, has_voluntary);
        }
        let stalls = counted(self.shown, "stall", "stalls");
        writeln!(out, "{stalls}, {} in all", time(self.late_ns, self.style))
    }

    fn write_head(&self, out: &mut impl Write, stall: &StallRecord) -> io::Result<()> {
        let style = self.style;
        let ink = Ink::Of(Class::of_stall(stall.reason, stall.voluntary, stall.meaning.as_deref()));
        let late = stall.overslept_ns().map(|late_ns| format!("{} late", time(late_ns, style)));
        let comma = |more: bool| if more { "," } else { "" };
        let took = format!("{}{}", time(stall.duration_ns(), style), comma(late.is_some() || stall.open));
        let mut words = vec![
            Word::strong(format!("stall {}", stall.id)),
            Word::plain(format!("at {}:", self.timestamps.time(stall.start))),
            Word::strong(style.comm(&stall.comm)),
            Word::plain(format!("{},", stall.tid)),
            Word { text: reason_name(stall.reason).into(), ink },
            Word { text: took, ink },
        ];
        words.extend(late.map(|late| Word { text: format!("{late}{}", comma(stall.open)), ink }));
        if stall.open {
            words.push(Word { text: "still waiting".into(), ink: Ink::Warning });
        }
        write_wrapped(out, ("", 0), &words, style)
    }

    fn write_facts(&self, out: &mut impl Write, stall: &StallRecord) -> io::Result<()> {
        self.write_fact(out, "", vec![Word::plain(course(stall, self.style))])?;
        if let Some(asked) = stall.asked_ns {
            let text = format!("to wake after {}", time(asked, self.style));
            self.write_fact(out, "had asked", vec![Word::plain(text)])?;
        }
        if let Some(lock) = &stall.lock {
            self.write_fact(out, "lock", lock_words(lock, self.style))?;
        }
        if let Some(fault) = &stall.fault {
            self.write_fact(out, "fault", vec![Word::plain(fault_text(fault, self.style))])?;
        }
        if let Some(binding) = &stall.binding {
            self.write_fact(out, "first call", vec![Word::plain(binding_text(binding, self.style))])?;
        }
        if let Some(file) = &stall.file {
            self.write_fact(out, "file", vec![Word::plain(file_text(file, self.style))])?;
        }
        if let Some(peer) = &stall.peer {
            self.write_fact(out, "other end", vec![Word::plain(peer_text(peer, self.style))])?;
        }
        if let Some(ids) = &stall.trace {
            let text = format!("{} span {}", ids.trace_id(), ids.span_id());
            self.write_fact(out, "trace", text.split(' ').map(Word::plain).collect())?;
        }
        if !stall.ran_instead.is_empty() {
            self.write_fact(out, "ran instead", ran_instead_words(stall, self.style))?;
        }
        Ok(())
    }

    fn write_surroundings(
        &self,
        out: &mut impl Write,
        stall: &StallRecord,
        surroundings: &Surroundings,
    ) -> io::Result<()> {
        let moved = surroundings.counters.iter().flatten();
        for (index, moved) in moved.take(MOST_COUNTERS).enumerate() {
            let label = if index == 0 { "counters" } else { "" };
            let words = vec![Word::plain(counter_text(moved, self.style))];
            write_wrapped(out, (&format!("  {label}"), LABEL_COLUMNS), &words, self.style)?;
        }
        if let Some(backlog) = &surroundings.backlog {
            let words = backlog.words();
            let words = words.split(' ').map(|word| Word::plain(self.style.name(word)));
            self.write_fact(out, "meanwhile", words.collect())?;
        }
        for (_, span) in &surroundings.spans {
            self.write_fact(out, "span", vec![Word::plain(span_text(span, stall.start, self.style))])?;
        }
        for mark in surroundings.marks.iter().take(MOST_MARKS) {
            let words = vec![Word::plain(mark_text(mark, (stall.start, stall.end), self.style))];
            self.write_fact(out, "mark", words)?;
        }
        Ok(())
    }

    pub(super) fn write_fact(&self, out: &mut impl Write, label: &str, words: Vec<Word>) -> io::Result<()> {
        write_wrapped(
            out,
            (&format!("  {label}"), if label.is_empty() { 2 } else { LABEL_COLUMNS }),
            &words,
            self.style,
        )
    }

    /// Where the holder waited, or what it ran; where it released the lock is the waker's stack.
    fn write_holder(&self, out: &mut impl Write, surroundings: &Surroundings) -> io::Result<()> {
        let Some(holder) = &surroundings.holder else { return Ok(()) };
        let text = format!("was {} for the longest part of the wait", holder.state);
        self.write_fact(out, "its holder", text.split(' ').map(Word::plain).collect())?;
        match &holder.user {
            Some((HolderFrom::Wait | HolderFrom::Sample, stack)) => {
                self.write_stacks(out, Some(stack), None, "its ")
            }
            _ => Ok(()),
        }
    }

    fn write_waker(&self, out: &mut impl Write, stall: &StallRecord) -> io::Result<()> {
        let Some(waker) = &stall.waker else { return Ok(()) };
        let released = stall.reason == StallReason::Blocked(Reason::Lock) && waker.thread.is_some();
        let label = if released { "released by" } else { "woken by" };
        self.write_fact(out, label, waker_words(waker, self.style))?;
        self.write_stacks(out, waker.user.as_ref(), waker.kernel.as_ref(), "its ")
    }

    fn write_stacks(
        &self,
        out: &mut impl Write,
        user: Option<&ResolvedStack>,
        kernel: Option<&ResolvedStack>,
        whose: &str,
    ) -> io::Result<()> {
        for (stack, name) in [(user, "user stack"), (kernel, "kernel stack")] {
            let Some(stack) = stack.filter(|stack| !stack.frames.is_empty()) else { continue };
            writeln!(out, "    {}", self.style.paint(Ink::Faint, &format!("{whose}{name}")))?;
            write_stack(out, stack, STACK_INDENT, self.style)?;
        }
        Ok(())
    }
}

pub(super) fn reason_name(reason: StallReason) -> &'static str {
    match reason {
        StallReason::Minor => "minor fault",
        StallReason::Major => "major fault",
        other => other.name(),
    }
}

/// `in futex, blocked 3.19 ms, then 20.0 µs without a CPU, back on CPU 1`.
fn course(stall: &StallRecord, style: &Style) -> String {
    let mut parts = Vec::new();
    if let Some(syscall) = &stall.syscall {
        parts.push(format!("in {}", style.name(syscall)));
    }
    if stall.blocked_ns > 0 {
        parts.push(format!("blocked {}", time(stall.blocked_ns, style)));
    }
    if stall.runnable_ns > 0 {
        let then = if stall.blocked_ns > 0 { "then " } else { "" };
        parts.push(format!("{then}{} without a CPU", time(stall.runnable_ns, style)));
    }
    if let Some(cpu) = stall.cpu {
        let back = if stall.open { "waiting for" } else { "back on" };
        parts.push(format!("{back} CPU {cpu}"));
    }
    parts.join(", ")
}

fn lock_words(lock: &LockRecord, style: &Style) -> Vec<Word> {
    let mut words = Vec::new();
    if lock.address != 0 {
        words.push(Word::plain(format!("{:#x}", lock.address)));
    }
    if let Some(owner) = &lock.owner {
        words.push(Word::plain("held by"));
        words.extend(thread_words(owner, style));
    }
    words
}

fn fault_text(fault: &Fault, style: &Style) -> String {
    let access = fault.access.map(|access| format!("{} ", access.name())).unwrap_or_default();
    let mut text = format!("{access}at {:#x}", fault.address);
    match fault.mapping {
        Some(Mapping::Anonymous) => text.push_str(" in anonymous memory"),
        Some(Mapping::Stack) => text.push_str(" in its stack"),
        Some(Mapping::Heap) => text.push_str(" in the heap"),
        Some(Mapping::Huge) => text.push_str(" in reserved huge pages"),
        Some(Mapping::File) | None => {}
    }
    if let Some(file) = &fault.file {
        text.push_str(&format!(" in {}", style.name(file)));
        if let Some(offset) = fault.file_offset {
            text.push_str(&format!("+{offset:#x}"));
        }
    }
    text
}

/// `of sched_yield in /lib/libc.so.6, bound by the dynamic linker`.
fn binding_text(binding: &BoundAtFirstCall, style: &Style) -> String {
    let symbol = binding.symbol.as_deref().map_or("a function".into(), |symbol| style.name(symbol));
    let library = binding.library.as_deref().map(|library| format!(" in {}", style.name(library)));
    format!("of {symbol}{}, bound by the dynamic linker", library.unwrap_or_default())
}

fn file_text(file: &WaitedFile, style: &Style) -> String {
    let offset = file.offset.map(|offset| format!("+{offset:#x}")).unwrap_or_default();
    format!("{}{offset}", style.name(&file.path))
}

/// `nginx 4711, tcp 127.0.0.1:80`, `archive 4712, pipe`.
fn peer_text(peer: &Peer, style: &Style) -> String {
    let process = peer.process.as_ref().map(|process| format!("{}, ", style.name(&process.to_string())));
    let remote = peer.remote.map(|end| format!(" {end}"));
    format!("{}{}{}", process.unwrap_or_default(), peer.kind.name(), remote.unwrap_or_default())
}

fn ran_instead_words(stall: &StallRecord, style: &Style) -> Vec<Word> {
    let last = stall.ran_instead.len().saturating_sub(1);
    let word = |(at, (thread, ns)): (usize, &(ThreadRef, u64))| {
        let share = percent(*ns, stall.runnable_ns.max(*ns));
        let comma = if at < last { "," } else { "" };
        let name = thread_name(thread, style);
        Word::plain(format!("{name} for {} ({share}){comma}", time(*ns, style)))
    };
    stall.ran_instead.iter().enumerate().map(word).collect()
}

fn waker_words(waker: &WakerRecord, style: &Style) -> Vec<Word> {
    match &waker.thread {
        Some(thread) => thread_words(thread, style),
        None => vec![Word::plain("an interrupt")],
    }
}

fn thread_words(thread: &ThreadRef, style: &Style) -> Vec<Word> {
    vec![Word::strong(thread_name(thread, style))]
}

fn thread_name(thread: &ThreadRef, style: &Style) -> String {
    named(&thread.comm, thread.tid, style)
}

/// `housekeeper 4244`; the number alone where the name is not known.
pub(crate) fn named(comm: &str, tid: u32, style: &Style) -> String {
    match comm {
        "" => format!("thread {tid}"),
        comm => format!("{} {tid}", style.comm(comm)),
    }
}
