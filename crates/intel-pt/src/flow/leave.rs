// SPDX-License-Identifier: Apache-2.0
//! Ends of tracing: the instruction that turned it off, and its target.
//!
//! A branch out of the recording's filters turns tracing off. Its packet holds the target or, on some
//! processors, nothing (erratum SKL014 of Skylake, for direct branches). Then the filters themselves show the
//! branch: it is the first direct one whose target they leave out.

use super::gaps::is_in_kernel;
use super::{Decoder, Source, State};
use crate::code::Code;
use crate::event::{EndCause, EventKind, GapCause, Sink};
use crate::instruction::{Far, Flow, decode};
use crate::packet::IpPayload;
use crate::run_cache::{Exit, place};

impl<C: Code, S: Sink> Decoder<'_, '_, C, S> {
    pub(super) fn disable(&mut self, payload: IpPayload) {
        let ip = self.last_ip.update(payload);
        let source = std::mem::replace(&mut self.source, Source::None);
        self.may_be_on = false;
        match self.state {
            State::Off => {}
            State::Lost => self.leave_gap(),
            State::On => {
                self.next_interval(0);
                if let Err(cause) = self.leave(source, ip) {
                    self.lose(cause);
                }
                self.state = State::Off;
            }
        }
        self.clear_pending();
    }

    fn leave_gap(&mut self) {
        if self.gap_in_kernel {
            self.emit_end(EndCause::Gap, 0, 0);
        }
        self.state = State::Off;
    }

    fn leave(&mut self, source: Source, ip: Option<u64>) -> Result<(), GapCause> {
        if let Source::Async(from) | Source::Abort(from) = source {
            let vector = self.vector.take();
            self.emit_end(EndCause::Interrupt { vector }, from, from);
            return Ok(());
        }
        let may_be_direct = !self.at_exit && (ip.is_some() || self.trace.code.is_filtered());
        if may_be_direct && self.leave_by_branch(ip)? {
            return Ok(());
        }
        self.finish_steps()?;
        self.leave_by_exit(ip)
    }

    /// Moves to the direct branch out of the traced code, or to `ip`, and ends the trace there. `false`:
    /// another instruction comes first.
    fn leave_by_branch(&mut self, ip: Option<u64>) -> Result<bool, GapCause> {
        let (code, space) = (self.trace.code, self.reading.space);
        let leaves = |to: u64| match ip {
            Some(ip) => to == ip,
            None => code.is_left_out(space.of_address(to), to),
        };
        let address = self.walk(|address, flow| match flow {
            _ if ip == Some(address) => true,
            Flow::Next => false,
            Flow::Jump(to) | Flow::Call(to) => leaves(to),
            _ => true,
        })?;
        self.move_to(address);
        if ip == Some(address) {
            self.emit_end(EndCause::Other, address, address);
            return Ok(true);
        }
        let Some(instruction) = decode(code, self.reading, address) else { return Ok(false) };
        match instruction.flow {
            Flow::Call(to) if leaves(to) => self.leave_by_call(address, instruction.next, to),
            Flow::Jump(to) | Flow::Branch(to) if leaves(to) => self.leave_by_jump(address, to, false),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The run's exit left the traced code, to `ip` if that is known.
    fn leave_by_exit(&mut self, ip: Option<u64>) -> Result<(), GapCause> {
        let site = *self.cache.site(self.at);
        let (cause, return_to) = match (self.cache.run(self.at).exit, ip) {
            (Exit::IndirectCall, Some(to)) => {
                self.leave_by_call(site.source, site.after, to);
                return Ok(());
            }
            (Exit::IndirectJump, Some(to)) => {
                self.leave_by_jump(site.source, to, true);
                return Ok(());
            }
            (Exit::Far(Far::SystemCall), _) => (EndCause::SystemCall, site.after),
            // The return from an interrupt of kernel code that is not traced.
            (Exit::Far(Far::SystemReturn), Some(to)) if is_in_kernel(to) => (EndCause::Return, to),
            (Exit::Far(Far::SystemReturn), _) => (EndCause::SystemReturn, 0),
            (Exit::Return, _) => {
                // Every near return removes its call from the stack, whatever its target.
                self.returns.pop();
                (EndCause::Return, ip.unwrap_or(0))
            }
            (Exit::Missing, _) => return Err(GapCause::NoCode),
            _ => (EndCause::Other, site.after),
        };
        self.emit_end(cause, site.source, return_to);
        Ok(())
    }

    /// The called code is not traced until it returns to `return_to`.
    fn leave_by_call(&mut self, from: u64, return_to: u64, to: u64) {
        self.emit(EventKind::Call { return_to }, from, to);
        self.push_return(return_to, Default::default());
        self.decoded.blocks += 1;
        self.emit_end(EndCause::Other, from, 0);
    }

    /// A separate part of a function is not another function.
    fn leave_by_jump(&mut self, from: u64, to: u64, indirect: bool) {
        let (function, at_entry) = place(self.trace.code, self.reading, to);
        let leaves_function = function != place(self.trace.code, self.reading, from).0;
        if leaves_function {
            self.emit(EventKind::Jump { indirect }, from, to);
        }
        self.decoded.blocks += 1;
        let cause = if leaves_function && at_entry { EndCause::Jump } else { EndCause::Other };
        self.emit_end(cause, from, 0);
    }
}
