// SPDX-License-Identifier: Apache-2.0
//! Why the slow spans of each kind are slow, for people: a line for each kind, the difference in words and as
//! a table, and the slowest spans.

use std::io::{self, Write};

use wallprof_analysis::spans::{
    Cause, Exemplar, Group, KindTail, LEAST_TAIL, LOWEST_TAIL, Means, TailOptions, words_of_state,
};
use wallprof_meaning::Site;
use wallprof_model::histogram::Histogram;
use wallprof_model::profile::RecordingInfo;
use wallprof_model::{SpanState, State, ThreadRef};

use crate::line::{Word, left, right, width, write_wrapped};
use crate::style::{Ink, Style};
use crate::text::{write_note, write_title};
use crate::timestamps::Timestamps;
use crate::units::{count, counted, percent, time};

/// Kinds of which more than a line is written; causes and spans of each.
const MOST_KINDS: usize = 10;
const MOST_LINES: usize = 50;
const MOST_CAUSES: usize = 8;
const MOST_EXEMPLARS: usize = 10;
/// Causes in the sentence.
const MOST_IN_WORDS: usize = 4;
const NAME_COLUMNS: usize = 28;
const BARS: usize = 16;

/// The kinds of a recording with their tails.
pub struct TailText<'a> {
    pub kinds: &'a [KindTail],
    /// Kinds beyond the limit.
    pub left_out: usize,
    /// Whether the recording has spans, though none may have been asked for.
    pub has_spans: bool,
    pub options: TailOptions,
    pub info: &'a RecordingInfo,
}

impl TailText<'_> {
    /// Writes all of it.
    ///
    /// # Errors
    /// The error of `out`; a broken pipe among them.
    pub fn write(&self, out: &mut impl Write, style: &Style) -> io::Result<()> {
        if self.kinds.is_empty() {
            let text = match self.has_spans {
                true => "no span matches: without --kind, --thread and --container all are shown",
                false => {
                    "no spans were recorded: `record --span` makes some of a function or a USDT probe, a program marks \
                     its own with wallprof.h, and `wallprof import --spans FILE.csv` adds those that it logs"
                }
            };
            return write_note(out, 0, text, style);
        }
        let about = counted(self.kinds.len() as u64, "kind", "kinds");
        write_title(out, "Spans", &about, style)?;
        let head = ["count", "P50", "P90", "P99", "P99.9", "max"].map(|name| right(name, 11)).concat();
        writeln!(out, "{}{}", left("", NAME_COLUMNS, style), style.paint(Ink::Faint, &head))?;
        for kind in self.kinds.iter().take(MOST_LINES) {
            write_kind(out, kind, style)?;
        }
        let hidden = self.kinds.len().saturating_sub(MOST_LINES) + self.left_out;
        if hidden > 0 {
            let text = format!("{} more with fewer spans", counted(hidden as u64, "kind", "kinds"));
            write_note(out, 0, &text, style)?;
        }
        for kind in self.kinds.iter().take(MOST_KINDS) {
            self.write_tail(out, kind, style)?;
        }
        Ok(())
    }

    fn write_tail(&self, out: &mut impl Write, kind: &KindTail, style: &Style) -> io::Result<()> {
        write_title(out, &name_of(kind, style), "", style)?;
        let words = self.words(kind, style);
        match (&kind.difference, &kind.body) {
            (Some(group), Some(body)) => {
                let words: Vec<Word> = words.split(' ').map(Word::plain).collect();
                write_wrapped(out, ("", 0), &words, style)?;
                write_table(out, group, body, style)?;
                write_causes(out, group, style)?;
            }
            _ => write_note(out, 0, &words, style)?,
        }
        self.write_exemplars(out, kind, style)
    }

    /// Why the slow spans of a kind are slow, or why that is not known, in a sentence.
    pub fn words(&self, kind: &KindTail, style: &Style) -> String {
        match (&kind.difference, &kind.body) {
            (Some(group), Some(body)) => {
                let slowest = kind.tail_count as f64 / kind.histogram.count().max(1) as f64;
                self.sentence((group, slowest), body, style)
            }
            _ => self.why_none(kind),
        }
    }

    /// `The slowest 0.1 % take 905 µs on average, 887 µs more than the middle (P45–P55): 861 µs …`
    fn sentence(&self, (group, slowest): (&Group, f64), body: &Means, style: &Style) -> String {
        let more: i64 = group.states.iter().sum();
        let (from, to) = (point(self.options.body.0), point(self.options.body.1));
        let slowest = share(slowest);
        let mean = time(positive(group.tail.mean_ns()), style);
        let dash = style.pick("–", "-");
        let start = format!("The slowest {slowest} take {mean} on average,");
        if more <= 0 || positive(more) * 50 < positive(body.mean_ns()) {
            return format!("{start} as the middle ({from}{dash}{to}).");
        }
        let parts = in_words(&group.causes, style);
        let parts = parts.into_iter().take(MOST_IN_WORDS).filter(|(ns, _)| ns * 200 >= positive(more));
        let parts: Vec<String> = parts.map(|(ns, words)| format!("{} {words}", time(ns, style))).collect();
        let more = time(positive(more), style);
        format!("{start} {more} more than the middle ({from}{dash}{to}): {}.", parts.join(", "))
    }

    fn why_none(&self, kind: &KindTail) -> String {
        let lowest = if self.options.or_lower { LOWEST_TAIL } else { self.options.tail };
        let least = (LEAST_TAIL as f64 / (1.0 - lowest).max(1e-9)).ceil() as u64;
        let spans = counted(kind.histogram.count(), "span", "spans");
        if self.options.or_lower {
            return format!(
                "The slowest of {spans} are too few to compare with the middle: it takes {LEAST_TAIL} of them, \
                 slower than the middle, in some {} spans or more",
                count(least)
            );
        }
        let has_enough = |share: &f64| {
            *share < self.options.tail && (1.0 - share) * kind.histogram.count() as f64 >= LEAST_TAIL as f64
        };
        let lower = [0.999, 0.99, 0.95, 0.9, 0.8].into_iter().find(has_enough);
        let lower =
            lower.map(|share| format!(", or a lower percentile: `wallprof tail --tail {}`", point(share)));
        let tail = counted(kind.tail_count, "span is", "spans are");
        format!(
            "{tail} at or above {} of {spans}, too few to compare: it takes {LEAST_TAIL}, which are about {} \
             spans in all{}",
            point(self.options.tail),
            count(least),
            lower.unwrap_or_default()
        )
    }

    fn write_exemplars(&self, out: &mut impl Write, kind: &KindTail, style: &Style) -> io::Result<()> {
        if kind.exemplars.is_empty() {
            return Ok(());
        }
        let timestamps = Timestamps::new(self.info, &style.zone);
        writeln!(out, "\n{}", style.paint(Ink::Strong, "The slowest"))?;
        for exemplar in kind.exemplars.iter().take(MOST_EXEMPLARS) {
            let span = &exemplar.span;
            let head =
                format!("{}  {}", right(&time(span.duration_ns(), style), 11), timestamps.time(span.start));
            let words: Vec<Word> = exemplar_text(exemplar, style).split(' ').map(Word::plain).collect();
            write_wrapped(out, (&head, width(&head) + 2), &words, style)?;
        }
        Ok(())
    }
}

