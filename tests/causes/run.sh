#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Whether the first finding names the cause: starts real software with a planted cause, records it, and checks
# the first finding for cause, place and culprit. The twin, the same without the cause, must have no findings.
#
#   tests/causes/run.sh [-n RUNS] [-k FOLDER] [CASE …]      all cases, one run each, by default
#
#   -n   so many runs of each case
#   -k   keeps each case's cause.db, twin.db and the findings' text in FOLDER/CASE, with a file `right` if it was
#
# Uses target/release/wallprof (WALLPROF names another), as root. Prints a table. Exit code 1: a case was wrong.
# Findings whose cause is the machine (docs/findings.md, "The program or the machine") do not count: it is shared.
# Each such finding is printed.
# A case whose packages are missing, or whose `skip_unless` fails, is skipped with a message.
#
# A case is a file cases/PROGRAM-CAUSE.sh, sourced by bash. A command that fails in its functions ends it. It
# sets
#   packages      the Debian packages that it needs, as an array or a string; a|b: one of the two
#   kind          an extended regular expression: the whole name of the rule of the first finding
#   text          an extended regular expression that matches in the first finding as `report` prints it,
#                 on one line. It has to name cause, place and culprit
#   skip_unless   optional: a command that succeeds where the case can run
#   planted       optional: a rule whose findings count although their cause is the machine, because the case
#                 itself changes that
# and defines functions, which print nothing and have the folder $WORK for their files:
#   prepare       starts the software and loads data; optional
#   cause, twin   run the workload for $SECONDS_OF_RUN, with the cause and without
#   target        prints the arguments of `record`; fails while there is nothing to record yet. By default
#                 the process of `run_as_target`.
#   clean         what killing the processes of `start` and of the workload does not clean up; optional
# The functions below, up to the line, are for cases. Cases of a server use a socket or a port of their own.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."

readonly HERE=$PWD/tests/causes
readonly PROGRAMS=$HERE/programs
# Compiled programs, kept between runs; those of one Debian do not run on another.
BUILT=$PWD/target/causes/$(. /etc/os-release && echo "${VERSION_CODENAME:-$ID}")
readonly BUILT
WALLPROF=$(realpath -m "${WALLPROF:-target/release/wallprof}")
readonly WALLPROF
SECONDS_OF_RUN=${SECONDS_OF_RUN:-8}
# The recording ends before the workload does, so that it has no end of a program in it: a virtual machine
# and the recorder take seconds to start on a busy machine.
readonly SECONDS_RECORDED=$((SECONDS_OF_RUN - 4))
# A machine may be three times slower than another, and beside a build.
readonly MOST_SECONDS_TO_START=200
# shellcheck disable=SC2034 # for cases
readonly DEBIAN_PYTHON=/usr/bin/python3

say() { echo "causes: $*" >&2; }
fail() {
    say "$*"
    exit 2
}

# --- for cases ---

# Starts a program that runs until the end of the case, with its output in $WORK/NAME.log.
start() { # COMMAND…
    "$@" > "$WORK/${1##*/}.log" 2>&1 < /dev/null &
    pids+=($!)
}

# Waits until a command succeeds.
until_ready() { # COMMAND…
    local end=$((SECONDS + MOST_SECONDS_TO_START))
    until "$@" > /dev/null 2>&1; do
        ((SECONDS < end)) || {
            say "$case: not ready after $MOST_SECONDS_TO_START s: $*"
            return 1
        }
        sleep 0.05
    done
}

# For `cause` and `twin`: becomes the program that `target` names, which has to end by itself.
run_as_target() { # COMMAND…
    echo "$BASHPID" > "$WORK/target"
    exec "$@" > "$WORK/${1##*/}.log" 2>&1 < /dev/null
}

# The program has written this file: it has started what is to be recorded.
target() { [ -s "$WORK/target" ] && echo "-p $(< "$WORK/target")"; }

