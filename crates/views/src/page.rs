// SPDX-License-Identifier: Apache-2.0
//! Pages of the documentation as text for a terminal. The pages are written in Markdown; this reads what
//! they use of it: headings, paragraphs, lists, tables, code, emphasis and links.

use std::borrow::Cow;
use std::io::{self, Write};

use crate::escape::escape_to_ascii;
use crate::line::{Word, write_wrapped};
use crate::style::{Ink, Style};

/// Longer lines are hard to read.
const WIDEST: usize = 100;

const CODE_INDENT: usize = 4;
const CELL_INDENT: usize = 4;
/// The label of a cell and the gap after it.
const CELL_LABEL: usize = 14;

/// A page with its name, by which a link of another page finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<'a> {
    /// `findings`, for `findings.md`.
    pub name: &'a str,
    pub markdown: &'a str,
}

/// Writes a page. A link to one of `linked`, the names of the pages that can be printed, becomes the command
/// that prints it; of every other link the text alone stays.
///
/// # Errors
/// Errors of `out`, a broken pipe included.
pub fn page_text(out: &mut impl Write, page: &Page<'_>, linked: &[&str], style: &Style) -> io::Result<()> {
    let style = Style { width: style.width.min(WIDEST), ..style.clone() };
    let mut writer = PageWriter { out, linked, style: &style, after: None };
    blocks(page.markdown).iter().try_for_each(|block| writer.write(block))
}

/// A part of a page.
#[derive(Debug, PartialEq, Eq)]
enum Block<'a> {
    Heading(&'a str),
    Paragraph(String),
    /// The bullet or number, and the text after it.
    Item(&'a str, String),
    Code(Vec<&'a str>),
    /// Cells of each row; the first row is the head.
    Table(Vec<Vec<&'a str>>),
}

/// The element that the next line can continue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Nothing,
    Text,
    Code,
}

fn blocks(markdown: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open = Open::Nothing;
    let mut lines = markdown.lines();
    while let Some(line) = lines.next() {
        let text = line.trim();
        open = if text.is_empty() {
            Open::Nothing
        } else if text.starts_with("```") {
            let code = lines.by_ref().take_while(|line| !line.trim().starts_with("```"));
            blocks.push(Block::Code(code.collect()));
            Open::Nothing
        } else if let Some(heading) = heading(line) {
            blocks.push(Block::Heading(heading));
            Open::Nothing
        } else if text.starts_with('|') {
            add_row(&mut blocks, cells(text));
            Open::Nothing
        } else if let Some((label, text)) = item(text) {
            blocks.push(Block::Item(label, text.to_owned()));
            Open::Text
        } else if line.starts_with("    ") && open != Open::Text {
            add_code(&mut blocks, &line[CODE_INDENT..], open);
            Open::Code
        } else {
            add_text(&mut blocks, text, open);
            Open::Text
        };
    }
    blocks
}

fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    (text.len() < line.len()).then(|| text.strip_prefix(' ')).flatten()
}

/// `* text`, `- text` or `1. text`.
fn item(text: &str) -> Option<(&str, &str)> {
    let (label, rest) = text.split_once(' ')?;
    let number = label.strip_suffix('.').unwrap_or_default();
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_number || label == "*" || label == "-").then_some((label, rest))
}

fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

fn add_row<'a>(blocks: &mut Vec<Block<'a>>, cells: Vec<&'a str>) {
    let is_rule = cells.iter().all(|cell| cell.starts_with("--"));
    match blocks.last_mut() {
        Some(Block::Table(_)) if is_rule => {}
        Some(Block::Table(rows)) => rows.push(cells),
        _ => blocks.push(Block::Table(vec![cells])),
    }
}

fn add_code<'a>(blocks: &mut Vec<Block<'a>>, line: &'a str, open: Open) {
    match blocks.last_mut() {
        Some(Block::Code(lines)) if open == Open::Code => lines.push(line),
        _ => blocks.push(Block::Code(vec![line])),
    }
}

