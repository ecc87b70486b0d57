// SPDX-License-Identifier: Apache-2.0
//! Reads the picture that inferno has drawn, whose boxes have numbers for names, and writes the final one.

use std::io::{self, Write};

use quick_xml::Reader;
use quick_xml::events::{BytesEnd, BytesStart, BytesText, Event};
use quick_xml::writer::Writer;
use wallprof_analysis::weights::{Node, Tree};

use super::colour::{Colour, colour_of_node};
use super::footer::Footer;
use super::words::Words;

/// The colour of the box that all others stand on.
const ALL: Colour = Colour(222, 222, 218);

/// A box's name for inferno: numbers of equal length sort as the boxes do.
pub(super) fn name_from_node(at: usize) -> String {
    format!("{at:08x}")
}

/// Writes the picture `drawn` of `tree` with names, colours and the footer.
pub(super) fn paint(
    out: &mut impl Write,
    drawn: &[u8],
    tree: &Tree,
    words: &Words,
    footer: &Footer,
) -> io::Result<()> {
    let mut brush = Brush {
        tree,
        words,
        footer,
        writer: Writer::new(out),
        place: Place::Document,
        node: None,
        width_percent: 0.0,
        height: 0,
    };
    let mut reader = Reader::from_reader(drawn);
    loop {
        match reader.read_event().map_err(io::Error::other)? {
            Event::Eof => return Ok(()),
            event => brush.take(event)?,
        }
    }
}

/// The brush's place in the document.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Document,
    Boxes,
    Title,
    Label,
}

struct Brush<'a, W> {
    tree: &'a Tree,
    words: &'a Words,
    footer: &'a Footer,
    writer: Writer<W>,
    place: Place,
    /// The box that is being painted; `None` for the one that all others stand on.
    node: Option<&'a Node>,
    /// The width of that box.
    width_percent: f64,
    /// Pixels of the picture without the footer.
    height: usize,
}

