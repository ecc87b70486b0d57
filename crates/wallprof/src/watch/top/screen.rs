// SPDX-License-Identifier: Apache-2.0
//! The lines of the screen for given data. Pure.
//!
//! Plain ASCII, so that every character has one column on every terminal. Colour adds nothing that letters
//! and reverse video do not say already.

use wallprof_model::ThreadKey;

use super::activity::{BAR, Order, StallGroup, ThreadActivity, ThreadsNow};
use super::names::Names;

/// Columns before the bar.
const BEFORE_BAR: usize = 45;
/// Columns of names, ids and lateness. Below this width there are only names and lateness.
const LEAST_FOR_IDS: usize = 35;
/// Columns of the lateness.
const LATE: usize = 11;
/// Below this height there are only threads.
const LEAST_FOR_STALLS: usize = 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Look {
    #[default]
    Plain,
    Bold,
    Reverse,
    /// Red, or bold without colour.
    Late,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub look: Look,
    pub text: String,
}

/// What the user has set by keys.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    pub order: Order,
    pub filter: String,
    /// The text of the filter is being typed.
    pub types_filter: bool,
    pub frozen: bool,
    pub kernel: bool,
    pub help: bool,
    /// Without one, the first thread of the list is selected.
    pub selected: Option<ThreadKey>,
    /// The outcome of the last order.
    pub message: Option<String>,
}

/// Everything that a screen shows.
pub struct Shown<'a> {
    pub target: &'a str,
    pub threads: &'a ThreadsNow,
    pub names: &'a Names,
    pub choice: &'a Choice,
}

/// The selected thread, for the next key.
pub fn selected<'a>(threads: &[&'a ThreadActivity], choice: &Choice) -> Option<(usize, &'a ThreadActivity)> {
    let found = threads.iter().position(|thread| Some(thread.key) == choice.selected);
    let at = found.unwrap_or(0);
    threads.get(at).map(|thread| (at, *thread))
}

/// At most `height` lines of at most `width` characters.
pub fn lines(shown: &Shown<'_>, width: usize, height: usize) -> Vec<Line> {
    let mut lines = match shown.choice.help {
        true => help(),
        false => activity(shown, width, height.saturating_sub(1)),
    };
    lines.truncate(height.saturating_sub(1));
    lines.resize_with(height.saturating_sub(1), || line(Look::Plain, String::new()));
    lines.push(last_line(shown.choice));
    lines.truncate(height);
    for line in &mut lines {
        line.text = ascii(&line.text).chars().take(width).collect();
    }
    lines
}

/// The bytes that draw `lines` on the whole screen.
pub fn bytes(lines: &[Line], colour: bool) -> Vec<u8> {
    let mut text = String::from("\x1b[H");
    for (at, line) in lines.iter().enumerate() {
        if at > 0 {
            text.push_str("\r\n");
        }
        text.push_str(match line.look {
            Look::Plain => "",
            Look::Bold => "\x1b[1m",
            Look::Reverse => "\x1b[7m",
            Look::Late if colour => "\x1b[31m",
            Look::Late => "\x1b[1m",
        });
        text.push_str(&line.text);
        text.push_str("\x1b[m\x1b[K");
    }
    text.push_str("\x1b[J");
    text.into_bytes()
}

fn activity(shown: &Shown<'_>, width: usize, height: usize) -> Vec<Line> {
    let Shown { threads, choice, .. } = shown;
    let sorted = threads.sorted(choice.order, &choice.filter);
    let stalls = if height >= LEAST_FOR_STALLS { (height / 3).max(4) } else { 0 };
    let rows = height.saturating_sub(2 + stalls);
    let bar = width.saturating_sub(BEFORE_BAR).min(BAR);
    let mut lines = vec![header(shown, sorted.len(), width), columns(width, bar)];
    let selected = selected(&sorted, choice);
    // The selected row stays on the screen.
    let first = selected.map_or(0, |(at, _)| (at + 1).saturating_sub(rows));
    for (at, thread) in sorted.iter().enumerate().skip(first).take(rows) {
        let is_selected = selected.is_some_and(|(place, _)| place == at);
        lines.push(row(threads, thread, (width, bar), is_selected));
    }
    if sorted.is_empty() && rows > 0 {
        lines.push(line(Look::Plain, nothing(shown)));
    }
    if let Some((_, thread)) = selected.filter(|_| stalls > 0) {
        lines.resize_with(2 + rows, || line(Look::Plain, String::new()));
        let title = format!("Latest stalls of {} {}", thread.comm, thread.tid);
        lines.push(line(Look::Bold, title));
        lines.push(stall_columns(width));
        lines.extend(stalls_of(shown, thread, width, stalls - 2));
    }
    lines
}

fn nothing(shown: &Shown<'_>) -> String {
    match shown.threads.count() {
        0 => "No thread of the target is running: they appear when they start.".into(),
        _ => format!("No thread's name contains {}: / changes the filter.", shown.choice.filter),
    }
}

