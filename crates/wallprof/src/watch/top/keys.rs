// SPDX-License-Identifier: Apache-2.0
//! Keys from the bytes of a terminal.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Up,
    Down,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C: the terminal does not turn it into a signal while the screen is shown.
    Interrupt,
}

/// The keys of one read. An escape sequence arrives in one read; an unknown one is no key.
pub fn keys(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let [first, rest @ ..] = bytes {
        bytes = rest;
        keys.push(match *first {
            3 => Key::Interrupt,
            b'\r' | b'\n' => Key::Enter,
            8 | 0x7f => Key::Backspace,
            0x1b => match rest {
                [b'[' | b'O', sequence @ ..] => {
                    let parameters = sequence.iter().take_while(|byte| (0x20..=0x3f).contains(*byte)).count();
                    let (parameters, after) = sequence.split_at(parameters);
                    // Without a final byte the sequence is cut: what follows is not a part of it.
                    let end = after.first().filter(|byte| (0x40..=0x7e).contains(*byte));
                    bytes = &after[usize::from(end.is_some())..];
                    match (parameters, end) {
                        ([], Some(b'A')) => Key::Up,
                        ([], Some(b'B')) => Key::Down,
                        _ => continue,
                    }
                }
                _ => Key::Escape,
            },
            byte @ b' '..=b'~' => Key::Char(char::from(byte)),
            _ => continue,
        });
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_and_characters_are_keys() {
        assert_eq!(keys(b"q\x1b[A\x1bOBs"), [Key::Char('q'), Key::Up, Key::Down, Key::Char('s')]);
        assert_eq!(keys(b"\x03\x1b\x7f\r"), [Key::Interrupt, Key::Escape, Key::Backspace, Key::Enter]);
    }

    #[test]
    fn unknown_and_cut_sequences_are_no_keys() {
        assert!(keys(b"\x1b[15~\x1b[1;5C\x1b[\x1b[12\xff\x01").is_empty());
    }
}