impl<W: Write> Brush<'_, W> {
    fn take(&mut self, event: Event<'_>) -> io::Result<()> {
        match (event, self.place) {
            // A reader of the file must not fetch a document type.
            (Event::DocType(_) | Event::Comment(_), _) => Ok(()),
            (Event::Start(tag), _) => self.start(tag),
            (Event::Empty(tag), _) => self.empty(tag),
            (Event::Text(name), Place::Title) => self.title(&name),
            (Event::Text(_), Place::Label) => Ok(()),
            (Event::End(tag), _) => self.end(tag),
            (other, _) => self.writer.write_event(other),
        }
    }

    fn start(&mut self, tag: BytesStart<'_>) -> io::Result<()> {
        match (tag.name().as_ref(), self.place) {
            (b"svg", _) if attribute(&tag, "id")?.is_some_and(|id| id == "frames") => {
                self.place = Place::Boxes
            }
            (b"svg", _) => return self.document(&tag),
            (b"title", Place::Boxes) => self.place = Place::Title,
            (b"text", Place::Boxes) => return self.label(tag),
            _ => {}
        }
        self.writer.write_event(Event::Start(tag))
    }

    /// The outermost element: higher by the footer.
    fn document(&mut self, tag: &BytesStart<'_>) -> io::Result<()> {
        let height = attribute(tag, "height")?.and_then(|height| height.parse().ok());
        self.height = height.ok_or_else(|| unexpected("no height"))?;
        let height = (self.height + self.footer.height).to_string();
        let view_box = attribute(tag, "viewBox")?.unwrap_or_default();
        let view_box = match view_box.rsplit_once(' ') {
            Some((rest, _)) => format!("{rest} {height}"),
            None => view_box,
        };
        let tag = with_attributes(tag, &[("height", &height), ("viewBox", &view_box)])?;
        self.writer.write_event(Event::Start(tag))
    }

    fn empty(&mut self, tag: BytesStart<'_>) -> io::Result<()> {
        let is_rect = tag.name().as_ref() == b"rect";
        let tag = match self.place {
            Place::Boxes if is_rect => self.filled(&tag)?,
            Place::Document if is_rect => {
                with_attributes(&tag, &[("height", &(self.height + self.footer.height).to_string())])?
            }
            _ => tag,
        };
        self.writer.write_event(Event::Empty(tag))
    }

    fn filled(&mut self, tag: &BytesStart<'_>) -> io::Result<BytesStart<'static>> {
        let width = attribute(tag, "width")?.unwrap_or_default();
        self.width_percent = width.trim_end_matches('%').parse().unwrap_or(0.0);
        let colour = self.node.map_or(ALL, colour_of_node);
        with_attributes(tag, &[("fill", &colour.to_string())])
    }

    /// inferno's title is the box's number and inferno's own text.
    fn title(&mut self, drawn: &BytesText<'_>) -> io::Result<()> {
        let drawn = drawn.decode().map_err(io::Error::other)?;
        let name = drawn.split(' ').next().unwrap_or_default();
        self.node = match name {
            "all" => None,
            _ => {
                let at = usize::from_str_radix(name, 16).ok();
                let node = at.and_then(|at| self.tree.nodes.get(at));
                Some(node.ok_or_else(|| unexpected("a box that is not in the tree"))?)
            }
        };
        self.writer.write_event(Event::Text(BytesText::new(&self.words.title(self.node))))
    }

    fn label(&mut self, tag: BytesStart<'_>) -> io::Result<()> {
        self.place = Place::Label;
        self.writer.write_event(Event::Start(tag))?;
        let label = self.words.label(self.node, self.width_percent);
        self.writer.write_event(Event::Text(BytesText::new(&label)))
    }

    fn end(&mut self, tag: BytesEnd<'_>) -> io::Result<()> {
        match (self.place, tag.name().as_ref()) {
            (Place::Title | Place::Label, _) => self.place = Place::Boxes,
            (Place::Boxes, b"svg") => self.place = Place::Document,
            (Place::Document, b"svg") => self.write_footer()?,
            _ => {}
        }
        self.writer.write_event(Event::End(tag))
    }

    fn write_footer(&mut self) -> io::Result<()> {
        for item in &self.footer.items {
            let y = self.height + item.y;
            if let Some(colour) = item.colour {
                let square = BytesStart::new("rect").with_attributes([
                    ("x", item.x.to_string().as_str()),
                    ("y", &y.to_string()),
                    ("width", "11"),
                    ("height", "11"),
                    ("fill", &colour.to_string()),
                ]);
                self.writer.write_event(Event::Empty(square))?;
            }
            let (x, y) = (item.text_x().to_string(), (y + 10).to_string());
            let tag = BytesStart::new("text").with_attributes([("x", x.as_str()), ("y", &y)]);
            self.writer.write_event(Event::Start(tag))?;
            self.writer.write_event(Event::Text(BytesText::new(&item.text)))?;
            self.writer.write_event(Event::End(BytesEnd::new("text")))?;
        }
        Ok(())
    }
}

fn attribute(tag: &BytesStart<'_>, name: &str) -> io::Result<Option<String>> {
    let found = tag.try_get_attribute(name).map_err(io::Error::other)?;
    Ok(found.map(|found| String::from_utf8_lossy(&found.value).into_owned()))
}

/// The same element with some attributes changed.
fn with_attributes(tag: &BytesStart<'_>, changed: &[(&str, &str)]) -> io::Result<BytesStart<'static>> {
    let name = String::from_utf8_lossy(tag.name().as_ref()).into_owned();
    let mut new = BytesStart::new(name);
    for attribute in tag.attributes() {
        let attribute = attribute.map_err(io::Error::other)?;
        let key = attribute.key.as_ref();
        match changed.iter().find(|(name, _)| name.as_bytes() == key) {
            Some(changed) => new.push_attribute(*changed),
            None => new.push_attribute(attribute),
        }
    }
    Ok(new)
}

fn unexpected(what: &str) -> io::Error {
    io::Error::other(format!("the drawn picture has {what}: report this as a bug"))
}
