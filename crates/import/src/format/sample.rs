// SPDX-License-Identifier: Apache-2.0
//! Samples, and the ids at the end of other records, by the fields that their event's attr names.

use super::attr::{Attr, read, sample};
use super::bytes::Bytes;
use super::record::{Malformed, RawRecord, kind};

/// With this bit a branch stack starts with an index.
const BRANCH_HW_INDEX: u64 = 1 << 17;
const BRANCH_ENTRY_BYTES: u64 = 24;

/// Time, CPU, thread and event of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SampleId {
    pub pid: Option<u32>,
    pub tid: Option<u32>,
    pub time: Option<u64>,
    pub cpu: Option<u32>,
    pub id: Option<u64>,
}

/// The registers and the top of the stack of a thread in user mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UserState<'a> {
    pub abi: u64,
    /// The registers in `mask`, in the order of their numbers, 8 bytes each.
    pub registers: &'a [u8],
    pub mask: u64,
    /// The bytes from the stack pointer upwards.
    pub stack: &'a [u8],
}

impl UserState<'_> {
    /// The register with perf's number `number`, if it was recorded.
    pub(crate) fn register(&self, number: u32) -> Option<u64> {
        let bit = 1u64.checked_shl(number)?;
        let index = (self.mask & (bit - 1)).count_ones() as usize * 8;
        let value = self.registers.get(index..index + 8).filter(|_| self.mask & bit != 0)?;
        Some(u64::from_le_bytes(value.try_into().ok()?))
    }
}

/// One sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample<'a> {
    pub id: SampleId,
    pub ip: Option<u64>,
    pub period: Option<u64>,
    /// Addresses and context marks, 8 bytes each.
    pub callchain: &'a [u8],
    /// The last branches, the newest first: source, target and flags, 8 bytes each.
    pub branches: &'a [u8],
    /// The fields of a tracepoint.
    pub raw: &'a [u8],
    pub user: Option<UserState<'a>>,
}

impl<'a> Sample<'a> {
    pub(crate) fn read(attr: &Attr, body: &'a [u8]) -> Result<Self, Malformed> {
        fields(attr, Bytes::new(body)).ok_or(Malformed)
    }

    /// Source and target of each branch, the newest first.
    pub(crate) fn branches(&self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        self.branches.chunks_exact(BRANCH_ENTRY_BYTES as usize).filter_map(|entry| {
            let mut words = Bytes::new(entry);
            Some((words.u64()?, words.u64()?))
        })
    }

    /// The callchain's addresses and marks.
    pub(crate) fn chain(&self) -> impl Iterator<Item = u64> + use<'a> {
        self.callchain.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap_or_default()))
    }
}

fn fields<'a>(attr: &Attr, mut bytes: Bytes<'a>) -> Option<Sample<'a>> {
    let mut found = Sample::default();
    let identifier = optional(attr, sample::IDENTIFIER, || bytes.u64())?;
    found.ip = optional(attr, sample::IP, || bytes.u64())?;
    if attr.has(sample::TID) {
        (found.id.pid, found.id.tid) = (Some(bytes.u32()?), Some(bytes.u32()?));
    }
    found.id.time = optional(attr, sample::TIME, || bytes.u64())?;
    optional(attr, sample::ADDR, || bytes.u64())?;
    let id = optional(attr, sample::ID, || bytes.u64())?;
    found.id.id = identifier.or(id);
    optional(attr, sample::STREAM_ID, || bytes.u64())?;
    found.id.cpu = optional(attr, sample::CPU, || bytes.u64())?.map(|word| word as u32);
    found.period = optional(attr, sample::PERIOD, || bytes.u64())?;
    if attr.has(sample::READ) {
        skip_read(attr.read_format, &mut bytes)?;
    }
    if attr.has(sample::CALLCHAIN) {
        let count = bytes.u64()?;
        found.callchain = bytes.take_u64(count.checked_mul(8)?)?;
    }
    if attr.has(sample::RAW) {
        let len = bytes.u32()?;
        found.raw = bytes.take(len as usize)?;
    }
    if attr.has(sample::BRANCH_STACK) {
        found.branches = branches(attr.branch_sample_type, &mut bytes)?;
    }
    found.user = user_state(attr, &mut bytes)?;
    Some(found)
}

/// `Some(None)`: the attr lacks the field. `None`: the attr has it, but the sample is too short.
#[allow(clippy::option_option)]
fn optional<T>(attr: &Attr, bit: u64, read: impl FnOnce() -> Option<T>) -> Option<Option<T>> {
    if attr.has(bit) { read().map(Some) } else { Some(None) }
}

