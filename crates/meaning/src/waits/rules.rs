// SPDX-License-Identifier: Apache-2.0
//! Rules about the meaning of waits: what users write in `--waits` files, and what is known of software.
//!
//! A rule is a TOML table `[[wait]]`. It matches a stack in which a function has the name `in`, with the
//! function `called_by` further out where the rule has one, and `directly_called_by` as its caller. Of a
//! stack's functions the first one from the leaf that any rule matches decides, user functions before those
//! of the kernel.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;
use wallprof_model::event::Peer;
use wallprof_model::profile::{ResolvedFrame, ResolvedStack};
use wallprof_model::{FrameKind, Meaning, MeaningSource, SymbolLine};

use super::WITHOUT_RULE;
use super::words::{WordRule, WordText};
use crate::by_stack::{ByFrame, ByStack};
use crate::glob::{Glob, GlobError};
use crate::short_name::plain_name;
use crate::site::base_name;

/// The rules that are known without a file.
const BUILT_IN: &[(&str, &str)] = &[
    ("waits/barriers.toml", include_str!("../../waits/barriers.toml")),
    ("waits/cpython.toml", include_str!("../../waits/cpython.toml")),
    ("waits/erlang.toml", include_str!("../../waits/erlang.toml")),
    ("waits/glibc.toml", include_str!("../../waits/glibc.toml")),
    ("waits/go.toml", include_str!("../../waits/go.toml")),
    ("waits/hotspot.toml", include_str!("../../waits/hotspot.toml")),
    ("waits/libraries.toml", include_str!("../../waits/libraries.toml")),
    ("waits/libuv.toml", include_str!("../../waits/libuv.toml")),
    ("waits/mysql.toml", include_str!("../../waits/mysql.toml")),
    ("waits/polled.toml", include_str!("../../waits/polled.toml")),
    ("waits/pools.toml", include_str!("../../waits/pools.toml")),
    ("waits/postgresql.toml", include_str!("../../waits/postgresql.toml")),
    ("waits/postgresql_words.toml", include_str!("../../waits/postgresql_words.toml")),
    ("waits/ruby.toml", include_str!("../../waits/ruby.toml")),
    ("waits/rust.toml", include_str!("../../waits/rust.toml")),
    ("waits/servers.toml", include_str!("../../waits/servers.toml")),
    ("waits/sqlite.toml", include_str!("../../waits/sqlite.toml")),
    ("waits/linux.toml", include_str!("../../waits/linux.toml")),
];

/// The module of the kernel's functions in a rule.
const KERNEL: &str = "[kernel]";

/// The function that waits, in a rule, where it has no name.
const UNNAMED: &str = "[unnamed]";

const SYSCALL: &str = "syscall";

/// Functions around the call futex(2), which locks and other waits have in common.
const CALLS_FUTEX: [&str; 2] = ["futex_wait", "futexWait"];

/// A rule as its file has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    name: String,
    software: Option<String>,
    idle: bool,
    #[serde(default)]
    holder: Option<bool>,
    r#in: Names,
    #[serde(default)]
    called_by: Names,
    #[serde(default)]
    directly_called_by: Names,
    #[serde(default)]
    nearest_named_caller: Names,
    #[serde(default)]
    module: Names,
    #[serde(default)]
    waits_itself: bool,
    #[serde(default)]
    after_sleep: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default)]
    wait: Vec<Spanned<RuleText>>,
    #[serde(default)]
    word: Vec<Spanned<WordText>>,
    #[serde(default)]
    no_lock: Vec<Spanned<NoLockText>>,
}

/// Functions in which no wait is for a lock, as its file has them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoLockText {
    software: Option<String>,
    r#in: Names,
    #[serde(default)]
    module: Names,
}

/// A glob and its text. Parsed with the file, so that an error has a line and a column.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct NameGlob {
    pub text: String,
    pub glob: Glob,
}

impl TryFrom<String> for NameGlob {
    type Error = GlobError;

    fn try_from(text: String) -> Result<Self, GlobError> {
        Ok(NameGlob { glob: Glob::new(&text)?, text })
    }
}

/// One name or several, globs all.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Vec<NameGlob>);

impl Names {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn texts(&self) -> Vec<String> {
        self.0.iter().map(|name| name.text.clone()).collect()
    }

    /// [`UNNAMED`] is none: as a glob it would be one letter of these.
    pub(super) fn globs(&self) -> Vec<Glob> {
        self.0.iter().filter(|name| name.text != UNNAMED).map(|name| name.glob.clone()).collect()
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(names: D) -> Result<Self, D::Error> {
        struct OneOrSeveral;
        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = Names;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a name, or a list of names")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Names, E> {
                NameGlob::try_from(text.to_owned()).map(|name| Names(vec![name])).map_err(E::custom)
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut names: A) -> Result<Names, A::Error> {
                let mut all = Vec::new();
                while let Some(name) = names.next_element()? {
                    all.push(name);
                }
                Ok(Names(all))
            }
        }
        names.deserialize_any(OneOrSeveral)
    }
}

/// A rule about waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub meaning: Arc<Meaning>,
    /// Globs of the function that the rule is about, as they are written.
    pub functions: Vec<String>,
    /// Globs of a function further out; empty for any.
    pub callers: Vec<String>,
    /// Globs of the next function further out; empty for any.
    pub direct_callers: Vec<String>,
    /// Globs of the next function with a name further out; empty for any. The frames between are of that
    /// function's file.
    pub named_callers: Vec<String>,
    /// Globs of the function's module, which is a file name without folders; empty for any.
    pub modules: Vec<String>,
    /// It is about waits of the function itself: further in there are only functions around futex(2). Without this, what
    /// the function calls may wait, too.
    pub waits_itself: bool,
    /// It is about waits that follow at once on a sleep in one function, and about those through the same calls. The
    /// modules are those of the calls.
    pub after_sleep: bool,
    globs: Globs,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Globs {
    functions: Vec<Glob>,
    callers: Vec<Glob>,
    direct_callers: Vec<Glob>,
    named_callers: Vec<Glob>,
    modules: Vec<Glob>,
}

/// A rule about functions that wait in futex(2) for another value of a word, and never for a lock: of a condition
/// variable, a latch, an atomic. A value can be that of a contended mutex by chance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoLock {
    pub software: Option<String>,
    /// Globs of the functions, as they are written.
    pub functions: Vec<String>,
    /// Globs of the functions' module, which is a file name without folders; empty for any.
    pub modules: Vec<String>,
    functions_globs: Vec<Glob>,
    modules_globs: Vec<Glob>,
}

