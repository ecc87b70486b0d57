// SPDX-License-Identifier: Apache-2.0
//! The kernel side's thread numbers, tids and names.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use wallprof_model::{
    Event, PodContainer, PodContainers, ThreadInfo, ThreadKey, ThreadRef, container_from_cgroup,
};
use wallprof_probe::bpf::{constants as c, name_from_bytes, other_thread, thread_record};

use crate::pods::PodFiles;

/// A thread as it was emitted.
struct Known {
    pid: u32,
    tid: u32,
    inner_pid: u32,
    inner_tid: u32,
    start_boot_ns: u64,
    kernel_thread: bool,
    ended: bool,
    comm: [u8; 16],
    process: [u8; 16],
    cgroup: Option<Arc<str>>,
    pod: Option<Arc<PodContainer>>,
}

impl Known {
    fn info(&self, key: u32) -> ThreadInfo {
        ThreadInfo {
            key: ThreadKey(key),
            tid: self.tid,
            pid: self.pid,
            ns_tid: self.inner_tid,
            ns_pid: self.inner_pid,
            start_boot_ns: self.start_boot_ns,
            comm: name_from_bytes(&self.comm),
            process: name_from_bytes(&self.process),
            cgroup: self.cgroup.as_deref().map(str::to_owned),
            pod: self.pod.clone(),
            kernel_thread: self.kernel_thread,
        }
    }
}

/// A thread is kept this long after its end, since events about it arrive late. It is kept longer while its
/// process lives, where a lock may still name it as its owner.
const KNOWN_AFTER_NS: u64 = 30_000_000_000;

/// Threads by number, by tid, and by process and the tid inside its pid namespace. A tid means the newest
/// thread with it.
#[derive(Default)]
pub struct Threads {
    by_key: HashMap<u32, Known>,
    by_tid: HashMap<u32, u32>,
    by_inner_tid: HashMap<(u32, u32), u32>,
    /// The times at which threads ended, the oldest first.
    ended: VecDeque<(u64, u32)>,
    pod_files: PodFiles,
    pods: PodContainers,
}

impl Threads {
    /// Takes a record. Emits the thread when it is new or was renamed.
    pub fn update(&mut self, record: &thread_record, emit: &mut dyn FnMut(Event)) {
        let has_ended = u64::from(record.activity) == c::ACTIVITY_DEAD;
        let before = self.by_key.get(&record.key);
        // A thread that starts another program gets the number of the process's first thread, which has to end and
        // then may have the other's.
        let (tid, inner_tid) = match before.filter(|_| has_ended) {
            Some(before) => (before.tid, before.inner_tid),
            None => (record.tid, record.ns_tid),
        };
        let same = |known: &Known| {
            (known.comm, known.process, known.tid, known.inner_tid)
                == (record.comm, record.process, tid, inner_tid)
        };
        if before.is_some_and(same) {
            return;
        }
        let cgroup = self.cgroup(record);
        let known = Known {
            pid: record.tgid,
            tid,
            inner_pid: record.ns_tgid,
            inner_tid,
            start_boot_ns: record.start_boottime,
            kernel_thread: record.kernel_thread != 0,
            ended: false,
            comm: record.comm,
            process: record.process,
            pod: self.pod(record.key, cgroup.as_ref()),
            cgroup,
        };
        emit(Event::Thread(known.info(record.key)));
        let inner = (known.pid, inner_tid);
        let start = known.start_boot_ns;
        if let Some(before) = self.by_key.insert(record.key, known) {
            self.forget_numbers(record.key, &before);
        }
        let lives_on = |key: Option<&u32>| {
            let holder = key.filter(|key| **key != record.key).and_then(|key| self.by_key.get(key));
            has_ended && holder.is_some_and(|holder| !holder.ended && holder.start_boot_ns >= start)
        };
        let taken = (lives_on(self.by_tid.get(&tid)), lives_on(self.by_inner_tid.get(&inner)));
        if !taken.0 {
            self.by_tid.insert(tid, record.key);
        }
        if !taken.1 {
            self.by_inner_tid.insert(inner, record.key);
        }
    }