fn skip_read(format: u64, bytes: &mut Bytes<'_>) -> Option<()> {
    let has = |bit: u64| u64::from(format & bit != 0);
    let times = has(read::TOTAL_TIME_ENABLED) + has(read::TOTAL_TIME_RUNNING);
    let of_each = 1 + has(read::ID) + has(read::LOST);
    let words = match format & read::GROUP != 0 {
        true => bytes.u64()?.checked_mul(of_each)?.checked_add(times)?,
        false => of_each + times,
    };
    bytes.take_u64(words.checked_mul(8)?).map(drop)
}

fn branches<'a>(branch_sample_type: u64, bytes: &mut Bytes<'a>) -> Option<&'a [u8]> {
    const COUNTERS: u64 = 1 << 19;
    let count = bytes.u64()?;
    if branch_sample_type & BRANCH_HW_INDEX != 0 {
        bytes.skip(8)?;
    }
    let entries = bytes.take_u64(count.checked_mul(BRANCH_ENTRY_BYTES)?)?;
    if branch_sample_type & COUNTERS != 0 {
        bytes.take_u64(count.checked_mul(8)?)?;
    }
    Some(entries)
}

/// The registers, and the copied part of the stack.
#[allow(clippy::option_option)]
fn user_state<'a>(attr: &Attr, bytes: &mut Bytes<'a>) -> Option<Option<UserState<'a>>> {
    let mut state = None;
    if attr.has(sample::REGS_USER) {
        // A kernel thread has no user registers.
        let abi = bytes.u64()?;
        if abi != 0 {
            let registers = bytes.take(attr.regs_user.count_ones() as usize * 8)?;
            state = Some(UserState { abi, registers, mask: attr.regs_user, stack: &[] });
        }
    }
    if attr.has(sample::STACK_USER) {
        let len = bytes.u64()?;
        let stack = bytes.take_u64(len)?;
        let copied = if len == 0 { 0 } else { bytes.u64()?.min(len) };
        if let Some(state) = &mut state {
            state.stack = &stack[..copied as usize];
        }
    }
    Some(state)
}

/// The id of a record of any type, before the record is read. Its fields have the same place in all events
/// that may have written it.
pub(crate) fn sample_id(attr: &Attr, raw: RawRecord<'_>) -> SampleId {
    match raw.kind {
        kind::SAMPLE => sample_head(attr, raw.body),
        kind::FIRST_OF_PERF.. => None,
        _ if attr.has_sample_ids() => trailing_id(attr, raw.body),
        _ => None,
    }
    .unwrap_or_default()
}

fn sample_head(attr: &Attr, body: &[u8]) -> Option<SampleId> {
    let mut bytes = Bytes::new(body);
    let mut found = SampleId::default();
    let identifier = optional(attr, sample::IDENTIFIER, || bytes.u64())?;
    optional(attr, sample::IP, || bytes.u64())?;
    if attr.has(sample::TID) {
        (found.pid, found.tid) = (Some(bytes.u32()?), Some(bytes.u32()?));
    }
    found.time = optional(attr, sample::TIME, || bytes.u64())?;
    optional(attr, sample::ADDR, || bytes.u64())?;
    found.id = identifier.or(optional(attr, sample::ID, || bytes.u64())?);
    Some(found)
}

/// The fields that `sample_id_all` appends.
fn trailing_id(attr: &Attr, body: &[u8]) -> Option<SampleId> {
    const FIELDS: [u64; 6] =
        [sample::TID, sample::TIME, sample::ID, sample::STREAM_ID, sample::CPU, sample::IDENTIFIER];
    let len = FIELDS.iter().filter(|bit| attr.has(**bit)).count() * 8;
    let mut bytes = Bytes::new(body.get(body.len().checked_sub(len)?..)?);
    let mut found = SampleId::default();
    if attr.has(sample::TID) {
        (found.pid, found.tid) = (Some(bytes.u32()?), Some(bytes.u32()?));
    }
    found.time = optional(attr, sample::TIME, || bytes.u64())?;
    let id = optional(attr, sample::ID, || bytes.u64())?;
    optional(attr, sample::STREAM_ID, || bytes.u64())?;
    found.cpu = optional(attr, sample::CPU, || bytes.u64())?.map(|word| word as u32);
    found.id = optional(attr, sample::IDENTIFIER, || bytes.u64())?.or(id);
    Some(found)
}

