// SPDX-License-Identifier: Apache-2.0
//! Threads by tid: their names in records, and the timelines of threads with events.

use std::collections::HashMap;

use wallprof_model::{Event, MonoNs, ThreadInfo, ThreadKey, ThreadRef};

use crate::seconds::WokenBy;
use crate::timeline::Timeline;

/// `pid_max` is 2^22 at most.
const MAX_TIDS: usize = 1 << 22;
/// The parent of all kernel threads.
const KTHREADD: u32 = 2;

/// The name of a thread, which may have no events.
#[derive(Clone, Debug, Default)]
struct Named {
    pid: u32,
    comm: String,
    kernel_thread: bool,
}

/// A thread of the recording.
pub(crate) struct Known {
    pub key: ThreadKey,
    pub pid: u32,
    pub timeline: Timeline<WokenBy>,
    /// The CPU on which it was last seen.
    pub cpu: Option<u32>,
}

/// A thread whose end was recorded. The rest of its exit may be sampled.
struct Ended {
    key: ThreadKey,
    pid: u32,
    upto: u64,
}

#[derive(Default)]
pub(crate) struct Threads {
    named: HashMap<u32, Named>,
    known: HashMap<u32, Known>,
    ended: HashMap<u32, Ended>,
    next: u32,
}

impl Threads {
    /// Sets a thread's name. It is emitted again if the thread was emitted before.
    pub(crate) fn name(&mut self, pid: u32, tid: u32, comm: String, out: &mut Vec<Event>) {
        let is_new = !self.named.contains_key(&tid);
        if is_new && self.named.len() >= MAX_TIDS {
            return;
        }
        let named = self.named.entry(tid).or_default();
        let same = named.comm == comm && named.pid == pid;
        (named.pid, named.comm) = (pid, comm);
        if !same && let Some(key) = self.known.get(&tid).map(|known| known.key) {
            out.push(Event::Thread(self.info(key, pid, tid)));
        }
    }

    /// Sets a name from another thread's event, if the thread has none.
    pub(crate) fn suggest(&mut self, tid: u32, comm: String, out: &mut Vec<Event>) {
        if tid != 0 && self.named.get(&tid).is_none_or(|named| named.comm.is_empty()) {
            let pid = self.pid(tid).unwrap_or(tid);
            self.name(pid, tid, comm, out);
        }
    }

    /// A thread starts, with its parent's name.
    pub(crate) fn fork(&mut self, pid: u32, tid: u32, parent_pid: u32, parent_tid: u32) {
        self.ended.remove(&tid);
        if self.known.contains_key(&tid) || self.named.len() >= MAX_TIDS {
            return;
        }
        let comm = self.named.get(&parent_tid).map(|parent| parent.comm.clone()).unwrap_or_default();
        let kernel_thread = pid == KTHREADD || pid != parent_pid && parent_pid == KTHREADD;
        self.named.insert(tid, Named { pid, comm, kernel_thread });
    }

    /// The thread, which is emitted at its first event. `None` for a thread that has ended, and for the idle
    /// task.
    pub(crate) fn meet(
        &mut self,
        pid: Option<u32>,
        tid: u32,
        from: u64,
        out: &mut Vec<Event>,
    ) -> Option<&mut Known> {
        let is_no_thread = tid == 0 || tid > MAX_TIDS as u32;
        if is_no_thread || self.ended.contains_key(&tid) {
            return None;
        }
        if !self.known.contains_key(&tid) {
            let pid = pid.or_else(|| self.pid(tid)).unwrap_or(tid);
            let key = ThreadKey(self.next);
            self.next += 1;
            self.known.insert(tid, Known { key, pid, timeline: Timeline::new(from), cpu: None });
            out.push(Event::Thread(self.info(key, pid, tid)));
            out.push(Event::ThreadSeen { thread: key, from: MonoNs(from) });
        }
        self.known.get_mut(&tid)
    }

    pub(crate) fn get(&mut self, tid: u32) -> Option<&mut Known> {
        self.known.get_mut(&tid)
    }

    /// The thread has ended. Later samples are of its exit.
    pub(crate) fn end(&mut self, tid: u32) -> Option<Known> {
        self.named.remove(&tid);
        self.known.remove(&tid)
    }

    pub(crate) fn set_ended(&mut self, tid: u32, known: &Known) {
        let Known { key, pid, timeline, .. } = known;
        self.ended.insert(tid, Ended { key: *key, pid: *pid, upto: timeline.upto() });
    }

    /// A thread that has ended, at its last event. Another process is a thread whose start was not recorded.
    pub(crate) fn exiting(&self, pid: Option<u32>, tid: u32) -> Option<Known> {
        let &Ended { key, pid: of, upto } = self.ended.get(&tid)?;
        let is_of_it = pid.is_none_or(|pid| pid == of);
        is_of_it.then(|| Known { key, pid: of, timeline: Timeline::new(upto), cpu: None })
    }

