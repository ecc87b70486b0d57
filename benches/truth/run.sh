#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Compares profilers with ground truth: each tool of tools.sh records the same scenarios, which log their
# waits by their own clocks. check.jq counts the waits that the tool reported with the right length, reason,
# stack and waker. Writes the table of docs/truth.md.
#
# usage: benches/truth/run.sh [-w WALLPROF] [-s SECONDS] [-o PAGE] [SCENARIO…]
#
# As root, after `make release`. Ends with 1 if a row of wallprof's is not right.
set -euo pipefail

wallprof=$(dirname "$0")/../../target/release/wallprof
seconds=2
page=

# shellcheck source=benches/common.sh
. "$(dirname "$0")/../common.sh"
# shellcheck source=benches/truth/tools.sh
. "$(dirname "$0")/tools.sh"

# A scenario is right if this share of the answers is: a hypervisor holds a CPU back unseen by either clock.
right_share=0.99

# The scenarios, their options, and a description of each.
scenarios=(lock preempted fsync fault pingpong sleepers deadlock)
declare -A options=([lock]='-n 30' [pingpong]='-w 200')
declare -A about=(
    [lock]='a rare wait for a mutex that another thread holds'
    [preempted]='a thread that never sleeps loses its CPU to another'
    [fsync]='waits for a disk'
    [fault]='page faults, in user code and inside system calls, that another thread serves'
    [pingpong]='two threads that wake each other over pipes: every one of their waits'
    [sleepers]='sleep, poll, condition variable and semaphore: every one of their waits'
    [deadlock]='waits that began before the recording and never end'
)

# --- the scenarios ---

has_logged() { # PID EVENT
    grep -q "\"event\":\"$2\"" "$scratch/truth"
}

start_scenario() { # NAME
    mkfifo "$scratch/gate"
    # shellcheck disable=SC2086 # options are words
    TMPDIR=$folder "$programs/$1" -g -d "$seconds" ${options[$1]:-} <"$scratch/gate" >"$scratch/truth" &
    scenario=$!
    exec 3>"$scratch/gate"
    rm "$scratch/gate"
    wait_until "$scenario" has_logged start || fail "$1 does not start"
    # Needed before the recording starts.
    [[ $1 != deadlock ]] || open_gate "$1"
}

open_gate() { # NAME
    echo >&3
    longest=$((seconds + 200)) wait_until "$scenario" has_logged end || fail "$1 does not end"
}

end_scenario() {
    exec 3>&-
    kill -TERM "$scenario" 2>/dev/null || true
    wait "$scenario" 2>/dev/null || true
}

# The tool's answers to one scenario, as check.jq counts them; {} if it cannot run, or fails three times.
ask() { # TOOL SCENARIO
    local try
    for ((try = 0; try < 3; try++)); do
        ask_once "$1" "$2" && return 0
    done
    echo "$1 failed: $(tail -1 "$scratch/output")" >"$scratch/why"
    echo '{}'
}

# Fails if the tool's recording cannot be read.
ask_once() { # TOOL SCENARIO
    local armed_ns is_read=true
    rm -f "$scratch/why"
    start_scenario "$2"
    if ! "start_$1" "$scenario"; then
        end_scenario
        tool=
        echo '{}'
        return 0
    fi
    # The file has hundredths of seconds, cut off: at least now.
    armed_ns=$(awk '{ printf "%.0f", ($1 + 0.01) * 1e9 }' /proc/uptime)
    if [[ $2 == deadlock ]]; then
        sleep 1 # the deadlock logs no event that could be awaited
    else
        open_gate "$2"
    fi
    interrupt "$tool"
    "waits_$1" >"$scratch/waits" || is_read=false
    end_scenario
    $is_read || return 1
    jq -s --slurpfile waits "$scratch/waits" --argjson armed_ns "$armed_ns" -f "$here/check.jq" "$scratch/truth"
}

# --- the table ---

# A cell: the right answers and the number of questions; empty if there was none.
cells() { # COUNTS
    jq -r --argjson share "$right_share" 'def cell: if . == null or .asked == 0 then "" else
            "\(.right)/\(.asked)" + (if .right >= .asked * $share then " ✓" else "" end) end;
        [.seen, .length, .reason, .stack, .who | cell] | join(" | ")' <<<"$1"
}

is_right() { # COUNTS
    jq -e --argjson share "$right_share" 'length > 0 and all(.[]; .right >= .asked * $share)' <<<"$1" >"$scratch/output"
}

print_tables() { # SCENARIO…
    local name asked counts
    for name in "$@"; do
        printf '\n### %s: %s\n\n| | seen | length | reason | stack | other thread |\n| --- | ---: | ---: | ---: | ---: | ---: |\n' \
            "$name" "${about[$name]}"
        for asked in "${tools[@]}"; do
            ask "$asked" "$name" >"$scratch/counts"
            counts=$(<"$scratch/counts")
            if [[ $counts == '{}' ]]; then
                echo "| ${tool_title[$asked]} | $(<"$scratch/why") | | | | |"
            else
                echo "| ${tool_title[$asked]} | $(cells "$counts") |"
            fi
            [[ $asked != wallprof ]] || is_right "$counts" || echo "$name" >>"$scratch/wrong"
            echo "$name, $asked: $counts" | tr -d '\n ' >&2
            echo >&2
        done
    done
}

# --- main ---

usage='usage: run.sh [-w WALLPROF] [-s SECONDS] [-o PAGE] [SCENARIO…]'
arguments=("$@")
while getopts 'w:s:o:' option; do
    case $option in
    w) wallprof=$OPTARG ;;
    s) seconds=$OPTARG ;;
    o) page=$OPTARG ;;
    *) fail "$usage" ;;
    esac
done
shift $((OPTIND - 1))
[[ $(id -u) = 0 ]] || fail 'recording needs root'
have jq || fail 'jq is not installed: apt-get install jq'
[[ -x $wallprof ]] || fail "$wallprof is not there: make release, or give -w"
enter_own_mounts "${arguments[@]}"
wallprof=$(realpath "$wallprof")
here=$(dirname "$(realpath "$0")")
programs=$here/../../target/scenarios
scratch=$(mktemp -d)
# fsync needs a disk; /tmp may be in memory.
folder=$(mktemp -d -p "$here/../../target")
tool= scenario=
trap 'kill $tool $scenario 2>/dev/null || true; rm -rf "$scratch" "$folder"' EXIT
make -s -C "$here/../../scenarios"
[[ $# -gt 0 ]] || set -- "${scenarios[@]}"
{ echo && describe_machine && print_tables "$@"; } >"$scratch/table"
cat "$scratch/table"
if [[ -n $page ]]; then
    { sed '/^<!-- tables -->$/q' "$page" && cat "$scratch/table"; } >"$scratch/page"
    cp "$scratch/page" "$page"
fi
[[ ! -e $scratch/wrong ]] || fail "wallprof is not right about $(xargs <"$scratch/wrong")"