/// Causes that differ by their callers alone are one in words: a lock is taken in many functions, and a CPU is
/// lost anywhere. Most time first.
fn in_words(causes: &[Cause], style: &Style) -> Vec<(u64, String)> {
    let mut sums: Vec<(u64, String)> = Vec::new();
    for cause in causes.iter().filter(|cause| cause.ns > 0) {
        let words = words_of(cause, style);
        match sums.iter_mut().find(|(_, known)| *known == words) {
            Some((sum, _)) => *sum = sum.saturating_add(positive(cause.ns)),
            None => sums.push((positive(cause.ns), words)),
        }
    }
    sums.sort_by_key(|(ns, _)| std::cmp::Reverse(*ns));
    sums
}

fn write_kind(out: &mut impl Write, kind: &KindTail, style: &Style) -> io::Result<()> {
    let histogram = &kind.histogram;
    let quantile = |share| time(histogram.quantile_ns(share), style);
    let numbers = [
        count(histogram.count()),
        quantile(0.5),
        quantile(0.9),
        quantile(0.99),
        quantile(0.999),
        time(histogram.max_ns(), style),
    ];
    let numbers = numbers.map(|number| right(&number, 11)).concat();
    let name = left(&name_of(kind, style), NAME_COLUMNS, style);
    writeln!(out, "{}{numbers}  {}", style.paint(Ink::Strong, &name), shape(histogram, style))
}

