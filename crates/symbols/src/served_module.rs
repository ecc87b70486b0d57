// SPDX-License-Identifier: Apache-2.0
//! A module whose file is only touched by a reader, because a read may block for ever.

use std::fs::File;
use std::sync::Arc;

use wallprof_model::SymbolLine;

use crate::debug_parser::DebugFunction;
use crate::live_file::FileKey;
use crate::parsed_module::reader_setup;
use crate::read_limits::FileBudget;
use crate::reader::ReaderProcess;
use crate::reader::wire::{MAX_ADDRESSES, Scope};
use crate::resolver::ResolverOptions;

type Lines = Vec<Vec<SymbolLine>>;

/// One file and the reader that has opened it.
pub(crate) struct ServedModule {
    pub key: FileKey,
    file: Arc<File>,
    reader: Option<ReaderProcess>,
}

impl ServedModule {
    pub(crate) fn new(file: &Arc<File>, key: FileKey) -> Self {
        ServedModule { key, file: Arc::clone(file), reader: None }
    }

    /// Names addresses, which ascend. The error has what could be named in spite of it: where debug
    /// information ends a reader, a second one reads symbol tables alone.
    pub(crate) fn resolve(
        &mut self,
        options: &ResolverOptions,
        addresses: &[u64],
        budget: &mut FileBudget<'_>,
    ) -> Result<Lines, Lines> {
        if let Some((lines, is_sound)) = self.attempt(options, addresses, budget) {
            return if is_sound { Ok(lines) } else { Err(lines) };
        }
        let symbols_only = ResolverOptions { debug_limit: 0, ..options.clone() };
        let retried = (options.debug_limit > 0).then(|| self.attempt(&symbols_only, addresses, budget));
        let nothing = || vec![vec![SymbolLine::default()]; addresses.len()];
        Err(retried.flatten().map_or_else(nothing, |(lines, _)| lines))
    }

    /// The names, and whether the file is sound; `None` when the reader has failed or its time is over.
    fn attempt(
        &mut self,
        options: &ResolverOptions,
        addresses: &[u64],
        budget: &mut FileBudget<'_>,
    ) -> Option<(Lines, bool)> {
        let mut all = Vec::with_capacity(addresses.len());
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => self.start(options, budget)?,
        };
        let mut is_sound = true;
        for part in addresses.chunks(MAX_ADDRESSES) {
            let answer = budget.spend(true, 0, |deadline| reader.functions(part, deadline)).flatten()?;
            is_sound &= !answer.is_damaged;
            let lines = |function: Option<_>| match function {
                Some(DebugFunction { lines, .. }) => lines,
                None => vec![SymbolLine::default()],
            };
            all.extend(answer.functions.into_iter().map(lines));
        }
        self.reader = Some(reader);
        Some((all, is_sound))
    }

    fn start(&self, options: &ResolverOptions, budget: &mut FileBudget<'_>) -> Option<ReaderProcess> {
        let command = options.reader.as_ref()?;
        let setup = reader_setup(options, Scope::AllNames);
        // How much of the file is read is not known here, but it is no more than this.
        budget.spend(true, options.copy_limit, |_| ReaderProcess::start(command, &self.file, &setup).ok())?
    }
}
