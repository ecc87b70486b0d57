// SPDX-License-Identifier: Apache-2.0
//! CPUs that are reserved for some threads, from `--guard-cpus` and `--allow`.

use wallprof_meaning::Glob;
use wallprof_probe::cpus::cpus_from_list;
use wallprof_probe::facts::files::Files;

use crate::cpu_list::cpus_from_option;
use crate::failure::Failure;

/// The CPUs without load balancing (`isolcpus=`), and those online.
const ISOLATED: &str = "/sys/devices/system/cpu/isolated";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// The guarded CPUs and their allowed threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guarded {
    /// Sorted, each once; empty: no CPU is guarded.
    pub cpus: Vec<u32>,
    pub allowed: Vec<Glob>,
}

impl Guarded {
    pub fn from_options(cpus: Option<&str>, allow: &[String]) -> Result<Self, Failure> {
        let cpus = cpus.map(|list| cpus_from_option("--guard-cpus", list)).transpose()?.unwrap_or_default();
        let glob =
            |text: &String| Glob::new(text).map_err(|error| Failure::usage(format!("--allow: {error}")));
        Ok(Guarded { cpus, allowed: allow.iter().map(glob).collect::<Result<_, _>>()? })
    }

    /// Uses the isolated CPUs if no CPU was given; usually there are none.
    pub fn or_isolated(mut self, files: &dyn Files) -> Self {
        if self.cpus.is_empty() {
            let list = |path: &str| {
                let list = files.read(path.as_ref()).unwrap_or_default();
                cpus_from_list(&list).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn allowed_names_match_globs() {
        let guarded = Guarded::from_options(Some("2,3"), &["engine-*".into(), "io".into()]).unwrap();
        assert_eq!(guarded.cpus, [2, 3]);
        assert!(guarded.allows("engine-1") && guarded.allows("io") && !guarded.allows("iou"));
        assert_eq!(Guarded::from_options(None, &[]).unwrap(), Guarded::default());
        assert!(
            Guarded::from_options(Some("2"), &["[".into()]).unwrap_err().message.starts_with("--allow: ")
        );
    }

    #[test]
    fn isolated_cpus_that_are_online_are_guarded() {
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
