-- SPDX-License-Identifier: Apache-2.0
-- The views that users query. `EPOCH(x)` is the time of day of the monotonic time x. schema.rs expands it.
-- lists.rs expands the lists with an item for each sum of a ledger or for each reason.

CREATE VIEW meta AS
    SELECT 'schema' AS name, schema AS value FROM recording
    UNION ALL SELECT 'start_ns', start_ns FROM recording
    UNION ALL SELECT 'end_ns', coalesce(end_ns, last_ns) FROM recording
    UNION ALL SELECT 'start_epoch_ns', EPOCH(recording.start_ns) FROM recording
    UNION ALL SELECT 'end_epoch_ns', EPOCH(coalesce(recording.end_ns, recording.last_ns)) FROM recording
    UNION ALL SELECT 'duration_ns', coalesce(end_ns, last_ns) - start_ns FROM recording
    UNION ALL SELECT 'ended_cleanly', end_ns IS NOT NULL FROM recording
    UNION ALL SELECT 'source', source FROM recording
    UNION ALL SELECT 'kernel', kernel FROM recording
    UNION ALL SELECT 'arch', arch FROM recording
    UNION ALL SELECT 'cpus', cpus FROM recording
    UNION ALL SELECT 'hostname', hostname FROM recording
    UNION ALL SELECT 'machine_id', machine_id FROM recording
    UNION ALL SELECT 'boot_id', boot_id FROM recording
    UNION ALL SELECT 'command', command FROM recording
    UNION ALL SELECT 'min_stall_ns', min_stall_ns FROM recording
    UNION ALL SELECT 'sample_period_ns', sample_period_ns FROM recording
    UNION ALL SELECT 'writer', writer FROM recording
    UNION ALL SELECT 'call_resolution_ns', call_resolution_ns FROM recording
    UNION ALL SELECT 'has_turns', has_turns FROM recording
    UNION ALL SELECT 'process_cpu_ns', sum(process_cpu_ns) FROM overhead
    UNION ALL SELECT 'probe_ns', sum(probe_ns) FROM overhead
    UNION ALL SELECT 'probe_runs', sum(probe_runs) FROM overhead
    UNION ALL SELECT 'behind_ns', sum(behind_ns) FROM overhead
    UNION ALL SELECT 'table_bytes', max(table_bytes) FROM overhead;

CREATE VIEW labels AS SELECT key, value FROM label;

CREATE VIEW span_budgets AS SELECT kind, ns FROM span_budget;

