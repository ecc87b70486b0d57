//! Names that a complete recording is given afterwards: which frames have none, and writing them in one
//! transaction.
//!
//! A frame that has a name keeps it. A frame without a build id is not offered: nothing would prove whose
//! name it gets.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, Result as SqlResult, TransactionBehavior, params};
use wallprof_model::{FrameKind, Module, SymbolLine};

use crate::error::{Action, Error, Result};
use crate::foreign;
use crate::intern::clipped;
use crate::recorder::MAX_LINES;
use crate::row::{bits, optional_unsigned};

/// Shorter ones have no place in a debug folder; longer ones no linker writes.
const BUILD_ID_BYTES: std::ops::RangeInclusive<usize> = 2..=64;

/// A module with frames that want names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnnamedModule {
    pub module: Module,
    pub frames: Vec<UnnamedFrame>,
}

/// A frame of such a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnnamedFrame {
    /// Its number in the recording.
    pub frame: u32,
    /// In the module's ELF file.
    pub address: u64,
    /// Its name, where only file and line are missing.
    pub name: Option<KnownName>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownName {
    pub symbol: String,
    pub offset: Option<u64>,
}

/// Frames that nothing can name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftAlone {
    /// In modules without a build id.
    pub without_build_id: u64,
}

/// A recording that is given names. Dropped without [`Naming::write`] it stays as it was.
pub struct Naming {
    path: PathBuf,
    connection: Connection,
}

impl Naming {
    /// Opens a complete recording, or what a killed recorder left; not one that is being written.
    pub fn open(path: &Path) -> Result<Self> {
        let (path, connection) = foreign::open_to_change(path)?;
        Ok(Naming { path, connection })
    }

    /// The modules with a build id whose frames have no name, or no file and line; the frames by their
    /// numbers.
    pub fn modules(&self) -> Result<Vec<UnnamedModule>> {
        self.read_modules().map_err(|source| self.failed(Action::Read, source))
    }

    pub fn left_alone(&self) -> Result<LeftAlone> {
        let count = self.connection.query_row(
            "SELECT count(*) FROM frame LEFT JOIN module ON module.id = frame.module
             WHERE frame.kind_code = ?1 AND module.build_id IS NULL AND NOT EXISTS
                 (SELECT 1 FROM line WHERE line.frame = frame.id AND line.symbol IS NOT NULL)",
            [FrameKind::Native as u8],
            |row| row.get(0),
        );
        let without_build_id: i64 = count.map_err(|source| self.failed(Action::Read, source))?;
        Ok(LeftAlone { without_build_id: without_build_id.unsigned_abs() })
    }

    /// Whether conclusions are in the file: names may change their words.
    pub fn has_findings(&self) -> Result<bool> {
        let found = self.connection.query_row("SELECT EXISTS (SELECT 1 FROM finding)", [], |row| row.get(0));
        found.map_err(|source| self.failed(Action::Read, source))
    }

    /// Gives these frames their functions, innermost first. All of it is in the file afterwards, or nothing.
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
            "SELECT module.id, path.text, module.build_id
             FROM module JOIN text AS path ON path.id = module.path
             WHERE module.build_id IS NOT NULL ORDER BY module.id",
        )?;
        let mut rows = find.query([])?;
        while let Some(row) = rows.next()? {
            let (id, path, build_id): (u32, String, Vec<u8>) = (row.get(0)?, row.get(1)?, row.get(2)?);
            if BUILD_ID_BYTES.contains(&build_id.len()) {
                of_row.insert(id, modules.len());
                let module = Module { path, build_id: Some(build_id) };
                modules.push(UnnamedModule { module, frames: Vec::new() });
            }
        }
        for sql in [WITHOUT_NAME, WITHOUT_LINE] {
            let mut find = self.connection.prepare(sql)?;
            let mut rows = find.query([FrameKind::Native as u8])?;
            while let Some(row) = rows.next()? {
                let Some(&at) = of_row.get(&row.get::<_, u32>(0)?) else { continue };
                let offset = optional_unsigned(row, 4)?;
                let name = row.get::<_, Option<String>>(3)?.map(|symbol| KnownName { symbol, offset });
                let frame = UnnamedFrame { frame: row.get(1)?, address: bits(row, 2)?, name };
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

const WITHOUT_NAME: &str = "SELECT frame.module, frame.id, frame.address, NULL, NULL FROM frame
     WHERE frame.module IS NOT NULL AND frame.kind_code = ?1 AND NOT EXISTS
         (SELECT 1 FROM line WHERE line.frame = frame.id AND line.symbol IS NOT NULL)
     ORDER BY frame.id";

/// One function, by its name alone.
const WITHOUT_LINE: &str = "SELECT frame.module, frame.id, frame.address, symbol.text, line.offset FROM frame
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
            transaction.prepare_cached("INSERT INTO line VALUES (?, ?, ?, ?, ?, ?, ?)")?.execute(params![
                frame,
                depth,
                symbol,
                offset,
                file,
                line.line,
                line.inlined
            ])?;
        }
    }
    transaction.commit()
}

/// A name that is there, or has come meanwhile, stays.
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
            let text: String = row.get(1)?;
            if wanted.contains(text.as_str()) {
                known.insert(text, row.get(0)?);
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
