// SPDX-License-Identifier: Apache-2.0
//! What a process's control group may read from a disk and write to it, and what it did.
//!
//! Of the group that the process is in when it is met, and those above, the one with the lowest limit counts,
//! for each disk and kind of limit.
//! Formats: Documentation/admin-guide/cgroup-v2.rst (`io.max`, `io.stat`),
//! Documentation/admin-guide/cgroup-v1/blkio-controller.rst.

use std::collections::BTreeMap;

use wallprof_model::{CounterKind, CounterUnit};
use wallprof_probe::facts::cgroups::CgroupVersion;
use wallprof_probe::facts::files::Files;

use super::Reading;
use super::groups::{Group, groups_of};
use super::text::TextFile;

/// Limits of more disks are not read.
const MOST_LIMITS: usize = 16;

/// One kind of limit, and where each version of the controller has it.
struct Kind {
    /// The counter's name behind `cgroup.disk.`; the limit, per second, has `.limit` behind it.
    name: &'static str,
    unit: CounterUnit,
    v2: Words,
    v1: Words,
}

/// Where the limit and the sum of one kind are: files, and the words before their numbers in the disk's line.
struct Words {
    limits: &'static str,
    limit: &'static str,
    sums: &'static str,
    sum: &'static str,
}

const fn v2(limit: &'static str, sum: &'static str) -> Words {
    Words { limits: "io.max", limit, sums: "io.stat", sum }
}

const fn v1(limits: &'static str, sums: &'static str, sum: &'static str) -> Words {
    Words { limits, limit: "", sums, sum }
}

const BYTES: &str = "blkio.throttle.io_service_bytes_recursive";
const CALLS: &str = "blkio.throttle.io_serviced_recursive";

const KINDS: [Kind; 4] = [
    Kind {
        name: "read",
        unit: CounterUnit::Bytes,
        v2: v2("rbps=", "rbytes="),
        v1: v1("blkio.throttle.read_bps_device", BYTES, "Read "),
    },
    Kind {
        name: "written",
        unit: CounterUnit::Bytes,
        v2: v2("wbps=", "wbytes="),
        v1: v1("blkio.throttle.write_bps_device", BYTES, "Write "),
    },
    Kind {
        name: "reads",
        unit: CounterUnit::Count,
        v2: v2("riops=", "rios="),
        v1: v1("blkio.throttle.read_iops_device", CALLS, "Read "),
    },
    Kind {
        name: "writes",
        unit: CounterUnit::Count,
        v2: v2("wiops=", "wios="),
        v1: v1("blkio.throttle.write_iops_device", CALLS, "Write "),
    },
];

impl Kind {
    fn words(&self, version: &CgroupVersion) -> &Words {
        match version {
            CgroupVersion::V2 => &self.v2,
            CgroupVersion::V1(_) => &self.v1,
        }
    }
}

/// The limits of a process. Their open files stay its own.
#[derive(Default)]
pub struct DiskLimits(Vec<Limit>);

struct Limit {
    disk: String,
    unit: CounterUnit,
    words: &'static Words,
    limits: TextFile,
    sums: TextFile,
    /// `cgroup.disk.written 259:0 /shop/api`
    sum_name: String,
    limit_name: String,
}

impl DiskLimits {
    /// None where no group has a limit.
    pub fn of_process(pid: u32, files: &impl Files) -> Self {
        let limits = lowest(pid, files).into_iter().take(MOST_LIMITS);
        DiskLimits(
            limits
                .filter_map(|((kind, disk), (_, group))| {
                    let kind = &KINDS[kind];
                    let (words, path) = (kind.words(&group.version), group.path.to_string_lossy());
                    Some(Limit {
                        limits: TextFile::open(group.folder.join(words.limits))?,
                        sums: TextFile::open(group.folder.join(words.sums))?,
                        words,
                        unit: kind.unit,
                        sum_name: format!("cgroup.disk.{} {disk} {path}", kind.name),
                        limit_name: format!("cgroup.disk.{}.limit {disk} {path}", kind.name),
                        disk,
                    })
                })
                .collect(),
        )
    }