CREATE VIEW threads AS
    SELECT thread.id, pid, tid, ns_pid, ns_tid,
        comm.text AS comm, process.text AS process, cgroup.text AS cgroup, container.text AS container, pod.text AS pod,
        kernel_thread, start_boot_ns,
        max(coalesce(thread.start_ns, recording.start_ns), recording.start_ns) AS start_ns,
        min(coalesce(thread.end_ns, recording.end_ns, recording.last_ns),
            coalesce(recording.end_ns, recording.last_ns)) AS end_ns,
        EPOCH(max(coalesce(thread.start_ns, recording.start_ns), recording.start_ns)) AS start_epoch_ns,
        EPOCH(min(coalesce(thread.end_ns, recording.end_ns, recording.last_ns),
            coalesce(recording.end_ns, recording.last_ns))) AS end_epoch_ns,
        coalesce(total.wall_ns, 0) AS wall_ns, coalesce(total.on_cpu_ns, 0) AS on_cpu_ns,
        coalesce(total.run_queue_ns, 0) AS run_queue_ns, coalesce(total.blocked_ns, 0) AS blocked_ns,
        coalesce(total.fault_ns, 0) AS fault_ns,
        coalesce(total.voluntary_switches, 0) AS voluntary_switches,
        coalesce(total.involuntary_switches, 0) AS involuntary_switches,
        coalesce(total.minor_faults, 0) AS minor_faults, coalesce(total.major_faults, 0) AS major_faults,
        coalesce(total.failed_faults, 0) AS failed_faults
    FROM thread CROSS JOIN recording
    LEFT JOIN text AS comm ON comm.id = thread.comm
    LEFT JOIN text AS process ON process.id = thread.process
    LEFT JOIN text AS cgroup ON cgroup.id = thread.cgroup
    LEFT JOIN text AS container ON container.id = thread.container
    LEFT JOIN text AS pod ON pod.id = thread.pod
    LEFT JOIN (
        SELECT thread, sum(wall_ns) AS wall_ns, sum(on_cpu_ns) AS on_cpu_ns,
            sum(runnable_ns + preempted_ns) AS run_queue_ns, sum(fault_minor_ns + fault_major_ns) AS fault_ns,
            sum(EACH_REASON[ + ][#_ns]) AS blocked_ns,
            sum(voluntary_switches) AS voluntary_switches, sum(involuntary_switches) AS involuntary_switches,
            sum(minor_faults) AS minor_faults, sum(major_faults) AS major_faults,
            sum(failed_faults) AS failed_faults
        FROM bucket GROUP BY thread
    ) AS total ON total.thread = thread.id;

-- The proportion of user time in a thread's running time where no trace gives it: that of the thread's
-- samples, or else that of its process's samples. Without any sample it is all user time, and for a kernel
-- thread all kernel time.
CREATE VIEW user_share AS
    SELECT thread.id AS thread,
        CASE WHEN own.taken > 0 THEN own.in_user WHEN process.taken > 0 THEN process.in_user
            ELSE NOT kernel_thread END AS in_user,
        CASE WHEN own.taken > 0 THEN own.taken WHEN process.taken > 0 THEN process.taken ELSE 1 END AS taken
    FROM thread
    LEFT JOIN (
        SELECT thread, sum(user_samples) AS in_user, sum(user_samples + kernel_samples) AS taken
        FROM bucket GROUP BY thread
    ) AS own ON own.thread = thread.id
    LEFT JOIN (
        SELECT thread.pid, sum(user_samples) AS in_user, sum(user_samples + kernel_samples) AS taken
        FROM bucket JOIN thread ON thread.id = bucket.thread GROUP BY thread.pid
    ) AS process ON process.pid = thread.pid;

-- One row for each second, thread and state that took time. The rows of a second add up to the part of it
-- that the thread lived. 'unaccounted' is the time in no state.
CREATE VIEW ledger AS
    SELECT second, datetime(second, 'unixepoch') AS time, thread, pid, tid, comm, state, ns
    FROM (
        SELECT bucket.second, bucket.thread, thread.pid, thread.tid, comm.text AS comm, state.name AS state,
            CASE state.name
                WHEN 'user' THEN traced_user_ns + sampled.ns * user_share.in_user / user_share.taken
                WHEN 'kernel' THEN traced_kernel_ns + sampled.ns
                    - sampled.ns * user_share.in_user / user_share.taken
                WHEN 'cpu' THEN cpu_ns
                WHEN 'irq' THEN irq_ns
                WHEN 'fault:minor' THEN fault_minor_ns
                WHEN 'fault:major' THEN fault_major_ns
                WHEN 'runnable' THEN runnable_ns
                WHEN 'preempted' THEN preempted_ns
                EACH_REASON[ ][WHEN 'blocked:#' THEN #_ns]
                WHEN 'unaccounted' THEN wall_ns - (on_cpu_ns - fault_on_cpu_ns) - fault_minor_ns - fault_major_ns
                    - runnable_ns - preempted_ns - (EACH_REASON[ + ][#_ns]) + undivided_ns
            END AS ns
        FROM bucket
        JOIN (
            SELECT second, thread, on_cpu_ns - irq_ns - fault_on_cpu_ns - traced_user_ns - traced_kernel_ns
                - undivided_ns - cpu_ns AS ns
            FROM bucket
        ) AS sampled ON sampled.second = bucket.second AND sampled.thread = bucket.thread
        CROSS JOIN (SELECT name FROM state_name UNION ALL SELECT 'unaccounted') AS state
        JOIN thread ON thread.id = bucket.thread
        LEFT JOIN text AS comm ON comm.id = thread.comm
        JOIN user_share ON user_share.thread = bucket.thread
    )
    WHERE ns <> 0;

-- Weight is in nanoseconds for a state and a count for an extra event ('event:NAME').
CREATE VIEW samples AS
    SELECT sample.second, datetime(sample.second, 'unixepoch') AS time,
        sample.thread, thread.pid, thread.tid, comm.text AS comm,
        coalesce(state_name.name, 'event:' || event.name) AS state, weight, count,
        nullif(sample.user_stack, 0) AS user_stack, nullif(sample.kernel_stack, 0) AS kernel_stack,
        CASE WHEN sample_waker.id IS NOT NULL THEN
            CASE WHEN sample_waker.interrupt THEN 'interrupt' ELSE 'task' END END AS waker_context,
        sample_waker.thread AS waker_thread, waker_comm.text AS waker_comm,
        sample_waker.user_stack AS waker_user_stack, sample_waker.kernel_stack AS waker_kernel_stack
    FROM sample
    LEFT JOIN thread ON thread.id = sample.thread
    LEFT JOIN text AS comm ON comm.id = thread.comm
    LEFT JOIN state_name ON state_name.code = sample.state_or_event
    LEFT JOIN event ON event.id = sample.state_or_event - 256
    LEFT JOIN sample_waker ON sample_waker.id = sample.waker
    LEFT JOIN thread AS waker_thread ON waker_thread.id = sample_waker.thread
    LEFT JOIN text AS waker_comm ON waker_comm.id = waker_thread.comm;

-- `late_ns` follows crates/model/src/lateness.rs.
CREATE VIEW stalls AS
    SELECT stall.id, stall.start_ns, stall.start_ns + stall.duration_ns AS end_ns, stall.duration_ns,
        stall.duration_ns - CASE
            WHEN asked_ns < stall.duration_ns AND asked_ns <= blocked_ns
                AND lock_address IS NULL AND coalesce(meaning.idle, 1)
                AND reason_name.name IN (EACH_VOLUNTARY_REASON[, ]['#'], 'runnable')
            THEN asked_ns ELSE 0 END AS late_ns,
        EPOCH(stall.start_ns) AS start_epoch_ns,
        EPOCH(stall.start_ns) + stall.duration_ns AS end_epoch_ns,
        (flags & 2) <> 0 AS open,
        stall.thread, thread.pid, thread.tid, comm.text AS comm,
        CASE WHEN flags & 4 THEN 'fault' ELSE 'off-cpu' END AS kind,
        reason_name.name AS reason,
        CASE
            WHEN meaning.id IS NULL THEN (flags & 1) <> 0
            WHEN reason_name.name IN (EACH_VOLUNTARY_REASON[, ]['#']) THEN meaning.idle AND (flags & 1) <> 0
            ELSE meaning.idle END AS voluntary,
        meaning.name AS meaning, meaning.software AS meaning_software, meaning.idle AS meaning_idle,
        meaning.source AS meaning_source, coalesce(stall_meaning.wait, stall.id) AS wait_id,
        stall.blocked_ns, stall.runnable_ns, stall.asked_ns, syscall.text AS syscall, stall.cpu,
        stall.user_stack, stall.kernel_stack,
        CASE WHEN flags & 16 THEN 'interrupt' WHEN stall.waker IS NOT NULL THEN 'task' END AS waker_context,
        waker.thread AS waker_thread, waker.pid AS waker_pid, waker.tid AS waker_tid,
        waker_comm.text AS waker_comm,
        stall.waker_user_stack, stall.waker_kernel_stack,
        CASE WHEN lock_address <> 0 THEN printf('0x%x', lock_address) END AS lock_address,
        owner.thread AS lock_owner_thread, owner.tid AS lock_owner_tid, owner_comm.text AS lock_owner_comm,
        waker_title.text AS waker_title, owner_title.text AS lock_owner_title, stall.priority
    FROM stall
    LEFT JOIN stall_meaning ON stall_meaning.stall = stall.id
    LEFT JOIN meaning ON meaning.id = stall_meaning.meaning
    LEFT JOIN thread ON thread.id = stall.thread
    LEFT JOIN text AS comm ON comm.id = stall.comm
    LEFT JOIN text AS syscall ON syscall.id = stall.syscall
    LEFT JOIN reason_name ON reason_name.code = stall.reason_code
    LEFT JOIN mention AS waker ON waker.id = stall.waker
    LEFT JOIN text AS waker_comm ON waker_comm.id = waker.comm
    LEFT JOIN mention AS owner ON owner.id = stall.lock_owner
    LEFT JOIN text AS owner_comm ON owner_comm.id = owner.comm
    LEFT JOIN text AS waker_title ON waker_title.id = waker.title
    LEFT JOIN text AS owner_title ON owner_title.id = owner.title;

-- The threads that had the CPU while the thread of a stall waited for it, most time first.
CREATE VIEW ran_instead AS
    SELECT stall_ran.stall, stall_ran.position, mention.thread, mention.pid, mention.tid, comm.text AS comm,
    stall_ran.ns
    FROM stall_ran
    LEFT JOIN mention ON mention.id = stall_ran.mention
    LEFT JOIN text AS comm ON comm.id = mention.comm;

CREATE VIEW faults AS
    SELECT stall_fault.stall, stalls.start_ns, stalls.start_epoch_ns, stalls.duration_ns, stalls.thread,
    stalls.pid,
        stalls.tid, stalls.comm, printf('0x%x', stall_fault.address) AS address, stall_fault.access,
        stall_fault.major, stall_fault.mapping, file.text AS file, stall_fault.file_offset,
        stalls.user_stack, stalls.kernel_stack
    FROM stall_fault
    JOIN stalls ON stalls.id = stall_fault.stall
    LEFT JOIN text AS file ON file.id = stall_fault.file;

-- The files behind waits for a disk.
CREATE VIEW disk_waits AS
    SELECT stalls.id AS stall, stalls.start_ns, stalls.start_epoch_ns, stalls.duration_ns, stalls.thread,
    stalls.pid,
        stalls.tid, stalls.comm, stalls.syscall, path.text AS file, stall_file.offset AS file_offset
    FROM stall_file
    JOIN stalls ON stalls.id = stall_file.stall
    LEFT JOIN text AS path ON path.id = stall_file.path;

-- The other ends of waits on sockets and pipes.
CREATE VIEW wait_peers AS
    SELECT stalls.id AS stall, stalls.start_ns, stalls.start_epoch_ns, stalls.duration_ns, stalls.thread,
    stalls.pid,
        stalls.tid, stalls.comm, stalls.syscall, stall_peer.kind, stall_peer.awaited, stall_peer.role,
        stall_peer.asked, local.text AS local, remote.text AS remote, stall_peer.inode, stall_peer.by_child,
        stall_peer.pid AS peer_pid, comm.text AS peer_comm
    FROM stall_peer
    JOIN stalls ON stalls.id = stall_peer.stall
    LEFT JOIN text AS local ON local.id = stall_peer.local
    LEFT JOIN text AS remote ON remote.id = stall_peer.remote
    LEFT JOIN text AS comm ON comm.id = stall_peer.comm;

-- What words in memory said about waits.
CREATE VIEW wait_words AS
    SELECT stalls.id AS stall, stalls.start_ns, stalls.start_epoch_ns, stalls.duration_ns, stalls.thread,
    stalls.pid,
        stalls.tid, stalls.comm, symbol.text AS symbol, module.text AS module, stall_word.value
    FROM stall_word
    JOIN stalls ON stalls.id = stall_word.stall
    LEFT JOIN text AS symbol ON symbol.id = stall_word.symbol
    LEFT JOIN text AS module ON module.id = stall_word.module;

-- Stalls of threads that worked for a trace.
CREATE VIEW traced_stalls AS
    SELECT stall_trace.trace_id, stall_trace.span_id, stalls.id AS stall, stalls.start_ns, stalls.start_epoch_ns,
        stalls.duration_ns, stalls.thread, stalls.pid, stalls.tid, stalls.comm, stalls.reason
    FROM stall_trace
    JOIN stalls ON stalls.id = stall_trace.stall;

-- User stacks in which the dynamic linker bound a function at its first call.
CREATE VIEW bindings AS
    SELECT binding.stack, binding.depth, symbol.text AS symbol, library.text AS library
    FROM binding
    LEFT JOIN text AS symbol ON symbol.id = binding.symbol
    LEFT JOIN text AS library ON library.id = binding.library;

CREATE VIEW kernel_works AS
    SELECT kernel_delay.thread, thread.pid, thread.tid, comm.text AS comm, kind, kernel_delay.start_ns,
        EPOCH(kernel_delay.start_ns) AS start_epoch_ns, kernel_delay.duration_ns
    FROM kernel_delay
    LEFT JOIN thread ON thread.id = kernel_delay.thread
    LEFT JOIN text AS comm ON comm.id = thread.comm;

CREATE VIEW cross_calls AS
    SELECT mention.thread, mention.pid, mention.tid, comm.text AS comm, syscall.text AS syscall,
        function.text AS function, cross_call.count
    FROM (
        SELECT caller, syscall, function, sum(count) AS count FROM cross_call GROUP BY caller, syscall,
        function
    ) AS cross_call
    LEFT JOIN mention ON mention.id = cross_call.caller
    LEFT JOIN text AS comm ON comm.id = mention.comm
    LEFT JOIN text AS syscall ON syscall.id = cross_call.syscall
    LEFT JOIN text AS function ON function.id = cross_call.function;

CREATE VIEW throttling AS
    SELECT throttled.pid, cgroup.text AS cgroup, throttled.from_ns, throttled.to_ns,
        EPOCH(throttled.from_ns) AS from_epoch_ns, throttled.quota_ns, throttled.period_ns, throttled.count,
        throttled.total_ns
    FROM throttled
    LEFT JOIN text AS cgroup ON cgroup.id = throttled.cgroup;

-- Stalls that the size budget folded into counts.
CREATE VIEW folded_stalls AS
    SELECT folded.thread, thread.pid, thread.tid, comm.text AS comm, reason_name.name AS reason,
    folded.voluntary,
        folded.count, folded.total_ns, folded.max_ns
    FROM (
        SELECT thread, reason_code, voluntary, sum(count) AS count, sum(total_ns) AS total_ns,
        max(max_ns) AS max_ns
        FROM folded GROUP BY thread, reason_code, voluntary
    ) AS folded
    LEFT JOIN thread ON thread.id = folded.thread
    LEFT JOIN text AS comm ON comm.id = thread.comm
    LEFT JOIN reason_name ON reason_name.code = folded.reason_code;

-- One row for each function. A frame with inlined functions has several, the innermost at inline_depth 0.
CREATE VIEW frames AS
    SELECT frame.id AS frame, coalesce(line.depth, 0) AS inline_depth, kind_name.name AS kind,
        symbol.text AS symbol, line.offset AS offset, path.text AS module,
        lower(hex(module.build_id)) AS build_id,
        printf('0x%x', frame.address) AS address, file.text AS file, line.line AS line,
        coalesce(line.inlined, 0) AS inlined
    FROM frame
    LEFT JOIN kind_name ON kind_name.code = frame.kind_code
    LEFT JOIN line ON line.frame = frame.id
    LEFT JOIN text AS symbol ON symbol.id = line.symbol
    LEFT JOIN text AS file ON file.id = line.file
    LEFT JOIN module ON module.id = frame.module
    LEFT JOIN text AS path ON path.id = module.path;

-- The frames of each stack, the leaf at depth 0.
CREATE VIEW stacks AS
    SELECT node.id AS stack, path.key AS depth, frames.frame, frames.inline_depth, frames.symbol,
    frames.offset,
        frames.module, frames.address, frames.kind, frames.file, frames.line
    FROM node
    JOIN json_each((
        WITH RECURSIVE up (frame, parent) AS (
            SELECT node.frame, node.parent
            UNION ALL
            SELECT above.frame, above.parent FROM up JOIN node AS above ON above.id = up.parent
            WHERE above.frame IS NOT NULL
        )
        SELECT json_group_array(frame) FROM up
    )) AS path
    JOIN frames ON frames.frame = path.value
    WHERE node.is_stack AND node.frame IS NOT NULL;

-- Each stack as one text, leaf first. An unknown function is shown as its module and address.
CREATE VIEW stack_texts AS
    SELECT node.id AS stack, (
        WITH RECURSIVE up (frame, parent) AS (
            SELECT node.frame, node.parent
            UNION ALL
            SELECT above.frame, above.parent FROM up JOIN node AS above ON above.id = up.parent
            WHERE above.frame IS NOT NULL
        )
        SELECT group_concat(coalesce(frames.symbol, frames.module || '+' || frames.address, frames.address),
        ' < ')
        FROM up CROSS JOIN frames ON frames.frame = up.frame
    ) AS stack_text, (
        WITH RECURSIVE up (id, parent) AS (
            SELECT node.id, node.parent
            UNION ALL
            SELECT above.id, above.parent FROM up JOIN node AS above ON above.id = up.parent
        )
        SELECT root.ending FROM up JOIN root ON root.node = up.id
    ) AS ending
    FROM node WHERE node.is_stack;

CREATE VIEW latency AS
    SELECT thread, thread_pid AS pid, thread_tid AS tid, comm, metric,
        CASE WHEN bucket < 16 THEN bucket ELSE (16 + bucket % 16) << (bucket / 16 - 1) END AS from_ns,
        CASE WHEN bucket < 16 THEN bucket + 1 ELSE (17 + bucket % 16) << (bucket / 16 - 1) END AS to_ns,
        count, total_ns, max_ns
    FROM (
        SELECT latency_cell.thread, latency_cell.bucket, latency_cell.count, latency_cell.total_ns,
            latency_cell.max_ns, metric_name.name AS metric, comm.text AS comm,
            thread.pid AS thread_pid, thread.tid AS thread_tid
        FROM (
            SELECT thread, metric_code, bucket, sum(count) AS count, sum(total_ns) AS total_ns,
            max(max_ns) AS max_ns
            FROM latency_cell GROUP BY thread, metric_code, bucket
        ) AS latency_cell
        LEFT JOIN thread ON thread.id = latency_cell.thread
        LEFT JOIN text AS comm ON comm.id = thread.comm
        LEFT JOIN metric_name ON metric_name.code = latency_cell.metric_code
    );

CREATE VIEW spans AS
    SELECT span.id, span.source, kind.text AS kind, span.thread, thread.pid, thread.tid, comm.text AS comm,
        EPOCH(span.start_ns) AS start_epoch_ns, duration_ns, EACH_SPAN_STATE[, ][#_ns]
    FROM span
    LEFT JOIN text AS kind ON kind.id = span.kind
    LEFT JOIN thread ON thread.id = span.thread
    LEFT JOIN text AS comm ON comm.id = thread.comm;

CREATE VIEW late_samples AS
    SELECT late_sample.thread, thread.pid, thread.tid, comm.text AS comm, EPOCH(at_ns) AS at_epoch_ns,
        state_name.name AS state, ns,
        nullif(late_sample.user_stack, 0) AS user_stack, nullif(late_sample.kernel_stack, 0) AS kernel_stack,
        coalesce(late_sample.source, 'busy') AS source
    FROM late_sample
    LEFT JOIN thread ON thread.id = late_sample.thread
    LEFT JOIN text AS comm ON comm.id = thread.comm
    LEFT JOIN state_name ON state_name.code = late_sample.state_code;

CREATE VIEW span_latency AS
    SELECT source, kind.text AS kind, thread, thread_pid AS pid, thread_tid AS tid, comm,
        CASE WHEN bucket < 16 THEN bucket ELSE (16 + bucket % 16) << (bucket / 16 - 1) END AS from_ns,
        CASE WHEN bucket < 16 THEN bucket + 1 ELSE (17 + bucket % 16) << (bucket / 16 - 1) END AS to_ns,
        count, max_ns, EACH_SPAN_STATE[, ][#_ns]
    FROM (
        SELECT span_cell.*, thread.pid AS thread_pid, thread.tid AS thread_tid, comm.text AS comm
        FROM (
            SELECT source, kind, thread, bucket, sum(count) AS count, max(max_ns) AS max_ns,
                EACH_SPAN_STATE[, ][sum(#_ns) AS #_ns]
            FROM span_cell GROUP BY source, kind, thread, bucket
        ) AS span_cell
        LEFT JOIN thread ON thread.id = span_cell.thread
        LEFT JOIN text AS comm ON comm.id = thread.comm
    ) AS cell
    LEFT JOIN text AS kind ON kind.id = cell.kind;

CREATE VIEW interrupts AS
    SELECT cpu, kind, name.text AS name, nullif(victim, 0) AS victim_thread, comm.text AS victim_comm,
        count, total_ns, max_ns
    FROM (
        SELECT cpu, kind, name, victim, sum(count) AS count, sum(total_ns) AS total_ns, max(max_ns) AS max_ns
        FROM interrupt GROUP BY cpu, kind, name, victim
    ) AS interrupt
    LEFT JOIN text AS name ON name.id = interrupt.name
    LEFT JOIN thread ON thread.id = interrupt.victim
    LEFT JOIN text AS comm ON comm.id = thread.comm;

CREATE VIEW intrusions AS
    SELECT cpu, kind, what.text AS what, mention.thread, mention.pid, mention.tid, comm.text AS comm, allowed,
        sum(count) AS count, sum(total_ns) AS total_ns, max(max_ns) AS max_ns
    FROM intrusion
    LEFT JOIN text AS what ON what.id = intrusion.what
    LEFT JOIN mention ON mention.id = intrusion.mention
    LEFT JOIN text AS comm ON comm.id = mention.comm
    GROUP BY cpu, kind, intrusion.what, intrusion.mention, allowed;

-- One row for each call path. Where time passed outside known code, `frame` is NULL and `function` names the
-- place.
CREATE VIEW calls AS
    SELECT call_path.id AS path, parent, call_path.thread, thread.pid, thread.tid, comm.text AS comm,
        coalesce(symbol.text, outside_name.name, path.text || printf('+0x%x', frame.address),
            printf('0x%x', frame.address)) AS function,
        call_path.frame, symbol.text AS symbol, path.text AS module,
        calls, incomplete, entered_before, unwound, self_ns, total_ns, complete_ns,
        CASE WHEN calls > 0 THEN complete_ns / calls END AS avg_ns, min_ns, max_ns
    FROM call_path
    LEFT JOIN thread ON thread.id = call_path.thread
    LEFT JOIN text AS comm ON comm.id = thread.comm
    LEFT JOIN outside_name ON outside_name.code = call_path.outside_code
    LEFT JOIN frame ON frame.id = call_path.frame
    LEFT JOIN line ON line.frame = frame.id AND NOT line.inlined
    LEFT JOIN text AS symbol ON symbol.id = line.symbol
    LEFT JOIN module ON module.id = frame.module
    LEFT JOIN text AS path ON path.id = module.path;

-- One row for each thread and function. Recursive calls count within the outermost one: total_ns is the time
-- in which at least one call of the function was open.
CREATE VIEW functions AS
    SELECT thread, pid, tid, comm, function, frame, symbol, module,
        sum(calls) AS calls, sum(incomplete) AS incomplete, sum(self_ns) AS self_ns,
        sum(CASE WHEN (
            WITH RECURSIVE up (parent, frame, outside_code) AS (
                SELECT above.parent, above.frame, above.outside_code FROM call_path AS above
                WHERE above.thread = each.thread AND above.id = each.parent
                UNION ALL
                SELECT above.parent, above.frame, above.outside_code FROM up
                JOIN call_path AS above ON above.thread = each.thread AND above.id = up.parent
            )
            SELECT count(*) FROM up WHERE up.frame IS each.frame
                AND (each.frame IS NOT NULL OR up.outside_code IS each.outside_code)
        ) = 0 THEN total_ns ELSE 0 END) AS total_ns,
        CASE WHEN sum(calls) > 0 THEN sum(complete_ns) / sum(calls) END AS avg_ns,
        min(min_ns) AS min_ns, max(max_ns) AS max_ns
    FROM (
        SELECT calls.path, calls.parent, calls.thread, calls.pid, calls.tid, calls.comm, calls.function,
        calls.frame,
            calls.symbol, calls.module, calls.calls, calls.incomplete, calls.self_ns, calls.total_ns,
            calls.complete_ns, calls.min_ns, calls.max_ns, call_path.outside_code
        FROM calls
        JOIN call_path ON call_path.thread = calls.thread AND call_path.id = calls.path
    ) AS each
    GROUP BY thread, frame, outside_code;

CREATE VIEW call_latency AS
    SELECT path,
        CASE WHEN bucket < 16 THEN bucket ELSE (16 + bucket % 16) << (bucket / 16 - 1) END AS from_ns,
        CASE WHEN bucket < 16 THEN bucket + 1 ELSE (17 + bucket % 16) << (bucket / 16 - 1) END AS to_ns,
        count, total_ns, max_ns
    FROM call_cell;

CREATE VIEW losses AS SELECT reason, sum(count) AS count FROM loss GROUP BY reason;

CREATE VIEW counters AS
    SELECT counter_series.name, counter_series.thread, thread.pid, counter.mono_ns AS at_ns,
        EPOCH(counter.mono_ns) AS at_epoch_ns, counter.value, counter_series.kind, counter_series.unit
    FROM counter JOIN counter_series ON counter_series.id = counter.series
        LEFT JOIN thread ON thread.id = counter_series.thread;

CREATE VIEW marks AS
    SELECT id, mark.mono_ns AS at_ns, EPOCH(mark.mono_ns) AS at_epoch_ns, duration_ns, text FROM mark;

CREATE VIEW blame AS
    SELECT waiter_process, waiter_thread, culprit_process, culprit_thread, state, last_process, last_thread,
        place, ns, count
    FROM blame_edge;

CREATE VIEW findings AS
    SELECT id, rule, title, advice, count, total_ns, max_ns,
        (SELECT json_group_array(thread) FROM finding_thread WHERE finding = finding.id) AS threads,
        (SELECT json_group_array(stall) FROM finding_stall WHERE finding = finding.id) AS stalls
    FROM finding;
