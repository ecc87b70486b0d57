// SPDX-License-Identifier: Apache-2.0
//! Facts about the machine and the recording, from the feature sections of a perf.data file.

use std::collections::HashMap;

use super::bytes::Bytes;
use super::record::{Record, build_id};

/// Numbers of features (`HEADER_*` in `tools/perf/util/header.h`).
pub(crate) mod feature {
    pub const TRACING_DATA: u32 = 1;
    pub const AUXTRACE: u32 = 18;
    pub const BUILD_ID: u32 = 2;
    pub const HOSTNAME: u32 = 3;
    pub const OSRELEASE: u32 = 4;
    pub const ARCH: u32 = 6;
    pub const CPUS: u32 = 7;
    pub const COMMAND_LINE: u32 = 11;
    pub const EVENT_NAMES: u32 = 12;
    pub const CLOCK_DATA: u32 = 29;
    /// Features that are read into memory.
    pub const IS_READ: [u32; 8] =
        [BUILD_ID, HOSTNAME, OSRELEASE, ARCH, CPUS, COMMAND_LINE, EVENT_NAMES, CLOCK_DATA];
}

/// More files than programs map.
const MAX_BUILD_IDS: usize = 1 << 16;
const MAX_NAMES: u32 = 1 << 16;

/// The recording's clock and the time of day, read at the same instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockData {
    pub clockid: u32,
    pub epoch_ns: u64,
    pub clock_ns: u64,
}

/// Texts are empty where the file lacks them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub hostname: String,
    pub kernel: String,
    pub arch: String,
    pub cpus: u32,
    /// The words of perf's command line.
    pub command_line: Vec<String>,
    pub clock: Option<ClockData>,
    /// Names of events by one of their numbers.
    pub event_names: HashMap<u64, String>,
    /// By the file's path.
    build_ids: HashMap<Vec<u8>, Vec<u8>>,
}

impl Facts {
    /// Takes the contents of a feature. Parts that cannot be read are ignored.
    pub(crate) fn take(&mut self, number: u32, bytes: &[u8]) {
        let mut bytes = Bytes::new(bytes);
        match number {
            feature::HOSTNAME => self.hostname = bytes.text().unwrap_or_default(),
            feature::OSRELEASE => self.kernel = bytes.text().unwrap_or_default(),
            feature::ARCH => self.arch = bytes.text().unwrap_or_default(),
            feature::CPUS => self.cpus = cpus_online(bytes).unwrap_or(0),
            feature::COMMAND_LINE => self.command_line = texts(bytes).unwrap_or_default(),
            feature::EVENT_NAMES => drop(self.take_event_names(bytes)),
            feature::CLOCK_DATA => self.clock = clock_data(bytes),
            feature::BUILD_ID => drop(self.take_build_ids(bytes)),
            _ => {}
        }
    }

    pub(crate) fn add_build_id(&mut self, path: &[u8], build_id: &[u8]) {
        let unset = build_id.iter().all(|byte| *byte == 0);
        if self.build_ids.len() < MAX_BUILD_IDS && !unset {
            self.build_ids.insert(path.to_vec(), build_id.to_vec());
        }
    }

    pub(crate) fn build_id(&self, path: &[u8]) -> Option<&[u8]> {
        self.build_ids.get(path).map(Vec::as_slice)
    }

    fn take_build_ids(&mut self, mut bytes: Bytes<'_>) -> Option<()> {
        while !bytes.is_empty() {
            let _kind = bytes.u32()?;
            let (misc, size) = (bytes.u16()?, bytes.u16()?);
            let body = Bytes::new(bytes.take(usize::from(size).checked_sub(8)?)?);
            if let Some(Record::BuildId { path, build_id }) = build_id(body, misc) {
                self.add_build_id(path, build_id);
            }
        }
        Some(())
    }

