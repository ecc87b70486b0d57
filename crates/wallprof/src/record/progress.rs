// SPDX-License-Identifier: Apache-2.0
//! The lines of `record` on stderr: one when armed, one at the end and, on a terminal, a progress line.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use wallprof_recording::Summary;
use wallprof_views::escape;

use super::options::RecordOptions;
use super::target::{GivenTargets, Target};

/// Longer lists are shown as a number.
const MAX_LISTED: usize = 4;

/// The progress line; nothing if stderr is not a terminal.
pub struct Progress {
    terminal: bool,
    shown_second: Option<u64>,
}

impl Progress {
    pub fn on_stderr() -> Self {
        Progress { terminal: io::stderr().is_terminal(), shown_second: None }
    }

    /// Shows the numbers, once a second; `awaited` is the name of a target that has no thread yet.
    pub fn show(&mut self, elapsed: Duration, events: u64, file_bytes: u64, awaited: Option<&str>) {
        let second = elapsed.as_secs();
        if !self.terminal || self.shown_second == Some(second) {
            return;
        }
        self.shown_second = Some(second);
        let mut line = format!("{}  {} events  {}", clock(second), grouped(events), size(file_bytes));
        if let Some(awaited) = awaited {
            line.push_str(&format!("  waiting for {}", escape(awaited)));
        }
        let _ = write!(io::stderr(), "\r\x1b[K{line}");
    }

    /// Removes the line.
    pub fn clear(&mut self) {
        if self.shown_second.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// `recording process 12 into wallprof.db (Ctrl-C ends it)`; with `-v` also the time until the probes were
/// armed.
pub fn armed_line(options: &RecordOptions, since_start: Duration) -> String {
    let what = subject(options);
    let took = match options.verbose {
        true => format!(", armed after {:.1} ms", since_start.as_secs_f64() * 1e3),
        false => String::new(),
    };
    format!("recording {what} into {} (Ctrl-C ends it){took}", options.output.display())
}

/// `1.5 s recorded, 12 threads, 3.2 MiB: …`
pub fn done_line(options: &RecordOptions, elapsed: Duration, summary: &Summary) -> String {
    let (time, threads, size) = (time(elapsed), counted(summary.threads, "thread"), size(summary.file_bytes));
    format!("{time} recorded, {threads}, {size}: `wallprof report {}` shows it", options.output.display())
}

fn subject(options: &RecordOptions) -> String {
    match &options.target {
        Target::Given(given) => subject_of_given(given),
        Target::System => match &options.cpus {
            Some(cpus) => numbered("CPU", "CPUs", cpus),
            None => "everything".to_string(),
        },
        Target::Command => {
            let program = options.command.iter().flatten().next();
            program.map_or(String::new(), |program| program.display().to_string())
        }
    }
}

/// `process 7 with its children, thread 9 and feed*, whenever one starts,`
fn subject_of_given(given: &GivenTargets) -> String {
    let mut parts = Vec::new();
    match (given.processes.len(), given.with_children) {
        (0, _) => {}
        (_, false) => parts.push(numbered("process", "processes", &given.processes)),
        (1, true) => parts.push(format!("process {} with its children", given.processes[0])),
        (_, true) => {
            parts.push(format!("{} with their children", numbered("process", "processes", &given.processes)));
        }
    }
    if !given.threads.is_empty() {
        parts.push(numbered("thread", "threads", &given.threads));
    }
    parts.extend(given.cgroup.iter().map(|path| format!("cgroup {}", path.display())));
    if !given.names.is_empty() {
        parts.push(format!("{}, whenever one starts,", given.names.join(" and ")));
    }
    match parts.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => parts.concat(),
    }
}

fn numbered(one: &str, many: &str, numbers: &[u32]) -> String {
    match numbers {
        [number] => format!("{one} {number}"),
        few if few.len() <= MAX_LISTED => {
            let few: Vec<_> = few.iter().map(u32::to_string).collect();
            format!("{many} {}", few.join(", "))
        }
        all => format!("{} {many}", all.len()),
    }
}

/// `1:02:03`, `0:07`.
fn clock(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// `1.5 s`, below a second `20 ms`.
fn time(elapsed: Duration) -> String {
    match elapsed.as_secs() {
        0 => format!("{} ms", elapsed.as_millis()),
        _ => format!("{:.1} s", elapsed.as_secs_f64()),
    }
}

/// `1 thread`, `2,345 threads`.
fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(number))
}

/// `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// `3.2 MiB`.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes.div_ceil(1024)),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(target: Target) -> RecordOptions {
        let command = Some(vec!["make".into(), "all".into()]);
        RecordOptions { command, ..RecordOptions::of(target, "out.db") }
    }

    #[test]
    fn armed_line_names_target_and_file() {
        let line = |target| armed_line(&options(target), Duration::from_micros(1_234_567));
        assert_eq!(line(Target::processes(&[7])), "recording process 7 into out.db (Ctrl-C ends it)");
        assert_eq!(line(Target::threads(&[7, 8])), "recording threads 7, 8 into out.db (Ctrl-C ends it)");
        assert_eq!(
            line(Target::processes(&[1, 2, 3, 4, 5, 6, 7, 8, 9])),
            "recording 9 processes into out.db (Ctrl-C ends it)"
        );
        assert_eq!(
            line(Target::names(&["feed*", "nginx"])),
            "recording feed* and nginx, whenever one starts, into out.db (Ctrl-C ends it)"
        );
        let given = GivenTargets {
            processes: vec![7],
            with_children: true,
            threads: vec![9],
            names: vec!["feed*".into()],
            cgroup: Some("/web".into()),
        };
        assert_eq!(
            line(Target::Given(given)),
            "recording process 7 with its children, thread 9, cgroup /web and feed*, whenever one starts, into out.db \
             (Ctrl-C ends it)"
        );
        assert_eq!(line(Target::Command), "recording make into out.db (Ctrl-C ends it)");
        let verbose = RecordOptions { verbose: true, cpus: Some(vec![1]), ..options(Target::System) };
        let line = armed_line(&verbose, Duration::from_micros(123_456));
        assert_eq!(line, "recording CPU 1 into out.db (Ctrl-C ends it), armed after 123.5 ms");
    }

    #[test]
    fn last_line_sums_up_the_recording() {
        let summary = Summary { threads: 12, file_bytes: 3_355_443, ..Summary::default() };
        assert_eq!(
            done_line(&options(Target::System), Duration::from_millis(1520), &summary),
            "1.5 s recorded, 12 threads, 3.2 MiB: `wallprof report out.db` shows it"
        );
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!([clock(7), clock(3723)], ["0:07", "1:02:03"]);
        assert_eq!([grouped(0), grouped(999), grouped(1_234_567)], ["0", "999", "1,234,567"]);
        assert_eq!([size(0), size(1), size(3_355_443)], ["0 KiB", "1 KiB", "3.2 MiB"]);
    }

    #[test]
    fn plural_and_units_fit_the_number() {
        assert_eq!([counted(0, "thread"), counted(1, "thread")], ["0 threads", "1 thread"]);
        assert_eq!(
            [time(Duration::from_micros(20_700)), time(Duration::from_millis(61_250))],
            ["20 ms", "61.2 s"]
        );
    }

    #[test]
    fn nothing_is_shown_without_a_terminal() {
        let mut progress = Progress { terminal: false, shown_second: None };
        progress.show(Duration::from_secs(1), 1, 1, None);
        assert_eq!(progress.shown_second, None);
    }
}