fn header(shown: &Shown<'_>, count: usize, width: usize) -> Line {
    let Choice { order, filter, frozen, .. } = shown.choice;
    let filtered = if filter.is_empty() { String::new() } else { format!(" of name {filter}") };
    let frozen = if *frozen { "FROZEN  " } else { "" };
    if width < LEAST_FOR_IDS {
        return line(Look::Bold, format!("{frozen}{count} threads{filtered}  by {}", order.name()));
    }
    let text = format!(
        "{frozen}wallprof top: {}  {count} threads{filtered}  by {}  own cost {:.2} %",
        shown.target,
        order.name(),
        shown.threads.own_share() * 100.0
    );
    line(Look::Bold, text)
}

fn columns(width: usize, bar: usize) -> Line {
    if width < LEAST_FOR_IDS {
        let name = width.saturating_sub(LATE);
        return line(Look::Bold, format!("{:<name$}{:>LATE$}", "THREAD", "LATE ms/s"));
    }
    let states = if bar == 0 { String::new() } else { format!("last {bar} s") };
    line(Look::Bold, format!("{:<16}{:>8}{:>11}{:>8}  {states}", "THREAD", "TID", "LATE ms/s", "CPU %"))
}

fn row(
    threads: &ThreadsNow,
    thread: &ThreadActivity,
    (width, bar): (usize, usize),
    is_selected: bool,
) -> Line {
    let late = threads.late_share(thread) * 1e3;
    let cpu = threads.cpu_share(thread) * 1e2;
    let comm: String = ascii(&thread.comm).chars().take(15).collect();
    let comm = if thread.has_ended() { format!("{comm:.13} *") } else { comm };
    let bar = threads.bar(thread, bar);
    let look = match is_selected {
        true => Look::Reverse,
        false if late > 0.0 => Look::Late,
        false => Look::Plain,
    };
    if width < LEAST_FOR_IDS {
        let name = width.saturating_sub(LATE);
        return line(look, format!("{comm:<name$.name$}{late:>LATE$.2}"));
    }
    line(look, format!("{comm:<16}{:>8}{late:>LATE$.2}{cpu:>8.1}  {bar}", thread.tid))
}

fn stalls_of(shown: &Shown<'_>, thread: &ThreadActivity, width: usize, most: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    for stall in &thread.stalls {
        lines.push(line(Look::Plain, stall_text(shown, stall, width)));
        if shown.choice.kernel {
            let kernel = shown.names.functions(stall.kernel);
            let kernel = if kernel.is_empty() { "none was taken".into() } else { kernel };
            lines.push(line(Look::Plain, format!("    kernel: {kernel}")));
        }
        if lines.len() >= most {
            break;
        }
    }
    if lines.is_empty() {
        lines.push(line(Look::Plain, "none in the last minute".into()));
    }
    lines.truncate(most);
    lines
}

/// A line of the table under [`stall_columns`].
fn stall_text(shown: &Shown<'_>, stall: &StallGroup, width: usize) -> String {
    let ago = shown.threads.now().0.saturating_sub(stall.end.0) / 1_000_000_000;
    let (late, longest) = (milliseconds(stall.late_ns), milliseconds(stall.longest_ns));
    let place: String = shown.names.place(stall.user, stall.kernel);
    let place: String = ascii(&place).chars().take(place_width(width)).collect();
    let wide = place_width(width);
    let StallGroup { count, reason, culprit, .. } = stall;
    format!("{ago:>3} s{late:>9}{longest:>9}{count:>7}  {reason:<10.10} {place:<wide$} {culprit}")
}

/// In eight characters up to a day.
fn milliseconds(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    if ms < 9_999.9 { format!("{ms:.3}") } else { format!("{ms:.0}") }
}

/// Half of what the numbers leave.
fn place_width(width: usize) -> usize {
    (width.saturating_sub(43) / 2).max(8)
}

fn stall_columns(width: usize) -> Line {
    let text = format!(
        "{:>5}{:>9}{:>9}{:>7}  {:<10} {:<place$} CULPRIT",
        "AGO",
        "LATE ms",
        "LONGEST",
        "COUNT",
        "REASON",
        "FUNCTION",
        place = place_width(width)
    );
    line(Look::Bold, text)
}

fn last_line(choice: &Choice) -> Line {
    if choice.types_filter {
        return line(Look::Bold, format!("Name contains: {}_  Enter: done  Esc: all", choice.filter));
    }
    let keys = "q quit  s sort  / filter  f freeze  k kernel stacks  w write recording  h help";
    line(Look::Reverse, choice.message.clone().unwrap_or_else(|| keys.into()))
}