/// The histogram in a few characters, from the shortest span to the longest, on a logarithmic scale.
fn shape(histogram: &Histogram, style: &Style) -> String {
    let cells: Vec<(u16, u64)> = histogram.cells().map(|(bucket, cell)| (bucket, cell.count)).collect();
    let (Some(first), Some(last)) = (cells.first(), cells.last()) else { return String::new() };
    let buckets = usize::from(last.0 - first.0) + 1;
    let mut sums = vec![0u64; buckets.min(BARS)];
    for (bucket, count) in &cells {
        let at = usize::from(bucket - first.0) * sums.len() / buckets;
        sums[at] = sums[at].saturating_add(*count);
    }
    let most = sums.iter().copied().max().unwrap_or(0).max(1) as f64;
    let levels: Vec<char> = style.pick("▁▂▃▄▅▆▇█", ".:-=+*#@").chars().collect();
    let level = |sum: u64| match sum {
        0 => ' ',
        // Rare spans are what matters here: their logarithm shows.
        sum => {
            let share = (sum as f64).ln_1p() / most.ln_1p();
            levels[((share * levels.len() as f64) as usize).min(levels.len() - 1)]
        }
    };
    sums.into_iter().map(level).collect()
}

/// The states of the middle and of the tail that differ by most.
fn write_table(out: &mut impl Write, group: &Group, body: &Means, style: &Style) -> io::Result<()> {
    let mut states: Vec<(SpanState, i64)> = SpanState::all().into_iter().zip(group.states).collect();
    states.retain(|(state, _)| group.tail.states[state.index()] > 0 || body.states[state.index()] > 0);
    states.sort_by_key(|(_, ns)| std::cmp::Reverse(ns.abs()));
    writeln!(out)?;
    let head = ["middle", "slowest", "more"].map(|name| right(name, 12)).concat();
    writeln!(out, "{}", style.paint(Ink::Faint, &format!("  {}{head}", left("state", 18, style))))?;
    let row = |name: &str, middle: i64, slowest: i64, more: i64| {
        let cells = [time(positive(middle), style), time(positive(slowest), style), signed(more, style)];
        format!("  {}{}", left(name, 18, style), cells.map(|cell| right(&cell, 12)).concat())
    };
    for (state, more) in states {
        let at = state.index();
        writeln!(out, "{}", row(&state.label(), body.states[at], group.tail.states[at], more))?;
    }
    let more = group.states.iter().sum();
    writeln!(out, "{}", style.paint(Ink::Strong, &row("all", body.mean_ns(), group.tail.mean_ns(), more)))
}

fn write_causes(out: &mut impl Write, group: &Group, style: &Style) -> io::Result<()> {
    let more = positive(group.states.iter().sum());
    let shown: Vec<&Cause> = group
        .causes
        .iter()
        .filter(|cause| positive(cause.ns) * 1000 >= more.max(1))
        .take(MOST_CAUSES)
        .collect();
    if more == 0 || shown.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", style.paint(Ink::Strong, "What they have more of"))?;
    for cause in shown {
        let ns = positive(cause.ns);
        let label = format!("{}{}", right(&time(ns, style), 11), right(&percent(ns, more), 9));
        let mut text = words_of(cause, style);
        if let Some(site) = cause.site.as_ref().filter(|site| site.functions.len() > 1) {
            let callers: Vec<String> =
                site.functions[1..].iter().map(|name| style.name(name).into_owned()).collect();
            text.push_str(&format!(" {} {}", style.pick("←", "<-"), callers.join(style.pick(" ← ", " <- "))));
        }
        let words: Vec<Word> = text.split(' ').map(Word::plain).collect();
        write_wrapped(out, (&label, width(&label) + 2), &words, style)?;
    }
    let divided =
        group.causes.iter().fold(0, |sum: u64, cause| sum.saturating_add(positive(cause.divided_ns)));
    if divided > 0 {
        let note = format!(
            "Of {} of the waiting only sums were recorded, which are divided as the waits late in spans are.",
            time(divided, style)
        );
        let words: Vec<Word> = note.split(' ').map(Word::plain).collect();
        write_wrapped(out, ("  ", 2), &words, style)?;
    }
    Ok(())
}

