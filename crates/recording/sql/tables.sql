-- The tables of a recording. The views in views.sql are what users query: they turn codes into names,
-- text ids into text and monotonic times into times of day. Numbers here are packed for size:
--   times      nanoseconds of CLOCK_MONOTONIC
--   second     seconds since the Unix epoch
--   …_code     looked up in the name tables
--   text ids   rows of text; stack ids rows of node; addresses are 64 bits, kernel ones negative
-- In keys, where NULL is not possible, 0 stands for "none": no thread, stack, text or waker has id 0.

CREATE TABLE recording (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    schema INTEGER NOT NULL,           -- as in PRAGMA user_version
    start_ns INTEGER NOT NULL,
    last_ns INTEGER NOT NULL,          -- the last moment committed
    end_ns INTEGER,                    -- NULL: never ended cleanly
    source TEXT NOT NULL,
    kernel TEXT, arch TEXT, cpus INTEGER, hostname TEXT, machine_id TEXT, boot_id TEXT, command TEXT,
    min_stall_ns INTEGER NOT NULL,
    sample_period_ns INTEGER,
    writer TEXT NOT NULL,              -- name and version of the program that wrote the file
    call_resolution_ns INTEGER         -- times of calls closer than this may be told as equal
);

-- Readings of both clocks at one moment. A time of day follows from the last one at or before it.
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
    start_ns INTEGER, end_ns INTEGER   -- observed from and until; NULL: the recording's
);

-- A thread as an event mentions it: perhaps not recorded itself.
CREATE TABLE mention (id INTEGER PRIMARY KEY, thread INTEGER, pid INTEGER NOT NULL, tid INTEGER NOT NULL, comm INTEGER NOT NULL);

CREATE TABLE module (id INTEGER PRIMARY KEY, path INTEGER NOT NULL, build_id BLOB);
CREATE TABLE frame (id INTEGER PRIMARY KEY, kind_code INTEGER NOT NULL, module INTEGER, address INTEGER NOT NULL);

-- The functions at a frame: depth 0 is the innermost inlined one, the last is the physical one.
CREATE TABLE line (
    frame INTEGER NOT NULL, depth INTEGER NOT NULL,
    symbol INTEGER, offset INTEGER, file INTEGER, line INTEGER, inlined INTEGER NOT NULL,
    PRIMARY KEY (frame, depth)
) WITHOUT ROWID;

-- Stacks as a prefix tree from the outermost frame inwards: a stack is the node of its leaf frame.
-- Nodes without a frame are the roots, one for each way in which a walk ends.
CREATE TABLE node (id INTEGER PRIMARY KEY, parent INTEGER, frame INTEGER, is_stack INTEGER NOT NULL);
CREATE TABLE root (node INTEGER PRIMARY KEY, ending TEXT NOT NULL);

-- User stacks in which the dynamic linker bound a function at its first call. depth: how many frames are the linker's,
-- the next one made the call. symbol, library: NULL where they could not be told.
CREATE TABLE binding (stack INTEGER PRIMARY KEY, depth INTEGER NOT NULL, symbol INTEGER, library INTEGER);

