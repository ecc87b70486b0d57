// SPDX-License-Identifier: Apache-2.0
//! Rules about words in memory that say what a thread waits for.
//!
//! A rule is a TOML table `[[word]]`. It names a variable, `symbol`, that files with the name `module`
//! export, and what its values mean (`map`). A key of the map is a number, or a glob over the number as `0x`
//! and two digits a byte. A number goes before globs, of which the longest goes first. What the map says is
//! the software's own text. It is the name of the wait, too, unless `names` has a plainer one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Deserialize;
use wallprof_model::{Meaning, MeaningSource, WaitWord, WordMeaning, WordPlace, WordRules};

use super::rules::{NameGlob, Names, Rules};
use crate::glob::Glob;
use crate::site::base_name;

/// A rule as its file has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WordText {
    software: Option<String>,
    module: Names,
    symbol: String,
    #[serde(default)]
    is_pointer: bool,
    #[serde(default = "four")]
    bytes: u8,
    /// Globs over texts of waits in which the thread is idle.
    #[serde(default)]
    idle: Vec<NameGlob>,
    /// Globs over texts of waits for which no thread holds anything.
    #[serde(default)]
    no_holder: Vec<NameGlob>,
    map: BTreeMap<String, String>,
    /// By globs over texts of the map: names that users of other software understand.
    #[serde(default)]
    names: BTreeMap<String, String>,
    /// Globs over texts of waits that a rule about the stack names better.
    #[serde(default)]
    stack_first: Vec<NameGlob>,
}

fn four() -> u8 {
    4
}

/// A rule about a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WordRule {
    pub software: Option<String>,
    /// Globs of the files that export the word; those with a `/` of their whole paths.
    pub modules: Vec<String>,
    pub place: WordPlace,
    globs: Vec<Glob>,
    values: HashMap<u64, Arc<WordMeaning>>,
    patterns: Vec<(Glob, Arc<WordMeaning>)>,
}

impl WordText {
    pub(super) fn into_rule(self) -> Result<WordRule, String> {
        if self.symbol.is_empty() {
            return Err("the symbol is empty: name the variable that the file exports".into());
        }
        if ![1, 2, 4, 8].contains(&self.bytes) {
            return Err(format!("a word has 1, 2, 4 or 8 bytes, not {}", self.bytes));
        }
        if self.module.is_empty() {
            return Err("`module` has no file: name one, or several".into());
        }
        let glob = |text: &String| Glob::new(text).map_err(|error| error.to_string());
        let mut names: Vec<(&String, &String)> = self.names.iter().collect();
        names.sort_by_key(|(text, _)| Reverse(text.len()));
        let names = names.into_iter().map(|(text, name)| Ok((glob(text)?, name)));
        let names: Vec<(Glob, &String)> = names.collect::<Result<_, String>>()?;
        if let Some((text, _)) = self.names.iter().find(|(_, name)| name.is_empty()) {
            return Err(format!("the name of {text:?} is empty: say what users of the software call it"));
        }
        let (mut values, mut patterns) = (HashMap::new(), Vec::new());
        for (key, text) in self.map {
            if text.is_empty() {
                return Err(format!("the name of {key} is empty: say what users of the software call it"));
            }
            let is_one_of = |names: &[NameGlob]| names.iter().any(|name| name.glob.matches(&text));
            let name = names.iter().find(|(glob, _)| glob.matches(&text)).map_or(&text, |(_, name)| name);
            let idle = is_one_of(&self.idle);
            let meaning = Meaning {
                idle,
                holder: !idle && !is_one_of(&self.no_holder),
                name: name.clone(),
                software: self.software.clone(),
                source: MeaningSource::Word,
            };
            let meaning = Arc::new(WordMeaning {
                stack_first: is_one_of(&self.stack_first),
                meaning: Arc::new(meaning),
                text: text.into(),
            });
            match number(&key) {
                Some(value) if self.bytes < 8 && value >> (u32::from(self.bytes) * 8) != 0 => {
                    return Err(format!("{key} does not fit into {} bytes", self.bytes));
                }
                Some(value) => drop(values.insert(value, meaning)),
                None if key.starts_with("0x") => patterns.push((glob(&key.to_uppercase())?, meaning, key)),
                None => return Err(format!("{key:?} is neither a number nor a glob over 0x and digits")),
            }
        }
        patterns.sort_by_key(|(_, _, key)| Reverse(key.len()));
        Ok(WordRule {
            software: self.software,
            modules: self.module.texts(),
            place: WordPlace { symbol: self.symbol, is_pointer: self.is_pointer, bytes: self.bytes },
            globs: self.module.globs(),
            values,
            patterns: patterns.into_iter().map(|(glob, meaning, _)| (glob, meaning)).collect(),
        })
    }
}

