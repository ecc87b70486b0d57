// SPDX-License-Identifier: Apache-2.0
//! Options that take CPUs: `0-3,5`.

use wallprof_probe::cpus;

use crate::failure::Failure;

/// The CPUs of `list`, the value of `option`: sorted, each once, at least one.
pub fn cpus_from_option(option: &str, list: &str) -> Result<Vec<u32>, Failure> {
    let wrong = |why: &str| Failure::usage(format!("{option} takes CPUs such as 0-3,5: {why}"));
    match cpus::cpus_from_list(list) {
        Ok(cpus) if cpus.is_empty() => Err(wrong("none was given")),
        Ok(cpus) => Ok(cpus),
        Err(why) => Err(wrong(&why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        let cpus = |list: &str| cpus_from_option("-C", list);
        assert_eq!(cpus("0-3,5").unwrap(), [0, 1, 2, 3, 5]);
        assert_eq!(cpus("1,0,1").unwrap(), [0, 1]);
        assert_eq!(cpus("65000").unwrap(), [65_000], "whether it exists is checked elsewhere");
        for list in ["", "-", "3-1", "a", "0-99999999", "1-", "0,", "+1", "0,,1"] {
            assert!(cpus(list).is_err(), "{list}");
        }
        assert_eq!(
            cpus("x").unwrap_err().message,
            "-C takes CPUs such as 0-3,5: `x` is not a CPU or a range of CPUs"
        );
    }
}
