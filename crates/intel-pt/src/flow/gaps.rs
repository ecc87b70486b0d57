// SPDX-License-Identifier: Apache-2.0
//! Starts, gaps and their ends, and switches of threads.

use super::{Decoder, State};
use crate::code::Code;
use crate::event::{EventKind, GapCause, Sink};
use crate::packet::Packet;

impl<C: Code, S: Sink> Decoder<'_, '_, C, S> {
    pub(super) fn start(&mut self, ip: u64) {
        self.reschedule();
        if self.next_switch != u64::MAX {
            self.reschedule_by_next_time(ip);
        }
        self.move_to(ip);
        self.start_interval();
        self.emit(EventKind::Start, 0, ip);
        self.state = State::On;
        if !self.cache.has_code(self.at) {
            self.lose(GapCause::NoCode);
        }
    }

    /// Ends a gap, if the code at `ip` is known.
    pub(super) fn resume(&mut self, ip: u64) {
        self.reschedule();
        self.move_to(ip);
        if !self.cache.has_code(self.at) {
            return self.stay_lost(ip);
        }
        self.start_interval();
        self.state = State::On;
        self.fup_is_bound = false;
        self.emit(EventKind::Resume, 0, ip);
    }

    /// The executed code is unknown from now on, unless tracing is off.
    #[cold]
    #[inline(never)]
    pub(super) fn lose(&mut self, cause: GapCause) {
        if self.state == State::On {
            self.lose_now(cause);
        }
    }

    pub(super) fn lose_now(&mut self, cause: GapCause) {
        let from = if self.state == State::On { self.address() } else { 0 };
        let in_kernel = is_in_kernel(from) && !cause.loses_packets();
        if self.state != State::Lost || self.gap_in_kernel {
            self.emit_bare(EventKind::Gap(cause), from);
            self.gap_in_kernel = in_kernel;
        } else {
            self.decoded.further.add(cause);
        }
        self.state = State::Lost;
        self.result_count = 0;
        self.at_exit = false;
        // The kernel makes as many returns as calls, so the user's calls stay on the processor's return
        // stack.
        if !self.gap_in_kernel {
            self.returns.clear();
        }
        self.clear_pending();
    }

    /// The gap continues at `ip`. If that is out of the kernel, it is a gap of user code from here on.
    fn stay_lost(&mut self, ip: u64) {
        if self.state != State::Lost {
            return;
        }
        if self.gap_in_kernel && !is_in_kernel(ip) {
            self.emit_bare(EventKind::Gap(GapCause::NoCode), ip);
            self.returns.clear();
        }
        self.gap_in_kernel = is_in_kernel(ip);
    }

    /// A FUP that follows has the address of the next instruction, not that of an interrupt.
    pub(super) fn overflow(&mut self) {
        self.lose_now(GapCause::Overflow);
        self.fup_is_bound = true;
    }

    /// In the kernel the thread may change between any two packets. User code runs until it enters the
    /// kernel, so a switch in user code only shows that the clocks differ a little.
    #[inline(always)]
    pub(super) fn keep_schedule(&mut self) {
        if self.watch.now() >= self.next_switch && self.cache.site(self.at).start >> 63 != 0 {
            self.reschedule();
        }
    }

    /// Without cycle counts the current time may be that of a much older packet. If the next time in the
    /// trace comes while tracing is on, switches up to it happened before tracing came on, because threads do
    /// not change in user code.
    fn reschedule_by_next_time(&mut self, ip: u64) {
        let now = self.next_time().filter(|_| ip >> 63 == 0).unwrap_or(0);
        if now >= self.next_switch {
            self.reschedule_until(now);
        }
    }

    /// The time of the next timing packet, if tracing stays on up to it.
    fn next_time(&self) -> Option<u64> {
        let (mut packets, mut watch) = (self.packets.clone(), self.watch.clone());
        while let Some(Ok(packet)) = packets.next_packet() {
            match packet {
                Packet::Cyc(cycles) if watch.cyc_within_limit(cycles) => {}
                Packet::Mtc(mtc) => watch.mtc(mtc),
                Packet::Tsc(ticks) => watch.tsc(ticks),
                Packet::Tnt(_) | Packet::Tip(_) | Packet::Pad | Packet::Cbr(_) => continue,
                _ => return None,
            }
            return Some(watch.now());
        }
        None
    }

    /// Moves on to the thread that runs at this time.
    pub(super) fn reschedule(&mut self) {
        self.reschedule_until(self.watch.now());
    }

    fn reschedule_until(&mut self, now: u64) {
        while let Some(switch) = self.cursor.advance(now) {
            self.reading.space = switch.space;
            let ticks = switch.ticks.max(self.interval.end).min(self.watch.now());
            self.emit_bare_at(ticks, EventKind::Switch(switch), 0);
        }
        self.next_switch = self.cursor.next_ticks();
    }
}

pub(super) fn is_in_kernel(address: u64) -> bool {
    address >> 63 != 0
}