    /// All threads that have not ended, with their tids.
    pub(crate) fn take_all(&mut self) -> Vec<(u32, Known)> {
        let mut all: Vec<_> = self.known.drain().collect();
        all.sort_unstable_by_key(|(_, known)| known.key);
        all
    }

    pub(crate) fn comm(&self, tid: u32) -> &str {
        self.named.get(&tid).map_or("", |named| &named.comm)
    }

    /// A reference to a thread from another one's event.
    pub(crate) fn reference(&self, pid: Option<u32>, tid: u32) -> ThreadRef {
        let known = self.known.get(&tid);
        let pid = known.map(|known| known.pid).or(pid).or_else(|| self.pid(tid)).unwrap_or(tid);
        ThreadRef {
            key: known.map(|known| known.key),
            pid,
            tid,
            comm: self.comm(tid).to_owned(),
            title: None,
        }
    }

    /// The number of threads that were emitted.
    pub(crate) fn count(&self) -> u64 {
        self.next.into()
    }

    fn pid(&self, tid: u32) -> Option<u32> {
        self.named.get(&tid).map(|named| named.pid)
    }

    fn info(&self, key: ThreadKey, pid: u32, tid: u32) -> ThreadInfo {
        let named = self.named.get(&tid);
        // perf's form for threads without a name.
        let comm = named.map(|named| named.comm.clone()).filter(|comm| !comm.is_empty());
        let comm = comm.unwrap_or_else(|| format!(":{tid}"));
        let leader = self.named.get(&pid).map(|leader| leader.comm.clone());
        let process = leader.unwrap_or_else(|| if tid == pid { comm.clone() } else { String::new() });
        let kernel_thread = named.is_some_and(|named| named.kernel_thread) || pid == KTHREADD;
        ThreadInfo { kernel_thread, ..ThreadInfo::new(key, (pid, process), (tid, comm)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(out: &[Event]) -> Vec<(u32, &str, &str)> {
        let name = |event: &'_ Event| match event {
            Event::Thread(info) => Some((info.tid, info.comm.clone(), info.process.clone())),
            _ => None,
        };
        out.iter()
            .filter_map(name)
            .map(|(tid, comm, process)| (tid, &*comm.leak(), &*process.leak()))
            .collect()
    }

    #[test]
    fn threads_are_emitted_at_their_first_event_and_when_renamed() {
        let (mut threads, mut out) = (Threads::default(), Vec::new());
        threads.name(7, 7, "server".into(), &mut out);
        threads.fork(7, 8, 7, 7);
        assert!(out.is_empty());
        assert!(threads.meet(Some(7), 8, 5, &mut out).is_some());
        threads.name(7, 8, "worker".into(), &mut out);
        threads.name(7, 8, "worker".into(), &mut out);
        assert_eq!(names(&out), [(8, "server", "server"), (8, "worker", "server")]);
        assert!(matches!(out[1], Event::ThreadSeen { from: MonoNs(5), .. }));
    }

    #[test]
    fn ended_thread_comes_back_as_another_one() {
        let (mut threads, mut out) = (Threads::default(), Vec::new());
        let first = threads.meet(Some(7), 7, 5, &mut out).map(|known| known.key);
        let ended = threads.end(7).expect("known");
        threads.set_ended(7, &ended);
        assert!(threads.meet(Some(7), 7, 6, &mut out).is_none());
        assert_eq!(threads.exiting(Some(7), 7).map(|known| (Some(known.key), known.pid)), Some((first, 7)));
        assert!(threads.exiting(Some(8), 7).is_none() && threads.exiting(None, 8).is_none());
        threads.fork(7, 7, 1, 1);
        let second = threads.meet(Some(7), 7, 9, &mut out).map(|known| known.key);
        assert!(second.is_some() && first != second && threads.exiting(Some(7), 7).is_none());
    }

    #[test]
    fn idle_task_is_not_a_thread() {
        let (mut threads, mut out) = (Threads::default(), Vec::new());
        for tid in [0, u32::MAX] {
            assert!(threads.meet(None, tid, 5, &mut out).is_none());
        }
        assert!(out.is_empty());
    }

    #[test]
    fn unnamed_threads_get_the_name_in_other_events() {
        let (mut threads, mut out) = (Threads::default(), Vec::new());
        threads.meet(None, 9, 5, &mut out);
        threads.suggest(9, "bash".into(), &mut out);
        threads.suggest(9, "other".into(), &mut out);
        assert_eq!(names(&out), [(9, ":9", ":9"), (9, "bash", "bash")]);
        assert_eq!(threads.reference(None, 9).comm, "bash");
    }

    #[test]
    fn children_of_kthreadd_are_kernel_threads() {
        let (mut threads, mut out) = (Threads::default(), Vec::new());
        threads.fork(11, 11, 2, 2);
        threads.meet(None, 11, 5, &mut out);
        assert!(matches!(&out[0], Event::Thread(info) if info.kernel_thread));
    }
}
