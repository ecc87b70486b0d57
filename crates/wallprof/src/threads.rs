// SPDX-License-Identifier: Apache-2.0
//! The threads that a reader selects: by name (`--thread`) and by container (`--container`).

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use wallprof_meaning::Glob;
use wallprof_model::{ThreadInfo, ThreadKey};
use wallprof_recording::Recording;

use crate::failure::Failure;

/// Limit on the names in an error.
const MAX_NAMES: usize = 8;

/// Both conditions hold for a selected thread; one that was not given always holds.
pub struct Threads {
    name: Option<(String, Glob)>,
    container: Option<(String, Glob)>,
}

impl Threads {
    /// # Errors
    /// A pattern that cannot be read, by its option.
    pub fn from_args(name: Option<&str>, container: Option<&str>) -> Result<Self, Failure> {
        let glob = |option: &str, text: Option<&str>| {
            let parsed = text.map(|text| Glob::new(text).map(|glob| (text.to_owned(), glob))).transpose();
            parsed.map_err(|error| Failure::usage(format!("{option}: {error}")))
        };
        Ok(Threads { name: glob("--thread", name)?, container: glob("--container", container)? })
    }

    /// The pattern of `--thread`, as the user wrote it.
    pub fn name_glob(&self) -> Option<&str> {
        self.name.as_ref().map(|(text, _)| text.as_str())
    }

    /// The pattern of `--container`, as the user wrote it.
    pub fn container_glob(&self) -> Option<&str> {
        self.container.as_ref().map(|(text, _)| text.as_str())
    }

    /// A thread outside of all containers is in none, whatever the pattern.
    pub fn matches(&self, thread: &ThreadInfo) -> bool {
        self.has_name(thread) && self.is_in_container(thread)
    }

    pub fn has_name(&self, thread: &ThreadInfo) -> bool {
        self.accepts_name(&thread.comm)
    }

    pub fn accepts_name(&self, name: &str) -> bool {
        self.name.as_ref().is_none_or(|(_, glob)| glob.matches(name))
    }

    pub fn is_in_container(&self, thread: &ThreadInfo) -> bool {
        let Some((_, glob)) = &self.container else { return true };
        let names = [thread.container(), thread.pod_name()];
        names.iter().flatten().any(|name| glob.matches(name))
    }

    /// Only these threads.
    ///
    /// # Errors
    /// `--container` was given, and no thread is in such a container.
    pub fn retain<T: AsRef<ThreadInfo>>(&self, threads: &mut Vec<T>, file: &Path) -> Result<(), Failure> {
        let infos = || threads.iter().map(AsRef::as_ref);
        if self.container.is_some() && !infos().any(|thread| self.is_in_container(thread)) {
            return Err(Failure::failed(no_container(self, infos(), file)));
        }
        threads.retain(|thread| self.matches(thread.as_ref()));
        Ok(())
    }

    /// The selected threads. `None`: all of them.
    pub fn keys(&self, recording: &Recording) -> Result<Option<HashSet<ThreadKey>>, Failure> {
        if self.name.is_none() && self.container.is_none() {
            return Ok(None);
        }
        let threads = recording.thread_infos()?;
        let selected = threads.iter().filter(|thread| self.matches(thread));
        Ok(Some(selected.map(|thread| thread.key).collect()))
    }
}

/// What to do where no thread is in a container that `--container` names.
pub fn no_container<'t>(
    selected: &Threads,
    threads: impl Iterator<Item = &'t ThreadInfo>,
    file: &Path,
) -> String {
    let (file, glob) = (file.display(), selected.container_glob().unwrap_or("*"));
    let name = |thread: &ThreadInfo| thread.pod_name().or_else(|| thread.container());
    let containers: BTreeSet<String> = threads.filter_map(name).collect();
    if containers.is_empty() {
        return format!("no thread in {file} is in a container: omit --container");
    }
    let names = listed(containers.iter().map(String::as_str));
    format!("no thread in {file} is in a container `{glob}`: there are {names}")
}

/// The first of the names, without duplicates.
pub fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: BTreeSet<&str> = names.collect();
    let mut shown: Vec<&str> = names.iter().copied().take(MAX_NAMES).collect();
    let more = format!("{} more", names.len() - shown.len());
    if names.len() > shown.len() {
        shown.push(&more);
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(comm: &str, cgroup: Option<&str>) -> ThreadInfo {
        ThreadInfo {
            cgroup: cgroup.map(str::to_owned),
            ..ThreadInfo::new(ThreadKey(1), (1, comm), (1, comm))
        }
    }

    #[test]
    fn both_conditions_hold_for_a_selected_thread() {
        let inside = format!("/docker/3f4a{}", "0".repeat(60));
        let selects = |name, container, comm, cgroup| {
            Threads::from_args(name, container).unwrap().matches(&thread(comm, cgroup))
        };
        let inside = Some(inside.as_str());
        assert!(selects(None, None, "nginx", None));
        assert!(selects(None, Some("3f4a*"), "nginx", inside));
        assert!(!selects(None, Some("3f4b*"), "nginx", inside));
        assert!(!selects(None, Some("*"), "nginx", None), "outside of all containers");
        assert!(!selects(None, Some("*"), "nginx", Some("/system.slice/nginx.service")));
        assert!(selects(Some("ng*"), Some("*"), "nginx", inside));
        assert!(!selects(Some("redis"), Some("*"), "nginx", inside));
    }

    #[test]
    fn option_of_a_wrong_pattern_is_named() {
        let refused = |name, container| Threads::from_args(name, container).err().unwrap().message;
        assert!(refused(Some("[a"), None).starts_with("--thread: "));
        assert!(refused(None, Some("[a")).starts_with("--container: "));
    }
}
