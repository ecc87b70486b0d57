// SPDX-License-Identifier: Apache-2.0
//! The stalls of the page: those that matter most, where there are more than fit.

use std::collections::{HashMap, HashSet};

use wallprof_meaning::{Site, short_name};
use wallprof_model::profile::{StallRecord, Thread};
use wallprof_model::{StallKind, ThreadKey, ThreadRef};

use crate::columns::Columns;
use crate::names::Names;
use crate::stacks::{ROOT, Stacks};

/// Limit on stalls of a page.
pub const MOST_STALLS: usize = 120_000;

/// Limit on stalls with the id of their trace: ids do not compress, and take 24 bytes each in the page.
const MOST_TRACES: usize = 20_000;

/// Bits of the column `stall_flags`.
const VOLUNTARY: u64 = 1;
const OPEN: u64 = 2;
const FAULT: u64 = 4;
const WOKEN_BY_INTERRUPT: u64 = 8;
/// It has a meaning in which a thread is not idle.
const MEANT: u64 = 16;

/// Collects stalls in any order.
#[derive(Default)]
pub struct Stalls {
    kept: Vec<StallRecord>,
    evidence: HashSet<u64>,
    pub left_out: LeftOut,
}

/// Stalls that are in the recording and not on the page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    pub voluntary: u64,
    pub others: u64,
    pub longest_ns: u64,
}

impl Stalls {
    pub fn add(&mut self, stall: StallRecord) {
        self.kept.push(stall);
        if self.kept.len() >= 2 * MOST_STALLS {
            self.truncate(MOST_STALLS);
        }
    }

    /// Keeps `most` stalls: first those of findings, then those that made threads late, the longest first.
    pub fn truncate(&mut self, most: usize) {
        if self.kept.len() <= most {
            return;
        }
        let evidence = &self.evidence;
        let rank = |stall: &StallRecord| {
            let is_evidence = evidence.contains(&stall.id);
            let late_ns = if stall.voluntary { stall.duration_ns() } else { stall.late_ns() };
            std::cmp::Reverse((is_evidence, !stall.voluntary, late_ns, std::cmp::Reverse(stall.id)))
        };
        self.kept.select_nth_unstable_by_key(most, rank);
        for stall in self.kept.drain(most..) {
            let left_out = &mut self.left_out;
            let count = if stall.voluntary { &mut left_out.voluntary } else { &mut left_out.others };
            *count += 1;
            left_out.longest_ns = left_out.longest_ns.max(stall.duration_ns());
        }
    }

    /// Sets the ids of the stalls that findings rest on.
    pub fn set_evidence(&mut self, ids: impl Iterator<Item = u64>) {
        self.evidence = ids.collect();
    }

    pub(crate) fn ids(&self) -> HashSet<u64> {
        self.kept.iter().map(|stall| stall.id).collect()
    }

    /// The stalls whose traces are on the page, by their ids: those that made threads late, the latest first.
    fn traced(&self) -> HashSet<u64> {
        let mut traced: Vec<&StallRecord> = self.kept.iter().filter(|stall| stall.trace.is_some()).collect();
        if traced.len() > MOST_TRACES {
            let rank =
                |stall: &&StallRecord| std::cmp::Reverse((!stall.voluntary, stall.late_ns(), stall.id));
            traced.select_nth_unstable_by_key(MOST_TRACES, rank);
            traced.truncate(MOST_TRACES);
        }
        traced.into_iter().map(|stall| stall.id).collect()
    }

    pub fn sort(&mut self) {
        self.kept.sort_unstable_by_key(|stall| (stall.start, stall.id));
    }

