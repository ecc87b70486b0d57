// SPDX-License-Identifier: Apache-2.0
//! Records that the kernel side emits one by one, through a ring buffer a CPU.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::libbpf_sys::{bpf_map_create_opts, size_t};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, MapType, RingBuffer, RingBufferBuilder};

use crate::bpf::{
    Plain, WallprofSkel, constants as c, delay_record, holder_sample_record, late_record, marked_record,
    probed_record, record_from_bytes, second_record, span_record, stall_record, thread_record,
};
use crate::cpus;
use crate::error::ProbeError;

/// The most bytes of all rings together. A stall is half a kilobyte.
const RING_BYTES: u32 = 8 << 20;
const SMALLEST_RING: u32 = 256 << 10;
const BIGGEST_RING: u32 = 4 << 20;

/// Records that arrived since the last read, in the order of each CPU.
#[derive(Default)]
pub struct Inbox {
    pub ended: Vec<thread_record>,
    pub stalls: Vec<stall_record>,
    pub delays: Vec<delay_record>,
    pub seconds: Vec<second_record>,
    pub holder_samples: Vec<holder_sample_record>,
    pub spans: Vec<span_record>,
    pub late: Vec<late_record>,
    pub marked: Vec<marked_record>,
    pub probed: Vec<probed_record>,
    /// Records of an unknown type, or shorter than their type.
    pub unknown: u64,
}

impl Inbox {
    /// Moves all records of another one here. A list that is new has to be named.
    pub fn append(&mut self, other: &mut Inbox) {
        let Inbox { ended, stalls, delays, seconds, holder_samples, spans, late, marked, probed, unknown } =
            other;
        self.ended.append(ended);
        self.stalls.append(stalls);
        self.delays.append(delays);
        self.seconds.append(seconds);
        self.holder_samples.append(holder_samples);
        self.spans.append(spans);
        self.late.append(late);
        self.marked.append(marked);
        self.probed.append(probed);
        self.unknown += std::mem::take(unknown);
    }
}

/// The rings of all CPUs.
pub(crate) struct Rings {
    rings: RingBuffer<'static>,
    inbox: Rc<RefCell<Inbox>>,
}

impl Rings {
    /// A ring for each possible CPU, and the callbacks that move records into the inbox.
    pub fn create(skeleton: &WallprofSkel<'_>) -> Result<Self, ProbeError> {
        let no_memory = |_| ProbeError::NoMemory { what: "the stall rings" };
        let inbox = Rc::new(RefCell::new(Inbox::default()));
        let possible = cpus::possible();
        let size = ring_size(possible.len() as u32);
        let mut maps = Vec::new();
        for cpu in &possible {
            let map = new_ring(size).map_err(no_memory)?;
            let fd = map.as_fd().as_raw_fd().to_ne_bytes();
            skeleton.maps.rings.update(&cpu.to_ne_bytes(), &fd, MapFlags::ANY).map_err(no_memory)?;
            maps.push(map);
        }
        let mut builder = RingBufferBuilder::new();
        for map in &maps {
            let inbox = Rc::clone(&inbox);
            builder.add(map, move |bytes| take_record(&mut inbox.borrow_mut(), bytes)).map_err(no_memory)?;
        }
        Ok(Rings { rings: builder.build().map_err(no_memory)?, inbox })
    }

    /// Waits until a ring fills up or `timeout` is over. `take` gets everything that the rings contained.
    pub fn poll(&mut self, timeout: Duration, take: impl FnOnce(&mut Inbox)) -> Result<(), ProbeError> {
        let interrupted = |error: &libbpf_rs::Error| error.kind() == ErrorKind::Interrupted;
        match self.rings.poll(timeout).and_then(|()| self.rings.consume()) {
            Err(error) if !interrupted(&error) => {
                Err(ProbeError::reading("the stall rings", io::Error::other(error)))
            }
            _ => {
                take(&mut self.inbox.borrow_mut());
                Ok(())
            }
        }
    }
}

fn ring_size(cpus: u32) -> u32 {
    1 << (RING_BYTES / cpus).clamp(SMALLEST_RING, BIGGEST_RING).ilog2()
}

fn new_ring(size: u32) -> libbpf_rs::Result<MapHandle> {
    let options =
        bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as size_t, ..Default::default() };
    MapHandle::create(MapType::RingBuf, Some("wallprof_ring"), 0, 0, size, &options)
}

fn take_record(inbox: &mut Inbox, bytes: &[u8]) -> i32 {
    let is_known = match record_from_bytes::<u32>(bytes).map(u64::from) {
        Some(c::RECORD_THREAD) => push(&mut inbox.ended, bytes),
        Some(c::RECORD_STALL) => push(&mut inbox.stalls, bytes),
        Some(c::RECORD_SECOND) => push(&mut inbox.seconds, bytes),
        Some(c::RECORD_DELAY) => push(&mut inbox.delays, bytes),
        Some(c::RECORD_HOLDER_SAMPLE) => push(&mut inbox.holder_samples, bytes),
        Some(c::RECORD_SPAN) => push(&mut inbox.spans, bytes),
        Some(c::RECORD_LATE) => push(&mut inbox.late, bytes),
        Some(c::RECORD_MARKED) => push(&mut inbox.marked, bytes),
        Some(c::RECORD_PROBED) => push(&mut inbox.probed, bytes),
        _ => false,
    };
    inbox.unknown += u64::from(!is_known);
    0
}

/// False for a record that is too short.
fn push<T: Plain>(records: &mut Vec<T>, bytes: &[u8]) -> bool {
    let record = record_from_bytes::<T>(bytes);
    let is_whole = record.is_some();
    records.extend(record);
    is_whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::bytes_of;

    #[test]
    fn record_goes_to_the_list_of_its_type_and_unknown_ones_are_counted() {
        let mut inbox = Inbox::default();
        let stall = stall_record { r#type: c::RECORD_STALL as u32, key: 7, ..Default::default() };
        take_record(&mut inbox, bytes_of(&stall));
        take_record(&mut inbox, &[1, 2]);
        take_record(&mut inbox, &bytes_of(&stall)[..20]);
        assert_eq!(inbox.stalls.len(), 1);
        assert_eq!(inbox.stalls[0].key, 7);
        let second = second_record { r#type: c::RECORD_SECOND as u32, key: 8, ..Default::default() };
        take_record(&mut inbox, bytes_of(&second));
        assert_eq!(inbox.seconds.iter().map(|second| second.key).collect::<Vec<_>>(), [8]);
        assert!(inbox.ended.is_empty());
        assert_eq!(inbox.unknown, 2, "two records that are too short");
        let other = stall_record { r#type: u32::MAX, ..stall };
        take_record(&mut inbox, bytes_of(&other));
        assert_eq!((inbox.unknown, inbox.stalls.len()), (3, 1));
    }

    #[test]
    fn rings_share_their_bytes_and_are_powers_of_two() {
        assert_eq!(ring_size(1), BIGGEST_RING);
        assert_eq!(ring_size(6), 1 << 20);
        assert_eq!(ring_size(4_096), SMALLEST_RING);
    }
}