    pub fn pass(&mut self, take: &mut dyn FnMut(Reading<'_>)) {
        for Limit { disk, unit, words, limits, sums, sum_name, limit_name } in &mut self.0 {
            let sum = sums.read().ok().and_then(|text| of_disk(text, disk, words.sum));
            let limit = limits.read().ok().and_then(|text| of_disk(text, disk, words.limit));
            if let Some(value) = limit {
                take(Reading { name: limit_name, kind: CounterKind::Level, unit: *unit, value });
            }
            // A group that has not used the disk yet has no line of it.
            let value = sum.unwrap_or(0);
            take(Reading { name: sum_name, kind: CounterKind::Sum, unit: *unit, value });
        }
    }
}

/// The lowest limit of each kind and disk, with its group; of equal ones the innermost.
fn lowest(pid: u32, files: &impl Files) -> BTreeMap<(usize, String), (u64, Group)> {
    let mut found: BTreeMap<(usize, String), (u64, Group)> = BTreeMap::new();
    for group in groups_of(pid, "blkio", files) {
        for (index, kind) in KINDS.iter().enumerate() {
            let words = kind.words(&group.version);
            let text = files.read(&group.folder.join(words.limits)).unwrap_or_default();
            for disk in text.lines().filter_map(|line| line.split_whitespace().next()) {
                let Some(limit) = of_disk(&text, disk, words.limit) else { continue };
                let key = (index, disk.to_owned());
                if found.get(&key).is_none_or(|(known, _)| limit < *known) {
                    let Group { folder, path, version } = &group;
                    let group =
                        Group { folder: folder.clone(), path: path.clone(), version: version.clone() };
                    found.insert(key, (limit, group));
                }
            }
        }
    }
    found
}

/// The number behind `word` in a line of the disk. `None`: it has none, or it is `max`.
fn of_disk(text: &str, disk: &str, word: &str) -> Option<u64> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(disk)?.strip_prefix(' '));
    let mut numbers = lines.filter_map(|line| {
        let from = line.find(word)? + word.len();
        line[from..].split_whitespace().next()?.parse().ok()
    });
    numbers.next()
}

#[cfg(test)]
mod tests {
    use super::super::groups::fake::Machine;
    use super::*;

    fn found(files: &[(&str, &'static str)]) -> Vec<String> {
        let found = lowest(7, &Machine::new(files));
        let line = |((kind, disk), (limit, group)): ((usize, String), (u64, Group))| {
            format!("{} {disk} {limit} {}", KINDS[kind].name, group.path.display())
        };
        found.into_iter().map(line).collect()
    }

    #[test]
    fn lowest_limit_of_each_disk_and_kind_counts() {
        let files = [
            ("/proc/self/mounts", "cgroup2 /cg cgroup2 rw 0 0\n"),
            ("/proc/7/cgroup", "0::/shop/api\n"),
            ("/cg/shop/api/io.max", "8:16 rbps=max wbps=2000 riops=max wiops=max\n8:160 rbps=70 wbps=max\n"),
            ("/cg/shop/io.max", "8:16 rbps=max wbps=1000 riops=max wiops=9\n"),
        ];
        assert_eq!(
            found(&files),
            ["read 8:160 70 /shop/api", "written 8:16 1000 /shop", "writes 8:16 9 /shop"]
        );
        assert!(found(&files[..2]).is_empty());
    }

    #[test]
    fn limits_of_the_first_version_have_a_file_each() {
        let files = [
            ("/proc/self/mounts", "cgroup /cg/blkio cgroup rw,blkio 0 0\n"),
            ("/proc/7/cgroup", "5:cpu:/fast\n4:blkio:/shop\n0::/\n"),
            ("/cg/blkio/shop/blkio.throttle.write_bps_device", "7:0 1048576\n"),
            ("/cg/blkio/shop/blkio.throttle.read_iops_device", ""),
        ];
        assert_eq!(found(&files), ["written 7:0 1048576 /shop"]);
    }

    #[test]
    fn sums_are_those_of_the_disk() {
        let v1 = "7:1 Read 5\n7:0 Read 4096\n7:0 Write 8192\n7:0 Total 12288\nTotal 12293\n";
        assert_eq!(of_disk(v1, "7:0", "Write "), Some(8_192));
        let v2 = "8:16 rbytes=1 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0\n";
        assert_eq!(of_disk(v2, "8:16", "wbytes="), Some(314_773_504));
        assert_eq!(of_disk(v2, "8:1", "wbytes="), None);
        assert_eq!(of_disk("8:16 wbps=max", "8:16", "wbps="), None);
    }
}
