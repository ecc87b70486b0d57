// SPDX-License-Identifier: Apache-2.0
//! Every text of the page once, escaped, by its number.

use std::collections::HashMap;

use wallprof_views::escape;

/// Longer texts are cut. A name of a generic function can have 100,000 characters.
const MOST_CHARACTERS: usize = 1_000;

/// Text 0 is empty.
#[derive(Clone, Debug)]
pub struct Names {
    texts: Vec<String>,
    numbers: HashMap<String, u32>,
    /// How many distinct texts were cut.
    pub cut: u64,
}

impl Default for Names {
    fn default() -> Self {
        Names { texts: vec![String::new()], numbers: HashMap::from([(String::new(), 0)]), cut: 0 }
    }
}

impl Names {
    /// The number of a text that comes from the recording.
    pub fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let mut shown = escape(text).into_owned();
        if let Some((end, _)) = shown.char_indices().nth(MOST_CHARACTERS) {
            shown.truncate(end);
            shown.push('…');
            self.cut += 1;
        }
        let number = self.texts.len() as u32;
        self.texts.push(shown);
        self.numbers.insert(text.to_owned(), number);
        number
    }

    pub fn optional(&mut self, text: Option<&str>) -> u32 {
        text.map_or(0, |text| self.number(text))
    }

    pub fn texts(&self) -> &[String] {
        &self.texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_kept_once_and_escaped() {
        let mut names = Names::default();
        assert_eq!(
            (names.number(""), names.number("a\n"), names.number("b"), names.number("a\n")),
            (0, 1, 2, 1)
        );
        assert_eq!(names.texts(), ["", "a\\n", "b"]);
        assert_eq!((names.optional(None), names.cut), (0, 0));
    }

    #[test]
    fn long_text_is_cut_and_counted() {
        let mut names = Names::default();
        names.number(&"ß".repeat(10_000));
        names.number(&"x".repeat(MOST_CHARACTERS));
        assert_eq!(names.texts()[1].chars().count(), MOST_CHARACTERS + 1);
        assert_eq!((names.texts()[2].len(), names.cut), (MOST_CHARACTERS, 1));
    }
}
