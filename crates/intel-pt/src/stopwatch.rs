// SPDX-License-Identifier: Apache-2.0
//! The time of the current packet, in ticks of the time-stamp counter, from TSC, TMA, MTC, CYC and CBR
//! packets.
//!
//! TSC packets are exact and rare. A TMA packet ties the crystal's counter to one of them, and MTC packets,
//! also exact, continue from there. CYC packets fill the time in between, at the core's frequency that CBR
//! gives. Time never decreases between two PSBs: an estimate that was ahead stays until the exact times have
//! caught up. An estimate that leads beyond the next expected exact time is limited by it:
//! [`Stopwatch::cyc_within_limit`] and [`Stopwatch::judge`].

/// The parameters of the clocks in the recording's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockFacts {
    /// An MTC packet comes every `1 << mtc_shift` ticks of the crystal.
    pub mtc_shift: u8,
    /// Ticks of the time-stamp counter per tick of the crystal, as a fraction; 0 if unknown (MTC is then
    /// ignored).
    pub tsc_ctc_numerator: u32,
    /// The fraction's denominator.
    pub tsc_ctc_denominator: u32,
    /// The ratio of the time-stamp counter to the bus clock, in CBR's unit; 0 when unknown.
    pub max_non_turbo_ratio: u8,
    /// A time near the trace's. TSC packets have 56 bits; the upper 8 are taken from here.
    pub reference_ticks: u64,
}

const FRACTION: u32 = 20;

/// A TSC packet with its TMA packet may overtake MTC packets that are a little older.
const MOST_SLIPPED: u64 = 3;

/// Follows the timing packets.
#[derive(Clone, Debug)]
pub struct Stopwatch {
    facts: ClockFacts,
    now: u64,
    /// The last exact time, and core cycles since then as ticks with `FRACTION` fractional bits.
    anchor: u64,
    since_anchor: u64,
    ticks_per_cycle: u64,
    crystal: Option<Crystal>,
    /// Core cycles since the last exact time, from which the frequency is measured if no CBR gives it.
    cycles_since_anchor: u64,
    seen_tsc: bool,
    /// An estimate beyond this is checked against the packets ahead.
    limit: u64,
    /// The next exact time, if it is known. No estimate passes it.
    ceiling: u64,
}

/// The next exact time in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextExact {
    /// An MTC packet with these eight bits.
    Mtc(u8),
    /// A TSC packet with these low 56 bits.
    Tsc(u64),
    /// The trace ends first, or a part of it is missing.
    None,
}

/// The crystal's counter, after a TMA packet has tied it to the time-stamp counter.
#[derive(Clone, Copy, Debug)]
struct Crystal {
    /// The time-stamp counter at the start of the crystal's last counted tick, rounded to MTC's period.
    base: u64,
    ticks_since_base: u64,
    last_mtc: u8,
    /// Bits of `last_mtc` that a 16-bit TMA cannot have.
    unknown_bits: u8,
    /// No MTC packet has come since the TMA packet.
    is_fresh: bool,
}

impl Stopwatch {
    /// A stopwatch at the reference time.
    pub fn new(facts: ClockFacts) -> Stopwatch {
        Stopwatch {
            facts,
            now: facts.reference_ticks,
            anchor: 0,
            since_anchor: 0,
            ticks_per_cycle: 1 << FRACTION,
            crystal: None,
            cycles_since_anchor: 0,
            seen_tsc: false,
            limit: u64::MAX,
            ceiling: u64::MAX,
        }
    }

    /// The time of the last packet, in ticks.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Whether a TSC packet was read. Before it, the time is only near the reference.
    pub fn is_set(&self) -> bool {
        self.seen_tsc
    }

    /// A PSB: the packets behind it give the time again, so earlier estimates do not matter.
    pub fn psb(&mut self) {
        self.crystal = None;
        self.anchor = self.now;
        self.since_anchor = 0;
        self.cycles_since_anchor = 0;
        (self.limit, self.ceiling) = (u64::MAX, u64::MAX);
    }