/// `engine 77: 861 µs blocked:lock, 18.0 µs cpu; 861 µs lock in take_registry (stall 4)`.
pub fn exemplar_text(exemplar: &Exemplar, style: &Style) -> String {
    let span = &exemplar.span;
    let mut text = format!("{} {}", style.comm(&exemplar.comm), exemplar.tid);
    let mut states: Vec<(SpanState, u64)> = SpanState::all().into_iter().zip(span.states.0).collect();
    states.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let parts = states.iter().filter(|(_, ns)| *ns > 0).take(3);
    let parts: Vec<String> =
        parts.map(|(state, ns)| format!("{} {}", time(*ns, style), state.label())).collect();
    text.push_str(&format!(": {}", parts.join(", ")));
    if let Some((ns, reason, site)) = &exemplar.longest {
        let place = site.as_ref().map(|site| format!(" in {}", place(site, style))).unwrap_or_default();
        text.push_str(&format!("; {} {}{place}", time(*ns, style), reason.name()));
    }
    let shown = exemplar.stalls.iter().take(3).map(u64::to_string).collect::<Vec<_>>().join(", ");
    match exemplar.stalls.len() {
        0 => {}
        1 => text.push_str(&format!(" (stall {shown})")),
        2 | 3 => text.push_str(&format!(" (stalls {shown})")),
        more => text.push_str(&format!(" (stalls {shown} and {} more)", more - 3)),
    }
    if let [trace] = &exemplar.traces[..] {
        text.push_str(&format!("; trace {trace}"));
    }
    text
}

/// `waiting for a lock in take_registry_lock held by housekeeper (in sweep_registry)`.
fn words_of(cause: &Cause, style: &Style) -> String {
    let mut text = match (&cause.meaning, cause.state) {
        (Some(meaning), _) => format!("waiting: {}", style.name(&meaning.to_string())),
        (None, SpanState::Cpu) => "more running".into(),
        (None, state) => words_of_state(state),
    };
    let waits_for_cpu = matches!(cause.state, SpanState::Of(State::Runnable | State::Preempted));
    if let Some(site) = cause.site.as_ref().filter(|_| !waits_for_cpu) {
        text.push_str(&format!(" in {}", place(site, style)));
    }
    let owner = cause.lock.as_ref().and_then(|lock| lock.owner.as_ref());
    let waker = cause.waker.as_ref().and_then(|waker| waker.thread.as_ref());
    let by = |verb: &str, thread: &ThreadRef| format!(" {verb} {}", style.comm(&thread.comm));
    match (owner, waker) {
        _ if waits_for_cpu => {}
        (Some(owner), _) => text.push_str(&by("held by", owner)),
        (None, Some(waker)) if cause.lock.is_some() => text.push_str(&by("held by", waker)),
        (None, Some(waker)) => text.push_str(&by("ended by", waker)),
        (None, None) => {}
    }
    let is_lock = cause.lock.is_some();
    if let Some(site) = cause.waker_site.as_ref().filter(|_| is_lock && !waits_for_cpu) {
        text.push_str(&format!(" (in {})", place(site, style)));
    }
    text
}

fn place(site: &Site, style: &Style) -> String {
    let function = site.functions.first().map(|name| style.name(name).into_owned()).unwrap_or_default();
    match &site.through {
        Some(through) => format!("{function} ({})", style.name(through)),
        None => function,
    }
}

/// `busy of redis-server`.
pub fn name_of(kind: &KindTail, style: &Style) -> String {
    format!("{} of {}", style.name(&kind.kind), style.comm(&kind.process))
}

/// `P99.9`.
fn point(share: f64) -> String {
    format!("P{}", trimmed(share * 100.0))
}

/// `0.1 %`.
/// With two digits: `0.1 %`, `9.6 %`.
fn share(share: f64) -> String {
    let percent = share * 100.0;
    let digits = 1.0 - percent.max(1e-9).log10().floor();
    let unit = 10f64.powf(digits);
    format!("{} %", trimmed((percent * unit).round() / unit))
}

