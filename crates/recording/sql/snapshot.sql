-- SPDX-License-Identifier: Apache-2.0
-- Fills `main`, a new recording, with some seconds of the attached `flight`. `cut_second` has the seconds, `cut` has one
-- row: their start and end in monotonic time. Ids do not change.
--
-- `COPY table …;` stands for an INSERT of all columns of the rows that the rest of the statement selects.
-- excerpt.rs expands it.

DELETE FROM main.recording;
COPY recording;
UPDATE main.recording SET
    start_ns = (SELECT start_ns FROM cut), last_ns = (SELECT end_ns FROM cut), end_ns = (SELECT end_ns
    FROM cut);
DELETE FROM main.label;
COPY label;
DELETE FROM main.span_budget;
COPY span_budget;
DELETE FROM main.clock;
COPY clock;
COPY event;

-- By second.
COPY bucket WHERE second IN (SELECT second FROM cut_second);
COPY sample WHERE second IN (SELECT second FROM cut_second);
INSERT INTO main.latency_cell (flush_second, thread, metric_code, bucket, count, total_ns, max_ns)
    SELECT 0, thread, metric_code, bucket, sum(count), sum(total_ns), max(max_ns)
    FROM flight.latency_cell WHERE flush_second IN (SELECT second FROM cut_second)
    GROUP BY thread, metric_code, bucket;
INSERT INTO main.interrupt (flush_second, cpu, kind, name, victim, count, total_ns, max_ns)
    SELECT 0, cpu, kind, name, victim, sum(count), sum(total_ns), max(max_ns)
    FROM flight.interrupt WHERE flush_second IN (SELECT second FROM cut_second)
    GROUP BY cpu, kind, name, victim;
INSERT INTO main.intrusion (flush_second, cpu, kind, what, mention, allowed, count, total_ns, max_ns)
    SELECT 0, cpu, kind, what, mention, allowed, sum(count), sum(total_ns), max(max_ns)
    FROM flight.intrusion WHERE flush_second IN (SELECT second FROM cut_second)
    GROUP BY cpu, kind, what, mention, allowed;
INSERT INTO main.kernel_delay (flush_second, thread, kind, start_ns, duration_ns)
    SELECT 0, thread, kind, start_ns, duration_ns
    FROM flight.kernel_delay WHERE flush_second IN (SELECT second FROM cut_second);
INSERT INTO main.cross_call (flush_second, caller, syscall, function, count)
    SELECT 0, caller, syscall, function, sum(count)
    FROM flight.cross_call WHERE flush_second IN (SELECT second FROM cut_second)
    GROUP BY caller, syscall, function;
INSERT INTO main.throttled (flush_second, pid, cgroup, from_ns, to_ns, quota_ns, period_ns, count, total_ns)
    SELECT 0, pid, cgroup, from_ns, to_ns, quota_ns, period_ns, count, total_ns
    FROM flight.throttled WHERE flush_second IN (SELECT second FROM cut_second);