fn add_text(blocks: &mut Vec<Block<'_>>, text: &str, open: Open) {
    match blocks.last_mut() {
        Some(Block::Paragraph(all) | Block::Item(_, all)) if open == Open::Text => {
            all.push(' ');
            all.push_str(text);
        }
        _ => blocks.push(Block::Paragraph(text.to_owned())),
    }
}

/// The last written element. It decides whether a blank line follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    Item,
    Other,
}

struct PageWriter<'a, W> {
    out: &'a mut W,
    linked: &'a [&'a str],
    style: &'a Style,
    after: Option<Written>,
}

impl<W: Write> PageWriter<'_, W> {
    fn write(&mut self, block: &Block<'_>) -> io::Result<()> {
        let written = if matches!(block, Block::Item(..)) { Written::Item } else { Written::Other };
        let is_list = written == Written::Item && self.after == Some(Written::Item);
        if self.after.is_some() && !is_list {
            writeln!(self.out)?;
        }
        self.after = Some(written);
        match block {
            Block::Heading(text) => self.heading(text),
            Block::Paragraph(text) => self.words(("", 0), text),
            Block::Item(label, text) => self.words((label, label.len() + 1), text),
            Block::Code(lines) => lines.iter().try_for_each(|line| self.code(line)),
            Block::Table(rows) => self.table(rows),
        }
    }

    fn heading(&mut self, text: &str) -> io::Result<()> {
        let text = shown(text, self.style);
        writeln!(self.out, "{}", self.style.paint(Ink::Title, &text))
    }

    fn words(&mut self, label: (&str, usize), text: &str) -> io::Result<()> {
        write_wrapped(self.out, label, &words(text, self.linked, self.style), self.style)
    }

    fn code(&mut self, line: &str) -> io::Result<()> {
        let line = format!("{:CODE_INDENT$}{}", "", shown(line, self.style));
        writeln!(self.out, "{}", line.trim_end())
    }

    /// A table may be wider than any terminal: each row becomes its first cell and a line for each other one.
    fn table(&mut self, rows: &[Vec<&str>]) -> io::Result<()> {
        let Some((head, rows)) = rows.split_first() else { return Ok(()) };
        for row in rows {
            let mut cells = row.iter();
            self.words(("", 2), &format!("**{}**", cells.next().unwrap_or(&"")))?;
            for (label, cell) in head.iter().skip(1).zip(cells) {
                let label = format!("{:CELL_INDENT$}{}", "", shown(label, self.style));
                self.words((&label, CELL_INDENT + CELL_LABEL), cell)?;
            }
        }
        Ok(())
    }
}

/// Characters that a page uses beyond ASCII, where the terminal cannot show them.
fn shown<'t>(text: &'t str, style: &Style) -> Cow<'t, str> {
    if style.unicode || text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let text = text.replace('µ', "u").replace('…', "...").replace('×', "x").replace('→', "->");
    Cow::Owned(escape_to_ascii(&text).into_owned())
}

/// The words of a text without its markup.
fn words(text: &str, linked: &[&str], style: &Style) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut word = Word::plain("");
    let mut marks = Marks::default();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(length) = marks.read(rest) {
            rest = &rest[length..];
            continue;
        }
        if let Some((shown, length)) = marks.is_text().then(|| link(rest, linked)).flatten() {
            rest = &rest[length..];
            let inner = self::words(&shown, &[], style);
            append(&mut words, &mut word, inner);
            continue;
        }
        rest = &rest[c.len_utf8()..];
        if c == ' ' {
            words.push(std::mem::replace(&mut word, Word::plain("")));
            continue;
        }
        if word.text.is_empty() {
            word.ink = if marks.strong { Ink::Strong } else { Ink::Plain };
        }
        word.text.push(c);
    }
    words.push(word);
    for word in &mut words {
        word.text = shown(&word.text, style).into_owned();
    }
    words
}

/// The words of a link follow what stands before it without a space.
fn append(words: &mut Vec<Word>, word: &mut Word, mut inner: Vec<Word>) {
    let Some(last) = inner.pop() else { return };
    for part in inner {
        word.text.push_str(&part.text);
        words.push(std::mem::replace(word, Word::plain("")));
    }
    word.text.push_str(&last.text);
}