fn trimmed(number: f64) -> String {
    let text = format!("{number:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn positive(ns: i64) -> u64 {
    u64::try_from(ns).unwrap_or(0)
}

fn signed(ns: i64, style: &Style) -> String {
    let sign = if ns < 0 { "-" } else { "+" };
    format!("{sign}{}", time(ns.unsigned_abs(), style))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use wallprof_model::histogram::bucket_from_ns;
    use wallprof_model::{MonoNs, Reason, Span, SpanSource, SpanStates, ThreadKey};

    use super::*;
    use crate::json::tail_json;

    fn states(values: &[(SpanState, i64)]) -> [i64; SpanState::COUNT] {
        let mut states = [0; SpanState::COUNT];
        values.iter().for_each(|(state, ns)| states[state.index()] = *ns);
        states
    }

    fn means(values: &[(SpanState, i64)]) -> Means {
        Means { from_ns: 1, to_ns: 2, count: 40, states: states(values) }
    }

    fn kind() -> KindTail {
        let lock = SpanState::Of(State::Blocked(Reason::Lock));
        let runnable = SpanState::Of(State::Runnable);
        let cause = |ns, state, site: Option<&str>| Cause {
            ns,
            divided_ns: 0,
            state,
            meaning: None,
            site: site
                .map(|name| Arc::new(Site { functions: vec![name.into(), "engine".into()], through: None })),
            waker_site: None,
            user: None,
            kernel: None,
            waker: None,
            lock: None,
        };
        let mut first = cause(861_000, lock, Some("take<Registry>\x1b"));
        let owner = ThreadRef { tid: 3, comm: "housekeeper".into(), ..ThreadRef::default() };
        first.lock = Some(wallprof_model::profile::LockRecord { address: 8, owner: Some(owner) });
        first.waker_site = Some(Arc::new(Site { functions: vec!["sweep_registry".into()], through: None }));
        let tail = means(&[(SpanState::Cpu, 18_000), (lock, 861_000), (runnable, 26_000)]);
        let body = means(&[(SpanState::Cpu, 18_000)]);
        let mut histogram = Histogram::default();
        (0..40_000).for_each(|at| histogram.record(if at % 1000 == 0 { 905_000 } else { 18_000 }));
        let span = Span {
            thread: ThreadKey(1),
            source: SpanSource::Import,
            kind: "order".into(),
            start: MonoNs(5),
            end: MonoNs(905_005),
            states: SpanStates(tail.states.map(|ns| ns as u64)),
        };
        assert!(histogram.cells().any(|(bucket, _)| bucket == bucket_from_ns(905_000)));
        KindTail {
            kind: "order".into(),
            source: SpanSource::Import,
            process: "server".into(),
            histogram,
            difference: Some(Group {
                states: states(&[(lock, 861_000), (runnable, 26_000)]),
                causes: vec![
                    first,
                    cause(20_000, runnable, Some("ask")),
                    cause(6_000, runnable, Some("flush")),
                ],
                tail,
            }),
            body: Some(body),
            tail_count: 40,
            tail_share: 0.999,
            exemplars: vec![Exemplar {
                id: 9,
                span,
                tid: 77,
                comm: "engine".into(),
                stalls: vec![4],
                longest: None,
                traces: Vec::new(),
            }],
        }
    }

    fn text(kind: KindTail) -> String {
        let mut text = Vec::new();
        let view = TailText {
            kinds: &[kind],
            left_out: 0,
            has_spans: true,
            options: TailOptions::default(),
            info: &RecordingInfo::default(),
        };
        view.write(&mut text, &Style::plain()).expect("text");
        String::from_utf8(text).expect("UTF-8")
    }

    #[test]
    fn the_difference_is_said_in_words() {
        let text = text(kind()).split_whitespace().collect::<Vec<_>>().join(" ");
        let sentence = "The slowest 0.1 % take 905 µs on average, 887 µs more than the middle (P45–P55): \
             861 µs waiting for a lock in take<Registry>\\x1b held by housekeeper (in sweep_registry), 26.0 µs \
             waiting for a CPU.";
        assert!(text.contains(sentence), "{text}");
        assert!(text.contains("order of server") && text.contains("(stall 4)"), "{text}");
    }

    #[test]
    fn too_few_slow_spans_are_explained() {
        let text = text(KindTail { difference: None, tail_count: 4, ..kind() });
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("4 spans are at or above P99.9 of 40,000 spans"), "{text}");
        assert!(text.contains("about 30,000"), "{text}");
    }

    #[test]
    fn json_has_the_fields_of_the_contract() {
        let mut text = Vec::new();
        tail_json(&mut text, &[kind()], &RecordingInfo::default().clock).expect("JSON");
        let tail: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let kind = &tail["kinds"][0];
        assert_eq!((&kind["source"], &kind["p50_ns"]), (&"import".into(), &18_000.into()));
        assert_eq!(
            (&kind["tail"]["mean_ns"], &kind["difference"]["mean_ns"]),
            (&905_000.into(), &887_000.into())
        );
        let states = &kind["difference"]["states"];
        assert!(states["user"].is_null() && states["kernel"].is_null() && states["cpu"] == 0);
        assert_eq!(states["blocked"]["lock"], 861_000);
        let cause = &kind["difference"]["causes"][0];
        assert_eq!((&cause["state"], &cause["ns"]), (&"blocked:lock".into(), &861_000.into()));
        assert_eq!(cause["lock"]["owner"]["comm"], "housekeeper");
        let exemplar = &kind["exemplars"][0];
        assert_eq!((&exemplar["id"], &exemplar["duration_ns"]), (&9.into(), &905_000.into()));
        assert_eq!(exemplar["stalls"], serde_json::json!([4]));
    }
}