# The same for a program that needs a while to start: once it has a thread of this name.
target_with_thread() { # NAME
    [ -s "$WORK/target" ] || return 1
    grep -qsxF "$1" /proc/"$(< "$WORK/target")"/task/*/comm && echo "-p $(< "$WORK/target")"
}

# The Rust programs, which need crates; in $BUILT/rust/release.
rust_programs() {
    CARGO_TARGET_DIR=$BUILT/rust cargo build --quiet --release --locked --manifest-path "$PROGRAMS/rust/Cargo.toml"
}

# A folder of a control group of v1 or v2 with this controller, which is made. `clean` has to remove it.
control_group() { # CONTROLLER
    local folder=/sys/fs/cgroup/$1
    [ -d "$folder" ] || folder=/sys/fs/cgroup
    folder+=/wallprof-causes-$$-$case
    mkdir -p "$folder"
    echo "$folder"
}

# Whether a control group can have a share of the CPU time, and a quota.
readonly HAS_CPU_GROUPS='[ -e /sys/fs/cgroup/cpu/cpu.cfs_quota_us ] || grep -qw cpu /sys/fs/cgroup/cgroup.subtree_control'

# The folder of a container's control group as docker names it, which is made within that of the case. The containers
# have most of the CPU time, as on a host that runs containers. `clean` has to call `remove_containers`.
container() { # ID
    local parent folder
    parent=$(control_group cpu)
    folder=$parent/docker-$1.scope
    if [ -e "$parent/cpu.weight" ]; then
        echo +cpu > "$parent/cgroup.subtree_control"
        echo 2000 > "$parent/cpu.weight"
    else
        echo 20480 > "$parent/cpu.shares"
        # Where the kernel's other hierarchies are looked at for a container, too.
        [ ! -d /sys/fs/cgroup/systemd ] || mkdir -p "${folder/#\/sys\/fs\/cgroup\/cpu/\/sys\/fs\/cgroup\/systemd}"
    fi
    mkdir -p "$folder"
    echo "$folder"
}

# Becomes a program in a container.
run_in_container() { # FOLDER COMMAND…
    local folder=$1 other=${1/#\/sys\/fs\/cgroup\/cpu/\/sys\/fs\/cgroup\/systemd}
    shift
    echo "$BASHPID" > "$folder/cgroup.procs"
    [ "$other" = "$folder" ] || [ ! -d "$other" ] || echo "$BASHPID" > "$other/cgroup.procs"
    exec "$@"
}

remove_containers() {
    local parent folder
    for parent in /sys/fs/cgroup/{,cpu/,systemd/}wallprof-causes-$$-"$case"; do
        for folder in "$parent"/docker-*.scope "$parent"; do
            [ ! -d "$folder" ] || until_ready rmdir "$folder"
        done
    done
}

# A CPU quota of a control group.
limit_cpu() { # FOLDER MICROSECONDS OF 100000
    if [ -e "$1/cpu.max" ]; then
        echo "$2 100000" > "$1/cpu.max"
    else
        echo 100000 > "$1/cpu.cfs_period_us"
        echo "$2" > "$1/cpu.cfs_quota_us"
    fi
}

# Weight of a control group beside its siblings, where 1 is the usual one.
weigh_cpu() { # FOLDER TIMES
    if [ -e "$1/cpu.weight" ]; then
        echo $((100 * $2)) > "$1/cpu.weight"
    else
        echo $((1024 * $2)) > "$1/cpu.shares"
    fi
}

# Whether the requests of a control group to a disk can be limited.
may_limit_disk() { # read|write
    [ -e "/sys/fs/cgroup/blkio/blkio.throttle.${1}_iops_device" ] || grep -qw io /sys/fs/cgroup/cgroup.subtree_control
}

# Limits the requests a second of a control group to the disk of a file.
limit_disk() { # FOLDER FILE read|write REQUESTS
    local source disk device
    source=$(df --output=source "$2" | tail -1)
    # The disk itself, not one of its partitions.
    disk=$(lsblk -no PKNAME "$source" | tail -1)
    device=$(lsblk -dno MAJ:MIN "${disk:+/dev/}${disk:-$source}" | tr -d ' ')
    if [ -e "$1/io.max" ]; then
        echo "$device ${3::1}iops=$4" > "$1/io.max"
    else
        echo "$device $4" > "$1/blkio.throttle.${3}_iops_device"
    fi
}

# For `cause` and `twin`: becomes the program that `target` names, in a control group.
run_in_group_as_target() { # FOLDER COMMAND…
    echo "$BASHPID" > "$1/cgroup.procs"
    shift
    run_as_target "$@"
}

# Compiles programs/FILE, unless that was done before, and prints the path of the binary.
program() { # FILE [ARGUMENT OF THE COMPILER…]
    local source=$PROGRAMS/$1 binary=$BUILT/${1%.*}
    shift
    mkdir -p "$BUILT"
    if [ ! "$binary" -nt "$source" ]; then
        case $source in
        *.c) gcc -O2 -g0 -o "$binary" "$source" -pthread "$@" ;;
        *.cc) g++ -O2 -g0 -std=c++20 -o "$binary" "$source" -pthread "$@" ;;
        *.rs) rustc --edition 2024 -O -o "$binary" "$source" "$@" ;;
        *.go) go build -o "$binary" "$source" "$@" ;;
        *.java) javac -d "$binary" "$source" && touch "$binary" ;;
        esac >&2
    fi
    echo "$binary"
}

# ----------------------------------------------------------------------------------------------------------

runs=1
keep=
while getopts 'n:k:' option; do
    case $option in
    n) runs=$OPTARG ;;
    k) keep=$(realpath -m "$OPTARG") ;;
    *) fail 'usage: run.sh [-n RUNS] [-k FOLDER] [CASE …]' ;;
    esac
done
shift $((OPTIND - 1))
readonly runs keep

[[ $(id -u) == 0 ]] || fail 'this needs root: it records, and runs servers as their users'
[[ -x $WALLPROF ]] || fail "$WALLPROF is not there: make release, or set WALLPROF"
command -v jq > /dev/null || fail 'jq is not installed'

# --- one case, in a subshell ---

# Processes that the case has started, and their children.
end_processes() {
    local pid
    for pid in "${pids[@]}"; do
        pkill -TERM -P "$pid" 2> /dev/null || true
        kill "$pid" 2> /dev/null || true
    done
    for pid in "${pids[@]}"; do
        wait "$pid" 2> /dev/null || true
    done
}

finish_case() {
    set +e
    [[ -n $finished ]] || printf 'wrong\tit could not be run: %s\t\n' "$(tail -qn 1 "$WORK/prepare.log")"
    clean
    end_processes
    if [[ -n $keep ]]; then
        mkdir -p "$keep/$case"
        rm -f "$keep/$case/right"
        [[ -z $finished || $verdict != right ]] || touch "$keep/$case/right"
        cp "$WORK"/*.db "$WORK"/*.txt "$WORK"/*.json "$WORK"/*.log "$keep/$case" 2> /dev/null
    fi
    rm -rf "$WORK"
}

# `target` runs once when it succeeds: some ask the program to do something first.
try_target() { target > "$WORK/record"; }

# A recorder that was ready late, on a busy machine, has missed the workload or has its end in the recording:
# that says nothing of the finding.
record() { # cause|twin
    local attempt SECONDS_OF_RUN=$SECONDS_OF_RUN
    for attempt in 1 2 3; do
        if record_once "$1" && was_in_time "$1"; then
            return
        fi
        say "$case: the recorder was not ready in time for the $1, attempt $attempt"
        # The recording lasts as long, and the recorder has more time to start.
        SECONDS_OF_RUN=$((SECONDS_OF_RUN * 2))
    done
    return 1
}

was_in_time() { # cause|twin
    jq -e --argjson start "$workload_start" --argjson seconds "$SECONDS_OF_RUN" \
        '.recording | (.start_ns + .duration_ns) / 1e9 < $start + $seconds' "$WORK/$1.json" > /dev/null
}

# Records while `cause` or `twin` runs, from the moment at which there is a target.
record_once() { # cause|twin
    local workload recorder arguments
    rm -f "$WORK/target"
    workload_start=$EPOCHREALTIME
    "$1" > "$WORK/$1.out" &
    workload=$!
    pids+=("$workload")
    until_ready try_target || return 1
    read -ra arguments < "$WORK/record"
    "$WALLPROF" record "${arguments[@]}" -d "$SECONDS_RECORDED" -o "$WORK/$1.db" > "$WORK/$1.log" 2>&1 &
    recorder=$!
    wait "$recorder" || {
        say "$case: record ${arguments[*]} failed: $(tail -1 "$WORK/$1.log")"
        return 1
    }
    wait "$workload" || true
    "$WALLPROF" report "$WORK/$1.db" > "$WORK/$1.txt" || return 1
    "$WALLPROF" report --json "$WORK/$1.db" > "$WORK/$1.json"
}

# Findings as lines `number<tab>rule<tab>title`. Those of the machine are left out and printed to stderr.
own_findings() { # cause|twin
    local number cause rule title
    while IFS=$'\t' read -r number cause rule title; do
        if [[ $cause == machine && $rule != "$planted" ]]; then
            echo "$rule" >> "$WORK/$1.excused"
            say "$case: excused in the $1: $rule: $title"
        else
            printf '%s\t%s\t%s\n' "$number" "$rule" "$title"
        fi
    done < <(jq -r '.findings | to_entries[] | [.key + 1, (.value | .cause, .rule, .title)] | @tsv' "$WORK/$1.json")
}

# A finding of the cause as `report` prints it, on one line.
finding_text() { # NUMBER
    awk -v begin="^ *$1  " -v end="^ *$(($1 + 1))  " '
        /^Findings/ { findings = 1; next }
        findings && !/^     / { found = $0 ~ begin }
        /^$/ { exit }
        found { $1 = $1; printf "%s ", $0 }' <(sed -n '/^Findings/,$p' "$WORK/cause.txt")
}

# `a|b`: one of them.
is_installed() { # PACKAGE
    local one
    for one in ${1//|/ }; do
        ! dpkg-query -W -f='${db:Status-Abbrev}' "$one" 2> /dev/null | grep -q '^ii' || return 0
    done
    return 1
}

# Prints `right<tab>…` or `wrong<tab>…`, then the first finding and the twin's findings.
run_case() {
    local number rule title first='' twin package workload_start
    # Not local: the trap at the end of the subshell needs them.
    case=$1 pids=() packages='' kind='' text='' skip_unless='' planted='' finished='' verdict=right
    set -e
    prepare() { :; }
    clean() { :; }
    # shellcheck source=/dev/null
    . "$HERE/cases/$case.sh"
    # shellcheck disable=SC2048 # a string of words, or an array
    for package in ${packages[*]}; do
        is_installed "$package" || {
            printf 'skipped\t%s is not installed\t\n' "$package"
            return
        }
    done
    if [[ -n $skip_unless ]] && ! eval "$skip_unless" > /dev/null 2>&1; then
        printf 'skipped\tthis fails here: %s\t\n' "$skip_unless"
        return
    fi
    WORK=$(mktemp -d "/tmp/wallprof-causes-$case.XXXXXX")
    # Where the servers' own users may go.
    chmod 711 "$WORK"
    trap finish_case EXIT
    prepare > "$WORK/prepare.log" 2>&1
    record cause
    IFS=$'\t' read -r number rule title <<< "$(own_findings cause | head -1)"
    [[ -n $rule ]] && first=$(finding_text "$number")
    [[ $rule =~ ^($kind)$ && $first =~ $text ]] || verdict=wrong
    record twin
    twin=$(own_findings twin | cut -f 2- | tr '\n\t' ' :')
    [[ -z $twin ]] || verdict=wrong
    [[ $verdict == right ]] || say "$case: wanted $kind: $text; the first finding: ${first:-none}"
    [[ ${number:-1} == 1 ]] || title+=" (after excused findings)"
    [[ ! -s $WORK/twin.excused ]] || twin="${twin:-none}(excused: $(sort -u "$WORK/twin.excused" | paste -sd ' '))"
    printf '%s\t%s: %s\t%s\n' "$verdict" "${rule:-none}" "${title:-}" "${twin:-none}"
    finished=yes
}

# --- all of them ---

if (($# > 0)); then
    cases=("$@")
else
    mapfile -t cases < <(cd "$HERE/cases" && printf '%s\n' *.sh | sed 's/\.sh$//')
fi
for case in "${cases[@]}"; do
    [[ -f $HERE/cases/$case.sh ]] || fail "there is no case $case in tests/causes/cases"
done

right=0 wrong=0 skipped=0
echo '| case | first finding | verdict | twin |'
echo '| --- | --- | --- | --- |'
for case in "${cases[@]}"; do
    all_right=yes ran=yes
    for ((run = 1; run <= runs; run++)); do
        IFS=$'\t' read -r verdict first twin <<< "$(run_case "$case")"
        echo "| $case | ${first//|/\\|} | $verdict | ${twin//|/\\|} |"
        case $verdict in
        right) ;;
        skipped)
            ran=
            break
            ;;
        *) all_right= ;;
        esac
    done
    if [[ -z $ran ]]; then
        skipped=$((skipped + 1))
    elif [[ -n $all_right ]]; then
        right=$((right + 1))
    else
        wrong=$((wrong + 1))
    fi
done
echo
echo "$right of $((right + wrong)) cases right in each of $runs runs, $skipped skipped."
((wrong == 0))
