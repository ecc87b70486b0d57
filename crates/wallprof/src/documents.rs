// SPDX-License-Identifier: Apache-2.0
//! Man pages and shell completions, generated from the definition of the command line when a release is made.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Command;
use clap_complete::{Generator, Shell};

use crate::args;
use crate::failure::Failure;

/// The hidden subcommand that writes them.
pub const SUBCOMMAND: &str = "__documents";

const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// Writes `folder/man/*.1` and `folder/completions/*`.
pub fn run(folder: &Path) -> Result<ExitCode, Failure> {
    let written = write(&folder.join("man"), man_pages)
        .and_then(|()| write(&folder.join("completions"), |program| Ok(completions(program))));
    written.map_err(|error| {
        Failure::failed(format!("cannot write into {}: {error}: name a writable folder", folder.display()))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A file's name and content.
type Document = (String, Vec<u8>);

fn write(folder: &Path, make: fn(&Command) -> io::Result<Vec<Document>>) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, content) in make(&shown(&args::definition()))? {
        fs::write(folder.join(name), content)?;
    }
    Ok(())
}

/// The program without its hidden commands, which the generators would include.
fn shown(definition: &Command) -> Command {
    let about = definition.get_about().cloned().unwrap_or_default();
    let commands = definition.get_subcommands().filter(|command| !command.is_hide_set());
    let mut program = Command::new("wallprof")
        .about(about)
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommands(commands.cloned());
    program.build();
    program
}

/// `wallprof.1`, and one page a command.
fn man_pages(program: &Command) -> io::Result<Vec<Document>> {
    let commands = std::iter::once(program).chain(program.get_subcommands());
    commands
        .map(|command| {
            let name = page_name(command);
            let mut page = Vec::new();
            clap_mangen::Man::new(command.clone()).title(&name).render(&mut page)?;
            Ok((format!("{name}.1"), page))
        })
        .collect()
}

/// `wallprof-record`: the display name of a built subcommand.
fn page_name(command: &Command) -> String {
    command.get_display_name().unwrap_or(command.get_name()).to_string()
}

fn completions(program: &Command) -> Vec<Document> {
    let document = |shell: Shell| {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut program.clone(), "wallprof", &mut script);
        (shell.file_name("wallprof"), script)
    };
    SHELLS.map(document).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(documents: &[Document], name: &str) -> String {
        let found = documents.iter().find(|(file, _)| file == name);
        let (_, content) = found.unwrap_or_else(|| panic!("{name} among {:?}", names(documents)));
        String::from_utf8(content.clone()).unwrap()
    }

    fn names(documents: &[Document]) -> Vec<&str> {
        documents.iter().map(|(file, _)| file.as_str()).collect()
    }

    #[test]
    fn each_visible_command_has_a_page_with_its_options() {
        let program = shown(&args::definition());
        let pages = man_pages(&program).unwrap();
        assert_eq!(pages.len(), 1 + program.get_subcommands().count());
        let record = text(&pages, "wallprof-record.1");
        assert!(record.contains("\\-\\-min\\-stall") && record.contains("wallprof\\-record"), "{record}");
        assert!(text(&pages, "wallprof.1").contains("wallprof\\-stalls(1)"));
    }

    #[test]
    fn each_shell_completes_commands_and_values() {
        let scripts = completions(&shown(&args::definition()));
        assert_eq!(names(&scripts), ["wallprof.bash", "_wallprof", "wallprof.fish"]);
        for (name, script) in &scripts {
            let script = String::from_utf8_lossy(script);
            assert!(script.contains("stalls") && script.contains("min-stall"), "{name}");
            for value in ["speedscope", "off-cpu", "preempted", "perf-script", "dwarf", "snapshot", "wakers"]
            {
                assert!(script.contains(value), "{name} has no {value}");
            }
        }
    }

    #[test]
    fn hidden_command_is_in_no_document() {
        let program = shown(&args::definition());
        for (name, content) in man_pages(&program).unwrap().into_iter().chain(completions(&program)) {
            let content = String::from_utf8(content).unwrap();
            assert!(!content.contains("__held") && !content.contains(SUBCOMMAND), "{name}");
        }
    }
}
