//! CPUs that are kept for some threads, as `--guard-cpus` and `--allow` say it.

use wallprof_analysis::Glob;

use wallprof_probe::facts::files::Files;

use crate::failure::Failure;

/// More CPUs than any kernel is built for (`NR_CPUS` is at most 8192 on x86).
const MAX_CPU: u32 = 65_535;

/// The CPUs that the scheduler leaves alone (`isolcpus=`), and those that there are.
const ISOLATED: &str = "/sys/devices/system/cpu/isolated";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Which CPUs, and for whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guarded {
    /// Sorted, each once; none: nothing is guarded.
    pub cpus: Vec<u32>,
    pub allowed: Vec<Glob>,
}

impl Guarded {
    pub fn from_options(cpus: Option<&str>, allow: &[String]) -> Result<Self, Failure> {
        let cpus = cpus.map(|list| cpus_from_list("--guard-cpus", list)).transpose()?.unwrap_or_default();
        let glob =
            |text: &String| Glob::new(text).map_err(|error| Failure::usage(format!("--allow: {error}")));
        Ok(Guarded { cpus, allowed: allow.iter().map(glob).collect::<Result<_, _>>()? })
    }

    /// Where no CPU was named, those that the kernel isolates; mostly none.
    pub fn or_isolated(mut self, files: &dyn Files) -> Self {
        if self.cpus.is_empty() {
            let list = |path: &str| {
                let text = files.read(path.as_ref()).unwrap_or_default();
                cpus_from_list(path, text.trim()).unwrap_or_default()
            };
            let online = list(ONLINE);
            self.cpus = list(ISOLATED);
            self.cpus.retain(|cpu| online.contains(cpu));
        }
        self
    }

    pub fn allows(&self, name: &str) -> bool {
        self.allowed.iter().any(|glob| glob.matches(name))
    }
}

/// `0-3,5`, as `option` takes it: sorted, each once.
pub fn cpus_from_list(option: &str, list: &str) -> Result<Vec<u32>, Failure> {
    let cpu = |text: &str| text.parse::<u32>().ok().filter(|cpu| *cpu <= MAX_CPU && !text.starts_with('+'));
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (cpu(from)?, cpu(to)?);
        (from <= to).then_some(from..=to)
    };
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let wrong = || Failure::usage(format!("{option} takes CPUs such as 0-3,5: `{part}` is none"));
        cpus.extend(range(part.trim()).ok_or_else(wrong)?);
        if cpus.len() > MAX_CPU as usize {
            return Err(wrong());
        }
    }
    cpus.sort();
    cpus.dedup();
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn cpu_lists() {
        let cpus = |list: &str| cpus_from_list("-C", list);
        assert_eq!(cpus("0-3,5").unwrap(), [0, 1, 2, 3, 5]);
        assert_eq!(cpus("1,0,1").unwrap(), [0, 1]);
        for list in ["", "-", "3-1", "a", "0-99999999", "1-", "0,", "+1"] {
            assert!(cpus(list).is_err(), "{list}");
        }
        assert!(cpus_from_list("-C", &vec!["0-65535"; 1000].join(",")).is_err());
        assert!(cpus("x").unwrap_err().message.starts_with("-C takes CPUs"));
    }

    #[test]
    fn names_are_allowed_by_globs() {
        let guarded = Guarded::from_options(Some("2,3"), &["engine-*".into(), "io".into()]).unwrap();
        assert_eq!(guarded.cpus, [2, 3]);
        assert!(guarded.allows("engine-1") && guarded.allows("io") && !guarded.allows("iou"));
        assert_eq!(Guarded::from_options(None, &[]).unwrap(), Guarded::default());
        assert!(
            Guarded::from_options(Some("2"), &["[".into()]).unwrap_err().message.starts_with("--allow: ")
        );
    }

    #[test]
    fn isolated_cpus_that_are_there_are_guarded() {
        struct Machine;
        impl Files for Machine {
            fn read(&self, path: &Path) -> io::Result<String> {
                Ok(if path == Path::new(ISOLATED) { "2-4\n" } else { "0-3\n" }.into())
            }
            fn list(&self, _: &Path) -> io::Result<Vec<String>> {
                Err(io::ErrorKind::NotFound.into())
            }
            fn link(&self, _: &Path) -> io::Result<PathBuf> {
                Err(io::ErrorKind::NotFound.into())
            }
            fn exists(&self, _: &Path) -> bool {
                false
            }
        }
        assert_eq!(Guarded::default().or_isolated(&Machine).cpus, [2, 3]);
        let named = Guarded { cpus: vec![1], ..Guarded::default() };
        assert_eq!(named.or_isolated(&Machine).cpus, [1]);
    }
}
