# SPDX-License-Identifier: Apache-2.0
# The profilers that are compared. Sourced. For each NAME in $tools: start_NAME PID starts to record, with its
# own pid in $tool, and returns when it records; after its end, waits_NAME prints its waits, one a line:
#
#   {"tid", "start_ns", "end_ns", "reason", "stack": ["leaf", …], "who": [tid, …]}
#
# and runnable_ns, the part that was for a CPU, if the tool reports it. Times are nanoseconds of
# CLOCK_MONOTONIC; end_ns is null for an open wait. reason is one of docs/truth.md, null if the tool reports
# none. who lists the waker, the owner of the lock, or the threads that ran instead. The reason why a tool
# cannot run goes to $scratch/why.

# shellcheck disable=SC2034 # used by scripts that source this file
tools=(wallprof perf bpftrace otel)

declare -A tool_title=(
    [wallprof]='`wallprof record`'
    [perf]='`perf record -e sched:sched_switch -e sched:sched_waking -g`'
    [bpftrace]='bpftrace, as offcputime with the waker'
    [otel]='OpenTelemetry eBPF profiler'
)

# The tool has opened its event descriptors and waits in poll or epoll_wait: both tools print nothing when
# they are ready.
is_waiting_for() { # PID PATTERN
    has_open "$1" "$2" && [[ $(cut -d' ' -f1 "/proc/$1/syscall") =~ ^(7|232|271|281)$ ]]
}

# --- wallprof ---

start_wallprof() { # PID
    start_tool 'has_said recording' "$wallprof" record -p "$1" --min-stall 1us -o "$scratch/wallprof.db"
}

