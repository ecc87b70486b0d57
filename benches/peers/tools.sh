# SPDX-License-Identifier: Apache-2.0
# The profilers that are compared. Sourced. For each NAME in $tools: start_NAME FILE starts to record the
# whole machine into FILE, with its pid in $tool, those of further processes of it in $also, that of a process
# that receives its data in $beside, and returns when it records; prepare_NAME, if there is one, comes once
# before all rounds, and flush_NAME FILE before an interrupt ends it. The reason why a tool cannot run goes to
# $scratch/why.

tools=(nothing wallprof by_hand perf_fp perf_dwarf perf_sched bpf_offcputime bpf_runqlat bpf_profile otel sysprof)

declare -A tool_title=(
    [nothing]='nothing'
    [wallprof]='wallprof record -a'
    [by_hand]='by hand: perf dwarf, perf sched, offcputime'
    [perf_fp]='perf record -a -F 99 -g'
    [perf_dwarf]='perf record -a -F 99 --call-graph dwarf'
    [perf_sched]='perf sched record -a'
    [bpf_offcputime]='bpftrace, as offcputime'
    [bpf_runqlat]='bpftrace, as runqlat'
    [bpf_profile]='bpftrace, as profile'
    [otel]='OpenTelemetry eBPF profiler, 99 Hz'
    [sysprof]='sysprof-cli, 1,000 Hz'
)

start_nothing() {
    tool=
}

start_wallprof() {
    start_tool 'has_said recording' "$wallprof" record -a -o "$1"
}

# The tools that show CPU time with complete stacks, the threads that ran instead, and waits by stack.
start_by_hand() {
    local part
    also=()
    for part in perf_dwarf perf_sched bpf_offcputime; do
        if ! "start_$part" "$1.$part"; then
            ((${#also[@]} == 0)) || interrupt_all "${also[@]}"
            return 1
        fi
        also+=("$tool")
    done
    unset 'also[-1]'
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

# Builds the profiler that otel/go.mod names, its collector, and what lets it start where root is not
# permitted to raise a limit that it does not need.
prepare_otel() {
    have go || PATH=$PATH:/usr/local/go/bin
    needs go '1.24 or newer, https://go.dev/dl' || return 1
    mkdir -p "$built"
    (cd "$here/otel" && go build -o "$built/" ./collector go.opentelemetry.io/ebpf-profiler) >"$scratch/output" 2>&1 &&
        gcc -O2 -o "$built/unlimited" "$here/unlimited.c" >>"$scratch/output" 2>&1 && return 0
    tail -1 "$scratch/output" >"$scratch/why"
    return 1
}

start_otel() {
    local unlimited=()
    (ulimit -l unlimited) 2>/dev/null || unlimited=("$built/unlimited")
    start_tool 'has_said listening' nice -n 10 "$built/collector" listen "$1.socket" "$1" || return 1
    beside=$tool
    start_tool 'has_said Attached.sched' "${unlimited[@]}" \
        "$built/ebpf-profiler" -collection-agent "unix:$1.socket" -disable-tls -samples-per-second 99 && return 0
    interrupt "$beside"
    return 1
}

# It hands over what it has every 5 s, and what it has when it is interrupted is lost: waits for the next
# time.
flush_otel() { # FILE
    wait_until "$tool" has_grown "$1" "$(stat -c %s "$1")" || true
}

has_grown() { # PID FILE SIZE
    [[ $(stat -c %s "$2") -gt $3 ]]
}

# It is given its events by a service on the system bus, which asks polkit: a desktop runs all three. Where
# there is no bus, one comes up in this mount namespace.
prepare_sysprof() {
    needs sysprof-cli 'apt-get install sysprof' || return 1
    [[ ! -S /run/dbus/system_bus_socket ]] || return 0
    needs dbus-daemon 'apt-get install dbus' || return 1
    mkdir -p /run/dbus
    mount -t tmpfs tmpfs /run/dbus
    chmod 755 /run/dbus
    start_service test -S /run/dbus/system_bus_socket -- dbus-daemon --system --nofork --nopidfile &&
        start_service owns_name org.freedesktop.PolicyKit1 -- /usr/lib/polkit-1/polkitd --no-debug &&
        start_service owns_name org.gnome.Sysprof3 -- /usr/libexec/sysprofd
}

# Starts COMMAND for the rest of the run, its pid in $services; true once CHECK is.
start_service() { # CHECK… -- COMMAND…
    local check=() tool
    while [[ $1 != -- ]]; do
        check+=("$1")
        shift
    done
    shift
    start_tool "holds ${check[*]}" "$@" || return 1
    services+=("$tool")
    mv "$scratch/output" "$scratch/output.$tool" # it goes on writing there
}

holds() { # PID CHECK…
    "${@:2}"
}

owns_name() { # NAME
    dbus-send --system --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.NameHasOwner "string:$1" \
        2>/dev/null | grep -q 'boolean true'
}

# Its rate is fixed.
start_sysprof() {
    start_tool 'has_open perf_event' sysprof-cli --force "$1"
}

flush_tool() { # NAME FILE
    [[ $(type -t "flush_$1") != function ]] || "flush_$1" "$2"
}

# What has to happen before a person sees a flame graph of FILE; nothing where the tool draws none.
picture_of() { # TOOL FILE
    case $1 in
    wallprof) "$wallprof" flame "$2" -o "$scratch/picture.svg" >"$scratch/output" ;;
    perf_fp | perf_dwarf)
        perf script -i "$2" 2>"$scratch/output" | inferno-collapse-perf 2>/dev/null | inferno-flamegraph >"$scratch/picture.svg" 2>/dev/null
        ;;
    otel) "$built/collector" fold "$2" | inferno-flamegraph >"$scratch/picture.svg" 2>/dev/null ;;
    *) return 1 ;;
    esac
}

# Folded stacks of FILE, root first, a count at the end of each line; frames of the kernel end in _[k].
folded_of() { # TOOL FILE
    case $1 in
    wallprof) "$wallprof" export "$2" --to folded --view on-cpu -o - ;;
    perf_fp | perf_dwarf) perf script -i "$2" 2>/dev/null | inferno-collapse-perf --kernel 2>/dev/null ;;
    otel) "$built/collector" fold "$2" ;;
    *) return 1 ;;
    esac
}
