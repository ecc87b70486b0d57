// SPDX-License-Identifier: Apache-2.0
//! The page at `/`: the latest threads at a glance, without a script.
//!
//! Pure. Names are foreign text and are escaped.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

use wallprof_model::text::is_hidden;

use crate::metrics::Metrics;
use crate::series::Labels;
use crate::severity::BELOW;

/// Rows shown.
const MAX_ROWS: usize = 20;
/// Findings shown.
const MAX_FINDINGS: usize = 8;

/// The content of the page besides the metrics.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub version: &'static str,
    /// The watched target: `lock`, `all threads` …
    pub target: String,
    pub recording: String,
}

/// The page as HTML. `found`: what the last minutes showed, a sentence a line, or why that is not known; `age` ago.
pub fn page(page: &Page, found: Result<&str, &str>, age: Duration, metrics: &Metrics) -> String {
    let mut out = String::with_capacity(8192);
    let state = if metrics.armed { "armed" } else { "disarmed" };
    let _ = write!(
        out,
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>wallprof watch</title>\
         <meta http-equiv=\"refresh\" content=\"10\"><style>{STYLE}</style></head><body>\
         <h1>wallprof watch: {}</h1><p>{state}; {:.2} % of one CPU; flight recording <code>{}</code>.</p>\
         <p><a href=\"/report.html\">The last five minutes as a page</a> · <a href=\"/flame.svg\">the last minute as a \
         flame graph</a> · <a href=\"/metrics\">metrics</a></p>",
        escaped(&page.target),
        metrics.cost_share * 100.0,
        escaped(&page.recording),
    );
    findings(&mut out, found, age);
    stalls(&mut out, metrics);
    losses(&mut out, metrics);
    let _ = write!(
        out,
        "<form method=\"post\" action=\"/snapshot\"><button>Write a snapshot</button></form>\
         <footer>wallprof {}</footer></body></html>",
        page.version
    );
    out
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}\
                     table{border-collapse:collapse}td,th{text-align:left;padding:.15em 1em .15em 0}\
                     td.n{text-align:right;font-variant-numeric:tabular-nums}footer{color:#888;margin-top:2em}";

fn findings(out: &mut String, found: Result<&str, &str>, age: Duration) {
    out.push_str("<h2>What the last five minutes show</h2>");
    if let seconds @ 1.. = age.as_secs() {
        let _ = write!(out, "<p>As of {seconds} s ago; the rest of this page is of now.</p>");
    }
    match found {
        Err(why) => {
            let _ = write!(out, "<p>Not known: {}</p>", escaped(why.trim_end()));
        }
        Ok("") => out.push_str("<p>No finding.</p>"),
        Ok(sentences) => {
            out.push_str("<ol>");
            for sentence in sentences.lines().take(MAX_FINDINGS) {
                let _ = write!(out, "<li>{}", escaped(sentence));
            }
            out.push_str("</ol>");
            let more = sentences.lines().count().saturating_sub(MAX_FINDINGS);
            if more > 0 {
                let _ = write!(out, "<p>{more} more are in <a href=\"/report.html\">the page</a>.</p>");
            }
        }
    }
}

fn stalls(out: &mut String, metrics: &Metrics) {
    let mut rows: Vec<_> = metrics.stalls.iter().collect();
    // Waits that raise no severity, such as those for data, may be long and mean nothing.
    let is_info = |labels: &Labels| labels.severity.as_deref() == Some(BELOW);
    rows.sort_by_key(|(labels, sum)| (is_info(labels), std::cmp::Reverse(sum.total_ns)));
    if rows.is_empty() {
        out.push_str("<h2>Stalls</h2><p>None yet.</p>");
        return;
    }
    out.push_str(
        "<h2>Stalls since the start, those with a severity and most lateness first</h2><table><tr><th>process<th>thread<th>reason<th>severity\
         <th>stalls<th>seconds late</tr>",
    );
    for (labels, sum) in rows.into_iter().take(MAX_ROWS) {
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{}<td>{}<td class=\"n\">{}<td class=\"n\">{:.6}</tr>",
            escaped(&process(labels)),
            escaped(&labels.owner.thread),
            escaped(&reason(labels)),
            escaped(labels.severity.as_deref().unwrap_or_default()),
            sum.count,
            sum.total_ns as f64 / 1e9,
        );
    }
    out.push_str("</table>");
}

/// `redis-server in 3f4a8c01d2e7`, where containers are a label.
fn process(labels: &Labels) -> Cow<'_, str> {
    let name = labels.owner.process.as_str();
    match &labels.owner.container {
        Some(container) => format!("{name} in {container}").into(),
        None => name.into(),
    }
}

/// `poll: row lock`, where the wait has a meaning.
fn reason(labels: &Labels) -> Cow<'_, str> {
    let reason = labels.reason.unwrap_or_default();
    match &labels.meaning {
        Some(meaning) => format!("{reason}: {meaning}").into(),
        None => reason.into(),
    }
}