/// Decimal, or hexadecimal with `0x`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl WordRule {
    /// How many values have a name, those that a glob names not counted.
    pub fn values(&self) -> usize {
        self.values.len()
    }

    /// What its values mean.
    pub(super) fn meanings(&self) -> impl Iterator<Item = &Meaning> {
        let of_patterns = self.patterns.iter().map(|(_, value)| value);
        self.values.values().chain(of_patterns).map(|value| &*value.meaning)
    }

    fn is_about(&self, module: &str) -> bool {
        self.modules.iter().zip(&self.globs).any(|(text, glob)| match text.contains('/') {
            true => glob.matches(module),
            false => glob.matches(base_name(module)),
        })
    }

    fn meaning(&self, value: u64) -> Option<&Arc<WordMeaning>> {
        self.values.get(&value).or_else(|| {
            // 0X, so that one case holds for all of it.
            let text = format!("0X{value:0digits$X}", digits = usize::from(self.place.bytes) * 2);
            self.patterns.iter().find(|(glob, _)| glob.matches(&text)).map(|(_, meaning)| meaning)
        })
    }
}

impl WordRules for Rules {
    fn word_of(&self, module: &str) -> Option<WordPlace> {
        self.words().find(|rule| rule.is_about(module)).map(|rule| rule.place.clone())
    }

