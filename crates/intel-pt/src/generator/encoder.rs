// SPDX-License-Identifier: Apache-2.0
//! Writes the packets of a processor, by the rules of the manual (Intel SDM vol. 3, "Intel Processor Trace"):
//! the delay of branch results, the compression of addresses and returns, the contents of synchronisation
//! points.

use super::random::Random;

/// The settings of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// CYC packets are written.
    pub cycles: bool,
    /// Returns are compressed.
    pub return_compression: bool,
    /// Branch results are collected to 47 instead of 6.
    pub long_results: bool,
    /// Targets of indirect jumps and calls are delayed until the branch results before them are full.
    pub deferred_targets: bool,
    /// Bytes between synchronisation points.
    pub psb_period: usize,
    /// A TSC packet comes with each enabling. Where none does, the clocks go on while tracing is off.
    pub stamped_enabling: bool,
    /// An MTC packet every `1 << mtc_shift` ticks of the crystal; `None`: none at all.
    pub mtc_shift: Option<u8>,
    /// Ratios of the core's clock and of the time-stamp counter to the bus clock.
    pub core_ratio: u8,
    /// The ratio of the time-stamp counter to the bus clock.
    pub max_non_turbo_ratio: u8,
    /// The end of tracing at a direct branch out of the traced code has its target. It does not on Skylake
    /// (erratum SKL014).
    pub addressed_ends: bool,
    /// Calls from before a branch out of the traced code stay on the return stack.
    pub keeps_returns: bool,
}

impl Settings {
    /// Random settings.
    pub fn generate(random: &mut Random) -> Settings {
        let cycles = random.per_mille(800);
        Settings {
            cycles,
            stamped_enabling: !cycles || random.per_mille(600),
            return_compression: random.per_mille(700),
            long_results: random.per_mille(200),
            deferred_targets: random.per_mille(300),
            psb_period: 256 << random.below(6),
            mtc_shift: random.per_mille(800).then(|| random.below(10) as u8),
            core_ratio: [10, 25, 37][random.below(3)],
            max_non_turbo_ratio: 25,
            addressed_ends: true,
            keeps_returns: false,
        }
    }
}

/// Ticks of the time-stamp counter per tick of the crystal, as perf gives it: numerator, denominator.
pub const TSC_CTC: (u32, u32) = (200, 2);
const TICKS_PER_CRYSTAL: u64 = (TSC_CTC.0 / TSC_CTC.1) as u64;
const RETURNS: usize = 64;
/// Up to this number, cycles are passed one by one, which costs less than the search for the next tick.
const FEW_CYCLES: u64 = 8;

/// The processor's trace unit.
#[derive(Clone, Debug)]
pub struct Encoder {
    settings: Settings,
    /// Bytes written since `take`, and the number of bytes before.
    bytes: Vec<u8>,
    taken: usize,
    results: u64,
    result_count: u32,
    deferred: Vec<u64>,
    last_ip: u64,
    returns: Vec<u64>,
    /// Core cycles since power-on, and those that CYC packets have reported.
    core_cycles: u64,
    reported_cycles: u64,
    ticks: u64,
    /// Ticks not yet whole, in units of the core's ratio.
    remainder: u64,
    last_psb: usize,
    enabled: bool,
    overflowing: bool,
}

impl Encoder {
    /// A trace unit with no packets at `ticks`.
    pub fn new(settings: Settings, ticks: u64) -> Encoder {
        Encoder {
            settings,
            bytes: Vec::new(),
            taken: 0,
            results: 0,
            result_count: 0,
            deferred: Vec::new(),
            last_ip: 0,
            returns: Vec::new(),
            core_cycles: 0,
            reported_cycles: 0,
            ticks,
            remainder: 0,
            last_psb: 0,
            enabled: false,
            overflowing: false,
        }
    }

    /// The time, in ticks.
    pub fn ticks(&self) -> u64 {
        self.ticks
    }

    /// Number of bytes so far.
    pub fn len(&self) -> usize {
        self.taken + self.bytes.len()
    }

    /// Whether no packets were written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The trace since it was last taken.
    pub fn take(&mut self) -> Vec<u8> {
        self.taken += self.bytes.len();
        std::mem::take(&mut self.bytes)
    }

    /// The trace.
    pub fn finish(mut self) -> Vec<u8> {
        self.flush();
        self.bytes
    }

    /// Lets core cycles pass. MTC packets are written at their ticks.
    pub fn pass(&mut self, cycles: u64) {
        let mut left = cycles;
        while left > 0 {
            let uneventful = if left > FEW_CYCLES { self.uneventful_cycles().min(left) } else { 0 };
            if uneventful > 0 {
                self.core_cycles += uneventful;
                self.remainder += uneventful * self.ratio();
                self.ticks += self.remainder / self.core_ratio();
                self.remainder %= self.core_ratio();
            } else {
                self.pass_one();
            }
            left -= uneventful.max(1);
        }
    }

