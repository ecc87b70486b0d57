-- Fills `main`, a new recording, with what the attached `flight` holds of some seconds. `cut` has one row: the first
-- and the last second, and both ends of them in monotonic time. Ids stay what they are.

DELETE FROM main.recording;
INSERT INTO main.recording SELECT * FROM flight.recording;
UPDATE main.recording SET
    start_ns = (SELECT start_ns FROM cut), last_ns = (SELECT end_ns FROM cut), end_ns = (SELECT end_ns FROM cut);
DELETE FROM main.clock;
INSERT INTO main.clock SELECT * FROM flight.clock;
INSERT INTO main.event SELECT * FROM flight.event;

-- By second.
INSERT INTO main.bucket SELECT * FROM flight.bucket
    WHERE second BETWEEN (SELECT first FROM cut) AND (SELECT last FROM cut);
INSERT INTO main.sample SELECT * FROM flight.sample
    WHERE second BETWEEN (SELECT first FROM cut) AND (SELECT last FROM cut);
INSERT INTO main.latency_cell SELECT 0, thread, metric_code, bucket, sum(count), sum(total_ns), max(max_ns)
    FROM flight.latency_cell WHERE slice BETWEEN (SELECT first FROM cut) AND (SELECT last FROM cut)
    GROUP BY thread, metric_code, bucket;
INSERT INTO main.interrupt SELECT 0, cpu, kind, name, victim, sum(count), sum(total_ns), max(max_ns)
    FROM flight.interrupt WHERE slice BETWEEN (SELECT first FROM cut) AND (SELECT last FROM cut)
    GROUP BY cpu, kind, name, victim;
INSERT INTO main.intrusion SELECT 0, cpu, kind, what, mention, allowed, sum(count), sum(total_ns), max(max_ns)
    FROM flight.intrusion WHERE slice BETWEEN (SELECT first FROM cut) AND (SELECT last FROM cut)
    GROUP BY cpu, kind, what, mention, allowed;
INSERT INTO main.kernel_work SELECT 0, thread, kind, start_ns, duration_ns
    FROM flight.kernel_work WHERE slice BETWEEN (SELECT first FROM cut) AND (SELECT last FROM cut);
INSERT INTO main.cross_call SELECT 0, caller, syscall, function, sum(count)
    FROM flight.cross_call WHERE slice BETWEEN (SELECT first FROM cut) AND (SELECT last FROM cut)
    GROUP BY caller, syscall, function;
INSERT INTO main.throttled SELECT 0, pid, cgroup, from_ns, to_ns, quota_ns, period_ns, count, total_ns
    FROM flight.throttled WHERE slice BETWEEN (SELECT first FROM cut) AND (SELECT last FROM cut);
INSERT INTO main.folded SELECT 0, thread, reason_code, voluntary, sum(count), sum(total_ns), max(max_ns)
    FROM flight.folded WHERE slice BETWEEN (SELECT first FROM cut) AND (SELECT last FROM cut)
    GROUP BY thread, reason_code, voluntary;
INSERT INTO main.loss SELECT 0, reason, sum(count)
    FROM flight.loss WHERE slice BETWEEN (SELECT first FROM cut) AND (SELECT last FROM cut) GROUP BY reason;
DELETE FROM main.overhead;
INSERT INTO main.overhead
    SELECT 0, coalesce(sum(process_cpu_ns), 0), coalesce(sum(probe_ns), 0), coalesce(sum(probe_runs), 0),
        coalesce(max(table_bytes), 0)
    FROM flight.overhead WHERE slice BETWEEN (SELECT first FROM cut) AND (SELECT last FROM cut);

-- By moment: all that was under way at some moment of it. What is open goes on.
INSERT INTO main.stall SELECT * FROM flight.stall
    WHERE start_ns < (SELECT end_ns FROM cut) AND (start_ns + duration_ns > (SELECT start_ns FROM cut) OR flags & 2);
