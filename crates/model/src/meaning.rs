// SPDX-License-Identifier: Apache-2.0
//! What a wait means to the users of the software: `row lock`, `GIL`, `client idle`.
//!
//! A [`StallReason`] is the kernel's word. It says `poll` for a row lock of PostgreSQL.

use std::fmt;
use std::sync::Arc;

use crate::fast_map::FastMap;
use crate::stack::StackId;
use crate::state::StallReason;
use crate::thread::ThreadKey;
use crate::time::MonoNs;
use crate::word::WordMeaning;

/// The meaning of a wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Meaning {
    /// `row lock`, `client idle` …: it is shown to users as it is.
    pub name: String,
    /// The software whose users call it so: `postgresql`. `None`: it holds for every program.
    pub software: Option<String>,
    /// Waiting is the thread's job at this place.
    pub idle: bool,
    /// A thread holds what the wait is for. False for an answer, or for work on behalf of several threads.
    pub holder: bool,
    /// How the meaning was found.
    pub source: MeaningSource,
}

/// A poll of one connection, alone, until the other end has answered.
pub const ANSWER: &str = "answer";
/// A poll until the connection is made.
pub const CONNECTION: &str = "connection";
/// A poll until the send buffer has space.
pub const SPACE: &str = "space";

impl Meaning {
    /// Whether it is a wait for the other end of a connection, which its thread polls.
    pub fn is_for_the_other_end(&self) -> bool {
        self.software.is_none() && [ANSWER, CONNECTION, SPACE].contains(&&*self.name)
    }
}

/// `row lock of postgresql`.
impl fmt::Display for Meaning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.software {
            Some(software) => write!(f, "{} of {software}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// How a meaning was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MeaningSource {
    /// A rule about the stacks.
    Stack,
    /// A word in the process's memory.
    Word,
    /// The threads that end the waits, or the other end of the socket or pipe.
    Wakers,
    /// The user said so.
    User,
}

impl MeaningSource {
    /// The name in recordings and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            MeaningSource::Stack => "stack",
            MeaningSource::Word => "word",
            MeaningSource::Wakers => "wakers",
            MeaningSource::User => "user",
        }
    }
}

/// A single wait, as the search for meanings reads it. The stack ids are the recording's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitRow {
    /// The stall's.
    pub id: u64,
    /// The waiting thread.
    pub thread: ThreadKey,
    /// Blocked; runnable where the wait for a CPU after the wakeup was the longer part, or has a row of its own; or
    /// preempted.
    pub reason: StallReason,
    /// Monotonic clock, ns.
    pub start: MonoNs,
    /// Monotonic clock, ns; of an open wait, the last time at which it was known to last.
    pub end: MonoNs,
    /// The part up to the wakeup.
    pub blocked_ns: u64,
    /// The timeout of the wait, counted from its start.
    pub asked_ns: Option<u64>,
    /// The wait had not ended at `end`.
    pub open: bool,
    /// `None`: no user stack was taken.
    pub user: Option<StackId>,
    /// `None`: no kernel stack was taken.
    pub kernel: Option<StackId>,
    /// The recorded thread that ended it.
    pub waker: Option<ThreadKey>,
}

/// The meanings of the waits in one recording.
#[derive(Debug, Default)]
pub struct Meanings {
    programs: FastMap<ThreadKey, u32>,
    places: FastMap<Place, Arc<Meaning>>,
    /// By stall, of waits whose word was read and says what they mean.
    words: FastMap<u64, Arc<WordMeaning>>,
    /// By stall, where threads wait for several things at one place, and the wakers say for which.
    stalls: FastMap<u64, Arc<Meaning>>,
    /// The same by thread: what most of its waits at the place are for.
    threads: FastMap<(ThreadKey, Place), Arc<Meaning>>,
    /// By stall, of waits whose other end says that the thread is idle.
    peers: FastMap<u64, Arc<Meaning>>,
    /// The first slice of waits in slices, by each of their stalls.
    waits: FastMap<u64, u64>,
}

/// The stacks of a wait in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// As [`Meanings::new`] numbers programs.
    pub program: u32,
    /// `None`: no user stack was taken.
    pub user: Option<StackId>,
    /// `None`: no kernel stack was taken.
    pub kernel: Option<StackId>,
}

impl Meanings {
    /// No meanings yet, for threads whose programs have these numbers.
    pub fn new(programs: FastMap<ThreadKey, u32>) -> Self {
        Meanings { programs, ..Meanings::default() }
    }