    fn pass_one(&mut self) {
        self.core_cycles += 1;
        self.remainder += self.ratio();
        while self.remainder >= self.core_ratio() {
            self.remainder -= self.core_ratio();
            self.ticks += 1;
            self.tick();
        }
    }

    /// The number of cycles before the next possible tick of an MTC packet.
    fn uneventful_cycles(&self) -> u64 {
        let period = self.settings.mtc_shift.map_or(1 << 20, |shift| TICKS_PER_CRYSTAL << shift);
        let ticks = period - self.ticks % period;
        (ticks * self.core_ratio() - self.remainder - 1) / self.ratio()
    }

    fn ratio(&self) -> u64 {
        self.settings.max_non_turbo_ratio.into()
    }

    fn core_ratio(&self) -> u64 {
        self.settings.core_ratio.into()
    }

    /// Time without a trace.
    pub fn sleep(&mut self, ticks: u64) {
        if self.settings.stamped_enabling {
            self.ticks += ticks;
            return;
        }
        let cycles = (ticks * self.core_ratio()).saturating_sub(self.remainder).div_ceil(self.ratio());
        self.pass(cycles);
    }

    fn tick(&mut self) {
        let Some(shift) = self.settings.mtc_shift else { return };
        let period = TICKS_PER_CRYSTAL << shift;
        if !self.overflowing && self.ticks.is_multiple_of(period) {
            self.flush();
            self.cycles();
            self.bytes.extend([0x59, (self.ticks / period) as u8]);
        }
    }

    /// A conditional branch.
    pub fn branch(&mut self, taken: bool) {
        if !self.overflowing {
            self.result(taken);
        }
    }

    /// A near call.
    pub fn call(&mut self, return_to: u64) {
        if self.overflowing {
            return;
        }
        if self.returns.len() == RETURNS {
            self.returns.remove(0);
        }
        self.returns.push(return_to);
    }

    /// A near return to code that is not traced removes the last call from the stack.
    pub fn forget_call(&mut self) {
        self.returns.pop();
    }

    /// A near return. It removes the last call from the stack, and is compressed if its target is that call's
    /// return address.
    pub fn returned(&mut self, to: u64) {
        if self.overflowing {
            return;
        }
        if self.returns.pop() == Some(to) && self.settings.return_compression {
            return self.result(true);
        }
        // The results for a return are never deferred: results before it must not be taken for its own.
        self.target(to);
    }

    /// An indirect jump or call.
    pub fn indirect(&mut self, to: u64) {
        if self.overflowing {
            return;
        }
        if self.settings.deferred_targets && self.result_count > 0 {
            self.deferred.push(to);
            return;
        }
        self.target(to);
    }

    fn target(&mut self, to: u64) {
        self.flush();
        self.cycles();
        self.address(0x0d, to);
    }

    /// Tracing ends by a system call.
    pub fn disable(&mut self) {
        if !self.overflowing {
            self.flush();
            self.cycles();
            self.bytes.push(0x01);
        }
        // Returns to calls from before tracing was off are not compressed.
        self.returns.clear();
        self.enabled = false;
    }

    /// Tracing ends by a branch to `to`, which is not traced.
    pub fn leave(&mut self, to: u64, is_direct: bool) {
        self.flush();
        self.cycles();
        if is_direct && !self.settings.addressed_ends {
            self.bytes.push(0x01);
        } else {
            self.address(0x01, to);
        }
        if !self.settings.keeps_returns {
            self.returns.clear();
        }
        self.enabled = false;
    }

    /// A system call, or a return from one. `to` is traced, too.
    pub fn far(&mut self, to: u64) {
        self.target(to);
    }

    /// An interrupt at `at`. Its handler follows, or an end of tracing.
    pub fn interrupted(&mut self, at: u64) {
        self.flush();
        self.address(0x1d, at);
    }

    /// Tracing ends by an interrupt at `at`.
    pub fn interrupt(&mut self, at: u64) {
        if !self.overflowing {
            self.flush();
            self.address(0x1d, at);
        }
        self.disable();
    }

    /// The trace unit is on, but the current code is not traced.
    pub fn start(&mut self) {
        self.synchronise(0);
    }

    /// Tracing starts, or starts again, at `at`.
    pub fn enable(&mut self, at: u64) {
        self.enabled = true;
        if self.is_empty() {
            self.enabled = false;
            self.start();
            self.enabled = true;
        } else if self.settings.stamped_enabling {
            self.time_stamp();
        } else {
            self.cycles();
        }
        self.bytes.extend([0x99, 0x01]);
        self.address(0x11, at);
    }