/// Rules in the order in which they are asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
    words: Vec<WordRule>,
    no_locks: Vec<NoLock>,
}

/// Why a file has no rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesError(String);

impl fmt::Display for RulesError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for RulesError {}

impl Rules {
    /// The built-in rules.
    ///
    /// # Errors
    /// One of the files is no TOML of rules, which a test excludes.
    pub fn built_in() -> Result<Self, RulesError> {
        let mut rules = Rules::default();
        for (name, text) in BUILT_IN {
            rules
                .add_file(text, MeaningSource::Stack)
                .map_err(|error| RulesError(format!("{name}: {error}")))?;
        }
        Ok(rules)
    }

    /// Adds rules that go before those that are there.
    ///
    /// # Errors
    /// The text is no TOML of rules: line, column and what is wrong there.
    pub fn prepend_file(&mut self, text: &str) -> Result<(), RulesError> {
        let mut first = Rules::default();
        first.add_file(text, MeaningSource::User)?;
        first.rules.append(&mut self.rules);
        first.words.append(&mut self.words);
        first.no_locks.append(&mut self.no_locks);
        *self = first;
        Ok(())
    }

    /// Makes waits in functions with these names idle, or not idle, whatever the rules say.
    pub fn prepend_names(&mut self, idle: &[Glob], not_idle: &[Glob]) {
        let rule = |globs: &[Glob], name: &str, idle| Rule {
            meaning: Arc::new(Meaning {
                name: name.into(),
                software: None,
                idle,
                holder: !idle,
                source: MeaningSource::User,
            }),
            functions: Vec::new(),
            callers: Vec::new(),
            direct_callers: Vec::new(),
            named_callers: Vec::new(),
            modules: Vec::new(),
            waits_itself: false,
            after_sleep: false,
            globs: Globs {
                functions: globs.to_vec(),
                callers: Vec::new(),
                direct_callers: Vec::new(),
                named_callers: Vec::new(),
                modules: Vec::new(),
            },
        };
        let added = [rule(not_idle, "not idle", false), rule(idle, "idle", true)];
        self.rules.splice(0..0, added.into_iter().filter(|rule| !rule.globs.functions.is_empty()));
    }

    pub(super) fn add_file(&mut self, text: &str, source: MeaningSource) -> Result<(), RulesError> {
        let located = |at: usize, message: &str| RulesError(located(text, at, message));
        let file: FileText = toml::from_str(text).map_err(|error| match error.span() {
            Some(span) => located(span.start, error.message()),
            None => RulesError(error.message().to_owned()),
        })?;
        for rule in file.wait {
            let start = rule.span().start;
            self.rules.push(rule.into_inner().into_rule(source).map_err(|error| located(start, &error))?);
        }
        for word in file.word {
            let start = word.span().start;
            self.words.push(word.into_inner().into_rule().map_err(|error| located(start, &error))?);
        }
        for no_lock in file.no_lock {
            let start = no_lock.span().start;
            self.no_locks.push(no_lock.into_inner().into_rule().map_err(|error| located(start, &error))?);
        }
        Ok(())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    /// Whether a wait can have the meaning of this name.
    pub fn can_mean(&self, name: &str) -> bool {
        WITHOUT_RULE.contains(&name)
            || Peer::IDLE_NAMES.contains(&name)
            || self.rules.iter().any(|rule| rule.meaning.name == name)
            || self.words.iter().any(|word| word.meanings().any(|meaning| meaning.name == name))
    }

    /// The rules about waits that follow on sleeps.
    pub(super) fn after_sleep(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(|rule| rule.after_sleep)
    }

    /// The rules about words in memory.
    pub fn words(&self) -> impl Iterator<Item = &WordRule> {
        self.words.iter()
    }

    /// The rules about functions in which no wait is for a lock.
    pub fn no_locks(&self) -> impl Iterator<Item = &NoLock> {
        self.no_locks.iter()
    }

    /// Whether a wait with this user stack is for no lock, whatever its value is. Between the function that says so and
    /// the system call there are only functions around futex(2): a condition variable takes its mutex again, and that
    /// is a lock.
    pub fn is_no_lock(&self, user: &ResolvedStack) -> bool {
        for (depth, (frame, symbol)) in user.frames.iter().flat_map(functions_of).enumerate() {
            if self.no_locks.iter().any(|rule| rule.matches(frame, symbol)) {
                return true;
            }
            if !calls_futex(depth, symbol) {
                return false;
            }
        }
        false
    }

    /// The meaning of a wait with these stacks.
    pub fn meaning(
        &self,
        user: Option<&ResolvedStack>,
        kernel: Option<&ResolvedStack>,
    ) -> Option<&Arc<Meaning>> {
        self.meaning_by(&mut RulesOfFunctions::default(), user, kernel)
    }

    /// The same for many stacks, whose frames are the same ones again and again. `known` is kept from one call to
    /// the next, with the same rules.
    pub fn meaning_by(
        &self,
        known: &mut RulesOfFunctions,
        user: Option<&ResolvedStack>,
        kernel: Option<&ResolvedStack>,
    ) -> Option<&Arc<Meaning>> {
        [user, kernel].into_iter().flatten().find_map(|stack| self.meaning_of(known, stack))
    }

    fn meaning_of(&self, known: &mut RulesOfFunctions, stack: &ResolvedStack) -> Option<&Arc<Meaning>> {
        let functions = || stack.frames.iter().flat_map(functions_of);
        let is_in_syscall = functions().next().is_some_and(|(_, symbol)| symbol == Some(SYSCALL));
        let (mut at, mut is_itself) = (0, true);
        for frame in stack.frames.iter() {
            for (line, about) in frame.lines.iter().zip(known.of(self, frame)) {
                // Code without a name further out may wait for anything. A library that waits without the C library's
                // functions for locks calls syscall().
                let waits = at == 0 || at == 1 && is_in_syscall;
                let waits_itself = is_itself;
                is_itself &= calls_futex(at, line.symbol.as_deref());
                at += 1;
                if about.is_empty() || line.symbol.is_none() && !waits {
                    continue;
                }
                let outer: Vec<Function<'_>> = functions().skip(at).collect();
                let mut rules = about.iter().map(|&index| &self.rules[index]);
                if let Some(rule) =
                    rules.find(|rule| (waits_itself || !rule.waits_itself) && rule.matches(frame, &outer))
                {
                    return Some(&rule.meaning);
                }
            }
        }
        None
    }

    /// Indices of the rules about a function.
    fn about(&self, function: Option<&str>) -> Box<[usize]> {
        let names = function.map(FunctionNames::of);
        let is_about = |rule: &Rule| match &names {
            Some(names) if names.whole != UNNAMED => names.any(&rule.globs.functions),
            _ => rule.functions.iter().any(|name| name == UNNAMED),
        };
        let of_function = self.rules.iter().enumerate().filter(|(_, rule)| is_about(rule));
        of_function.map(|(index, _)| index).collect()
    }
}

/// Which rules are about which functions, by frame and line.
#[derive(Default)]
pub struct RulesOfFunctions(ByFrame<Box<[usize]>>);

impl RulesOfFunctions {
    fn of(&mut self, rules: &Rules, frame: &Arc<ResolvedFrame>) -> &[Box<[usize]>] {
        let about = |line: &SymbolLine| rules.about(line.symbol.as_deref());
        self.0.get(frame, |frame| frame.lines.iter().map(about).collect())
    }
}

/// Asks the same rules about many stacks: each stack once, as many waits have one of theirs in common.
pub(super) struct Matcher<'r> {
    rules: &'r Rules,
    known: RulesOfFunctions,
    stacks: ByStack<Option<&'r Arc<Meaning>>>,
}

