#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Boots Debian's kernels in an emulator, records the lock, chain and deadlock scenarios in each with the
# release binary (WALLPROF: another one), checks what the recordings say (lock.jq, stuck.jq, away.jq), and writes docs/kernels.md.
#
#   tests/kernels/run.sh              every series; 6.1, the oldest that is promised, must have run
#   tests/kernels/run.sh 6.1 7.2      only these; writes no table
#
# Uses target/release/wallprof (WALLPROF names another), and needs the Debian packages qemu-system-x86,
# busybox-static, jq and sqlite3. No kernel is installed: its image is taken out of its package and kept in
# target/kernels. A series that Debian no longer has is skipped with a message.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly HERE=$PWD/tests/kernels
readonly STORE=$PWD/target/kernels
readonly WALLPROF=${WALLPROF:-$PWD/target/release/wallprof}
readonly TABLE=docs/kernels.md

readonly REQUIRED=6.1
readonly EVERY_SERIES=(6.1 6.12 6.18 newest)
readonly AT_ONCE=2
# A guest is given up when it has said nothing for so long: the guest names each command before it runs. The time in
# which the emulator waited for a CPU does not count. Beside a build on two slow CPUs the longest command, a recording,
# took 59 s. The emulator now and then hangs before the guest's first program (seen: once in 40 boots): then once more.
readonly SILENT_SECONDS=110
# Of the 4,000 sleeps and more of bystander; how many carry a stack depends on the recorder's share of the
# CPU.
readonly ENOUGH_WAKEUPS=1000

say() { echo "kernels: $*" >&2; }
fail() { say "$*"; exit 1; }

. "$HERE/../debian/packages.sh"