    /// `start` is the recording's.
    pub fn write(&self, texts: &mut Texts<'_>, start: u64, columns: &mut Columns) {
        let traced = self.traced();
        let row = |stall: &StallRecord| {
            let trace = stall.trace.filter(|_| traced.contains(&stall.id)).map(|ids| ids.trace_id());
            Row { trace: texts.names.optional(trace.as_deref()), ..texts.row(stall) }
        };
        let rows: Vec<Row> = self.kept.iter().map(row).collect();
        let stalls = || self.kept.iter().zip(&rows);
        let offset =
            |stall: &StallRecord| (stall.start.0.min(i64::MAX as u64) as i64).saturating_sub_unsigned(start);
        let late = |stall: &StallRecord| stall.duration_ns().saturating_sub(stall.late_ns());
        let parts = |stall: &StallRecord| {
            let sum = stall.blocked_ns.saturating_add(stall.runnable_ns);
            clamped(stall.duration_ns()) - clamped(sum)
        };
        columns.deltas("stall_id", self.kept.iter().map(|stall| clamped(stall.id)));
        columns.deltas("stall_start", self.kept.iter().map(offset));
        columns.unsigned("stall_duration", self.kept.iter().map(StallRecord::duration_ns));
        columns.unsigned("stall_not_late", self.kept.iter().map(late));
        columns.unsigned("stall_runnable", self.kept.iter().map(|stall| stall.runnable_ns));
        // Zero for nearly all.
        columns.deltas("stall_neither", self.kept.iter().map(parts));
        columns.unsigned("stall_thread", stalls().map(|(_, row)| u64::from(row.thread)));
        columns.unsigned("stall_reason", self.kept.iter().map(|stall| u64::from(stall.reason.code())));
        columns.unsigned("stall_flags", self.kept.iter().map(flags));
        columns.unsigned("stall_meaning", stalls().map(|(_, row)| u64::from(row.meaning)));
        columns.unsigned("stall_stack", stalls().map(|(_, row)| u64::from(row.stack)));
        columns.unsigned("stall_site", stalls().map(|(_, row)| u64::from(row.site)));
        columns.unsigned("stall_waker", stalls().map(|(_, row)| u64::from(row.waker)));
        columns.unsigned("stall_waker_stack", stalls().map(|(_, row)| u64::from(row.waker_stack)));
        columns.unsigned("stall_owner", stalls().map(|(_, row)| u64::from(row.owner)));
        columns.unsigned("stall_lock", stalls().map(|(_, row)| u64::from(row.lock)));
        columns.unsigned("stall_syscall", stalls().map(|(_, row)| u64::from(row.syscall)));
        columns.unsigned("stall_file", stalls().map(|(_, row)| u64::from(row.file)));
        columns.unsigned("stall_trace", stalls().map(|(_, row)| u64::from(row.trace)));
        columns.unsigned(
            "stall_cpu",
            self.kept.iter().map(|stall| stall.cpu.map_or(0, |cpu| u64::from(cpu) + 1)),
        );
        columns.unsigned(
            "stall_asked",
            self.kept.iter().map(|stall| stall.asked_ns.map_or(0, |ns| ns.saturating_add(1))),
        );
        columns.unsigned("stall_ran", rows.iter().map(|row| row.ran.len() as u64));
        let ran = || rows.iter().flat_map(|row| &row.ran);
        columns.unsigned("ran_thread", ran().map(|(mention, _)| u64::from(*mention)));
        columns.unsigned("ran_ns", ran().map(|(_, ns)| *ns));
        texts.write_mentions(columns);
    }
}

