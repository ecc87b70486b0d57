// SPDX-License-Identifier: Apache-2.0
//! `wallprof symbolize`: names the frames of a recording that have no name, from debug files on this machine.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use wallprof_debuginfod::Downloads;
use wallprof_model::{Module, SymbolLine};
use wallprof_recording::{Naming, UnnamedFrame, UnnamedModule};
use wallprof_symbols::{
    DebugFileServer, DebugTree, ModuleFile, Resolver, ResolverOptions, SYSTEM_DEBUG_DIR, TreeLimits,
    lacks_debug_info,
};
use wallprof_views::escape;

use crate::args::MeaningArgs;
use crate::args::SymbolizeArgs;
use crate::debug_downloads;
use crate::failure::{Failure, say};
use crate::output;

/// Limit on the time of downloads.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Runs the command.
pub fn run(args: &SymbolizeArgs) -> Result<ExitCode, Failure> {
    args.debug_dirs.iter().try_for_each(|dir| check_folder(dir))?;
    let naming = Naming::open(&args.file)?;
    let modules = naming.modules()?;
    let unnamed =
        modules.iter().flat_map(|module| &module.frames).filter(|frame| frame.name.is_none()).count();
    let without_build_id = naming.unnameable()?.without_build_id;
    if unnamed == 0 && without_build_id > 0 {
        return Err(Failure::failed(format!(
            "nothing to resolve in {}: its {without_build_id} frames without a name have no build id, which is needed to \
             find a debug file",
            args.file.display()
        )));
    }
    if modules.is_empty() {
        return Ok(nothing_to_resolve(&args.file));
    }
    let downloads = debug_downloads::start();
    let options = options(args, &modules, downloads.as_deref());
    if let Some(downloads) = &downloads {
        debug_downloads::print_outcome(downloads, &args.file);
    }
    let mut resolver = Resolver::new(options);
    let found: Vec<Named> = modules.iter().map(|module| Named::resolve(module, &mut resolver)).collect();
    let has_findings = naming.has_findings()?;
    let names: Vec<_> = found.iter().flat_map(|named| named.names.iter().cloned()).collect();
    if names.is_empty() && unnamed == 0 {
        return Ok(nothing_to_resolve(&args.file));
    }
    naming.write(&names)?;
    if has_findings && !names.is_empty() {
        crate::findings::store(&args.file, &MeaningArgs::default().rules()?);
    }
    output::to_stdout(|out| Ok(write_table(out, &args.file, &found)?))?;
    print_left_out(resolver.unreadable(), without_build_id);
    Ok(ExitCode::SUCCESS)
}

fn nothing_to_resolve(file: &Path) -> ExitCode {
    say(&format!("nothing to resolve in {}: every frame has its name", file.display()));
    ExitCode::SUCCESS
}

fn check_folder(dir: &Path) -> Result<(), Failure> {
    match dir.is_dir() {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "--debug-dir {} is not a folder: give the folder with the debug files, or with the unstripped programs",
            dir.display()
        ))),
    }
}

/// The debug files to use: by build id in the system's folder, anywhere in the given folders, and from
/// servers.
fn options(
    args: &SymbolizeArgs,
    modules: &[UnnamedModule],
    downloads: Option<&Downloads>,
) -> ResolverOptions {
    let debug_dirs = args.debug_dirs.iter().cloned().chain([PathBuf::from(SYSTEM_DEBUG_DIR)]).collect();
    let mut options = ResolverOptions { debug_dirs, ..ResolverOptions::default() };
    let wanted = lacking(modules, &options);
    for dir in args.debug_dirs.iter().filter(|_| !wanted.is_empty()) {
        let tree = DebugTree::search(dir, &wanted, TreeLimits::default());
        if tree.is_cut {
            say(&format!(
                "{} was not searched completely ({} files and folders): give a smaller folder",
                dir.display(),
                tree.entries
            ));
        }
        merge(&mut options.files, tree.files);
    }
    if let Some(downloads) = downloads {
        options.download_dirs = vec![downloads.folder().to_owned()];
        lacking(modules, &options).iter().for_each(|build_id| downloads.want(build_id));
        await_downloads(downloads);
    }
    options
}

/// The build ids of modules without debug information so far.
fn lacking(modules: &[UnnamedModule], options: &ResolverOptions) -> HashSet<Vec<u8>> {
    let lacks = |module: &&Module| lacks_debug_info(&ModuleFile::locate(module), options);
    let modules = modules.iter().map(|module| &module.module).filter(lacks);
    modules.filter_map(|module| module.build_id.clone()).collect()
}

fn merge(all: &mut BTreeMap<Vec<u8>, Vec<PathBuf>>, more: BTreeMap<Vec<u8>, Vec<PathBuf>>) {
    for (build_id, files) in more {
        all.entry(build_id).or_default().extend(files);
    }
}