    fn forget_numbers(&mut self, key: u32, known: &Known) {
        if self.by_tid.get(&known.tid) == Some(&key) {
            self.by_tid.remove(&known.tid);
        }
        let inner = (known.pid, known.inner_tid);
        if self.by_inner_tid.get(&inner) == Some(&key) {
            self.by_inner_tid.remove(&inner);
        }
    }

    /// Reads which pods there are, and emits again the threads whose containers have names since the last call: a
    /// kubelet makes its link to a log when the container runs already.
    pub fn follow_pods(&mut self, emit: &mut dyn FnMut(Event)) {
        let Some(pods) = self.pod_files.read_if_changed() else { return };
        self.pods = pods;
        let in_groups = self.by_key.iter().filter(|(_, known)| !known.ended && known.cgroup.is_some());
        let mut keys: Vec<u32> = in_groups.map(|(key, _)| *key).collect();
        keys.sort_unstable();
        for key in keys {
            let known = &self.by_key[&key];
            let pod = self.pod(key, known.cgroup.as_ref());
            if pod != known.pod
                && let Some(known) = self.by_key.get_mut(&key)
            {
                known.pod = pod;
                emit(Event::Thread(known.info(key)));
            }
        }
    }

    /// The pod of a thread in this control group. A thread that runs on for a while after the link of its container is
    /// gone keeps the pod.
    fn pod(&self, key: u32, cgroup: Option<&Arc<str>>) -> Option<Arc<PodContainer>> {
        let cgroup = cgroup?;
        let found = container_from_cgroup(cgroup).and_then(|id| self.pods.get(&id).cloned());
        let before = || self.by_key.get(&key).filter(|known| known.cgroup.as_ref() == Some(cgroup));
        found.or_else(|| before()?.pod.clone())
    }

    /// The control group of a thread. A program is often moved into its own between fork and exec, so that it is
    /// read again when the process has another name.
    fn cgroup(&self, record: &thread_record) -> Option<Arc<str>> {
        let before = self.by_key.get(&record.key);
        if let Some(before) = before.filter(|before| before.process == record.process) {
            return before.cgroup.clone();
        }
        let Some(path) = cgroup_of(record.tgid) else { return before.and_then(|known| known.cgroup.clone()) };
        let first = self.by_tid.get(&record.tgid).and_then(|key| self.by_key.get(key));
        let shared = first.and_then(|first| first.cgroup.as_ref()).filter(|cgroup| ***cgroup == *path);
        Some(shared.map_or_else(|| path.into(), Arc::clone))
    }

    /// Forgets threads that ended long ago, since the consumer has forgotten them.
    pub fn forget(&mut self, threads: &[ThreadKey]) {
        threads.iter().for_each(|thread| self.remove(thread.0));
    }

    /// This thread was seen to have ended at `now`.
    pub fn end(&mut self, key: u32, now: u64) {
        if let Some(known) = self.by_key.get_mut(&key) {
            known.ended = true;
            self.ended.push_back((now, key));
        }
    }

    /// Forgets threads that ended long before `now`, with their processes.
    pub fn forget_ended(&mut self, now: u64) {
        while let Some(&(at, key)) = self.ended.front()
            && at.saturating_add(KNOWN_AFTER_NS) <= now
        {
            self.ended.pop_front();
            let process = self.by_key.get(&key).map(|known| known.pid);
            let first =
                process.and_then(|pid| self.by_tid.get(&pid)).and_then(|first| self.by_key.get(first));
            if first.is_none_or(|first| first.ended) {
                self.remove(key);
            }
        }
    }

    fn remove(&mut self, key: u32) {
        if let Some(known) = self.by_key.remove(&key) {
            self.forget_numbers(key, &known);
        }
    }

