// SPDX-License-Identifier: Apache-2.0
//! Follows the code: from run to run by the packets, and instruction by instruction to an address in the
//! trace.

use super::Decoder;
use crate::code::Code;
use crate::event::{Event, EventKind, GapCause, Sink};
use crate::instruction::{Far, Flow, decode};
use crate::return_stack::ReturnAddress;
use crate::run_cache::{CallSite, Exit, place};

impl<C: Code, S: Sink> Decoder<'_, '_, C, S> {
    /// Consumes branch results until none is left, or a target is needed first.
    #[inline(always)]
    pub(super) fn use_results(&mut self) -> Result<(), GapCause> {
        while self.result_count > 0 {
            let run = *self.cache.run(self.at);
            if run.step_count != 0 && !self.at_exit {
                self.emit_steps();
                self.at_exit = true;
            }
            match run.exit {
                Exit::Branch => {
                    let taken = self.next_result();
                    if run.leaves && taken {
                        self.emit_taken_branch();
                    }
                    self.at = self.cache.next(self.trace.code, self.at, taken);
                }
                // A return that is not compressed is never deferred, so results cannot be left in front of
                // one.
                Exit::Return if !self.trace.return_compression => return Err(GapCause::Mismatch),
                Exit::Return => self.compressed_return()?,
                Exit::Continue => self.pass_on()?,
                Exit::Missing => return Err(GapCause::NoCode),
                _ => {
                    self.at_exit = true;
                    return Ok(());
                }
            }
            self.decoded.blocks += u64::from(run.blocks);
            self.at_exit = false;
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn next_result(&mut self) -> bool {
        let taken = self.results >> 63 != 0;
        self.results <<= 1;
        self.result_count -= 1;
        self.interval.used += 1;
        taken
    }

    #[inline(always)]
    pub(super) fn compressed_return(&mut self) -> Result<(), GapCause> {
        if !self.next_result() {
            return Err(GapCause::Mismatch);
        }
        let entry = self.returns.pop().ok_or(GapCause::UnknownReturn)?;
        let from = self.cache.site(self.at).source;
        let known = entry.space == self.reading.space.of_address(entry.address);
        let call = if known { entry.site } else { Default::default() };
        self.at = self.cache.after_call(self.trace.code, call, self.reading, entry.address);
        let site = self.cache.site(self.at);
        self.sink.event(&Event {
            ticks: self.interval.at_result(),
            from,
            to: entry.address,
            function: site.function,
            at_entry: site.at_entry,
            kind: EventKind::Return,
        });
        Ok(())
    }

    /// Moves to the exit of the current run, and through it to `to`.
    #[inline(always)]
    pub(super) fn arrive(&mut self, to: u64) -> Result<(), GapCause> {
        self.finish_steps()?;
        let run = *self.cache.run(self.at);
        let source = self.at;
        let (from, after, call) = {
            let site = self.cache.site(source);
            (site.source, site.after, site.call)
        };
        self.reading.size = self.next_size;
        let kind = match run.exit {
            Exit::IndirectCall => {
                self.push_return(after, call);
                Some(EventKind::Call { return_to: after })
            }
            Exit::Return => {
                // Every near return removes its call from the stack (SDM, "RET compression"), compressed or
                // not.
                self.returns.pop();
                Some(EventKind::Return)
            }
            Exit::IndirectJump => None,
            Exit::Far(far) => return self.arrive_far(far, from, after, to),
            Exit::Missing => return Err(GapCause::NoCode),
            Exit::Branch | Exit::Continue => return Err(GapCause::Mismatch),
        };
        self.at = self.cache.target(self.trace.code, source, self.reading, to);
        self.at_exit = false;
        self.decoded.blocks += u64::from(run.blocks);
        let site = self.cache.site(self.at);
        let leaves = site.function != self.cache.site(source).source_function;
        let kind = kind.or(leaves.then_some(EventKind::Jump { indirect: true }));
        if let Some(kind) = kind {
            let ticks = self.interval.at_packet();
            let (function, at_entry) = (site.function, site.at_entry);
            self.sink.event(&Event { ticks, from, to, function, at_entry, kind });
        }
        if self.cache.has_code(self.at) { Ok(()) } else { Err(GapCause::NoCode) }
    }

    pub(super) fn arrive_far(&mut self, far: Far, from: u64, after: u64, to: u64) -> Result<(), GapCause> {
        let kind = match far {
            Far::SystemReturn => EventKind::SystemReturn,
            Far::SystemCall | Far::Other => EventKind::SystemCall { return_to: after },
        };
        self.reschedule();
        self.emit(kind, from, to);
        self.move_to_traced(to)
    }

    /// Passes long runs and emits all steps, up to an exit that needs a packet.
    #[inline(always)]
    pub(super) fn finish_steps(&mut self) -> Result<(), GapCause> {
        loop {
            let run = *self.cache.run(self.at);
            if run.step_count != 0 && !self.at_exit {
                self.emit_steps();
            }
            self.at_exit = true;
            if run.exit != Exit::Continue {
                return Ok(());
            }
            self.pass_on()?;
            self.at_exit = false;
        }
    }

    pub(super) fn pass_on(&mut self) -> Result<(), GapCause> {
        self.fuel = self.fuel.checked_sub(1).ok_or(GapCause::Endless)?;
        self.at = self.cache.next(self.trace.code, self.at, false);
        Ok(())
    }

    /// Moves instruction by instruction to `ip`, which must be reached without a packet.
    pub(super) fn walk_to(&mut self, ip: u64) -> Result<(), GapCause> {
        self.walk(|address, _| address == ip)?;
        self.move_to_traced(ip)
    }

    pub(super) fn walk(&mut self, arrived: impl Fn(u64, Flow) -> bool) -> Result<u64, GapCause> {
        const MOST: usize = 1 << 16;
        if self.at_exit {
            return Err(GapCause::Mismatch);
        }
        let mut address = self.address();
        for _ in 0..MOST {
            let instruction = decode(self.trace.code, self.reading, address);
            if arrived(address, instruction.map_or(Flow::Next, |instruction| instruction.flow)) {
                return Ok(address);
            }
            let instruction = instruction.ok_or(GapCause::NoCode)?;
            address = match instruction.flow {
                Flow::Next => instruction.next,
                Flow::Jump(to) => self.walk_jump(address, to),
                Flow::Call(to) => self.walk_call(address, instruction.next, to),
                _ => return Err(GapCause::Mismatch),
            };
        }
        Err(GapCause::Endless)
    }

    pub(super) fn walk_jump(&mut self, from: u64, to: u64) -> u64 {
        if place(self.trace.code, self.reading, from).0 != place(self.trace.code, self.reading, to).0 {
            let ticks = self.interval.between_results();
            self.emit_at(ticks, EventKind::Jump { indirect: false }, from, to);
        }
        self.decoded.blocks += 1;
        to
    }

    pub(super) fn walk_call(&mut self, from: u64, return_to: u64, to: u64) -> u64 {
        let ticks = self.interval.between_results();
        self.emit_at(ticks, EventKind::Call { return_to }, from, to);
        self.push_return(return_to, Default::default());
        self.decoded.blocks += 1;
        to
    }

    #[inline(always)]
    pub(super) fn push_return(&mut self, address: u64, site: CallSite) {
        let space = self.reading.space.of_address(address);
        self.returns.push(ReturnAddress { address, site, space });
    }

    /// The address of the next instruction.
    pub(super) fn address(&self) -> u64 {
        let site = self.cache.site(self.at);
        if self.at_exit { site.source } else { site.start }
    }

    pub(super) fn move_to(&mut self, ip: u64) {
        self.reading.size = self.next_size;
        self.at = self.cache.at(self.trace.code, self.reading, ip);
        self.at_exit = false;
    }

    pub(super) fn move_to_traced(&mut self, ip: u64) -> Result<(), GapCause> {
        self.move_to(ip);
        if self.cache.has_code(self.at) { Ok(()) } else { Err(GapCause::NoCode) }
    }
}