    /// The first TSC packet after a PSB, which may be earlier than an estimate before it.
    pub fn tsc_after_psb(&mut self, low56: u64) {
        let ticks = self.extended(low56);
        self.now = ticks;
        self.exact(ticks);
    }

    /// Another TSC packet.
    pub fn tsc(&mut self, low56: u64) {
        let ticks = self.extended(low56);
        self.crystal = None;
        self.exact(ticks);
    }

    /// A TMA packet.
    pub fn tma(&mut self, ctc: u16, fast: u16) {
        let shift = self.mtc_shift();
        let remainder = u64::from(ctc) & ((1 << shift) - 1);
        let Some(remainder) = self.ticks_from_crystal(remainder) else { return };
        let unknown_bits = if shift > 8 { !0u8 << (16 - shift) } else { 0 };
        self.crystal = Some(Crystal {
            base: self.anchor.wrapping_sub(u64::from(fast)).wrapping_sub(remainder),
            ticks_since_base: 0,
            last_mtc: (u32::from(ctc) >> shift) as u8,
            unknown_bits,
            is_fresh: true,
        });
        if self.seen_tsc && !self.is_bounded() {
            self.limit = self.anchor.saturating_add(self.most_ahead());
        }
    }

    /// An MTC packet.
    pub fn mtc(&mut self, mtc: u8) {
        let Some(mut crystal) = self.crystal_after(mtc) else { return };
        let missed = self.missed_wraps(&crystal).saturating_mul(256 << self.mtc_shift());
        crystal.ticks_since_base = crystal.ticks_since_base.saturating_add(missed);
        self.crystal = Some(crystal);
        if let Some(elapsed) = self.ticks_from_crystal(crystal.ticks_since_base) {
            self.exact(crystal.base.wrapping_add(elapsed));
        }
    }

    /// The crystal's counter after this packet, if it is later than the reference and no packet before it was
    /// lost.
    fn crystal_after(&self, mtc: u8) -> Option<Crystal> {
        let mut crystal = self.crystal?;
        if crystal.unknown_bits != 0 {
            crystal.assume_bits_of(mtc);
        }
        let periods = u64::from(mtc.wrapping_sub(crystal.last_mtc));
        if crystal.is_fresh && periods > 256 - MOST_SLIPPED {
            return None;
        }
        crystal.is_fresh = false;
        let passed = periods << self.mtc_shift();
        crystal.ticks_since_base = crystal.ticks_since_base.saturating_add(passed);
        crystal.last_mtc = mtc;
        Some(crystal)
    }

    /// The number of unrecorded wraps of the crystal's eight bits, if core cycles are counted: those give an
    /// approximate time.
    fn missed_wraps(&self, crystal: &Crystal) -> u64 {
        let Some(elapsed) = self.ticks_from_crystal(crystal.ticks_since_base) else { return 0 };
        let Some(wrap) = self.wrap() else { return 0 };
        let ahead = self.estimate().min(self.ceiling).saturating_sub(crystal.base.saturating_add(elapsed));
        ahead.saturating_add(wrap / 2).checked_div(wrap).unwrap_or(0)
    }

    fn mtc_shift(&self) -> u32 {
        u32::from(self.facts.mtc_shift.min(16))
    }

    /// As [`Stopwatch::cyc`], unless the cycles lead beyond the next expected exact time. Then they are not
    /// counted, and the caller must call [`Stopwatch::judge`].
    #[inline(always)]
    pub fn cyc_within_limit(&mut self, cycles: u64) -> bool {
        let ticks = cycles.saturating_mul(self.ticks_per_cycle);
        let since_anchor = self.since_anchor.saturating_add(ticks);
        let estimate = self.anchor.saturating_add(since_anchor >> FRACTION);
        if estimate > self.limit {
            return false;
        }
        self.cycles_since_anchor = self.cycles_since_anchor.wrapping_add(cycles);
        self.since_anchor = since_anchor;
        self.advance(estimate);
        true
    }

