// SPDX-License-Identifier: Apache-2.0
//! Synchronisation points: a segment starts at one, and the decoder's place is checked at the others.

use super::gaps::is_in_kernel;
use super::{Decoder, Source, State};
use crate::code::Code;
use crate::event::{EndCause, EventKind, GapCause, Sink};
use crate::packet::LastIp;
use crate::packets::Packets;
use crate::schedule::Switch;

/// A synchronisation point that is being read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Synchronisation {
    pub ip: Option<u64>,
    pub seen_tsc: bool,
    /// The first one of the segment. The previous segment emitted the same state.
    pub silent: bool,
    /// The first of the next segment.
    pub last: bool,
}

impl<C: Code, S: Sink> Decoder<'_, '_, C, S> {
    /// Returns whether the segment ends.
    pub(super) fn start_synchronisation(&mut self, offset: usize) -> bool {
        if self.cut_synchronisation() {
            return true;
        }
        if self.result_count > 0 || self.at_exit {
            self.lose(GapCause::Mismatch);
        }
        self.synchronisation = Some(Synchronisation {
            silent: offset == self.segment.start,
            last: offset >= self.segment.end,
            ..Synchronisation::default()
        });
        self.last_ip = LastIp::default();
        self.returns.clear();
        self.watch.psb();
        self.clear_pending();
        false
    }

    pub(super) fn clear_pending(&mut self) {
        self.source = Source::None;
        self.fup_is_bound = false;
        self.transaction = None;
        self.vector = None;
    }

    pub(super) fn time_stamp(&mut self, ticks: u64) {
        match &mut self.synchronisation {
            Some(synchronisation) if !synchronisation.seen_tsc => {
                synchronisation.seen_tsc = true;
                self.watch.tsc_after_psb(ticks);
            }
            _ => self.watch.tsc(ticks),
        }
    }

    /// Returns whether this was the synchronisation point that ends the segment.
    pub(super) fn end_synchronisation(&mut self) -> bool {
        let Some(synchronisation) = self.synchronisation.take() else { return false };
        self.transaction = None;
        self.may_be_on = synchronisation.ip.is_none();
        if synchronisation.silent {
            self.join(synchronisation.ip);
        } else {
            if self.state != State::On {
                self.reschedule();
            }
            self.confirm(synchronisation.ip);
            self.reschedule();
        }
        self.start_interval();
        synchronisation.last
    }

    /// Other packets end the current synchronisation point. It may lack an address although tracing is on.
    /// Returns whether the segment ends: its last synchronisation point belongs to the next segment.
    #[inline(always)]
    pub(super) fn cut_synchronisation(&mut self) -> bool {
        match self.synchronisation.take() {
            Some(synchronisation) => self.cut(synchronisation),
            None => false,
        }
    }

    #[cold]
    fn cut(&mut self, synchronisation: Synchronisation) -> bool {
        if synchronisation.last {
            self.packets = Packets::starting_at(self.trace.bytes, self.trace.bytes.len());
            return true;
        }
        self.may_be_on = synchronisation.ip.is_none();
        match synchronisation.ip {
            ip if synchronisation.silent => self.join(ip),
            None => {}
            ip => self.confirm(ip),
        }
        self.start_interval();
        false
    }

    /// Starts the segment at the place of its first synchronisation point.
    pub(super) fn join(&mut self, ip: Option<u64>) {
        self.cursor = self.trace.schedule.cursor_at(self.watch.now());
        self.next_switch = self.cursor.next_ticks();
        self.reading.space = self.cursor.current().space;
        self.decoded.first_ticks = self.watch.now();
        self.sink.join(self.watch.now(), self.cursor.current());
        if self.segment.first {
            let switch = Switch { ticks: self.watch.now(), ..self.cursor.current() };
            self.emit_bare(EventKind::Switch(switch), 0);
        }
        if self.cache.is_full() {
            self.cache.clear();
        }
        let Some(ip) = ip else { return };
        self.move_to(ip);
        let known = self.cache.has_code(self.at);
        self.state = if known { State::On } else { State::Lost };
        self.gap_in_kernel = is_in_kernel(ip);
        if self.segment.first && known {
            self.emit(EventKind::Start, 0, ip);
        }
    }

    /// Checks the decoder's place against a synchronisation point. The point prevails.
    pub(super) fn confirm(&mut self, ip: Option<u64>) {
        self.next_interval(0);
        if self.cache.is_full() {
            self.lose(GapCause::LostData);
            self.cache.clear();
        }
        match (self.state, ip) {
            (State::On, Some(ip)) => {
                if let Err(cause) = self.walk_to(ip) {
                    self.lose(cause);
                    self.resume(ip);
                }
            }
            (State::On, None) => {
                let from = self.address();
                self.emit_end(EndCause::Other, from, from);
                self.state = State::Off;
            }
            (State::Off, Some(ip)) => self.start(ip),
            (State::Lost, Some(ip)) => self.resume(ip),
            (State::Off | State::Lost, None) => self.state = State::Off,
        }
    }
}