    /// Gives the waits of all threads at a place a meaning.
    pub fn set_place(&mut self, place: Place, meaning: Arc<Meaning>) {
        self.places.insert(place, meaning);
    }

    /// Gives the waits of one thread at a place a meaning of their own.
    pub fn set_thread(&mut self, thread: ThreadKey, place: Place, meaning: Arc<Meaning>) {
        self.threads.insert((thread, place), meaning);
    }

    /// Gives one stall a meaning other than that of its place.
    pub fn set_stall(&mut self, stall: u64, meaning: Arc<Meaning>) {
        self.stalls.insert(stall, meaning);
    }

    /// Gives one stall the meaning of its word.
    pub fn set_word(&mut self, stall: u64, meaning: Arc<WordMeaning>) {
        self.words.insert(stall, meaning);
    }

    /// Gives one stall the meaning of its other end, which goes after all others.
    pub fn set_peer(&mut self, stall: u64, meaning: Arc<Meaning>) {
        self.peers.insert(stall, meaning);
    }

    /// What the software itself calls the wait of a stall.
    pub fn word_text(&self, stall: u64) -> Option<&Arc<str>> {
        self.words.get(&stall).map(|word| &word.text)
    }

    /// Makes a stall a slice of the wait that starts with the stall `first`.
    pub fn join(&mut self, stall: u64, first: u64) {
        self.waits.insert(stall, first);
    }

    /// The meaning of a thread's stall with these stacks.
    pub fn of_stall(
        &self,
        stall: u64,
        thread: ThreadKey,
        user: Option<StackId>,
        kernel: Option<StackId>,
    ) -> Option<&Arc<Meaning>> {
        let of_place = self.stalls.get(&stall).or_else(|| self.of_place(thread, user, kernel));
        match self.words.get(&stall) {
            Some(word) => Some(word.beside(of_place)),
            None => of_place.or_else(|| self.peers.get(&stall)),
        }
    }

    /// The meaning of a thread's wait with these stacks.
    pub fn of_place(
        &self,
        thread: ThreadKey,
        user: Option<StackId>,
        kernel: Option<StackId>,
    ) -> Option<&Arc<Meaning>> {
        let program = *self.programs.get(&thread)?;
        let place = Place { program, user, kernel };
        self.threads.get(&(thread, place)).or_else(|| self.places.get(&place))
    }

    /// The stall with which the wait of this stall started. `None` for a wait in one piece.
    pub fn wait_of(&self, stall: u64) -> Option<u64> {
        self.waits.get(&stall).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_one_program_with_equal_stacks_mean_the_same() {
        let source = MeaningSource::User;
        let lock =
            Arc::new(Meaning { name: "lock".into(), software: None, idle: false, holder: true, source });
        let (thread, user) = (ThreadKey(4), Some(StackId(9)));
        let mut meanings = Meanings::new(FastMap::from_iter([(thread, 2)]));
        meanings.set_place(Place { program: 2, user, kernel: None }, lock);
        let name = |thread, user| meanings.of_place(thread, user, None).map(|meaning| meaning.name.as_str());
        assert_eq!(name(thread, user), Some("lock"));
        assert_eq!((name(ThreadKey(5), user), name(thread, None)), (None, None));
    }

    #[test]
    fn word_goes_before_the_place_and_the_user_before_both() {
        let meaning = |name: &str, source| {
            Arc::new(Meaning { name: name.into(), software: None, idle: false, holder: true, source })
        };
        let (thread, user) = (ThreadKey(4), Some(StackId(9)));
        let place = Place { program: 2, user, kernel: None };
        let mut meanings = Meanings::new(FastMap::from_iter([(thread, 2)]));
        meanings.set_place(place, meaning("poll", MeaningSource::Stack));
        let word = meaning("row lock", MeaningSource::Word);
        let text = "Lock: tuple".into();
        meanings.set_word(7, Arc::new(WordMeaning { meaning: word, text, stack_first: false }));
        assert_eq!(meanings.word_text(7).map(|text| &**text), Some("Lock: tuple"));
        let name = |meanings: &Meanings, stall, user| {
            meanings.of_stall(stall, thread, user, None).map(|meaning| meaning.name.clone())
        };
        assert_eq!(name(&meanings, 7, user).as_deref(), Some("row lock"));
        assert_eq!(name(&meanings, 8, user).as_deref(), Some("poll"));
        assert_eq!(name(&meanings, 7, None).as_deref(), Some("row lock"), "a place without a meaning");
        meanings.set_place(place, meaning("mine", MeaningSource::User));
        assert_eq!(name(&meanings, 7, user).as_deref(), Some("mine"));
    }
}