impl<'r> Matcher<'r> {
    pub(super) fn new(rules: &'r Rules) -> Self {
        Matcher { rules, known: RulesOfFunctions::default(), stacks: ByStack::default() }
    }

    pub(super) fn meaning(
        &mut self,
        user: Option<&ResolvedStack>,
        kernel: Option<&ResolvedStack>,
    ) -> Option<&'r Arc<Meaning>> {
        let Matcher { rules, known, stacks } = self;
        let mut of_stack = |stack| stacks.get(stack, |stack| rules.meaning_of(known, stack));
        [user, kernel].into_iter().flatten().find_map(&mut of_stack)
    }
}

/// Whether a function at this depth is one around futex(2). Without a name it is of a C library without symbols.
fn calls_futex(depth: usize, symbol: Option<&str>) -> bool {
    symbol.map_or(depth == 0, |symbol| {
        symbol == SYSCALL || CALLS_FUTEX.iter().any(|call| symbol.contains(call))
    })
}

fn any(globs: &[Glob], name: &str) -> bool {
    FunctionNames::of(name).any(globs)
}

/// A function's name as it is, and as a list of functions has it, where that is another one.
struct FunctionNames<'n> {
    whole: &'n str,
    plain: Option<Cow<'n, str>>,
}

impl<'n> FunctionNames<'n> {
    fn of(whole: &'n str) -> Self {
        FunctionNames { whole, plain: Some(plain_name(whole)).filter(|plain| plain != whole) }
    }

    fn any(&self, globs: &[Glob]) -> bool {
        globs.iter().any(|glob| {
            glob.matches(self.whole) || self.plain.as_ref().is_some_and(|plain| glob.matches(plain))
        })
    }
}

/// A function of a stack. It has no name in a module without symbols.
type Function<'a> = (&'a ResolvedFrame, Option<&'a str>);

fn functions_of(frame: &Arc<ResolvedFrame>) -> impl Iterator<Item = Function<'_>> {
    frame.lines.iter().map(move |line: &SymbolLine| (&**frame, line.symbol.as_deref()))
}

impl Rule {
    /// Whether one of the frame's functions is one that it is about.
    pub(super) fn is_about(&self, frame: &ResolvedFrame) -> bool {
        let mut symbols = frame.lines.iter().filter_map(|line| line.symbol.as_deref());
        symbols.any(|symbol| any(&self.globs.functions, symbol))
    }

    /// Whether the frame is of one of its modules.
    pub(super) fn is_of_module(&self, frame: &ResolvedFrame) -> bool {
        frame.module.as_deref().is_some_and(|module| any(&self.globs.modules, base_name(module)))
    }

    /// Whether it matches a stack with a function that it is about, in `frame`.
    fn matches(&self, frame: &ResolvedFrame, outer: &[Function<'_>]) -> bool {
        let globs = &self.globs;
        let in_module = || match frame.kind {
            // As a glob it would be one letter of these.
            FrameKind::Kernel => self.modules.iter().any(|module| module == KERNEL),
            _ => frame.module.as_deref().is_some_and(|module| any(&globs.modules, base_name(module))),
        };
        if self.after_sleep {
            return false;
        }
        let called = |globs: &[Glob], caller: &Function<'_>| caller.1.is_some_and(|name| any(globs, name));
        (globs.modules.is_empty() || in_module())
            && (globs.callers.is_empty() || outer.iter().any(|caller| called(&globs.callers, caller)))
            && (globs.direct_callers.is_empty()
                || outer.first().is_some_and(|caller| called(&globs.direct_callers, caller)))
            && (globs.named_callers.is_empty()
                || nearest_named(outer).is_some_and(|caller| called(&globs.named_callers, caller)))
    }
}

/// The next function with a name, if all frames before it are of its file: code between that has no name then
/// belongs to the same program or library, not to another one that is stripped, too.
fn nearest_named<'a, 's>(outer: &'a [Function<'s>]) -> Option<&'a Function<'s>> {
    let at = outer.iter().position(|(_, name)| name.is_some())?;
    let file = &outer[at].0.module;
    outer[..at].iter().all(|(frame, _)| frame.module == *file).then_some(&outer[at])
}

impl NoLock {
    fn matches(&self, frame: &ResolvedFrame, symbol: Option<&str>) -> bool {
        let is_about = match symbol {
            Some(symbol) => any(&self.functions_globs, symbol),
            None => self.functions.iter().any(|name| name == UNNAMED),
        };
        let in_module =
            || frame.module.as_deref().is_some_and(|module| any(&self.modules_globs, base_name(module)));
        is_about && (self.modules.is_empty() || in_module())
    }
}

impl NoLockText {
    fn into_rule(self) -> Result<NoLock, String> {
        if self.r#in.is_empty() {
            return Err("`in` has no function: name one, or several".into());
        }
        Ok(NoLock {
            software: self.software,
            functions_globs: self.r#in.globs(),
            modules_globs: self.module.globs(),
            functions: self.r#in.texts(),
            modules: self.module.texts(),
        })
    }
}

