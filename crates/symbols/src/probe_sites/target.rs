// SPDX-License-Identifier: Apache-2.0
//! The text of option `--span`: two USDT probes, or a function.
//!
//! A path is separated from a name by a colon, and both can contain colons:
//! - `usdt:PATH:PROVIDER:BEGIN..END`: PATH ends at the second colon from the end. The names of probes contain
//!   no colon.
//! - `uprobe:PATH:FUNCTION`: PATH ends at the last single colon. `::` belongs to a C++ or Rust path, and the
//!   colon of `[abi:cxx11]` to an ABI tag of C++.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::shown::shown;

/// `PATH_MAX`.
const MAX_PATH: usize = 4096;
/// As long as the longest readable names, and far longer than any name of a USDT probe.
const MAX_NAME: usize = 4096;

/// The places in a program that begin and end a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpanTarget {
    /// A function, from its entry to its return.
    Uprobe {
        /// The file with the code. Absolute.
        path: PathBuf,
        /// Encoded or readable; see [`crate::probe_sites()`].
        function: String,
    },
    /// From one USDT probe to another one.
    Usdt {
        /// The file with the probes. Absolute.
        path: PathBuf,
        /// The provider of both probes.
        provider: String,
        /// The probe at the start.
        begin: String,
        /// The probe at the end.
        end: String,
    },
}

/// Why a text names no span. The message is one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanTargetError {
    text: String,
    fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    UnknownKind,
    NoUsdtParts,
    NoRange,
    SameProbe,
    NoFunction,
    BadName,
    RelativePath,
    BadPath,
}

const USDT_FORM: &str = "usdt:PATH:PROVIDER:BEGIN..END";
const UPROBE_FORM: &str = "uprobe:PATH:FUNCTION";

impl SpanTarget {
    /// The file with the code.
    pub fn path(&self) -> &Path {
        match self {
            SpanTarget::Uprobe { path, .. } | SpanTarget::Usdt { path, .. } => path,
        }
    }

    /// `FUNCTION`, or `BEGIN..END`.
    pub fn kind(&self) -> String {
        match self {
            SpanTarget::Uprobe { function, .. } => function.clone(),
            SpanTarget::Usdt { begin, end, .. } => format!("{begin}..{end}"),
        }
    }
}

impl FromStr for SpanTarget {
    type Err = SpanTargetError;

    fn from_str(text: &str) -> Result<Self, SpanTargetError> {
        let parsed = match text.split_once(':') {
            Some(("usdt", rest)) => usdt(rest),
            Some(("uprobe", rest)) => uprobe(rest),
            _ => Err(Fault::UnknownKind),
        };
        parsed.map_err(|fault| SpanTargetError { text: text.to_owned(), fault })
    }
}

fn usdt(rest: &str) -> Result<SpanTarget, Fault> {
    let (rest, names) = rest.rsplit_once(':').ok_or(Fault::NoUsdtParts)?;
    let (path, provider) = rest.rsplit_once(':').ok_or(Fault::NoUsdtParts)?;
    let (begin, end) = names.split_once("..").ok_or(Fault::NoRange)?;
    if [provider, begin, end].into_iter().any(str::is_empty) {
        return Err(Fault::NoUsdtParts);
    }
    if end.contains("..") || end.starts_with('.') {
        return Err(Fault::NoRange);
    }
    if begin == end {
        return Err(Fault::SameProbe);
    }
    let [provider, begin, end] = [name(provider)?, name(begin)?, name(end)?];
    Ok(SpanTarget::Usdt { path: absolute(path)?, provider, begin, end })
}

fn uprobe(rest: &str) -> Result<SpanTarget, Fault> {
    let at = last_single_colon(rest).ok_or(Fault::NoFunction)?;
    let (path, function) = (&rest[..at], &rest[at + 1..]);
    if function.is_empty() {
        return Err(Fault::NoFunction);
    }
    Ok(SpanTarget::Uprobe { path: absolute(path)?, function: name(function)? })
}

/// The last colon that belongs neither to `::` nor to `[abi:`.
fn last_single_colon(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let is_colon = |at: usize| bytes.get(at) == Some(&b':');
    let is_single = |&at: &usize| {
        let in_path = is_colon(at + 1) || at.checked_sub(1).is_some_and(is_colon);
        is_colon(at) && !in_path && !text[..at].ends_with("[abi")
    };
    (0..bytes.len()).rev().find(is_single)
}

fn name(text: &str) -> Result<String, Fault> {
    let is_name = text.len() <= MAX_NAME && !text.chars().any(char::is_control);
    is_name.then(|| text.to_owned()).ok_or(Fault::BadName)
}

fn absolute(path: &str) -> Result<PathBuf, Fault> {
    match path {
        _ if !path.starts_with('/') => Err(Fault::RelativePath),
        _ if path.len() > MAX_PATH || path.contains('\0') => Err(Fault::BadPath),
        _ => Ok(PathBuf::from(path)),
    }
}

impl fmt::Display for SpanTarget {
    /// The text that this was parsed from.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path().display();
        match self {
            SpanTarget::Uprobe { function, .. } => write!(f, "uprobe:{path}:{function}"),
            SpanTarget::Usdt { provider, begin, end, .. } => {
                write!(f, "usdt:{path}:{provider}:{begin}..{end}")
            }
        }
    }
}

