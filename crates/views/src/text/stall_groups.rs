// SPDX-License-Identifier: Apache-2.0
//! Groups of stalls with equal stacks: a block of lines each, with the longest stall as the example.

use std::io::{self, Write};

use wallprof_analysis::equal_stacks::NamedThread;
use wallprof_analysis::{Class, EqualStacks, StackGroup};
use wallprof_model::profile::{RecordingInfo, StallRecord};

use super::stall::{StallsText, named, reason_name, write_none};
use crate::function::meaning_name;
use crate::line::{Word, write_wrapped};
use crate::style::{Ink, Style};
use crate::surroundings::Surroundings;
use crate::timestamps::Timestamps;
use crate::units::{count, counted, time};

/// Threads named of a group.
const MOST_THREADS: usize = 4;

/// Writes groups in the order in which they come, and a summary at the end.
pub struct StallGroupsText<'a> {
    example: StallsText<'a>,
    timestamps: Timestamps<'a>,
    style: &'a Style,
    shown: usize,
}

impl<'a> StallGroupsText<'a> {
    pub fn new(info: &'a RecordingInfo, style: &'a Style) -> Self {
        StallGroupsText {
            example: StallsText::new(info, style),
            timestamps: Timestamps::new(info, &style.zone),
            style,
            shown: 0,
        }
    }

    /// Writes one group. `longest` is the stall that [`StackGroup::longest`] names.
    ///
    /// # Errors
    /// The error of `out`; a broken pipe among them.
    pub fn write(
        &mut self,
        out: &mut impl Write,
        group: &StackGroup,
        longest: &StallRecord,
        surroundings: &Surroundings,
    ) -> io::Result<()> {
        self.shown += 1;
        self.write_head(out, group, longest)?;
        if group.count > 1 {
            self.example.write_fact(out, "threads", threads_words(group, self.style))?;
        }
        if group.open > 0 {
            let text = format!("{} of {} had not ended", count(group.open), count(group.count));
            self.example.write_fact(out, "still waiting", vec![Word { text, ink: Ink::Warning }])?;
        }
        self.write_example(out, group, longest)?;
        self.example.write_body(out, longest, surroundings)?;
        writeln!(out)
    }

    /// Writes the sums of all groups of `stacks`, and how many of them were not written. `has_voluntary`: voluntary
    /// waits were looked at, too.
    ///
    /// # Errors
    /// The error of `out`; a broken pipe among them.
    pub fn finish(self, out: &mut impl Write, stacks: &EqualStacks, has_voluntary: bool) -> io::Result<()> {
        let groups = stacks.ranked();
        if groups.is_empty() {
            return write_none(out, has_voluntary);
        }
        let (stalls, ns) = sums(&groups);
        let all = counted(stalls + stacks.ungrouped, "stall", "stalls");
        let late_ns = ns.saturating_add(stacks.ungrouped_ns);
        let distinct = counted(groups.len() as u64, "group", "groups");
        writeln!(out, "{all}, {} in all, in {distinct} of equal stacks", time(late_ns, self.style))?;
        let hidden = groups.get(self.shown..).unwrap_or_default();
        if !hidden.is_empty() {
            let (stalls, ns) = sums(hidden);
            let text = format!(
                "{} with {}, {}, not shown: --top N shows N groups, --each every stall by itself",
                counted(hidden.len() as u64, "group", "groups"),
                counted(stalls, "stall", "stalls"),
                time(ns, self.style)
            );
            write_wrapped(out, ("", 0), &words(&text), self.style)?;
        }
        if stacks.ungrouped > 0 {
            let text = format!(
                "{}, {}, in no group: there are more distinct stacks than are kept; --each shows all",
                counted(stacks.ungrouped, "stall", "stalls"),
                time(stacks.ungrouped_ns, self.style)
            );
            write_wrapped(out, ("", 0), &words(&text), self.style)?;
        }
        Ok(())
    }

    fn write_head(&self, out: &mut impl Write, group: &StackGroup, longest: &StallRecord) -> io::Result<()> {
        let style = self.style;
        let ink = Ink::Of(Class::of_stall(group.reason, longest.voluntary, longest.meaning.as_deref()));
        let mut head = vec![
            Word::strong(format!("{}.", self.shown)),
            Word { text: format!("{},", name(group, style)), ink },
            Word::strong(format!("{},", counted(group.count, "stall", "stalls"))),
        ];
        let total = time(group.total_ns, style);
        if group.count > 1 {
            head.push(Word { text: format!("{total} in all,"), ink });
            head.push(Word::plain(format!("longest {}", time(group.longest_ns, style))));
        } else {
            head.push(Word { text: total, ink });
        }
        write_wrapped(out, ("", 0), &head, style)
    }

    fn write_example(
        &self,
        out: &mut impl Write,
        group: &StackGroup,
        longest: &StallRecord,
    ) -> io::Result<()> {
        let date = self.timestamps.date(longest.start).map(|date| format!(" on {date}")).unwrap_or_default();
        let thread = named(&longest.comm, longest.tid, self.style);
        let mut text =
            format!("stall {} of {thread} at {}{date}", longest.id, self.timestamps.time(longest.start));
        if group.longest_slices > 1 {
            text.push_str(&format!(", the last of {} time slices", count(group.longest_slices)));
        }
        let label = if group.count > 1 { "longest" } else { "" };
        self.example.write_fact(out, label, vec![Word::plain(text)])
    }
}

/// `row lock of postgresql (poll)`; without a meaning the reason.
fn name(group: &StackGroup, style: &Style) -> String {
    let reason = reason_name(group.reason);
    let Some(meaning) = &group.meaning else { return reason.into() };
    format!("{} ({reason})", meaning_name(meaning, style))
}

fn sums(groups: &[&StackGroup]) -> (u64, u64) {
    groups
        .iter()
        .fold((0, 0), |(stalls, ns), group| (stalls + group.count, ns.saturating_add(group.total_ns)))
}

fn words(text: &str) -> Vec<Word> {
    text.split(' ').map(Word::plain).collect()
}

/// `engine 4243, engine 4244 and 12 others`, those with the most stalls.
fn threads_words(group: &StackGroup, style: &Style) -> Vec<Word> {
    let ranked = group.threads.ranked();
    let others = ranked.len().saturating_sub(MOST_THREADS);
    let shown = &ranked[..ranked.len() - others];
    let word = |(at, ((comm, tid), _)): (usize, &(&NamedThread, u64))| {
        let comma = if at + 1 < shown.len() { "," } else { "" };
        Word::plain(format!("{}{comma}", named(comm, *tid, style)))
    };
    let mut words: Vec<Word> = shown.iter().enumerate().map(word).collect();
    if others > 0 {
        // A tally keeps a bounded number of threads.
        let more = if group.threads.is_full() { " or more" } else { "" };
        words.push(Word::plain(format!("and {}{more}", counted(others as u64, "other", "others"))));
    }
    words
}
