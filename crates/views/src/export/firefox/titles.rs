// SPDX-License-Identifier: Apache-2.0
//! What recorded processes called themselves, where stalls of others say so: the words that all of a process's titles
//! have at their start. The rest of a title changes with what the process does.

use std::collections::HashMap;
use std::sync::Arc;

use fxprof_processed_profile::{ProcessHandle, Profile};
use wallprof_model::profile::StallRecord;
use wallprof_model::{ThreadKey, ThreadRef};

use crate::escape::escape;
use crate::export::stall_names::thread_name;

#[derive(Default)]
pub(super) struct Titles(HashMap<ProcessHandle, Arc<str>>);

impl Titles {
    /// Takes the titles of the threads that a stall mentions.
    pub fn add(&mut self, processes: &HashMap<ThreadKey, ProcessHandle>, stall: &StallRecord) {
        let waker = stall.waker.as_ref().and_then(|waker| waker.thread.as_ref());
        let owner = stall.lock.as_ref().and_then(|lock| lock.owner.as_ref());
        let ran = stall.ran_instead.iter().map(|(thread, _)| thread);
        for thread in waker.into_iter().chain(owner).chain(ran) {
            let process = thread.key.and_then(|key| processes.get(&key)).copied();
            if let (Some(process), Some(title)) = (process, &thread.title) {
                let known = self.0.entry(process).or_insert_with(|| Arc::clone(title));
                if known != title {
                    *known = common_words(known, title).into();
                }
            }
        }
    }

    /// Processes without a title keep their name.
    pub fn name_processes(&self, profile: &mut Profile) {
        for (process, title) in self.0.iter().filter(|(_, title)| !title.is_empty()) {
            profile.set_process_name(*process, &escape(title));
        }
    }
}

/// `keeper 4244`, with the title of its process where it is known.
pub(super) fn titled_name(thread: &ThreadRef) -> String {
    match &thread.title {
        Some(title) => format!("{} ({title})", thread_name(thread)),
        None => thread_name(thread),
    }
}

fn common_words(one: &str, other: &str) -> String {
    let same = one.split(' ').zip(other.split(' ')).take_while(|(one, other)| one == other);
    same.map(|(word, _)| word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_at_the_start_of_all_titles_are_kept() {
        let update = "postgres: bench shop [local] UPDATE waiting";
        assert_eq!(common_words(update, "postgres: bench shop [local] idle"), "postgres: bench shop [local]");
        assert_eq!(common_words(update, "sshd: bench"), "");
    }
}