/// Waits for the downloads, with a progress line on a terminal.
fn await_downloads(downloads: &Downloads) {
    use std::io::IsTerminal;
    let is_terminal = io::stderr().is_terminal();
    downloads.wait_while(LONGEST_WAIT, |outcome| {
        if is_terminal {
            let _ = write!(io::stderr(), "\r\x1b[K{} debug files are still missing", outcome.open);
        }
        true
    });
    if is_terminal {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}

/// The names for one module.
struct Named {
    path: String,
    names: Vec<(u32, Vec<SymbolLine>)>,
    /// Frames that got a name; frames that had one and got file and line; frames still without a name.
    named: usize,
    completed: usize,
    remaining: usize,
}

impl Named {
    fn resolve(module: &UnnamedModule, resolver: &mut Resolver) -> Self {
        let addresses: Vec<u64> = module.frames.iter().map(|frame| frame.address).collect();
        let file = ModuleFile::locate(&module.module);
        let resolved = match module.code_offset {
            Some(code_offset) => resolver.resolve_offsets(&file, code_offset, &addresses),
            None => resolver.resolve(&file, &addresses),
        };
        let mut found = Named {
            path: module.module.path.clone(),
            names: Vec::new(),
            named: 0,
            completed: 0,
            remaining: 0,
        };
        for (frame, lines) in module.frames.iter().zip(resolved) {
            let was_named = frame.name.is_some();
            match useful(frame, lines) {
                Some(lines) => {
                    found.names.push((frame.frame, lines));
                    found.named += usize::from(!was_named);
                    found.completed += usize::from(was_named);
                }
                None => found.remaining += usize::from(!was_named),
            }
        }
        found
    }
}

/// The lines to write for a frame. A frame with a name keeps it, and gets file, line and inlined functions
/// only if they belong to a function that starts at the same address.
fn useful(frame: &UnnamedFrame, mut lines: Vec<SymbolLine>) -> Option<Vec<SymbolLine>> {
    let physical = lines.last_mut()?;
    match &frame.name {
        None => physical.symbol.is_some().then_some(lines),
        Some(known) => {
            let is_same = known.offset.is_some() && known.offset == physical.offset;
            let has_line = physical.file.is_some();
            physical.symbol = Some(known.symbol.clone());
            (is_same && has_line).then_some(lines)
        }
    }
}

fn write_table(out: &mut dyn Write, file: &Path, modules: &[Named]) -> io::Result<()> {
    let sum = |of: fn(&Named) -> usize| modules.iter().map(of).sum::<usize>();
    let (named, remaining) = (sum(|module| module.named), sum(|module| module.remaining));
    let completed = sum(|module| module.completed);
    writeln!(out, "{}: {named} frames named, {remaining} remain", escape(&file.display().to_string()))?;
    if completed > 0 {
        writeln!(out, "{completed} more had a name and got file and line")?;
    }
    if named + remaining > 0 {
        writeln!(out, "{:>8} {:>8}  module", "named", "remain")?;
    }
    for module in modules.iter().filter(|module| module.named + module.remaining > 0) {
        writeln!(out, "{:>8} {:>8}  {}", module.named, module.remaining, escape(&module.path))?;
    }
    Ok(())
}

fn print_left_out(unreadable: u64, without_build_id: u64) {
    left_out(unreadable, without_build_id).iter().for_each(|message| say(message));
}

/// One sentence for each kind of thing without names. An unreadable file is a debug file or the module's own.
fn left_out(unreadable: u64, without_build_id: u64) -> Vec<String> {
    let files = match unreadable {
        0 => None,
        1 => Some(
            "1 file of a program or of its debug information is damaged or too large: it was left out".into(),
        ),
        number => Some(format!(
            "{number} files of programs or of their debug information are damaged or too large: they were left out"
        )),
    };
    let frames = (without_build_id > 0)
        .then(|| format!("{without_build_id} frames without a name have no build id: they stay unnamed"));
    files.into_iter().chain(frames).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_recording::KnownName;

    fn line(symbol: &str, offset: u64, file: Option<&str>) -> SymbolLine {
        SymbolLine {
            symbol: Some(symbol.into()),
            offset: Some(offset),
            file: file.map(str::to_owned),
            ..SymbolLine::default()
        }
    }

    #[test]
    fn unreadable_files_are_not_called_debug_files() {
        assert_eq!(left_out(0, 0), Vec::<String>::new());
        let [one, frames] = &left_out(1, 7)[..] else { panic!() };
        assert!(one.starts_with("1 file of a program or of its debug information is damaged"), "{one}");
        assert!(frames.starts_with("7 frames"), "{frames}");
        assert!(left_out(2, 0)[0].contains("2 files of programs"), "{:?}", left_out(2, 0));
    }

    #[test]
    fn known_name_gets_lines_of_the_same_function_only() {
        let name = |offset| Some(KnownName { symbol: "read".into(), offset });
        let frame = |name| UnnamedFrame { frame: 1, address: 0x10, name };
        let found = || vec![line("__GI_read", 4, Some("read.c"))];
        assert_eq!(useful(&frame(name(Some(4))), found()), Some(vec![line("read", 4, Some("read.c"))]));
        assert_eq!(useful(&frame(name(Some(5))), found()), None);
        assert_eq!(useful(&frame(name(None)), found()), None);
        assert_eq!(useful(&frame(name(Some(4))), vec![line("__GI_read", 4, None)]), None);
        assert_eq!(useful(&frame(None), found()), Some(found()));
        assert_eq!(useful(&frame(None), vec![SymbolLine::default()]), None);
    }

    #[test]
    fn table_counts_named_and_unnamed_frames() {
        let module = |path: &str, named, remaining, completed| Named {
            path: path.into(),
            names: Vec::new(),
            named,
            completed,
            remaining,
        };
        let mut text = Vec::new();
        let modules = [module("/bin/a\n", 2, 1, 0), module("/bin/b", 0, 0, 5)];
        write_table(&mut text, Path::new("x.db"), &modules).unwrap();
        let expected = "x.db: 2 frames named, 1 remain\n5 more had a name and got file and line\n\
            \x20  named   remain  module\n\x20      2        1  /bin/a\\n\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
