// SPDX-License-Identifier: Apache-2.0
//! Records of hardware traces: the kind of a trace (AUXTRACE_INFO), its bytes (AUXTRACE), lost parts (AUX),
//! and the conversion of its clock (TIME_CONV).
//!
//! Layouts: `tools/perf/Documentation/perf.data-file-format.txt`; `tools/perf/util/intel-pt.h` for the order
//! of the words of AUXTRACE_INFO; `perf_event_open(2)` for AUX.

use wallprof_intel_pt::TimeConv;

use super::bytes::Bytes;

/// `PERF_AUXTRACE_INTEL_PT`.
pub(crate) const INTEL_PT: u32 = 1;

/// Parameters of an Intel PT recording. Bits are those of the event's `config`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TraceInfo {
    /// The number of the PMU: the `type` of its event's attr.
    pub pmu: u32,
    /// `None` where times of the trace cannot be compared with those of records.
    pub time_conv: Option<TimeConv>,
    pub no_return_compression: u64,
    pub is_snapshot: bool,
    /// Records or tracepoints report when threads were on a CPU.
    pub has_switches: bool,
    pub mtc: u64,
    pub mtc_period: u64,
    pub tsc_ctc_numerator: u32,
    pub tsc_ctc_denominator: u32,
    pub cycles: u64,
    pub max_non_turbo_ratio: u8,
}

impl TraceInfo {
    /// `Ok(None)`: another kind of trace. perf before 2016 writes fewer words.
    #[allow(clippy::option_option)]
    pub(crate) fn read(body: &[u8]) -> Option<Option<Self>> {
        let mut bytes = Bytes::new(body);
        if bytes.u32()? != INTEL_PT {
            return Some(None);
        }
        bytes.skip(4)?;
        let mut words = [0; 16];
        let count = (bytes.len() / 8).min(words.len());
        for (word, found) in words.iter_mut().zip(bytes.u64s(count as u64)?) {
            *word = found;
        }
        let [pmu, shift, mult, zero, cap_zero, _tsc, no_return_compression, switches, ..] = words;
        let [
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            snapshot,
            _per_cpu,
            mtc,
            mtc_period,
            numerator,
            denominator,
            cycles,
            ratio,
        ] = words;
        (count > 4).then_some(Some(TraceInfo {
            pmu: pmu as u32,
            time_conv: (cap_zero != 0 || mult != 0).then(|| time_conv(shift, mult, zero)),
            no_return_compression,
            is_snapshot: snapshot != 0,
            has_switches: switches != 0,
            mtc,
            mtc_period,
            tsc_ctc_numerator: numerator as u32,
            tsc_ctc_denominator: denominator as u32,
            cycles,
            max_non_turbo_ratio: ratio as u8,
        }))
    }
}

/// The text of the recording's address filters, which follows the words of an AUXTRACE_INFO. perf before 2016
/// writes none.
pub(crate) fn filter_text(body: &[u8]) -> &[u8] {
    const LENGTH: usize = 8 * (1 + 16);
    let text = || {
        let mut bytes = Bytes::new(body);
        bytes.skip(LENGTH)?;
        let length = bytes.u64()?;
        bytes.take_u64(length)
    };
    text().unwrap_or_default()
}

/// TIME_CONV, written when the numbers were not known yet at the start of the recording.
pub(crate) fn time_conv_record(body: &[u8]) -> Option<TimeConv> {
    let mut bytes = Bytes::new(body);
    let (shift, mult, zero) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
    (mult != 0).then(|| time_conv(shift, mult, zero))
}

fn time_conv(shift: u64, mult: u64, zero: u64) -> TimeConv {
    TimeConv { shift: u16::try_from(shift).unwrap_or(u16::MAX), mult, zero }
}

/// A piece of a trace. Its bytes follow the record in the input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TracePiece {
    pub size: u64,
    /// The position of its first byte among all bytes of its buffer.
    pub offset: u64,
    /// The time-stamp counter at the reading of the piece.
    pub reference: u64,
    /// The number of the buffer.
    pub index: u32,
    /// The thread that the buffer follows.
    pub tid: Option<u32>,
    /// The CPU that the buffer follows.
    pub cpu: Option<u32>,
}