fn help() -> Vec<Line> {
    let text = "wallprof top: threads by lateness, the latest first to look at\n\
         q  quit            up, down  select a thread    s  sort: late, cpu, name\n\
         /  filter by name  f  freeze the screen         k  kernel stacks of stalls\n\
         w  write the last minute as a recording         h  this help, and back\n\
         \n\
         LATE: lateness in the last 10 s, ms a second. CPU: percent of one CPU.\n\
         One letter a second, the newest right: the longest of these states\n\
         with a tenth of the second:\n\
         L lock  D disk  N network  P pipe  I ipc  M memory  T stopped  o other\n\
         p preempted  r runnable (waits for a CPU)  f page faults\n\
         else:  # running  + running a tenth  . idle: sleep, poll, wait, child\n\
         A name with * has ended. Stalls with equal reason and stack are one line.";
    text.lines().map(|text| line(Look::Plain, text.into())).collect()
}

fn line(look: Look, text: String) -> Line {
    Line { look, text }
}

/// Names of threads, files and functions are foreign: a `?` stands for each character that is not plain.
fn ascii(text: &str) -> String {
    text.chars().map(|c| if matches!(c, ' '..='~') { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::activity::tests::{info, two_threads};
    use super::*;
    use wallprof_model::Event;

    fn text(choice: &Choice, width: usize, height: usize) -> Vec<String> {
        let (threads, names) = (two_threads(), Names::default());
        let shown = Shown { target: "pid 100", threads: &threads, names: &names, choice };
        lines(&shown, width, height).into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn late_thread_is_first_with_its_stall() {
        let text = text(&Choice::default(), 80, 24);
        assert_eq!(text[0], "wallprof top: pid 100  2 threads  by late  own cost 0.00 %");
        assert_eq!(text[2], format!("{:<16}{:>8}{:>11}{:>8}  {:>35}", "late", 101, "20.00", "0.0", "LLLLL"));
        assert!(text[3].starts_with("holder ") && text[3].ends_with("#####"), "{}", text[3]);
        let title = text.iter().position(|line| line == "Latest stalls of late 101").expect("a title");
        assert!(text[title + 2].contains("200.000  200.000      1  lock "), "{text:?}");
        assert!(text[title + 2].ends_with("held by holder (10"), "{text:?}");
        assert_eq!(text.len(), 24);
        assert!(text[23].starts_with("q quit"));
    }

    #[test]
    fn long_times_leave_a_space_between_columns() {
        let shown = [1_500, 9_999_899_000, 9_999_950_000, 86_400_000_000_000].map(milliseconds);
        assert_eq!(shown, ["0.002", "9999.899", "10000", "86400000"]);
    }

    #[test]
    fn every_size_has_that_many_lines_and_columns() {
        for (width, height) in [(20, 5), (1, 1), (0, 0), (80, 2), (300, 9), (44, 10)] {
            for help in [false, true] {
                let text = text(&Choice { help, ..Choice::default() }, width, height);
                assert_eq!(text.len(), height, "{width}x{height}");
                assert!(text.iter().all(|line| line.len() <= width), "{width}x{height}: {text:?}");
            }
        }
    }

    #[test]
    fn small_screen_has_names_and_lateness() {
        let text = text(&Choice::default(), 20, 5);
        assert_eq!(text[0], "2 threads  by late");
        assert_eq!(text[1], "THREAD     LATE ms/s");
        assert_eq!(text[2], "late           20.00");
        assert!(text[3].starts_with("holder ") && text[3].ends_with(" 0.00"), "{text:?}");
        assert!(text[4].starts_with("q quit"), "{text:?}");
    }

    #[test]
    fn selected_row_stays_on_the_screen() {
        let mut threads = two_threads();
        (3..60).for_each(|key| threads.take(&Event::Thread(info(key, &format!("w{key:02}")))));
        let selected = Some(ThreadKey(59));
        let choice = Choice { selected, order: Order::Name, ..Choice::default() };
        let names = Names::default();
        let shown = Shown { target: "x", threads: &threads, names: &names, choice: &choice };
        let lines = lines(&shown, 80, 24);
        assert!(lines.iter().any(|line| line.look == Look::Reverse && line.text.starts_with("w59 ")));
    }

    #[test]
    fn hostile_names_do_not_reach_the_terminal() {
        let mut threads = ThreadsNow::default();
        threads.take(&Event::Thread(info(1, "\x1b[31m\u{202e}日本")));
        let (names, choice) = (Names::default(), Choice::default());
        let shown = Shown { target: "a\nb", threads: &threads, names: &names, choice: &choice };
        let lines = lines(&shown, 80, 24);
        assert!(lines.iter().all(|line| line.text.chars().all(|c| matches!(c, ' '..='~'))));
        assert!(lines[2].text.starts_with("?[31m???"), "{}", lines[2].text);
    }

    #[test]
    fn nothing_but_attributes_without_colour() {
        let late = [Line { look: Look::Late, text: "late".into() }];
        assert!(String::from_utf8(bytes(&late, true)).unwrap().contains("\x1b[31m"));
        assert!(!String::from_utf8(bytes(&late, false)).unwrap().contains("\x1b[3"));
    }
}