    /// Counts `cycles` that led beyond the limit, if the next exact time allows them, and limits the time to
    /// that one. `ahead` is the estimate at that time with all cycles up to it, `stamp` the time of the next
    /// TSC packet. Returns whether the cycles up to there fit. Damaged ones do not count.
    ///
    /// An MTC packet has eight bits of the crystal's counter. Cycles may show further wraps, because packets
    /// were lost. Then they must lead near a time that these bits allow, and the next TSC packet must confirm
    /// it.
    pub fn judge(&mut self, cycles: u64, ahead: u64, next: NextExact, stamp: Option<u64>) -> bool {
        let (bound, fits) = match next {
            NextExact::Mtc(mtc) => self.judged_by_crystal(mtc, ahead, stamp),
            NextExact::Tsc(low56) => {
                let exact = self.extended(low56);
                let tolerance = self.tolerance(exact.saturating_sub(self.anchor));
                (exact, ahead <= exact.saturating_add(tolerance))
            }
            NextExact::None => self.unconfirmed(ahead),
        };
        let bound = bound.max(self.now);
        let mut counted = self.clone();
        counted.cyc(cycles);
        if fits || counted.estimate() <= bound {
            *self = counted;
            self.now = self.now.min(bound);
        }
        (self.limit, self.ceiling) = (bound, bound);
        fits
    }

    /// Whether cycles were judged since the last exact time. Cycles beyond the bound do not count.
    pub fn is_bounded(&self) -> bool {
        self.ceiling != u64::MAX
    }

    fn judged_by_crystal(&self, mtc: u8, ahead: u64, stamp: Option<u64>) -> (u64, bool) {
        let times = self.crystal_after(mtc).and_then(|crystal| {
            let elapsed = self.ticks_from_crystal(crystal.ticks_since_base)?;
            Some((crystal.base.saturating_add(elapsed), self.wrap()?))
        });
        let Some((first, wrap)) = times else { return self.unconfirmed(ahead) };
        let wraps = (ahead.saturating_sub(first).saturating_add(wrap / 2)).checked_div(wrap).unwrap_or(0);
        let found = first.saturating_add(wraps.saturating_mul(wrap));
        let elapsed = found.saturating_sub(self.anchor);
        // Over a long time any number of cycles comes near some wrap of the counter.
        let tolerance = self.tolerance(if wraps == 0 { elapsed } else { elapsed / 8 });
        let confirmed = wraps == 0 || stamp.is_some_and(|stamp| found <= stamp.saturating_add(tolerance));
        match ahead.abs_diff(found) <= tolerance && confirmed {
            true => (found, true),
            false => (stamp.unwrap_or(u64::MAX).min(first), false),
        }
    }

    /// The largest error of an estimate after `elapsed` ticks. The core's clock may change before a packet
    /// reports it. If no packet reports it, it is known only within the range of processors.
    fn tolerance(&self, elapsed: u64) -> u64 {
        let drift = if self.facts.max_non_turbo_ratio == 0 { elapsed.saturating_mul(8) } else { elapsed / 8 };
        (self.most_ahead() / 2).saturating_add(drift).saturating_add(64)
    }

    /// The largest lead of an estimate before it is checked. MTC packets come once a period; without them the
    /// time of the next exact time is not known.
    fn most_ahead(&self) -> u64 {
        let period = self.crystal.and_then(|_| self.ticks_from_crystal(1 << self.mtc_shift()));
        period.unwrap_or(0).saturating_mul(2)
    }

    /// The bound without a later exact time: some seconds, in which tracing may have been off, or one wrap of
    /// the crystal's counter.
    fn unconfirmed(&self, ahead: u64) -> (u64, bool) {
        const WITHOUT_CRYSTAL: u64 = 1 << 33;
        let longest = self.crystal.and_then(|_| self.wrap()).unwrap_or(WITHOUT_CRYSTAL);
        let bound = self.anchor.saturating_add(longest);
        (bound, ahead <= bound)
    }

    /// Ticks of one wrap of the crystal's eight bits.
    fn wrap(&self) -> Option<u64> {
        self.ticks_from_crystal(256 << self.mtc_shift())
    }

    /// The time by the cycles since the last exact one.
    pub fn estimate(&self) -> u64 {
        self.anchor.saturating_add(self.since_anchor >> FRACTION)
    }

