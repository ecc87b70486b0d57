#!/bin/bash
# Every attack of docs/reliability.md that is a test, by the module that holds it. `make test` runs the same tests among all
# others; here a flood has a million rows, and a line whose tests are gone is an error.
#
# usage: tests/neighbours/attacks.sh [PACKAGE…]      all packages if none is named
set -euo pipefail
cd "$(dirname "$0")/../.."

export WALLPROF_FLOOD_ROWS=${WALLPROF_FLOOD_ROWS:-1000000}
only=("$@")

is_wanted() { # PACKAGE
    local package
    ((${#only[@]})) || return 0
    for package in "${only[@]}"; do
        [[ $package == "$1" ]] && return 0
    done
    return 1
}

failed=()
attack() { # WHAT PACKAGE CARGO-TARGET [MODULE…]
    local what=$1 package=$2 target=$3 output
    shift 3
    is_wanted "$package" || return 0
    echo "== $what ($package)"
    # shellcheck disable=SC2086
    if ! output=$(cargo test -q -p "$package" $target -- "$@" 2>&1); then
        echo "$output" | tail -60
        failed+=("$what")
    elif ! echo "$output" | grep -q '[1-9][0-9]* passed'; then
        echo "no test in $target has ${*:-a name}: it was renamed" >&2
        failed+=("$what")
    fi
}

# Files of other users.
attack 'files that are cut short, sparse files, floods of symbols' wallprof-symbols '--test foreign_files'
attack 'crafted ELF and debug information' wallprof-symbols '--test hostile'
attack 'private copies, shared time, copied build ids' wallprof-symbols --lib private_copy work_limits module
attack 'files that are cut short while their unwind table is built' wallprof-unwind --lib file_image image
attack 'budgets of the unwind builders, floods of files' wallprof-live --lib build_budget known
attack 'floods of unwind rules' wallprof-probe --lib rule_numbers
attack 'sparse files that a perf.data names' wallprof-import --lib build_budget
# Links, FIFOs, rights.
attack 'links in sticky folders' wallprof-recording --lib place
attack 'FIFOs, rights of the caller, private pictures' wallprof '--test cli' neighbours
# Recordings and traces of others.
attack 'damaged recordings, SQL of their own' wallprof-recording '--test foreign_files'
attack 'what a reader holds' wallprof-recording --lib bounds foreign
attack 'hostile rows, floods of rows, SQL of a file in every command' wallprof '--test hostile'
attack 'hostile traces' wallprof-intel-pt '--test hostile'
# Names.
attack 'names that steer a terminal' wallprof-views '--test hostile'
attack 'names in metrics' wallprof-watch --lib openmetrics series
# The network.
attack 'slow clients, DNS rebinding, pages of other sites' wallprof-watch --lib http
if [[ $(id -u) == 0 ]]; then
    attack 'clients of every kind at once' wallprof '--test watch' clients
    attack 'storms of forks and threads' wallprof '--test truth' storms
else
    echo 'skipped: storms and clients of a running watcher take root'
fi

if ((${#failed[@]})); then
    printf 'hostile: failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