INSERT INTO main.span_cell (flush_second, thread, source, kind, bucket, count, max_ns,
        EACH_SPAN_STATE[, ][#_ns])
    SELECT 0, thread, source, kind, bucket, sum(count), max(max_ns), EACH_SPAN_STATE[, ][sum(#_ns)]
    FROM flight.span_cell WHERE flush_second IN (SELECT second FROM cut_second)
    GROUP BY thread, source, kind, bucket;
COPY span WHERE flush_second IN (SELECT second FROM cut_second);
COPY late_sample WHERE flush_second IN (SELECT second FROM cut_second);
INSERT INTO main.folded (flush_second, thread, reason_code, voluntary, count, total_ns, max_ns)
    SELECT 0, thread, reason_code, voluntary, sum(count), sum(total_ns), max(max_ns)
    FROM flight.folded WHERE flush_second IN (SELECT second FROM cut_second)
    GROUP BY thread, reason_code, voluntary;
INSERT INTO main.loss (flush_second, reason, count)
    SELECT 0, reason, sum(count)
    FROM flight.loss WHERE flush_second IN (SELECT second FROM cut_second) GROUP BY reason;
DELETE FROM main.overhead;
INSERT INTO main.overhead (flush_second, process_cpu_ns, probe_ns, probe_runs, behind_ns, table_bytes)
    SELECT 0, coalesce(sum(process_cpu_ns), 0), coalesce(sum(probe_ns), 0), coalesce(sum(probe_runs), 0),
        coalesce(sum(behind_ns), 0), coalesce(max(table_bytes), 0)
    FROM flight.overhead WHERE flush_second IN (SELECT second FROM cut_second);

-- By time: all that overlaps the seconds. Open stalls go on.
COPY stall
    WHERE start_ns < (SELECT end_ns FROM cut) AND (start_ns + duration_ns > (SELECT start_ns
    FROM cut) OR flags & 2);
COPY stall_fault WHERE stall IN (SELECT id FROM main.stall);
COPY stall_file WHERE stall IN (SELECT id FROM main.stall);
COPY stall_peer WHERE stall IN (SELECT id FROM main.stall);
COPY stall_owner WHERE stall IN (SELECT id FROM main.stall);
COPY stall_trace WHERE stall IN (SELECT id FROM main.stall);
COPY stall_word WHERE stall IN (SELECT id FROM main.stall);
COPY stall_ran WHERE stall IN (SELECT id FROM main.stall);
COPY mark
    WHERE mono_ns < (SELECT end_ns FROM cut) AND mono_ns + coalesce(duration_ns, 0) >= (SELECT start_ns
    FROM cut);

-- A counter's value holds until the next one: the last one before the seconds is one of them.
COPY counter_series WHERE thread IS NULL OR thread IN (SELECT thread FROM main.bucket);
COPY counter
    WHERE series IN (SELECT id FROM main.counter_series) AND mono_ns < (SELECT end_ns FROM cut)
    AND mono_ns >= coalesce(
        (SELECT max(mono_ns) FROM flight.counter AS held
         WHERE held.series = counter.series AND held.mono_ns <= (SELECT start_ns FROM cut)), 0);

-- The rows that those refer to.
COPY sample_waker WHERE id IN (SELECT waker FROM main.sample);
COPY mention WHERE id IN (
    SELECT waker FROM main.stall UNION SELECT lock_owner FROM main.stall UNION SELECT mention
    FROM main.stall_ran
    UNION SELECT mention FROM main.intrusion UNION SELECT caller FROM main.cross_call);
COPY thread WHERE id IN (
    SELECT thread FROM main.bucket UNION SELECT thread FROM main.sample UNION SELECT thread
    FROM main.latency_cell
    UNION SELECT thread FROM main.stall UNION SELECT thread FROM main.folded UNION SELECT victim
    FROM main.interrupt
    UNION SELECT thread FROM main.kernel_delay UNION SELECT thread FROM main.span_cell
    UNION SELECT thread FROM main.span UNION SELECT thread FROM main.late_sample
    UNION SELECT thread FROM main.counter_series UNION SELECT thread FROM main.mention
    UNION SELECT thread FROM main.sample_waker);
CREATE TEMP TABLE used AS WITH RECURSIVE used (id) AS (
    SELECT user_stack FROM main.sample UNION SELECT kernel_stack FROM main.sample
    UNION SELECT user_stack FROM main.late_sample UNION SELECT kernel_stack FROM main.late_sample
    UNION SELECT user_stack FROM main.sample_waker UNION SELECT kernel_stack FROM main.sample_waker
    UNION SELECT user_stack FROM main.stall UNION SELECT kernel_stack FROM main.stall
    UNION SELECT owner_stack FROM main.stall_owner
    UNION SELECT waker_user_stack FROM main.stall UNION SELECT waker_kernel_stack FROM main.stall
    UNION SELECT node.parent FROM used JOIN flight.node AS node ON node.id = used.id
) SELECT id FROM used;
-- A new recording has the roots, which are the nodes without a frame.
COPY node WHERE frame IS NOT NULL AND id IN (SELECT id FROM used);
COPY binding WHERE stack IN (SELECT id FROM main.node);
COPY frame WHERE id IN (SELECT frame FROM main.node);
COPY line WHERE frame IN (SELECT id FROM main.frame);
COPY module WHERE id IN (SELECT module FROM main.frame);
COPY text WHERE id IN (
    SELECT comm FROM main.thread UNION SELECT process FROM main.thread UNION SELECT cgroup FROM main.thread
    UNION SELECT container FROM main.thread UNION SELECT pod FROM main.thread
    UNION SELECT comm FROM main.mention UNION SELECT title FROM main.mention UNION SELECT path FROM main.module
    UNION SELECT symbol FROM main.line UNION SELECT file FROM main.line
    UNION SELECT comm FROM main.stall UNION SELECT syscall FROM main.stall UNION SELECT file
    FROM main.stall_fault
    UNION SELECT what FROM main.intrusion
    UNION SELECT name FROM main.interrupt
    UNION SELECT local FROM main.stall_peer UNION SELECT remote FROM main.stall_peer
    UNION SELECT comm FROM main.stall_peer
    UNION SELECT symbol FROM main.stall_word UNION SELECT module FROM main.stall_word
    UNION SELECT path FROM main.stall_file UNION SELECT symbol FROM main.binding UNION SELECT library
    FROM main.binding
    UNION SELECT syscall FROM main.cross_call UNION SELECT function FROM main.cross_call
    UNION SELECT cgroup FROM main.throttled UNION SELECT kind FROM main.span_cell UNION SELECT kind
    FROM main.span);
