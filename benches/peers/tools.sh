# The profilers that are compared. Sourced. For each NAME in $tools: start_NAME FILE begins to record the whole machine
# into FILE, with its pid in $tool, and returns when it records. What a tool cannot do goes to $scratch/why.

tools=(nothing wallprof perf_fp perf_dwarf perf_sched bpf_offcputime bpf_runqlat bpf_profile otel sysprof)

declare -A tool_title=(
    [nothing]='nothing'
    [wallprof]='wallprof record -a'
    [perf_fp]='perf record -a -F 99 -g'
    [perf_dwarf]='perf record -a -F 99 --call-graph dwarf'
    [perf_sched]='perf sched record -a'
    [bpf_offcputime]='bpftrace, as offcputime'
    [bpf_runqlat]='bpftrace, as runqlat'
    [bpf_profile]='bpftrace, as profile'
    [otel]='OpenTelemetry eBPF profiler'
    [sysprof]='sysprof-cli'
)

start_nothing() {
    tool=
}

start_wallprof() {
    start_tool 'has_said recording' "$wallprof" record -a -o "$1"
}

start_perf_fp() {
    needs perf 'apt-get install linux-perf' &&
        start_tool 'has_open perf_event' perf record -q -B -N -a -F 99 -g -o "$1"
}

start_perf_dwarf() {
    needs perf 'apt-get install linux-perf' &&
        start_tool 'has_open perf_event' perf record -q -B -N -a -F 99 --call-graph dwarf -o "$1"
}

start_perf_sched() {
    needs perf 'apt-get install linux-perf' &&
        start_tool 'has_open perf_event' perf sched record -a -o "$1"
}

start_bpftrace() { # FILE PROGRAM
    needs bpftrace 'apt-get install bpftrace' &&
        start_tool 'has_open bpf' bpftrace -o "$1" -e "$2"
}

start_bpf_offcputime() {
    # shellcheck disable=SC2016 # bpftrace's variables
    start_bpftrace "$1" 'tracepoint:sched:sched_switch {
            @start[args->prev_pid] = nsecs;
            if (@start[args->next_pid]) { @ns[kstack, ustack, comm] = sum(nsecs - @start[args->next_pid]); }
            delete(@start[args->next_pid]);
        } END { clear(@start); }'
}

start_bpf_runqlat() {
    # shellcheck disable=SC2016
    start_bpftrace "$1" 'tracepoint:sched:sched_wakeup, tracepoint:sched:sched_wakeup_new { @at[args->pid] = nsecs; }
        tracepoint:sched:sched_switch {
            if (args->prev_state == 0) { @at[args->prev_pid] = nsecs; }
            if (@at[args->next_pid]) { @us = hist((nsecs - @at[args->next_pid]) / 1000); }
            delete(@at[args->next_pid]);
        } END { clear(@at); }'
}

start_bpf_profile() {
    start_bpftrace "$1" 'profile:hz:99 { @[kstack, ustack, comm] = count(); }'
}

# Its reports go to a collector; this one has none, so that only the recording is measured.
start_otel() {
    needs ebpf-profiler 'go install go.opentelemetry.io/ebpf-profiler' &&
        start_tool 'has_open bpf' ebpf-profiler -collection-agent 127.0.0.1:1 -disable-tls -samples-per-second 99
}

start_sysprof() {
    needs sysprof-cli 'apt-get install sysprof' &&
        start_tool 'has_open perf_event' sysprof-cli --force "$1"
}

# What has to happen before a person sees a flame graph of FILE; nothing where the tool draws none.
picture_of() { # TOOL FILE
    case $1 in
    wallprof) "$wallprof" flame "$2" -o "$scratch/picture.svg" >"$scratch/output" ;;
    perf_fp | perf_dwarf)
        perf script -i "$2" 2>"$scratch/output" | inferno-collapse-perf 2>/dev/null | inferno-flamegraph >"$scratch/picture.svg" 2>/dev/null
        ;;
    *) return 1 ;;
    esac
}

# Folded user stacks of FILE, root first, a count at the end of each line.
folded_of() { # TOOL FILE
    case $1 in
    wallprof) "$wallprof" export "$2" --to folded --view on-cpu --user -o - ;;
    perf_fp | perf_dwarf) perf script -i "$2" 2>/dev/null | inferno-collapse-perf 2>/dev/null ;;
    *) return 1 ;;
    esac
}
