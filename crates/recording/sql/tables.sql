-- SPDX-License-Identifier: Apache-2.0
-- The tables of a recording. Users query the views in views.sql, which turn codes into names, text ids into
-- text and monotonic times into times of day. Numbers here are packed for size:
-- - times: nanoseconds of CLOCK_MONOTONIC;
-- - second: seconds since the Unix epoch;
-- - …_code: looked up in the name tables;
-- - text ids: rows of text; stack ids: rows of node;
-- - addresses: 64 bits, kernel ones negative.
--
-- Keys cannot hold NULL. There, 0 means "none": no thread, stack, text or waker has id 0.
-- lists.rs expands the lists with an item for each sum of a ledger or for each reason.

CREATE TABLE recording (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    schema INTEGER NOT NULL,           -- as in PRAGMA user_version
    start_ns INTEGER NOT NULL,
    last_ns INTEGER NOT NULL,          -- the time of the last commit
    end_ns INTEGER,                    -- NULL: not ended cleanly
    source TEXT NOT NULL,
    kernel TEXT, arch TEXT, cpus INTEGER, hostname TEXT, machine_id TEXT, boot_id TEXT, command TEXT,
    min_stall_ns INTEGER NOT NULL,
    sample_period_ns INTEGER,
    writer TEXT NOT NULL,              -- name and version of the program that wrote the file
    call_resolution_ns INTEGER,        -- times of calls closer than this may be stored as equal
    has_turns INTEGER NOT NULL         -- 1: a poll that returns at once ends a busy period, too
);

