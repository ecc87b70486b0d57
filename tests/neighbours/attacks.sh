#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs every attack of docs/reliability.md that is a test, by the module that contains it. `make test` runs
# the same tests among all others. Here a flood has a million rows, and a module without tests is an error.
#
# usage: tests/neighbours/attacks.sh [PACKAGE…]      all packages by default
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
attack() { # DESCRIPTION PACKAGE CARGO-TARGET [MODULE…]
    local description=$1 package=$2 target=$3 output
    shift 3
    is_wanted "$package" || return 0
    echo "== $description ($package)"
    # shellcheck disable=SC2086
    if ! output=$(cargo test -q --profile demo -p "$package" $target -- "$@" 2>&1); then
        echo "$output" | tail -60
        failed+=("$description")
    elif ! echo "$output" | grep -q '[1-9][0-9]* passed'; then
        echo "no test of $target matches ${*:-any name}: a module or test was renamed" >&2
        failed+=("$description")
    fi
}

# Files of other users.
attack 'truncated files, sparse files, floods of symbols' wallprof-symbols '--test foreign_files'
attack 'crafted ELF and debug information' wallprof-symbols '--test hostile'
attack 'private copies, shared deadlines, copied build ids' wallprof-symbols --lib private_copy read_limits module
attack 'files that are truncated while their unwind table is built' wallprof-unwind --lib file_image image
attack 'budgets of the unwind builders, floods of files' wallprof-live --lib build_budget known
attack 'floods of unwind rules' wallprof-probe --lib rule_numbers
attack 'sparse files that a perf.data refers to' wallprof-import --lib build_budget
# Links, FIFOs, rights.
attack 'links in sticky folders' wallprof-recording --lib place
attack 'FIFOs, rights of the caller, private pictures' wallprof '--test cli' neighbours
# Recordings and traces of others.
attack 'damaged recordings, SQL in recordings' wallprof-recording '--test foreign_files'
attack 'memory of a reader' wallprof-recording --lib bounds foreign
attack 'hostile rows, floods of rows, SQL in recordings with every command' wallprof '--test hostile'
attack 'hostile traces' wallprof-intel-pt '--test hostile'
# Names.
attack 'control characters in names' wallprof-views '--test hostile'
attack 'names in metrics' wallprof-watch --lib openmetrics series
# The network.
attack 'slow clients, DNS rebinding, pages of other sites' wallprof-watch --lib http
if [[ $(id -u) == 0 ]]; then
    attack 'clients of every kind at once' wallprof '--test watch' clients
    attack 'storms of forks and threads' wallprof '--test truth' storms
else
    echo 'skipped: storms and clients of a running watcher need root'
fi

if ((${#failed[@]})); then
    printf 'hostile: failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
