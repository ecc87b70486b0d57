// SPDX-License-Identifier: Apache-2.0
//! The effect of each packet that moves the decoder.

use super::{Decoder, FULL_TANK, Source, State};
use crate::code::Code;
use crate::event::{EventKind, GapCause, Sink};
use crate::packet::{CodeSize, IpPayload, Tnt};

impl<C: Code, S: Sink> Decoder<'_, '_, C, S> {
    #[inline(always)]
    pub(super) fn branch_results(&mut self, tnt: Tnt) {
        if self.cut_synchronisation() || self.state != State::On {
            return;
        }
        if self.result_count > 0 {
            return self.lose(GapCause::Mismatch);
        }
        self.keep_schedule();
        self.source = Source::None;
        self.transaction = None;
        self.fup_is_bound = false;
        self.results = tnt.bits << (64 - u32::from(tnt.count));
        self.result_count = u32::from(tnt.count);
        self.next_interval(u64::from(tnt.count));
        self.fuel = (self.fuel + 1).min(FULL_TANK);
        if let Err(cause) = self.use_results() {
            self.lose(cause);
        }
    }

    pub(super) fn indirect(&mut self, payload: IpPayload) {
        if self.cut_synchronisation() {
            return;
        }
        let ip = self.last_ip.update(payload);
        let source = std::mem::replace(&mut self.source, Source::None);
        self.fup_is_bound = false;
        let Some(ip) = ip else {
            return self.lose(GapCause::Mismatch);
        };
        match self.state {
            State::On => self.keep_schedule(),
            State::Lost => return self.resume(ip),
            State::Off => return self.start(ip),
        }
        let results_wait = self.result_count > 0;
        if !results_wait {
            self.next_interval(0);
        }
        let arrived = match source {
            Source::None => self.arrive(ip),
            Source::Async(from) => self.interrupt(from, ip),
            Source::Abort(from) => self.abort(from, ip),
        };
        if let Err(cause) = arrived.and_then(|()| self.use_results()) {
            self.lose(cause);
            // Whatever led there (a breakpoint that the image lacks, changed code), execution continues at
            // `ip`.
            if !results_wait {
                self.resume(ip);
            }
        }
    }

    pub(super) fn interrupt(&mut self, from: u64, ip: u64) -> Result<(), GapCause> {
        let vector = self.vector.take();
        self.emit(EventKind::Interrupt { vector }, from, ip);
        self.reschedule();
        self.move_to_traced(ip)
    }

    pub(super) fn abort(&mut self, from: u64, ip: u64) -> Result<(), GapCause> {
        self.emit(EventKind::TransactionAbort, from, ip);
        self.move_to_traced(ip)
    }

    /// A FUP: the decoder moves to its address. The next packet shows the event there.
    pub(super) fn source_address(&mut self, payload: IpPayload) {
        let Some(ip) = self.last_ip.update(payload) else {
            return;
        };
        if let Some(synchronisation) = &mut self.synchronisation {
            synchronisation.ip = Some(ip);
            return;
        }
        let bound = std::mem::replace(&mut self.fup_is_bound, false) || self.state == State::Off;
        let transaction = self.transaction.take();
        match self.state {
            State::Off if !self.may_be_on => return,
            State::Off | State::Lost => {
                self.resume(ip);
                if self.state != State::On {
                    return;
                }
            }
            State::On => {
                self.keep_schedule();
                self.next_interval(0);
                if let Err(cause) = self.walk_to(ip) {
                    self.lose(cause);
                    self.resume(ip);
                }
            }
        }
        match transaction {
            Some((_, true)) => self.source = Source::Abort(ip),
            Some((true, false)) => self.emit(EventKind::TransactionStart, ip, ip),
            Some((false, false)) => self.emit(EventKind::TransactionEnd, ip, ip),
            None if bound => {}
            None => self.source = Source::Async(ip),
        }
    }

    pub(super) fn enable(&mut self, payload: IpPayload) {
        let ip = self.last_ip.update(payload);
        if let Some(synchronisation) = &mut self.synchronisation {
            // Erratum BDM70: inside a synchronisation point it stands for the FUP.
            synchronisation.ip = ip.or(synchronisation.ip);
            return;
        }
        let Some(ip) = ip else {
            return self.lose_now(GapCause::Mismatch);
        };
        self.clear_pending();
        self.may_be_on = false;
        match self.state {
            State::Off => self.start(ip),
            State::Lost => self.resume(ip),
            // Some processors (family 6, model 79) write a synchronisation point with the address before the
            // enabling.
            State::On if self.address() == ip && !self.at_exit => {}
            State::On => {
                self.lose(GapCause::Mismatch);
                self.resume(ip);
            }
        }
    }

    /// An event-trace packet. The vector of an interrupt belongs to the interrupt that follows. Other events
    /// (`iret`, entering a virtual machine …) are instructions, and an address with them is only that
    /// instruction's.
    pub(super) fn announce(&mut self, kind: u8, vector: u8, ip_follows: bool) {
        const INTERRUPT: u8 = 1;
        match kind {
            INTERRUPT => self.vector = Some(vector),
            _ => self.fup_is_bound |= ip_follows,
        }
    }

    /// A FUP directly after it is the place of the mode change. An interrupt would come before.
    pub(super) fn change_mode(&mut self, code: CodeSize) {
        self.next_size = code;
        let is_news = self.synchronisation.is_none() && self.source == Source::None;
        self.fup_is_bound |= self.state == State::On && is_news;
    }
}
