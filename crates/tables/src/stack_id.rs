// SPDX-License-Identifier: Apache-2.0
//! The identity of a stack on every host: a hash of what it consists of.

use std::sync::Arc;

use ring::digest::{Digest, SHA256, digest};
use wallprof_model::profile::{RecordingInfo, ResolvedFrame, ResolvedStack};
use wallprof_model::{FastMap, FrameKind};

/// 32 hexadecimal digits.
pub type StackHash = Arc<str>;

/// Frames whose bytes are kept, at about a hundred bytes each.
const MOST_FRAMES: usize = 1 << 17;

/// Hashes stacks. What a frame adds to a hash is kept: stacks have the same frames again and again.
#[derive(Default)]
pub struct StackHasher {
    /// By the address of the frame, which it keeps from being another frame's.
    frames: FastMap<usize, (Arc<ResolvedFrame>, Box<[u8]>)>,
    bytes: Vec<u8>,
}

impl StackHasher {
    /// The hash of a stack's frames and ending: of native code the build id (without one the path) and the
    /// address in the file, which are equal on every host that runs the same build. Kernel and JIT code has
    /// another address in each boot and each process: its symbol and offset count. Where the symbol is unknown,
    /// the address does.
    pub fn hash(&mut self, stack: &ResolvedStack) -> StackHash {
        let StackHasher { frames, bytes } = self;
        bytes.clear();
        for frame in stack.frames.iter() {
            let address = Arc::as_ptr(frame).addr();
            if frames.len() >= MOST_FRAMES && !frames.contains_key(&address) {
                frames.clear();
            }
            let known = frames.entry(address).or_insert_with(|| (Arc::clone(frame), of_frame(frame)));
            bytes.extend_from_slice(&known.1);
        }
        add(bytes, stack.end.name().as_bytes());
        hex(&digest(&SHA256, bytes)).into()
    }
}

/// The identity of a recording: equal for each export of it, on every host.
pub fn recording_id(info: &RecordingInfo) -> String {
    let mut bytes = Vec::new();
    for text in [&info.machine_id, &info.boot_id, &info.hostname, &info.command, &info.source] {
        add(&mut bytes, text.as_bytes());
    }
    bytes.extend(info.start.0.to_le_bytes());
    bytes.extend(info.clock.epoch_from_mono(info.start).0.to_le_bytes());
    hex(&digest(&SHA256, &bytes))
}

/// Half of the digest.
fn hex(digest: &Digest) -> String {
    let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or('0');
    digest.as_ref().iter().take(16).flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// With its length, so that no two sequences are one.
fn add(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend((part.len() as u64).to_le_bytes());
    bytes.extend_from_slice(part);
}

fn of_frame(frame: &ResolvedFrame) -> Box<[u8]> {
    let mut bytes = Vec::new();
    add(&mut bytes, frame.kind.name().as_bytes());
    let line = frame.lines.last();
    match (frame.kind, line.and_then(|line| Some((line.symbol.as_ref()?, line.offset)))) {
        (FrameKind::Kernel | FrameKind::Jit, Some((symbol, offset))) => {
            add(&mut bytes, symbol.as_bytes());
            add(&mut bytes, &offset.unwrap_or(0).to_le_bytes());
        }
        _ => {
            let module = frame.module.as_deref().unwrap_or("");
            add(&mut bytes, frame.build_id.as_deref().unwrap_or(module.as_bytes()));
            add(&mut bytes, &frame.address.to_le_bytes());
        }
    }
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{StackEnd, SymbolLine};

    fn frame(kind: FrameKind, symbol: Option<&str>, address: u64, build_id: Option<&[u8]>) -> ResolvedFrame {
        let line = SymbolLine {
            symbol: symbol.map(str::to_owned),
            offset: Some(16),
            file: None,
            line: None,
            inlined: false,
        };
        ResolvedFrame {
            kind,
            module: Some("/usr/bin/app".into()),
            build_id: build_id.map(<[u8]>::to_vec),
            address,
            lines: vec![line],
        }
    }

    fn stack_hash(stack: &ResolvedStack) -> StackHash {
        StackHasher::default().hash(stack)
    }

    fn hash(frame: ResolvedFrame) -> StackHash {
        stack_hash(&ResolvedStack { frames: vec![frame.into()].into(), end: StackEnd::Complete })
    }

    #[test]
    fn names_of_native_code_do_not_count_and_addresses_of_the_kernel_neither() {
        let native = |symbol, address, build_id| hash(frame(FrameKind::Native, symbol, address, build_id));
        let id: Option<&[u8]> = Some(&[1, 2]);
        assert_eq!(native(None, 0x10, id), native(Some("main"), 0x10, id), "one host has debug information");
        assert_ne!(native(None, 0x10, id), native(None, 0x11, id));
        assert_ne!(native(None, 0x10, id), native(None, 0x10, Some(&[1, 3])));
        let kernel = |symbol, address| hash(frame(FrameKind::Kernel, symbol, address, None));
        assert_eq!(kernel(Some("schedule"), 0xffff_1000), kernel(Some("schedule"), 0xffff_9000));
        assert_ne!(kernel(Some("schedule"), 1), kernel(Some("io_schedule"), 1));
        assert_eq!(native(None, 0x10, id).len(), 32);
    }

    /// Databases have hashes of former versions.
    #[test]
    fn hash_never_changes_and_known_frames_do_not_count() {
        let frames: [Arc<ResolvedFrame>; 2] = [
            frame(FrameKind::Kernel, Some("schedule"), 0xffff_1000, None).into(),
            frame(FrameKind::Native, None, 0x10, Some(&[1, 2])).into(),
        ];
        let whole = ResolvedStack { frames: frames.as_slice().into(), end: StackEnd::Complete };
        let part = ResolvedStack { frames: frames[1..].into(), end: StackEnd::Complete };
        let mut hasher = StackHasher::default();
        for _ in 0..2 {
            let hashes = [&whole, &part].map(|stack| hasher.hash(stack));
            assert_eq!(
                hashes,
                ["c21eb110fc64f417c4be65ea93308642".into(), "24cc7ff0bd328855196ddb3270e9c8de".into()]
            );
        }
    }

    #[test]
    fn endings_and_orders_count() {
        let frames: Vec<_> =
            [1, 2].map(|address| frame(FrameKind::Native, None, address, None).into()).into();
        let of = |frames: Vec<_>, end| stack_hash(&ResolvedStack { frames: frames.into(), end });
        let reversed = frames.iter().rev().cloned().collect();
        assert_ne!(of(frames.clone(), StackEnd::Complete), of(reversed, StackEnd::Complete));
        let cut = StackEnd::ALL.into_iter().find(|end| *end != StackEnd::Complete).unwrap();
        assert_ne!(of(frames.clone(), StackEnd::Complete), of(frames, cut));
    }
}