fn losses(out: &mut String, metrics: &Metrics) {
    if metrics.lost.is_empty() {
        return;
    }
    out.push_str("<h2>Lost</h2><table>");
    for (reason, count) in &metrics.lost {
        let _ = write!(out, "<tr><td>{}<td class=\"n\">{count}</tr>", escaped(reason));
    }
    out.push_str("</table>");
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            hidden if is_hidden(hidden) => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use wallprof_model::event::Stall;
    use wallprof_model::{MonoNs, Reason, StallReason, ThreadKey};

    use super::*;
    use crate::metrics::tests::{meaning, metrics, stall, stall_event, thread, thread_in};
    use crate::severity::Severities;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn findings_have_their_age() {
        let of = |age| page(&Page::default(), Ok("late\n"), age, &metrics());
        assert!(
            of(Duration::from_secs(12))
                .contains("<p>As of 12 s ago; the rest of this page is of now.</p><ol><li>late")
        );
        assert!(!of(Duration::from_millis(999)).contains("ago"));
    }

    #[test]
    fn threads_with_most_lateness_come_first() {
        let mut metrics = metrics();
        metrics.take(&thread(2, "server", "worker"));
        metrics.take(&stall_event(stall(1, 5, 200_000)));
        metrics.take(&stall_event(stall(2, 5, 9_000_000)));
        let html = page(&Page::default(), Ok(""), NOW, &metrics);
        let at = |name: &str| html.find(name).expect(name);
        assert!(at("<td>worker<td>lock<td>critical") < at("<td>engine<td>lock<td>warning"));
    }

    #[test]
    fn overslept_waits_are_ranked_by_their_lateness() {
        let mut metrics = metrics();
        metrics.take(&thread(2, "server", "worker"));
        let sleep = StallReason::Blocked(Reason::Sleep);
        for n in 0..9 {
            let wait = Stall::new(ThreadKey(1), sleep, MonoNs(n * 30_000_000), 20_060_000);
            metrics.take(&stall_event(Stall { voluntary: false, asked_ns: Some(20_000_000), ..wait }));
        }
        metrics.take(&stall_event(stall(2, 5, 600_000)));
        let html = page(&Page::default(), Ok(""), NOW, &metrics);
        let at = |row: &str| html.find(row).unwrap_or_else(|| panic!("{row}: {html}"));
        let rows = [
            "<td>worker<td>lock<td>critical",
            "<td>engine<td>sleep<td>info<td class=\"n\">9<td class=\"n\">0.000540",
        ];
        assert!(at(rows[0]) < at(rows[1]));
    }

    #[test]
    fn waits_for_data_come_last() {
        let mut metrics = metrics();
        let pipe = Stall::new(ThreadKey(1), StallReason::Blocked(Reason::Pipe), MonoNs(5), 9_000_000_000);
        metrics.take(&stall_event(pipe));
        metrics.take(&stall_event(stall(1, 5, 200_000)));
        let html = page(&Page::default(), Ok(""), NOW, &metrics);
        let at = |row: &str| html.find(row).unwrap_or_else(|| panic!("{row}: {html}"));
        assert!(at("<td>engine<td>lock<td>warning") < at("<td>engine<td>pipe<td>info"));
    }

    #[test]
    fn rows_say_what_the_wait_means_and_in_which_container() {
        let mut metrics = Metrics::new(Severities::default(), 1_000).with_containers(true);
        metrics.take(&thread_in(1, "postgres", "postgres", "/docker/web"));
        metrics
            .take(&stall_event(Stall { meaning: Some(meaning("row lock", false)), ..stall(1, 5, 200_000) }));
        metrics.take(&thread_in(2, "app", "app", "/machine.slice/machine-web.scope"));
        metrics.take(&stall_event(stall(2, 5, 200_000)));
        let html = page(&Page::default(), Ok(""), NOW, &metrics);
        for row in ["<td>postgres<td>postgres<td>lock: row lock<td>", "<td>app in web<td>app<td>lock<td>"] {
            assert!(html.contains(row), "{row}: {html}");
        }
    }

    #[test]
    fn names_are_escaped() {
        let mut metrics = metrics();
        metrics.take(&thread(1, "<script>alert(1)</script>", "\"'&\x07"));
        metrics.take(&stall_event(stall(1, 5, 200_000)));
        metrics.count_loss("<b>", 1);
        let html = page(
            &Page { target: "<i>".into(), ..Page::default() },
            Ok("<u> waited\nfor <i>\n"),
            NOW,
            &metrics,
        );
        assert!(
            !html.contains("<script>")
                && !html.contains("<b>")
                && !html.contains("<i>")
                && !html.contains("<u>")
        );
        assert!(html.contains("<li>&lt;u&gt; waited<li>for &lt;i&gt;</ol>"), "{html}");
        let unknown = page(&Page::default(), Err("no <file>\n"), NOW, &metrics);
        assert!(unknown.contains("<p>Not known: no &lt;file&gt;</p>"), "{unknown}");
        assert!(html.contains("&lt;script&gt;") && html.contains("&quot;&#39;&amp;\u{fffd}"));
    }
}
