//! Writing protocol buffers: varints, bytes and nested messages, as
//! <https://protobuf.dev/programming-guides/encoding/> defines them. Only what pprof's format needs.

const VARINT: u64 = 0;
const LENGTH_DELIMITED: u64 = 2;

/// A message that is being written. Fields with the value 0 are left out, which is how the format says 0.
#[derive(Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub fn number(&mut self, field: u64, value: u64) {
        if value != 0 {
            self.varint(field << 3 | VARINT);
            self.varint(value);
        }
    }

    /// Numbers in one field, packed.
    pub fn numbers(&mut self, field: u64, values: &[u64]) {
        let mut packed = Message::default();
        values.iter().for_each(|value| packed.varint(*value));
        self.bytes(field, &packed.0);
    }

    /// Written even when empty: an element of a list.
    pub fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | LENGTH_DELIMITED);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub fn message(&mut self, field: u64, write: impl FnOnce(&mut Message)) {
        let mut message = Message::default();
        write(&mut message);
        self.bytes(field, &message.0);
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_definition() {
        let mut message = Message::default();
        message.number(1, 150);
        assert_eq!(message.as_bytes(), [0x08, 0x96, 0x01]);
        let mut message = Message::default();
        message.bytes(2, b"testing");
        assert_eq!(message.as_bytes(), b"\x12\x07testing");
        let mut message = Message::default();
        message.message(3, |inner| inner.number(1, 150));
        assert_eq!(message.as_bytes(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        let mut message = Message::default();
        message.numbers(6, &[3, 270, 86942]);
        assert_eq!(message.as_bytes(), [0x32, 0x06, 0x03, 0x8e, 0x02, 0x9e, 0xa7, 0x05]);
    }

    #[test]
    fn the_largest_number_takes_ten_bytes_and_zero_none() {
        let mut message = Message::default();
        message.number(1, 0);
        assert!(message.as_bytes().is_empty());
        message.number(1, u64::MAX);
        assert_eq!(message.as_bytes().len(), 11);
    }
}