fn clamped(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn flags(stall: &StallRecord) -> u64 {
    let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
    let by_interrupt = stall.waker.as_ref().is_some_and(|waker| waker.thread.is_none());
    bit(stall.voluntary, VOLUNTARY)
        | bit(stall.open, OPEN)
        | bit(stall.kind == StallKind::Fault, FAULT)
        | bit(by_interrupt, WOKEN_BY_INTERRUPT)
        | bit(stall.meaning.as_ref().is_some_and(|meaning| !meaning.idle), MEANT)
}

/// What a stall has beside numbers, as numbers of the page. 0: it is not known.
struct Row {
    thread: u32,
    meaning: u32,
    stack: u32,
    site: u32,
    waker: u32,
    waker_stack: u32,
    owner: u32,
    lock: u32,
    syscall: u32,
    file: u32,
    trace: u32,
    ran: Vec<(u32, u64)>,
}

/// Numbers texts, stacks and threads of stalls.
pub struct Texts<'a> {
    names: &'a mut Names,
    stacks: &'a mut Stacks,
    /// The index of each recorded thread.
    threads: HashMap<ThreadKey, u32>,
    /// Thread 0 is none.
    mentions: Vec<Mention>,
    by_mention: HashMap<Mention, u32>,
    sites: HashMap<u32, u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Mention {
    /// The index of a recorded thread and 1.
    thread: u32,
    pid: u32,
    tid: u32,
    name: u32,
}

impl<'a> Texts<'a> {
    pub fn new(threads: &[Thread], names: &'a mut Names, stacks: &'a mut Stacks) -> Self {
        Texts {
            names,
            stacks,
            threads: threads.iter().zip(0..).map(|(thread, at)| (thread.info.key, at)).collect(),
            mentions: vec![Mention::default()],
            by_mention: HashMap::new(),
            sites: HashMap::new(),
        }
    }

    fn row(&mut self, stall: &StallRecord) -> Row {
        let (user, kernel) = (stall.user.as_ref(), stall.kernel.as_ref());
        let stack = self.stacks.pair(user, kernel, self.names);
        let lock = stall.lock.as_ref();
        let waker = stall.waker.as_ref();
        let meaning = stall.meaning.as_ref().map(ToString::to_string);
        let others = self.threads.get(&ThreadKey::OTHERS).copied().unwrap_or(0);
        let file = stall.file.as_ref().map(|file| file.path.as_str());
        let file = file.or_else(|| stall.fault.as_ref().and_then(|fault| fault.file.as_deref()));
        Row {
            thread: self.threads.get(&stall.thread).copied().unwrap_or(others),
            meaning: self.names.optional(meaning.as_deref()),
            stack,
            site: self.site(stack, stall),
            waker: self.mention(waker.and_then(|waker| waker.thread.as_ref())),
            waker_stack: match waker {
                Some(waker) => self.stacks.pair(waker.user.as_ref(), waker.kernel.as_ref(), self.names),
                None => ROOT,
            },
            owner: self.mention(stall.holder()),
            lock: lock.map_or(0, |lock| self.names.number(&format!("{:#x}", lock.address))),
            syscall: self.names.optional(stall.syscall.as_deref()),
            file: self.names.optional(file),
            trace: 0,
            ran: stall.ran_instead.iter().map(|(thread, ns)| (self.mention(Some(thread)), *ns)).collect(),
        }
    }

    /// `take_registry_lock ← format_error through pthread_mutex_lock`.
    fn site(&mut self, stack: u32, stall: &StallRecord) -> u32 {
        if let Some(site) = self.sites.get(&stack) {
            return *site;
        }
        let text = Site::of(stall.user.as_ref(), stall.kernel.as_ref()).map(|site| {
            let functions: Vec<String> = site.functions.iter().map(|name| short_name(name)).collect();
            let through =
                site.through.map(|name| format!(" through {}", short_name(&name))).unwrap_or_default();
            format!("{}{through}", functions.join(" ← "))
        });
        let site = self.names.optional(text.as_deref());
        self.sites.insert(stack, site);
        site
    }

    fn mention(&mut self, thread: Option<&ThreadRef>) -> u32 {
        let Some(thread) = thread else { return 0 };
        let known = thread.key.and_then(|key| self.threads.get(&key)).map_or(0, |at| at + 1);
        let name = self.names.number(&thread.comm);
        let mention = Mention { thread: known, pid: thread.pid, tid: thread.tid, name };
        let mentions = &mut self.mentions;
        *self.by_mention.entry(mention).or_insert_with(|| {
            mentions.push(mention);
            (mentions.len() - 1) as u32
        })
    }

    fn write_mentions(&self, columns: &mut Columns) {
        let all = || self.mentions.iter();
        columns.unsigned("mention_thread", all().map(|mention| u64::from(mention.thread)));
        columns.deltas("mention_pid", all().map(|mention| i64::from(mention.pid)));
        columns.deltas("mention_tid", all().map(|mention| i64::from(mention.tid)));
        columns.unsigned("mention_name", all().map(|mention| u64::from(mention.name)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::profile::WakerRecord;
    use wallprof_model::{Meaning, MeaningSource, MonoNs, Reason, StallReason, TraceIds};

    fn stall(id: u64, ns: u64, voluntary: bool) -> StallRecord {
        let reason = StallReason::Blocked(Reason::Lock);
        StallRecord {
            voluntary,
            ..StallRecord::new(id, ThreadKey(1), reason, MonoNs(100u64.saturating_sub(id)), ns)
        }
    }

    #[test]
    fn evidence_and_lateness_stay_longest_first() {
        let mut stalls = Stalls::default();
        for (id, ns, voluntary) in
            [(1, 900, true), (2, 10, false), (3, 20, false), (4, 5, false), (5, 800, true)]
        {
            stalls.add(stall(id, ns, voluntary));
        }
        stalls.set_evidence([4].into_iter());
        stalls.truncate(3);
        stalls.sort();
        let ids: Vec<u64> = stalls.kept.iter().map(|stall| stall.id).collect();
        assert_eq!(ids, [4, 3, 2], "by start");
        assert_eq!(stalls.left_out, LeftOut { voluntary: 2, others: 0, longest_ns: 900 });
        stalls.truncate(1);
        assert_eq!(stalls.left_out, LeftOut { voluntary: 2, others: 2, longest_ns: 900 });
    }

    #[test]
    fn traces_of_the_latest_stalls_are_on_the_page() {
        let mut stalls = Stalls::default();
        let traced = |id, ns, voluntary| {
            let trace = TraceIds::from_bytes([1; 16], [2; 8]);
            StallRecord { trace, ..stall(id, ns, voluntary) }
        };
        for id in 1..=MOST_TRACES as u64 {
            stalls.add(traced(id, 10 + id, false));
        }
        stalls.add(stall(0, 1_000_000, false));
        assert_eq!(stalls.traced().len(), MOST_TRACES);
        stalls.add(traced(50_000, 1_000_000, true));
        stalls.add(traced(50_001, 1_000_000, false));
        let shown = stalls.traced();
        assert_eq!(shown.len(), MOST_TRACES);
        let is_shown = [0, 1, 2, 50_000, 50_001].map(|id| shown.contains(&id));
        assert_eq!(is_shown, [false, false, true, false, true]);
    }

    #[test]
    fn lock_without_an_owner_word_was_held_by_the_thread_that_let_go() {
        let owner = |holder, idle, voluntary| {
            let (mut names, mut stacks) = (Names::default(), Stacks::with_room_for(1_000));
            let mut texts = Texts::new(&[], &mut names, &mut stacks);
            let mut wait = stall(1, 900, voluntary);
            let keeper = ThreadRef { tid: 9, comm: "keeper".into(), ..ThreadRef::default() };
            wait.waker = Some(WakerRecord { thread: Some(keeper), user: None, kernel: None });
            let (name, source) = ("row lock".into(), MeaningSource::Stack);
            wait.meaning = Some(Meaning { name, software: None, idle, holder, source }.into());
            texts.row(&wait).owner
        };
        assert_eq!(owner(true, false, false), 1);
        assert_eq!(
            [owner(false, false, false), owner(true, true, true)],
            [0, 0],
            "an answer, and an idle wait"
        );
    }

    #[test]
    fn threads_that_stalls_refer_to_are_written_once() {
        let (mut names, mut stacks) = (Names::default(), Stacks::with_room_for(1_000));
        let mut texts = Texts::new(&[], &mut names, &mut stacks);
        let keeper = ThreadRef { tid: 9, comm: "keeper".into(), ..ThreadRef::default() };
        assert_eq!(texts.mention(None), 0);
        assert_eq!((texts.mention(Some(&keeper)), texts.mention(Some(&keeper))), (1, 1));
        assert_eq!(texts.mentions[1], Mention { thread: 0, pid: 0, tid: 9, name: 1 });
    }
}
