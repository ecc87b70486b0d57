//! A stack, a function a line: name and offset, module, file and line.

use std::io::{self, Write};

use wallprof_analysis::site::base_name;
use wallprof_model::profile::{ResolvedFrame, ResolvedStack};
use wallprof_model::{FrameKind, StackEnd, SymbolLine};

use crate::function::short_name;
use crate::line::{cut_start, left, width};
use crate::style::{Ink, Style};

/// Writes a stack, leaf first, each line indented by `indent`; at its end the reason, where it is not complete.
pub(super) fn write_stack(
    out: &mut impl Write,
    stack: &ResolvedStack,
    indent: usize,
    style: &Style,
) -> io::Result<()> {
    let room = style.columns().saturating_sub(indent);
    let lines: Vec<FunctionLine> =
        stack.frames.iter().flat_map(|frame| function_lines(frame, style)).collect();
    let longest = lines.iter().map(|line| width(&line.name)).max().unwrap_or(0);
    let name_columns = longest.clamp(16, room * 3 / 5);
    for line in &lines {
        let place = cut_start(&line.place, room.saturating_sub(name_columns + 2), style);
        let ink = if line.is_kernel { Ink::Kernel } else { Ink::Plain };
        let name = style.paint(ink, left(&line.name, name_columns, style).trim_end());
        let gap = " ".repeat(name_columns + 2 - width(&line.name).min(name_columns));
        writeln!(out, "{}{name}{gap}{}", " ".repeat(indent), style.paint(Ink::Faint, &place))?;
    }
    if let Some(note) = note_from_end(stack.end) {
        writeln!(out, "{}{}", " ".repeat(indent), style.paint(Ink::Faint, note))?;
    }
    Ok(())
}

/// One function as it is shown.
struct FunctionLine {
    name: String,
    place: String,
    is_kernel: bool,
}

fn function_lines<'a>(frame: &'a ResolvedFrame, style: &'a Style) -> impl Iterator<Item = FunctionLine> + 'a {
    frame.lines.iter().map(move |line| FunctionLine {
        name: name(frame, line, style),
        place: place(frame, line, style),
        is_kernel: frame.kind == FrameKind::Kernel,
    })
}

fn name(frame: &ResolvedFrame, line: &SymbolLine, style: &Style) -> String {
    let Some(symbol) = &line.symbol else { return format!("{:#x}", frame.address) };
    let short = short_name(symbol);
    match line.offset {
        _ if line.inlined => format!("{} (inlined)", style.name(&short)),
        Some(offset) => format!("{}+{offset:#x}", style.name(&short)),
        None => style.name(&short).into_owned(),
    }
}

fn place(frame: &ResolvedFrame, line: &SymbolLine, style: &Style) -> String {
    let module = frame.module.as_deref().map_or(frame.kind.name(), base_name);
    let module = style.name(module);
    match (&line.file, line.line) {
        (Some(file), Some(number)) => format!("{module}  {}:{number}", style.name(file)),
        (Some(file), None) => format!("{module}  {}", style.name(file)),
        (None, _) => module.into_owned(),
    }
}

fn note_from_end(end: StackEnd) -> Option<&'static str> {
    match end {
        StackEnd::Complete | StackEnd::FramePointerEnd => None,
        StackEnd::Truncated => Some("(cut: deeper than is kept)"),
        StackEnd::ReadFailed => Some("(cut: the stack could not be read further)"),
    }
}
