// SPDX-License-Identifier: Apache-2.0
//! `--span` of `record` and `watch`: what begins and ends a span.

use std::path::{Path, PathBuf};

use wallprof_live::SpanKind;
use wallprof_model::span::SpanSource;
use wallprof_probe::{CodePlace, MAX_SPAN_PROBES, SpanProbes};
use wallprof_symbols::{FileIdentity, ProbeSite, SpanTarget, probe_sites};

use crate::failure::Failure;

/// The options `--span`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpanOptions {
    /// Spans between two places in code.
    pub targets: Vec<SpanTarget>,
    /// `loop`: a poll at an idle place that returns at once ends a busy period, too.
    pub loops: bool,
}

/// The source of spans that has no code: the polls of loops.
const LOOP: &str = "loop";

/// The options `--span` of the command line.
///
/// # Errors
/// A text that names no span; two with spans of one kind; too many of them. The sentence does not name the option.
pub fn spans_from_texts<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<SpanOptions, String> {
    let mut options = SpanOptions::default();
    let spans = &mut options.targets;
    for text in texts {
        if text == LOOP {
            options.loops = true;
            continue;
        }
        let span: SpanTarget = text.parse().map_err(|error| match text.contains(':') {
            true => format!("{error}"),
            false => format!("{error}, or {LOOP}"),
        })?;
        if spans.contains(&span) {
            continue;
        }
        if let Some(other) = spans.iter().find(|other| other.kind() == span.kind()) {
            return Err(format!(
                "`{other}` and `{span}` would both have spans of the kind `{}`: record one of them at a time",
                span.kind()
            ));
        }
        spans.push(span);
    }
    match spans.len() > MAX_SPAN_PROBES {
        true => Err(format!("{} options are too many: give at most {MAX_SPAN_PROBES}", spans.len())),
        false => Ok(options),
    }
}

/// The kind and source of each.
pub fn kinds(spans: &[SpanTarget]) -> Vec<SpanKind> {
    let source = |span: &SpanTarget| match span {
        SpanTarget::Uprobe { .. } => SpanSource::Uprobe,
        SpanTarget::Usdt { .. } => SpanSource::Usdt,
    };
    spans.iter().map(|span| SpanKind { kind: span.kind().into(), source: source(span) }).collect()
}

/// The file in which a `--span` was found, as it was then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbedFile {
    path: PathBuf,
    identity: FileIdentity,
}

impl ProbedFile {
    /// Whether another file has its path by now. The path of a container ends with the container.
    pub fn is_replaced(&self) -> bool {
        let now = std::fs::metadata(&self.path);
        now.is_ok_and(|now| FileIdentity::of(&now) != self.identity)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Where the probes of each go, and the files.
///
/// # Errors
/// A file that cannot be read, or has no such function or probe.
pub fn find(spans: &[SpanTarget]) -> Result<Vec<(SpanProbes, ProbedFile)>, Failure> {
    let find_one = |span: &SpanTarget| {
        let sites = probe_sites(span).map_err(|error| Failure::failed(format!("--span: {error}")))?;
        let file = ProbedFile { path: span.path().to_path_buf(), identity: sites.file };
        let places = |sites: Vec<ProbeSite>| {
            let place = |site: ProbeSite| CodePlace {
                offset: site.offset,
                semaphore: site.semaphore,
                condition: site.condition,
            };
            sites.into_iter().map(place).collect()
        };
        // Where the stack pointer is that of the entry, such a jump leaves the function.
        let ends = [sites.ends, sites.unclear_ends].concat();
        let probes = SpanProbes {
            option: span.to_string(),
            path: span.path().to_path_buf(),
            begins: places(sites.begins),
            ends: places(ends),
            is_call: matches!(span, SpanTarget::Uprobe { .. }),
        };
        Ok((probes, file))
    };
    spans.iter().map(find_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_or_refused_in_a_sentence() {
        let texts = ["uprobe:/bin/engine:place_order", "usdt:/bin/engine:engine:begin..end"];
        let options = spans_from_texts(texts.into_iter().chain([texts[0]])).unwrap();
        assert!(!options.loops);
        let spans = options.targets;
        let kinds: Vec<_> = kinds(&spans).iter().map(|kind| (kind.kind.to_string(), kind.source)).collect();
        let expected = [("place_order", SpanSource::Uprobe), ("begin..end", SpanSource::Usdt)];
        assert_eq!(kinds, expected.map(|(kind, source)| (kind.to_owned(), source)));
        let both = ["uprobe:/bin/engine:main", "uprobe:/bin/other:main"];
        assert!(spans_from_texts(both).unwrap_err().contains("the kind `main`"));
        assert!(spans_from_texts(["kprobe:do_exit"]).is_err());
        let looped = spans_from_texts(["loop", texts[0], "loop"]).unwrap();
        assert!(looped.loops && looped.targets.len() == 1);
        assert!(spans_from_texts(["loops"]).unwrap_err().ends_with(", or loop"));
        let many: Vec<String> =
            (0..=MAX_SPAN_PROBES).map(|number| format!("uprobe:/bin/engine:f{number}")).collect();
        assert!(spans_from_texts(many.iter().map(String::as_str)).unwrap_err().contains("9 options"));
    }

    #[test]
    fn function_that_is_not_there_is_refused() {
        let spans = spans_from_texts(["uprobe:/proc/self/exe:no_such_function_anywhere"]).unwrap();
        let failure = find(&spans.targets).unwrap_err();
        assert!(failure.message.starts_with("--span: "), "{}", failure.message);
    }
}
