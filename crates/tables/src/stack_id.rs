// SPDX-License-Identifier: Apache-2.0
//! The identity of a stack on every host: a hash of what it consists of.

use std::sync::Arc;

use ring::digest::{Context, SHA256};
use wallprof_model::FrameKind;
use wallprof_model::profile::{RecordingInfo, ResolvedFrame, ResolvedStack};

/// 32 hexadecimal digits.
pub type StackHash = Arc<str>;

/// The hash of a stack's frames and ending: of native code the build id (without one the path) and the
/// address in the file, which are equal on every host that runs the same build. Kernel and JIT code has
/// another address in each boot and each process: its symbol and offset count. Where the symbol is unknown,
/// the address does.
pub fn stack_hash(stack: &ResolvedStack) -> StackHash {
    let mut hash = Context::new(&SHA256);
    let mut add = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for frame in stack.frames.iter() {
        add(frame.kind.name().as_bytes());
        add_frame(frame, &mut add);
    }
    add(stack.end.name().as_bytes());
    hex(hash).into()
}

/// The identity of a recording: equal for each export of it, on every host.
pub fn recording_id(info: &RecordingInfo) -> String {
    let mut hash = Context::new(&SHA256);
    for text in [&info.machine_id, &info.boot_id, &info.hostname, &info.command, &info.source] {
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    hash.update(&info.start.0.to_le_bytes());
    hash.update(&info.clock.epoch_from_mono(info.start).0.to_le_bytes());
    hex(hash)
}

fn hex(hash: Context) -> String {
    hash.finish().as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn add_frame(frame: &ResolvedFrame, add: &mut impl FnMut(&[u8])) {
    let line = frame.lines.last();
    match (frame.kind, line.and_then(|line| Some((line.symbol.as_ref()?, line.offset)))) {
        (FrameKind::Kernel | FrameKind::Jit, Some((symbol, offset))) => {
            add(symbol.as_bytes());
            add(&offset.unwrap_or(0).to_le_bytes());
        }
        _ => {
            let module = frame.module.as_deref().unwrap_or("");
            add(frame.build_id.as_deref().unwrap_or(module.as_bytes()));
            add(&frame.address.to_le_bytes());
        }
    }
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