    fn take_event_names(&mut self, mut bytes: Bytes<'_>) -> Option<()> {
        let (count, attr_size) = (bytes.u32()?, bytes.u32()?);
        for _ in 0..count.min(MAX_NAMES) {
            bytes.skip(attr_size as usize)?;
            let ids = bytes.u32()?;
            let name = bytes.text()?;
            let ids = bytes.u64s(ids.into())?;
            for id in ids.take(MAX_NAMES as usize) {
                self.event_names.insert(id, name.clone());
            }
        }
        Some(())
    }
}

/// The feature has the number of configured CPUs, then that of the online ones.
fn cpus_online(mut bytes: Bytes<'_>) -> Option<u32> {
    let _available = bytes.u32()?;
    bytes.u32()
}

fn texts(mut bytes: Bytes<'_>) -> Option<Vec<String>> {
    let count = bytes.u32()?;
    (0..count.min(MAX_NAMES)).map(|_| bytes.text()).collect()
}

fn clock_data(mut bytes: Bytes<'_>) -> Option<ClockData> {
    let _version = bytes.u32()?;
    Some(ClockData { clockid: bytes.u32()?, epoch_ns: bytes.u64()?, clock_ns: bytes.u64()? })
}

#[cfg(test)]
mod tests {
    use wallprof_intel_pt::generator::record::{halves, header_text, record, words};

    use super::*;

    fn facts(number: u32, bytes: &[u8]) -> Facts {
        let mut facts = Facts::default();
        facts.take(number, bytes);
        facts
    }

    #[test]
    fn texts_and_numbers() {
        assert_eq!(facts(feature::HOSTNAME, &header_text("db-1")).hostname, "db-1");
        assert_eq!(facts(feature::CPUS, &[8, 0, 0, 0, 4, 0, 0, 0]).cpus, 4);
        let words = [&halves(&[2])[..], &header_text("perf"), &header_text("record")].concat();
        assert_eq!(facts(feature::COMMAND_LINE, &words).command_line, ["perf", "record"]);
        assert_eq!(facts(feature::COMMAND_LINE, &words[..80]).command_line, [""; 0]);
    }

    #[test]
    fn clock_data_is_a_pair_of_times() {
        let bytes = words(&[1 << 32 | 1, 1_000, 5]);
        let clock = ClockData { clockid: 1, epoch_ns: 1_000, clock_ns: 5 };
        assert_eq!(facts(feature::CLOCK_DATA, &bytes).clock, Some(clock));
        assert_eq!(facts(feature::CLOCK_DATA, &bytes[..23]).clock, None);
    }

    #[test]
    fn build_ids_by_path() {
        let entry = |path: &[u8], misc: u16, id: &[u8]| {
            let mut field = [0; 24];
            field[..id.len()].copy_from_slice(id);
            field[20] = id.len() as u8;
            let body = [&[0xff; 4][..], &field, path].concat();
            record(67, misc, &body)
        };
        let bytes = [entry(b"/a\0\0", 1 << 15, &[1; 8]), entry(b"/b\0", 0, &[2; 20]), entry(b"/c\0", 0, &[])]
            .concat();
        let facts = facts(feature::BUILD_ID, &bytes);
        assert_eq!((facts.build_id(b"/a"), facts.build_id(b"/b")), (Some(&[1; 8][..]), Some(&[2; 20][..])));
        assert_eq!(facts.build_id(b"/c"), None, "an id of zeros is none");
    }

    #[test]
    fn events_are_named_by_each_of_their_numbers() {
        let mut bytes = halves(&[1, 8]);
        bytes.extend([0; 8]);
        bytes.extend(halves(&[2]));
        bytes.extend(header_text("sched:sched_switch"));
        bytes.extend(words(&[4, 5]));
        let facts = facts(feature::EVENT_NAMES, &bytes);
        assert_eq!(facts.event_names.len(), 2);
        assert_eq!(facts.event_names[&5], "sched:sched_switch");
    }

    #[test]
    fn damaged_features_are_ignored() {
        for number in 0..32 {
            for bytes in [&[0xff; 64][..], &[0xff; 3], &[]] {
                assert!(facts(number, bytes).build_ids.len() <= 1, "{number}");
            }
        }
    }
}
