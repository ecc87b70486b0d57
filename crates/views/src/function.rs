// SPDX-License-Identifier: Apache-2.0
//! The site of a thread and the meaning of its wait as words of a line.

use wallprof_meaning::Site;
pub(crate) use wallprof_meaning::short_name;
use wallprof_model::Meaning;

use crate::line::Word;
use crate::style::Style;

/// `row lock of postgresql`.
pub(crate) fn meaning_name(meaning: &Meaning, style: &Style) -> String {
    style.name(&meaning.to_string()).into()
}

/// `release_order ← handle_tick ← main through pthread_mutex_lock`, the first function standing out.
pub(crate) fn site_words(site: &Site, style: &Style) -> Vec<Word> {
    let arrow = style.pick("←", "<-");
    let mut words = Vec::new();
    for (at, function) in site.functions.iter().enumerate() {
        let short = short_name(function);
        let name = style.name(&short);
        words.push(if at == 0 { Word::strong(name) } else { Word::plain(format!("{arrow} {name}")) });
    }
    if let Some(through) = &site.through {
        words.push(Word::plain(format!("through {}", style.name(&short_name(through)))));
    }
    words
}