# The releases of a series that Debian has, newest first: 6.1.0-56-cloud-amd64.
releases_of() {
    local series=${1//./\\.}
    [ "$1" != newest ] || series='[0-9]+\.[0-9]+'
    APT_CONFIG=$APT/apt.conf apt-cache search --names-only "^linux-image-$series\.[^ ]*-cloud-amd64\$" |
        sed -E 's/^linux-image-([^ ]*) .*/\1/' | sort -rV
}

# Up to 7.1 the kernel is in linux-image, from 7.2 on in linux-binary.
download() {
    local release=$1 folder
    folder=$(mktemp -d "$STORE/download.XXXXXX")
    (
        cd "$folder"
        export APT_CONFIG=$APT/apt.conf
        apt-get download -qq "linux-binary-$release" || apt-get download -qq "linux-image-$release"
        dpkg-deb --fsys-tarfile ./*.deb | tar -x --wildcards '*/vmlinuz*' --transform 's,.*/,,'
        mv vmlinuz* "$STORE/vmlinuz-$release"
    ) > "$folder.log" 2>&1 || true
    rm -r "$folder"
    [ -e "$STORE/vmlinuz-$release" ] && rm "$folder.log"
}

# Prints the release of a series whose kernel is in the store, downloaded if need be. A release in the lists
# may be gone from the archive: then the one before it.
kernel_of() {
    local series=$1 release pattern=$1
    while read -r release; do
        if [ -e "$STORE/vmlinuz-$release" ] || download "$release"; then
            echo "$release"
            return
        fi
    done < <(releases_of "$series" | head -3)
    # None in the lists, or no network: use the package of an earlier run.
    [ "$series" != newest ] || pattern='*'
    find "$STORE" -maxdepth 1 -name "vmlinuz-$pattern.*" -printf '%f\n' | sed 's/^vmlinuz-//' | sort -rV | head -1
}

# --- the guest ---

make_initramfs() {
    local root=$STORE/root
    rm -rf "$root"
    mkdir -p "$root"/{bin,proc,sys,dev,tmp}
    cp /bin/busybox "$root/bin/busybox"
    # The guest keeps its files in its memory.
    strip -o "$root/bin/wallprof" "$WALLPROF"
    libraries_of "$WALLPROF" | while read -r library; do install -D "$library" "$root$library"; done
    cp "$HERE/init" "$root/init"
    make -s -C scenarios OUT="$STORE/scenarios" CC='gcc -static' "$STORE"/scenarios/{lock,deadlock,chain,bystander,timers,calls,eventloop}
    cp "$STORE"/scenarios/{lock,deadlock,chain,bystander,timers,calls,eventloop} "$root/bin"
    (cd "$root" && find . | busybox cpio -o -H newc 2> /dev/null | gzip -1) > "$STORE/initramfs"
}

# The loader and the libraries of a program; none of a static one.
libraries_of() {
    ldd "$1" 2> /dev/null | grep -o '/[^ ]*' || true
}

# Boots a release; the guest's results are in the folder $STORE/results-RELEASE. False: its first program
# never ran.
boot() {
    local release=$1 results=$STORE/results-$1 emulator
    rm -rf "$results"
    mkdir -p "$results"
    # One thread an emulator: with two, one CPU now and then runs into the breakpoint that a kernel puts where
    # the other changes its code (a tracepoint that is switched on), and the kernel dies of it. A kernel
    # doubts an emulated timer whose ticks come late on a busy machine, and gives up: no_timer_check.
    qemu-system-x86_64 -accel tcg,thread=single -cpu max -m 1024 -smp 2 \
        -nodefaults -nographic -monitor none -no-reboot \
        -kernel "$STORE/vmlinuz-$release" -initrd "$STORE/initramfs" \
        -append 'console=ttyS0 quiet loglevel=1 panic=-1 rdinit=/init no_timer_check' \
        -serial "file:$results/console" -serial "file:$results/archive" < /dev/null > "$results/emulator" 2>&1 &
    emulator=$!
    await_end "$emulator" "$results/console" || {
        echo "given up: nothing was said for $SILENT_SECONDS s" >> "$results/console"
        kill "$emulator" 2> /dev/null || true
    }
    wait "$emulator" || true
    is_up "$results/console"
}

is_up() { grep -qs 'guest is up' "$1"; }

# Seconds of this script in which the emulator ran, or had nothing to run: one of its threads is the guest.
unhindered() {
    echo $((SECONDS - $(cat "/proc/$1/task/"*/schedstat 2> /dev/null | awk '$2 > ns { ns = $2 } END { printf "%d", ns / 1e9 }')))
}

# Until the emulator is gone, or the guest was silent for too long. What the guest says is repeated, so that
# this script is not silent meanwhile.
await_end() {
    local emulator=$1 console=$2 said=0 size until=$(($(unhindered "$1") + SILENT_SECONDS)) release
    release=${2%/console} release=${release##*/results-}
    while kill -0 "$emulator" 2> /dev/null; do
        size=$(stat -c %s "$console" 2> /dev/null || echo 0)
        if [ "$size" != "$said" ]; then
            until=$(($(unhindered "$emulator") + SILENT_SECONDS))
            tail -c "+$((said + 1))" "$console" | tr -d '\r' | grep -aE ' at [0-9.]+ s$|^guest is up' |
                sed "s/^/kernels: $release: /" >&2 || true
        fi
        said=$size
        [ "$(unhindered "$emulator")" -lt "$until" ] || return 1
        sleep 0.5
    done
}

last_words() { tr -d '\r' < "$1/console" | grep . | tail -2 | paste -sd ';' | cut -c1-300; }

boot_and_check() {
    local release=$1 results=$STORE/results-$1
    # A command that hangs is a failure. A guest that never came up is the emulator's.
    if ! boot "$release"; then
        say "$release did not come up ($(last_words "$results")): once more"
        boot "$release" || true
    fi
    tar -C "$results" -xzf "$results/archive" 2> /dev/null || true
    findings "$results" "$release" > "$results/findings" || echo "the check itself failed" >> "$results/findings"
    if [ -s "$results/findings" ]; then
        sed "s/^/kernels: $release: /" "$results/findings" >&2
    else
        say "$release: lock, chain and deadlock are recorded and reported"
    fi
}

# --- the check: prints a sentence for everything that is wrong ---

findings() {
    local results=$1 release=$2 command
    if [ ! -e "$results/missed.status" ]; then
        echo "the guest did not finish: $(last_words "$results")"
        return
    fi
    # The first failure causes the others.
    for command in programs record report lock runnable chain stacks stuck open faults switches \
        brief brief_back brief_missed away back timers late bystander calls spans turns busy missed doctor; do
        if [ "$(cat "$results/$command.status")" != 0 ]; then
            echo "$command ended with $(cat "$results/$command.status"): $(tail -1 "$results/$command.err")"
            return
        fi
    done
    doctor_agrees "$results"
    cat "$results"/{lock,runnable}.out > "$results/stalls"
    jq -r -f "$HERE/lock.jq" --arg kernel "$release" --rawfile tracepoints "$results/tracepoints" \
        --slurpfile truth "$results/record.out" --slurpfile stalls "$results/stalls" "$results/report.out"
    jq -r --slurp -f "$HERE/stuck.jq" "$results/open.out"
    stacks_are_whole "$results"
    events_are_counted "$results"
    a_cpu_that_comes_back_is_sampled "$results/brief_back.out" "$results/brief_missed.out"
    a_cpu_that_comes_back_is_sampled "$results/back.out" "$results/missed.out"
    rule_fires "$results/late.out" oversleep sleeper
    no_bystander_is_named "$results"
    calls_are_spans "$results"
    turns_are_periods "$results"
}

# The report $1 has a finding of the rule $2 about the thread $3.
rule_fires() {
    jq -r --arg rule "$2" --arg comm "$3" '
        [.threads[] | select(.comm == $comm) | .id] as $ids
        | select([.findings[] | select(.rule == $rule and any(.threads[]; IN($ids[])))] == [])
        | "no finding \($rule) about \($comm) in \([.findings[].rule])"' "$1"
}

# Sixty functions without frame pointers, running and waiting, each in its place from the thread's start on.
stacks_are_whole() {
    local results=$1 functions
    functions=$(printf 'f%02d;' {0..59})
    grep -q "^chain;_start;.*;main;climb_chain;${functions}call_leaf;spin_leaf;.*\[user\]" "$results/stacks.out" ||
        echo "sixty functions were not seen running"
    grep -q "^chain;_start;.*;main;climb_chain;${functions}call_leaf;sleep_leaf;.*\[blocked:sleep\]" "$results/stacks.out" ||
        echo "sixty functions were not seen waiting"
    # When a program starts, its mappings are not known yet, and the tables of its file and of the vDSO are not built.
    # How long that takes depends on the machine. After the first second with a whole stack of the program through each
    # of the two it is over. Before its exec the thread has stacks of wallprof, with fewer functions.
    sqlite3 -readonly "$results/chain.db" "
        WITH RECURSIVE up (stack, node) AS (
            SELECT DISTINCT user_stack, user_stack FROM sample WHERE user_stack <> 0
            UNION ALL
            SELECT stack, node.parent FROM up JOIN node ON node.id = up.node WHERE node.parent IS NOT NULL),
        ended AS (
            SELECT second, ending, sum(count) AS count
            FROM sample JOIN up ON up.stack = user_stack JOIN root ON root.node = up.node
            GROUP BY second, ending),
        own AS (SELECT stack FROM up GROUP BY stack HAVING count(*) > 60),
        whole AS (
            SELECT own.stack FROM own JOIN up ON up.stack = own.stack JOIN root ON root.node = up.node
            WHERE ending = 'complete'),
        built AS (
            SELECT module, min(second) AS second
            FROM sample JOIN whole ON whole.stack = user_stack JOIN up ON up.stack = user_stack
                JOIN node ON node.id = up.node JOIN frame ON frame.id = node.frame
            GROUP BY module),
        later AS (SELECT * FROM ended WHERE second > (SELECT max(second) FROM built)),
        sums AS (
            SELECT total(count) AS stacks, total(count) FILTER (WHERE ending = 'complete') AS whole,
                group_concat(DISTINCT ending) AS endings
            FROM later)
        SELECT format('%d of %d user stacks are whole after the first second: %s', whole, stacks, endings)
        FROM sums WHERE stacks < 100 OR whole < stacks * 0.99"
}

# Each call of a probed function that returned is a span: `calls` prints how many did.
calls_are_spans() {
    jq -rn --slurpfile truth "$1/calls.out" --slurpfile tail "$1/spans.out" '
        $truth[] | select(.event == "calls")
        | . as $calls | ([$tail[0].kinds[] | select(.kind == $calls.function).count] | add) as $spans
        | select($spans != .ended) | "\($spans) spans of \(.ended) calls of \(.function)"'
}

# The loop takes one of eight requests in a turn: most of its polls return at once. Each of them ends a busy period once
# the place of the poll is known.
turns_are_periods() {
    jq -rn --slurpfile truth "$1/turns.out" --slurpfile tail "$1/busy.out" '
        ($truth[] | select(.event == "served").requests) as $requests
        | ([$tail[0].kinds[].count] | add) as $periods
        | select($periods < $requests / 4 or $periods > $requests)
        | "\($periods // 0) busy periods of a loop that served \($requests) requests"'
}

# The output of the doctor, the features of the kernel, and the loaded programs must agree.
doctor_agrees() {
    local results=$1 subject tracepoint program has
    while IFS='|' read -r subject tracepoint program; do
        has=no
        grep -qx "$tracepoint" "$results/tracepoints" && has=yes
        [ "$(doctor_says "$results" "$subject")" = "$has" ] || echo "doctor is wrong about $tracepoint, which is there: $has"
        [ "$(is_loaded "$results" "$program")" = "$has" ] || echo "$program is loaded where $tracepoint is there: $has"
    done <<-END
	stacks of waits|sched_exit_tp|on_switched
	interrupts|local_timer_entry|on_local_timer_entry
	moves of threads|cgroup_attach_task|on_cgroup_attach
	page faults|page_fault_user|on_fault_in_user
	END
}

# Software events and tracepoints beside the ledger: the cookie of each program identifies its event.
events_are_counted() {
    grep -q '^deadlock;.*pthread_create [0-9]' "$1/faults.out" || echo "no page fault was sampled where it happened"
    grep -q '__schedule_\[k\] [0-9]' "$1/switches.out" || echo "no switch was sampled where it happened"
}

# The events of a CPU die with it.
a_cpu_that_comes_back_is_sampled() {
    grep -q '^chain;.*;climb_chain;.*\[user\]' "$1" ||
        echo "nothing was sampled on a CPU that had been offline"
    jq -r -f "$HERE/away.jq" "$2"
}

# Wakeups in the view `samples`, by the condition $2.
wakeups() { sqlite3 -readonly "$1/bystander.db" "SELECT ifnull(sum(count), 0) FROM samples WHERE $2"; }

# Threads that an interrupt hits by chance are not the wakers of those that it wakes; the others are.
no_bystander_is_named() {
    local results=$1 count
    count=$(wakeups "$results" "comm IN ('sleeper', 'receiver', 'ringer') AND waker_context = 'interrupt'")
    [ "$count" -ge "$ENOUGH_WAKEUPS" ] || echo "$count wakeups by interrupts are too few to judge by"
    count=$(wakeups "$results" "comm IN ('sleeper', 'receiver', 'ringer') AND waker_comm <> 'bystander'
        AND waker_comm NOT LIKE 'ksoftirqd%'")
    [ "$count" = 0 ] || echo "$count of the wakeups by interrupts name a thread that they hit by chance"
    count=$(wakeups "$results" "comm = 'listener' AND waker_comm = 'ringer'")
    [ "$count" -ge 100 ] || echo "$count wakeups over loopback name the thread that sent"
}

doctor_says() { grep -q "^ok *$2 " "$1/doctor.out" && echo yes || echo no; }
is_loaded() { grep -Eq "^$2 [0-9]+\$" "$1/programs.out" && echo yes || echo no; }

# --- the table ---

row() { echo "| $1 | $(shift; IFS='|'; echo "$*" | sed 's/|/ | /g') |"; }

# One word a release: what `$1 RELEASE` prints.
cells() {
    local what=$1 release
    shift
    for release in "$@"; do "$what" "$release"; done
}

short() { echo "${1%%-cloud*}"; }
has() { grep -qx "$1" "$STORE/results-$2/tracepoints"; }
stacks_cell() { has sched_exit_tp "$1" && echo "at switch-in" || echo "at switch-out"; }
vectors_cell() { has local_timer_entry "$1" && echo yes || echo no; }
cgroups_cell() { has cgroup_attach_task "$1" && echo yes || echo no; }
faults_cell() { has page_fault_user "$1" && echo yes || echo no; }
programs_cell() { awk '$2 != "missing" {n++} END {print n " of " NR}' "$STORE/results-$1/programs.out"; }
total_cell() { awk '{sum += $2} END {print sum}' "$STORE/results-$1/programs.out"; }

write_table() {
    local releases=("$@") names program counts
    mapfile -t names < <(cells short "${releases[@]}")
    {
        cat <<-'END'
		# Kernels

		`tests/kernels/run.sh` writes this page. It boots each of these kernels of Debian, records these scenarios with
		one binary of wallprof, and checks the results:

		- The lock scenario from start to end. The stall has the waiting function, the lock's owner and the function that
		  released the lock. The ledger of every thread adds up, and there is no loss.
		- A chain of sixty functions without frame pointers. Its stacks are complete, running and waiting.
		- The deadlock scenario, whose threads never return, with samples of page faults and of a tracepoint.
		- A program on a CPU that was offline, once for an instant and once for two seconds, in which the wall clock was
		  stepped by an hour and back.
		- Calls of probed functions, which call themselves, jump out, or end by a jump to another function. Each one that
		  returned is a span.
		- An event loop whose polls return at once: with `--span loop` each turn is a busy period.
		- 4,000 wakeups by interrupts beside threads that the interrupts happen to hit. None of these threads is named as
		  a waker.

		The oldest supported kernel is 6.1. Missing features of a kernel are detected by its type information, never by
		its version. `wallprof doctor` reports the same features as this table: the run compares them.

		END
		row 'Debian kernel' "${names[@]}"
		row '---' "${names[@]//*/---}"
		mapfile -t counts < <(cells stacks_cell "${releases[@]}"); row 'stacks of waits (`sched_exit_tp`)' "${counts[@]}"
		mapfile -t counts < <(cells vectors_cell "${releases[@]}"); row 'a tracepoint for each interrupt vector' "${counts[@]}"
		mapfile -t counts < <(cells cgroups_cell "${releases[@]}"); row 'moves into a recorded cgroup are seen' "${counts[@]}"
		mapfile -t counts < <(cells faults_cell "${releases[@]}"); row 'access of page faults is known' "${counts[@]}"
		mapfile -t counts < <(cells programs_cell "${releases[@]}"); row 'programs loaded' "${counts[@]}"
		mapfile -t counts < <(cells total_cell "${releases[@]}"); row 'instructions verified' "${counts[@]}"
		cat <<-'END'

		Without `sched_exit_tp` (before 6.17) the stacks of a wait are taken when the thread leaves its CPU, before it is
		known whether the wait will be long. Recording costs more there, and no data is missing.

		## Instructions that the verifier checks

		The limit is 1,000,000 for one program. `wallprof doctor --programs` prints the numbers of the machine.

		END
		row program "${names[@]}"
		row '---' "${names[@]//*/---:}"
		while read -r program _; do
			mapfile -t counts < <(for release in "${releases[@]}"; do
				awk -v program="$program" '$1 == program {print $2}' "$STORE/results-$release/programs.out"
			done)
			row "\`$program\`" "${counts[@]}"
		done < "$STORE/results-${releases[0]}/programs.out"
    } > "$STORE/table"
    mv "$STORE/table" "$TABLE"
    say "$TABLE is written"
}

# --- all of it ---

check_tools() {
    local tool
    for tool in qemu-system-x86_64 busybox jq sqlite3 apt-get dpkg-deb; do
        command -v "$tool" > /dev/null || fail "$tool is missing: apt-get install qemu-system-x86 busybox-static jq sqlite3"
    done
    [ -x "$WALLPROF" ] || fail "$WALLPROF is missing: run make release"
}

main() {
    local series=("$@") releases=() name release failed=0
    [ $# -gt 0 ] || series=("${EVERY_SERIES[@]}")
    check_tools
    mkdir -p "$STORE"
    refresh_lists
    make_initramfs
    for name in "${series[@]}"; do
        release=$(kernel_of "$name")
        if [ -z "$release" ]; then
            [ "$name" != "$REQUIRED" ] ||
                fail "no kernel of the series $name can be had from $ARCHIVE, and it is the oldest that is promised"
            say "skipped $name: no kernel of that series can be had"
        elif [[ " ${releases[*]} " != *" $release "* ]]; then
            releases+=("$release") # the newest may be that of a series already named
        fi
    done
    for release in "${releases[@]}"; do
        while [ "$(jobs -rp | wc -l)" -ge "$AT_ONCE" ]; do wait -n || true; done
        boot_and_check "$release" &
    done
    wait
    for release in "${releases[@]}"; do
        [ -e "$STORE/results-$release/findings" ] && [ ! -s "$STORE/results-$release/findings" ] || failed=1
    done
    [ $failed = 0 ] || fail "wallprof breaks its promises on the kernels above"
    [ $# -gt 0 ] || write_table "${releases[@]}"
}

main "$@"
