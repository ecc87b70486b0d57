// SPDX-License-Identifier: Apache-2.0
//! `wallprof help`: the help of a command, a page of the documentation, or the schema of what `--json` prints. Reports
//! point here, because a user of the binary has no `docs/`.

use std::io::Read;
use std::process::ExitCode;

use clap::Command;
use flate2::read::GzDecoder;
use wallprof_views::{Page, page_text, schema_json};

use crate::args;
use crate::failure::Failure;
use crate::output::to_stdout;
use crate::terminal::style_for_stdout;

/// A page that can be printed: its name, and its text as build.rs compressed it.
type Compressed = (&'static str, &'static [u8]);

const PAGES: [Compressed; 3] = [
    ("findings", include_bytes!(concat!(env!("OUT_DIR"), "/findings.md.gz"))),
    ("recording", include_bytes!(concat!(env!("OUT_DIR"), "/recording.md.gz"))),
    ("symbols", include_bytes!(concat!(env!("OUT_DIR"), "/symbols.md.gz"))),
];

/// The topic that is no page: JSON Schema, for programs.
const SCHEMA: &str = "schema";

/// Runs the command. Without a topic it prints what `wallprof --help` prints, and the names of the pages.
pub fn run(topic: Option<&str>) -> Result<ExitCode, Failure> {
    let mut program = args::definition();
    program.build();
    match topic {
        None => {
            let text = program.render_long_help();
            let pages = page_names().join(", ");
            print(&format!(
                "{text}\nPages: {pages}: `wallprof help PAGE` prints one. `wallprof help {SCHEMA}` prints the JSON \
                 Schema of each output of --json.\n"
            ))
        }
        Some(SCHEMA) => to_stdout(|mut out| Ok(schema_json(&mut out)?)).map(|()| ExitCode::SUCCESS),
        Some(topic) => match (page(topic), command(&mut program, topic)) {
            (Some(page), _) => print_page(*page),
            (None, Some(command)) => print(&command.render_long_help().to_string()),
            (None, None) => Err(Failure::usage(format!(
                "`{topic}` is neither a command nor a page: give a command, {SCHEMA}, or {}",
                page_names().join(", ")
            ))),
        },
    }
}

fn print(text: &str) -> Result<ExitCode, Failure> {
    to_stdout(|out| Ok(write!(out, "{text}")?)).map(|()| ExitCode::SUCCESS)
}

fn print_page(page: Compressed) -> Result<ExitCode, Failure> {
    let (names, markdown) = (page_names(), markdown(page));
    let page = Page { name: page.0, markdown: &markdown };
    to_stdout(|mut out| Ok(page_text(&mut out, &page, &names, &style_for_stdout())?))
        .map(|()| ExitCode::SUCCESS)
}

fn markdown((name, compressed): Compressed) -> String {
    let mut text = String::new();
    let read = GzDecoder::new(compressed).read_to_string(&mut text);
    read.map(|_| text).unwrap_or_else(|error| panic!("build.rs compressed {name}: {error}"))
}

fn page_names() -> Vec<&'static str> {
    PAGES.iter().map(|(name, _)| *name).collect()
}

fn page(name: &str) -> Option<&'static Compressed> {
    PAGES.iter().find(|(known, _)| *known == name)
}

/// A command that the help shows.
fn command<'p>(program: &'p mut Command, name: &str) -> Option<&'p mut Command> {
    program.get_subcommands_mut().find(|command| command.get_name() == name && !command.is_hide_set())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use wallprof_findings::RULES;
    use wallprof_views::Style;

    use super::*;

    fn text(page: &Compressed) -> String {
        let (mut out, markdown) = (Vec::new(), markdown(*page));
        let page = Page { name: page.0, markdown: &markdown };
        page_text(&mut out, &page, &page_names(), &Style { width: 80, ..Style::plain() }).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn findings_explains_every_rule() {
        let text = text(page("findings").unwrap());
        for rule in RULES {
            assert!(text.lines().any(|line| line == rule.name), "{}", rule.name);
        }
    }

    #[test]
    fn pages_are_text_that_points_to_no_file() {
        for page in &PAGES {
            let text = text(page);
            let links = ["](", ".md)", "<a ", "```", "| --"];
            let left = text.lines().find(|line| links.iter().any(|link| line.contains(link)));
            assert_eq!(left, None, "{}", page.0);
        }
        assert!(text(page("findings").unwrap()).contains("`wallprof help recording`"));
    }

    #[test]
    fn a_topic_is_a_page_or_a_command_and_not_both() {
        let mut program = args::definition();
        program.build();
        for name in page_names().into_iter().chain([SCHEMA]) {
            assert!(command(&mut program, name).is_none(), "{name} is a command, too");
        }
        assert!(command(&mut program, "record").is_some());
        assert!(command(&mut program, crate::documents::SUBCOMMAND).is_none());
        let unknown = run(Some("lock-wait")).unwrap_err();
        assert_eq!(unknown.exit, crate::failure::Exit::Usage);
        assert!(unknown.message.contains("findings"), "{}", unknown.message);
    }

    /// Texts that a program prints. Comments and tests may name the files of this repository.
    #[test]
    fn no_message_points_to_a_file_of_the_repository() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut read = 0;
        for folder in fs::read_dir(crates).unwrap() {
            read += check(&folder.unwrap().path().join("src"));
        }
        assert!(read > 100, "{read} files");
    }

    /// Returns how many source files are in `folder`.
    fn check(folder: &Path) -> usize {
        let mut read = 0;
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read += check(&path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = fs::read_to_string(&path).unwrap();
                let is_message = |line: &&str| !line.starts_with("//");
                let program = source.split("#[cfg(test)]").next().unwrap_or_default();
                let found =
                    program.lines().map(str::trim).filter(is_message).find(|line| line.contains("docs/"));
                assert_eq!(found, None, "{}", path.display());
                read += 1;
            }
        }
        read
    }
}
