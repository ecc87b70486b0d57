# SPDX-License-Identifier: Apache-2.0
# Checks of the service inside the container, with systemd as process 1. Read by inside.sh and by tests/packages/inside.sh.
set -uo pipefail

readonly RECORDING=/var/lib/wallprof/wallprof.db
# CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYSLOG, CAP_PERFMON, CAP_BPF, CAP_CHECKPOINT_RESTORE and CAP_SYS_NICE
readonly CAPABILITIES=000001c400880004
failed=0

expect() { # WHAT COMMAND…
    if "${@:2}"; then
        echo "ok: $1"
    else
        echo "FAILED: $1"
        failed=1
    fi
}

value() { systemctl show wallprof -p "$1" --value; }
is() { [[ $(value "$1") == "$2" ]]; }
begins() { [[ $(value "$1") == "$2"* ]]; }
has_only_its_capabilities() {
    [[ $(awk '/^Cap(Eff|Bnd)/ { print $2 }' "/proc/$(value MainPID)/status" | sort -u) == "$CAPABILITIES" ]]
}
# grep reads to the end: with -q, the program before it may fail as its pipe is closed.
serves() { curl -sf --max-time 5 localhost:9101/metrics | grep '^wallprof_armed 1' >/dev/null; }
answers() { wallprof ctl status | grep '^armed' >/dev/null; }
reports_a_reload() { journalctl -u wallprof --no-pager | grep 'the configuration is in force' >/dev/null; }
runs_again() { is ActiveState active && is NRestarts 1; }
opens() { [[ $(wallprof report "$1" --json | grep -c '"schema"') == 1 ]]; }
is_one_plain_file() { [[ -e $RECORDING && ! -e $RECORDING-wal ]]; }

# Waits for CONDITION for at most 60 s.
within() { # CONDITION…
    local until=$((SECONDS + 60))
    until "$@"; do
        ((SECONDS < until)) || return 1
        sleep 0.1
    done
}

# Of a service that watches everything: started, reloaded, killed, restarted and stopped.
check_service() {
    expect 'systemd finds nothing to say of the unit' systemd-analyze verify --man=no wallprof.service
    expect 'it is up once it says so' is ActiveState active
    expect 'it says what it does' within begins StatusText 'armed, watching all threads'
    expect 'it is not root' test "$(stat -c %u "/proc/$(value MainPID)")" -ne 0
    expect 'it has no more capabilities than it names' has_only_its_capabilities
    expect 'metrics are served' within serves
    expect 'wallprof ctl finds its socket' answers
    systemctl reload wallprof
    expect 'a reload is reported' within reports_a_reload
    systemctl kill -s KILL wallprof
    expect 'killed, it is started again' within runs_again
    expect 'what the killed one recorded is kept' opens "$RECORDING.old"
    systemctl stop wallprof
    expect 'it ends well' is Result success
    expect 'it leaves a whole recording' is_one_plain_file
    expect 'which opens' opens "$RECORDING"
}

# The last line is the result.
conclude() {
    if ((failed)); then
        journalctl -u wallprof --no-pager | tail -20
        echo 'not all of it holds'
    else
        echo 'all of it holds'
    fi
    systemctl poweroff --force --force >/dev/null 2>&1
}