impl RuleText {
    fn into_rule(self, source: MeaningSource) -> Result<Rule, String> {
        if self.name.is_empty() {
            return Err("the name is empty: say what users of the software call this wait".into());
        }
        if self.idle && self.holder == Some(true) {
            return Err(
                "no thread holds what an idle thread waits for: leave out `holder`, or `idle = true`".into(),
            );
        }
        if self.r#in.is_empty() {
            return Err("`in` has no function: name one, or several".into());
        }
        Ok(Rule {
            globs: Globs {
                functions: self.r#in.globs(),
                callers: self.called_by.globs(),
                direct_callers: self.directly_called_by.globs(),
                named_callers: self.nearest_named_caller.globs(),
                modules: self.module.globs(),
            },
            meaning: Arc::new(Meaning {
                name: self.name,
                software: self.software,
                idle: self.idle,
                holder: self.holder.unwrap_or(!self.idle),
                source,
            }),
            functions: self.r#in.texts(),
            callers: self.called_by.texts(),
            direct_callers: self.directly_called_by.texts(),
            named_callers: self.nearest_named_caller.texts(),
            modules: self.module.texts(),
            waits_itself: self.waits_itself,
            after_sleep: self.after_sleep,
        })
    }
}

/// `line 3, column 5: unknown field …`.
fn located(text: &str, at: usize, message: &str) -> String {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    format!("line {line}, column {column}: {message}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_testkit::stacks::kernel_stack;
    use wallprof_testkit::stacks::{stack, strip};

    const TBB_WAIT: &str = "tbb::detail::r1::wait_bounded_queue_monitor(tbb::detail::r1::concurrent_monitor*, \
                            unsigned long, long, tbb::detail::d1::delegate_base&)";

    fn rules(text: &str) -> Rules {
        let mut rules = Rules::default();
        rules.prepend_file(text).unwrap_or_else(|error| panic!("{error}"));
        rules
    }

    fn meaning<'r>(rules: &'r Rules, symbols: &[&str]) -> Option<&'r str> {
        rules.meaning(Some(&stack(symbols)), None).map(|meaning| meaning.name.as_str())
    }

    #[test]
    fn built_in_rules_are_rules() {
        assert!(Rules::built_in().unwrap().iter().count() > 0);
    }

    #[test]
    fn names_that_waits_can_have_are_known() {
        let mut rules = Rules::built_in().unwrap();
        rules.prepend_file("[[wait]]\nname = 'shard lock'\nidle = false\nin = 'lock_shard'\n").unwrap();
        // By a rule, by a word of PostgreSQL's, by who ends the waits, by what is at the other end, by the user.
        for name in ["row lock", "IO: DataFileRead", "full queue", "answer", "client idle", "shard lock"] {
            assert!(rules.can_mean(name), "{name}");
        }
        assert!(!rules.can_mean("rowlock") && !rules.can_mean(""));
    }

    #[test]
    fn wait_for_a_number_is_for_no_lock() {
        let rules = Rules::built_in().unwrap();
        let is_no_lock = |symbols: &[&str]| rules.is_no_lock(&stack(symbols));
        for symbols in [
            &[
                "syscall",
                "std::sys::pal::unix::futex::futex_wait",
                "<std::sys::sync::condvar::futex::Condvar>::wait_optional_timeout",
                "serve",
            ][..],
            &[
                "syscall",
                "<std::sys::sync::condvar::futex::Condvar>::wait",
                "tokio::runtime::park::Inner::park",
            ],
            &["syscall", "void std::__detail::__platform_wait<int>(int const*, int)", "serve"],
            &["syscall", "std::__1::__libcpp_atomic_wait(void const volatile*, long)", "serve"],
        ] {
            assert!(is_no_lock(symbols), "{symbols:?}");
        }
        for symbols in [
            // It takes its mutex again.
            &[
                "syscall",
                "std::sys::pal::unix::futex::futex_wait",
                "<std::sys::sync::mutex::futex::Mutex>::lock_contended",
                "<std::sys::sync::condvar::futex::Condvar>::wait_optional_timeout",
            ][..],
            &["syscall", "<std::sys::sync::mutex::futex::Mutex>::lock_contended", "serve"],
            &["__lll_lock_wait_private", "malloc", "std::__atomic_base<int>::wait"],
            &["syscall", "serve", "<std::sys::sync::condvar::futex::Condvar>::wait"],
            &["syscall", "serve"],
            &[],
        ] {
            assert!(!is_no_lock(symbols), "{symbols:?}");
        }
        let mut own = Rules::default();
        own.prepend_file("[[no_lock]]\nin = 'serve'").unwrap();
        assert!(own.is_no_lock(&stack(&["syscall", "serve"])));
        let refused = own.prepend_file("[[no_lock]]\nin = []").unwrap_err().to_string();
        assert_eq!(refused, "line 1, column 1: `in` has no function: name one, or several");
    }

    #[test]
    fn thread_that_initializes_waits_for_what_its_function_waits_for() {
        let rules = Rules::built_in().unwrap();
        const ONCE: &str = "one-time initialization";
        for (symbols, name) in [
            (
                &["futex_wait", "futex_wait_simple", "__pthread_once_slow", "std::call_once<void (&)()>"][..],
                ONCE,
            ),
            (&["__pthread_once_slow", "serve", "main"], ONCE),
            (
                &["syscall", "parking_lot_core::word_lock::f", "parking_lot::once::Once::call_once_slow"],
                "lock",
            ),
            (&["pthread_cond_wait", "std::__1::__call_once(unsigned long volatile&, void*)", "serve"], ONCE),
        ] {
            assert_eq!(meaning(&rules, symbols), Some(name), "{symbols:?}");
        }
        for symbols in [
            &["clock_nanosleep", "init_tables", "__pthread_once_slow", "std::call_once<void (&)()>"][..],
            &["futex_wait", "pthread_cond_wait", "init_tables", "__pthread_once_slow", "serve"],
            &["syscall", "rest", "init_tables", "parking_lot::once::Once::call_once_slow", "serve"],
            &["pthread_cond_wait", "init_tables", "std::__1::__call_once(unsigned long volatile&)", "serve"],
        ] {
            assert_eq!(meaning(&rules, symbols), None, "{symbols:?}");
        }
    }

    #[test]
    fn methods_of_rust_have_their_names_with_either_mangling() {
        let rules = Rules::built_in().unwrap();
        for symbol in
            ["<parking_lot::raw_mutex::RawMutex>::lock_slow", "parking_lot::raw_mutex::RawMutex::lock_slow"]
        {
            assert_eq!(meaning(&rules, &[symbol, "take_order"]), Some("lock"), "{symbol}");
        }
        assert_eq!(meaning(&rules, &["<std::sync::barrier::Barrier>::wait", "step"]), Some("barrier"));
    }

    #[test]
    fn a_function_without_a_name_is_one_where_it_waits_itself() {
        let rules = Rules::built_in().unwrap();
        let of = |module: &str, symbols: &[&str]| {
            let of_module = |frame: &Arc<ResolvedFrame>| match frame.lines[0].symbol.as_deref() {
                Some("") => Arc::new(ResolvedFrame {
                    module: Some(module.into()),
                    lines: vec![SymbolLine::default()],
                    ..ResolvedFrame::clone(frame)
                }),
                _ => frame.clone(),
            };
            let user = stack(symbols);
            let user = ResolvedStack { frames: user.frames.iter().map(of_module).collect(), ..user };
            rules.meaning(Some(&user), None).map(|meaning| meaning.name.clone())
        };
        let omp = |symbols: &[&str]| of("/usr/lib/x86_64-linux-gnu/libgomp.so.1.0.0", symbols);
        for at in [&["", "solve._omp_fn.0", "GOMP_parallel", "main"][..], &["", "GOMP_parallel", "main"]] {
            assert_eq!(omp(at).as_deref(), Some("OpenMP team"), "{at:?}");
        }
        for idle in [&["", "", "start_thread", "clone3"][..], &[""], &["a", "solve._omp_fn.0", "main"]] {
            assert_eq!(omp(idle), None, "{idle:?}");
        }
        let task = &["__lll_lock_wait", "pthread_mutex_lock", "f._omp_fn.1", "", "solve._omp_fn.0"];
        assert_eq!(omp(task), None, "a task waits for a lock, below the library's barrier");
        assert_eq!(of("/usr/lib/libother.so", &["", "solve._omp_fn.0"]), None);
        let libc = |symbols: &[&str]| of("/usr/lib/x86_64-linux-gnu/libc.so.6", symbols);
        let once = libc(&["", "std::call_once<void (&)()>(std::once_flag&, void (&)())", "serve"]);
        assert_eq!(once.as_deref(), Some("one-time initialization"));
        assert_eq!(libc(&["", "init_tables", "std::call_once<void (&)()>(int)", "serve"]), None);
    }

    /// Stacks as recorded of the programs that the rules name, functions without symbols left out.
    #[test]
    fn waits_of_real_software_have_its_words() {
        let rules = Rules::built_in().unwrap();
        let meaning = |symbols: &[&str]| {
            let meaning = rules.meaning(Some(&stack(symbols)), None)?;
            Some((meaning.software.as_deref()?, meaning.name.as_str(), meaning.idle))
        };
        let locked = ["epoll_wait", "WaitEventSetWait", "WaitLatch", "ProcSleep", "LockAcquireExtended"];
        let lock_of = |callers: &[&'static str]| meaning(&[&locked[..], callers].concat());
        for (callers, name) in [
            (&["XactLockTableWait", "heap_update", "PostgresMain"][..], "row lock"),
            (&["LockTuple", "heap_update", "PostgresMain"], "row lock"),
            (&["XactLockTableWait", "_bt_doinsert", "btinsert", "PostgresMain"], "unique key"),
            (&["LockRelationOid", "RangeVarGetRelidExtended", "PostgresMain"], "table lock"),
            (&["pg_advisory_lock_int8", "PostgresMain"], "advisory lock"),
            (&["SomethingNew", "PostgresMain"], "heavyweight lock"),
        ] {
            assert_eq!(lock_of(callers), Some(("postgresql", name, false)));
        }
        for (symbols, software, name, idle) in [
            (
                &["epoll_wait", "WaitEventSetWait", "secure_read", "PostgresMain"][..],
                "postgresql",
                "client idle",
                true,
            ),
            (
                &["epoll_wait", "WaitEventSetWait", "WaitLatch", "WalWriterMain"],
                "postgresql",
                "background",
                true,
            ),
            (&["__select", "ServerLoop", "PostmasterMain", "main"], "postgresql", "connections", true),
            (&["PGSemaphoreLock", "LWLockAcquire", "ProcSleep"], "postgresql", "lightweight lock", false),
            (
                &["clock_nanosleep", "nanosleep", "usleep", "Back::lock()", "serve"],
                "glibc",
                "polled lock",
                false,
            ),
            (&["clock_nanosleep", "take_spin_lock", "serve"], "glibc", "polled lock", false),
            (
                &[
                    "__new_sem_wait_slow64",
                    "PyThread_acquire_lock_timed",
                    "lock_PyThread_acquire_lock",
                    "_PyEval_EvalFrameDefault",
                    "py::_ModuleLock.acquire:<frozen importlib._bootstrap>",
                    "py::_lock_unlock_module:<frozen importlib._bootstrap>",
                    "import_find_and_load",
                ],
                "cpython",
                "import lock",
                false,
            ),
            (
                &[
                    "PyThread_acquire_lock_timed",
                    "lock_PyThread_acquire_lock",
                    "_PyEval_EvalFrameDefault",
                    "import_ensure_initialized",
                    "PyImport_ImportModuleLevelObject",
                ],
                "cpython",
                "import lock",
                false,
            ),
            (&["PGSemaphoreLock", "LWLockAcquireOrWait", "XLogFlush"], "postgresql", "WAL flush", false),
            (&["fdatasync", "XLogFlush", "PostgresMain"], "postgresql", "WAL flush", false),
            (
                &["pthread_cond_wait", "net_real_write", "net_flush", "do_command(THD*, bool)"],
                "mysql",
                "redo log flush",
                false,
            ),
            (
                &[
                    "runtime.futexsleep",
                    "runtime.notetsleep",
                    "runtime.forEachPInternal",
                    "runtime.gcMarkDone",
                ],
                "go",
                "garbage collection",
                false,
            ),
            (
                &[
                    "pthread_cond_timedwait",
                    "handler::ha_index_read_map(unsigned char*)",
                    "do_command(THD*, bool)",
                ],
                "mysql",
                "row lock",
                false,
            ),
            (
                &[
                    "pthread_cond_timedwait",
                    "MDL_wait::timed_wait(MDL_context_owner*)",
                    "do_command(THD*, bool)",
                ],
                "mysql",
                "metadata lock",
                false,
            ),
            (
                &[
                    "pthread_cond_timedwait",
                    "MDL_wait::timed_wait(MDL_context_owner*)",
                    "Item_func_get_lock::val_int()",
                    "do_command(THD*, bool)",
                ],
                "mysql",
                "user lock",
                false,
            ),
            (
                &["pthread_cond_timedwait", "do_handle_one_connection(CONNECT*, bool)"],
                "mysql",
                "connections",
                true,
            ),
            (&["epoll_wait", "aeProcessEvents", "processEventsWhileBlocked"], "redis", "event loop", true),
            (&["epoll_wait", "aeMain"], "redis", "event loop", true),
            (&["epoll_wait", "ngx_process_events_and_timers"], "nginx", "event loop", true),
            (&["epoll_wait", "run_poll_loop"], "haproxy", "event loop", true),
            (&["epoll_wait", "event_base_loop"], "libevent", "event loop", true),
            (
                &[
                    "pthread_cond_timedwait",
                    "Unsafe_Park",
                    "java.lang.Object java.util.concurrent.SynchronousQueue.poll(long, java.util.concurrent.TimeUnit)",
                    "java.lang.Runnable org.eclipse.jetty.util.thread.ReservedThreadExecutor$ReservedThread.reservedWait()",
                ],
                "jetty",
                "pool",
                true,
            ),
            (&["syscall", TBB_WAIT, "run"], "tbb", "items", true),
            (
                &["syscall", TBB_WAIT, "tbb::detail::d2::concurrent_bounded_queue<int>::internal_pop(void*)"],
                "tbb",
                "items",
                true,
            ),
            (
                &[
                    "syscall",
                    TBB_WAIT,
                    "void tbb::detail::d2::concurrent_bounded_queue<int>::internal_push<int>(int&&)",
                ],
                "tbb",
                "full queue",
                false,
            ),
            (
                &[
                    "sem_wait",
                    "moodycamel::details::Semaphore::wait()",
                    "moodycamel::LightweightSemaphore::wait()",
                    "void moodycamel::BlockingConcurrentQueue<int, moodycamel::Traits>::wait_dequeue<int&>(int&)",
                ],
                "moodycamel",
                "items",
                true,
            ),
            (&["usleep", "sqlite3OsSleep", "sqlite3InvokeBusyHandler"], "sqlite", "database lock", false),
            (&["poll", "__res_context_send", "getaddrinfo"], "glibc", "DNS", false),
            (&["sched_yield", "erts_schedule"], "erlang", "work", true),
            (&["pthread_cond_wait", "rb_native_cond_wait", "rb_mutex_synchronize"], "ruby", "lock", false),
            (&["pthread_cond_timedwait", "rb_nogvl", "rb_ensure", "rb_vm_exec"], "ruby", "GVL", false),
            (
                &[
                    "pthread_cond_wait",
                    "rb_native_cond_wait",
                    "rb_threadptr_execute_interrupts",
                    "rb_vm_exec",
                ],
                "ruby",
                "GVL",
                false,
            ),
            (&["poll", "[unnamed]", "zmq_msg_send", "zmq_send"], "zeromq", "full queue", false),
            (&["pthread_cond_wait", "nng_aio_wait", "nng_sendmsg", "nng_send"], "nng", "full queue", false),
            (&["syscall", "g_mutex_lock", "take_order"], "glib", "lock", false),
            (&["syscall", "g_cond_wait", "g_async_queue_pop", "sink"], "glib", "items", true),
            (&["syscall", "QBasicMutex::lockInternal()", "take_order"], "qt", "lock", false),
            (
                &[
                    "syscall",
                    "absl::lts_20220623::Mutex::LockSlow(absl::lts_20220623::MuHowS const*, int)",
                    "absl::lts_20220623::Mutex::Lock()",
                ],
                "absl",
                "lock",
                false,
            ),
            (
                &[
                    "pthread_cond_wait",
                    "spdlog::details::mpmc_blocking_queue<spdlog::details::async_msg>::enqueue(spdlog::details::async_msg&&)",
                    "spdlog::async_logger::sink_it_(spdlog::details::log_msg const&)",
                ],
                "spdlog",
                "full queue",
                false,
            ),
            // Version 1.15, built by GCC 14.
            (
                &[
                    "pthread_cond_wait",
                    "spdlog::details::thread_pool::post_async_msg_(spdlog::details::async_msg&&)",
                    "spdlog::async_logger::sink_it_(spdlog::details::log_msg const&)",
                ],
                "spdlog",
                "full queue",
                false,
            ),
            (
                &["pthread_cond_wait", "spdlog::details::thread_pool::process_next_msg_()"],
                "spdlog",
                "messages",
                true,
            ),
            (
                &[
                    "Unsafe_Park",
                    "boolean com.lmax.disruptor.MultiProducerSequencer.next(int)",
                    "app.Feed.run",
                ],
                "disruptor",
                "full ring",
                false,
            ),
            (
                &[
                    "Unsafe_Park",
                    "java.lang.Object java.util.concurrent.SynchronousQueue.poll(long, java.util.concurrent.TimeUnit)",
                    "com.zaxxer.hikari.util.ConcurrentBag$IConcurrentBagEntry com.zaxxer.hikari.util.ConcurrentBag.borrow(long)",
                ],
                "hikari",
                "pooled connection",
                false,
            ),
            (
                &[
                    "syscall",
                    "parking_lot::condvar::Condvar::wait_until_internal",
                    "r2d2::Pool<M>::get_timeout",
                ],
                "r2d2",
                "pooled connection",
                false,
            ),
        ] {
            assert_eq!(meaning(symbols), Some((software, name, idle)), "{symbols:?}");
        }
        assert_eq!(
            meaning(&["pthread_cond_wait", "query_cache", "do_handle_one_connection(CONNECT*)"]),
            None
        );
        let in_block = ["pthread_cond_wait", "rb_native_cond_wait", "rb_ensure", "rb_mutex_synchronize"];
        assert_eq!(meaning(&in_block), None, "the block of the mutex waits");
        const WHEN: &str = "absl::lts_20220623::Mutex::LockWhen(absl::lts_20220623::Condition const&)";
        let when = meaning(&["syscall", "absl::lts_20220623::Mutex::LockSlowLoop()", WHEN]);
        assert_eq!(when, Some(("absl", "condition", true)));
        let connect = "org.apache.tomcat.jdbc.pool.ConnectionPool.borrowConnection(int)";
        assert_eq!(meaning(&["poll", "org.postgresql.Driver.connect", connect]), None, "it makes one");
        let semaphore = ["sem_wait", "moodycamel::details::Semaphore::wait()", "take_order"];
        assert_eq!(meaning(&semaphore), None, "a lock of the program");
        assert_eq!(meaning(&["pthread_cond_timedwait", "rb_thread_fd_select", "rb_ensure"]), None, "asleep");
        assert_eq!(meaning(&["read", "rdbLoad", "aeProcessEvents", "aeMain"]), None, "the loop is blocked");
    }

    /// What a worker, a pool's thread or a loop calls is below the functions in which it is idle, too.
    #[test]
    fn work_below_an_idle_loop_is_not_idle() {
        let rules = Rules::built_in().unwrap();
        const POOL: &str = "tokio::runtime::blocking::pool::Inner::run";
        const RUN: &str = "tokio::runtime::blocking::pool::LockedImpl::run_worker";
        const POLL: &str = "tokio::runtime::task::core::Core<T,S>::poll";
        const BLOCK_ON: &str = "tokio::runtime::park::CachedParkThread::block_on";
        const GRPC: &str = "grpc_event_engine::experimental::WorkStealingThreadPool::ThreadState::Step()";
        for symbols in [
            &[
                "syscall",
                "parking_lot::condvar::Condvar::wait_for",
                "tokio::loom::std::parking_lot::Condvar::wait_timeout",
                RUN,
                POOL,
            ][..],
            &["syscall", POOL],
            &[
                "syscall",
                "std::sync::poison::condvar::Condvar::wait",
                "tokio::runtime::park::Inner::park",
                BLOCK_ON,
            ],
            &["syscall", BLOCK_ON],
            &["epoll_wait", "tokio::runtime::scheduler::multi_thread::park::Inner::park_driver", POOL],
            &["syscall", "absl::CondVar::WaitWithTimeout", "grpc_core::CondVar::WaitWithTimeout", GRPC],
            &["epoll_wait", "epoll_dispatch", "event_base_loop"],
        ] {
            assert!(meaning(&rules, symbols).is_some(), "{symbols:?}");
        }
        for symbols in [
            &["clock_nanosleep", "std::thread::functions::sleep", "app::price::{{closure}}", POLL, POOL][..],
            &["fsync", "app::journal", "tokio::runtime::blocking::task::BlockingTask<T>::poll", POLL, POOL],
            &["syscall", "std::sys::sync::condvar::futex::Condvar::wait", "app::wait_for_quote", POLL, POOL],
            &["clock_nanosleep", "app::main::{{closure}}", BLOCK_ON],
            &["clock_nanosleep", "handle(Request*)", GRPC],
            &["poll", "curl_easy_perform", "on_request", "event_base_loop"],
            &["poll", "curl_easy_perform", "ngx_http_lua_content_handler", "ngx_process_events_and_timers"],
        ] {
            assert_eq!(meaning(&rules, symbols), None, "{symbols:?}");
        }
    }

    /// Kernel stacks as recorded with 6.18.
    #[test]
    fn waits_inside_the_kernel_have_its_words() {
        let rules = Rules::built_in().unwrap();
        for (symbols, name) in [
            (&["schedule_timeout", "synchronize_rcu_normal", "__do_sys_membarrier"][..], "RCU grace period"),
            (&["wait_for_completion_state", "__wait_rcu_gp", "synchronize_rcu_normal"], "RCU grace period"),
            (&["schedule", "fanotify_handle_event", "send_to_group", "do_dentry_open"], "scanner"),
            (&["seccomp_do_user_notification.isra.0", "__seccomp_filter"], "seccomp supervisor"),
            (&["request_wait_answer", "__fuse_simple_request", "fuse_lookup_name"], "file server"),
            (&["io_schedule", "folio_wait_bit_common", "filemap_read", "fuse_file_read_iter"], "file server"),
            (&["schedule_timeout", "wait_woken", "n_tty_write", "file_tty_write"], "terminal"),
            (&["schedule_timeout", "unix_wait_for_peer", "unix_dgram_sendmsg"], "datagram queue"),
            (&["schedule_timeout", "unix_wait_for_peer", "unix_stream_connect"], "full backlog"),
            (&["schedule", "do_msgsnd"], "full message queue"),
            (&["schedule_hrtimeout_range_clock", "wq_sleep", "do_mq_timedsend"], "full message queue"),
            (&["schedule", "do_msgrcv"], "messages"),
            (&["schedule_hrtimeout_range_clock", "wq_sleep", "do_mq_timedreceive"], "messages"),
            (&["schedule_timeout", "__break_lease", "do_dentry_open"], "file lease"),
            (&["schedule", "autofs_wait", "autofs_mount_wait", "autofs_lookup"], "automounter"),
            (&["__wait_for_common", "wait_for_completion_state", "kernel_clone"], "vfork"),
            (&["wait_for_completion_killable", "wait_for_vfork_done", "kernel_clone"], "vfork"),
            (&["wait_woken", "sk_stream_wait_close", "__tcp_close", "tcp_close"], "lingering close"),
            (&["schedule", "anon_pipe_write", "dump_emit", "vfs_coredump", "get_signal"], "core dump"),
            (&["__schedule", "schedule", "do_exit", "do_group_exit"], "core dump"),
            (&["__synchronize_srcu", "fsnotify_mark_destroy_workfn"], "RCU grace period"),
        ] {
            let meaning =
                |stack: ResolvedStack| rules.meaning(None, Some(&stack)).map(|meaning| meaning.name.clone());
            assert_eq!(meaning(kernel_stack(symbols)).as_deref(), Some(name), "{symbols:?}");
            assert_eq!(meaning(stack(symbols)), None, "functions of a program with these names");
        }
    }

    #[test]
    fn first_function_from_the_leaf_decides() {
        let rules = rules(
            "[[wait]]\nname = 'any'\nidle = true\nin = 'main*'\n
             [[wait]]\nname = 'row lock'\nidle = false\nin = ['ProcSleep', 'Sleep?']\ncalled_by = 'Xact*'\n
             [[wait]]\nname = 'other lock'\nsoftware = 'p'\nidle = false\nin = 'ProcSleep'",
        );
        assert_eq!(meaning(&rules, &["poll", "ProcSleep", "XactWait", "main"]), Some("row lock"));
        assert_eq!(meaning(&rules, &["poll", "ProcSleep", "Relation", "main"]), Some("other lock"));
        assert_eq!(meaning(&rules, &["XactWait", "ProcSleep", "main_loop"]), Some("other lock"));
        assert_eq!(meaning(&rules, &["poll", "serve", "main"]), Some("any"));
        assert_eq!(meaning(&rules, &["poll"]), None);
    }

    #[test]
    fn direct_caller_is_the_next_function_with_or_without_a_name() {
        let rules = rules("[[wait]]\nname = 'a'\nidle = true\nin = 'wait'\ndirectly_called_by = 'serve*'");
        assert_eq!(meaning(&rules, &["poll", "wait", "serve_one", "main"]), Some("a"));
        assert_eq!(meaning(&rules, &["poll", "wait", "query", "serve_one"]), None);
        assert_eq!(meaning(&rules, &["serve_one", "wait"]), None);
        let mut stripped = stack(&["wait", "query", "serve_one"]);
        strip(&mut stripped, 1);
        assert_eq!(rules.meaning(Some(&stripped), None), None);
    }

    #[test]
    fn unnamed_frames_of_its_file_may_lie_before_the_nearest_named_caller() {
        let rules = rules(
            "[[wait]]\nname = 'GIL'\nidle = false\nin = 'cond_wait'\nnearest_named_caller = ['Eval*', 'Save']",
        );
        let in_file = |symbol: Option<&str>, file: &str| {
            let mut frame = (*stack(&["x"]).frames[0]).clone();
            frame.module = Some(file.into());
            frame.lines[0].symbol = symbol.map(str::to_owned);
            Arc::new(frame)
        };
        let found = |between: &[(Option<&str>, &str)]| {
            let mut frames = vec![in_file(Some("cond_wait"), "/lib/libc.so.6")];
            frames.extend(between.iter().map(|(symbol, file)| in_file(*symbol, file)));
            let stack = ResolvedStack { frames: frames.into(), ..stack(&[]) };
            rules.meaning(Some(&stack), None).is_some()
        };
        let (python, extension) = ("/usr/bin/python3", "/usr/lib/math.so");
        assert!(found(&[(Some("EvalFrame"), python)]));
        assert!(found(&[(None, python), (None, python), (Some("EvalFrame"), python)]));
        assert!(!found(&[(None, extension), (None, python), (Some("EvalFrame"), python)]), "another file");
        assert!(!found(&[(Some("pool_get"), python), (Some("EvalFrame"), python)]), "another function");
        assert!(!found(&[(None, python)]), "no function at all");
        assert!(!found(&[]));
    }

    #[test]
    fn rule_says_whether_a_thread_holds_what_the_wait_is_for() {
        let built_in = Rules::built_in().unwrap();
        let without: Vec<&str> = built_in
            .iter()
            .filter(|rule| !rule.meaning.idle && !rule.meaning.holder)
            .map(|rule| rule.meaning.name.as_str())
            .collect();
        let expected = [
            "barrier",
            "barrier",
            "barrier",
            "barrier",
            "OpenMP team",
            "full queue",
            "DNS",
            "woken waiters",
            "garbage collection",
            "full queue",
            "full ring",
            "pinned virtual thread",
            "full queue",
            "full queue",
            "full queue",
            "full queue",
            "full queue",
            "write stall",
            "write stall",
            "write group",
            "write stall",
            "redo log flush",
            "WAL flush",
            "WAL flush",
            "synchronous replication",
            "full channel",
            "full channel",
            "full channel",
            "RCU grace period",
            "scanner",
            "seccomp supervisor",
            "file server",
            "file server",
            "terminal",
            "full backlog",
            "datagram queue",
            "full message queue",
            "file lease",
            "automounter",
            "vfork",
            "vfork",
            "lingering close",
            "core dump",
            "core dump",
        ];
        assert_eq!(without, expected);
        assert!(built_in.iter().all(|rule| !(rule.meaning.idle && rule.meaning.holder)));
        let idle = "[[wait]]\nname = 'a'\nidle = true\nholder = true\nin = 'take'";
        let error = Rules::default().prepend_file(idle).unwrap_err();
        assert!(error.to_string().contains("leave out `holder`"), "{error}");
    }

    #[test]
    fn module_and_names_of_the_user() {
        let mut rules = rules("[[wait]]\nname = 'a'\nidle = true\nin = 'take'\nmodule = 'libother*'");
        assert_eq!(meaning(&rules, &["take"]), None);
        rules.prepend_file("[[wait]]\nname = 'b'\nidle = true\nin = 'take'\nmodule = ['app', 'x']").unwrap();
        assert_eq!(meaning(&rules, &["take"]), Some("b"));
        rules.prepend_names(&[], &[Glob::new("ta*").unwrap()]);
        let found = rules.meaning(Some(&stack(&["take"])), None).unwrap();
        assert_eq!((found.idle, found.source, found.name.as_str()), (false, MeaningSource::User, "not idle"));
    }

    #[test]
    fn wrong_files_say_where() {
        let error = |text: &str| Rules::default().prepend_file(text).unwrap_err().to_string();
        let unknown = error("[[wait]]\nname = 'a'\nidle = true\nin = 'f'\nspeed = 3\n");
        assert!(unknown.starts_with("line 5, column 1: unknown field `speed`"), "{unknown}");
        let wrong = error("[[wait]]\nname = 'a'\nidle = 'yes'\nin = 'f'\n");
        assert!(wrong.starts_with("line 3, column 8: "), "{wrong}");
        assert!(error("[[wait]\n").starts_with("line 1, "), "{}", error("[[wait]\n"));
        let rule = "[[wait]]\nname = 'a'\nidle = true\nin = 'f'\n";
        for (from, to, expected) in [
            ("in = 'f'", "in = 'b[a'", "line 8, column 6: the glob \"b[a\" has a [ without a ]"),
            ("in = 'f'", "in = ['f', '[z-a]']", "line 8, column 6: the glob \"[z-a]\" has the range z-a"),
            ("in = 'f'", "in = 'f'\nmodule = 'x\\'", "line 9, column 10: the glob \"x\\\\\" ends in a \\"),
            ("in = 'f'", "in = 3", "line 8, column 6: invalid type: integer `3`, expected a name"),
            ("in = 'f'", "in = []", "line 5, column 1: `in` has no function"),
            ("name = 'a'", "name = ''", "line 5, column 1: the name is empty"),
        ] {
            let found = error(&format!("{rule}{}", rule.replace(from, to)));
            assert!(found.starts_with(expected), "{found}");
        }
    }
}
