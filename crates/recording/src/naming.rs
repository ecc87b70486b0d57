// SPDX-License-Identifier: Apache-2.0
//! Names that are added to a complete recording: lists the frames without a name, and writes names in one
//! transaction.
//!
//! A frame that has a name keeps it. A frame without a build id is not listed, because nothing could prove
//! that a name belongs to its file.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, Result as SqlResult, TransactionBehavior, params};
use wallprof_model::{FrameKind, Module, SymbolLine};

use crate::error::{Action, Error, Result};
use crate::foreign;
use crate::intern::{MAX_LINES, clipped};
use crate::row::{bits, optional_bits, optional_unsigned};

/// Shorter build ids have no path in a debug folder. Linkers write none that are longer.
const BUILD_ID_BYTES: std::ops::RangeInclusive<usize> = 2..=64;

/// A module with frames that lack names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnnamedModule {
    pub module: Module,
    /// Frames have offsets in the file, whose code was mapped from this one
    /// ([`wallprof_model::MissingFile`]).
    pub code_offset: Option<u64>,
    pub frames: Vec<UnnamedFrame>,
}

/// A frame of such a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnnamedFrame {
    /// Its number in the recording.
    pub frame: u32,
    /// In the module's ELF file, or an offset in that file.
    pub address: u64,
    /// Its name, where only file and line are missing.
    pub name: Option<KnownName>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownName {
    pub symbol: String,
    pub offset: Option<u64>,
}

/// Frames that cannot be named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unnameable {
    /// In modules without a build id.
    pub without_build_id: u64,
}

/// A recording to which names are added. Dropped without [`Naming::write`], it does not change.
pub struct Naming {
    path: PathBuf,
    connection: Connection,
}

impl Naming {
    /// Opens a complete recording, or one whose recorder was killed, but none that is being written.
    pub fn open(path: &Path) -> Result<Self> {
        let (path, connection) = foreign::open_to_change(path)?;
        Ok(Naming { path, connection })
    }

    /// The modules with a build id whose frames have no name, or no file and line; the frames by their
    /// numbers.
    pub fn modules(&self) -> Result<Vec<UnnamedModule>> {
        self.read_modules().map_err(|source| self.failed(Action::Read, source))
    }

    pub fn unnameable(&self) -> Result<Unnameable> {
        let count = self.connection.query_row(
            "SELECT count(*) FROM frame LEFT JOIN module ON module.id = frame.module
             WHERE frame.kind_code = ?1
                 AND coalesce(module.build_id, module.missing_build_id) IS NULL AND NOT EXISTS
                 (SELECT 1 FROM line WHERE line.frame = frame.id AND line.symbol IS NOT NULL)",
            [FrameKind::Native as u8],
            |row| row.get(0),
        );
        let without_build_id: i64 = count.map_err(|source| self.failed(Action::Read, source))?;
        Ok(Unnameable { without_build_id: without_build_id.unsigned_abs() })
    }

    /// Whether the file holds findings, whose texts may change with the names.
    pub fn has_findings(&self) -> Result<bool> {
        let found = self.connection.query_row("SELECT EXISTS (SELECT 1 FROM finding)", [], |row| row.get(0));
        found.map_err(|source| self.failed(Action::Read, source))
    }

    /// Writes the functions of these frames, innermost first: all of them or, after an error, none.
    pub fn write(mut self, names: &[(u32, Vec<SymbolLine>)]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let written = write(&mut self.connection, names);
        written.map_err(|source| Error::from_sqlite(&self.path, Action::Write, source))
    }

    fn read_modules(&self) -> SqlResult<Vec<UnnamedModule>> {
        let mut modules: Vec<UnnamedModule> = Vec::new();
        let mut of_row = HashMap::new();
        let mut find = self.connection.prepare(
            "SELECT module.id AS id, path.text AS path,
                 coalesce(module.build_id, module.missing_build_id) AS known_build_id,
                 CASE WHEN module.build_id IS NULL THEN module.code_offset END AS code_offset
             FROM module JOIN text AS path ON path.id = module.path
             WHERE known_build_id IS NOT NULL ORDER BY module.id",
        )?;
        let mut rows = find.query([])?;
        while let Some(row) = rows.next()? {
            let id: u32 = row.get("id")?;
            let (path, build_id): (String, Vec<u8>) = (row.get("path")?, row.get("known_build_id")?);
            if BUILD_ID_BYTES.contains(&build_id.len()) {
                of_row.insert(id, modules.len());
                let module = Module { path, build_id: Some(build_id) };
                let code_offset = optional_bits(row, "code_offset")?;
                modules.push(UnnamedModule { module, code_offset, frames: Vec::new() });
            }
        }
        for sql in [WITHOUT_NAME, WITHOUT_LINE] {
            let mut find = self.connection.prepare(sql)?;
            let mut rows = find.query([FrameKind::Native as u8])?;
            while let Some(row) = rows.next()? {
                let Some(&at) = of_row.get(&row.get::<_, u32>("module")?) else { continue };
                let offset = optional_unsigned(row, "offset")?;
                let name = row.get::<_, Option<String>>("symbol")?.map(|symbol| KnownName { symbol, offset });
                let frame = UnnamedFrame { frame: row.get("frame")?, address: bits(row, "address")?, name };
                modules[at].frames.push(frame);
            }
        }
        modules.retain(|module| !module.frames.is_empty());
        Ok(modules)
    }