INSERT INTO main.stall_fault SELECT * FROM flight.stall_fault WHERE stall IN (SELECT id FROM main.stall);
INSERT INTO main.stall_file SELECT * FROM flight.stall_file WHERE stall IN (SELECT id FROM main.stall);
INSERT INTO main.stall_ran SELECT * FROM flight.stall_ran WHERE stall IN (SELECT id FROM main.stall);
INSERT INTO main.mark SELECT * FROM flight.mark
    WHERE mono_ns < (SELECT end_ns FROM cut) AND mono_ns + coalesce(duration_ns, 0) >= (SELECT start_ns FROM cut);

-- A counter's value holds until the next one: the last one before is one of them.
INSERT INTO main.counter_series SELECT * FROM flight.counter_series
    WHERE thread IS NULL OR thread IN (SELECT thread FROM main.bucket);
INSERT INTO main.counter SELECT * FROM flight.counter AS point
    WHERE series IN (SELECT id FROM main.counter_series) AND mono_ns < (SELECT end_ns FROM cut) AND mono_ns >= coalesce(
        (SELECT max(mono_ns) FROM flight.counter AS held
         WHERE held.series = point.series AND held.mono_ns <= (SELECT start_ns FROM cut)), 0);

-- What those refer to.
INSERT INTO main.sample_waker SELECT * FROM flight.sample_waker WHERE id IN (SELECT waker FROM main.sample);
INSERT INTO main.mention SELECT * FROM flight.mention WHERE id IN (
    SELECT waker FROM main.stall UNION SELECT lock_owner FROM main.stall UNION SELECT mention FROM main.stall_ran
    UNION SELECT mention FROM main.intrusion UNION SELECT caller FROM main.cross_call);
INSERT INTO main.thread SELECT * FROM flight.thread WHERE id IN (
    SELECT thread FROM main.bucket UNION SELECT thread FROM main.sample UNION SELECT thread FROM main.latency_cell
    UNION SELECT thread FROM main.stall UNION SELECT thread FROM main.folded UNION SELECT victim FROM main.interrupt
    UNION SELECT thread FROM main.kernel_work
    UNION SELECT thread FROM main.counter_series UNION SELECT thread FROM main.mention UNION SELECT thread FROM main.sample_waker);
WITH RECURSIVE used (id) AS (
    SELECT user_stack FROM main.sample UNION SELECT kernel_stack FROM main.sample
    UNION SELECT user_stack FROM main.sample_waker UNION SELECT kernel_stack FROM main.sample_waker
    UNION SELECT user_stack FROM main.stall UNION SELECT kernel_stack FROM main.stall
    UNION SELECT waker_user_stack FROM main.stall UNION SELECT waker_kernel_stack FROM main.stall
    UNION SELECT node.parent FROM used JOIN flight.node AS node ON node.id = used.id
)
INSERT OR IGNORE INTO main.node SELECT node.* FROM flight.node AS node WHERE node.id IN (SELECT id FROM used);
INSERT INTO main.binding SELECT * FROM flight.binding WHERE stack IN (SELECT id FROM main.node);
INSERT INTO main.frame SELECT * FROM flight.frame WHERE id IN (SELECT frame FROM main.node);
INSERT INTO main.line SELECT * FROM flight.line WHERE frame IN (SELECT id FROM main.frame);
INSERT INTO main.module SELECT * FROM flight.module WHERE id IN (SELECT module FROM main.frame);
INSERT INTO main.text SELECT * FROM flight.text WHERE id IN (
    SELECT comm FROM main.thread UNION SELECT process FROM main.thread UNION SELECT cgroup FROM main.thread
    UNION SELECT comm FROM main.mention UNION SELECT path FROM main.module
    UNION SELECT symbol FROM main.line UNION SELECT file FROM main.line
    UNION SELECT comm FROM main.stall UNION SELECT syscall FROM main.stall UNION SELECT file FROM main.stall_fault
    UNION SELECT what FROM main.intrusion
    UNION SELECT name FROM main.interrupt
    UNION SELECT path FROM main.stall_file UNION SELECT symbol FROM main.binding UNION SELECT library FROM main.binding
    UNION SELECT syscall FROM main.cross_call UNION SELECT function FROM main.cross_call
    UNION SELECT cgroup FROM main.throttled);
