// SPDX-License-Identifier: Apache-2.0
//! Sets of CPUs as the kernel and perf write them: `0-3,8`.

use std::collections::BTreeSet;

/// More CPUs than any kernel is built for (`NR_CPUS` is at most 8192 on x86).
const MAX_CPU: u32 = 65_535;

/// Parses a CPU list: sorted, each CPU once; an empty text is an empty list. Errors name the part that is wrong.
pub fn cpus_from_list(list: &str) -> Result<Vec<u32>, String> {
    let list = list.trim();
    if list.is_empty() {
        return Ok(Vec::new());
    }
    // A set, so that a list that repeats a range a thousand times takes no more memory than the range.
    let mut cpus = BTreeSet::new();
    for part in list.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (cpu(first), cpu(last)) {
            (Some(first), Some(last)) if first <= last => cpus.extend(first..=last),
            _ => return Err(format!("`{part}` is not a CPU or a range of CPUs")),
        }
    }
    Ok(cpus.into_iter().collect())
}

fn cpu(text: &str) -> Option<u32> {
    let digits = text.trim();
    let cpu = digits.parse().ok().filter(|cpu| *cpu <= MAX_CPU);
    cpu.filter(|_| !digits.starts_with('+'))
}

fn read_list(path: &str) -> Vec<u32> {
    let list = std::fs::read_to_string(path).ok().and_then(|list| cpus_from_list(&list).ok());
    let mut cpus = list.unwrap_or_default();
    cpus.retain(|cpu| *cpu < crate::bpf::constants::MAX_CPUS as u32);
    cpus
}

/// CPUs that are online, below `MAX_CPUS`. Where that cannot be read, CPU 0.
pub fn online() -> Vec<u32> {
    read_online().unwrap_or_else(|| vec![0])
}

/// CPUs that are online; `None` where that cannot be read, for example without a free file descriptor.
pub(crate) fn read_online() -> Option<Vec<u32>> {
    Some(read_list("/sys/devices/system/cpu/online")).filter(|cpus| !cpus.is_empty())
}

/// CPUs that can ever be online: the size of per-CPU data.
pub fn possible() -> Vec<u32> {
    let cpus = read_list("/sys/devices/system/cpu/possible");
    if cpus.is_empty() { online() } else { cpus }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(cpus_from_list("0-2,5\n"), Ok(vec![0, 1, 2, 5]));
        assert_eq!(cpus_from_list("3,3,1"), Ok(vec![1, 3]));
        assert_eq!(cpus_from_list(""), Ok(vec![]));
        assert!(cpus_from_list("2-1").is_err());
        assert!(cpus_from_list("x").is_err());
        assert!(cpus_from_list("0-99999999").is_err());
        for wrong in ["0,", ",", "+1", "1--2"] {
            assert!(cpus_from_list(wrong).is_err(), "{wrong}");
        }
        assert_eq!(cpus_from_list(&vec!["0-1023"; 1000].join(",")).map(|cpus| cpus.len()), Ok(1024));
    }
}