# A fault has the reason "fault". Without a waker, the threads that ran instead count.
waits_wallprof() {
    local ahead
    ahead=$(jq -r 'select(.event == "start") | .epoch_ns - .mono_ns' "$scratch/truth")
    "$wallprof" stalls --json --all "$scratch/wallprof.db" | jq -c --argjson ahead "$ahead" '{ tid,
        start_ns: (.start_ns - $ahead), end_ns: (if .open then null else .end_ns - $ahead end),
        reason: (if .kind == "fault" then "fault" else .reason end),
        runnable_ns, stack: [(.user_stack // [])[].symbol | select(.)],
        who: [.waker.tid, .lock.owner.tid, (if .waker then empty else .ran_instead[]?.tid end) | select(.)] }'
}

# --- perf ---

# The fields NAME that are one of the scenario's threads, as a filter of a tracepoint.
of_threads() { # NAME…
    jq -r --arg names "$*" 'select(.event == "start") | [.threads[].tid as $tid | ($names | split(" "))[] | "\(.) == \($tid)"]
        | join(" || ")' "$scratch/truth"
}

# Records the whole machine, because any thread may be the waker, filtered by the threads of PID. perf answers
# a ping once it records.
start_perf() { # PID
    local answer ping acknowledge
    needs perf 'apt-get install linux-perf' || return 1
    rm -f "$scratch"/{ping,answer}
    mkfifo "$scratch"/{ping,answer}
    # Open for both directions, so that no end waits for the other.
    exec {ping}<>"$scratch/ping" {acknowledge}<>"$scratch/answer"
    start_tool 'is_waiting_for perf_event' perf record -q -B -N -a -k mono -o "$scratch/perf.data" \
        --control "fifo:$scratch/ping,$scratch/answer" \
        -e sched:sched_switch --filter "$(of_threads prev_pid next_pid)" -g -e sched:sched_waking --filter "$(of_threads pid)" ||
        return 1
    echo ping >&"$ping"
    read -r -t 20 -u "$acknowledge" answer || fail 'perf does not answer'
    exec {ping}>&- {acknowledge}>&-
}

# A thread is switched out, with its stack and the next thread; is woken by a waker; and is switched in.
waits_perf() {
    perf script -i "$scratch/perf.data" --ns -F tid,time,event,trace,ip,sym 2>"$scratch/output" | awk '
        function field(name) { match($0, name "=[0-9A-Za-z+]+"); return substr($0, RSTART + length(name) + 1, RLENGTH - length(name) - 1) }
        function ns(text) { sub(/:$/, "", text); sub(/\./, "", text); return text }
        function print_wait(tid, end) {
            printf "{\"tid\":%d,\"start_ns\":%s,\"end_ns\":%s,\"reason\":%s,\"stack\":[%s],\"who\":[%d]}\n", tid, gone[tid], end,
                state[tid] ~ /^R/ ? "\"preempted\"" : "null", substr(stack[tid], 2), tid in waker ? waker[tid] : next_one[tid]
            delete gone[tid]; delete waker[tid]; delete stack[tid]
        }
        /sched:sched_switch:/ {
            at = ns($2); leaves = field("prev_pid"); comes = field("next_pid")
            if (comes in gone && comes) print_wait(comes, at)
            gone[leaves] = at; state[leaves] = field("prev_state"); next_one[leaves] = comes
            open = leaves; next
        }
        /sched:sched_waking:/ { woken = field("pid"); waker[woken] = $1; open = ""; next }
        NF == 0 { open = ""; next }
        open != "" { gsub(/["\\]/, "", $2); stack[open] = stack[open] ",\"" $2 "\"" }
        END { for (tid in gone) if (tid) print_wait(tid, "null") }'
}

# --- bpftrace ---

# Waits are kept in a map and printed at the end, so that none is lost on the way.
start_bpftrace() { # PID
    # shellcheck disable=SC2016 # bpftrace's variables
    needs bpftrace 'apt-get install bpftrace' &&
        start_tool 'is_waiting_for bpf' env BPFTRACE_MAP_KEYS_MAX=65536 BPFTRACE_CACHE_USER_SYMBOLS=1 bpftrace -o "$scratch/bpftrace.txt" -e '
            tracepoint:sched:sched_waking { @waker[args->pid] = tid; }
            tracepoint:sched:sched_switch {
                if (@gone[args->next_pid]) {
                    @wait[args->next_pid, @gone[args->next_pid], nsecs, @state[args->next_pid], @waker[args->next_pid],
                        @stack[args->next_pid]] = 1;
                    delete(@gone[args->next_pid]); delete(@waker[args->next_pid]);
                }
                if (pid == '"$1"') { @gone[tid] = nsecs; @state[tid] = args->prev_state; @stack[tid] = ustack; }
            }
            END { clear(@gone); clear(@state); clear(@waker); clear(@stack); }'
}

waits_bpftrace() {
    awk '
        /^@wait\[/ { gsub(/[^0-9 ]/, ""); tid = $1; from = $2; to = $3; state = $4; waker = $5; stack = ""; next }
        /^\]/ && tid {
            printf "{\"tid\":%d,\"start_ns\":%s,\"end_ns\":%s,\"reason\":%s,\"stack\":[%s],\"who\":[%d]}\n", tid, from, to,
                state == 0 ? "\"preempted\"" : "null", substr(stack, 2), waker
            tid = ""
        }
        NF && tid { sub(/\+[0-9]+$/, "", $1); gsub(/["\\]/, "", $1); stack = stack ",\"" $1 "\"" }' "$scratch/bpftrace.txt"
}

# --- the OpenTelemetry profiler ---

# It takes a sampled share of waits, as stacks with lengths, by a kprobe. It sends them only to a collector.
start_otel() {
    if ! grep -q ' finish_task_switch' /proc/kallsyms || [[ ! -e /sys/kernel/tracing/kprobe_events ]]; then
        echo 'it observes waits by a kprobe on finish_task_switch, and this kernel has no kprobes' >"$scratch/why"
    elif needs ebpf-profiler 'benches/peers/run.sh builds it into target/peers'; then
        echo 'it hands what it sees to a collector, as sums by stack: nothing says when a wait was' >"$scratch/why"
    fi
    return 1
}