    /// The time of a TSC packet with these bits.
    pub fn time_of_stamp(&self, low56: u64) -> u64 {
        self.extended(low56)
    }

    /// A CYC packet.
    #[inline(always)]
    pub fn cyc(&mut self, cycles: u64) {
        self.cycles_since_anchor = self.cycles_since_anchor.wrapping_add(cycles);
        let ticks = cycles.saturating_mul(self.ticks_per_cycle);
        self.since_anchor = self.since_anchor.saturating_add(ticks);
        self.advance(self.estimate());
    }

    /// A CBR packet.
    pub fn cbr(&mut self, ratio: u8) {
        let full = u64::from(self.facts.max_non_turbo_ratio);
        if ratio != 0 && full != 0 {
            self.ticks_per_cycle = (full << FRACTION) / u64::from(ratio);
            self.anchor = self.estimate();
            self.since_anchor = 0;
        }
    }

    #[inline(always)]
    fn advance(&mut self, ticks: u64) {
        let ticks = ticks.min(self.ceiling);
        if ticks > self.now {
            self.now = ticks;
        }
    }

    fn exact(&mut self, ticks: u64) {
        if self.facts.max_non_turbo_ratio == 0 && self.seen_tsc {
            self.measure(ticks.saturating_sub(self.anchor));
        }
        if !self.seen_tsc {
            self.now = ticks;
        }
        self.seen_tsc = true;
        self.anchor = ticks;
        self.since_anchor = 0;
        self.cycles_since_anchor = 0;
        (self.limit, self.ceiling) = (ticks.saturating_add(self.most_ahead()), u64::MAX);
        self.advance(ticks);
    }

    /// Without CBR, the frequency is that of the last interval between exact times, within the range of
    /// processors.
    fn measure(&mut self, ticks: u64) {
        if self.cycles_since_anchor < 64 || ticks >= 1 << 40 {
            return;
        }
        let measured = (ticks << FRACTION) / self.cycles_since_anchor;
        if (1 << (FRACTION - 3)..=1 << (FRACTION + 3)).contains(&measured) {
            self.ticks_per_cycle = measured;
        }
    }

    /// The time with these low 56 bits that is nearest to the previous time, or to the reference.
    fn extended(&self, low56: u64) -> u64 {
        const STEP: u64 = 1 << 56;
        let near = if self.seen_tsc { self.now } else { self.facts.reference_ticks };
        let same = near & !(STEP - 1) | low56 & (STEP - 1);
        if same > near && same - near > STEP / 2 {
            same.checked_sub(STEP).unwrap_or(same)
        } else if near > same && near - same > STEP / 2 {
            same.checked_add(STEP).unwrap_or(same)
        } else {
            same
        }
    }

    fn ticks_from_crystal(&self, crystal: u64) -> Option<u64> {
        let denominator = u128::from(self.facts.tsc_ctc_denominator);
        if denominator == 0 || self.facts.tsc_ctc_numerator == 0 {
            return None;
        }
        let scaled = u128::from(crystal) * u128::from(self.facts.tsc_ctc_numerator);
        Some((scaled / denominator) as u64)
    }
}

