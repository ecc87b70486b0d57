// SPDX-License-Identifier: Apache-2.0
//! The reader's side: reads one file within its limits and answers until the parent closes the socket.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;

use wallprof_model::{Owner, SymbolLine};

use super::command::ReaderCommand;
use super::confine::{confine, forbid_writing};
use super::wire::{self, Scope, Setup};
use crate::debug_parser::{Answer, DebugFunction};
use crate::elf::ElfFacts;
use crate::live_file::{FileKey, reopen};
use crate::parsed_module::{ForeignCopy, ParsedModule};
use crate::read_limits::Budget;
use crate::resolver::ResolverOptions;

/// Of a copy besides the sections that are copied: headers and names.
const COPY_SLACK: u64 = 16 << 20;

/// Reads the file at standard input for the parent at standard output; see the module. The parent ignores
/// the exit code: it counts missing answers.
pub fn run_reader() -> ExitCode {
    // The parent counts a file that makes blazesym panic.
    std::panic::set_hook(Box::new(|_| {}));
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve() -> io::Result<()> {
    let mut socket = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
    let found = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut setup = [0; Setup::LEN];
    socket.read_exact(&mut setup)?;
    let setup = Setup::decode(&setup).ok_or(io::ErrorKind::InvalidData)?;
    // Opening a file may never return, as reading it, so that the parent has found it only.
    let file = reopen(&found)?;
    confine(setup.copy_limit.saturating_add(COPY_SLACK))?;
    if setup.scope == Scope::Headers {
        return socket.write_all(&wire::encode_headers(ElfFacts::read(&file).ok().as_ref()));
    }
    let mut names = Names::open(Arc::new(file), &setup);
    forbid_writing()?;
    while let Some(addresses) = receive_addresses(&mut socket)? {
        socket.write_all(&wire::encode_answer(&names.answer(&addresses)))?;
    }
    Ok(())
}

/// `None` when the parent has closed the socket.
fn receive_addresses(socket: &mut UnixStream) -> io::Result<Option<Vec<u64>>> {
    let mut count = [0; 4];
    if socket.read(&mut count[..1])? == 0 {
        return Ok(None);
    }
    socket.read_exact(&mut count[1..])?;
    let count = u32::from_le_bytes(count) as usize;
    if count > wire::MAX_ADDRESSES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; count * 8];
    socket.read_exact(&mut bytes)?;
    let (addresses, _) = bytes.as_chunks::<8>();
    Ok(Some(addresses.iter().map(|address| u64::from_le_bytes(*address)).collect()))
}

/// The names in the reader's file.
enum Names {
    Debug(Box<ForeignCopy>),
    All(Box<ParsedModule>, Budget),
    Unreadable,
}

impl Names {
    fn open(file: Arc<File>, setup: &Setup) -> Self {
        let options = ResolverOptions {
            debug_dirs: Vec::new(),
            unpacked_limit: setup.unpacked_limit,
            debug_limit: setup.debug_limit,
            copy_limit: setup.copy_limit,
            reader: Some(ReaderCommand::here()),
            ..ResolverOptions::default()
        };
        let opened = match setup.scope {
            Scope::DebugInformation => ForeignCopy::open(&file, &options).map(Box::new).map(Names::Debug),
            Scope::AllNames => Self::open_all(&options, &file),
            Scope::Headers => None,
        };
        opened.unwrap_or(Names::Unreadable)
    }

    fn open_all(options: &ResolverOptions, file: &Arc<File>) -> Option<Self> {
        let key = FileKey::of_file(file).ok()?;
        let mut budget = Budget::new(None);
        let module =
            ParsedModule::new(options, file, key, |_| Vec::new(), &mut budget.for_file(Owner::UNKNOWN))
                .ok()?;
        Some(Names::All(Box::new(module), budget))
    }

    fn answer(&mut self, addresses: &[u64]) -> Answer {
        match self {
            Names::Debug(copy) => copy.answer(addresses),
            Names::All(module, budget) => {
                let lines = module.resolve(addresses, &mut budget.for_file(Owner::UNKNOWN));
                let is_damaged = !module.take_damaged().is_empty();
                Answer { functions: lines.into_iter().map(named_function).collect(), is_damaged }
            }
            Names::Unreadable => Answer { functions: vec![None; addresses.len()], is_damaged: true },
        }
    }
}

/// Names that are certain: where the function begins was checked here.
fn named_function(lines: Vec<SymbolLine>) -> Option<DebugFunction> {
    let has_name = lines.iter().any(|line| line.symbol.is_some());
    has_name.then_some(DebugFunction { lines, start: 0, sized: true })
}
