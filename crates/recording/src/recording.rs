// SPDX-License-Identifier: Apache-2.0
//! A recording as its readers see it: the values of the profile. Thread keys and stack ids are the file's row
//! ids. Every method reads the recording as it was when it was opened.

use std::ops::RangeBounds;
use std::path::Path;
use std::sync::Arc;

use rusqlite::Result as SqlResult;
use wallprof_model::event::Peer;
use wallprof_model::profile::{
    CrossCallRow, FoldedStalls, InterruptRow, IntrusionRow, KernelDelayRow, LedgerRow, RecordingInfo,
    ResolvedStack, SampleRow, StallRecord, Thread, ThrottledRow,
};
use wallprof_model::{
    EpochSecond, LateSample, Mark, Meaning, Meanings, Reason, Span, SpanDelta, StackId, StallReason,
    ThreadCalls, ThreadInfo, ThreadKey, WaitRow, WordRow,
};

use crate::counters::{self, Counters};
use crate::error::Result;
use crate::part::Part;
use crate::reader::{Progress, Reader};
use crate::seconds::{self, Seconds};
use crate::spans::SpanCell;
use crate::stalls::{StallFilter, Stalls};
use crate::{calls, folded, info, interrupts, intrusions, kernel_activity, spans, stalls, threads, waits};

pub struct Recording {
    reader: Reader,
}

impl Recording {
    /// Opens a recording to read: a finished one, one that is being written, or one whose writer was killed.
    /// A process must not open a recording that it writes itself.
    pub fn open(path: &Path) -> Result<Recording> {
        Ok(Recording { reader: Reader::open(path)? })
    }

    /// Opens a part of a recording that is being written, as if it were a recording of its own.
    pub fn open_part(path: &Path, part: &Part) -> Result<Recording> {
        Ok(Recording { reader: Reader::open_part(path, part)? })
    }

    /// Readers of many rows call `progress` on their way.
    pub fn set_progress(&mut self, progress: Progress) {
        self.reader.set_progress(progress);
    }

    /// Gives the waits their meanings. What is read after that has them.
    pub fn set_meanings(&mut self, meanings: Meanings) {
        self.reader.set_meanings(meanings);
    }

    /// Calls `found` for each stall that is a wait or can be a time slice of one, in any order.
    pub fn each_wait(&self, found: impl FnMut(WaitRow)) -> Result<()> {
        self.checked(waits::each(&self.reader, found))
    }

    /// Calls `found` with the other ends of waits, in any order: what kind they are, not their addresses; and whether
    /// the timeout of the wait ended it.
    pub fn each_peer(&self, found: impl FnMut(u64, StallReason, &Peer, bool)) -> Result<()> {
        self.checked(waits::each_peer(&self.reader, found))
    }

    /// Calls `found` with how often each thread waited for each reason, in any order.
    pub fn each_wait_count(&self, found: impl FnMut(ThreadKey, Reason, u64)) -> Result<()> {
        self.checked(threads::each_wait_count(&self.reader, found))
    }

    /// Calls `found` with what the words in memory said, in any order.
    pub fn each_word(&self, found: impl FnMut(WordRow)) -> Result<()> {
        self.checked(waits::each_word(&self.reader, found))
    }

    pub fn path(&self) -> &Path {
        self.reader.path()
    }

    pub fn info(&self) -> Result<RecordingInfo> {
        self.checked(self.reader.info(|| info::read(&self.reader)).cloned())
    }

    /// The threads in the order in which they were first seen. Of more than 100,000 those that lived longest
    /// are listed, and the last one, [`ThreadKey::OTHERS`], is the sum of the others.
    pub fn threads(&self) -> Result<Vec<Thread>> {
        self.checked(threads::read(&self.reader))
    }

    /// The threads of [`Recording::threads`] without their sums, which take long to read.
    pub fn thread_infos(&self) -> Result<Vec<ThreadInfo>> {
        self.checked(threads::infos(&self.reader))
    }

    /// The name of each thread's process. Of threads as of [`Recording::threads`], which reads more.
    pub fn processes(&self) -> Result<Vec<(ThreadKey, String)>> {
        self.checked(threads::processes(&self.reader))
    }

