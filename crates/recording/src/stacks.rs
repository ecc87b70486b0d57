// SPDX-License-Identifier: Apache-2.0
//! Stack ids → frames with names. Loads the tree once and each frame once.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::{Connection, Result, Row};
use wallprof_model::profile::{ResolvedFrame, ResolvedStack};
use wallprof_model::{FastMap, FrameKind, StackEnd, SymbolLine};

use crate::bounds::Bounds;
use crate::intern::{MAX_FRAMES, MAX_LINES, clipped};
use crate::row::{bits, coded, columns, decoded, optional_unsigned};
use crate::schema::{FIRST_NODE, end_from_root};

columns! {
    mod code { KIND_CODE = "kind_code", ADDRESS = "address", MODULE_PATH = "path", BUILD_ID = "build_id" }
}

columns! {
    mod line { SYMBOL = "symbol", OFFSET = "offset", FILE = "file", LINE = "line", INLINED = "inlined" }
}

columns! {
    mod node { ID = "id", PARENT = "parent", FRAME = "frame" }
}

/// Limit on the frames of cached stacks. At eight bytes each they take 16 MB: 65,536 stacks of thirty frames.
const CACHED_FRAMES: usize = 1 << 21;

/// The caches of stacks, frames and texts of one recording.
#[derive(Default)]
pub(crate) struct Stacks {
    tree: OnceCell<Tree>,
    frames: RefCell<FastMap<u32, Arc<ResolvedFrame>>>,
    stacks: RefCell<FastMap<u32, ResolvedStack>>,
    cached_frames: Cell<usize>,
    /// Nodes whose stacks were charged: a stack is kept once, however often it is asked for.
    charged: RefCell<HashSet<u32>>,
    pub(crate) bounds: Bounds,
    texts: RefCell<FastMap<u32, Arc<str>>>,
}

impl Stacks {
    pub fn resolve(&self, connection: &Connection, node: u32) -> Result<ResolvedStack> {
        if let Some(stack) = self.stacks.borrow().get(&node) {
            return Ok(stack.clone());
        }
        let (rows, end) = decoded(node, self.tree(connection)?.path(node))?;
        let mut frames = Vec::with_capacity(rows.len());
        for row in rows {
            frames.push(self.frame(connection, row)?);
        }
        let stack = ResolvedStack { frames: frames.into(), end };
        let mut cached = self.stacks.borrow_mut();
        if self.cached_frames.get() >= CACHED_FRAMES {
            cached.clear();
            self.cached_frames.set(0);
        }
        self.cached_frames.set(self.cached_frames.get() + stack.frames.len() + 1);
        cached.insert(node, stack.clone());
        Ok(stack)
    }

    /// A stack that its reader keeps, within the bounds of one reader.
    pub fn resolve_to_keep(&self, connection: &Connection, node: u32) -> Result<ResolvedStack> {
        let stack = self.resolve(connection, node)?;
        if self.charged.borrow_mut().insert(node) {
            self.bounds.steps(1 + stack.frames.iter().map(|frame| frame.lines.len()).sum::<usize>())?;
        }
        Ok(stack)
    }

    /// How the walk of a stack ended, without resolving it.
    pub fn end(&self, connection: &Connection, node: u32) -> Result<StackEnd> {
        decoded(node, self.tree(connection)?.end(node))
    }

    pub fn text(&self, connection: &Connection, id: u32) -> Result<Arc<str>> {
        if let Some(text) = self.texts.borrow().get(&id) {
            return Ok(Arc::clone(text));
        }
        let mut find = connection.prepare_cached("SELECT text FROM text WHERE id = ?")?;
        let text: Arc<str> = find.query_row([id], |row| Ok(clipped(row.get_ref(0)?.as_str()?).into()))?;
        self.texts.borrow_mut().insert(id, Arc::clone(&text));
        Ok(text)
    }

    pub fn optional_text(&self, connection: &Connection, id: Option<u32>) -> Result<Option<String>> {
        id.map(|id| Ok(self.text(connection, id)?.as_ref().to_owned())).transpose()
    }

    /// A text that its reader keeps, within the bounds of one reader.
    pub fn text_to_keep(&self, connection: &Connection, id: Option<u32>) -> Result<Option<String>> {
        let text = self.optional_text(connection, id)?;
        self.bounds.text(text.as_ref().map_or(0, String::len))?;
        Ok(text)
    }