impl Crystal {
    /// The bits that TMA lacks are those of the first MTC, or one less if the rest has wrapped.
    fn assume_bits_of(&mut self, mtc: u8) {
        let known = !self.unknown_bits;
        let mut assumed = mtc & self.unknown_bits | self.last_mtc & known;
        if assumed > mtc {
            assumed = assumed.wrapping_sub(known.wrapping_add(1));
        }
        self.last_mtc = assumed;
        self.unknown_bits = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: ClockFacts = ClockFacts {
        mtc_shift: 3,
        tsc_ctc_numerator: 200,
        tsc_ctc_denominator: 2,
        max_non_turbo_ratio: 25,
        reference_ticks: 0,
    };

    fn started(facts: ClockFacts) -> Stopwatch {
        let mut watch = Stopwatch::new(facts);
        watch.psb();
        watch.tsc_after_psb(1_000_000);
        watch
    }

    #[test]
    fn cycles_count_at_the_ratio_of_the_clocks() {
        let mut watch = started(FACTS);
        watch.cbr(25);
        watch.cyc(40);
        assert_eq!(watch.now(), 1_000_040);
        watch.cbr(50);
        watch.cyc(3);
        watch.cyc(3);
        assert_eq!(watch.now(), 1_000_043, "half a tick a cycle, fractions kept");
    }

    #[test]
    fn crystal_counts_on_from_a_tsc_packet() {
        let mut watch = started(FACTS);
        watch.tma(0x1005, 30);
        watch.mtc(0x01);
        // CTC 0x1000 was 5 crystal ticks and 30 ticks ago; 0x1008 is 800 ticks after that.
        assert_eq!(watch.now(), 1_000_000 - 30 - 500 + 800);
        watch.mtc(0x03);
        assert_eq!(watch.now(), 1_000_000 - 30 - 500 + 2_400);
    }

    #[test]
    fn crystal_wraps_at_eight_bits() {
        let mut watch = started(FACTS);
        watch.tma(0x07f8, 0);
        watch.mtc(0x00);
        assert_eq!(watch.now(), 1_000_800);
    }

    #[test]
    fn long_mtc_period_leaves_bits_that_tma_lacks() {
        let mut watch = started(ClockFacts { mtc_shift: 12, ..FACTS });
        watch.tma(0xf000, 0);
        watch.mtc(0x60);
        assert_eq!(watch.now(), 1_000_000 + (0x1000 * 100), "0x5f to 0x60: one period");
        let mut watch = started(ClockFacts { mtc_shift: 12, ..FACTS });
        watch.tma(0x3000, 0);
        watch.mtc(0xa5);
        assert_eq!(watch.now(), 1_000_000 + 2 * (0x1000 * 100));
    }

    #[test]
    fn lost_mtc_packets_are_found_by_the_cycles() {
        let mut watch = started(FACTS);
        watch.tma(0x1000, 0);
        watch.cbr(25);
        watch.mtc(0x01);
        // A wrap is 2,048 ticks of the crystal: 204,800. Two of them and a period pass.
        watch.cyc(2 * 204_800 + 700);
        watch.mtc(0x02);
        assert_eq!(watch.now(), 1_000_000 + 2 * 800 + 2 * 204_800);
        watch.cyc(790);
        watch.mtc(0x03);
        assert_eq!(watch.now(), 1_000_000 + 3 * 800 + 2 * 204_800);
    }

    #[test]
    fn older_mtc_packet_may_follow_its_reference() {
        let mut watch = started(FACTS);
        watch.tma(0x1000, 0);
        watch.mtc(0xff);
        assert_eq!(watch.now(), 1_000_000, "not 255 periods later");
        watch.mtc(0x01);
        assert_eq!(watch.now(), 1_000_800);
    }

    #[test]
    fn estimate_ahead_stays_until_the_exact_time() {
        let mut watch = started(FACTS);
        watch.tma(0x1000, 0);
        watch.cyc(900);
        watch.mtc(0x01);
        assert_eq!(watch.now(), 1_000_900);
        watch.cyc(50);
        assert_eq!(watch.now(), 1_000_900);
        watch.cyc(60);
        assert_eq!(watch.now(), 1_000_910);
        watch.psb();
        watch.tsc_after_psb(1_000_905);
        assert_eq!(watch.now(), 1_000_905, "a PSB starts anew, as it must for segments to agree");
    }

    /// Counts cycles as the decoder does. `ahead`: cycles that follow before the next exact time.
    fn counted(watch: &mut Stopwatch, cycles: u64, ahead: u64, next: NextExact, stamp: Option<u64>) -> bool {
        if watch.cyc_within_limit(cycles) || watch.is_bounded() {
            return true;
        }
        let mut at_next = watch.clone();
        at_next.cyc(cycles + ahead);
        watch.judge(cycles, at_next.estimate(), next, stamp)
    }

    #[test]
    fn damaged_cycles_are_limited_by_the_next_mtc_packet() {
        for damaged in [2_000, 30_000, 1 << 20, 1 << 40, u64::MAX] {
            let mut watch = started(FACTS);
            watch.tma(0x1000, 0);
            watch.cbr(25);
            watch.cyc(100);
            assert!(!counted(&mut watch, damaged, 0, NextExact::Mtc(0x01), Some(2_000_000)), "{damaged}");
            assert_eq!(watch.now(), 1_000_100, "damaged cycles do not count");
            assert!(counted(&mut watch, 5_000, 0, NextExact::Mtc(0x01), None), "one look an interval");
            assert_eq!(watch.now(), 1_000_100, "nothing passes the next tick");
            watch.cyc(5_000);
            assert_eq!(watch.now(), 1_000_800);
            watch.mtc(0x01);
            assert_eq!(watch.now(), 1_000_800);
        }
    }

    #[test]
    fn cycles_over_lost_mtc_packets_count_if_a_tsc_packet_confirms_them() {
        let lost = 2 * 204_800 + 700;
        for (stamp, fits) in [(Some(2_000_000), true), (Some(1_100_000), false), (None, false)] {
            let mut watch = started(FACTS);
            watch.tma(0x1000, 0);
            watch.cbr(25);
            watch.mtc(0x01);
            assert_eq!(counted(&mut watch, lost, 50, NextExact::Mtc(0x02), stamp), fits);
            watch.mtc(0x02);
            let expected = if fits { 2 * 800 + 2 * 204_800 } else { 2 * 800 };
            assert_eq!(watch.now(), 1_000_000 + expected);
        }
    }

    #[test]
    fn without_a_crystal_the_next_tsc_packet_limits_the_cycles() {
        let mut watch = started(FACTS);
        assert!(counted(&mut watch, 900, 100, NextExact::Tsc(1_001_000), Some(1_001_000)));
        watch.cyc(5_000);
        assert_eq!(watch.now(), 1_001_000, "nothing passes the next stamp");
        watch.tsc(1_001_000);
        assert!(!counted(&mut watch, 1 << 30, 0, NextExact::Tsc(1_002_000), Some(1_002_000)));
        assert_eq!(watch.now(), 1_001_000);
        watch.tsc(1_002_000);
        assert!(!counted(&mut watch, 1 << 40, 0, NextExact::None, None));
        assert_eq!(watch.now(), 1_002_000);
        assert!(counted(&mut watch, 1 << 20, 0, NextExact::None, None));
        assert_eq!(watch.now(), 1_002_000 + (1 << 20));
    }

    #[test]
    fn without_cbr_the_frequency_is_measured() {
        let mut watch = started(ClockFacts { max_non_turbo_ratio: 0, ..FACTS });
        watch.cyc(1_000);
        watch.tsc(1_002_000);
        watch.cyc(100);
        assert_eq!(watch.now(), 1_002_200);
    }

    #[test]
    fn upper_bits_come_from_the_reference() {
        let near = 3u64 << 56 | 10;
        for (low, expected) in [(5, 3u64 << 56 | 5), ((1 << 56) - 1, (3u64 << 56) - 1), (20, 3 << 56 | 20)] {
            let mut watch = Stopwatch::new(ClockFacts { reference_ticks: near, ..FACTS });
            watch.tsc(low);
            assert_eq!(watch.now(), expected);
        }
    }

    #[test]
    fn absurd_clocks_do_not_panic() {
        let facts = ClockFacts {
            mtc_shift: 255,
            tsc_ctc_numerator: u32::MAX,
            tsc_ctc_denominator: 1,
            max_non_turbo_ratio: 255,
            reference_ticks: u64::MAX,
        };
        let mut watch = Stopwatch::new(facts);
        for step in 0..2_000u64 {
            watch.tsc(step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            watch.tma(step as u16, 511);
            watch.mtc(step as u8 ^ 0xff);
            watch.cbr(step as u8);
            watch.cyc(u64::MAX >> (step % 64));
            let cycles = u64::MAX >> (step % 61);
            let next = [NextExact::None, NextExact::Mtc(step as u8), NextExact::Tsc(cycles)];
            counted(
                &mut watch,
                cycles,
                cycles / 7,
                next[step as usize % 3],
                Some(step).filter(|_| step % 2 == 0),
            );
        }
    }
}