    /// The buffer is full: no packets are written until `recover`.
    pub fn overflow(&mut self) {
        self.flush();
        self.overflowing = true;
    }

    /// Whether tracing is on.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Whether packets are being lost.
    pub fn is_overflowing(&self) -> bool {
        self.overflowing
    }

    /// The buffer has space again, and `at` is executed next, if tracing is on. Returns whether a
    /// synchronisation point was written.
    pub fn recover(&mut self, at: u64) -> bool {
        self.overflowing = false;
        self.returns.clear();
        self.bytes.extend([0x02, 0xf3]);
        self.last_ip = 0;
        let synchronises = self.len() - self.last_psb >= self.settings.psb_period;
        if synchronises {
            // It has no address, because a FUP follows.
            let enabled = std::mem::replace(&mut self.enabled, false);
            self.synchronise(at);
            self.enabled = enabled;
        } else {
            self.time_stamp();
        }
        if self.enabled {
            self.address(0x1d, at);
        }
        synchronises
    }

    /// Writes a synchronisation point if it is due. `at` is executed next.
    pub fn maybe_synchronise(&mut self, at: u64) {
        if !self.overflowing && self.len() - self.last_psb >= self.settings.psb_period {
            self.flush();
            self.synchronise(at);
        }
    }

    fn synchronise(&mut self, at: u64) {
        self.last_psb = self.len();
        self.bytes.extend(crate::packets::PSB);
        self.last_ip = 0;
        self.returns.clear();
        self.time_stamp();
        self.bytes.extend([0x02, 0x03, self.settings.core_ratio, 0]);
        if self.enabled {
            self.bytes.extend([0x99, 0x01, 0x99, 0x20]);
            self.address(0x1d, at);
        }
        self.bytes.extend([0x02, 0x23]);
    }

    fn time_stamp(&mut self) {
        self.reported_cycles = self.core_cycles;
        self.bytes.push(0x19);
        self.bytes.extend(&self.ticks.to_le_bytes()[..7]);
        if self.settings.mtc_shift.is_some() {
            let ctc = (self.ticks / TICKS_PER_CRYSTAL) as u16;
            let fast = (self.ticks % TICKS_PER_CRYSTAL) as u16;
            let ([ctc, ctc_high], [fast, fast_high]) = (ctc.to_le_bytes(), fast.to_le_bytes());
            self.bytes.extend([0x02, 0x73, ctc, ctc_high, 0, fast, fast_high]);
        }
    }

    fn result(&mut self, taken: bool) {
        self.results = self.results << 1 | u64::from(taken);
        self.result_count += 1;
        if self.result_count == if self.settings.long_results { 47 } else { 6 } {
            self.flush();
        }
    }

    /// Writes the collected branch results, and the targets that were delayed until then.
    fn flush(&mut self) {
        if self.result_count > 0 {
            self.cycles();
            let stopped = 1 << self.result_count | self.results;
            if self.result_count <= 6 {
                self.bytes.push((stopped << 1) as u8);
            } else {
                self.bytes.extend([0x02, 0xa3]);
                self.bytes.extend(&stopped.to_le_bytes()[..6]);
            }
            self.results = 0;
            self.result_count = 0;
        }
        for to in std::mem::take(&mut self.deferred) {
            self.cycles();
            self.address(0x0d, to);
        }
    }

    fn cycles(&mut self) {
        let cycles = self.core_cycles - self.reported_cycles;
        if !self.settings.cycles || cycles == 0 {
            return;
        }
        self.reported_cycles = self.core_cycles;
        let mut rest = cycles >> 5;
        self.bytes.push((cycles as u8 & 31) << 3 | u8::from(rest > 0) << 2 | 3);
        while rest > 0 {
            let payload = (rest as u8 & 0x7f) << 1;
            rest >>= 7;
            self.bytes.push(payload | u8::from(rest > 0));
        }
    }

    /// An address in as few bytes as the last one allows.
    fn address(&mut self, opcode: u8, ip: u64) {
        let (kind, length) = if ip >> 16 == self.last_ip >> 16 {
            (1, 2)
        } else if ip >> 32 == self.last_ip >> 32 {
            (2, 4)
        } else if ip >> 48 == self.last_ip >> 48 {
            (4, 6)
        } else if (ip << 16) as i64 >> 16 == ip as i64 {
            (3, 6)
        } else {
            (6, 8)
        };
        self.last_ip = ip;
        self.bytes.push(kind << 5 | opcode);
        self.bytes.extend(&ip.to_le_bytes()[..length]);
    }
}
