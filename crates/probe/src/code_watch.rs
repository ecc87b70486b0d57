// SPDX-License-Identifier: Apache-2.0
//! Changes of code, as they happen: the sideband's, and processes that the walker met without their mappings.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

use crate::bpf::{record_from_bytes, wanted_process};
use crate::code_tables::CodeTables;
use crate::sideband::{News, Sideband};

/// The walker's tables, and the changes that keep them current, before they move to the thread that does so.
pub struct CodeSide {
    pub(crate) tables: CodeTables,
    pub(crate) sideband: Sideband,
    pub(crate) wanted: MapHandle,
}

impl CodeSide {
    /// On the thread that will read.
    pub fn split(self) -> io::Result<(CodeTables, CodeWatch)> {
        let inbox = Rc::new(RefCell::new(Vec::new()));
        let mut builder = RingBufferBuilder::new();
        let taken = Rc::clone(&inbox);
        let add = builder.add(&self.wanted, move |bytes| {
            taken.borrow_mut().extend(record_from_bytes::<wanted_process>(bytes));
            0
        });
        add.map_err(io::Error::other)?;
        let wanted = builder.build().map_err(io::Error::other)?;
        Ok((self.tables, CodeWatch { sideband: self.sideband, wanted, inbox }))
    }
}

/// A source of changes that a thread can wait for.
pub struct CodeWatch {
    sideband: Sideband,
    wanted: RingBuffer<'static>,
    inbox: Rc<RefCell<Vec<wanted_process>>>,
}

impl CodeWatch {
    /// Waits for changes, for one of `others` to become readable or lose its other end, or until the time is
    /// over. Returns which of `others` did.
    pub fn wait<const N: usize>(
        &self,
        others: [BorrowedFd<'_>; N],
        timeout: Option<Duration>,
    ) -> io::Result<[bool; N]> {
        let entry = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut entries = others.map(|other| entry(other.as_raw_fd())).to_vec();
        entries.push(entry(self.wanted.epoll_fd()));
        entries.extend(self.sideband.descriptors().map(|ring| entry(ring.as_fd().as_raw_fd())));
        let millis = timeout.map_or(-1, |timeout| timeout.as_millis().min(i32::MAX as u128) as i32);
        // SAFETY: `entries` is a valid array of that length for the duration of the call.
        let ready = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, millis) };
        let error = io::Error::last_os_error();
        if ready < 0 && error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        Ok(std::array::from_fn(|index| ready > 0 && entries[index].revents != 0))
    }

    /// Other CPUs are online than before.
    pub fn follow_cpus(&mut self) -> io::Result<()> {
        self.sideband.follow_cpus()
    }

    /// Takes the changes since the last call; the sideband's come before the wanted processes. Of processes
    /// that are not followed, only the ranges of new mappings are reported.
    pub fn read(&mut self, news: &mut VecDeque<News>, is_followed: &dyn Fn(u32) -> bool) -> io::Result<()> {
        self.wanted.consume().map_err(io::Error::other)?;
        self.sideband.read(news, is_followed);
        let mut wanted = self.inbox.take();
        // Each stack of an unknown process requests it. The last request of a program counts.
        wanted.sort_unstable_by_key(|wanted| (wanted.tgid, wanted.exec_id, Reverse(wanted.time)));
        wanted.dedup_by_key(|wanted| (wanted.tgid, wanted.exec_id));
        let wanted = wanted.iter().map(|&wanted_process { tgid, exec_id, time }| News::Wanted {
            pid: tgid,
            exec_id,
            time,
        });
        news.extend(wanted);
        Ok(())
    }
}