    fn tree(&self, connection: &Connection) -> Result<&Tree> {
        if let Some(tree) = self.tree.get() {
            return Ok(tree);
        }
        let tree = Tree::load(connection)?;
        Ok(self.tree.get_or_init(|| tree))
    }

    pub fn frame(&self, connection: &Connection, id: u32) -> Result<Arc<ResolvedFrame>> {
        if let Some(frame) = self.frames.borrow().get(&id) {
            return Ok(Arc::clone(frame));
        }
        let frame = Arc::new(self.load_frame(connection, id)?);
        self.frames.borrow_mut().insert(id, Arc::clone(&frame));
        Ok(frame)
    }

    fn load_frame(&self, connection: &Connection, id: u32) -> Result<ResolvedFrame> {
        let mut find = connection.prepare_cached(&format!(
            "SELECT {} FROM frame LEFT JOIN module ON module.id = frame.module WHERE frame.id = ?",
            code::LIST
        ))?;
        let (mut frame, path) = find.query_row([id], frame_from_row)?;
        frame.module = self.text_to_keep(connection, path)?;
        let mut find = connection.prepare_cached(&format!(
            "SELECT {} FROM line WHERE frame = ? ORDER BY depth LIMIT ?",
            line::LIST
        ))?;
        let mut rows = find.query([id, MAX_LINES as u32])?;
        while let Some(row) = rows.next()? {
            frame.lines.push(self.line_from_row(connection, row)?);
        }
        if frame.lines.is_empty() {
            frame.lines.push(SymbolLine::default());
        }
        Ok(frame)
    }

    fn line_from_row(&self, connection: &Connection, row: &Row<'_>) -> Result<SymbolLine> {
        Ok(SymbolLine {
            symbol: self.text_to_keep(connection, row.get(line::SYMBOL)?)?,
            offset: optional_unsigned(row, line::OFFSET)?,
            file: self.text_to_keep(connection, row.get(line::FILE)?)?,
            line: row.get(line::LINE)?,
            inlined: row.get(line::INLINED)?,
        })
    }
}

/// A frame without its module's path and lines, and the text id of that path.
fn frame_from_row(row: &Row<'_>) -> Result<(ResolvedFrame, Option<u32>)> {
    let frame = ResolvedFrame {
        kind: coded(row, code::KIND_CODE, FrameKind::from_code)?,
        module: None,
        build_id: row.get(code::BUILD_ID)?,
        address: bits(row, code::ADDRESS)?,
        lines: Vec::new(),
    };
    Ok((frame, row.get(code::MODULE_PATH)?))
}

/// The prefix tree. Parents come before their children, so that every walk upwards ends.
struct Tree {
    /// Ascending. A bounded recording has gaps where nodes were deleted.
    ids: Vec<u32>,
    nodes: Vec<Node>,
}

struct Node {
    /// The index of the parent, so that a walk needs no search by id for each frame. A node of depth 1 is a
    /// child of a root, and has no parent here.
    parent: u32,
    frame: u32,
    /// The number of frames of the stack.
    depth: u16,
    end: StackEnd,
}

impl Tree {
    fn load(connection: &Connection) -> Result<Tree> {
        let mut tree = Tree { ids: Vec::new(), nodes: Vec::new() };
        let mut all =
            connection.prepare(&format!("SELECT {} FROM node WHERE id >= ? ORDER BY id", node::LIST))?;
        let mut rows = all.query([FIRST_NODE])?;
        while let Some(row) = rows.next()? {
            let (id, parent, frame) = (row.get(node::ID)?, row.get(node::PARENT)?, row.get(node::FRAME)?);
            if !tree.push(id, parent, frame) {
                return Err(rusqlite::Error::IntegralValueOutOfRange(0, i64::from(id)));
            }
        }
        Ok(tree)
    }

    /// Returns false for a node that is out of order, has no parent in the tree, or is deeper than a recorder
    /// writes.
    fn push(&mut self, id: u32, parent: u32, frame: u32) -> bool {
        let of_node = |at: u32| self.nodes.get(at as usize).map(|node| (at, node.depth, node.end));
        let above = match self.index(parent) {
            Some(at) => of_node(at),
            None => end_from_root(parent).map(|end| (0, 0, end)),
        };
        let Some((parent, depth, end)) = above else { return false };
        let is_next = self.ids.last().is_none_or(|&last| id > last);
        let fits = usize::from(depth) < MAX_FRAMES;
        if is_next && fits {
            self.ids.push(id);
            self.nodes.push(Node { parent, frame, depth: depth + 1, end });
        }
        is_next && fits
    }

