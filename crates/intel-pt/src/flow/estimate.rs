// SPDX-License-Identifier: Apache-2.0
//! Checks of cycle counts that lead beyond the next expected exact time. The packets ahead show whether they
//! are possible.

use super::Decoder;
use crate::code::Code;
use crate::event::Sink;
use crate::packet::Packet;
use crate::stopwatch::NextExact;

/// The next TSC packet. It is searched once, so that all searches together read the trace once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stamp {
    /// The end of the search: the result is valid up to there.
    until: usize,
    low56: Option<u64>,
}

impl<C: Code, S: Sink> Decoder<'_, '_, C, S> {
    #[cold]
    #[inline(never)]
    pub(super) fn judge_cycles(&mut self, cycles: u64) {
        if self.watch.is_bounded() {
            return;
        }
        let stamp = self.next_stamp();
        let (ahead, next) = self.next_exact(cycles);
        if !self.watch.judge(cycles, ahead, next, stamp) {
            self.decoded.corrected_times += 1;
        }
    }

    /// The estimate at the next exact time with all cycles up to it, and that time.
    fn next_exact(&self, cycles: u64) -> (u64, NextExact) {
        let (mut packets, mut watch) = (self.packets.clone(), self.watch.clone());
        watch.cyc(cycles);
        while let Some(Ok(packet)) = packets.next_packet() {
            match packet {
                Packet::Cyc(cycles) => watch.cyc(cycles),
                Packet::Cbr(ratio) => watch.cbr(ratio),
                Packet::Mtc(mtc) => return (watch.estimate(), NextExact::Mtc(mtc)),
                Packet::Tsc(low56) => return (watch.estimate(), NextExact::Tsc(low56)),
                Packet::Overflow => break,
                _ => {}
            }
        }
        (watch.estimate(), NextExact::None)
    }

    fn next_stamp(&mut self) -> Option<u64> {
        if self.packets.offset() >= self.stamp.until {
            let mut packets = self.packets.clone();
            let mut ahead = std::iter::from_fn(|| packets.next_packet()?.ok());
            let low56 = ahead.find_map(|packet| match packet {
                Packet::Tsc(low56) => Some(low56),
                _ => None,
            });
            self.stamp = Stamp { until: packets.offset(), low56 };
        }
        self.stamp.low56.map(|low56| self.watch.time_of_stamp(low56))
    }
}