-- What the user said about the recording.
CREATE TABLE label (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- How long spans of a kind may take, by the user's choice.
CREATE TABLE span_budget (kind TEXT PRIMARY KEY, ns INTEGER NOT NULL) WITHOUT ROWID;

-- Simultaneous readings of both clocks. A time of day is computed from the last reading at or before it.
CREATE TABLE clock (mono_ns INTEGER PRIMARY KEY, epoch_ns INTEGER NOT NULL);

CREATE TABLE state_name (code INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE reason_name (code INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE metric_name (code INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE kind_name (code INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE outside_name (code INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE event (id INTEGER PRIMARY KEY, name TEXT NOT NULL);

CREATE TABLE text (id INTEGER PRIMARY KEY, text TEXT NOT NULL);

CREATE TABLE thread (
    id INTEGER PRIMARY KEY,
    tid INTEGER NOT NULL, pid INTEGER NOT NULL, ns_tid INTEGER NOT NULL, ns_pid INTEGER NOT NULL,
    start_boot_ns INTEGER NOT NULL,    -- with tid and the boot id: the identity of the thread
    comm INTEGER NOT NULL, process INTEGER NOT NULL, cgroup INTEGER,
    kernel_thread INTEGER NOT NULL,
    start_ns INTEGER, end_ns INTEGER,  -- observed from and until; NULL: the recording's
    container INTEGER,                 -- that the path of the cgroup names
    pod INTEGER                        -- of the container: its namespace, its name, and the container's name there
);

-- A thread that an event refers to. It may be untracked. title: what its process called itself.
CREATE TABLE mention (id INTEGER PRIMARY KEY, thread INTEGER, pid INTEGER NOT NULL, tid INTEGER NOT NULL,
comm INTEGER NOT NULL, title INTEGER);

-- missing_build_id, code_offset: of a file that an import did not find. Frames in it have offsets in the
-- file, and code_offset is where its code was mapped from.
CREATE TABLE module (id INTEGER PRIMARY KEY, path INTEGER NOT NULL, build_id BLOB, missing_build_id BLOB,
code_offset INTEGER);
CREATE TABLE frame (id INTEGER PRIMARY KEY, kind_code INTEGER NOT NULL, module INTEGER,
address INTEGER NOT NULL);

-- The functions at a frame: depth 0 is the innermost inlined one, the last is the physical one.
CREATE TABLE line (
    frame INTEGER NOT NULL, depth INTEGER NOT NULL,
    symbol INTEGER, offset INTEGER, file INTEGER, line INTEGER, inlined INTEGER NOT NULL,
    PRIMARY KEY (frame, depth)
) WITHOUT ROWID;

-- Stacks as a prefix tree from the outermost frame inwards. A stack is the node of its leaf frame.
-- Nodes without a frame are the roots, one for each way in which a walk ends.
CREATE TABLE node (id INTEGER PRIMARY KEY, parent INTEGER, frame INTEGER, is_stack INTEGER NOT NULL);
CREATE TABLE root (node INTEGER PRIMARY KEY, ending TEXT NOT NULL);

-- User stacks in which the dynamic linker bound a function at its first call. depth: the number of frames of
-- the linker; the next frame made the call. symbol, library: NULL where they are unknown.
CREATE TABLE binding (stack INTEGER PRIMARY KEY, depth INTEGER NOT NULL, symbol INTEGER, library INTEGER);

CREATE TABLE bucket (
    second INTEGER NOT NULL, thread INTEGER NOT NULL,
    EACH_SUM[, ][# INTEGER NOT NULL],  -- the sums of LedgerDelta, in crates/model/src/event/ledger.rs
    EACH_REASON[, ][#_ns INTEGER NOT NULL],
    PRIMARY KEY (second, thread)
) WITHOUT ROWID;

-- Sums without a second of their own are filed under `flush_second`. In a recording of bounded size it is the
-- second of the commit, so that the sums can be deleted with it. In all others it is 0.

-- Log-linear buckets: below 16 the nanoseconds themselves, above 16 linear steps an octave.
CREATE TABLE latency_cell (
    flush_second INTEGER NOT NULL, thread INTEGER NOT NULL, metric_code INTEGER NOT NULL,
    bucket INTEGER NOT NULL,
    count INTEGER NOT NULL, total_ns INTEGER NOT NULL, max_ns INTEGER NOT NULL,
    PRIMARY KEY (flush_second, thread, metric_code, bucket)
) WITHOUT ROWID;

CREATE TABLE sample_waker (
    id INTEGER PRIMARY KEY, thread INTEGER, interrupt INTEGER NOT NULL, user_stack INTEGER,
    kernel_stack INTEGER
);

CREATE TABLE sample (
    second INTEGER NOT NULL, thread INTEGER NOT NULL,
    state_or_event INTEGER NOT NULL,   -- a state code, or 256 + event id
    user_stack INTEGER NOT NULL, kernel_stack INTEGER NOT NULL, waker INTEGER NOT NULL,
    weight INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (second, thread, state_or_event, user_stack, kernel_stack, waker)
) WITHOUT ROWID;

CREATE TABLE stall (
    id INTEGER PRIMARY KEY,
    thread INTEGER NOT NULL, comm INTEGER NOT NULL,
    reason_code INTEGER NOT NULL,
    flags INTEGER NOT NULL,            -- 1 voluntary, 2 open, 4 a fault, 8 has rows in stall_ran, 16 woken by an interrupt
    start_ns INTEGER NOT NULL, duration_ns INTEGER NOT NULL,
    blocked_ns INTEGER NOT NULL, runnable_ns INTEGER NOT NULL, asked_ns INTEGER,
    syscall INTEGER, cpu INTEGER,
    user_stack INTEGER, kernel_stack INTEGER,
    waker INTEGER, waker_user_stack INTEGER, waker_kernel_stack INTEGER,
    lock_address INTEGER, lock_owner INTEGER,
    priority INTEGER                   -- the kernel's: below 100 real-time, 120 ordinary; a lower number goes first
);

CREATE TABLE stall_fault (
    stall INTEGER PRIMARY KEY, address INTEGER NOT NULL, access TEXT, major INTEGER NOT NULL,
    file INTEGER, file_offset INTEGER, mapping TEXT
);

-- The file whose descriptor the system call of a wait for a disk was given.
CREATE TABLE stall_file (stall INTEGER PRIMARY KEY, path INTEGER NOT NULL, offset INTEGER);

-- The word in the process's memory that said what the thread waited for: the variable `symbol` of the file `module`.
CREATE TABLE stall_word (
    stall INTEGER PRIMARY KEY, symbol INTEGER NOT NULL, module INTEGER NOT NULL, value INTEGER NOT NULL
);

-- The trace that the thread worked for, and its span there: hexadecimal digits, as W3C's Trace Context has them.
CREATE TABLE stall_trace (stall INTEGER PRIMARY KEY, trace_id TEXT NOT NULL, span_id TEXT NOT NULL);

-- The other end of the socket or pipe that a system call waited on. asked: whether something was sent since the
-- thread waited there the last time. pid, comm: the process there; without pid, several of that name.
CREATE TABLE stall_peer (
    stall INTEGER PRIMARY KEY, kind TEXT NOT NULL, awaited TEXT NOT NULL, role TEXT, asked INTEGER,
    local INTEGER, remote INTEGER, inode INTEGER NOT NULL, by_child INTEGER NOT NULL, pid INTEGER, comm INTEGER
);

-- One sample of the lock's owner between the start of the wait and its wakeup.
CREATE TABLE stall_owner (stall INTEGER PRIMARY KEY, sampled_ns INTEGER NOT NULL, owner_stack INTEGER NOT NULL);

-- What waits mean, by the complete recording, as findings are. `wait` is the first of the time slices of one wait.
CREATE TABLE meaning (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, software TEXT, idle INTEGER NOT NULL, source TEXT NOT NULL
);
CREATE TABLE stall_meaning (stall INTEGER PRIMARY KEY, meaning INTEGER, wait INTEGER);

CREATE TABLE stall_ran (
    stall INTEGER NOT NULL, position INTEGER NOT NULL, mention INTEGER NOT NULL, ns INTEGER NOT NULL,
    PRIMARY KEY (stall, position)
) WITHOUT ROWID;

-- Operations of the application, by thread, kind and duration, with the time of each state in them. source:
-- busy, import, code. Buckets as in latency_cell.
CREATE TABLE span_cell (
    flush_second INTEGER NOT NULL, thread INTEGER NOT NULL, source TEXT NOT NULL, kind INTEGER NOT NULL,
    bucket INTEGER NOT NULL,
    count INTEGER NOT NULL, max_ns INTEGER NOT NULL,
    EACH_SPAN_STATE[, ][#_ns INTEGER NOT NULL],
    PRIMARY KEY (flush_second, thread, source, kind, bucket)
) WITHOUT ROWID;

-- Single spans. span_cell has them, too.
CREATE TABLE span (
    id INTEGER PRIMARY KEY, flush_second INTEGER NOT NULL,
    thread INTEGER NOT NULL, source TEXT NOT NULL, kind INTEGER NOT NULL,
    start_ns INTEGER NOT NULL, duration_ns INTEGER NOT NULL,
    EACH_SPAN_STATE[, ][#_ns INTEGER NOT NULL]
);

-- What threads did late in busy periods and marked spans: samples of the clock, and waits without a stall.
-- `sample` has them, too. A NULL `source` is `busy`.
CREATE TABLE late_sample (
    flush_second INTEGER NOT NULL, thread INTEGER NOT NULL,
    at_ns INTEGER NOT NULL, state_code INTEGER NOT NULL, ns INTEGER NOT NULL,
    user_stack INTEGER NOT NULL, kernel_stack INTEGER NOT NULL, source TEXT
);

CREATE TABLE folded (
    flush_second INTEGER NOT NULL, thread INTEGER NOT NULL, reason_code INTEGER NOT NULL,
    voluntary INTEGER NOT NULL,
    count INTEGER NOT NULL, total_ns INTEGER NOT NULL, max_ns INTEGER NOT NULL,
    PRIMARY KEY (flush_second, thread, reason_code, voluntary)
) WITHOUT ROWID;

CREATE TABLE interrupt (
    flush_second INTEGER NOT NULL, cpu INTEGER NOT NULL, kind TEXT NOT NULL, name INTEGER NOT NULL,
    victim INTEGER NOT NULL,
    count INTEGER NOT NULL, total_ns INTEGER NOT NULL, max_ns INTEGER NOT NULL,
    PRIMARY KEY (flush_second, cpu, kind, name, victim)
) WITHOUT ROWID;

-- Runs and interrupts on guarded CPUs, of allowed threads and of others. `what` is 0 for threads. `mention`
-- is 0 where no thread is known.
CREATE TABLE intrusion (
    flush_second INTEGER NOT NULL, cpu INTEGER NOT NULL, kind TEXT NOT NULL, what INTEGER NOT NULL,
    mention INTEGER NOT NULL,
    allowed INTEGER NOT NULL, count INTEGER NOT NULL, total_ns INTEGER NOT NULL, max_ns INTEGER NOT NULL,
    PRIMARY KEY (flush_second, cpu, kind, what, mention, allowed)
) WITHOUT ROWID;

-- Intervals in which the kernel delayed a thread: reclaim, compaction, mmap_lock, kernel_lock. They lie
-- within the thread's running time or waits.
CREATE TABLE kernel_delay (
    flush_second INTEGER NOT NULL, thread INTEGER NOT NULL, kind TEXT NOT NULL, start_ns INTEGER NOT NULL,
    duration_ns INTEGER NOT NULL,
    PRIMARY KEY (flush_second, thread, kind, start_ns)
) WITHOUT ROWID;

-- Kernel functions that a thread caused to be called on other CPUs, which interrupts these. caller: a
-- mention.
CREATE TABLE cross_call (
    flush_second INTEGER NOT NULL, caller INTEGER NOT NULL, syscall INTEGER NOT NULL,
    function INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (flush_second, caller, syscall, function)
) WITHOUT ROWID;

-- Control groups that used up their CPU quota between two readings, for each recorded process in them.
CREATE TABLE throttled (
    flush_second INTEGER NOT NULL, pid INTEGER NOT NULL, cgroup INTEGER NOT NULL, from_ns INTEGER NOT NULL,
    to_ns INTEGER NOT NULL,
    quota_ns INTEGER NOT NULL, period_ns INTEGER NOT NULL, count INTEGER NOT NULL, total_ns INTEGER NOT NULL,
    PRIMARY KEY (flush_second, pid, cgroup, from_ns)
) WITHOUT ROWID;

CREATE TABLE loss (
    flush_second INTEGER NOT NULL, reason TEXT NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (flush_second,
    reason)
) WITHOUT ROWID;

CREATE TABLE overhead (
    flush_second INTEGER PRIMARY KEY,
    process_cpu_ns INTEGER NOT NULL, probe_ns INTEGER NOT NULL, probe_runs INTEGER NOT NULL,
    table_bytes INTEGER NOT NULL,
    behind_ns INTEGER NOT NULL
);

-- Each thread's calls as a prefix tree from the outermost frame inwards. The last element of a call path is
-- a function, as the frame of its entry, or a kind of time outside known code.
CREATE TABLE call_path (
    thread INTEGER NOT NULL, id INTEGER NOT NULL,   -- numbered over all threads, parents first
    parent INTEGER,
    frame INTEGER, outside_code INTEGER,            -- one of them
    calls INTEGER NOT NULL, incomplete INTEGER NOT NULL, entered_before INTEGER NOT NULL,
    unwound INTEGER NOT NULL,
    self_ns INTEGER NOT NULL, total_ns INTEGER NOT NULL, complete_ns INTEGER NOT NULL,
    min_ns INTEGER, max_ns INTEGER,                 -- of complete calls
    PRIMARY KEY (thread, id)
) WITHOUT ROWID;

-- How long complete calls took, in the buckets of latency_cell.
CREATE TABLE call_cell (
    path INTEGER NOT NULL, bucket INTEGER NOT NULL,
    count INTEGER NOT NULL, total_ns INTEGER NOT NULL, max_ns INTEGER NOT NULL,
    PRIMARY KEY (path, bucket)
) WITHOUT ROWID;

CREATE TABLE counter_series (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL,
    thread INTEGER,                    -- a thread of its process; NULL: of the machine, or imported
    kind TEXT NOT NULL,                -- level, sum
    unit TEXT NOT NULL                 -- bytes, count, ns; empty: imported
);

-- A value holds until the next row. A value that held for long has a second row, at the time of its last
-- reading.
CREATE TABLE counter (
    series INTEGER NOT NULL, mono_ns INTEGER NOT NULL, value NUMERIC NOT NULL, PRIMARY KEY (series, mono_ns)
) WITHOUT ROWID;

CREATE TABLE mark (id INTEGER PRIMARY KEY, mono_ns INTEGER NOT NULL, duration_ns INTEGER, text TEXT NOT NULL);
CREATE INDEX mark_at ON mark (mono_ns);

CREATE TABLE finding (
    id INTEGER PRIMARY KEY, rule TEXT NOT NULL, title TEXT NOT NULL, advice TEXT NOT NULL,
    count INTEGER NOT NULL, total_ns INTEGER NOT NULL, max_ns INTEGER NOT NULL
);
CREATE TABLE finding_thread (
    finding INTEGER NOT NULL, thread INTEGER NOT NULL, PRIMARY KEY (finding, thread)
) WITHOUT ROWID;
CREATE TABLE finding_stall (
    finding INTEGER NOT NULL, stall INTEGER NOT NULL, PRIMARY KEY (finding, stall)
) WITHOUT ROWID;

-- Who costs whom, by the complete recording, as findings are. A process is NULL where the culprit is no thread.
CREATE TABLE blame_edge (
    waiter_process TEXT NOT NULL, waiter_thread TEXT NOT NULL,
    culprit_process TEXT, culprit_thread TEXT NOT NULL,
    state TEXT NOT NULL,
    last_process TEXT, last_thread TEXT,  -- the last thread of the chain, where it is not the culprit
    place TEXT,
    ns INTEGER NOT NULL, count INTEGER NOT NULL
);
