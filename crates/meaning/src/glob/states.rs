// SPDX-License-Identifier: Apache-2.0
//! A glob as an automaton over bytes, for the kernel side, which matches by a table alone.
//!
//! State `i` says that the first `i` parts of the glob are matched; all states the automaton can be in are
//! bits of one word (Baeza-Yates and Gonnet, "A new approach to text searching", 1992, with states that loop
//! for `*`).

use super::{Glob, Part};

/// The automaton; [`ByteStates::matches`] says how it is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByteStates {
    /// By byte: the states from which it leads to the next one.
    pub takes: Box<[u64; 256]>,
    /// States that any byte leads back to: before a `*`.
    pub loops: u64,
    /// The last state.
    pub accepts: u64,
}

/// Why a glob has no automaton.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoStates {
    /// More than [`ByteStates::MAX_BYTES`] without its `*`.
    TooLong,
    /// A set holds other characters than those of ASCII.
    SetOfManyBytes,
}

impl ByteStates {
    /// The longest glob, in bytes of the names that it describes, `*` left out.
    pub const MAX_BYTES: usize = 63;

    /// Whether the whole of `name` matches.
    pub fn matches(&self, name: &[u8]) -> bool {
        let step =
            |states: u64, &byte: &u8| ((states & self.takes[usize::from(byte)]) << 1) | (states & self.loops);
        name.iter().fold(1, step) & self.accepts != 0
    }

    /// One more part: what any byte of `bytes` leads on from.
    fn push(&mut self, bytes: impl IntoIterator<Item = u8>) -> Result<(), NoStates> {
        if self.accepts == 1 << Self::MAX_BYTES {
            return Err(NoStates::TooLong);
        }
        bytes.into_iter().for_each(|byte| self.takes[usize::from(byte)] |= self.accepts);
        self.accepts <<= 1;
        Ok(())
    }
}

impl Glob {
    /// The automaton that matches names byte by byte: `?` and sets take one byte, which is one character
    /// where names are ASCII.
    ///
    /// # Errors
    /// A glob that is too long, or a set of characters that are not one byte.
    pub fn byte_states(&self) -> Result<ByteStates, NoStates> {
        let mut states = ByteStates { takes: Box::new([0; 256]), loops: 0, accepts: 1 };
        for part in &self.parts {
            match part {
                Part::Run => states.loops |= states.accepts,
                Part::Any => states.push(0..=u8::MAX)?,
                Part::One(c) => {
                    for &byte in c.encode_utf8(&mut [0; 4]).as_bytes() {
                        states.push([byte])?;
                    }
                }
                Part::Set { ranges, .. } if ranges.iter().any(|(_, to)| !to.is_ascii()) => {
                    return Err(NoStates::SetOfManyBytes);
                }
                Part::Set { .. } => {
                    states.push((0..=u8::MAX).filter(|&byte| part.takes(char::from(byte))))?
                }
            }
        }
        Ok(states)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn states(glob: &str) -> Result<ByteStates, NoStates> {
        Glob::new(glob).unwrap().byte_states()
    }

    #[test]
    fn characters_of_many_bytes_are_matched_as_written() {
        let japanese = states("日*語").unwrap();
        assert!(japanese.matches("日本語".as_bytes()) && !japanese.matches("日本".as_bytes()));
        assert!(states("x?").unwrap().matches(b"x\xff"));
    }

    #[test]
    fn pattern_without_automaton_is_refused() {
        assert!(states(&"x".repeat(ByteStates::MAX_BYTES)).unwrap().matches(&[b'x'; ByteStates::MAX_BYTES]));
        assert_eq!(states(&"x".repeat(ByteStates::MAX_BYTES + 1)), Err(NoStates::TooLong));
        assert_eq!(states("[ä]"), Err(NoStates::SetOfManyBytes));
        assert!(states(&"*".repeat(100)).is_ok());
    }

    proptest! {
        #[test]
        fn automaton_agrees_with_the_glob(glob in "[ab*?\\[\\]!^-]{0,10}", name in "[abc]{0,8}") {
            if let Ok(glob) = Glob::new(&glob) {
                prop_assert_eq!(glob.byte_states().unwrap().matches(name.as_bytes()), glob.matches(&name));
            }
        }
    }
}