    /// By the first rule about the word that names its value.
    fn meaning_of(&self, word: &WaitWord) -> Option<Arc<WordMeaning>> {
        let is_its =
            |rule: &&WordRule| rule.place.symbol == word.source.symbol && rule.is_about(&word.source.module);
        self.words().filter(is_its).find_map(|rule| rule.meaning(word.value)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::WordSource;

    const ENGINE: &str = "[[word]]\nsoftware = 'engine'\nmodule = 'engine*'\nsymbol = 'now_waits_for'\nbytes = 2\nidle = ['requests*']\n
         [word.map]\n1 = 'row lock'\n0x0002 = 'requests: next'\n'0x1f*' = 'io'\n'0x1F0*' = 'journal'\n";

    fn rules(text: &str) -> Rules {
        let mut rules = Rules::default();
        rules.prepend_file(text).unwrap_or_else(|error| panic!("{error}"));
        rules
    }

    fn word(module: &str, symbol: &str, value: u64) -> WaitWord {
        let source = Arc::new(WordSource { symbol: symbol.into(), module: module.into() });
        WaitWord { source, value, text: None }
    }

    fn meaning(rules: &Rules, value: u64) -> Option<(String, bool)> {
        let meaning = rules.meaning_of(&word("/opt/engine-2", "now_waits_for", value))?.meaning.clone();
        assert_eq!((meaning.source, meaning.software.as_deref()), (MeaningSource::Word, Some("engine")));
        Some((meaning.name.clone(), meaning.idle))
    }

    #[test]
    fn value_has_the_name_that_its_rule_gives_it() {
        let rules = rules(ENGINE);
        let named = |name: &str, idle| Some((name.to_owned(), idle));
        assert_eq!(meaning(&rules, 1), named("row lock", false));
        assert_eq!(meaning(&rules, 2), named("requests: next", true));
        assert_eq!(meaning(&rules, 0x1f20), named("io", false));
        assert_eq!(meaning(&rules, 0x1f05), named("journal", false), "the longest glob");
        for garbage in [0, 3, 0x2f00, u64::MAX] {
            assert_eq!(meaning(&rules, garbage), None, "{garbage:#x}");
        }
        assert_eq!(rules.meaning_of(&word("/opt/engine-2", "other", 1)), None);
        assert_eq!(rules.meaning_of(&word("/opt/other", "now_waits_for", 1)), None);
    }

    #[test]
    fn stack_goes_before_a_word_that_says_less_and_the_user_before_both() {
        let text = ENGINE.replace("idle = ['req", "stack_first = ['row*']\nidle = ['req");
        let rules = rules(&format!("{text}[word.names]\n'row*' = 'record lock'\n"));
        let word = rules.meaning_of(&word("/opt/engine-2", "now_waits_for", 1)).unwrap();
        assert_eq!((&*word.meaning.name, &*word.text), ("record lock", "row lock"));
        let by = |software: &str, source| {
            let (name, software) = ("unique key".into(), Some(software.into()));
            Arc::new(Meaning { name, software, idle: false, holder: true, source })
        };
        let beside = |stacks: Option<&Arc<Meaning>>| word.beside(stacks).name.clone();
        assert_eq!(beside(Some(&by("engine", MeaningSource::Stack))), "unique key");
        assert_eq!(beside(Some(&by("other", MeaningSource::Stack))), "record lock");
        assert_eq!(beside(Some(&by("engine", MeaningSource::Wakers))), "record lock");
        assert_eq!(beside(Some(&by("other", MeaningSource::User))), "unique key");
        assert_eq!(beside(None), "record lock");
    }

    #[test]
    fn word_says_whether_a_thread_holds_what_the_wait_is_for() {
        let rules = rules(&ENGINE.replace("idle = ['req", "no_holder = ['io']\nidle = ['req"));
        let holder =
            |value| rules.meaning_of(&word("/opt/engine-2", "now_waits_for", value)).unwrap().meaning.holder;
        assert_eq!([1, 2, 0x1f20, 0x1f05].map(holder), [true, false, false, true]);
        let built_in = Rules::built_in().unwrap();
        for module in ["/usr/lib/postgresql/15/bin/postgres", "/opt/pg/bin/postgres"] {
            let holder = |value| {
                built_in.meaning_of(&word(module, "my_wait_event_info", value)).unwrap().meaning.holder
            };
            assert!(holder(0x0300_0005) && holder(0x0100_0038) && !holder(0x0A00_0046), "{module}");
            assert!(!holder(0x0600_0000) && !holder(0x0500_0004) && !holder(0x0800_0031), "{module}");
        }
        assert!(
            built_in
                .words()
                .all(|rule| rule.values.values().all(|word| !(word.meaning.idle && word.meaning.holder)))
        );
    }

    #[test]
    fn file_is_known_by_its_name_or_its_path() {
        let place = WordPlace { symbol: "now_waits_for".into(), is_pointer: false, bytes: 2 };
        assert_eq!(rules(ENGINE).word_of("/opt/x/engine-2"), Some(place));
        assert_eq!(rules(ENGINE).word_of("/opt/engine/x"), None);
        let by_path = rules(&ENGINE.replace("'engine*'", "['/none', '*/9/bin/*']"));
        assert!(by_path.word_of("/usr/lib/engine/9/bin/x").is_some());
        assert!(by_path.word_of("/usr/lib/engine/8/bin/x").is_none());
    }

    #[test]
    fn wrong_rules_say_what_is_wrong() {
        let error = |from: &str, to: &str| {
            Rules::default().prepend_file(&ENGINE.replacen(from, to, 1)).unwrap_err().to_string()
        };
        assert!(error("bytes = 2", "bytes = 3").contains("not 3"));
        assert!(error("1 = 'row", "70000 = 'row").contains("70000 does not fit into 2 bytes"));
        assert!(error("1 = 'row", "one = 'row").contains("\"one\" is neither"));
        assert!(error("'io'", "''").contains("is empty"));
        assert!(error("1 = 'row", "1 = 'a'\n[word.names]\na = ''\nb = 'row").contains("\"a\" is empty"));
        assert!(error("'now_waits_for'", "''").contains("symbol is empty"));
        assert!(error("'engine*'", "[]").contains("no file"));
        assert!(error("'engine*'", "'[a'").starts_with("line 3, column 10: the glob"));
        assert!(error("bytes = 2", "bytes = 3").starts_with("line 1, column 1: "));
        assert!(error("bytes = 2", "speed = 2").starts_with("line 5, column 1: unknown field `speed`"));
    }

    #[test]
    fn postgresql_has_the_names_of_pg_stat_activity() {
        let rules = Rules::built_in().unwrap();
        let debian = "/usr/lib/postgresql/15/bin/postgres";
        let name = |module: &str, value| {
            let found = rules.meaning_of(&word(module, "my_wait_event_info", value))?;
            Some((found.meaning.name.clone(), found.text.to_string(), found.meaning.idle))
        };
        let named = |name: &str, text: &str, idle| Some((name.to_owned(), text.to_owned(), idle));
        assert_eq!(name(debian, 0x0300_0005), named("row lock", "Lock: transactionid", false));
        assert_eq!(name(debian, 0x0300_0004), named("row lock", "Lock: tuple", false));
        assert_eq!(name(debian, 0x0300_0000), named("table lock", "Lock: relation", false));
        assert_eq!(name(debian, 0x0600_0000), named("client idle", "Client: ClientRead", true));
        assert_eq!(name(debian, 0x0500_0004), named("background", "Activity: CheckpointerMain", true));
        assert_eq!(name(debian, 0x0100_0008), named("WAL flush", "LWLock: WALWrite", false));
        assert_eq!(name(debian, 0x0A00_0046), named("WAL flush", "IO: WALSync", false));
        assert_eq!(name(debian, 0x0100_0038), named("lightweight lock", "LWLock: BufferContent", false));
        assert_eq!(name(debian, 0x0100_1000), named("lightweight lock", "LWLock", false), "an extension's");
        assert_eq!(name(debian, 0), None, "not in a wait event");
        assert_eq!(name("/opt/pg/bin/postgres", 0x0300_0005), named("heavyweight lock", "Lock", false));
        let place = rules.word_of(debian).expect("a word");
        assert_eq!((place.symbol.as_str(), place.is_pointer, place.bytes), ("my_wait_event_info", true, 4));
    }
}
