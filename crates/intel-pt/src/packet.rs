// SPDX-License-Identifier: Apache-2.0
//! The packets of the trace (Intel SDM vol. 3, "Intel Processor Trace", packet definitions), one variant a
//! packet, with payloads as plain integers. `packets` reads them from bytes; `flow` applies their meaning for
//! control flow.

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Padding.
    Pad,
    /// Start of a synchronisation point. The packets up to `PsbEnd` give the processor's state.
    Psb,
    /// End of a synchronisation point.
    PsbEnd,
    /// The processor's own buffer overflowed: packets were lost.
    Overflow,
    /// Tracing was stopped by a filter.
    TraceStop,
    /// Results of branches.
    Tnt(Tnt),
    /// The target of an indirect branch, or of an event.
    Tip(IpPayload),
    /// Tracing turns on, at this address.
    TipPge(IpPayload),
    /// Tracing turns off.
    TipPgd(IpPayload),
    /// The address of an asynchronous event, or of the packet before it.
    Fup(IpPayload),
    /// The low 56 bits of the time-stamp counter.
    Tsc(u64),
    /// The crystal's counter at the last TSC packet, and the TSC ticks since its last increment.
    Tma {
        /// The low 16 bits of the crystal's counter.
        ctc: u16,
        /// Ticks of the time-stamp counter since its last increment.
        fast: u16,
    },
    /// Eight bits of the crystal's counter.
    Mtc(u8),
    /// Core cycles since the last CYC packet.
    Cyc(u64),
    /// Ratio of the core's clock to the bus clock.
    Cbr(u8),
    /// The execution mode.
    ModeExec {
        /// The size of code.
        code: CodeSize,
        /// Interrupts are enabled.
        interrupts: bool,
    },
    /// A transaction starts, ends or aborts.
    ModeTsx {
        /// Inside of a transaction.
        inside: bool,
        /// The transaction was aborted.
        abort: bool,
    },
    /// The page table has changed.
    Pip {
        /// The address of the page table.
        cr3: u64,
        /// In a virtual machine.
        non_root: bool,
    },
    /// The address of the control structure of a virtual machine.
    Vmcs(u64),
    /// A value for maintenance.
    Mnt(u64),
    /// A value that software wrote by `ptwrite`.
    PtWrite {
        /// The value.
        value: u64,
        /// A FUP follows.
        ip_follows: bool,
    },
    /// An `mwait` instruction.
    Mwait {
        /// The hints of the instruction.
        hints: u32,
        /// The extensions of the instruction.
        extensions: u32,
    },
    /// The processor enters a power state.
    PowerEntry(u16),
    /// The processor leaves a power state.
    PowerExit(u64),
    /// Execution stops in a power state.
    ExecStop {
        /// A FUP follows.
        ip_follows: bool,
    },
    /// A block of items starts.
    BlockBegin {
        /// The kind of the block.
        kind: u8,
        /// The size of its items.
        item: BlockItemSize,
    },
    /// An item of a block.
    BlockItem {
        /// The number of the item.
        id: u8,
        /// Its value.
        value: u64,
    },
    /// A block of items ends.
    BlockEnd {
        /// A FUP follows.
        ip_follows: bool,
    },
    /// An interrupt, fault, `iret` or another event of the event trace; `vector` if the kind has one.
    ControlFlowEvent {
        /// The kind of the event.
        kind: u8,
        /// The vector of an interrupt or fault.
        vector: u8,
        /// A FUP follows.
        ip_follows: bool,
    },
    /// Data of the event that follows.
    EventData {
        /// The kind of the data.
        kind: u8,
        /// The data.
        value: u64,
    },
}

/// Results of conditional branches, and of returns to their call's return address. The oldest is the highest
/// of `count` bits; 1 is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tnt {
    /// The results.
    pub bits: u64,
    /// The number of results.
    pub count: u8,
}

/// An address as the packet has it: the number of bytes, and the bits of the last address that they replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpPayload {
    /// The address is not in the trace, because it is outside of the traced code.
    Suppressed,
    /// The low 16 bits.
    Low16(u16),
    /// The low 32 bits.
    Low32(u32),
    /// 48 bits, sign-extended.
    Signed48(u64),
    /// 48 bits, the upper 16 from the last address.
    Low48(u64),
    /// All 64 bits.
    Full(u64),
}

/// The address to which compressed addresses refer. A PSB resets it to 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastIp(u64);

impl LastIp {
    /// The address of `payload`, which becomes the last one; `None` if it is suppressed.
    #[inline]
    pub fn update(&mut self, payload: IpPayload) -> Option<u64> {
        self.0 = match payload {
            IpPayload::Suppressed => return None,
            IpPayload::Low16(low) => self.0 & !0xffff | u64::from(low),
            IpPayload::Low32(low) => self.0 & !0xffff_ffff | u64::from(low),
            IpPayload::Signed48(low) => ((low << 16) as i64 >> 16) as u64,
            IpPayload::Low48(low) => self.0 & !0xffff_ffff_ffff | low,
            IpPayload::Full(address) => address,
        };
        Some(self.0)
    }
}

/// How the processor reads code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CodeSize {
    /// Code of 16 bits.
    Bits16,
    /// Code of 32 bits.
    Bits32,
    /// Code of 64 bits.
    #[default]
    Bits64,
}

/// Payload bytes of the items between BBP and BEP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockItemSize {
    /// Four bytes.
    Four,
    /// Eight bytes.
    Eight,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_addresses_replace_the_low_bits_of_the_last_one() {
        let mut last = LastIp::default();
        assert_eq!(last.update(IpPayload::Full(0xffff_8000_1234_5678)), Some(0xffff_8000_1234_5678));
        assert_eq!(last.update(IpPayload::Low16(0xabcd)), Some(0xffff_8000_1234_abcd));
        assert_eq!(last.update(IpPayload::Low32(0x1)), Some(0xffff_8000_0000_0001));
        assert_eq!(last.update(IpPayload::Low48(0x7fff_0000_0002)), Some(0xffff_7fff_0000_0002));
        assert_eq!(last.update(IpPayload::Suppressed), None);
        assert_eq!(last.update(IpPayload::Low16(0x3)), Some(0xffff_7fff_0000_0003));
    }

    #[test]
    fn bit_47_is_the_sign_of_a_signed_address() {
        let mut last = LastIp::default();
        assert_eq!(last.update(IpPayload::Signed48(0x8000_0000_0001)), Some(0xffff_8000_0000_0001));
        assert_eq!(last.update(IpPayload::Signed48(0x7fff_ffff_ffff)), Some(0x7fff_ffff_ffff));
    }
}
