// SPDX-License-Identifier: Apache-2.0
//! What clap refuses, as one sentence: what is wrong, and what to give instead.

use clap::error::{ContextKind, ContextValue, ErrorKind};

const NO_COMMAND: &str =
    "no command was given: use demo, record, report, stalls, flame or diff (`wallprof --help` says more)";

/// The sentence for an error that is not help or version.
pub(super) fn sentence(error: &clap::Error) -> String {
    let special = match error.kind() {
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Some(NO_COMMAND.to_string())
        }
        ErrorKind::UnknownArgument => stray_word(error),
        ErrorKind::InvalidValue => unknown_value(error),
        _ => None,
    };
    special.unwrap_or_else(|| sentence_from_clap(&error.render().to_string()))
}

/// `record 1234` and `record sleep 5`: a word where `record` takes none.
fn stray_word(error: &clap::Error) -> Option<String> {
    let usage = error.get(ContextKind::Usage).map(ToString::to_string)?;
    let word = text(error, ContextKind::InvalidArg)?;
    let stray = usage.contains("wallprof record") && !word.starts_with('-');
    let process = if word.starts_with(|c: char| c.is_ascii_digit()) { word } else { "PID" };
    stray
        .then(|| format!("`{word}` stands alone: a process is given as -p {process}, a command as -- {word}"))
}

/// A value outside of a fixed set, with the set.
fn unknown_value(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::Strings(known)) = error.get(ContextKind::ValidValue) else { return None };
    let (last, others) = known.split_last()?;
    // `--kind <KIND>`, `--intel-pt[=<MODE>]`, `<ORDER>`.
    let argument = text(error, ContextKind::InvalidArg)?;
    let name = argument.split([' ', '=']).next()?.trim_matches(['<', '>', '[', ']']);
    let known = if others.is_empty() { last.clone() } else { format!("{} or {last}", others.join(", ")) };
    let value = match text(error, ContextKind::InvalidValue).filter(|value| !value.is_empty()) {
        Some(value) => format!("`{value}` is none of them"),
        None => "no value was given".into(),
    };
    Some(format!("{name} takes {known}: {value}"))
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        _ => None,
    }
}

/// clap prints `error: …`, details, tips and the usage in paragraphs: the first paragraphs on one line.
fn sentence_from_clap(rendered: &str) -> String {
    let text = rendered.strip_prefix("error: ").unwrap_or(rendered);
    let before_usage = text.split("\n\nUsage:").next().unwrap_or(text);
    let before_help = before_usage.split("\n\nFor more information").next().unwrap_or(before_usage);
    let lines = before_help.split('\n').map(str::trim).filter(|line| !line.is_empty());
    // "to pass '--x' as a value, use '-- --x'": a misspelled option is not meant as the name of a command.
    let lines: Vec<_> = lines.filter(|line| !line.starts_with("tip: to pass")).collect();
    format!("{} (`wallprof --help` says more)", lines.join(", "))
}
