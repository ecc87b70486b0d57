// SPDX-License-Identifier: Apache-2.0
//! Calls and returns of a generated trace, by Intel's decoder.

use libipt::enc_dec_builder::{EncoderDecoderBuilder, Frequency};
use libipt::error::PtErrorCode;
use libipt::image::Image;
use libipt::insn::{Class, InsnDecoder};
use wallprof_intel_pt::Code;
use wallprof_intel_pt::generator::{Generated, Program};

/// A call or a return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub is_call: bool,
    pub from: u64,
    pub to: u64,
}

/// The calls and returns that libipt decodes, up to the end of the trace.
///
/// # Panics
/// When libipt finds an error in the trace.
pub fn transfers(generated: &Generated) -> Vec<Transfer> {
    let mut trace = generated.trace.clone();
    let program = generated.program.clone();
    let mut image = Image::new(None).expect("an image");
    image.set_callback(Some(move |buffer: &mut [u8], address: u64, _| read(&program, buffer, address)));
    // SAFETY: the buffer is declared before the decoder, so it is dropped after it.
    let builder = unsafe {
        EncoderDecoderBuilder::<InsnDecoder>::new().buffer_from_raw(trace.as_mut_ptr(), trace.len())
    };
    let mut decoder = builder.freq(Frequency::new(0, 0, 0, 0)).build().expect("a decoder");
    decoder.set_image(Some(&mut image)).expect("the image");
    decoder.sync_forward().expect("a synchronisation point");
    drain(&mut decoder);
    collect(&mut decoder)
}

fn read(program: &Program, buffer: &mut [u8], address: u64) -> i32 {
    const NO_MAP: i32 = -(PtErrorCode::Nomap as i32);
    let Some(bytes) = program.bytes(Program::SPACE, address) else { return NO_MAP };
    let length = bytes.len().min(buffer.len());
    buffer[..length].copy_from_slice(&bytes[..length]);
    length as i32
}

fn collect(decoder: &mut InsnDecoder) -> Vec<Transfer> {
    let mut found = Vec::new();
    let mut last: Option<(bool, u64)> = None;
    loop {
        match decoder.decode_next() {
            Ok((instruction, status)) => {
                if let Some((is_call, from)) = last.take() {
                    found.push(Transfer { is_call, from, to: instruction.ip() });
                }
                last = match instruction.class() {
                    Class::Call => Some((true, instruction.ip())),
                    Class::Return => Some((false, instruction.ip())),
                    _ => None,
                };
                if status.event_pending() && !drain(decoder) {
                    return found;
                }
            }
            Err(error) if error.code() == PtErrorCode::Eos => return found,
            Err(error) if error.code() == PtErrorCode::EventIgnored => {
                if !drain(decoder) {
                    return found;
                }
            }
            Err(error) => panic!("{error:?} after {:x?} at offset {:x?}", found.last(), decoder.offset()),
        }
    }
}

/// Reads the pending events. Returns whether the trace continues.
fn drain(decoder: &mut InsnDecoder) -> bool {
    loop {
        match decoder.event() {
            Ok((_, status)) if status.event_pending() => {}
            Ok(_) => return true,
            Err(error) if error.code() == PtErrorCode::BadQuery => return true,
            Err(error) if error.code() == PtErrorCode::Eos => return false,
            Err(error) => panic!("{error:?} at offset {:?}", decoder.offset()),
        }
    }
}