    /// The stalls that `filter` accepts, oldest first.
    pub fn stalls(&self, filter: &StallFilter) -> Result<Stalls<'_>> {
        self.checked(Stalls::new(&self.reader, filter))
    }

    /// Calls `found` for every stall, voluntary ones included, in the order of their ids: for a million stalls
    /// faster than [`Recording::stalls`], which finds each by its id.
    pub fn each_stall(&self, found: impl FnMut(StallRecord)) -> Result<()> {
        self.checked(stalls::each(&self.reader, found))
    }

    pub fn stall(&self, id: u64) -> Result<Option<StallRecord>> {
        self.checked(Stalls::one(&self.reader, id))?.next().transpose()
    }

    /// The buckets of these seconds, ordered by second and thread.
    pub fn ledger(&self, seconds: impl RangeBounds<EpochSecond>) -> Result<Seconds<'_, LedgerRow>> {
        self.checked(Seconds::of_ledger(&self.reader, seconds))
    }

    /// The samples of these seconds, ordered by second and thread.
    pub fn samples(&self, seconds: impl RangeBounds<EpochSecond>) -> Result<Seconds<'_, SampleRow>> {
        self.checked(Seconds::of_samples(&self.reader, seconds))
    }

    /// The blocked time of each thread by reason and stacks, over the whole recording: without wakers, and with the first
    /// second that has some of it.
    pub fn blocked(&self) -> Result<Vec<SampleRow>> {
        self.checked(seconds::read_blocked(self.reader.connection()))
    }

    /// The time of each thread in page faults without I/O, as [`Recording::blocked`].
    pub fn minor_faults(&self) -> Result<Vec<SampleRow>> {
        self.checked(seconds::read_minor_faults(self.reader.connection()))
    }

    /// The time of each thread in sched_yield, on and off a CPU, as [`Recording::blocked`].
    pub fn yields(&self) -> Result<&[SampleRow]> {
        self.checked(self.reader.yields(|| seconds::read_yields(self.reader.connection())))
    }

    /// What the waits of a sample mean.
    pub fn meaning(&self, sample: &SampleRow) -> Option<Arc<Meaning>> {
        self.reader.meanings()?.of_place(sample.thread, sample.user, sample.kernel).cloned()
    }

    /// The frames of a stack that a sample of this recording names.
    ///
    /// # Errors
    /// All stacks that were asked for have more functions than one reader keeps.
    pub fn resolve(&self, stack: StackId) -> Result<ResolvedStack> {
        self.checked(self.reader.stack_to_keep(u32::try_from(stack.0).unwrap_or(0)))
    }

    /// As [`Recording::resolve`], for a caller that does not keep the frames: any number of stacks.
    pub fn look_at(&self, stack: StackId) -> Result<ResolvedStack> {
        self.checked(self.reader.stack(u32::try_from(stack.0).unwrap_or(0)))
    }

    pub fn interrupts(&self) -> Result<Vec<InterruptRow>> {
        self.checked(interrupts::read(&self.reader))
    }

    /// Runs and interrupts on guarded CPUs. Empty for a recording without guarded CPUs.
    pub fn intrusions(&self) -> Result<Vec<IntrusionRow>> {
        self.checked(intrusions::read(&self.reader))
    }

    /// Intervals in which the kernel delayed threads, oldest first.
    pub fn kernel_delays(&self) -> Result<Vec<KernelDelayRow>> {
        self.checked(kernel_activity::delays(&self.reader))
    }

    /// Functions called on other CPUs, by caller.
    pub fn cross_calls(&self) -> Result<Vec<CrossCallRow>> {
        self.checked(kernel_activity::cross_calls(&self.reader))
    }

    /// When control groups of recorded processes had used up their CPU quotas.
    pub fn throttled(&self) -> Result<Vec<ThrottledRow>> {
        self.checked(kernel_activity::throttled(&self.reader))
    }

    /// The stalls that the size budget folded into counts.
    pub fn folded(&self) -> Result<Vec<FoldedStalls>> {
        self.checked(folded::read(&self.reader))
    }

    /// All spans, added up by thread, kind and duration.
    pub fn span_sums(&self) -> Result<Vec<SpanDelta>> {
        self.checked(spans::sums(&self.reader))
    }

    /// Calls `found` for the spans of each second, thread, kind and length, in any order.
    pub fn each_span_cell(&self, found: impl FnMut(SpanCell)) -> Result<()> {
        self.checked(spans::each_cell(&self.reader, found))
    }

    /// Single spans, longest first.
    pub fn spans(&self) -> Result<Vec<(u64, Span)>> {
        self.checked(spans::longest(&self.reader))
    }

    /// What threads did late in busy periods, by thread and time. Their stacks are for [`Recording::resolve`].
    pub fn late_samples(&self) -> Result<Vec<LateSample>> {
        self.checked(spans::late(&self.reader))
    }

    /// The threads whose calls are known, in the order in which they were first seen.
    pub fn threads_with_calls(&self) -> Result<Vec<ThreadKey>> {
        self.checked(calls::threads(&self.reader))
    }

    /// All call paths of a thread. Empty for a thread whose calls are not known.
    pub fn calls(&self, thread: ThreadKey) -> Result<ThreadCalls> {
        self.checked(calls::read(&self.reader, thread))
    }

    pub fn counters(&self) -> Result<Counters<'_>> {
        self.checked(Counters::new(&self.reader))
    }

    /// All marks, oldest first.
    pub fn marks(&self) -> Result<Vec<Mark>> {
        self.checked(counters::marks(&self.reader))
    }

    fn checked<T>(&self, read: SqlResult<T>) -> Result<T> {
        read.map_err(|error| self.reader.failed(error))
    }
}