/// Which markup the text is in.
#[derive(Default)]
struct Marks {
    code: bool,
    strong: bool,
    emphasis: bool,
}

impl Marks {
    fn is_text(&self) -> bool {
        !self.code
    }

    /// Bytes of the markup at the start of `rest`; `None` for text. Backquotes stay: they show what is typed.
    fn read(&mut self, rest: &str) -> Option<usize> {
        if rest.starts_with('`') {
            self.code = !self.code;
            return None;
        }
        if self.code {
            return None;
        }
        if rest.starts_with("**") {
            self.strong = !self.strong;
            return Some(2);
        }
        if rest.starts_with('*') && (self.emphasis || !rest.starts_with("* ")) {
            self.emphasis = !self.emphasis;
            return Some(1);
        }
        // An anchor that links lead to.
        let anchor = rest.starts_with("<a ").then(|| rest.find("</a>")).flatten();
        anchor.map(|end| end + "</a>".len())
    }
}

/// The text of the link at the start of `rest`, and the link's length in bytes.
fn link(rest: &str, linked: &[&str]) -> Option<(String, usize)> {
    let (text, after) = rest.strip_prefix('[')?.split_once("](")?;
    let (target, _) = after.split_once(')')?;
    let length = text.len() + target.len() + "[]()".len();
    let file = target.split('#').next().unwrap_or_default();
    let name = file.strip_suffix(".md").filter(|name| linked.contains(name));
    let shown = match name {
        Some(name) => format!("{text} (`wallprof help {name}`)"),
        None => text.to_owned(),
    };
    Some((shown, length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(markdown: &str, style: &Style) -> String {
        let mut out = Vec::new();
        page_text(&mut out, &Page { name: "x", markdown }, &["symbols"], style).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_page_is_text_without_markup() {
        let page = "# Stalls\n\nA *stall* is **long**: see [names](symbols.md#bounds), [more](other.md).\nIt goes on.\n\n\
             * One `a*b*`\n  and more.\n* Two.\n\n## Code\n\n```sql\nSELECT  *;\n```\n\n    indented\n\n<a id=\"x\"></a>**End**\n";
        assert_eq!(
            written(page, &Style::plain()),
            "Stalls\n\nA stall is long: see names (`wallprof help symbols`), more. It goes on.\n\n\
             * One `a*b*` and more.\n* Two.\n\nCode\n\n    SELECT  *;\n\n    indented\n\nEnd\n"
        );
    }

    #[test]
    fn a_row_of_a_table_is_its_first_cell_and_a_line_for_each_other() {
        let table =
            "| view | one row is | columns |\n| --- | --- | --- |\n| `meta` | a fact | `name`, `value` |\n";
        assert_eq!(
            written(table, &Style::plain()),
            "  `meta`\n    one row is    a fact\n    columns       `name`, `value`\n"
        );
    }

    #[test]
    fn characters_that_a_terminal_cannot_show_are_spelled() {
        let ascii = Style { unicode: false, ..Style::plain() };
        assert_eq!(written("50 µs … `→`\n\n    µ\n", &ascii), "50 us ... `->`\n\n    u\n");
        let coloured = Style { colour: true, ..Style::plain() };
        assert!(written("# A\n\n**b** c", &coloured).starts_with("\x1b[1;36mA\x1b[0m\n\n\x1b[1mb\x1b[0m"));
    }

    #[test]
    fn numbered_items_hang_under_their_text() {
        let style = Style { width: 1, ..Style::plain() };
        let page = format!("1. {}\n2. b", "word ".repeat(20));
        let text = written(&page, &style);
        assert!(text.starts_with("1. word word") && text.contains("\n   word"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 76), "{text}");
        assert!(text.ends_with("\n2. b\n"), "{text}");
    }

    proptest! {
        #[test]
        fn any_text_is_a_page(markdown in "[#*`|\\[\\]()<a \n\\-1.µx]{0,80}") {
            written(&markdown, &Style::plain());
            let ascii = Style { unicode: false, ..Style::plain() };
            prop_assert!(written(&markdown, &ascii).is_ascii());
        }
    }
}