CREATE TABLE bucket (
    second INTEGER NOT NULL, thread INTEGER NOT NULL,
    wall_ns INTEGER NOT NULL, on_cpu_ns INTEGER NOT NULL, irq_ns INTEGER NOT NULL,
    fault_minor_ns INTEGER NOT NULL, fault_major_ns INTEGER NOT NULL, fault_on_cpu_ns INTEGER NOT NULL,
    runnable_ns INTEGER NOT NULL, preempted_ns INTEGER NOT NULL,
    EACH_REASON[, ][#_ns INTEGER NOT NULL],
    voluntary_switches INTEGER NOT NULL, involuntary_switches INTEGER NOT NULL,
    user_samples INTEGER NOT NULL, kernel_samples INTEGER NOT NULL,
    minor_faults INTEGER NOT NULL, major_faults INTEGER NOT NULL, failed_faults INTEGER NOT NULL,
    traced_user_ns INTEGER NOT NULL, traced_kernel_ns INTEGER NOT NULL, undivided_ns INTEGER NOT NULL,
    PRIMARY KEY (second, thread)
) WITHOUT ROWID;

-- Sums over the whole recording are added up by `slice`: a second since the epoch in a recording of bounded size, whose
-- oldest seconds go, and 0 in all others.

-- Log-linear buckets: below 16 the nanoseconds themselves, above 16 linear steps an octave.
CREATE TABLE latency_cell (
    slice INTEGER NOT NULL, thread INTEGER NOT NULL, metric_code INTEGER NOT NULL, bucket INTEGER NOT NULL,
    count INTEGER NOT NULL, total_ns INTEGER NOT NULL, max_ns INTEGER NOT NULL,
    PRIMARY KEY (slice, thread, metric_code, bucket)
) WITHOUT ROWID;

CREATE TABLE sample_waker (
    id INTEGER PRIMARY KEY, thread INTEGER, interrupt INTEGER NOT NULL, user_stack INTEGER, kernel_stack INTEGER
);

CREATE TABLE sample (
    second INTEGER NOT NULL, thread INTEGER NOT NULL,
    what INTEGER NOT NULL,             -- a state code, or 256 + event id
    user_stack INTEGER NOT NULL, kernel_stack INTEGER NOT NULL, waker INTEGER NOT NULL,
    weight INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (second, thread, what, user_stack, kernel_stack, waker)
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
    lock_address INTEGER, lock_owner INTEGER
);

CREATE TABLE stall_fault (
    stall INTEGER PRIMARY KEY, address INTEGER NOT NULL, access TEXT, major INTEGER NOT NULL,
    file INTEGER, file_offset INTEGER, mapping TEXT
);

-- The file whose descriptor the system call of a wait for a disk was given.
CREATE TABLE stall_file (stall INTEGER PRIMARY KEY, path INTEGER NOT NULL, offset INTEGER);

CREATE TABLE stall_ran (
    stall INTEGER NOT NULL, position INTEGER NOT NULL, mention INTEGER NOT NULL, ns INTEGER NOT NULL,
    PRIMARY KEY (stall, position)
) WITHOUT ROWID;

CREATE TABLE folded (
    slice INTEGER NOT NULL, thread INTEGER NOT NULL, reason_code INTEGER NOT NULL, voluntary INTEGER NOT NULL,
    count INTEGER NOT NULL, total_ns INTEGER NOT NULL, max_ns INTEGER NOT NULL,
    PRIMARY KEY (slice, thread, reason_code, voluntary)
) WITHOUT ROWID;

CREATE TABLE interrupt (
    slice INTEGER NOT NULL, cpu INTEGER NOT NULL, kind TEXT NOT NULL, name INTEGER NOT NULL, victim INTEGER NOT NULL,
    count INTEGER NOT NULL, total_ns INTEGER NOT NULL, max_ns INTEGER NOT NULL,
    PRIMARY KEY (slice, cpu, kind, name, victim)
) WITHOUT ROWID;

-- What was on guarded CPUs. `what` is 0 for threads, `mention` 0 where nobody in particular was there.
CREATE TABLE intrusion (
    slice INTEGER NOT NULL, cpu INTEGER NOT NULL, kind TEXT NOT NULL, what INTEGER NOT NULL, mention INTEGER NOT NULL,
    allowed INTEGER NOT NULL, count INTEGER NOT NULL, total_ns INTEGER NOT NULL, max_ns INTEGER NOT NULL,
    PRIMARY KEY (slice, cpu, kind, what, mention, allowed)
) WITHOUT ROWID;

-- Stretches of time in which the kernel did one thing for a thread: reclaim, compaction, mmap_lock, kernel_lock. They
-- are parts of what the thread did then.
CREATE TABLE kernel_work (
    slice INTEGER NOT NULL, thread INTEGER NOT NULL, kind TEXT NOT NULL, start_ns INTEGER NOT NULL, duration_ns INTEGER NOT NULL,
    PRIMARY KEY (slice, thread, kind, start_ns)
) WITHOUT ROWID;

-- Functions of the kernel that a thread had called on other CPUs, which interrupts them. caller: a mention.
CREATE TABLE cross_call (
    slice INTEGER NOT NULL, caller INTEGER NOT NULL, syscall INTEGER NOT NULL, function INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (slice, caller, syscall, function)
) WITHOUT ROWID;

-- Control groups that had used up their CPU quota between two moments, for each recorded process in them.
CREATE TABLE throttled (
    slice INTEGER NOT NULL, pid INTEGER NOT NULL, cgroup INTEGER NOT NULL, from_ns INTEGER NOT NULL, to_ns INTEGER NOT NULL,
    quota_ns INTEGER NOT NULL, period_ns INTEGER NOT NULL, count INTEGER NOT NULL, total_ns INTEGER NOT NULL,
    PRIMARY KEY (slice, pid, cgroup, from_ns)
) WITHOUT ROWID;

CREATE TABLE loss (
    slice INTEGER NOT NULL, reason TEXT NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (slice, reason)
) WITHOUT ROWID;

CREATE TABLE overhead (
    slice INTEGER PRIMARY KEY,
    process_cpu_ns INTEGER NOT NULL, probe_ns INTEGER NOT NULL, probe_runs INTEGER NOT NULL,
    table_bytes INTEGER NOT NULL
);

-- Each thread's calls as a prefix tree from the outermost frame inwards. A call path ends in a function, which is
-- the frame of its entry, or in what time went to outside known code.
CREATE TABLE call_path (
    thread INTEGER NOT NULL, id INTEGER NOT NULL,   -- numbered over all threads, parents first
    parent INTEGER,
    frame INTEGER, outside_code INTEGER,            -- one of them
    calls INTEGER NOT NULL, incomplete INTEGER NOT NULL, entered_before INTEGER NOT NULL, unwound INTEGER NOT NULL,
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
    thread INTEGER,                    -- one of the process that it is of; NULL: of the machine, or imported
    kind TEXT NOT NULL,                -- level, sum
    unit TEXT NOT NULL                 -- bytes, count, ns; empty for what was imported
);

-- A value holds until the next one. One that held for long is there again as of when it was last read.
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
