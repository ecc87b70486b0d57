// SPDX-License-Identifier: Apache-2.0
//! OpenMetrics text, line by line:
//! <https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md>.
//!
//! Owns the format and its escaping; knows no metric. `prometheus-client` 0.25.2 does not fit: a `Collector`
//! can encode filled buckets, but it cannot create their exemplars. Only `HistogramWithExemplars::observe`
//! creates them, and it counts one value at a time where we have counts and sums.

use std::fmt::Write;

use wallprof_model::text::is_hidden;

/// The type of the whole text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Labels of one line: names are ours, values are foreign text.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// One bucket: its upper edge (infinite for the last one), its own count, and an exemplar.
pub struct Bucket<'a> {
    pub upper: f64,
    pub count: u64,
    pub exemplar: Option<Exemplar<'a>>,
}

pub struct Exemplar<'a> {
    pub labels: Labels<'a>,
    pub value: f64,
    /// Seconds since the epoch.
    pub at: f64,
}

/// Writes into a string, which cannot fail.
#[derive(Default)]
pub struct Text {
    out: String,
}

impl Text {
    pub fn with_capacity(bytes: usize) -> Self {
        Text { out: String::with_capacity(bytes) }
    }

    /// Starts a family; `name` is without `_total`.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(self.out, "# HELP {name} {help}.\n# TYPE {name} {kind}");
        if let Some((_, unit @ ("seconds" | "hertz"))) = name.rsplit_once('_') {
            let _ = writeln!(self.out, "# UNIT {name} {unit}");
        }
    }

    /// A line of a gauge, or of a counter with its `_total`.
    pub fn value(&mut self, name: &str, labels: Labels<'_>, value: f64) {
        self.out.push_str(name);
        self.labels(labels, None);
        let _ = writeln!(self.out, " {value:?}");
    }

    /// The same for whole numbers, exact beyond 2^53.
    pub fn count(&mut self, name: &str, labels: Labels<'_>, count: u64) {
        self.out.push_str(name);
        self.labels(labels, None);
        let _ = writeln!(self.out, " {count}");
    }

    /// All lines of one histogram.
    pub fn histogram<'a>(
        &mut self,
        name: &str,
        labels: Labels<'_>,
        sum: f64,
        buckets: impl Iterator<Item = Bucket<'a>>,
    ) {
        let mut count: u64 = 0;
        for bucket in buckets {
            count = count.saturating_add(bucket.count);
            let _ = write!(self.out, "{name}_bucket");
            self.labels(labels, Some(bucket.upper));
            let _ = write!(self.out, " {count}");
            if let Some(exemplar) = bucket.exemplar {
                self.out.push_str(" # ");
                self.labels(exemplar.labels, None);
                let _ = write!(self.out, " {:?} {:?}", exemplar.value, exemplar.at);
            }
            self.out.push('\n');
        }
        self.count(&format!("{name}_count"), labels, count);
        self.value(&format!("{name}_sum"), labels, sum);
    }

    /// The text with its end mark.
    pub fn finish(mut self) -> String {
        self.out.push_str("# EOF\n");
        self.out
    }

    fn labels(&mut self, labels: Labels<'_>, upper: Option<f64>) {
        if labels.is_empty() && upper.is_none() {
            return;
        }
        self.out.push('{');
        let mut separator = "";
        for (name, value) in labels {
            let _ = write!(self.out, "{separator}{name}=\"");
            self.escaped(value);
            self.out.push('"');
            separator = ",";
        }
        match upper {
            Some(upper) if upper.is_infinite() => {
                let _ = write!(self.out, "{separator}le=\"+Inf\"");
            }
            Some(upper) => {
                let _ = write!(self.out, "{separator}le=\"{upper:?}\"");
            }
            None => {}
        }
        self.out.push('}');
    }

    fn escaped(&mut self, value: &str) {
        for character in value.chars() {
            match character {
                '\\' => self.out.push_str("\\\\"),
                '"' => self.out.push_str("\\\""),
                '\n' => self.out.push_str("\\n"),
                // Allowed in a label, but harmful on a terminal or a page.
                hidden if is_hidden(hidden) => self.out.push('\u{fffd}'),
                other => self.out.push(other),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_their_unit() {
        let mut text = Text::default();
        text.family("a_seconds", Kind::Counter, "Time");
        text.value("a_seconds_total", &[("b", "c")], 5.0);
        text.family("n", Kind::Gauge, "Number");
        text.count("n", &[], u64::MAX);
        assert_eq!(
            text.finish(),
            "# HELP a_seconds Time.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\n\
             a_seconds_total{b=\"c\"} 5.0\n# HELP n Number.\n# TYPE n gauge\nn 18446744073709551615\n# EOF\n"
        );
    }

    #[test]
    fn buckets_add_up() {
        let mut text = Text::default();
        let exemplar = Some(Exemplar { labels: &[("id", "7")], value: 0.5, at: 1.5 });
        let buckets = [
            Bucket { upper: 0.25, count: 2, exemplar: None },
            Bucket { upper: f64::INFINITY, count: 1, exemplar },
        ];
        text.histogram("h", &[("a", "b")], 0.75, buckets.into_iter());
        assert_eq!(
            text.finish(),
            "h_bucket{a=\"b\",le=\"0.25\"} 2\nh_bucket{a=\"b\",le=\"+Inf\"} 3 # {id=\"7\"} 0.5 1.5\n\
             h_count{a=\"b\"} 3\nh_sum{a=\"b\"} 0.75\n# EOF\n"
        );
    }

    #[test]
    fn hostile_values_stay_inside_their_quotes() {
        let mut text = Text::default();
        text.count("n", &[("a", "x\"} 1\nforged 7\\\x1b[31m")], 1);
        assert_eq!(text.finish(), "n{a=\"x\\\"} 1\\nforged 7\\\\\u{fffd}[31m\"} 1\n# EOF\n");
    }
}