    fn failed(&self, action: Action, source: rusqlite::Error) -> Error {
        Error::from_sqlite(&self.path, action, source)
    }
}

const WITHOUT_NAME: &str =
    "SELECT frame.module AS module, frame.id AS frame, frame.address AS address, NULL AS symbol,
         NULL AS offset
     FROM frame
     WHERE frame.module IS NOT NULL AND frame.kind_code = ?1 AND NOT EXISTS
         (SELECT 1 FROM line WHERE line.frame = frame.id AND line.symbol IS NOT NULL)
     ORDER BY frame.id";

/// Frames with one function of which only the name is known.
const WITHOUT_LINE: &str =
    "SELECT frame.module AS module, frame.id AS frame, frame.address AS address, symbol.text AS symbol,
         line.offset AS offset
     FROM frame
     JOIN line ON line.frame = frame.id AND line.depth = 0 AND line.file IS NULL AND NOT line.inlined
     JOIN text AS symbol ON symbol.id = line.symbol
     WHERE frame.module IS NOT NULL AND frame.kind_code = ?1 AND NOT EXISTS
         (SELECT 1 FROM line AS outer_line WHERE outer_line.frame = frame.id AND outer_line.depth > 0)
     ORDER BY frame.id";

fn write(connection: &mut Connection, names: &[(u32, Vec<SymbolLine>)]) -> SqlResult<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut texts = Texts::known(&transaction, names)?;
    for (frame, lines) in names {
        if !may_be_replaced(&transaction, *frame, lines)? {
            continue;
        }
        transaction.prepare_cached("DELETE FROM line WHERE frame = ?")?.execute([frame])?;
        for (depth, line) in (0i64..).zip(lines.iter().take(MAX_LINES)) {
            let symbol = texts.optional(&transaction, line.symbol.as_deref())?;
            let file = texts.optional(&transaction, line.file.as_deref())?;
            let offset = line.offset.map(u64::cast_signed);
            transaction
                .prepare_cached(
                    "INSERT INTO line (frame, depth, symbol, offset, file, line, inlined)
                     VALUES (?, ?, ?, ?, ?, ?, ?)",
                )?
                .execute(params![frame, depth, symbol, offset, file, line.line, line.inlined])?;
        }
    }
    transaction.commit()
}

/// Whether the frame has no name yet, or the same name. Another program may have named it meanwhile.
fn may_be_replaced(connection: &Connection, frame: u32, lines: &[SymbolLine]) -> SqlResult<bool> {
    let known: Option<String> = connection
        .prepare_cached(
            "SELECT text.text FROM line JOIN text ON text.id = line.symbol
             WHERE line.frame = ? ORDER BY line.depth DESC",
        )?
        .query_row([frame], |row| row.get(0))
        .optional()?;
    let physical = lines.last().and_then(|line| line.symbol.as_deref());
    Ok(known.is_none_or(|known| physical.map(clipped) == Some(known.as_str())))
}

/// The numbers of texts, old and new.
struct Texts(HashMap<String, i64>);

impl Texts {
    fn known(connection: &Connection, names: &[(u32, Vec<SymbolLine>)]) -> SqlResult<Self> {
        let lines = names.iter().flat_map(|(_, lines)| lines);
        let texts = lines.flat_map(|line| [line.symbol.as_deref(), line.file.as_deref()]).flatten();
        let wanted: HashSet<&str> = texts.map(clipped).collect();
        let mut known = HashMap::new();
        let mut all = connection.prepare("SELECT id, text FROM text")?;
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            let text: String = row.get("text")?;
            if wanted.contains(text.as_str()) {
                known.insert(text, row.get("id")?);
            }
        }
        Ok(Texts(known))
    }

    fn optional(&mut self, connection: &Connection, text: Option<&str>) -> SqlResult<Option<i64>> {
        let Some(text) = text.map(clipped) else { return Ok(None) };
        if let Some(id) = self.0.get(text) {
            return Ok(Some(*id));
        }
        connection.prepare_cached("INSERT INTO text (text) VALUES (?)")?.execute([text])?;
        let id = connection.last_insert_rowid();
        self.0.insert(text.to_owned(), id);
        Ok(Some(id))
    }
}