    /// The number of the newest thread with this tid.
    pub fn key_of_tid(&self, tid: u32) -> Option<ThreadKey> {
        self.by_tid.get(&tid).copied().map(ThreadKey)
    }

    /// The pids of the processes whose first thread is known and has not ended.
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        let firsts = self.by_key.values().filter(|known| known.pid == known.tid && !known.ended);
        firsts.map(|known| known.pid)
    }

    pub fn pid_of(&self, key: u32) -> Option<u32> {
        self.by_key.get(&key).map(|known| known.pid)
    }

    /// The name of the thread's program: that of its process.
    pub fn program_of(&self, key: u32) -> Option<&[u8]> {
        self.by_key.get(&key).map(|known| known.process.as_slice())
    }

    /// A thread that another thread's record names. Where that record has no name, the thread's own record
    /// provides it.
    pub fn reference(&self, other: &other_thread) -> ThreadRef {
        let key = self.by_tid.get(&other.tid);
        let known = key.and_then(|key| self.by_key.get(key)).filter(|known| known.pid == other.tgid);
        let comm = match (name_from_bytes(&other.comm), known) {
            (name, Some(known)) if name.is_empty() => name_from_bytes(&known.comm),
            (name, _) => name,
        };
        let key = known.and(key).copied().map(ThreadKey);
        ThreadRef { key, pid: other.tgid, tid: other.tid, comm, title: None }
    }

    /// The thread of process `pid` with this tid inside its own pid namespace, as a lock names its owner.
    /// `None` when the process has no such thread: the word that was read was then no owner.
    pub fn owner(&self, pid: u32, ns_tid: u32) -> Option<ThreadRef> {
        let key = *self.by_inner_tid.get(&(pid, ns_tid))?;
        let Known { tid, comm, .. } = self.by_key.get(&key)?;
        Some(ThreadRef {
            key: Some(ThreadKey(key)),
            pid,
            tid: *tid,
            comm: name_from_bytes(comm),
            title: None,
        })
    }
}

