// SPDX-License-Identifier: Apache-2.0
//! Words in the memory of processes that say what their threads wait for.

use std::sync::Arc;

use crate::meaning::{Meaning, MeaningSource};

/// Which word it is: a variable that a file exports.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WordSource {
    /// The name of the variable, as the file exports it.
    pub symbol: String,
    /// The path of the file, as its process sees it.
    pub module: String,
}

/// What a word said when a wait began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitWord {
    /// The variable that was read.
    pub source: Arc<WordSource>,
    /// The bytes of the word as a number, in the machine's byte order. [`WordRules::meaning_of`] interprets
    /// the number.
    pub value: u64,
    /// What the software itself calls the value, such as `Lock: transactionid`, once rules were asked.
    pub text: Option<Arc<str>>,
}

/// What a value of a word means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WordMeaning {
    /// What users of the software call such a wait.
    pub meaning: Arc<Meaning>,
    /// As of [`WaitWord::text`].
    pub text: Arc<str>,
    /// The stack says more, where a rule about the same software names it: PostgreSQL waits for a transaction
    /// to end, and the callers know what for.
    pub stack_first: bool,
}

impl WordMeaning {
    /// The meaning of a wait with this word, whose stacks have the meaning `by_stacks`.
    pub fn beside<'m>(&'m self, by_stacks: Option<&'m Arc<Meaning>>) -> &'m Arc<Meaning> {
        let of_its_software = |stacks: &Meaning| stacks.software == self.meaning.software;
        let before = by_stacks.filter(|stacks| match stacks.source {
            MeaningSource::User => true,
            MeaningSource::Stack => self.stack_first && of_its_software(stacks),
            MeaningSource::Word | MeaningSource::Wakers => false,
        });
        before.unwrap_or(&self.meaning)
    }
}

/// What a word said in a stall, as the search for meanings reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WordRow {
    /// The stall's.
    pub stall: u64,
    /// What the word said when the wait of the stall began.
    pub word: WaitWord,
}

/// Where the word of a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WordPlace {
    /// The name of the variable, as the file exports it.
    pub symbol: String,
    /// The symbol is a pointer to the word.
    pub is_pointer: bool,
    /// The word's size, 1 to 8.
    pub bytes: u8,
}

/// The rules that name words.
pub trait WordRules: Send + Sync {
    /// The word of processes that have mapped the file with this path; `None`: no rule is about the file.
    fn word_of(&self, module: &str) -> Option<WordPlace>;

    /// What the word's value means; `None`: no rule has this value.
    fn meaning_of(&self, word: &WaitWord) -> Option<Arc<WordMeaning>>;
}