impl fmt::Display for SpanTargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = shown(&self.text);
        match self.fault {
            Fault::UnknownKind => {
                write!(f, "'{text}' is no span; give {UPROBE_FORM} or {USDT_FORM}")
            }
            Fault::NoUsdtParts => write!(f, "'{text}' lacks a part; give {USDT_FORM}"),
            Fault::NoRange => {
                write!(f, "'{text}' does not end in the names of two probes; give {USDT_FORM}")
            }
            Fault::SameProbe => {
                write!(f, "'{text}' begins and ends with the same probe; give two probes, as {USDT_FORM}")
            }
            Fault::NoFunction => write!(f, "'{text}' names no function; give {UPROBE_FORM}"),
            Fault::BadName => {
                write!(
                    f,
                    "'{text}' has a name that is too long or has control characters in it; give {UPROBE_FORM} or {USDT_FORM}"
                )
            }
            Fault::RelativePath => {
                write!(f, "the path in '{text}' is not absolute; give the whole path, beginning with '/'")
            }
            Fault::BadPath => {
                write!(f, "the path in '{text}' is too long or contains a zero byte; give the path of a file")
            }
        }
    }
}

impl std::error::Error for SpanTargetError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of_function(path: &str, function: &str) -> SpanTarget {
        SpanTarget::Uprobe { path: path.into(), function: function.into() }
    }

    #[test]
    fn function_follows_the_last_single_colon() {
        let cases = [
            ("uprobe:/bin/x:main", "/bin/x", "main"),
            ("uprobe:/bin/x:ns::Class::method", "/bin/x", "ns::Class::method"),
            ("uprobe:/bin/x:ns::f(int, char const*)", "/bin/x", "ns::f(int, char const*)"),
            ("uprobe:/bin/x:f[abi:cxx11](int)", "/bin/x", "f[abi:cxx11](int)"),
            ("uprobe:/bin/x:<a::B as c::D>::e", "/bin/x", "<a::B as c::D>::e"),
            ("uprobe:/bin/x:github.com/a/b.(*C).D", "/bin/x", "github.com/a/b.(*C).D"),
            ("uprobe:/opt/a:b/x:f", "/opt/a:b/x", "f"),
            ("uprobe:/opt/a::b/x:c::f", "/opt/a::b/x", "c::f"),
            ("uprobe:/opt/größe:f", "/opt/größe", "f"),
        ];
        for (text, path, function) in cases {
            let target: SpanTarget = text.parse().expect(text);
            assert_eq!(target, of_function(path, function));
            assert_eq!((target.path(), &*target.kind()), (Path::new(path), function));
            assert_eq!(target.to_string(), text);
        }
    }

    #[test]
    fn probes_follow_the_last_two_colons() {
        let cases = [
            ("usdt:/bin/x:p:b..e", "/bin/x", ["p", "b", "e"]),
            (
                "usdt:/bin/x:postgresql:query__start..query__done",
                "/bin/x",
                ["postgresql", "query__start", "query__done"],
            ),
            ("usdt:/opt/a:b/x:p:b.1..e.2", "/opt/a:b/x", ["p", "b.1", "e.2"]),
        ];
        for (text, path, [provider, begin, end]) in cases {
            let target: SpanTarget = text.parse().expect(text);
            let [provider, begin, end] = [provider, begin, end].map(str::to_owned);
            assert_eq!(target.kind(), format!("{begin}..{end}"));
            assert_eq!(target, SpanTarget::Usdt { path: path.into(), provider, begin, end });
            assert_eq!(target.to_string(), text);
        }
    }

    #[test]
    fn each_other_text_is_refused_with_the_right_form() {
        let cases = [
            ("", "no span"),
            ("main", "no span"),
            ("kprobe:/bin/x:f", "give uprobe:PATH:FUNCTION or usdt:"),
            ("uprobe:", "names no function"),
            ("uprobe:/bin/x", "names no function"),
            ("uprobe:/bin/x:", "names no function"),
            ("uprobe:/bin/x:::f", "names no function"),
            ("uprobe:bin/x:f", "not absolute"),
            ("uprobe::f", "not absolute"),
            ("uprobe:/bin/x:f\u{1b}[1m", "control characters"),
            ("uprobe:/bin/\0:f", "zero byte"),
            ("usdt:/bin/x", "lacks a part; give usdt:PATH:PROVIDER:BEGIN..END"),
            ("usdt:/bin/x:b..e", "lacks a part"),
            ("usdt:/bin/x::b..e", "lacks a part"),
            ("usdt:/bin/x:p:..e", "lacks a part"),
            ("usdt:/bin/x:p:b..", "lacks a part"),
            ("usdt:/bin/x:p:b", "two probes"),
            ("usdt:/bin/x:p:b...e", "two probes"),
            ("usdt:/bin/x:p:b..e..f", "two probes"),
            ("usdt:/bin/x:p:b..b", "the same probe"),
            ("usdt:x:p:b..e", "not absolute"),
        ];
        for (text, part) in cases {
            let error = text.parse::<SpanTarget>().expect_err(text).to_string();
            assert!(error.contains(part), "{text:?}: {error}");
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_harmless(text in "(usdt|uprobe)?:?[/a-zé:.\\[\\]\0]{0,40}") {
            if let Ok(target) = text.parse::<SpanTarget>() {
                prop_assert!(target.path().is_absolute());
                prop_assert_eq!(target.to_string(), text);
            }
        }
    }
}