    fn index(&self, id: u32) -> Option<u32> {
        // A recorder writes a new stack from its root inwards, so that most parents are the last node.
        let last = self.ids.len().checked_sub(1)?;
        let if_none_is_missing = id.checked_sub(FIRST_NODE)? as usize;
        let is_at = |at: &usize| self.ids.get(*at) == Some(&id);
        let found = [last, if_none_is_missing].into_iter().find(is_at);
        found.or_else(|| self.ids.binary_search(&id).ok()).map(|at| at as u32)
    }

    fn get(&self, id: u32) -> Option<&Node> {
        self.nodes.get(self.index(id)? as usize)
    }

    /// The frame rows of a stack, leaf first, and how its walk ended.
    fn path(&self, leaf: u32) -> Option<(Vec<u32>, StackEnd)> {
        let Some(leaf_node) = self.get(leaf) else { return Some((Vec::new(), end_from_root(leaf)?)) };
        let above = |node: &&Node| if node.depth > 1 { self.nodes.get(node.parent as usize) } else { None };
        let mut frames = Vec::with_capacity(usize::from(leaf_node.depth));
        frames.extend(std::iter::successors(Some(leaf_node), above).map(|node| node.frame));
        Some((frames, leaf_node.end))
    }

    fn end(&self, leaf: u32) -> Option<StackEnd> {
        self.get(leaf).map(|node| node.end).or_else(|| end_from_root(leaf))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::root_from_end;

    #[test]
    fn path_ends_at_its_root() {
        let mut tree = Tree { ids: vec![], nodes: vec![] };
        assert!(tree.push(FIRST_NODE, root_from_end(StackEnd::Truncated), 10));
        assert!(tree.push(FIRST_NODE + 1, FIRST_NODE, 11));
        assert_eq!(tree.path(FIRST_NODE + 1), Some((vec![11, 10], StackEnd::Truncated)));
        assert_eq!(tree.end(FIRST_NODE + 1), Some(StackEnd::Truncated));
        let empty = root_from_end(StackEnd::ReadFailed);
        assert_eq!(tree.path(empty), Some((vec![], StackEnd::ReadFailed)));
        assert_eq!(tree.path(FIRST_NODE + 2), None);
        assert_eq!(tree.path(0), None);
    }

    #[test]
    fn tree_has_no_loops_and_may_have_gaps() {
        let mut tree = Tree { ids: vec![], nodes: vec![] };
        let root = root_from_end(StackEnd::Complete);
        assert!(!tree.push(FIRST_NODE + 1, FIRST_NODE, 1), "no such parent");
        assert!(!tree.push(FIRST_NODE, FIRST_NODE, 1), "its own parent");
        assert!(!tree.push(FIRST_NODE, FIRST_NODE - 1, 1), "not a root");
        assert!(tree.push(FIRST_NODE + 3, root, 7));
        assert!(!tree.push(FIRST_NODE + 3, root, 1), "twice");
        assert!(!tree.push(FIRST_NODE + 1, root, 1), "out of order");
        assert!(tree.push(FIRST_NODE + 9, FIRST_NODE + 3, 8));
        assert_eq!(tree.path(FIRST_NODE + 9), Some((vec![8, 7], StackEnd::Complete)));
        assert!(tree.push(FIRST_NODE + 11, FIRST_NODE + 3, 9));
        assert_eq!(tree.path(FIRST_NODE + 11), Some((vec![9, 7], StackEnd::Complete)), "a second child");
        assert_eq!(tree.path(FIRST_NODE + 3), Some((vec![7], StackEnd::Complete)));
        assert_eq!(tree.path(FIRST_NODE + 1), None);
    }

    #[test]
    fn too_deep_stack_is_refused() {
        let mut tree = Tree { ids: vec![], nodes: vec![] };
        let mut parent = root_from_end(StackEnd::Complete);
        for depth in 0..MAX_FRAMES as u32 {
            assert!(tree.push(FIRST_NODE + depth, parent, 1));
            parent = FIRST_NODE + depth;
        }
        assert!(!tree.push(parent + 1, parent, 1));
    }
}