#[cfg(test)]
mod tests {
    use wallprof_intel_pt::generator::record::{self, words};

    use super::*;

    fn attr(sample_type: u64, more: &[(usize, u64)]) -> Attr {
        Attr::from_bytes(&record::attr(128, &[&[(24, sample_type)], more].concat()))
    }

    #[test]
    fn fields_follow_the_kernels_order() {
        let attr = attr(
            sample::IDENTIFIER
                | sample::IP
                | sample::TID
                | sample::TIME
                | sample::CPU
                | sample::PERIOD
                | sample::CALLCHAIN,
            &[],
        );
        let body = words(&[77, 0x1234, 6 << 32 | 5, 1_000, 1, 250, 2, 0xa, 0xb]);
        let read = Sample::read(&attr, &body).expect("whole");
        let id = SampleId { pid: Some(5), tid: Some(6), time: Some(1_000), cpu: Some(1), id: Some(77) };
        assert_eq!((read.id, read.ip, read.period), (id, Some(0x1234), Some(250)));
        assert_eq!(read.chain().collect::<Vec<_>>(), [0xa, 0xb]);
        for len in 0..body.len() {
            assert_eq!(Sample::read(&attr, &body[..len]), Err(Malformed), "{len}");
        }
    }

    #[test]
    fn registers_are_found_by_their_number() {
        // bp, sp and ip of x86.
        let mask = 1 << 6 | 1 << 7 | 1 << 8;
        let attr = attr(sample::REGS_USER | sample::STACK_USER, &[(80, mask)]);
        let body = words(&[2, 0xb, 0x5, 0x1, 16, 1, 2, 8]);
        let user = Sample::read(&attr, &body).expect("whole").user.expect("a user state");
        assert_eq!([6, 7, 8].map(|number| user.register(number)), [Some(0xb), Some(0x5), Some(0x1)]);
        assert_eq!((user.register(0), user.register(64)), (None, None));
        assert_eq!(user.stack, words(&[1]));
    }

    #[test]
    fn a_kernel_thread_has_no_registers() {
        let attr = attr(sample::REGS_USER | sample::STACK_USER, &[(80, 7)]);
        assert_eq!(Sample::read(&attr, &words(&[0, 0])).expect("whole").user, None);
    }

    #[test]
    fn read_values_and_branches_are_passed() {
        let format = read::GROUP | read::ID | read::TOTAL_TIME_ENABLED;
        let attr = attr(
            sample::READ | sample::RAW | sample::BRANCH_STACK | sample::REGS_USER,
            &[(32, format), (80, 1), (72, BRANCH_HW_INDEX)],
        );
        // A group of two, four bytes of raw data, one branch, one register.
        let mut body = words(&[2, 9, 1, 2, 3, 4]);
        body.extend([4, 0, 0, 0, 1, 2, 3, 4]);
        body.extend(words(&[1, 0, 1, 2, 3, 2, 42]));
        let read = Sample::read(&attr, &body).expect("whole");
        assert_eq!((read.raw, read.user.and_then(|user| user.register(0))), (&[1, 2, 3, 4][..], Some(42)));
        assert_eq!(read.branches().collect::<Vec<_>>(), [(1, 2)]);
    }

    #[test]
    fn sizes_beyond_the_record_are_malformed() {
        for bit in [sample::CALLCHAIN, sample::RAW, sample::BRANCH_STACK, sample::STACK_USER] {
            let attr = attr(bit, &[]);
            assert_eq!(Sample::read(&attr, &words(&[u64::MAX, 0])), Err(Malformed), "{bit:#x}");
        }
    }

    #[test]
    fn other_records_end_with_their_id() {
        let attr = attr(sample::TID | sample::TIME | sample::CPU | sample::IDENTIFIER, &[(40, 1 << 18)]);
        let body = words(&[1, 2, 3, 8 << 32 | 7, 99, 1, 5]);
        let raw = RawRecord { kind: kind::COMM, misc: 0, body: &body };
        let expected = SampleId { pid: Some(7), tid: Some(8), time: Some(99), cpu: Some(1), id: Some(5) };
        assert_eq!(sample_id(&attr, raw), expected);
        assert_eq!(sample_id(&attr, RawRecord { kind: kind::FEATURE, ..raw }), SampleId::default());
        assert_eq!(sample_id(&attr, RawRecord { body: &body[..24], ..raw }), SampleId::default());
    }
}
