// SPDX-License-Identifier: Apache-2.0
//! The tracks of a trace: processes, threads, and rows of slices that do not overlap.

use std::collections::HashMap;
use std::io;

use wallprof_model::profile::Thread;
use wallprof_model::{MonoNs, ThreadKey, ThreadRef};

use super::messages::{CounterDescriptor, ProcessDescriptor, ThreadDescriptor, TrackDescriptor};
use super::sequence::Sequence;
use crate::frame_name::shown_comm;

/// Rows of overlapping slices below one track. A thread has two: a page fault, and the waits in it.
const MAX_ROWS: usize = 32;

/// The owner of rows of slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    Thread(ThreadKey),
    Marks,
}

#[derive(Default)]
pub(super) struct Tracks {
    last: u64,
    processes: HashMap<u32, u64>,
    threads: HashMap<ThreadKey, (u32, u64)>,
    /// Threads that are not recorded, by process and thread id.
    mentioned: HashMap<(u32, u32), u64>,
    rows: HashMap<Owner, Vec<Row>>,
}

struct Row {
    track: u64,
    end: MonoNs,
}

/// Where a slice goes.
pub(super) struct Place {
    pub track: u64,
    /// False: other slices cover the whole place, and only an event without duration can be there.
    pub is_free: bool,
}

impl Tracks {
    pub fn add_thread(&mut self, out: &mut Sequence<'_>, thread: &Thread) -> io::Result<()> {
        let info = &thread.info;
        let process = self.process(out, info.pid, &info.process)?;
        let track = self.new_thread(out, process, (info.pid, info.tid), &info.comm)?;
        self.threads.insert(info.key, (info.pid, track));
        self.rows.insert(Owner::Thread(info.key), vec![Row { track, end: MonoNs(0) }]);
        Ok(())
    }

    /// A recorded thread's track.
    pub fn thread(&self, key: ThreadKey) -> Option<u64> {
        self.threads.get(&key).map(|(_, track)| *track)
    }

    /// The track of the process of a recorded thread.
    pub fn process_of(&self, key: ThreadKey) -> Option<u64> {
        self.threads.get(&key).and_then(|(pid, _)| self.processes.get(pid)).copied()
    }

    /// The track of a thread that may not be recorded.
    pub fn mentioned(&mut self, out: &mut Sequence<'_>, thread: &ThreadRef) -> io::Result<u64> {
        if let Some(track) = thread.key.and_then(|key| self.thread(key)) {
            return Ok(track);
        }
        let ids = (thread.pid, thread.tid);
        if let Some(track) = self.mentioned.get(&ids) {
            return Ok(*track);
        }
        // The name of a process is its first thread's; another thread does not know it.
        let name = if thread.pid == thread.tid { thread.comm.as_str() } else { "" };
        let process = self.process(out, thread.pid, name)?;
        let track = self.new_thread(out, process, ids, &thread.comm)?;
        self.mentioned.insert(ids, track);
        Ok(track)
    }

    /// A track for a slice, on which no other slice covers `start`, as long as there are few of them.
    pub fn row(
        &mut self,
        out: &mut Sequence<'_>,
        owner: Owner,
        (start, end): (MonoNs, MonoNs),
    ) -> io::Result<Place> {
        let rows = self.rows.entry(owner).or_default();
        if let Some(row) = rows.iter_mut().find(|row| row.end <= start) {
            row.end = end;
            return Ok(Place { track: row.track, is_free: true });
        }
        if let Some(last) = rows.get(MAX_ROWS - 1) {
            return Ok(Place { track: last.track, is_free: false });
        }
        self.last += 1;
        let track = self.last;
        let parent = rows.first().map(|row| row.track);
        rows.push(Row { track, end });
        let name = match owner {
            Owner::Thread(_) => "within the above",
            Owner::Marks => "marks",
        };
        out.track(TrackDescriptor {
            uuid: Some(track),
            name: Some(name.into()),
            parent_uuid: parent,
            ..TrackDescriptor::default()
        })?;
        Ok(Place { track, is_free: true })
    }

    /// A new track of a counter. Without a parent it is the machine's.
    pub fn new_counter(
        &mut self,
        out: &mut Sequence<'_>,
        parent: Option<u64>,
        name: String,
        unit: Option<i32>,
    ) -> io::Result<u64> {
        self.last += 1;
        out.track(TrackDescriptor {
            uuid: Some(self.last),
            name: Some(name),
            parent_uuid: parent,
            counter: Some(CounterDescriptor { unit }),
            ..TrackDescriptor::default()
        })?;
        Ok(self.last)
    }

    fn process(&mut self, out: &mut Sequence<'_>, pid: u32, name: &str) -> io::Result<u64> {
        if let Some(track) = self.processes.get(&pid) {
            return Ok(*track);
        }
        self.last += 1;
        self.processes.insert(pid, self.last);
        let process_name = (!name.is_empty()).then(|| shown_comm(name).into());
        out.track(TrackDescriptor {
            uuid: Some(self.last),
            process: Some(ProcessDescriptor { pid: Some(id(pid)), process_name }),
            ..TrackDescriptor::default()
        })?;
        Ok(self.last)
    }

    fn new_thread(
        &mut self,
        out: &mut Sequence<'_>,
        process: u64,
        (pid, tid): (u32, u32),
        comm: &str,
    ) -> io::Result<u64> {
        self.last += 1;
        let thread_name = Some(shown_comm(comm).into());
        out.track(TrackDescriptor {
            uuid: Some(self.last),
            parent_uuid: Some(process),
            thread: Some(ThreadDescriptor { pid: Some(id(pid)), tid: Some(id(tid)), thread_name }),
            ..TrackDescriptor::default()
        })?;
        Ok(self.last)
    }
}

/// Process and thread ids are signed in the format; the kernel gives out none above 2^22.
fn id(id: u32) -> i32 {
    i32::try_from(id).unwrap_or(i32::MAX)
}