impl TracePiece {
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let known = |number: u32| (number != u32::MAX).then_some(number);
        let mut bytes = Bytes::new(body);
        let (size, offset, reference) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
        // Records of the oldest versions of perf end here.
        let (index, tid, cpu) = (bytes.u32(), bytes.u32(), bytes.u32());
        Some(TracePiece {
            size,
            offset,
            reference,
            index: index.unwrap_or(0),
            tid: tid.and_then(known),
            cpu: cpu.and_then(known),
        })
    }
}

/// A part of a buffer that the kernel has filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filled {
    pub offset: u64,
    pub size: u64,
    /// Bytes are missing behind it: the buffer was full, or another user had the hardware.
    pub lost: bool,
}

impl Filled {
    pub(crate) fn read(mut bytes: Bytes<'_>) -> Option<Self> {
        const TRUNCATED: u64 = 1;
        const PARTIAL: u64 = 4;
        const COLLISION: u64 = 8;
        let (offset, size, flags) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
        Some(Filled { offset, size, lost: flags & (TRUNCATED | PARTIAL | COLLISION) != 0 })
    }
}

#[cfg(test)]
mod tests {
    use wallprof_intel_pt::generator::record::words;

    use super::*;

    #[test]
    fn words_of_an_info_are_read() {
        let body = words(&[
            1,
            8,
            31,
            7,
            0u64.wrapping_sub(5),
            1,
            1 << 10,
            1 << 11,
            3,
            1,
            0,
            1 << 9,
            0x3c000,
            2,
            5,
            2,
            25,
        ]);
        let info = TraceInfo::read(&body).flatten().expect("Intel PT");
        assert_eq!((info.pmu, info.is_snapshot, info.no_return_compression), (8, true, 1 << 11));
        assert!(info.has_switches);
        let mut without = body.clone();
        without[64] = 0;
        assert!(!TraceInfo::read(&without).flatten().expect("Intel PT").has_switches);
        assert_eq!(info.time_conv, Some(TimeConv { shift: 31, mult: 7, zero: 0u64.wrapping_sub(5) }));
        assert_eq!((info.mtc, info.mtc_period, info.cycles), (1 << 9, 0x3c000, 2));
        assert_eq!((info.tsc_ctc_numerator, info.tsc_ctc_denominator, info.max_non_turbo_ratio), (2, 5, 25));
    }

    #[test]
    fn filters_are_the_text_behind_the_words() {
        let mut body = words(&[0; 17]);
        assert_eq!(filter_text(&body), b"");
        body.extend(words(&[5]));
        assert_eq!(filter_text(&body), b"", "the text is missing");
        body.extend(b"stop \0\0\0");
        body.extend(words(&[1]));
        assert_eq!(filter_text(&body), b"stop ");
        body[17 * 8..18 * 8].fill(0xff);
        assert_eq!(filter_text(&body), b"");
    }

    #[test]
    fn other_and_short_infos_are_none() {
        assert_eq!(TraceInfo::read(&words(&[2, 0, 0, 0, 0, 0])), Some(None));
        assert_eq!(TraceInfo::read(&words(&[1, 8])), None);
        assert_eq!(TraceInfo::read(&[]), None);
        assert_eq!(TraceInfo::read(&words(&[1, 8, 0, 0, 0, 0])).flatten().expect("one").time_conv, None);
    }

    #[test]
    fn a_piece_is_of_a_thread_or_a_cpu() {
        let none = u64::from(u32::MAX);
        let of_thread = TracePiece::read(&words(&[64, 128, 9, 77 << 32 | 3, none])).expect("a piece");
        assert_eq!((of_thread.size, of_thread.offset, of_thread.index), (64, 128, 3));
        assert_eq!((of_thread.tid, of_thread.cpu), (Some(77), None));
        let of_cpu = TracePiece::read(&words(&[64, 128, 9, none << 32, 2])).expect("a piece");
        assert_eq!((of_cpu.tid, of_cpu.cpu), (None, Some(2)));
        assert_eq!(TracePiece::read(&words(&[64, 128])), None);
    }

    #[test]
    fn flags_report_losses() {
        let filled = |flags| Filled::read(Bytes::new(&words(&[8, 16, flags]))).expect("whole").lost;
        assert_eq!([0, 1, 2, 4, 8].map(filled), [false, true, false, true, true]);
        assert_eq!(Filled::read(Bytes::new(&[0; 23])), None);
    }
}