/// The control group of a process: its v2 path, else the deepest of its v1 paths. `None` when it has ended.
fn cgroup_of(pid: u32) -> Option<String> {
    cgroup_from_text(&std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

fn cgroup_from_text(text: &str) -> Option<String> {
    let paths = || text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let unified = text.lines().find_map(|line| line.strip_prefix("0::")).filter(|path| *path != "/");
    let deepest = paths().max_by_key(|path| path.matches('/').count() + usize::from(*path != "/"));
    unified.or(deepest).map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: u32, tid: u32, pid: u32, ns_tid: u32, comm: &str) -> thread_record {
        let mut record = thread_record { key, tid, tgid: pid, ns_tid, ..thread_record::default() };
        record.comm[..comm.len()].copy_from_slice(comm.as_bytes());
        record
    }

    fn events(threads: &mut Threads, record: &thread_record) -> usize {
        let mut count = 0;
        threads.update(record, &mut |_| count += 1);
        count
    }

    #[test]
    fn new_and_renamed_threads_are_emitted_once() {
        let mut threads = Threads::default();
        assert_eq!(events(&mut threads, &record(1, 100, 100, 100, "a")), 1);
        assert_eq!(events(&mut threads, &record(1, 100, 100, 100, "a")), 0);
        assert_eq!(events(&mut threads, &record(1, 100, 100, 100, "b")), 1);
    }

    #[test]
    fn reused_tid_is_the_newer_thread() {
        let mut threads = Threads::default();
        events(&mut threads, &record(1, 100, 100, 100, "old"));
        events(&mut threads, &record(2, 100, 100, 100, "new"));
        assert_eq!(threads.key_of_tid(100), Some(ThreadKey(2)));
    }

    /// In any order of the records: the snapshot's and that of the first thread's end come by different ways.
    #[test]
    fn thread_that_starts_a_program_has_the_number_of_the_first_one() {
        let ended =
            |tid| thread_record { activity: c::ACTIVITY_DEAD as u8, ..record(1, tid, 100, tid, "main") };
        for (end, comes_first) in
            [(ended(100), true), (ended(101), true), (ended(100), false), (ended(101), false)]
        {
            let mut threads = Threads::default();
            events(&mut threads, &record(1, 100, 100, 100, "main"));
            events(&mut threads, &record(2, 101, 100, 101, "worker"));
            let started = record(2, 100, 100, 100, "worker");
            let records = if comes_first { [&end, &started] } else { [&started, &end] };
            records.into_iter().for_each(|record| {
                events(&mut threads, record);
            });
            threads.end(1, 0);
            let owner = threads.owner(100, 100).expect("the thread that goes on");
            assert_eq!((owner.key, owner.tid), (Some(ThreadKey(2)), 100));
            assert_eq!((threads.key_of_tid(100), threads.key_of_tid(101)), (Some(ThreadKey(2)), None));
            assert_eq!(threads.by_key[&1].tid, 100, "the number that it had");
        }
    }

    #[test]
    fn forgotten_thread_is_emitted_again_and_its_tid_is_unknown() {
        let mut threads = Threads::default();
        events(&mut threads, &record(1, 100, 100, 100, "old"));
        events(&mut threads, &record(2, 200, 200, 200, "new"));
        threads.forget(&[ThreadKey(1)]);
        assert_eq!((threads.key_of_tid(100), threads.key_of_tid(200)), (None, Some(ThreadKey(2))));
        assert_eq!(events(&mut threads, &record(1, 100, 100, 100, "old")), 1);
    }

    #[test]
    fn owner_is_a_thread_of_the_same_process_by_its_inner_tid() {
        let mut threads = Threads::default();
        events(&mut threads, &record(1, 1_000, 1_000, 1, "main"));
        events(&mut threads, &record(2, 1_001, 1_000, 2, "worker"));
        events(&mut threads, &record(3, 2, 2, 2, "kthreadd"));
        let owner = threads.owner(1_000, 2).expect("the worker");
        assert_eq!((owner.tid, owner.comm.as_str(), owner.key), (1_001, "worker", Some(ThreadKey(2))));
        assert_eq!(threads.owner(1_000, 77), None);
        threads.forget(&[ThreadKey(2)]);
        assert_eq!(threads.owner(1_000, 2), None);
    }

    #[test]
    fn ended_thread_is_kept_longer_while_its_process_lives() {
        let mut threads = Threads::default();
        events(&mut threads, &record(1, 100, 100, 100, "main"));
        events(&mut threads, &record(2, 101, 100, 101, "worker"));
        events(&mut threads, &record(3, 200, 200, 200, "brief"));
        threads.end(2, 0);
        threads.end(3, 5);
        threads.forget_ended(KNOWN_AFTER_NS);
        assert_eq!(threads.key_of_tid(200), Some(ThreadKey(3)), "late events may refer to it");
        threads.forget_ended(KNOWN_AFTER_NS + 5);
        assert_eq!((threads.key_of_tid(200), threads.pid_of(3)), (None, None));
        assert_eq!(
            threads.owner(100, 101).map(|owner| owner.tid),
            Some(101),
            "it may have left a lock behind"
        );
        events(&mut threads, &record(4, 300, 300, 300, "main"));
        events(&mut threads, &record(5, 301, 300, 301, "worker"));
        threads.end(5, 10);
        threads.end(4, 10);
        threads.forget_ended(KNOWN_AFTER_NS + 10);
        assert_eq!((threads.pid_of(4), threads.pid_of(5)), (None, None), "the process ended, too");
        assert!(threads.ended.is_empty());
    }

    #[test]
    fn reused_tid_outlives_the_older_thread() {
        let mut threads = Threads::default();
        events(&mut threads, &record(1, 100, 100, 100, "old"));
        threads.end(1, 0);
        events(&mut threads, &record(2, 100, 100, 100, "new"));
        threads.forget_ended(KNOWN_AFTER_NS);
        assert_eq!(threads.key_of_tid(100), Some(ThreadKey(2)));
    }

    #[test]
    fn threads_of_a_container_are_emitted_again_when_its_pod_is_known() {
        let logs = tempfile::tempdir().expect("a folder");
        let id = "0123456789abcdef".repeat(4);
        let mut threads = Threads { pod_files: PodFiles::new(logs.path()), ..Threads::default() };
        for key in [1, 2, 3] {
            events(&mut threads, &record(key, u32::MAX - key, u32::MAX - key, key, "nginx"));
        }
        for key in [1, 2] {
            let group = format!("/kubepods.slice/kubepods-pod{key}.slice/cri-containerd-{id}.scope");
            threads.by_key.get_mut(&key).expect("a thread").cgroup = Some(group.into());
        }
        let pods = |threads: &mut Threads| {
            let mut found = Vec::new();
            threads.follow_pods(&mut |event| match event {
                Event::Thread(info) => found.push((info.key.0, info.container_name().expect("a container"))),
                _ => unreachable!("only threads"),
            });
            found
        };
        assert_eq!(pods(&mut threads), []);
        let link = logs.path().join(format!("web-1_shop_nginx-{id}.log"));
        std::os::unix::fs::symlink("/nowhere", &link).expect("a link");
        let touch = |seconds| {
            let later = std::time::SystemTime::now() + std::time::Duration::from_secs(seconds);
            std::fs::File::open(logs.path()).and_then(|folder| folder.set_modified(later)).expect("a time");
        };
        touch(1);
        threads.end(2, 0);
        assert_eq!(pods(&mut threads), [(1, "shop/web-1/nginx".to_owned())], "those that have not ended");
        assert_eq!(pods(&mut threads), [], "once");
        std::fs::remove_file(&link).expect("the link");
        touch(2);
        assert_eq!(pods(&mut threads), [], "it runs on for a while");
        let group = threads.by_key[&1].cgroup.clone();
        assert!(threads.pod(1, group.as_ref()).is_some());
        assert!(threads.pod(1, Some(&"/user.slice".into())).is_none(), "it was moved out");
    }

    #[test]
    fn path_of_cgroup_v2_is_preferred() {
        assert_eq!(cgroup_from_text("0::/user.slice/a\n").as_deref(), Some("/user.slice/a"));
        assert_eq!(cgroup_from_text("3:cpu:/\n2:memory:/docker/x\n0::/\n").as_deref(), Some("/docker/x"));
        assert_eq!(cgroup_from_text("").as_deref(), None);
    }

    #[test]
    fn renamed_thread_keeps_its_control_group() {
        let own = std::process::id();
        let Some(expected) = cgroup_of(own) else {
            let test = "renamed_thread_keeps_its_control_group";
            return wallprof_testkit::skip(test, "this process is in no control group");
        };
        let mut threads = Threads::default();
        let mut found = Vec::new();
        let mut emit = |event| match event {
            Event::Thread(info) => found.push(info.cgroup),
            _ => unreachable!(),
        };
        threads.update(&record(1, own, own, own, "sh"), &mut emit);
        threads.update(&record(1, own, own, own, "worker"), &mut emit);
        let mut executed = record(1, own, own, own, "nginx");
        executed.process[..5].copy_from_slice(b"nginx");
        threads.update(&executed, &mut emit);
        // No process has this pid: the thread of a process that ended keeps the former path.
        let mut ended = record(1, own, u32::MAX, own, "ended");
        ended.process[..5].copy_from_slice(b"ended");
        threads.update(&ended, &mut emit);
        assert_eq!(found, vec![Some(expected); 4]);
    }
}
