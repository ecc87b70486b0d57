// SPDX-License-Identifier: Apache-2.0
//! A stack, a function a line: name and offset, module, file and line.

use std::io::{self, Write};

use wallprof_meaning::site::base_name;
use wallprof_model::profile::{ResolvedFrame, ResolvedStack};
use wallprof_model::{FrameKind, StackEnd, SymbolLine};

use crate::function::short_name;
use crate::line::{cut, cut_start, left, width};
use crate::style::{Ink, Style};

/// Writes a stack, leaf first, each line indented by `indent`; at its end the reason, where it is not
/// complete.
pub(crate) fn write_stack(
    out: &mut impl Write,
    stack: &ResolvedStack,
    indent: usize,
    style: &Style,
) -> io::Result<()> {
    let lines: Vec<FunctionLine> =
        stack.frames.iter().flat_map(|frame| function_lines(frame, style)).collect();
    let columns = Columns::of(&lines, style.columns().saturating_sub(indent));
    let indent = " ".repeat(indent);
    for line in &lines {
        let ink = if line.is_kernel { Ink::Kernel } else { Ink::Plain };
        let place = format!(
            "{}  {}",
            left(&line.module, columns.module, style),
            cut_start(&line.source, columns.source, style)
        );
        let name = style.paint(ink, &left(&line.shown_name(columns.name, style), columns.name, style));
        writeln!(out, "{indent}{name}  {}", style.paint(Ink::Faint, place.trim_end()))?;
    }
    if let Some(note) = note_from_end(stack.end) {
        writeln!(out, "{indent}{}", style.paint(Ink::Faint, note))?;
    }
    Ok(())
}

/// One function as it is shown.
struct FunctionLine {
    name: String,
    /// The offset, or that the function is inlined: kept where the name is cut.
    suffix: String,
    module: String,
    source: String,
    is_kernel: bool,
}

impl FunctionLine {
    fn shown_name(&self, columns: usize, style: &Style) -> String {
        format!("{}{}", cut(&self.name, columns.saturating_sub(width(&self.suffix)), style), self.suffix)
    }
}

/// Widths of the parts of every line of a stack.
struct Columns {
    name: usize,
    module: usize,
    source: usize,
}

impl Columns {
    fn of(lines: &[FunctionLine], columns: usize) -> Self {
        let widest =
            |part: fn(&FunctionLine) -> &str| lines.iter().map(|line| width(part(line))).max().unwrap_or(0);
        let longest_name =
            lines.iter().map(|line| width(&line.name) + width(&line.suffix)).max().unwrap_or(0);
        let source = widest(|line| &line.source);
        let module = widest(|line| &line.module).min(20);
        // Without sources the names may have what the modules leave.
        let most = if source == 0 { columns.saturating_sub(module + 2) } else { columns / 2 };
        let name = longest_name.min(most);
        Columns { name, module, source: columns.saturating_sub(name + module + 4) }
    }
}

fn function_lines<'a>(frame: &'a ResolvedFrame, style: &'a Style) -> impl Iterator<Item = FunctionLine> + 'a {
    frame.lines.iter().map(move |line| FunctionLine {
        name: name(frame, line, style),
        suffix: suffix(line),
        module: module(frame, style),
        source: source(line, style),
        is_kernel: frame.kind == FrameKind::Kernel,
    })
}

fn name(frame: &ResolvedFrame, line: &SymbolLine, style: &Style) -> String {
    match symbol(line) {
        Some(symbol) => style.name(&short_name(symbol)).into_owned(),
        None => format!("{:#x}", frame.address),
    }
}

fn symbol(line: &SymbolLine) -> Option<&str> {
    line.symbol.as_deref().filter(|name| !name.is_empty())
}

fn suffix(line: &SymbolLine) -> String {
    match line.offset.filter(|_| symbol(line).is_some()) {
        _ if line.inlined => " (inlined)".into(),
        Some(offset) => format!("+{offset:#x}"),
        None => String::new(),
    }
}

fn module(frame: &ResolvedFrame, style: &Style) -> String {
    let module = frame.module.as_deref().map(base_name).filter(|name| !name.is_empty());
    style.name(module.unwrap_or(frame.kind.name())).into_owned()
}

fn source(line: &SymbolLine, style: &Style) -> String {
    match (&line.file, line.line) {
        (Some(file), Some(number)) => format!("{}:{number}", style.name(file)),
        (Some(file), None) => style.name(file).into_owned(),
        (None, _) => String::new(),
    }
}

fn note_from_end(end: StackEnd) -> Option<&'static str> {
    match end {
        StackEnd::Complete | StackEnd::FramePointerEnd => None,
        StackEnd::Truncated => Some("(cut: deeper than is kept)"),
        StackEnd::ReadFailed => Some("(cut: the stack could not be read further)"),
        StackEnd::NoMappings => Some("(cut: the process was too new)"),
        StackEnd::NoTable => Some("(cut: the file has no unwind table)"),
        StackEnd::Unsupported => Some("(cut: an unwind rule that cannot be followed)"),
        StackEnd::BadFrame => Some("(cut: the next frame made no sense)"),
        StackEnd::Jit => Some("(cut: code made at run time, without frame pointers)"),
    }
}
